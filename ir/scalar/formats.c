/* Builds the conversions between numbers and storage formats such as bf16 or f8 as operations of
 * loop IR: one builder for all formats of the table in base/numbers/dtype.c. The functions load
 * and store numbers that have fewer bits in memory than in a computation, and cast through such
 * types. A code is the bit pattern of a number without its sign. */
#include "ir/scalar/scalar.h"

#include <string.h>

/* A wide float type (f32 or f64) from which a code is made. */
typedef struct {
	DType bits;
	int width, mantissa, bias;
} Wide;
static const Wide wide_f32 = {U32, 32, 23, 127}, wide_f64 = {U64, 64, 52, 1023};

/* 2^k of x's type */
static V
power_of_two(B *b, V x, int k)
{
	uint64_t word = (uint64_t)(k + 1023) << 52;
	double value;

	memcpy(&value, &word, sizeof(value));
	return number(b, x, value);
}

static V
left(B *b, V x, int by)
{
	return shl(b, x, integer(b, x, (uint64_t)by));
}

static V
right(B *b, V x, int by)
{
	return shr(b, x, integer(b, x, (uint64_t)by));
}

/* ---- from a code to its value */

/* Codes of subnormal numbers first become subnormal numbers of f32. A multiplication by a power of two then gives
 * their value. */
static V
finite_value(B *b, const FloatFormat *f, V code)
{
	V placed = left(b, code, wide_f32.mantissa - f->mantissa);

	if (f->only_normal)
		return select(b, eq(b, code, integer(b, code, 0)), integer(b, code, 1 << 22),
		              placed);
	if (f->bias == wide_f32.bias)
		return placed;
	V x = bits(b, F32, placed);
	return bits(b, U32, mul(b, x, power_of_two(b, x, wide_f32.bias - f->bias)));
}

/* Infinity and NaN: if all bits of the exponent are 1, they all stay 1, so a NaN keeps its bits. */
static V
special_value(B *b, const FloatFormat *f, V code, V value)
{
	int ones = f->infinity >> f->mantissa;
	uint64_t more = (uint64_t)(2 * wide_f32.bias + 1 - ones) << wide_f32.mantissa;
	bool all_finite = f->largest == (f->sign ? f->sign - 1 : (1 << f->bits) - 1);

	if (all_finite || (f->infinity && more == 0))
		return value;
	V special = integer(b, code, 0x7fc00000);
	if (f->infinity)
		special = add(b, left(b, code, wide_f32.mantissa - f->mantissa),
		              integer(b, code, more));
	return select(b, gt(b, code, integer(b, code, f->largest)), special, value);
}

static V
decode(B *b, const FloatFormat *f, V pattern)
{
	V code = f->sign ? and(b, pattern, integer(b, pattern, f->sign - 1)) : pattern;
	V value = special_value(b, f, code, finite_value(b, f, code));

	if (f->sign) {
		V sign = and(b, pattern, integer(b, pattern, f->sign));
		value = or (b, value, left(b, sign, 32 - f->bits));
	}
	if (f->unsigned_zero)
		value = select(b, eq(b, pattern, integer(b, pattern, f->nan)),
		               integer(b, pattern, 0x7fc00000), value);
	return bits(b, F32, value);
}

/* ---- from a value to its code */
typedef struct {
	B *b;
	const FloatFormat *f;
	const Wide *w;
	Rounding round;
	V magnitude, x; /* the bits of |value|; |value| itself */
	V random;       /* random bits, u32 */
} Encoder;

/* How many bits of the wide type's mantissa the format drops. */
static int
lost_bits(const Encoder *e)
{
	return e->w->mantissa - e->f->mantissa;
}

/* The magnitude's bits with the exponent of the format; the result is right if the number is a
 * normal number of the format. */
static V
rebased(const Encoder *e)
{
	uint64_t base = (uint64_t)(e->w->bias - e->f->bias) << e->w->mantissa;

	return base ? sub(e->b, e->magnitude, integer(e->b, e->magnitude, base)) : e->magnitude;
}

/* The exponent k of 2^k, the value of code 1. */
static int
least_power(const FloatFormat *f)
{
	return f->only_normal ? -f->bias : 1 - f->bias - f->mantissa;
}

/* e8m0 has only powers of two, so "round ties to even" does not apply: the tie between 2^k and
 * 2^(k + 1) lies at an odd number of units above 2^k. */
static V
nearest_normal(const Encoder *e)
{
	B *b = e->b;
	int lost = lost_bits(e);
	V half = integer(b, e->magnitude, (UINT64_C(1) << (lost - 1)) - 1);
	V one = integer(b, e->magnitude, 1);
	V odd = e->f->only_normal ? one : and(b, right(b, e->magnitude, lost), one);

	return right(b, add(b, add(b, rebased(e), half), odd), lost);
}

/* Rounds by an addition of a large number, chosen so that the last bit of the sum is worth one
 * unit of the code. */
static V
nearest_subnormal(const Encoder *e)
{
	B *b = e->b;
	V unit = power_of_two(b, e->x, least_power(e->f) + e->w->mantissa);

	return sub(b, bits(b, e->w->bits, add(b, e->x, unit)), bits(b, e->w->bits, unit));
}

/* Does rounding add one to the code? In the function, `fraction` is the part of a unit that is
 * dropped, shifted to the upper end of the word. */
static V
normal_grows(const Encoder *e)
{
	B *b = e->b;
	V fraction = left(b, e->magnitude, e->w->width - lost_bits(e));

	if (e->round == ROUND_AWAY)
		return ne(b, fraction, integer(b, fraction, 0));
	if (e->w->width == 64)
		fraction = lb_cast(b, U32, right(b, fraction, 32));
	return lt(b, e->random, fraction);
}

static V
subnormal_grows(const Encoder *e, V scaled, V code)
{
	B *b = e->b;
	V fraction = sub(b, scaled, lb_cast(b, lb_type(b, scaled), code));

	if (e->round == ROUND_AWAY)
		return gt(b, fraction, number(b, fraction, 0));
	return lt(b, e->random,
	          truncate_to(b, U32, mul(b, fraction, power_of_two(b, fraction, 32))));
}

/* The code of a magnitude below the format's normal numbers. */
static V
subnormal_code(const Encoder *e, V is_small)
{
	B *b = e->b;

	if (e->round == ROUND_NEAREST)
		return nearest_subnormal(e);
	V x = select(b, is_small, e->x, number(b, e->x, 0));
	V scaled = mul(b, x, power_of_two(b, x, -least_power(e->f)));
	V code = truncate_to(b, e->w->bits, scaled);
	if (e->round == ROUND_TOWARD_ZERO)
		return code;
	V more = subnormal_grows(e, scaled, code);
	return add(b, code, select(b, more, integer(b, code, 1), integer(b, code, 0)));
}

static V
normal_code(const Encoder *e)
{
	B *b = e->b;

	if (e->round == ROUND_NEAREST)
		return nearest_normal(e);
	V code = right(b, rebased(e), lost_bits(e));
	if (e->round == ROUND_TOWARD_ZERO)
		return code;
	return add(b, code, select(b, normal_grows(e), integer(b, code, 1), integer(b, code, 0)));
}

/* The rounded code, before overflow is handled. */
static V
rounded_code(const Encoder *e)
{
	B *b = e->b;
	int least = e->f->only_normal ? -e->f->bias : 1 - e->f->bias;
	int exponent = e->w->bias +
	               least; /* exponent of the least normal number, in the wide type */
	V code = normal_code(e), one = integer(b, code, 1), zero = integer(b, code, 0);

	if (e->f->only_normal)
		code = add(b, code, one);
	/* the format's least normal number is a subnormal number of the wide type */
	if (exponent < 1 && e->f->only_normal)
		exponent = 1;
	if (exponent > 1 || e->f->only_normal) {
		V bound = integer(b, code, (uint64_t)exponent << e->w->mantissa);
		V is_small = lt(b, e->magnitude, bound);
		code = select(b, is_small, subnormal_code(e, is_small), code);
	}
	if (e->f->only_normal)
		code = sub(b, code, select(b, gt(b, code, zero), one, zero));
	return code;
}

/* Handles finite values that are too large, and infinity. */
static V
bounded_code(const Encoder *e, Overflow overflow, V code, V infinity)
{
	B *b = e->b;
	const FloatFormat *f = e->f;
	OverflowCodes over = float_overflow(f, overflow);
	bool is_natural = f->bias == e->w->bias && over.finite == f->largest + 1;

	if (is_natural && e->round != ROUND_TOWARD_ZERO)
		/* rounding already gave infinity of the wide type; its code is one above the
		 * code of the largest number */
		return code;
	if (e->round == ROUND_TOWARD_ZERO)
		over.finite = f->largest;
	code = select(b, gt(b, code, integer(b, code, f->largest)), integer(b, code, over.finite),
	              code);
	if (over.infinite != over.finite)
		code = select(b, eq(b, e->magnitude, infinity), integer(b, code, over.infinite),
		              code);
	return code;
}

static V
encode(B *b, const FloatFormat *f, Conversion how, V value, V random)
{
	const Wide *w = lb_type(b, value) == F64 ? &wide_f64 : &wide_f32;
	V u = bits(b, w->bits, value), zero = integer(b, u, 0);
	V magnitude = and(b, u, integer(b, u, ~UINT64_C(0) >> (65 - w->width)));
	V infinity = integer(b, u, (uint64_t)(2 * w->bias + 1) << w->mantissa);
	Encoder e = {b, f, w, how.round, magnitude, bits(b, lb_type(b, value), magnitude), random};
	V code = bounded_code(&e, how.overflow, rounded_code(&e), infinity);
	V is_nan_now = gt(b, magnitude, infinity);

	if (f->sign) {
		V sign = and(b, right(b, u, w->width - f->bits), integer(b, u, f->sign));
		if (f->unsigned_zero)
			sign = select(b, eq(b, code, zero), zero, sign);
		code = or (b, code, sign);
	} else {
		V is_negative = lt(b, value, number(b, value, 0));
		is_nan_now = or (b, is_nan_now, is_negative);
	}
	code = select(b, is_nan_now, integer(b, u, f->nan), code);
	return lb_cast(b, U32, code);
}

/* ---- integers that are rounded to small floats */

/* Integers beyond 2^53 do not fit into f64. Their last bits become one sticky bit: 1 if any of the last bits was
 * 1. */
static V
wide_integer(B *b, V x)
{
	enum { LOST = 12 };
	uint64_t low = (1u << LOST) - 1;
	V zero = integer(b, x, 0), high = right(b, x, 53);
	V is_large = ne(b, high, zero);

	if (lb_type(b, x) == S64)
		is_large = and(b, is_large, ne(b, high, integer(b, x, ~UINT64_C(0))));
	V some = ne(b, and(b, x, integer(b, x, low)), zero);
	V sticky = or (b, and(b, x, integer(b, x, ~low)), integer(b, x, 1u << (LOST - 1)));
	return lb_cast(b, F64, select(b, and(b, is_large, some), sticky, x));
}

static V
as_float(B *b, V x)
{
	switch (lb_type(b, x)) {
	case S64:
	case U64: return wide_integer(b, x);
	case S32:
	case U32: return lb_cast(b, F64, x);
	case BOOL: return select(b, x, lb_float(b, F32, 1), lb_float(b, F32, 0));
	default: return x;
	}
}

/* ---- rows */
V
build_load_format(B *b, const FunctionRow *row, const V *x)
{
	return decode(b, float_format(row->storage), x[0]);
}

V
build_store_format(B *b, const FunctionRow *row, const V *x)
{
	return encode(b, float_format(row->storage), (Conversion){0}, x[0], -1);
}

V
build_cast_format(B *b, const FunctionRow *row, const V *x)
{
	const FloatFormat *f = float_format(row->storage);

	return decode(b, f, encode(b, f, row->how, as_float(b, x[0]), x[1]));
}

static V
low_bits(B *b, DType storage, V word)
{
	int width = dtype_info[storage].bits;

	if (dtype_info[storage].class == CLASS_UNSIGNED)
		return and(b, word, integer(b, word, (1u << width) - 1));
	V placed = left(b, bits(b, S32, word), 32 - width);
	return right(b, placed, 32 - width);
}

V
build_load_packed(B *b, const FunctionRow *row, const V *x)
{
	return low_bits(b, row->storage, x[0]);
}

/* Stores an integer; a number that does not fit wraps. */
V
build_wrap_packed(B *b, const FunctionRow *row, const V *x)
{
	bool is_signed = dtype_info[lb_type(b, x[0])].class == CLASS_SIGNED;
	V word = lb_cast(b, is_signed ? S32 : U32, x[0]);

	return low_bits(b, row->storage, is_signed ? bits(b, U32, word) : word);
}

/* ---- the bits of a number as another type: as unsigned numbers of 32 or 64 bits */
static V
bits_of(B *b, DType from, V x)
{
	int width = dtype_info[from].bits;

	if (from == F64)
		return bits(b, U64, x);
	if (dtype_is_float(from))
		x = lb_cast(b, F32, x);
	if (float_format(from))
		return encode(b, float_format(from), (Conversion){0}, x, -1);
	if (from == F32 || from == S32)
		return bits(b, U32, x);
	if (from == S64)
		return bits(b, U64, x);
	if (from == BOOL)
		return select(b, x, lb_int(b, U32, 1), lb_int(b, U32, 0));
	if (dtype_info[from].class == CLASS_UNSIGNED)
		return x;
	return and(b, bits(b, U32, x), lb_int(b, U32, (INT64_C(1) << width) - 1));
}

static V
read_bits(B *b, DType to, V word)
{
	if (float_format(to))
		return decode(b, float_format(to), word);
	if (to == BOOL)
		return ne(b, word, integer(b, word, 0));
	if (dtype_info[to].bits < 32)
		return low_bits(b, to, word);
	return compute_type(to) == lb_type(b, word) ? word : bits(b, to, word);
}

V
lb_bitcast(LoopBuilder *b, DType from, DType to, LoopValue x)
{
	return read_bits(b, to, bits_of(b, from, x));
}
