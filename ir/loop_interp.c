/* Runs loop IR statement by statement. Scalar functions are run as what they are made of, as printers
 * print them, so results have the same bits. Loads, stores and casts go by the table of conversions
 * (base/dtype.c): in them it holds printers to account. */
#include "ir/loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef union {
	double f64;
	float f32;
	int64_t s64;
	uint64_t u64;
	int32_t s32;
	uint32_t u32;
	bool b;
} Cell;

typedef struct {
	Cell lanes[LOOP_LANES];
} Lanes;

typedef struct Call Call;

typedef struct {
	const Kernel *k;
	Arena *arena;
	ScalarFunctions *functions;
	Call **calls;         /* by statement: of a scalar function; NULL: an instruction */
	Call **accumulations; /* by accumulator scalar */
	void *const *params;
	void **locals;  /* by buffer */
	bool **written; /* elements of a local, by buffer */
	const Scalar *scalars;
	Cell *cells;   /* by scalar */
	Lanes **lanes; /* by accumulator scalar */
	int *lane;     /* by accumulator scalar: the one that takes now */
	DType *types;  /* by scalar */
	int64_t begin, end;
	int64_t *flops; /* counted here; NULL: not */
} Run;

/* A scalar function where it is used. */
struct Call {
	const ScalarFunction *function;
	Run run; /* of its body */
};

/* clang-format off */
#define BY_TYPE(F64E, F32E, S64E, S32E, U64E, U32E, BE)                                          \
	switch (t) {                                                                             \
	case F64: r.f64 = F64E; break;                                                           \
	case F32: r.f32 = F32E; break;                                                           \
	case S64: r.s64 = S64E; break;                                                           \
	case S32: r.s32 = S32E; break;                                                           \
	case U64: r.u64 = U64E; break;                                                           \
	case U32: r.u32 = U32E; break;                                                           \
	default: r.b = BE; break;                                                                \
	}                                                                                        \
	return r;
#define ARITHMETIC(name, op)                                                                     \
	case LOOP_##name:                                                                        \
		BY_TYPE(x.f64 op y.f64, x.f32 op y.f32, (int64_t)(x.u64 op y.u64),               \
		        (int32_t)(x.u32 op y.u32), x.u64 op y.u64, x.u32 op y.u32, x.b)
#define BITWISE(name, op)                                                                        \
	case LOOP_##name:                                                                        \
		BY_TYPE(x.f64, x.f32, x.s64 op y.s64, x.s32 op y.s32, x.u64 op y.u64,            \
		        x.u32 op y.u32, x.b op y.b)
#define BUILTIN(name, c) case LOOP_##name: BY_TYPE(c(x.f64), c##f(x.f32), 0, 0, 0, 0, 0)

/* What machines have as instructions; t: the result's type. */
static Cell
arithmetic(LoopOp op, DType t, Cell x, Cell y, Cell z)
{
	Cell r = {0};

	switch (op) {
	case LOOP_neg:
		BY_TYPE(-x.f64, -x.f32, (int64_t)(0 - x.u64), (int32_t)(0 - x.u32), 0 - x.u64,
		        0 - x.u32, x.b)
	BUILTIN(abs, fabs) BUILTIN(sqrt, sqrt) BUILTIN(floor, floor) BUILTIN(ceil, ceil)
	BUILTIN(round, rint)
	ARITHMETIC(add, +) ARITHMETIC(sub, -) ARITHMETIC(mul, *)
	case LOOP_div: case LOOP_quotient:
		BY_TYPE(x.f64 / y.f64, x.f32 / y.f32, x.s64 / y.s64, x.s32 / y.s32, x.u64 / y.u64,
		        x.u32 / y.u32, x.b)
	BITWISE(and, &) BITWISE(or, |) BITWISE(xor, ^)
	case LOOP_shl:
		BY_TYPE(0, 0, (int64_t)(x.u64 << y.u64), (int32_t)(x.u32 << y.u32), x.u64 << y.u64,
		        x.u32 << y.u32, x.b)
	BITWISE(shr, >>)
	case LOOP_fma: BY_TYPE(fma(x.f64, y.f64, z.f64), fmaf(x.f32, y.f32, z.f32), 0, 0, 0, 0, 0)
	case LOOP_not: r.b = !x.b; return r;
	case LOOP_select: return x.b ? y : z;
	case LOOP_bits: return x;
	default: return r;
	}
}

#define COMPARE_AS(member)                                                                       \
	switch (op) {                                                                            \
	case LOOP_eq: return x.member == y.member;                                               \
	case LOOP_ne: return x.member != y.member;                                               \
	case LOOP_lt: return x.member < y.member;                                                \
	case LOOP_le: return x.member <= y.member;                                               \
	case LOOP_gt: return x.member > y.member;                                                \
	default: return x.member >= y.member;                                                    \
	}

/* clang-format on */

/* t: the operands' type */
static bool
compare(LoopOp op, DType t, Cell x, Cell y)
{
	switch (t) {
	case F64: COMPARE_AS(f64)
	case F32: COMPARE_AS(f32)
	case S64: COMPARE_AS(s64)
	case S32: COMPARE_AS(s32)
	case U64: COMPARE_AS(u64)
	case U32: COMPARE_AS(u32)
	default: COMPARE_AS(b)
	}
}

/* The operand fits. */
static Cell
truncated(DType from, DType to, Cell x)
{
	double f = from == F64 ? x.f64 : (double)x.f32;
	Cell r = {0};

	switch (to) {
	case S64: r.s64 = (int64_t)f; break;
	case S32: r.s32 = (int32_t)f; break;
	case U64: r.u64 = (uint64_t)f; break;
	default: r.u32 = (uint32_t)f; break;
	}
	return r;
}

static Cell
load_cell(DType storage, const void *at, int64_t i)
{
	Cell r = {0};

	switch (compute_type(storage)) {
	case F64: r.f64 = ((const double *)at)[i]; break;
	case F32: r.f32 = (float)dtype_load_float(storage, at, i); break;
	case S64: r.s64 = dtype_load_int(storage, at, i); break;
	case U64: r.u64 = (uint64_t)dtype_load_int(storage, at, i); break;
	case S32: r.s32 = (int32_t)dtype_load_int(storage, at, i); break;
	case U32: r.u32 = (uint32_t)dtype_load_int(storage, at, i); break;
	default: r.b = dtype_load_int(storage, at, i) != 0; break;
	}
	return r;
}

static int64_t
cell_int(DType t, Cell x)
{
	switch (t) {
	case S32: return x.s32;
	case U32: return x.u32;
	case BOOL: return x.b;
	default: return x.s64;
	}
}

static void
store_cell(DType storage, void *at, int64_t i, Cell x)
{
	DType t = compute_type(storage);

	if (t == F64)
		((double *)at)[i] = x.f64;
	else if (t == F32)
		dtype_store_float(storage, at, i, x.f32);
	else
		dtype_store_int(storage, at, i, cell_int(t, x));
}

/* Through a float below f32. */
static Cell
round_cell(DType storage, Conversion how, DType from, Cell x, Cell random)
{
	double value = from == F64   ? x.f64
	               : from == F32 ? (double)x.f32
	                             : dtype_int_for_rounding((uint64_t)cell_int(from, x),
	                                                      from != U64 && from != U32);

	return (Cell){.f32 = (float)dtype_round_as(storage, how, value, random.u32)};
}

static Cell
cast_cell(DType storage, DType from, Cell x)
{
	char raw[8], source[8];

	memset(source, 0, sizeof(source));
	store_cell(from, source, 0, x);
	dtype_convert(storage, raw, from, source, 1);
	return load_cell(storage, raw, 0);
}

static int64_t
place_of(const Run *r, const Affine *a)
{
	int64_t at = a->constant;

	for (int i = 0; i < a->n; i++)
		at += a->terms[i].coefficient * r->cells[a->terms[i].scalar].s64;
	return at;
}

/* A place outside its buffer, or one of a local that nothing has written yet, is a compiler bug: emitters' clamps should
 * rule out the first, and what lies in the second may be a subnormal number and slow, if no result needs it. */
static void *
checked_place(const Run *r, const LoopStatement *s, int64_t *at)
{
	const LoopBuffer *b = &r->k->buffers.at[s->buffer];
	bool is_local = b->kind == BUFFER_LOCAL;
	const char *fault = NULL;

	*at = place_of(r, s->place);
	if (*at < 0 || *at >= b->type->n)
		fault = "lies outside";
	else if (is_local && s->kind == LOOP_STATEMENT_LOAD && !r->written[s->buffer][*at])
		fault = "is read before it is written";
	if (fault) {
		fprintf(stderr, "gradc: internal error: kernel %s: place %lld of %s %s\n",
		        r->k->name, (long long)*at, b->name, fault);
		abort();
	}
	if (is_local && s->kind == LOOP_STATEMENT_STORE)
		r->written[s->buffer][*at] = true;
	return is_local ? r->locals[s->buffer] : r->params[s->buffer];
}

static Cell
identity(const Accumulator *a)
{
	Cell x = {0};
	static const double floats[] = {0, 1, -INFINITY, INFINITY};

	if (a->type == F64)
		x.f64 = floats[a->kind];
	else if (a->type == F32)
		x.f32 = (float)floats[a->kind];
	else if (a->kind == ACC_MUL)
		x.s64 = 1;
	else if (a->kind == ACC_MAX)
		x = a->type == S64   ? (Cell){.s64 = INT64_MIN}
		    : a->type == S32 ? (Cell){.s32 = INT32_MIN}
		                     : (Cell){0};
	else if (a->kind == ACC_MIN)
		x = a->type == S64   ? (Cell){.s64 = INT64_MAX}
		    : a->type == S32 ? (Cell){.s32 = INT32_MAX}
		    : a->type == U32 ? (Cell){.u32 = UINT32_MAX}
		                     : (Cell){.u64 = UINT64_MAX};
	return x;
}

static void run_block(Run *r, int from, int to);

/* op of x, y, z: by a scalar function where `call` is one. */
static Cell
combine(Call *call, LoopOp op, DType t, Cell x, Cell y, Cell z)
{
	if (!call)
		return arithmetic(op, t, x, y, z);
	call->run.cells[0] = x;
	call->run.cells[1] = y;
	call->run.cells[2] = z;
	run_block(&call->run, 0, call->run.k->body.n);
	return call->run.cells[call->function->result];
}

/* Parts [begin, end) of the nest of parallel loops that begins at statement `at`. */
static void
run_parallel(Run *r, int at)
{
	int depth = parallel_depth(r->k, at);

	for (int64_t part = r->begin; part < r->end; part++) {
		int64_t outer = part;
		for (int i = depth - 1; i >= 0; i--) {
			const LoopStatement *s = &r->k->body.at[at + i];
			r->cells[s->result].s64 = outer % s->extent;
			outer /= s->extent;
		}
		run_block(r, at + depth, r->k->body.at[at + depth - 1].match);
	}
}

static void
run_for(Run *r, const LoopStatement *s, int at)
{
	if (s->mode == LOOP_PARALLEL) {
		run_parallel(r, at);
		return;
	}
	for (int a = 0; a < s->n_accumulators; a++) {
		const Accumulator *acc = &s->accumulators[a];
		for (int l = 0; l < LOOP_LANES; l++)
			r->lanes[acc->scalar]->lanes[l] = identity(acc);
	}
	int64_t below = s->place ? place_of(r, s->place) : s->extent;
	for (int64_t j = 0; j < below && j < s->extent; j++) {
		r->cells[s->result].s64 = j;
		for (int a = 0; a < s->n_accumulators; a++)
			r->lane[s->accumulators[a].scalar] = s->mode == LOOP_VECTOR
			                                             ? (int)(j % LOOP_LANES)
			                                             : 0;
		run_block(r, at + 1, s->match);
	}
	for (int a = 0; a < s->n_accumulators; a++) {
		const Accumulator *acc = &s->accumulators[a];
		int n = s->mode == LOOP_VECTOR ? LOOP_LANES : 1;
		Cell *lanes = r->lanes[acc->scalar]->lanes;
		for (n /= 2; n > 0; n /= 2)
			for (int l = 0; l < n; l++)
				lanes[l] = combine(r->accumulations[acc->scalar],
				                   accumulate_op(acc->kind), acc->type, lanes[l],
				                   lanes[l + n], (Cell){0});
		r->cells[acc->scalar] = lanes[0];
	}
}

/* Arithmetic on elements, as rows count it: a function counts 1, a fused multiply-add 2, and what only compares,
 * chooses, tests or moves bits nothing. Only of floats: integers may be places. */
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
	Cell *to = &r->lanes[acc]->lanes[r->lane[acc]];

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
		to->b = compare(s->op, from, x, y);
	else
		*to = s->op == LOOP_truncate ? truncated(from, s->type, x)
		                             : arithmetic(s->op, s->type, x, y, z);
}

static void
run_cast(Run *r, const LoopStatement *s)
{
	DType storage = (DType)s->i, from = r->types[s->operands[0]];
	Cell x = r->cells[s->operands[0]];
	Cell random = s->n_operands > 1 ? r->cells[s->operands[1]] : (Cell){0};

	r->cells[s->result] = float_format(storage) ? round_cell(storage, s->how, from, x, random)
	                                            : cast_cell(storage, from, x);
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

static void
run_block(Run *r, int from, int to)
{
	int64_t place;

	for (int at = from; at < to; at++) {
		const LoopStatement *s = &r->k->body.at[at];
		switch (s->kind) {
		case LOOP_STATEMENT_OP: run_op(r, s, at); break;
		case LOOP_STATEMENT_CONST: run_const(r, s); break;
		case LOOP_STATEMENT_CAST: run_cast(r, s); break;
		case LOOP_STATEMENT_AFFINE: r->cells[s->result].s64 = place_of(r, s->place); break;
		case LOOP_STATEMENT_SCALAR:
			r->cells[s->result].u64 = r->scalars[s->buffer].u; /* the bits of either */
			break;
		case LOOP_STATEMENT_LOAD: {
			const void *buffer = checked_place(r, s, &place);
			r->cells[s->result] = load_cell(r->k->buffers.at[s->buffer].type->dtype,
			                                buffer, place);
			break;
		}
		case LOOP_STATEMENT_STORE: {
			void *buffer = checked_place(r, s, &place);
			store_cell(r->k->buffers.at[s->buffer].type->dtype, buffer, place,
			           r->cells[s->operands[0]]);
			break;
		}
		case LOOP_STATEMENT_FOR:
			run_for(r, s, at);
			at = s->match;
			break;
		case LOOP_STATEMENT_IF:
			if (!r->cells[s->operands[0]].b)
				at = s->match;
			break;
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

/* Room for every scalar of k, and for the functions it calls. f: whose body it is; NULL: none. */
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
			r->lanes[acc->scalar] = NEW(r->arena, Lanes);
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
                         int64_t begin, int64_t end, int64_t *flops)
{
	Arena *arena = arena_new();
	Run r = {.arena = arena,
	         .functions = scalar_functions_new(arena),
	         .params = buffers,
	         .scalars = scalars,
	         .begin = begin,
	         .end = end,
	         .flops = flops};

	prepare(&r, k, NULL);
	r.locals = NEW_ARRAY(arena, void *, k->buffers.n);
	r.written = NEW_ARRAY(arena, bool *, k->buffers.n);
	for (int i = 0; i < k->buffers.n; i++) {
		Type t = k->buffers.at[i].type;

		if (k->buffers.at[i].kind != BUFFER_LOCAL)
			continue;
		r.locals[i] = arena_alloc(arena, (size_t)type_bytes(t));
		r.written[i] = NEW_ARRAY(arena, bool, t->n);
	}
	r.lanes = NEW_ARRAY(arena, Lanes *, k->n_scalars);
	r.lane = NEW_ARRAY(arena, int, k->n_scalars);
	r.accumulations = NEW_ARRAY(arena, Call *, k->n_scalars);
	prepare_accumulators(&r);
	run_block(&r, 0, k->body.n);
	arena_free(arena);
}
