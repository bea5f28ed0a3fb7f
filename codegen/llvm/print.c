/* Prints kernels as LLVM IR. A vector loop runs LOOP_LANES iterations at a time (lanes of a
 * vector); the remaining iterations run with a mask that switches lanes off. A value is a vector
 * if it depends on the loop's variable, and a scalar otherwise. gradc dump --stage=llvm shows
 * the result. */
#include "codegen/llvm/print.h"

#include <ctype.h>
#include <string.h>

/* A vector loop of at most UNROLLED_BLOCKS times LOOP_LANES iterations is unrolled. An array of
 * more than LARGE_LOCAL bytes does not lie on a thread's stack. */
enum { UNROLLED_BLOCKS = 2, LARGE_LOCAL = 1 << 18 };

/* ---- definitions */
static V
emit_definition(Printer *p, const LoopStatement *s)
{
	switch (s->kind) {
	case LOOP_STATEMENT_OP: return emit_op(p, &p->frame, s);
	case LOOP_STATEMENT_CONST: return llvm_constant(p, s->type, s->f, s->i);
	case LOOP_STATEMENT_CAST: return emit_cast(p, &p->frame, s);
	case LOOP_STATEMENT_AFFINE: return emit_affine(p, s->place);
	case LOOP_STATEMENT_SCALAR: {
		LLVMTypeRef t = llvm_type(p, s->type);
		return LLVMBuildLoad2(p->b, t,
		                      llvm_address(p, t, p->scalars, llvm_word(p, s->buffer)), "");
	}
	default: return emit_load(p, s);
	}
}

/* ---- control */
static void emit_block(Printer *p, int from, int to);

static LLVMBasicBlockRef
block_new(const Printer *p)
{
	return LLVMAppendBasicBlockInContext(p->context, p->function, "");
}

Loop
open_loop(const Printer *p, V first, V last, int64_t step, bool guarded)
{
	Loop loop = {.body = block_new(p), .behind = block_new(p), .last = last, .step = step};
	LLVMBasicBlockRef before = LLVMGetInsertBlock(p->b);

	if (guarded)
		LLVMBuildCondBr(p->b, LLVMBuildICmp(p->b, LLVMIntSLT, first, last, ""), loop.body,
		                loop.behind);
	else
		LLVMBuildBr(p->b, loop.body);
	LLVMPositionBuilderAtEnd(p->b, loop.body);
	loop.variable = LLVMBuildPhi(p->b, LLVMInt64TypeInContext(p->context), "");
	LLVMAddIncoming(loop.variable, &first, &before, 1);
	return loop;
}

void
close_loop(const Printer *p, const Loop *loop)
{
	V next = LLVMBuildNSWAdd(p->b, loop->variable, llvm_word(p, loop->step), "");
	LLVMBasicBlockRef latch = LLVMGetInsertBlock(p->b);

	LLVMAddIncoming(loop->variable, &next, &latch, 1);
	LLVMBuildCondBr(p->b, LLVMBuildICmp(p->b, LLVMIntSLT, next, loop->last, ""), loop->body,
	                loop->behind);
	LLVMPositionBuilderAtEnd(p->b, loop->behind);
}

/* Emits the body for LOOP_LANES iterations from iteration `block` on. Only the first n lanes run;
 * with `count`, only the first `count` (a number computed at run time, at most n). */
static void
emit_lanes(Printer *p, const LoopStatement *s, int at, V block, int n, V count)
{
	p->variable = s->result;
	p->block = block;
	p->active = n;
	p->count = count;
	p->mask = count ? lanes_below(p, count) : n < LOOP_LANES ? lane_mask(p, n) : NULL;
	p->frame.values[s->result] = llvm_plus(p, block, lane_constants(p, 1));
	emit_block(p, at + 1, s->match);
	p->variable = -1;
	p->mask = p->count = NULL;
}

static void
emit_vector(Printer *p, const LoopStatement *s, int at)
{
	int64_t full = s->extent / LOOP_LANES * LOOP_LANES;

	start_accumulators(p, s);
	if (full <= UNROLLED_BLOCKS * LOOP_LANES) {
		for (int64_t block = 0; block < full; block += LOOP_LANES)
			emit_lanes(p, s, at, llvm_word(p, block), LOOP_LANES, NULL);
	} else {
		Loop loop = open_loop(p, llvm_word(p, 0), llvm_word(p, full), LOOP_LANES, false);
		emit_lanes(p, s, at, loop.variable, LOOP_LANES, NULL);
		close_loop(p, &loop);
	}
	if (full < s->extent)
		emit_lanes(p, s, at, llvm_word(p, full), (int)(s->extent - full), NULL);
	finish_accumulators(p, s);
}

/* min(extent, place), at least 0 */
static V
emit_end(Printer *p, const LoopStatement *s)
{
	LLVMTypeRef word = LLVMInt64TypeInContext(p->context);
	V end = emit_affine(p, s->place);

	V args[] = {end, llvm_word(p, s->extent)}, from[] = {NULL, llvm_word(p, 0)};
	from[0] = call_intrinsic(p, "llvm.smin", &word, 1, args, 2);
	return call_intrinsic(p, "llvm.smax", &word, 1, from, 2);
}

/* Emits `end` iterations: whole vectors in a loop, and the remainder under a mask, if there is a remainder. */
static void
emit_vector_below(Printer *p, const LoopStatement *s, int at, V end)
{
	LLVMBasicBlockRef some = block_new(p), behind = block_new(p);
	V rest = LLVMBuildAnd(p->b, end, llvm_word(p, LOOP_LANES - 1), "");
	V full = LLVMBuildSub(p->b, end, rest, "");

	start_accumulators(p, s);
	Loop loop = open_loop(p, llvm_word(p, 0), full, LOOP_LANES, true);
	emit_lanes(p, s, at, loop.variable, LOOP_LANES, NULL);
	close_loop(p, &loop);
	LLVMBuildCondBr(p->b, LLVMBuildICmp(p->b, LLVMIntEQ, rest, llvm_word(p, 0), ""), behind,
	                some);
	LLVMPositionBuilderAtEnd(p->b, some);
	emit_lanes(p, s, at, full, LOOP_LANES, rest);
	LLVMBuildBr(p->b, behind);
	LLVMPositionBuilderAtEnd(p->b, behind);
	finish_accumulators(p, s);
}

/* Emits one loop over a range of parts. The variables of the nested loops are phis. Their first
 * values are computed from the number of the first part by divisions. After each part the
 * variables advance like digits, the last variable first. */
static void
emit_parallel(Printer *p, int at)
{
	const LoopStatement *s = &p->k->body.at[at];
	int depth = parallel_depth(p->k, at);
	V *first = NEW_ARRAY(p->arena, V, depth), *now = NEW_ARRAY(p->arena, V, depth);
	LLVMBasicBlockRef before = LLVMGetInsertBlock(p->b);
	V rest = p->begin;

	for (int i = depth - 1; i > 0; i--) {
		V extent = llvm_word(p, s[i].extent ? s[i].extent : 1);
		first[i] = LLVMBuildURem(p->b, rest, extent, "");
		rest = LLVMBuildUDiv(p->b, rest, extent, "");
	}
	first[0] = rest;
	Loop loop = open_loop(p, p->begin, p->end, 1, true);
	for (int i = 0; i < depth; i++) {
		now[i] = depth > 1 ? LLVMBuildPhi(p->b, LLVMInt64TypeInContext(p->context), "")
		                   : loop.variable;
		if (depth > 1)
			LLVMAddIncoming(now[i], &first[i], &before, 1);
		p->frame.values[s[i].result] = now[i];
	}
	emit_block(p, at + depth, s[depth - 1].match);
	V carry = LLVMConstInt(LLVMInt1TypeInContext(p->context), 1, false);
	LLVMBasicBlockRef latch = LLVMGetInsertBlock(p->b);
	for (int i = depth - 1; depth > 1 && i >= 0; i--) {
		V one = LLVMBuildZExt(p->b, carry, LLVMInt64TypeInContext(p->context), "");
		V next = LLVMBuildNSWAdd(p->b, now[i], one, "");
		carry = LLVMBuildICmp(p->b, LLVMIntEQ, next, llvm_word(p, s[i].extent), "");
		next = i ? LLVMBuildSelect(p->b, carry, llvm_word(p, 0), next, "") : next;
		LLVMAddIncoming(now[i], &next, &latch, 1);
	}
	close_loop(p, &loop);
}

/* Runs the members of a team loop one after the other. */
static void
emit_team(Printer *p, const LoopStatement *s, int at)
{
	start_accumulators(p, s);
	Loop loop = open_loop(p, llvm_word(p, 0), llvm_word(p, s->extent), 1, false);
	p->frame.values[s->result] = loop.variable;
	p->open[p->n_open++] = loop.variable;
	start_member(p, s);
	emit_block(p, at + 1, s->match);
	finish_member(p, s, loop.variable);
	p->n_open--;
	close_loop(p, &loop);
	finish_accumulators(p, s);
}

/* Emits a copy of the body for each iteration. */
static void
emit_unrolled(Printer *p, const LoopStatement *s, int at)
{
	start_accumulators(p, s);
	for (int64_t j = 0; j < s->extent; j++) {
		p->frame.values[s->result] = llvm_word(p, j);
		emit_block(p, at + 1, s->match);
	}
	finish_accumulators(p, s);
}

static void
emit_for(Printer *p, const LoopStatement *s, int at)
{
	if (s->mode == LOOP_PARALLEL)
		emit_parallel(p, at);
	if (s->mode == LOOP_TEAM)
		emit_team(p, s, at);
	if (s->mode == LOOP_UNROLL)
		emit_unrolled(p, s, at);
	if (s->mode != LOOP_PLAIN && s->mode != LOOP_VECTOR)
		return;
	bool vector = s->mode == LOOP_VECTOR && (s->extent > 1 || s->n_accumulators);
	if (vector && s->place)
		emit_vector_below(p, s, at, emit_end(p, s));
	else if (vector)
		emit_vector(p, s, at);
	if (vector)
		return;
	start_accumulators(p, s);
	if (s->place) {
		Loop loop = open_loop(p, llvm_word(p, 0), emit_end(p, s), 1, true);
		p->frame.values[s->result] = loop.variable;
		emit_block(p, at + 1, s->match);
		close_loop(p, &loop);
	} else if (s->extent == 1) {
		p->frame.values[s->result] = llvm_word(p, 0);
		emit_block(p, at + 1, s->match);
	} else if (s->extent > 0) {
		Loop loop = open_loop(p, llvm_word(p, 0), llvm_word(p, s->extent), 1, false);
		p->frame.values[s->result] = loop.variable;
		emit_block(p, at + 1, s->match);
		close_loop(p, &loop);
	}
	finish_accumulators(p, s);
}

static void
emit_if(Printer *p, const LoopStatement *s, int at)
{
	LLVMBasicBlockRef then = block_new(p), behind = block_new(p);

	LLVMBuildCondBr(p->b, p->frame.values[s->operands[0]], then, behind);
	LLVMPositionBuilderAtEnd(p->b, then);
	emit_block(p, at + 1, s->match);
	LLVMBuildBr(p->b, behind);
	LLVMPositionBuilderAtEnd(p->b, behind);
}

/* Allocates a local array on the stack; a large one in the thread's memory. */
static void
emit_local(Printer *p, const LoopStatement *s)
{
	const LoopBuffer *b = &p->k->buffers.at[s->buffer];
	int64_t n = b->type->n;
	V *at = &p->buffers[s->buffer];

	p->declared[s->buffer] = p->n_open;
	for (int i = p->n_open; b->kind == BUFFER_PRIVATE && i < p->k->n_team; i++)
		n *= p->k->team[i];
	LLVMTypeRef t = LLVMArrayType(storage_type(p, b->type->dtype), (unsigned)(n + LOOP_LANES));
	if (dtype_bytes(b->type->dtype, n) <= LARGE_LOCAL) {
		*at = LLVMBuildAlloca(p->top, t, b->name);
		LLVMSetAlignment(*at, 64);
		return;
	}
	*at = LLVMAddGlobal(p->module, t, b->name);
	LLVMSetInitializer(*at, LLVMConstNull(t));
	LLVMSetLinkage(*at, LLVMInternalLinkage);
	LLVMSetThreadLocal(*at, true);
	LLVMSetAlignment(*at, 64);
}

static void
emit_block(Printer *p, int from, int to)
{
	for (int at = from; at < to; at++) {
		const LoopStatement *s = &p->k->body.at[at];
		switch (s->kind) {
		case LOOP_STATEMENT_STORE: emit_store(p, s); break;
		case LOOP_STATEMENT_LOCAL: emit_local(p, s); break;
		case LOOP_STATEMENT_FOR:
			emit_for(p, s, at);
			at = s->match;
			break;
		case LOOP_STATEMENT_ACCUMULATE: emit_accumulate(p, s); break;
		case LOOP_STATEMENT_IF:
			emit_if(p, s, at);
			at = s->match;
			break;
		/* members run one after the other, so all earlier statements are complete */
		case LOOP_STATEMENT_BARRIER:
		case LOOP_STATEMENT_END: break;
		default: p->frame.values[s->result] = emit_definition(p, s);
		}
	}
}

/* ---- kernels */
static V
declare(const Printer *p, const char *symbol)
{
	LLVMTypeRef pointer = LLVMPointerTypeInContext(p->context, 0);
	LLVMTypeRef number = LLVMInt64TypeInContext(p->context);
	LLVMTypeRef params[] = {pointer, pointer, number, number};
	V f = LLVMAddFunction(
		p->module, symbol,
		LLVMFunctionType(LLVMVoidTypeInContext(p->context), params, 4, false));

	LLVMSetVisibility(f, LLVMHiddenVisibility);
	return f;
}

static void
emit_kernel(Printer *p, const Kernel *k, const char *symbol)
{
	DType *types = NEW_ARRAY(p->arena, DType, k->n_scalars);
	LLVMTypeRef pointer = LLVMPointerTypeInContext(p->context, 0);

	kernel_scalar_types(k, types);
	p->k = k;
	p->frame = (Frame){types, NEW_ARRAY(p->arena, V, k->n_scalars)};
	p->buffers = NEW_ARRAY(p->arena, V, k->buffers.n);
	p->declared = NEW_ARRAY(p->arena, int, k->buffers.n);
	p->accumulators = NEW_ARRAY(p->arena, Partials, k->n_scalars);
	p->variable = -1;
	p->function = declare(p, symbol);
	p->scalars = LLVMGetParam(p->function, 1);
	p->begin = LLVMGetParam(p->function, 2);
	p->end = LLVMGetParam(p->function, 3);
	LLVMBasicBlockRef entry = block_new(p), body = block_new(p);
	LLVMPositionBuilderAtEnd(p->top, entry);
	LLVMPositionBuilderAtEnd(p->b, body);
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++) {
		V at = llvm_address(p, pointer, LLVMGetParam(p->function, 0), llvm_word(p, i));
		p->buffers[i] = LLVMBuildLoad2(p->b, pointer, at, k->buffers.at[i].name);
	}
	emit_block(p, 0, k->body.n);
	LLVMBuildRetVoid(p->b);
	LLVMBuildBr(p->top, body);
}

const char *
llvm_symbol(Arena *arena, const Kernel *k, int target)
{
	const char *variant = target ? arena_printf(arena, ".%d", target) : "";
	char *symbol = arena_printf(arena, "gradc_%s%s:%.200s", k->name, variant,
	                            loc_origin(k->loc));

	for (char *c = symbol; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("_./:-", *c))
			*c = '_';
	return symbol;
}

LLVMModuleRef
llvm_print_kernels(LLVMContextRef context, const KernelPart *part, const char *features, int target)
{
	Printer p = {.context = context,
	             .module = LLVMModuleCreateWithNameInContext("gradc", context),
	             .b = LLVMCreateBuilderInContext(context),
	             .top = LLVMCreateBuilderInContext(context),
	             .arena = arena_new(),
	             .gathers = cpu_vector_bits(features) == 512,
	             .masks = cpu_vector_bits(features) >= 256};

	p.functions = scalar_functions_new(p.arena);
	for (int i = 0; i < part->n; i++)
		emit_kernel(&p, part->at[i], llvm_symbol(p.arena, part->at[i], target));
	LLVMDisposeBuilder(p.b);
	LLVMDisposeBuilder(p.top);
	arena_free(p.arena);
	return p.module;
}
