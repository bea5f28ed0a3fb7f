/* Prints the accumulators (sums, maxima) of loops as LLVM IR. An accumulator has several partial
 * sums (partials), which are kept in memory; LLVM moves them to registers. */
#include "codegen/llvm/print.h"

#include <math.h>

static V
identity(const Printer *p, const Accumulator *a)
{
	static const double floats[] = {0, 1, -INFINITY, INFINITY};
	int bits = dtype_info[a->type].bits;
	bool is_signed = dtype_info[a->type].class == CLASS_SIGNED;
	uint64_t most = ~0ull >> (64 - bits + is_signed);
	const int64_t integers[] = {0, 1, is_signed ? -(int64_t)most - 1 : 0, (int64_t)most};

	return llvm_constant(p, a->type, floats[a->kind], integers[a->kind]);
}

static V
combine(Printer *p, LoopOp op, DType type, V x, V y)
{
	DType types[] = {type, type};
	V values[] = {x, y};
	Frame frame = {types, values};
	LoopStatement s = {.kind = LOOP_STATEMENT_OP,
	                   .op = op,
	                   .type = type,
	                   .n_operands = 2,
	                   .operands = {0, 1}};

	return emit_op(p, &frame, &s);
}

/* How many partials an addition updates at once: LOOP_LANES if each lane has a partial, otherwise
 * one. */
static int
taking(const Accumulator *a)
{
	return a->level == ACC_LANES ? a->number : 1;
}

static LLVMTypeRef
partials_type(const Printer *p, const Accumulator *a)
{
	LLVMTypeRef t = llvm_type(p, a->type);

	return taking(a) > 1 ? LLVMVectorType(t, (unsigned)a->number) : t;
}

/* Lanes `from` to `from` + n - 1 of x; a scalar if n is 1. */
static V
some_lanes(const Printer *p, V x, int from, int n)
{
	V lanes[LOOP_LANES];

	if (n == 1)
		return LLVMBuildExtractElement(p->b, x, llvm_word(p, from), "");
	for (int i = 0; i < n; i++)
		lanes[i] = LLVMConstInt(LLVMInt32TypeInContext(p->context),
		                        (unsigned long long)(from + i), false);
	return LLVMBuildShuffleVector(p->b, x, LLVMGetPoison(LLVMTypeOf(x)),
	                              LLVMConstVector(lanes, (unsigned)n), "");
}

static void
store_identity(const Printer *p, const Accumulator *a)
{
	V start = identity(p, a);

	if (taking(a) > 1)
		start = some_lanes(p, widen(p, start), 0, a->number);
	LLVMBuildStore(p->b, start, p->accumulators[a->scalar].at);
}

void
start_accumulators(Printer *p, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		LLVMTypeRef t = llvm_type(p, a->type);
		Partials *to = &p->accumulators[a->scalar];
		*to = (Partials){a, LLVMBuildAlloca(p->top, partials_type(p, a), ""), NULL};
		if (a->level == ACC_TEAM)
			to->team = LLVMBuildAlloca(p->top, LLVMArrayType(t, (unsigned)a->number),
			                           "");
		else
			store_identity(p, a);
	}
}

void
start_member(Printer *p, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++)
		store_identity(p, &s->accumulators[i]);
}

void
finish_member(Printer *p, const LoopStatement *s, V member)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		const Partials *from = &p->accumulators[a->scalar];
		LLVMTypeRef t = llvm_type(p, a->type);
		LLVMBuildStore(p->b, LLVMBuildLoad2(p->b, t, from->at, ""),
		               llvm_address(p, t, from->team, member));
	}
}

/* Adds x to the accumulator. In a vector loop, only lanes that run are added: all at once if each
 * lane has a partial, otherwise one lane after the other. */
void
emit_accumulate(Printer *p, const LoopStatement *s)
{
	const Partials *to = &p->accumulators[s->operands[1]];
	LLVMTypeRef t = partials_type(p, to->accumulator);
	V x = p->frame.values[s->operands[0]];
	int n = taking(to->accumulator);
	V old = LLVMBuildLoad2(p->b, t, to->at, "");

	if (p->variable < 0) {
		LLVMBuildStore(p->b, combine(p, s->op, s->type, old, x), to->at);
		return;
	}
	x = widen(p, x);
	for (int from = 0; from < p->active; from += n) {
		V part = n == LOOP_LANES ? x : some_lanes(p, x, from, n);
		V mask = !p->mask || n == LOOP_LANES ? p->mask : some_lanes(p, p->mask, from, n);
		V sum = combine(p, s->op, s->type, old, part);
		old = mask ? LLVMBuildSelect(p->b, mask, sum, old, "") : sum;
	}
	LLVMBuildStore(p->b, old, to->at);
}

/* Combines the partials of member l + n/2 into those of member l, and halves n, until one
 * member's partials are left. */
static V
reduce_team(Printer *p, const Accumulator *a)
{
	LLVMTypeRef t = llvm_type(p, a->type);
	V team = p->accumulators[a->scalar].team;

	for (int n = a->number / 2; n > 0; n /= 2) {
		Loop loop = open_loop(p, llvm_word(p, 0), llvm_word(p, n), 1, false);
		V at = llvm_address(p, t, team, loop.variable);
		V x = LLVMBuildLoad2(p->b, t, at, "");
		V y = LLVMBuildLoad2(p->b, t, llvm_address(p, t, at, llvm_word(p, n)), "");
		LLVMBuildStore(p->b, combine(p, accumulate_op(a->kind), a->type, x, y), at);
		close_loop(p, &loop);
	}
	return LLVMBuildLoad2(p->b, t, team, "");
}

/* Combines lane l + n/2 into lane l, and halves n, until one lane is left. */
static V
reduce_lanes(Printer *p, const Accumulator *a)
{
	V x = LLVMBuildLoad2(p->b, partials_type(p, a), p->accumulators[a->scalar].at, "");

	for (int n = a->number / 2; n > 0; n /= 2)
		x = combine(p, accumulate_op(a->kind), a->type, some_lanes(p, x, 0, n),
		            some_lanes(p, x, n, n));
	return x;
}

void
finish_accumulators(Printer *p, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		p->frame.values[a->scalar] = a->level == ACC_TEAM ? reduce_team(p, a)
		                                                  : reduce_lanes(p, a);
	}
}
