/* Runs loop IR statement by statement. The same scalar functions as generated C, so the same bits. */
#include "ir/loop.h"
#include "ir/scalar_math.h"

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

typedef struct {
	const Kernel *k;
	void *const *params;
	void **locals; /* by buffer */
	const double *scalars;
	Cell *cells;   /* by scalar */
	Lanes **lanes; /* by accumulator scalar */
	int *lane;     /* by accumulator scalar: the one that takes now */
	DType *types;  /* by scalar */
	int64_t begin, end;
} Run;

/* clang-format off */
#define FLOAT1(name)                                                                             \
	case LOOP_##name:                                                                        \
		if (t == F64)                                                                    \
			r.f64 = gradc_##name##_f64(x.f64);                                       \
		else                                                                             \
			r.f32 = gradc_##name##_f32(x.f32);                                       \
		return r;
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
#define FUNCTION2(name)                                                                          \
	case LOOP_##name:                                                                        \
		BY_TYPE(gradc_##name##_f64(x.f64, y.f64), gradc_##name##_f32(x.f32, y.f32),      \
		        gradc_##name##_s64(x.s64, y.s64), gradc_##name##_s32(x.s32, y.s32),      \
		        gradc_##name##_u64(x.u64, y.u64), gradc_##name##_u32(x.u32, y.u32), x.b)
#define BITWISE(name, op)                                                                        \
	case LOOP_##name:                                                                        \
		BY_TYPE(x.f64, x.f32, x.s64 op y.s64, x.s32 op y.s32, x.u64 op y.u64,            \
		        x.u32 op y.u32, x.b op y.b)

static Cell
arithmetic(LoopOp op, DType t, Cell x, Cell y, Cell z)
{
	Cell r = {0};

	switch (op) {
	case LOOP_neg:
		BY_TYPE(-x.f64, -x.f32, (int64_t)(0 - x.u64), (int32_t)(0 - x.u32), 0 - x.u64,
		        0 - x.u32, x.b)
	case LOOP_abs:
		BY_TYPE(gradc_abs_f64(x.f64), gradc_abs_f32(x.f32), gradc_abs_s64(x.s64),
		        gradc_abs_s32(x.s32), x.u64, x.u32, x.b)
	FLOAT1(sqrt) FLOAT1(floor) FLOAT1(ceil) FLOAT1(round) FLOAT1(exp) FLOAT1(expm1)
	FLOAT1(log) FLOAT1(log1p) FLOAT1(sin) FLOAT1(cos) FLOAT1(tanh) FLOAT1(erf)
	ARITHMETIC(add, +) ARITHMETIC(sub, -) ARITHMETIC(mul, *)
	case LOOP_div:
		BY_TYPE(x.f64 / y.f64, x.f32 / y.f32, gradc_div_s64(x.s64, y.s64),
		        gradc_div_s32(x.s32, y.s32), gradc_div_u64(x.u64, y.u64),
		        gradc_div_u32(x.u32, y.u32), x.b)
	FUNCTION2(rem) FUNCTION2(pow) FUNCTION2(max) FUNCTION2(min)
	BITWISE(and, &) BITWISE(or, |) BITWISE(xor, ^)
	case LOOP_fma:
		BY_TYPE(gradc_fma_f64(x.f64, y.f64, z.f64), gradc_fma_f32(x.f32, y.f32, z.f32),
		        x.s64, x.s32, x.u64, x.u32, x.b)
	case LOOP_not: r.b = !x.b; return r;
	case LOOP_select: return x.b ? y : z;
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
	if (op == LOOP_is_nan)
		return t == F64 ? isnan(x.f64) : isnan(x.f32);
	if (op == LOOP_is_finite)
		return t == F64 ? isfinite(x.f64) : isfinite(x.f32);
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

/* A place outside its buffer is a compiler bug that the emitters' clamps should rule out. */
static void *
checked_place(const Run *r, const LoopStatement *s, int64_t *at)
{
	const LoopBuffer *b = &r->k->buffers.at[s->buffer];

	*at = place_of(r, s->place);
	if (*at < 0 || *at >= b->type->n) {
		fprintf(stderr, "gradc: internal error: kernel %s: place %lld of %s\n", r->k->name,
		        (long long)*at, b->name);
		abort();
	}
	return b->kind == BUFFER_LOCAL ? r->locals[s->buffer] : r->params[s->buffer];
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

static void
run_for(Run *r, const LoopStatement *s, int at)
{
	Lanes lanes[MAX_ACCUMULATORS];
	int64_t first = s->mode == LOOP_PARALLEL ? r->begin : 0;
	int64_t last = s->mode == LOOP_PARALLEL ? r->end : s->extent;

	for (int a = 0; a < s->n_accumulators; a++) {
		const Accumulator *acc = &s->accumulators[a];
		for (int l = 0; l < LOOP_LANES; l++)
			lanes[a].lanes[l] = identity(acc);
		r->lanes[acc->scalar] = &lanes[a];
	}
	for (int64_t j = first; j < last; j++) {
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
		for (n /= 2; n > 0; n /= 2)
			for (int l = 0; l < n; l++)
				lanes[a].lanes[l] = arithmetic(accumulate_op(acc->kind), acc->type,
				                               lanes[a].lanes[l],
				                               lanes[a].lanes[l + n], (Cell){0});
		r->cells[acc->scalar] = lanes[a].lanes[0];
	}
}

static void
run_accumulate(Run *r, const LoopStatement *s)
{
	LoopValue acc = s->operands[1];
	Cell *to = &r->lanes[acc]->lanes[r->lane[acc]];

	*to = arithmetic(s->op, s->type, *to, r->cells[s->operands[0]], (Cell){0});
}

static void
run_op(Run *r, const LoopStatement *s, const DType *types)
{
	Cell x = r->cells[s->operands[0]];
	Cell y = s->n_operands > 1 ? r->cells[s->operands[1]] : (Cell){0};
	Cell z = s->n_operands > 2 ? r->cells[s->operands[2]] : (Cell){0};
	bool compares = (s->op >= LOOP_eq && s->op <= LOOP_ge) || s->op == LOOP_is_nan ||
	                s->op == LOOP_is_finite;

	if (compares)
		r->cells[s->result].b = compare(s->op, types[s->operands[0]], x, y);
	else
		r->cells[s->result] = arithmetic(s->op, s->type, x, y, z);
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
	const DType *types = r->types;
	int64_t place;

	for (int at = from; at < to; at++) {
		const LoopStatement *s = &r->k->body.at[at];
		switch (s->kind) {
		case LOOP_STATEMENT_OP: run_op(r, s, types); break;
		case LOOP_STATEMENT_CONST: run_const(r, s); break;
		case LOOP_STATEMENT_CAST:
			r->cells[s->result] = cast_cell((DType)s->i, types[s->operands[0]],
			                                r->cells[s->operands[0]]);
			break;
		case LOOP_STATEMENT_AFFINE: r->cells[s->result].s64 = place_of(r, s->place); break;
		case LOOP_STATEMENT_SCALAR: r->cells[s->result].f64 = r->scalars[s->buffer]; break;
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

static void
scalar_types(const Kernel *k, DType *types)
{
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		if (s->result >= 0)
			types[s->result] = s->type;
		for (int a = 0; a < s->n_accumulators; a++)
			types[s->accumulators[a].scalar] = s->accumulators[a].type;
	}
}

void
kernel_interpret(const Kernel *k, void *const *buffers, const double *scalars, int64_t begin,
                 int64_t end)
{
	Arena *arena = arena_new();
	Run r = {.k = k, .params = buffers, .scalars = scalars, .begin = begin, .end = end};

	r.locals = NEW_ARRAY(arena, void *, k->buffers.n);
	for (int i = 0; i < k->buffers.n; i++)
		if (k->buffers.at[i].kind == BUFFER_LOCAL)
			r.locals[i] = arena_alloc(arena, (size_t)type_bytes(k->buffers.at[i].type));
	r.cells = NEW_ARRAY(arena, Cell, k->n_scalars);
	r.lanes = NEW_ARRAY(arena, Lanes *, k->n_scalars);
	r.lane = NEW_ARRAY(arena, int, k->n_scalars);
	r.types = NEW_ARRAY(arena, DType, k->n_scalars);
	scalar_types(k, r.types);
	run_block(&r, 0, k->body.n);
	arena_free(arena);
}
