/* The table of scalar functions (exp, integer division, casts ...) that no machine has as an
 * instruction. Each is written once, as loop IR of operations that machines have as
 * instructions. The interpreter and all printers expand this loop IR, in vectors and in scalars,
 * so all give the same bits. There are no branches: an operation that is not safe for an operand
 * gets a safe operand instead, and a select then drops its result. docs/accuracy.md lists the
 * errors in ulp. */
#include "ir/scalar/scalar.h"

#include <string.h>

/* ---- choices */
static V
build_max(B *b, const FunctionRow *row, const V *x)
{
	V more = row->op == LOOP_max ? gt(b, x[0], x[1]) : lt(b, x[0], x[1]);

	if (dtype_is_float(row->type))
		more = or (b, more, is_nan(b, x[0]));
	return select(b, more, x[0], x[1]);
}

static V
build_is_nan(B *b, const FunctionRow *row, const V *x)
{
	return is_nan(b, x[0]);
}

static V
build_is_finite(B *b, const FunctionRow *row, const V *x)
{
	return eq(b, sub(b, x[0], x[0]), number(b, x[0], 0));
}

/* ---- integers: division never traps. A quotient by zero is 0; the only division that
 * overflows, the least number by -1, wraps */
static V
build_abs(B *b, const FunctionRow *row, const V *x)
{
	return dtype_info[row->type].class == CLASS_SIGNED
	               ? select(b, lt(b, x[0], number(b, x[0], 0)), neg(b, x[0]), x[0])
	               : x[0];
}

static V
build_div(B *b, const FunctionRow *row, const V *x)
{
	bool is_signed = dtype_info[row->type].class == CLASS_SIGNED;
	V zero = number(b, x[0], 0), one = number(b, x[0], 1), none = eq(b, x[1], zero);

	if (!is_signed)
		return select(b, none, zero, quotient(b, x[0], select(b, none, one, x[1])));
	V minus = eq(b, x[1], number(b, x[0], -1));
	V q = quotient(b, x[0], select(b, or (b, none, minus), one, x[1]));
	return select(b, none, zero, select(b, minus, neg(b, x[0]), q));
}

/* The remainder has the dividend's sign. A remainder by zero is 0. */
static V
build_rem(B *b, const FunctionRow *row, const V *x)
{
	V zero = number(b, x[0], 0);
	V r = sub(b, x[0], mul(b, divide(b, x[0], x[1]), x[1]));

	return select(b, eq(b, x[1], zero), zero, r);
}

/* Powers by squaring, one round for each bit of the exponent. A negative exponent gives 0, unless the base is 1 or
 * -1. */
static V
build_pow_integer(B *b, const FunctionRow *row, const V *x)
{
	V zero = number(b, x[0], 0), one = number(b, x[0], 1), r = one, base = x[0], e = x[1];
	int width = dtype_info[row->type].bits;

	for (int i = 0; i < width; i++) {
		r = select(b, ne(b, and(b, e, one), zero), mul(b, r, base), r);
		if (i + 1 == width)
			break;
		e = shr(b, e, one);
		base = mul(b, base, base);
	}
	if (dtype_info[row->type].class == CLASS_UNSIGNED)
		return r;
	V minus = number(b, x[0], -1);
	V odd = ne(b, and(b, x[1], one), zero);
	V inverse = select(b, eq(b, x[0], one), one,
	                   select(b, eq(b, x[0], minus), select(b, odd, minus, one), zero));
	return select(b, lt(b, x[1], zero), inverse, r);
}

/* ---- conversions. Floats become integers as in the op cast: truncated and saturated; NaN gives
 * 0. */
static V
build_to_integer(B *b, const FunctionRow *row, const V *x)
{
	int width = dtype_info[row->storage].bits;
	bool is_signed = dtype_info[row->storage].class == CLASS_SIGNED;
	uint64_t most = ~0ull >> (64 - width + is_signed);
	int64_t least = is_signed ? -(int64_t)most - 1 : 0;
	V low = number(b, x[0], (double)least), high = number(b, x[0], (double)most);
	V below = le(b, x[0], low), above = ge(b, x[0], high), none = is_nan(b, x[0]);
	V safe = select(b, or (b, none, or (b, below, above)), number(b, x[0], 0), x[0]);
	V r = truncate_to(b, row->type, safe);

	r = select(b, above, lb_int(b, row->type, (int64_t)most), r);
	return select(b, below, lb_int(b, row->type, least), r);
}

/* ---- the table */
/* clang-format off */
#define ONE(name, t, build) {#name "_" t##_NAME, 1, {t}, t, build, LOOP_##name}
#define F64_NAME "f64"
#define F32_NAME "f32"
#define S64_NAME "s64"
#define S32_NAME "s32"
#define U64_NAME "u64"
#define U32_NAME "u32"
#define TWO(name, t, build) {#name "_" t##_NAME, 2, {t, t}, t, build, LOOP_##name}
#define ALL_INTEGERS(ROW, name, build) ROW(name, S64, build), ROW(name, S32, build),             \
	ROW(name, U64, build), ROW(name, U32, build)
#define ALL_FLOATS(ROW, name, build) ROW(name, F64, build), ROW(name, F32, build)
#define TRUTH(name, t) {#name "_" t##_NAME, 1, {t}, BOOL, build_##name, LOOP_##name}
/* Rows of conversions to an integer type: from a float, or from an integer that wraps. */
#define CUT(from, stored, text, to, build)                                                       \
	{from##_NAME "_to_" text, 1, {from}, to, build, .storage = stored}
#define CUTS(from) CUT(from, S64, "s64", S64, build_to_integer),                                 \
	CUT(from, S32, "s32", S32, build_to_integer), CUT(from, S16, "s16", S32, build_to_integer), \
	CUT(from, S8, "s8", S32, build_to_integer), CUT(from, U64, "u64", U64, build_to_integer), \
	CUT(from, U32, "u32", U32, build_to_integer), CUT(from, U16, "u16", U32, build_to_integer), \
	CUT(from, U8, "u8", U32, build_to_integer), PACKED(from, build_to_integer)
#define PACKED(from, build)                                                                      \
	CUT(from, S4, "s4", S32, build), CUT(from, S2, "s2", S32, build),                        \
	CUT(from, U4, "u4", U32, build), CUT(from, U2, "u2", U32, build)
#define LOAD(stored, text, type, build) {"load_" text, 1, {U32}, type, build, .storage = stored}
#define FORMAT(stored, text) LOAD(stored, text, F32, build_load_format),                         \
	{"store_" text, 1, {F32}, U32, build_store_format, .storage = stored}
#define PHILOX(name) {#name "_u64", 3, {U64, U64, U64}, U64, build_philox, LOOP_##name}

static const FunctionRow rows[] = {
#define SCALAR_FUNCTION(name, f64, f32, ...) ONE(name, F64, f64), ONE(name, F32, f32),
#include "ir/scalar/function_list.def"
#undef SCALAR_FUNCTION
	TWO(pow, F64, build_pow_f64), TWO(pow, F32, build_by_f64),
	TWO(rem, F64, build_rem_f64), TWO(rem, F32, build_rem_f32),
	ALL_INTEGERS(TWO, pow, build_pow_integer), ALL_INTEGERS(TWO, rem, build_rem),
	ALL_INTEGERS(TWO, div, build_div), ALL_INTEGERS(ONE, abs, build_abs),
	ONE(exp_fast, F32, build_exp), ONE(tanh_fast, F32, build_tanh_f32),
	ALL_FLOATS(TWO, max, build_max), ALL_INTEGERS(TWO, max, build_max),
	ALL_FLOATS(TWO, min, build_max), ALL_INTEGERS(TWO, min, build_max),
	TRUTH(is_nan, F64), TRUTH(is_nan, F32), TRUTH(is_finite, F64), TRUTH(is_finite, F32),
	CUTS(F64), CUTS(F32),
	PACKED(S64, build_wrap_packed), PACKED(S32, build_wrap_packed),
	PACKED(U64, build_wrap_packed), PACKED(U32, build_wrap_packed),
	LOAD(S4, "s4", S32, build_load_packed), LOAD(S2, "s2", S32, build_load_packed),
	FORMAT(F16, "f16"), FORMAT(BF16, "bf16"), FORMAT(F8E4M3, "f8e4m3"), FORMAT(F8E5M2, "f8e5m2"),
	FORMAT(F8E4M3FNUZ, "f8e4m3fnuz"), FORMAT(F8E5M2FNUZ, "f8e5m2fnuz"),
	FORMAT(F4E2M1, "f4e2m1"), FORMAT(E8M0, "e8m0"),
	PHILOX(philox), PHILOX(philox_high),
};
/* clang-format on */

struct ScalarFunctions {
	Arena *arena;
	StrMap *made; /* by name */
};

ScalarFunctions *
scalar_functions_new(Arena *arena)
{
	ScalarFunctions *fs = NEW(arena, ScalarFunctions);

	fs->arena = arena;
	fs->made = strmap_new(arena);
	return fs;
}

static const ScalarFunction *
make(ScalarFunctions *fs, const FunctionRow *row)
{
	ScalarFunction *f = NEW(fs->arena, ScalarFunction);
	Kernel *k = kernel_new(fs->arena, row->name, NULL);
	LoopBuilder *lb = loop_builder(k, NULL, fs->arena);
	V x[MAX_FUNCTION_PARAMS] = {-1, -1, -1};

	for (int i = 0; i < row->n_params; i++)
		x[i] = lb_param(lb, row->params[i]);
	f->result = row->build(lb, row, x);
	kernel_finish(k);
	f->name = k->name;
	f->n_params = row->n_params;
	memcpy(f->params, row->params, sizeof(f->params));
	f->type = row->type;
	f->body = k;
	strmap_put(fs->made, f->name, f);
	return f;
}

const ScalarFunction *
scalar_function(ScalarFunctions *fs, const char *name)
{
	const ScalarFunction *f = strmap_get(fs->made, name);

	for (int i = 0; !f && i < COUNT(rows); i++)
		if (strcmp(rows[i].name, name) == 0)
			f = make(fs, &rows[i]);
	return f;
}

/* The function that casts to a float below f32. The function is made when it is first needed:
 * rows for all types and ways of rounding would be hundreds. */
static const ScalarFunction *
cast_function(ScalarFunctions *fs, DType from, DType storage, Conversion how)
{
	char name[64];
	bool random = how.round == ROUND_STOCHASTIC;

	snprintf(name, sizeof(name), "%s_to_%s_%s_%s", dtype_info[from].name,
	         dtype_info[storage].name, rounding_names[how.round], overflow_names[how.overflow]);
	const ScalarFunction *f = strmap_get(fs->made, name);
	return f ? f
	         : make(fs, &(FunctionRow){.name = name,
	                                   .n_params = random ? 2 : 1,
	                                   .params = {from, U32},
	                                   .type = F32,
	                                   .build = build_cast_format,
	                                   .storage = storage,
	                                   .how = how});
}

const ScalarFunction *
scalar_function_of(ScalarFunctions *fs, const LoopStatement *s, DType operand)
{
	char name[32];

	if (s->kind == LOOP_STATEMENT_CAST && float_format((DType)s->i))
		return cast_function(fs, operand, (DType)s->i, s->how);
	if (s->kind == LOOP_STATEMENT_OP)
		snprintf(name, sizeof(name), "%s_%s", loop_ops[s->op].name,
		         dtype_info[operand].name);
	else
		snprintf(name, sizeof(name), "%s_to_%s", dtype_info[operand].name,
		         dtype_info[s->i].name);
	return scalar_function(fs, name);
}
