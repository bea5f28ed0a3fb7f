/* Private to ir/scalar: short names for building scalar functions (exp, casts ...) from
 * operations of loop IR, and the builders that are in other files than functions.c. */
#ifndef GRADC_IR_SCALAR_IMPL_H
#define GRADC_IR_SCALAR_IMPL_H

#include "ir/loop/loop.h"

typedef LoopBuilder B;
typedef LoopValue V;
typedef struct FunctionRow FunctionRow;
struct FunctionRow {
	const char *name;
	int n_params;
	DType params[MAX_FUNCTION_PARAMS], type;
	V (*build)(B *b, const FunctionRow *row, const V *x);
	LoopOp op;      /* the op that the function implements, if `build` needs it */
	DType storage;  /* of conversions: the storage type */
	Conversion how; /* of casts to small floats */
};

/* ---- shorthand */
/* clang-format off */
#define BINARY(name, op) static inline V name(B *b, V x, V y) { return lb_binary(b, LOOP_##op, x, y); }
BINARY(add, add) BINARY(sub, sub) BINARY(mul, mul) BINARY(divide, div) BINARY(quotient, quotient)
BINARY(and, and) BINARY(or, or) BINARY(xor, xor) BINARY(shl, shl) BINARY(shr, shr)
#define COMPARE(name) static inline V name(B *b, V x, V y) { return lb_compare(b, LOOP_##name, x, y); }
COMPARE(eq) COMPARE(ne) COMPARE(lt) COMPARE(le) COMPARE(gt) COMPARE(ge)
#define UNARY(name, op) static inline V name(B *b, V x) { return lb_unary(b, LOOP_##op, x); }
UNARY(neg, neg) UNARY(absolute, abs) UNARY(lower, floor) UNARY(not, not)
	/* clang-format on */

	static inline V select(B *b, V c, V x, V y)
{
	return lb_select(b, c, x, y);
}

static inline V
fma3(B *b, V x, V y, V z)
{
	return lb_op(b, LOOP_fma, lb_type(b, x), (V[]){x, y, z});
}

static inline V
bits(B *b, DType type, V x)
{
	return lb_op(b, LOOP_bits, type, &x);
}

static inline V
truncate_to(B *b, DType type, V x)
{
	return lb_op(b, LOOP_truncate, type, &x);
}

/* A number of x's type. */
static inline V
number(B *b, V x, double value)
{
	return lb_number(b, lb_type(b, x), value);
}

static inline V
integer(B *b, V x, uint64_t value)
{
	return lb_int(b, lb_type(b, x), (int64_t)value);
}

static inline V
is_nan(B *b, V x)
{
	return ne(b, x, x);
}

/* p = c[0]; p = p z + c[i] */
static inline V
horner(B *b, V z, const double *c, int n)
{
	V p = number(b, z, c[0]);

	for (int i = 1; i < n; i++)
		p = fma3(b, p, z, number(b, z, c[i]));
	return p;
}

/* |x| with the sign of y */
static inline V
copysign_of(B *b, V x, V y)
{
	bool wide = lb_type(b, x) == F64;
	DType u = wide ? U64 : U32;
	V sign = lb_int(b, u, wide ? INT64_MIN : 0x80000000ll);
	V rest = lb_int(b, u, wide ? INT64_MAX : 0x7fffffffll);

	return bits(b, lb_type(b, x),
	            or (b, and(b, bits(b, u, x), rest), and(b, bits(b, u, y), sign)));
}

/* ---- scalar/formats.c: conversions from and to types with fewer bits in memory, by the row's `storage` */
V build_load_format(B *b, const FunctionRow *row, const V *x);
V build_store_format(B *b, const FunctionRow *row, const V *x);
V build_cast_format(B *b, const FunctionRow *row, const V *x);
V build_load_packed(B *b, const FunctionRow *row, const V *x);
V build_wrap_packed(B *b, const FunctionRow *row, const V *x);

/* ---- scalar/philox.c */
V build_philox(B *b, const FunctionRow *row, const V *x);

/* ---- builders that scalar/function_list.def names: in transcendental.c, or in a file of their own */
#define SCALAR_FUNCTION(name, f64, f32, ...)             \
	V f64(B *b, const FunctionRow *row, const V *x); \
	V f32(B *b, const FunctionRow *row, const V *x);
#include "ir/scalar/function_list.def"
#undef SCALAR_FUNCTION

/* ---- transcendental.c: functions of two operands */
V build_pow_f64(B *b, const FunctionRow *row, const V *x);
V build_rem_f64(B *b, const FunctionRow *row, const V *x);
V build_rem_f32(B *b, const FunctionRow *row, const V *x);
/* for a function of f32 numbers: computes in f64, and rounds once */
V build_by_f64(B *b, const FunctionRow *row, const V *x);

#endif
