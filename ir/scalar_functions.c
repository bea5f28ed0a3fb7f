/* The scalar functions of kernels: loop IR of what machines have instructions for, one implementation
 * each. Interpreter and printers expand them, in vectors and in scalars, so all give the same bits.
 * There are no branches: what must not happen is computed of a safe operand and not selected. Errors
 * in ulp are listed in docs/loop-ir.md. */
#include "ir/loop.h"

#include <math.h>
#include <string.h>

typedef LoopBuilder B;
typedef LoopValue V;
typedef struct FunctionRow FunctionRow;
struct FunctionRow {
	const char *name;
	int n_params;
	DType params[2], type;
	V (*build)(B *b, const FunctionRow *row, const V *x);
	LoopOp op; /* the op it stands for, where that helps */
};

/* ---- shorthand */
/* clang-format off */
#define BINARY(name, op) static V name(B *b, V x, V y) { return lb_binary(b, LOOP_##op, x, y); }
BINARY(add, add) BINARY(sub, sub) BINARY(mul, mul) BINARY(divide, div) BINARY(quotient, quotient)
BINARY(and, and) BINARY(or, or) BINARY(shl, shl) BINARY(shr, shr)
#define COMPARE(name) static V name(B *b, V x, V y) { return lb_compare(b, LOOP_##name, x, y); }
COMPARE(eq) COMPARE(ne) COMPARE(lt) COMPARE(le) COMPARE(gt) COMPARE(ge)
#define UNARY(name, op) static V name(B *b, V x) { return lb_unary(b, LOOP_##op, x); }
UNARY(neg, neg) UNARY(absolute, abs) UNARY(lower, floor) UNARY(not, not)
	/* clang-format on */

	static V select(B *b, V c, V x, V y)
{
	return lb_select(b, c, x, y);
}

static V
fma3(B *b, V x, V y, V z)
{
	return lb_op(b, LOOP_fma, lb_type(b, x), (V[]){x, y, z});
}

static V
bits(B *b, DType type, V x)
{
	return lb_op(b, LOOP_bits, type, &x);
}

static V
truncate_to(B *b, DType type, V x)
{
	return lb_op(b, LOOP_truncate, type, &x);
}

/* A number of x's type. */
static V
number(B *b, V x, double value)
{
	return lb_number(b, lb_type(b, x), value);
}

static V
integer(B *b, V x, uint64_t value)
{
	return lb_int(b, lb_type(b, x), (int64_t)value);
}

static V
is_nan(B *b, V x)
{
	return ne(b, x, x);
}

/* p = c[0]; p = p z + c[i] */
static V
horner(B *b, V z, const double *c, int n)
{
	V p = number(b, z, c[0]);

	for (int i = 1; i < n; i++)
		p = fma3(b, p, z, number(b, z, c[i]));
	return p;
}

static V
clamp(B *b, V x, double low, double high)
{
	V l = number(b, x, low), h = number(b, x, high);

	return select(b, lt(b, x, l), l, select(b, gt(b, x, h), h, x));
}

/* |x| with the sign of y */
static V
copysign_of(B *b, V x, V y)
{
	bool wide = lb_type(b, x) == F64;
	DType u = wide ? U64 : U32;
	V sign = lb_int(b, u, wide ? INT64_MIN : 0x80000000ll);
	V rest = lb_int(b, u, wide ? INT64_MAX : 0x7fffffffll);

	return bits(b, lb_type(b, x),
	            or (b, and(b, bits(b, u, x), rest), and(b, bits(b, u, y), sign)));
}

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

/* ---- integers: division never traps; by zero gives 0, the one overflow wraps */
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

/* The remainder has the dividend's sign; of a division by zero it is 0. */
static V
build_rem(B *b, const FunctionRow *row, const V *x)
{
	V zero = number(b, x[0], 0);
	V r = sub(b, x[0], mul(b, divide(b, x[0], x[1]), x[1]));

	return select(b, eq(b, x[1], zero), zero, r);
}

/* By squaring, a round for each bit of the exponent. A negative one gives 0 but for 1 and -1. */
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

/* ---- exp: x = n ln 2 + r, |r| <= ln 2 / 2, by a two-part ln 2; Taylor series of e^r; 2^n in two
 * factors so that subnormal results come out. n + 1.5 2^52 carries n in its low bits. */
typedef struct {
	double low, high; /* beyond: 0 and infinity */
	double per_ln2, shift, ln2_high, ln2_low;
	double series[14];
	int n_series, mantissa, bias;
} ExpPlan;
static const ExpPlan exp_f64 = {
	-746.0,
	710.0,
	0x1.71547652b82fep+0,
	0x1.8p52,
	0x1.62e42feep-1,
	0x1.a39ef35793c76p-33,
	{0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29, 0x1.ae64567f544e4p-26, 0x1.27e4fb7789f5cp-22,
         0x1.71de3a556c734p-19, 0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10,
         0x1.1111111111111p-7, 0x1.5555555555555p-5, 0x1.5555555555555p-3, 0.5, 1.0, 1.0},
	14,
	52,
	1023};
static const ExpPlan exp_f32 = {-104.0,
                                89.0,
                                0x1.715476p+0,
                                0x1.8p23,
                                0x1.62e4p-1,
                                0x1.7f7d1cp-20,
                                {0x1.a01a02p-13, 0x1.6c16c2p-10, 0x1.111112p-7, 0x1.555556p-5,
                                 0x1.555556p-3, 0.5, 1.0, 1.0},
                                8,
                                23,
                                127};

/* 2^n of a shifted n */
static V
power_of_two(B *b, const ExpPlan *plan, DType type, V shifted)
{
	V u = bits(b, type == F64 ? U64 : U32, shifted);

	u = shl(b, add(b, u, integer(b, u, (uint64_t)plan->bias)),
	        integer(b, u, (uint64_t)plan->mantissa));
	return bits(b, type, u);
}

static V
build_exp(B *b, const FunctionRow *row, const V *x)
{
	const ExpPlan *plan = row->type == F64 ? &exp_f64 : &exp_f32;
	V shift = number(b, x[0], plan->shift), c = clamp(b, x[0], plan->low, plan->high);
	V n = sub(b, add(b, mul(b, c, number(b, c, plan->per_ln2)), shift), shift);
	V r = fma3(b, neg(b, n), number(b, n, plan->ln2_high), c);

	r = fma3(b, neg(b, n), number(b, n, plan->ln2_low), r);
	V p = horner(b, r, plan->series, plan->n_series);
	V half_shifted = add(b, mul(b, n, number(b, n, 0.5)), shift);
	V rest = add(b, sub(b, n, sub(b, half_shifted, shift)), shift);
	V e = mul(b, mul(b, p, power_of_two(b, plan, row->type, half_shifted)),
	          power_of_two(b, plan, row->type, rest));
	return select(b, is_nan(b, x[0]), x[0], e);
}

/* expm1: its own series near 0, where exp(x) - 1 cancels */
static V
build_expm1_f64(B *b, const FunctionRow *row, const V *x)
{
	static const double series[] = {0x1.ae7f3e733b81fp-41, 0x1.93974a8c07c9dp-37,
	                                0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29,
	                                0x1.ae64567f544e4p-26, 0x1.27e4fb7789f5cp-22,
	                                0x1.71de3a556c734p-19, 0x1.a01a01a01a01ap-16,
	                                0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10,
	                                0x1.1111111111111p-7,  0x1.5555555555555p-5,
	                                0x1.5555555555555p-3,  0.5};
	V small = fma3(b, mul(b, x[0], x[0]), horner(b, x[0], series, COUNT(series)), x[0]);
	V large = sub(b, lb_unary(b, LOOP_exp, x[0]), number(b, x[0], 1));

	return select(b, lt(b, absolute(b, x[0]), number(b, x[0], 0.5)), small, large);
}

/* log: x = 2^e m, m in [sqrt(1/2), sqrt 2); log m = 2 atanh(s), s = (m - 1)/(m + 1);
 * log m = f - (f^2/2 - s (f^2/2 + z p)), as fdlibm arranges it */
static V
build_log_f64(B *b, const FunctionRow *row, const V *x)
{
	static const double series[] = {
		0x1.642c8590b2164p-4, 0x1.8618618618618p-4, 0x1.af286bca1af28p-4,
		0x1.e1e1e1e1e1e1ep-4, 0x1.1111111111111p-3, 0x1.3b13b13b13b14p-3,
		0x1.745d1745d1746p-3, 0x1.c71c71c71c71cp-3, 0x1.2492492492492p-2,
		0x1.999999999999ap-2, 0x1.5555555555555p-1};
	V zero = number(b, x[0], 0), one = number(b, x[0], 1), infinity = number(b, x[0], INFINITY);
	V tiny = lt(b, x[0], number(b, x[0], 0x1p-1022));
	V y = select(b, tiny, mul(b, x[0], number(b, x[0], 0x1p54)), x[0]);
	V root = lb_int(b, U64, 0x3fe6a09e667f3bcdll), u = sub(b, bits(b, U64, y), root);
	V e = lb_cast(b, F64, shr(b, bits(b, S64, u), lb_int(b, S64, 52)));
	V m = bits(b, F64, add(b, and(b, u, lb_int(b, U64, 0xfffffffffffffll)), root));

	e = sub(b, e, select(b, tiny, number(b, x[0], 54), zero));
	V f = sub(b, m, one), s = divide(b, f, add(b, number(b, f, 2), f)), z = mul(b, s, s);
	V p = horner(b, z, series, COUNT(series));
	V h = mul(b, mul(b, number(b, f, 0.5), f), f);
	V low = fma3(b, s, add(b, h, mul(b, z, p)), mul(b, e, number(b, e, 0x1.a39ef35793c76p-33)));
	V r = fma3(b, e, number(b, e, 0x1.62e42feep-1), sub(b, f, sub(b, h, low)));
	r = select(b, lt(b, x[0], zero), number(b, x[0], NAN), r);
	r = select(b, eq(b, x[0], zero), number(b, x[0], -INFINITY), r);
	return select(b, or (b, eq(b, x[0], infinity), is_nan(b, x[0])), x[0], r);
}

/* log1p: log u with u = 1 + x rounded, corrected for what the rounding lost (Kahan) */
static V
build_log1p_f64(B *b, const FunctionRow *row, const V *x)
{
	V zero = number(b, x[0], 0), one = number(b, x[0], 1), u = add(b, one, x[0]);
	V lost = sub(b, x[0], sub(b, u, one));
	V normal = and(b, gt(b, u, zero), lt(b, u, number(b, u, INFINITY)));
	V r = add(b, lb_unary(b, LOOP_log, u), select(b, normal, divide(b, lost, u), zero));

	return select(b, lt(b, absolute(b, x[0]), number(b, x[0], 0x1p-54)), x[0], r);
}

/* tanh = t / (t + 2), t = e^2|x| - 1 */
static V
build_tanh_f64(B *b, const FunctionRow *row, const V *x)
{
	V a = absolute(b, x[0]), limit = number(b, a, 22), two = number(b, a, 2);
	V t = lb_unary(b, LOOP_expm1, mul(b, two, select(b, gt(b, a, limit), limit, a)));

	return copysign_of(b, divide(b, t, add(b, t, two)), x[0]);
}

/* erf: x P(x^2) below 1; 1 - exp(-x^2) Q(t) above, t = 2/(2 + x). P and Q are Chebyshev fits made with
 * 40 digits (errors 2e-21 and 3e-21). exp(-x^2) with the square's low half added back. */
static V
build_erf_f64(B *b, const FunctionRow *row, const V *x)
{
	static const double near[] = {
		-0x1.29b9f1b3df556p-38, 0x1.7f072188e194dp-34,  -0x1.4e607b41a6416p-30,
		0x1.fc4356498c2d9p-27,  -0x1.5f6d925a0bc7ap-23, 0x1.b9e6509b9867dp-20,
		-0x1.f4d2561aeafd4p-17, 0x1.f9a326c233146p-14,  -0x1.c02db3feeb579p-11,
		0x1.565bcd0e6502dp-8,   -0x1.b82ce312889bap-6,  0x1.ce2f21a042bdep-4,
		-0x1.812746b0379e7p-2,  0x1.20dd750429b6dp+0};
	static const double far[] = {
		-0x1.972123e71fec4p-47, 0x1.6047ff95d9850p-46,  0x1.b8f62fff3b970p-43,
		-0x1.1f1efe5e0be5fp-40, -0x1.08275a84268d9p-42, 0x1.87f9a755f8791p-36,
		-0x1.434cb49304534p-34, -0x1.2795f2dff86e0p-32, 0x1.68a1dfe70bbc7p-29,
		-0x1.438cc4900b92ap-31, -0x1.2ce04532dcc8cp-24, 0x1.5f1cb831e80c6p-23,
		0x1.09b139d77ace0p-19,  -0x1.ec9d234b0730ep-18, -0x1.52ddf8014442fp-14,
		0x1.9d6e4a46754aap-13,  0x1.6e44c72762ecdp-8,   0x1.3be3609c853acp-5,
		0x1.4b8edae15a041p-3,   0x1.c57cd9cd3f3a9p-3};
	V one = number(b, x[0], 1), two = number(b, x[0], 2), six = number(b, x[0], 6);
	V a = absolute(b, x[0]), p = horner(b, mul(b, a, a), near, COUNT(near));
	V c = select(b, gt(b, a, six), six, a), t = divide(b, two, add(b, two, c));
	V u = mul(b, sub(b, t, number(b, t, 11.0 / 24)), number(b, t, 4.8));
	V q = horner(b, u, far, COUNT(far));
	V w = mul(b, c, c), e = lb_unary(b, LOOP_exp, neg(b, w));

	e = fma3(b, neg(b, e), fma3(b, c, c, neg(b, w)), e);
	V r = select(b, lt(b, a, one), mul(b, a, p), sub(b, one, mul(b, e, q)));
	return select(b, is_nan(b, x[0]), x[0], copysign_of(b, r, x[0]));
}

/* sin and cos: x = n pi/2 + r by a three-part pi/2, good for |x| < 2^30; Taylor series on
 * [-pi/4, pi/4]; the quadrant picks series and sign. */
static V
build_trig_f64(B *b, const FunctionRow *row, const V *x)
{
	static const double sines[] = {0x1.952c77030ad4ap-49, -0x1.ae7f3e733b81fp-41,
	                               0x1.6124613a86d09p-33, -0x1.ae64567f544e4p-26,
	                               0x1.71de3a556c734p-19, -0x1.a01a01a01a01ap-13,
	                               0x1.1111111111111p-7,  -0x1.5555555555555p-3};
	static const double cosines[] = {0x1.ae7f3e733b81fp-45,
	                                 -0x1.93974a8c07c9dp-37,
	                                 0x1.1eed8eff8d898p-29,
	                                 -0x1.27e4fb7789f5cp-22,
	                                 0x1.a01a01a01a01ap-16,
	                                 -0x1.6c16c16c16c17p-10,
	                                 0x1.5555555555555p-5,
	                                 -0.5,
	                                 1.0};
	static const double parts[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54,
	                               -0x1.f1976b7ed8fbcp-110};
	V shift = number(b, x[0], 0x1.8p52), r = x[0];
	V shifted = add(b, mul(b, x[0], number(b, r, 0x1.45f306dc9c883p-1)), shift);
	V n = sub(b, shifted, shift), k = bits(b, U64, shifted);

	if (row->op == LOOP_cos)
		k = add(b, k, lb_int(b, U64, 1));
	for (int i = 0; i < COUNT(parts); i++)
		r = fma3(b, neg(b, n), number(b, n, parts[i]), r);
	V z = mul(b, r, r), s = horner(b, z, sines, COUNT(sines));
	s = fma3(b, mul(b, s, z), r, r);
	V c = horner(b, z, cosines, COUNT(cosines)), zero = lb_int(b, U64, 0);
	V v = select(b, ne(b, and(b, k, lb_int(b, U64, 1)), zero), c, s);
	return select(b, ne(b, and(b, k, lb_int(b, U64, 2)), zero), neg(b, v), v);
}

/* x^y = e^(y log|x|), the sign from odd y; C's special cases */
static V
build_pow_f64(B *b, const FunctionRow *row, const V *x)
{
	V zero = number(b, x[0], 0), one = number(b, x[0], 1), a = absolute(b, x[0]), y = x[1];
	V r = lb_unary(b, LOOP_exp, mul(b, y, lb_unary(b, LOOP_log, a)));
	V half = mul(b, y, number(b, y, 0.5)), is_whole = eq(b, lower(b, y), y);
	V odd = and(b, is_whole, ne(b, lower(b, half), half)), below = lt(b, x[0], zero);

	r = select(b, eq(b, a, zero), select(b, lt(b, y, zero), number(b, y, INFINITY), zero), r);
	r = select(b, and(b, below, not(b, is_whole)), number(b, y, NAN), r);
	r = select(b, and(b, odd, below), neg(b, r), r);
	r = select(b, or (b, is_nan(b, x[0]), is_nan(b, y)), add(b, x[0], y), r);
	return select(b, or (b, eq(b, y, zero), eq(b, x[0], one)), one, r);
}

/* x - y trunc(x / y), the quotient corrected where it was rounded across an integer */
static V
build_rem_f64(B *b, const FunctionRow *row, const V *x)
{
	V zero = number(b, x[0], 0), q = divide(b, x[0], x[1]);
	V t = select(b, lt(b, q, zero), lb_unary(b, LOOP_ceil, q), lower(b, q));
	V r = fma3(b, neg(b, t), x[1], x[0]), a = absolute(b, x[1]), below = lt(b, x[0], zero);
	V crossed = and(b, ne(b, r, zero), ne(b, lt(b, r, zero), below));

	r = select(b, crossed, select(b, below, sub(b, r, a), add(b, r, a)), r);
	return select(b, ge(b, absolute(b, r), a),
	              select(b, lt(b, r, zero), add(b, r, a), sub(b, r, a)), r);
}

/* In f32 most go through f64: at most 0.501 ulp. */
static V
build_by_f64(B *b, const FunctionRow *row, const V *x)
{
	V wide[2];

	for (int i = 0; i < row->n_params; i++)
		wide[i] = lb_cast(b, F64, x[i]);
	return lb_cast(b, F32, lb_op(b, row->op, F64, wide));
}

/* ---- conversions. Of floats to integers as the IR's cast: truncates and saturates, NaN gives 0. */
static V
build_to_integer(B *b, const FunctionRow *row, const V *x)
{
	int width = dtype_info[row->params[1]].bits;
	bool is_signed = dtype_info[row->params[1]].class == CLASS_SIGNED;
	uint64_t most = ~0ull >> (64 - width + is_signed);
	int64_t least = is_signed ? -(int64_t)most - 1 : 0;
	V low = number(b, x[0], (double)least), high = number(b, x[0], (double)most);
	V below = le(b, x[0], low), above = ge(b, x[0], high), none = is_nan(b, x[0]);
	V safe = select(b, or (b, none, or (b, below, above)), number(b, x[0], 0), x[0]);
	V r = truncate_to(b, row->type, safe);

	r = select(b, above, lb_int(b, row->type, (int64_t)most), r);
	return select(b, below, lb_int(b, row->type, least), r);
}

/* f16 and bf16 are storage only: widened on load, rounded to nearest even on store. */
static V
build_load_bf16(B *b, const FunctionRow *row, const V *x)
{
	return bits(b, F32, shl(b, x[0], integer(b, x[0], 16)));
}

static V
build_store_bf16(B *b, const FunctionRow *row, const V *x)
{
	V u = bits(b, U32, x[0]), low = and(b, shr(b, u, integer(b, u, 16)), integer(b, u, 1));
	V rounded = add(b, add(b, u, integer(b, u, 0x7fff)), low);

	return select(b, is_nan(b, x[0]), integer(b, u, 0x7fc0),
	              shr(b, rounded, integer(b, u, 16)));
}

static V
build_load_f16(B *b, const FunctionRow *row, const V *x)
{
	V sign = shl(b, and(b, x[0], integer(b, x[0], 0x8000)), integer(b, x[0], 16));
	V rest = and(b, x[0], integer(b, x[0], 0x7fff));
	V wide = shl(b, rest, integer(b, x[0], 13));
	V scaled = mul(b, bits(b, F32, wide), lb_float(b, F32, 0x1p112));
	V special = add(b, wide, integer(b, x[0], 0x70000000));

	return bits(b, F32, or (b, sign,
	                        select(b, ge(b, rest, integer(b, x[0], 0x7c00)), special,
	                               bits(b, U32, scaled))));
}

static V
build_store_f16(B *b, const FunctionRow *row, const V *x)
{
	V u = bits(b, U32, x[0]), thirteen = integer(b, u, 13);
	V sign = and(b, shr(b, u, integer(b, u, 16)), integer(b, u, 0x8000));
	V a = and(b, u, integer(b, u, 0x7fffffff));
	V odd = and(b, shr(b, a, thirteen), integer(b, u, 1));
	V normal = add(b, sub(b, a, integer(b, u, 0x38000000)), add(b, integer(b, u, 0xfff), odd));
	V shifted = add(b, bits(b, F32, a), lb_float(b, F32, 0.5));
	V small = sub(b, bits(b, U32, shifted), integer(b, u, 0x3f000000));
	V r = select(b, ge(b, a, integer(b, u, 0x477ff000)), integer(b, u, 0x7c00),
	             shr(b, normal, thirteen));

	r = select(b, lt(b, a, integer(b, u, 0x38800000)), small, r);
	r = select(b, gt(b, a, integer(b, u, 0x7f800000)), integer(b, u, 0x7e00), r);
	return or (b, sign, r);
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
/* A float to integer storage: the second parameter's type, which is not passed, is the storage. */
#define CUT(from, storage, text, to) {from##_NAME "_to_" text, 1, {from, storage}, to, build_to_integer}
#define CUTS(from) CUT(from, S64, "s64", S64), CUT(from, S32, "s32", S32),                       \
	CUT(from, S16, "s16", S32), CUT(from, S8, "s8", S32), CUT(from, U64, "u64", U64),        \
	CUT(from, U32, "u32", U32), CUT(from, U16, "u16", U32), CUT(from, U8, "u8", U32)

static const FunctionRow rows[] = {
	ALL_FLOATS(ONE, exp, build_exp),
	ONE(expm1, F64, build_expm1_f64), ONE(expm1, F32, build_by_f64),
	ONE(log, F64, build_log_f64), ONE(log, F32, build_by_f64),
	ONE(log1p, F64, build_log1p_f64), ONE(log1p, F32, build_by_f64),
	ONE(tanh, F64, build_tanh_f64), ONE(tanh, F32, build_by_f64),
	ONE(erf, F64, build_erf_f64), ONE(erf, F32, build_by_f64),
	ONE(sin, F64, build_trig_f64), ONE(sin, F32, build_by_f64),
	ONE(cos, F64, build_trig_f64), ONE(cos, F32, build_by_f64),
	TWO(pow, F64, build_pow_f64), TWO(pow, F32, build_by_f64),
	TWO(rem, F64, build_rem_f64), TWO(rem, F32, build_by_f64),
	ALL_INTEGERS(TWO, pow, build_pow_integer), ALL_INTEGERS(TWO, rem, build_rem),
	ALL_INTEGERS(TWO, div, build_div), ALL_INTEGERS(ONE, abs, build_abs),
	ALL_FLOATS(TWO, max, build_max), ALL_INTEGERS(TWO, max, build_max),
	ALL_FLOATS(TWO, min, build_max), ALL_INTEGERS(TWO, min, build_max),
	TRUTH(is_nan, F64), TRUTH(is_nan, F32), TRUTH(is_finite, F64), TRUTH(is_finite, F32),
	CUTS(F64), CUTS(F32),
	{"load_bf16", 1, {U32}, F32, build_load_bf16}, {"store_bf16", 1, {F32}, U32, build_store_bf16},
	{"load_f16", 1, {U32}, F32, build_load_f16}, {"store_f16", 1, {F32}, U32, build_store_f16},
};
/* clang-format on */

struct ScalarFunctions {
	Module *m;
	Arena *arena;
	ScalarFunction made[COUNT(rows)];
};

ScalarFunctions *
scalar_functions_new(Arena *arena)
{
	ScalarFunctions *fs = NEW(arena, ScalarFunctions);

	fs->arena = arena;
	return fs;
}

static void
make(ScalarFunctions *fs, const FunctionRow *row, ScalarFunction *f)
{
	Kernel *k = kernel_new(fs->arena, row->name, NULL);
	LoopBuilder *lb = loop_builder(k, NULL, fs->arena);
	V x[2];

	for (int i = 0; i < row->n_params; i++)
		x[i] = lb_param(lb, row->params[i]);
	f->result = row->build(lb, row, x);
	kernel_finish(k);
	f->name = row->name;
	f->n_params = row->n_params;
	memcpy(f->params, row->params, sizeof(f->params));
	f->type = row->type;
	f->body = k;
}

const ScalarFunction *
scalar_function(ScalarFunctions *fs, const char *name)
{
	for (int i = 0; i < COUNT(rows); i++) {
		if (strcmp(rows[i].name, name) != 0)
			continue;
		if (!fs->made[i].body)
			make(fs, &rows[i], &fs->made[i]);
		return &fs->made[i];
	}
	return NULL;
}

const ScalarFunction *
scalar_function_of(ScalarFunctions *fs, const LoopStatement *s, DType operand)
{
	char name[32];

	if (s->kind == LOOP_STATEMENT_OP)
		snprintf(name, sizeof(name), "%s_%s", loop_ops[s->op].name,
		         dtype_info[operand].name);
	else
		snprintf(name, sizeof(name), "%s_to_%s", dtype_info[operand].name,
		         dtype_info[s->i].name);
	return scalar_function(fs, name);
}
