/* The interpreter of loop IR: runs a kernel statement by statement, slowly, as the reference for
 * the printers. A scalar function such as exp has a body of loop IR, which the interpreter runs
 * and the printers print, so results have the same bits. Loads, stores and casts use the table
 * of conversions (base/numbers/dtype.c), not the code that printers use, so a comparison tests
 * the printers' conversions. */
#include "ir/loop/interp.h"

#include <stdlib.h>
#include <string.h>

/* The call of a scalar function by one statement. */
struct Call {
	const ScalarFunction *function;
	Run run; /* run of the function's body */
};

int64_t
run_place(const Run *r, const Affine *a)
{
	uint64_t at =
		(uint64_t)a
			->constant; /* a masked place may be any number, so the sum must not overflow */

	for (int i = 0; i < a->n; i++)
		at += (uint64_t)a->terms[i].coefficient * r->cells[a->terms[i].scalar].u64;
	return (int64_t)at;
}

/* Computes op of x, y, z: by the scalar function if `call` is not NULL. */
static Cell
combine(Call *call, LoopOp op, DType t, Cell x, Cell y, Cell z)
{
	if (!call)
		return cell_arithmetic(op, t, x, y, z);
	call->run.cells[0] = x;
	call->run.cells[1] = y;
	call->run.cells[2] = z;
	run_block(&call->run, 0, call->run.k->body.n);
	return call->run.cells[call->function->result];
}

/* Runs parts [begin, end) of the nest of parallel loops that begins at statement `at`. */
static void
run_parallel(Run *r, int at)
{
	int depth = parallel_depth(r->k, at);

	for (int64_t part = r->begin; part < r->end; part++) {
		int64_t outer = part;
		loop_memory_part(r->memory);
		for (int i = depth - 1; i >= 0; i--) {
			const LoopStatement *s = &r->k->body.at[at + i];
			r->cells[s->result].s64 = outer % s->extent;
			outer /= s->extent;
		}
		run_block(r, at + depth, r->k->body.at[at + depth - 1].match);
	}
}

void
run_accumulators_start(Run *r, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		for (int l = 0; l < a->number; l++)
			r->partials[a->scalar][l] = cell_identity(a);
	}
}

void
run_accumulators_take(Run *r, const LoopStatement *s, int64_t j)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		r->taking[a->scalar] = &r->partials[a->scalar][j % a->number];
	}
}

void
run_accumulators_finish(Run *r, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		Cell *x = r->partials[a->scalar];
		for (int n = a->number / 2; n > 0; n /= 2)
			for (int l = 0; l < n; l++)
				x[l] = combine(r->accumulations[a->scalar], accumulate_op(a->kind),
				               a->type, x[l], x[l + n], (Cell){0});
		if (a->level == ACC_ROW)
			run_store(r, a->tile, r->cells[s->result].s64, x[0]);
		else
			r->cells[a->scalar] = x[0];
	}
}

static void
run_for(Run *r, const LoopStatement *s, int at)
{
	if (s->mode == LOOP_PARALLEL) {
		run_parallel(r, at);
		return;
	}
	run_accumulators_start(r, s);
	int64_t below = s->place ? run_place(r, s->place) : s->extent;
	int level = r->depth;
	r->depth += s->mode == LOOP_TEAM;
	for (int64_t j = 0; j < below && j < s->extent; j++) {
		r->cells[s->result].s64 = j;
		if (s->mode == LOOP_TEAM)
			loop_memory_member(r->memory, level, j);
		run_accumulators_take(r, s, j);
		run_block(r, at + 1, s->match);
	}
	if (s->mode == LOOP_TEAM)
		loop_memory_member(r->memory, level, -1);
	r->depth = level;
	run_accumulators_finish(r, s);
}

/* Arithmetic on elements, counted as the column `flops` of op rows counts it: a function counts
 * 1, a fused multiply-add 2. Comparisons, choices, tests and moves of bits count 0. Operations
 * on integers do not count, because they may compute places. */
static int
flops_of(LoopOp op)
{
	switch (op) {
	case LOOP_fma: return 2;
	case LOOP_not:
	case LOOP_and:
	case LOOP_or:
	case LOOP_xor:
	case LOOP_select:
	case LOOP_bits:
	case LOOP_shl:
	case LOOP_shr:
	case LOOP_truncate: return 0;
	default: return loop_ops[op].result == RESULT_TRUTH ? 0 : 1;
	}
}

static void
count_flops(Run *r, LoopOp op, DType t)
{
	if (r->flops && dtype_is_float(t))
		*r->flops += flops_of(op);
}

static void
run_accumulate(Run *r, const LoopStatement *s)
{
	LoopValue acc = s->operands[1];

	count_flops(r, s->op, s->type);
	Cell *to = r->taking[acc];

	*to = combine(r->accumulations[acc], s->op, s->type, *to, r->cells[s->operands[0]],
	              (Cell){0});
}

static void
run_op(Run *r, const LoopStatement *s, int at)
{
	Cell x = r->cells[s->operands[0]];
	Cell y = s->n_operands > 1 ? r->cells[s->operands[1]] : (Cell){0};
	Cell z = s->n_operands > 2 ? r->cells[s->operands[2]] : (Cell){0};
	DType from = r->types[s->operands[0]];
	Cell *to = &r->cells[s->result];

	count_flops(r, s->op, s->type);
	if (r->calls[at])
		*to = combine(r->calls[at], s->op, s->type, x, y, z);
	else if (loop_ops[s->op].result == RESULT_TRUTH)
		to->b = cell_compare(s->op, from, x, y);
	else
		*to = s->op == LOOP_truncate ? cell_truncate(from, s->type, x)
		                             : cell_arithmetic(s->op, s->type, x, y, z);
}

static void
run_cast(Run *r, const LoopStatement *s)
{
	DType storage = (DType)s->i, from = r->types[s->operands[0]];
	Cell x = r->cells[s->operands[0]];
	Cell random = s->n_operands > 1 ? r->cells[s->operands[1]] : (Cell){0};

	r->cells[s->result] = float_format(storage) ? cell_round(storage, s->how, from, x, random)
	                                            : cell_cast(storage, from, x);
}

static void
run_const(Run *r, const LoopStatement *s)
{
	Cell *c = &r->cells[s->result];

	if (s->type == F64)
		c->f64 = s->f;
	else if (s->type == F32)
		c->f32 = (float)s->f;
	else if (s->type == BOOL)
		c->b = s->i != 0;
	else
		c->s64 = s->i;
}

Cell
run_load(Run *r, int buffer, int64_t place)
{
	const void *at = loop_memory_reach(r->memory, buffer, &place, false);

	return cell_load(r->k->buffers.at[buffer].type->dtype, at, place);
}

void
run_store(Run *r, int buffer, int64_t place, Cell x)
{
	void *at = loop_memory_reach(r->memory, buffer, &place, true);

	cell_store(r->k->buffers.at[buffer].type->dtype, at, place, x);
}

static void
run_load_statement(Run *r, const LoopStatement *s)
{
	bool none = s->n_operands && !r->cells[s->operands[0]].b;

	r->cells[s->result] = none ? (Cell){0} : run_load(r, s->buffer, run_place(r, s->place));
}

void
run_block(Run *r, int from, int to)
{
	for (int at = from; at < to; at++) {
		const LoopStatement *s = &r->k->body.at[at];
		switch (s->kind) {
		case LOOP_STATEMENT_OP: run_op(r, s, at); break;
		case LOOP_STATEMENT_CONST: run_const(r, s); break;
		case LOOP_STATEMENT_CAST: run_cast(r, s); break;
		case LOOP_STATEMENT_AFFINE: r->cells[s->result].s64 = run_place(r, s->place); break;
		case LOOP_STATEMENT_SCALAR:
			/* copies all 8 bytes, for every type of scalar */
			r->cells[s->result].u64 = r->scalars[s->buffer].u;
			break;
		case LOOP_STATEMENT_LOAD: run_load_statement(r, s); break;
		case LOOP_STATEMENT_STORE:
			run_store(r, s->buffer, run_place(r, s->place), r->cells[s->operands[0]]);
			break;
		case LOOP_STATEMENT_EACH:
			run_each(r, s, at);
			at = s->match;
			break;
		case LOOP_STATEMENT_MMA: run_mma(r, s); break;
		case LOOP_STATEMENT_COPY: run_copy(r, s); break;
		case LOOP_STATEMENT_COMMIT: loop_memory_commit(r->memory); break;
		case LOOP_STATEMENT_WAIT: loop_memory_wait(r->memory, s->i); break;
		case LOOP_STATEMENT_FOR:
			run_for(r, s, at);
			at = s->match;
			break;
		case LOOP_STATEMENT_IF:
			if (!r->cells[s->operands[0]].b)
				at = s->match;
			break;
		case LOOP_STATEMENT_LOCAL: loop_memory_declare(r->memory, s->buffer); break;
		case LOOP_STATEMENT_BARRIER: loop_memory_barrier(r->memory); break;
		case LOOP_STATEMENT_ACCUMULATE: run_accumulate(r, s); break;
		default: break;
		}
	}
}

static void prepare(Run *r, const Kernel *k, const ScalarFunction *f);

static Call *
call_new(Run *r, const LoopStatement *s, DType operand)
{
	const ScalarFunction *f = scalar_function_of(r->functions, s, operand);

	if (!f)
		return NULL;
	Call *call = NEW(r->arena, Call);
	call->function = f;
	call->run = (Run){.arena = r->arena, .functions = r->functions};
	prepare(&call->run, f->body, f);
	return call;
}

/* Allocates all scalars of k, and the scalar functions that it calls. f: k is the body of this
 * scalar function; NULL: k is a kernel. */
static void
prepare(Run *r, const Kernel *k, const ScalarFunction *f)
{
	r->k = k;
	r->cells = NEW_ARRAY(r->arena, Cell, k->n_scalars + MAX_FUNCTION_PARAMS);
	r->types = NEW_ARRAY(r->arena, DType, k->n_scalars);
	r->calls = NEW_ARRAY(r->arena, Call *, k->body.n);
	for (int i = 0; f && i < f->n_params; i++)
		r->types[i] = f->params[i];
	kernel_scalar_types(k, r->types);
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		if (s->kind == LOOP_STATEMENT_OP)
			r->calls[i] = call_new(r, s, function_operand(s, r->types));
	}
}

static void
prepare_accumulators(Run *r)
{
	for (int i = 0; i < r->k->body.n; i++)
		for (int a = 0; a < r->k->body.at[i].n_accumulators; a++) {
			const Accumulator *acc = &r->k->body.at[i].accumulators[a];
			LoopStatement op = {.kind = LOOP_STATEMENT_OP,
			                    .op = accumulate_op(acc->kind)};
			r->accumulations[acc->scalar] = call_new(r, &op, acc->type);
			r->partials[acc->scalar] = NEW_ARRAY(r->arena, Cell, acc->number);
		}
}

void
kernel_interpret(const Kernel *k, void *const *buffers, const Scalar *scalars, int64_t begin,
                 int64_t end)
{
	kernel_interpret_counted(k, buffers, scalars, begin, end, NULL);
}

void
kernel_interpret_counted(const Kernel *k, void *const *buffers, const Scalar *scalars,
                         int64_t begin, int64_t end, KernelCounts *counts)
{
	Arena *arena = arena_new();
	Run r = {.arena = arena,
	         .functions = scalar_functions_new(arena),
	         .memory = loop_memory_new(arena, k, buffers, counts),
	         .scalars = scalars,
	         .begin = begin,
	         .end = end,
	         .flops = counts ? &counts->flops : NULL};

	prepare(&r, k, NULL);
	r.partials = NEW_ARRAY(arena, Cell *, k->n_scalars);
	r.taking = NEW_ARRAY(arena, Cell *, k->n_scalars);
	r.accumulations = NEW_ARRAY(arena, Call *, k->n_scalars);
	prepare_accumulators(&r);
	run_block(&r, 0, k->body.n);
	loop_memory_part(r.memory);
	arena_free(arena);
}
