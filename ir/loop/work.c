/* Estimates how much one run of a kernel asks of a machine: bytes that it moves, instructions that it issues, products of
 * matrix units, and steps that wait for each other. The cost model (cost/) reads these numbers. Nothing is run.
 *
 * Example: "y[i] = exp(x[i])" over 1000 f32 elements moves 8000 bytes and issues, for each element, a load, the operations of
 * exp, and a store. */
#include "ir/loop/loop.h"

#include <math.h>

/* Issue slots, fitted to the kernels of five models (docs/cost-model.md says how). An access to memory counts its
 * address and the conversion of its type. Operations outside of functions are cheap, because they run while memory is awaited. */
static const struct {
	double access, operation, function_operation;
} slots = {.access = 4.1, .operation = 1.15, .function_operation = 0.86};

/* Instructions of operations that are more than one instruction: division and square root are rounded correctly, in
 * several steps; bits are only read as another type. */
static double
op_instructions(LoopOp op)
{
	switch (op) {
	case LOOP_div:
	case LOOP_sqrt: return 9;
	case LOOP_quotient: return 5; /* most divisors are constants */
	case LOOP_exp_fast:
		return 5; /* a multiplication, and an instruction of a unit with an eighth of the lanes */
	case LOOP_bits: return 0;
	default: return 1;
	}
}

typedef struct {
	const Kernel *k;
	Arena *arena;
	ScalarFunctions *functions;
	DType *types;          /* by scalar */
	int64_t *extents;      /* by scalar: extent of a loop's variable; 0: another scalar */
	const Affine **bounds; /* by scalar: place below which a loop's variable stays */
	bool *of_data;         /* by scalar: computed from what was loaded, or accumulated? */
	bool *of_team; /* by scalar: computed from what a team's members have accumulated? */
	bool *of_row,
		*of_column; /* by scalar: computed from the row or the column of the EACH around? */
	const LoopStatement *each; /* NULL: no EACH is open */
	double *runs;              /* by depth: how often the open block runs in a launch */
	double *steps;           /* by depth: how often one part runs it, one run after the other */
	double *loaded, *stored; /* by buffer: bytes */
	KernelWork work;
} Counting;

/* ---- statements */
static double function_instructions(Counting *c, const ScalarFunction *f);

static double
op_statement_instructions(Counting *c, const LoopStatement *s, const DType *types)
{
	DType operand = function_operand(s, types);
	const ScalarFunction *f = s->kind == LOOP_STATEMENT_OP
	                                  ? scalar_function_of(c->functions, s, operand)
	                                  : NULL;

	if (f && s->op != LOOP_exp_fast)
		return function_instructions(c, f);
	if (s->kind == LOOP_STATEMENT_CAST)
		return 1;
	return op_instructions(s->op);
}

/* Functions call functions, but never themselves. */
static double
function_instructions(Counting *c, const ScalarFunction *f)
{
	DType *types = NEW_ARRAY(c->arena, DType, f->body->n_scalars);
	double sum = 0;

	kernel_scalar_types(f->body, types);
	for (int i = 0; i < f->n_params; i++)
		types[i] = f->params[i];
	for (int i = 0; i < f->body->body.n; i++) {
		const LoopStatement *s = &f->body->body.at[i];
		if (s->kind == LOOP_STATEMENT_OP || s->kind == LOOP_STATEMENT_CAST)
			sum += op_statement_instructions(c, s, types);
	}
	return sum;
}

static bool
has_scalar(const bool *of, const Affine *place)
{
	for (int i = 0; place && i < place->n; i++)
		if (of[place->terms[i].scalar])
			return true;
	return false;
}

/* In a loop over a tile, a member has several rows and columns. It computes once what does not depend on the column, or on the
 * row: the share of a member's elements for which the statement runs. */
static double
share_of_elements(const Counting *c, const LoopStatement *s)
{
	enum { LANES = 4 /* members that share a row */ };
	const Kernel *k = c->k;
	bool row = false, column = false;
	int members = 1;

	if (!c->each || c->each->column < 0)
		return 1;
	for (int i = 0; i < s->n_operands; i++)
		if (s->operands[i] >= 0) {
			row |= c->of_row[s->operands[i]];
			column |= c->of_column[s->operands[i]];
		}
	row |= has_scalar(c->of_row, s->place);
	column |= has_scalar(c->of_column, s->place);
	for (int i = 0; i < k->n_team; i++)
		members *= k->team[i];
	Type t = k->buffers.at[c->each->buffer].type;
	double rows = fmax((double)(t->dims[0] * LANES) / members, 1);
	double columns = fmax((double)t->dims[1] / LANES, 1);
	return (row ? 1 : 1 / rows) * (column ? 1 : 1 / columns);
}

static void
count_statement(Counting *c, const LoopStatement *s, double runs)
{
	runs *= share_of_elements(c, s);
	bool computes = s->kind == LOOP_STATEMENT_OP || s->kind == LOOP_STATEMENT_CAST;
	bool accesses = s->kind == LOOP_STATEMENT_LOAD || s->kind == LOOP_STATEMENT_STORE ||
	                s->kind == LOOP_STATEMENT_COPY;

	if (computes) {
		bool function = s->kind == LOOP_STATEMENT_OP &&
		                scalar_function_of(c->functions, s, function_operand(s, c->types));
		c->work.instructions += runs * op_statement_instructions(c, s, c->types) *
		                        (function ? slots.function_operation : slots.operation);
	} else if (accesses) {
		bool copies = s->kind == LOOP_STATEMENT_COPY;
		int buffer = copies ? s->windows[0].buffer : s->buffer;
		if (c->k->buffers.at[buffer].kind == BUFFER_TILE)
			return; /* held by a member */
		double *moved = s->kind == LOOP_STATEMENT_STORE ? c->stored : c->loaded;
		DType dtype = c->k->buffers.at[buffer].type->dtype;
		c->work.instructions += runs * slots.access;
		moved[buffer] += runs * (copies ? (double)s->extent : 1) * dtype_info[dtype].bits /
		                 8;
	} else if (s->kind == LOOP_STATEMENT_ACCUMULATE) {
		c->work.instructions += runs * slots.operation;
	} else if (s->kind == LOOP_STATEMENT_MMA) {
		c->work.chained |= !s->windows[0].place || !s->windows[1].place;
		c->work.matrix_flops += runs * 2.0 * (double)c->k->buffers.at[s->buffer].type->n *
		                        (double)s->extent;
	}
}

/* ---- blocks */
/* The mean of x limited to [0, most], for x spread evenly from low to high. */
static double
mean_limited(double low, double high, double most)
{
	double from = fmax(low, 0), to = fmin(high, most), above = high - fmax(low, most);

	if (high <= low)
		return fmin(fmax(low, 0), most);
	return ((to > from ? 0.5 * (to * to - from * from) : 0) + (above > 0 ? above * most : 0)) /
	       (high - low);
}

/* Notes whether the statement's scalars are computed from scalars that `of` marks. */
static void
note_scalars(bool *of, const LoopStatement *s, bool also, bool accumulators)
{
	bool is = also || (s->kind == LOOP_STATEMENT_AFFINE && has_scalar(of, s->place));

	for (int i = 0; i < s->n_operands; i++)
		is |= s->operands[i] >= 0 && of[s->operands[i]];
	if (s->result >= 0)
		of[s->result] = is;
	for (int i = 0; i < s->n_accumulators; i++)
		of[s->accumulators[i].scalar] = accumulators;
}

static void
note_data(Counting *c, const LoopStatement *s)
{
	note_scalars(c->of_data, s, s->kind == LOOP_STATEMENT_LOAD, true);
	note_scalars(c->of_team, s, false, s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_TEAM);
	bool tile = s->kind == LOOP_STATEMENT_LOAD &&
	            c->k->buffers.at[s->buffer].kind == BUFFER_TILE;
	note_scalars(c->of_row, s, tile || has_scalar(c->of_row, s->place), false);
	note_scalars(c->of_column, s,
	             (tile && c->k->buffers.at[s->buffer].type->rank == 2) ||
	                     has_scalar(c->of_column, s->place),
	             false);
	if (s->kind == LOOP_STATEMENT_EACH) {
		c->each = s;
		c->of_row[s->result] = true;
		if (s->column >= 0)
			c->of_column[s->column] = true;
	}
	if (s->kind == LOOP_STATEMENT_END && c->each == &c->k->body.at[s->match])
		c->each = NULL;
}

/* How often a block runs for each time that its opener, at this depth, is reached. A loop below a bound of loop variables, as in
 * a triangle, runs its mean. A bound that a team has found together, as the blocks of keys that some query sees, counts as half of
 * the extent, as under a causal mask. Another bound that is computed from data counts as if all executions of the loop divided its
 * extent among them, as segments do. Another computed bound counts as the extent, and a condition as true. */
static double
block_runs(Counting *c, const LoopStatement *s, int depth)
{
	int64_t low, high;

	if (s->kind == LOOP_STATEMENT_EACH)
		return (double)c->k->buffers.at[s->buffer].type->n;
	if (s->kind != LOOP_STATEMENT_FOR)
		return 1;
	c->extents[s->result] = s->extent;
	c->bounds[s->result] = s->place;
	if (!s->place)
		return (double)s->extent;
	if (affine_range(c->arena, s->place, c->extents, c->bounds, &low, &high))
		return mean_limited((double)low, (double)high, (double)s->extent);
	if (!has_scalar(c->of_data, s->place))
		return (double)s->extent;
	if (has_scalar(c->of_team, s->place))
		return fmax((double)s->extent / 2, 1);
	double executions = (double)c->k->iterations * c->steps[depth];
	return fmin(fmax((double)s->extent / executions, 1), (double)s->extent);
}

static void
open_block(Counting *c, const LoopStatement *s, int depth)
{
	double runs = block_runs(c, s, depth);
	bool in_order = s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_PLAIN;

	c->runs[depth + 1] = c->runs[depth] * runs;
	c->steps[depth + 1] = c->steps[depth] * (in_order ? runs : 1);
	if (s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_TEAM)
		c->work.steps += c->steps[depth];
}

/* An element that is read several times counts once: it is near after the first time. */
static double
moved_bytes(const Counting *c)
{
	double sum = 0;

	for (int i = 0; i < c->k->n_inputs + c->k->n_outputs; i++) {
		double all = (double)type_bytes(c->k->buffers.at[i].type);
		sum += fmin(c->loaded[i], all) + fmin(c->stored[i], all);
	}
	return sum;
}

KernelWork
kernel_work(const Kernel *k)
{
	Arena *arena = arena_new();
	Counting c = {.k = k,
	              .arena = arena,
	              .functions = scalar_functions_new(arena),
	              .types = NEW_ARRAY(arena, DType, k->n_scalars + 1),
	              .extents = NEW_ARRAY(arena, int64_t, k->n_scalars + 1),
	              .bounds = NEW_ARRAY(arena, const Affine *, k->n_scalars + 1),
	              .of_data = NEW_ARRAY(arena, bool, k->n_scalars + 1),
	              .of_team = NEW_ARRAY(arena, bool, k->n_scalars + 1),
	              .of_row = NEW_ARRAY(arena, bool, k->n_scalars + 1),
	              .of_column = NEW_ARRAY(arena, bool, k->n_scalars + 1),
	              .runs = NEW_ARRAY(arena, double, k->body.n + 1),
	              .steps = NEW_ARRAY(arena, double, k->body.n + 1),
	              .loaded = NEW_ARRAY(arena, double, k->buffers.n + 1),
	              .stored = NEW_ARRAY(arena, double, k->buffers.n + 1)};
	int depth = 0;

	kernel_scalar_types(k, c.types);
	c.runs[0] = c.steps[0] = 1;
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		depth -= s->kind == LOOP_STATEMENT_END;
		count_statement(&c, s, c.runs[depth]);
		note_data(&c, s);
		if (statement_opens(s))
			open_block(&c, s, depth++);
	}
	c.work.bytes = moved_bytes(&c);
	arena_free(arena);
	return c.work;
}
