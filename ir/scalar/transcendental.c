/* Builds transcendental functions (exp, log, sin, tanh, erf, pow ...) and the remainder as
 * operations of loop IR. There are no branches: an operation that is not safe for an operand
 * gets a safe operand instead, and a select then drops its result. docs/accuracy.md lists the
 * errors. */
#include "ir/scalar/scalar.h"

#include <math.h>

/* ---- exp
 *	x = n ln 2 + r,  |r| <= ln 2 / 2
 *	e^x = 2^n e^r
 * ln 2 is a sum of two numbers, e^r a Taylor series, and 2^n a product of two factors, so that
 * subnormal results come out. To round to n, 1.5 * 2^52 is added; the sum has n in its low bits.
 * If the result is 0, as for numbers that a softmax masks, x is replaced by 0 first: on some
 * machines a product that underflows takes a hundred cycles. */
typedef struct {
	double low, high; /* below low the result is 0, above high infinity */
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

/* 2^n, from n + shift */
static V
power_of_two(B *b, const ExpPlan *plan, DType type, V shifted)
{
	V u = bits(b, type == F64 ? U64 : U32, shifted);

	u = shl(b, add(b, u, integer(b, u, (uint64_t)plan->bias)),
	        integer(b, u, (uint64_t)plan->mantissa));
	return bits(b, type, u);
}

V
build_exp(B *b, const FunctionRow *row, const V *x)
{
	const ExpPlan *plan = row->type == F64 ? &exp_f64 : &exp_f32;
	V shift = number(b, x[0], plan->shift), high = number(b, x[0], plan->high);
	V none = number(b, x[0], 0), below = lt(b, x[0], number(b, x[0], plan->low));
	V c = select(b, below, none, select(b, gt(b, x[0], high), high, x[0]));
	V n = sub(b, add(b, mul(b, c, number(b, c, plan->per_ln2)), shift), shift);
	V r = fma3(b, neg(b, n), number(b, n, plan->ln2_high), c);

	r = fma3(b, neg(b, n), number(b, n, plan->ln2_low), r);
	V p = horner(b, r, plan->series, plan->n_series);
	V half_shifted = add(b, mul(b, n, number(b, n, 0.5)), shift);
	V rest = add(b, sub(b, n, sub(b, half_shifted, shift)), shift);
	V e = mul(b, mul(b, p, power_of_two(b, plan, row->type, half_shifted)),
	          power_of_two(b, plan, row->type, rest));
	return select(b, is_nan(b, x[0]), x[0], select(b, below, none, e));
}

/* expm1: near 0, exp(x) - 1 would lose digits. There it is x + x^2 P(x), where P is a Taylor
 * series in f64, and in f32 the minimax polynomial on [-1/2, 1/2] (error 3e-9). */
V
build_expm1(B *b, const FunctionRow *row, const V *x)
{
	static const double f64[] = {0x1.ae7f3e733b81fp-41, 0x1.93974a8c07c9dp-37,
	                             0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29,
	                             0x1.ae64567f544e4p-26, 0x1.27e4fb7789f5cp-22,
	                             0x1.71de3a556c734p-19, 0x1.a01a01a01a01ap-16,
	                             0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10,
	                             0x1.1111111111111p-7,  0x1.5555555555555p-5,
	                             0x1.5555555555555p-3,  0.5};
	static const double f32[] = {0x1.a34996p-13, 0x1.6eef46p-10, 0x1.110ee0p-7,
	                             0x1.555280p-5,  0x1.555558p-3,  0.5};
	V p = row->type == F64 ? horner(b, x[0], f64, COUNT(f64))
	                       : horner(b, x[0], f32, COUNT(f32));
	V small = fma3(b, mul(b, x[0], x[0]), p, x[0]);
	V large = sub(b, lb_unary(b, LOOP_exp, x[0]), number(b, x[0], 1));

	return select(b, lt(b, absolute(b, x[0]), number(b, x[0], 0.5)), small, large);
}

/* For log: splits x = 2^e m, with root <= m < 2 * root. A subnormal x is multiplied by `scale`
 * first. */
typedef struct {
	double least, scale,
		scale_bits; /* the least normal number; the factor for smaller numbers; its exponent */
	int64_t root;       /* bits of the root */
	int mantissa;
} FloatPlan;
static const FloatPlan float_f64 = {0x1p-1022, 0x1p54, 54, 0x3fe6a09e667f3bcdll, 52};
static const FloatPlan float_f32 = {0x1p-126, 0x1p24, 24, 0x3f2aaaabll, 23};

static V
split_exponent(B *b, DType type, V x, V *e)
{
	const FloatPlan *plan = type == F64 ? &float_f64 : &float_f32;
	DType u_type = type == F64 ? U64 : U32, s_type = type == F64 ? S64 : S32;
	V tiny = lt(b, x, number(b, x, plan->least)), zero = number(b, x, 0);
	V y = select(b, tiny, mul(b, x, number(b, x, plan->scale)), x);
	V root = lb_int(b, u_type, plan->root), u = sub(b, bits(b, u_type, y), root);
	V fraction = integer(b, u, (1ull << plan->mantissa) - 1);

	*e = lb_cast(b, type, shr(b, bits(b, s_type, u), lb_int(b, s_type, plan->mantissa)));
	*e = sub(b, *e, select(b, tiny, number(b, x, plan->scale_bits), zero));
	return bits(b, type, add(b, and(b, u, fraction), root));
}

/* The logarithm of 0, of negative numbers, of infinity and of NaN. */
static V
log_specials(B *b, V x, V r)
{
	V zero = number(b, x, 0), infinity = number(b, x, INFINITY);

	r = select(b, lt(b, x, zero), number(b, x, NAN), r);
	r = select(b, eq(b, x, zero), number(b, x, -INFINITY), r);
	return select(b, or (b, eq(b, x, infinity), is_nan(b, x)), x, r);
}

/* log in f64, in fdlibm's arrangement. With m in [sqrt(1/2), sqrt 2), f = m - 1, s = f / (m + 1),
 * z = s^2:
 *	x = 2^e m
 *	log m = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + z p))
 * where p is a polynomial in z. */
V
build_log_f64(B *b, const FunctionRow *row, const V *x)
{
	static const double series[] = {
		0x1.642c8590b2164p-4, 0x1.8618618618618p-4, 0x1.af286bca1af28p-4,
		0x1.e1e1e1e1e1e1ep-4, 0x1.1111111111111p-3, 0x1.3b13b13b13b14p-3,
		0x1.745d1745d1746p-3, 0x1.c71c71c71c71cp-3, 0x1.2492492492492p-2,
		0x1.999999999999ap-2, 0x1.5555555555555p-1};
	V e, m = split_exponent(b, F64, x[0], &e), f = sub(b, m, number(b, m, 1));
	V s = divide(b, f, add(b, number(b, f, 2), f)), z = mul(b, s, s);
	V p = horner(b, z, series, COUNT(series));
	V h = mul(b, mul(b, number(b, f, 0.5), f), f);
	V low = fma3(b, s, add(b, h, mul(b, z, p)), mul(b, e, number(b, e, 0x1.a39ef35793c76p-33)));

	return log_specials(b, x[0],
	                    fma3(b, e, number(b, e, 0x1.62e42feep-1), sub(b, f, sub(b, h, low))));
}

/* log in f32. With m in [2/3, 4/3) and f = m - 1:
 *	log m = f - f^2/2 + f^3 P(f)
 * where P is a minimax polynomial (error 9e-10). */
V
build_log_f32(B *b, const FunctionRow *row, const V *x)
{
	static const double series[] = {0x1.fa2e48p-4,  -0x1.071be2p-3, 0x1.b4b0c0p-4,
	                                -0x1.f384d6p-4, 0x1.25207cp-3,  -0x1.55993ap-3,
	                                0x1.9995f6p-3,  -0x1.ffff0ep-3, 0x1.555558p-2};
	V e, m = split_exponent(b, F32, x[0], &e), f = sub(b, m, number(b, m, 1));
	V z = mul(b, f, f), p = horner(b, f, series, COUNT(series));
	V low = fma3(b, z, fma3(b, f, p, number(b, f, -0.5)),
	             mul(b, e, number(b, e, -0x1.05c610p-29)));

	return log_specials(b, x[0], fma3(b, e, number(b, e, 0x1.62e430p-1), add(b, f, low)));
}

/* log1p: log u with u = 1 + x rounded, corrected for the rounding error of u (Kahan) */
V
build_log1p(B *b, const FunctionRow *row, const V *x)
{
	V zero = number(b, x[0], 0), one = number(b, x[0], 1), u = add(b, one, x[0]);
	V lost = sub(b, x[0], sub(b, u, one));
	V normal = and(b, gt(b, u, zero), lt(b, u, number(b, u, INFINITY)));
	V r = add(b, lb_unary(b, LOOP_log, u), select(b, normal, divide(b, lost, u), zero));
	V least = number(b, x[0], row->type == F64 ? 0x1p-54 : 0x1p-25);

	return select(b, lt(b, absolute(b, x[0]), least), x[0], r);
}

/* tanh = t / (t + 2), t = e^2|x| - 1 */
V
build_tanh_f64(B *b, const FunctionRow *row, const V *x)
{
	V a = absolute(b, x[0]), limit = number(b, a, 22), two = number(b, a, 2);
	V t = lb_unary(b, LOOP_expm1, mul(b, two, select(b, gt(b, a, limit), limit, a)));

	return copysign_of(b, divide(b, t, add(b, t, two)), x[0]);
}

/* tanh: x + x^3 P(x^2) below 0.55, P minimax (1e-9); 1 - 2 / (e^2x + 1) above */
V
build_tanh_f32(B *b, const FunctionRow *row, const V *x)
{
	LoopOp exp = row->op == LOOP_tanh_fast ? LOOP_exp_fast : LOOP_exp;
	static const double near[] = {-0x1.9bba6ap-8, 0x1.595686p-6, -0x1.b92bbap-5, 0x1.110d3cp-3,
	                              -0x1.55554cp-2};
	V a = absolute(b, x[0]), z = mul(b, a, a), one = number(b, a, 1), two = number(b, a, 2);
	V small = fma3(b, mul(b, a, z), horner(b, z, near, COUNT(near)), a);
	V e = lb_unary(b, exp, mul(b, two, a));
	V large = sub(b, one, divide(b, two, add(b, e, one)));

	return copysign_of(b, select(b, lt(b, a, number(b, a, 0.55)), small, large), x[0]);
}

/* erf for x >= 0:
 *	x < 1     x + x P(x^2)
 *	else      1 - exp(-x^2) Q(t),  t = 2/(2 + x)
 * In f64, P and Q are Chebyshev fits that were computed with 40 digits (errors 2e-21 and 3e-21);
 * in f32, minimax polynomials (errors 1e-9 and 2e-10). exp(-x^2) is corrected by the low half of
 * the square. */
typedef struct {
	double one_from; /* for x from this number on, erf(x) is 1 */
	int n_near, n_far;
	double near[14], far[20];
} ErfPlan;
static const ErfPlan erf_f64 = {
	6,
	14,
	20,
	{-0x1.29b9f1b3df556p-38, 0x1.7f072188e194dp-34, -0x1.4e607b41a6416p-30,
         0x1.fc4356498c2d9p-27, -0x1.5f6d925a0bc7ap-23, 0x1.b9e6509b9867dp-20,
         -0x1.f4d2561aeafd4p-17, 0x1.f9a326c233146p-14, -0x1.c02db3feeb579p-11,
         0x1.565bcd0e6502dp-8, -0x1.b82ce312889bap-6, 0x1.ce2f21a042bdep-4, -0x1.812746b0379e7p-2,
         0x1.06eba8214db69p-3},
	{-0x1.972123e71fec4p-47, 0x1.6047ff95d9850p-46,  0x1.b8f62fff3b970p-43,
         -0x1.1f1efe5e0be5fp-40, -0x1.08275a84268d9p-42, 0x1.87f9a755f8791p-36,
         -0x1.434cb49304534p-34, -0x1.2795f2dff86e0p-32, 0x1.68a1dfe70bbc7p-29,
         -0x1.438cc4900b92ap-31, -0x1.2ce04532dcc8cp-24, 0x1.5f1cb831e80c6p-23,
         0x1.09b139d77ace0p-19,  -0x1.ec9d234b0730ep-18, -0x1.52ddf8014442fp-14,
         0x1.9d6e4a46754aap-13,  0x1.6e44c72762ecdp-8,   0x1.3be3609c853acp-5,
         0x1.4b8edae15a041p-3,   0x1.c57cd9cd3f3a9p-3}};
static const ErfPlan erf_f32 = {4,
                                7,
                                9,
                                {0x1.496a32p-14, -0x1.a3f700p-11, 0x1.5405b2p-8, -0x1.b7f90ep-6,
                                 0x1.ce2cf8p-4, -0x1.81273ep-2, 0x1.06eba8p-3},
                                {0x1.592832p-23, 0x1.eb7286p-20, -0x1.ec68d2p-18, -0x1.52689cp-14,
                                 0x1.9d6d98p-13, 0x1.6e4446p-8, 0x1.3be360p-5, 0x1.4b8edcp-3,
                                 0x1.c57cdap-3}};

V
build_erf(B *b, const FunctionRow *row, const V *x)
{
	const ErfPlan *plan = row->type == F64 ? &erf_f64 : &erf_f32;
	V one = number(b, x[0], 1), two = number(b, x[0], 2);
	V limit = number(b, x[0], plan->one_from), a = absolute(b, x[0]);
	V p = horner(b, mul(b, a, a), plan->near, plan->n_near);
	V c = select(b, gt(b, a, limit), limit, a), t = divide(b, two, add(b, two, c));
	V u = mul(b, sub(b, t, number(b, t, 11.0 / 24)), number(b, t, 4.8));
	V q = horner(b, u, plan->far, plan->n_far);
	V w = mul(b, c, c), e = lb_unary(b, LOOP_exp, neg(b, w));

	e = fma3(b, neg(b, e), fma3(b, c, c, neg(b, w)), e);
	V r = select(b, lt(b, a, one), fma3(b, a, p, a), sub(b, one, mul(b, e, q)));
	return select(b, is_nan(b, x[0]), x[0], copysign_of(b, r, x[0]));
}

/* ---- sin and cos: x = k pi/2 + r, |r| <= pi/4; Taylor series of r. The quadrant k selects series and sign. */
typedef struct {
	V k, r; /* k: u64, right modulo 4 */
} Quadrant;

/* For |x| < 2^30: subtracts multiples of pi/2 in three parts. */
static Quadrant
quadrant_of_small(B *b, V x)
{
	static const double parts[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54,
	                               -0x1.f1976b7ed8fbcp-110};
	V shift = number(b, x, 0x1.8p52), r = x;
	V shifted = add(b, mul(b, x, number(b, r, 0x1.45f306dc9c883p-1)), shift);
	V n = sub(b, shifted, shift);

	for (int i = 0; i < COUNT(parts); i++)
		r = fma3(b, neg(b, n), number(b, n, parts[i]), r);
	return (Quadrant){bits(b, U64, shifted), r};
}

/* The upper 64 bits of x y. */
static V
high_product(B *b, V x, V y)
{
	V low = integer(b, x, 0xffffffff), by = integer(b, x, 32);
	V x0 = and(b, x, low), x1 = shr(b, x, by), y0 = and(b, y, low), y1 = shr(b, y, by);
	V middle = add(b, mul(b, x0, y1), shr(b, mul(b, x0, y0), by));
	V other = add(b, mul(b, x1, y0), and(b, middle, low));

	return add(b, mul(b, x1, y1), add(b, shr(b, middle, by), shr(b, other, by)));
}

/* The bits of 2/pi, after 64 zeros. */
static const uint64_t two_over_pi[] = {
	0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041,
	0xfe5163abdebbc561, 0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e,
	0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b,
	0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
	0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab};

/* For |x| >= 2^30, by Payne and Hanek: |x| = m 2^e with m of 53 bits. Only the fraction of m 2^(e-2) 2/pi counts; its
 * first two bits are k. So only the 192 bits of 2/pi from bit e - 2 on are multiplied, modulo 1. Infinity gives NaN. */
static Quadrant
quadrant_of_large(B *b, V x)
{
	enum { LEAST = 30 + 1023, FIRST = 52 + 1023 + 2 - 64 };
	V u = bits(b, U64, absolute(b, x)), exponent = shr(b, u, integer(b, u, 52));
	V least = integer(b, u, LEAST), one = integer(b, u, 1), w[4], g[3];

	exponent = select(b, lt(b, exponent, least), least, exponent);
	V m = or (b, and(b, u, integer(b, u, (1ull << 52) - 1)), integer(b, u, 1ull << 52));
	V at = sub(b, exponent, integer(b, u, FIRST));
	V word = shr(b, at, integer(b, u, 6)), by = and(b, at, integer(b, u, 63));
	for (int k = 0; k < 4; k++) {
		w[k] = integer(b, u, two_over_pi[k]);
		for (int i = 1; i <= (1023 + 1023 - FIRST) / 64; i++)
			w[k] = select(b, ge(b, word, integer(b, u, (uint64_t)i)),
			              integer(b, u, two_over_pi[i + k]), w[k]);
	}
	for (int k = 0; k < 3; k++)
		g[k] = or (b, shl(b, w[k], by),
		           shr(b, shr(b, w[k + 1], one), sub(b, integer(b, u, 63), by)));
	V product = mul(b, m, g[1]), low = add(b, product, high_product(b, m, g[2]));
	V high = add(b, mul(b, m, g[0]), high_product(b, m, g[1]));
	high = add(b, high, select(b, lt(b, low, product), one, integer(b, u, 0)));
	V k = shr(b, add(b, high, integer(b, u, 1ull << 61)), integer(b, u, 62));
	high = sub(b, high, shl(b, k, integer(b, u, 62)));
	V rest = lb_cast(b, F64, bits(b, S64, shr(b, low, one)));
	V d = fma3(b, rest, number(b, x, 0x1p-63), lb_cast(b, F64, bits(b, S64, high)));
	V r = fma3(b, d, number(b, x, 0x1.921fb54442d18p-62),
	           mul(b, d, number(b, x, 0x1.1a62633145c07p-116)));
	V below = lt(b, x, number(b, x, 0));

	k = select(b, below, sub(b, integer(b, u, 0), k), k);
	return (Quadrant){k, add(b, select(b, below, neg(b, r), r), sub(b, x, x))};
}

/* The reduction of large |x| for f32, computed in f64: |x| = m 2^e with m of 24 bits. 2/pi is cut
 * into words of 24 bits, so that the product of m with a word is exact. The first words are
 * skipped, because their products are multiples of 4, which do not matter: the first word used
 * has bit e - 2. x is divided by the power of two that the skipped words stand for. Five words
 * leave an error of less than 2^-70. */
static Quadrant
quadrant_of_large_f32(B *b, V x)
{
	enum { WORDS = 5, SKIPPED = 4 };
	static const double words[WORDS + SKIPPED] = {0xa2f983, 0x6e4e44, 0x1529fc,
	                                              0x2757d1, 0xf534dd, 0xc0db62,
	                                              0x95993c, 0x439041, 0xfe5163};
	V size = absolute(b, x), scaled = x, w[WORDS], p[WORDS];

	for (int i = 0; i < WORDS; i++)
		w[i] = number(b, x, ldexp(words[i], -24 * (i + 1)));
	for (int s = 1; s <= SKIPPED; s++) {
		V skips = ge(b, size, number(b, x, ldexp(1, 24 * s + 25)));
		scaled = select(b, skips, mul(b, x, number(b, x, ldexp(1, -24 * s))), scaled);
		for (int i = 0; i < WORDS; i++)
			w[i] = select(b, skips, number(b, x, ldexp(words[i + s], -24 * (i + 1))),
			              w[i]);
	}
	V fours = number(b, x, 0x1.8p54), shift = number(b, x, 0x1.8p52);
	for (int i = 0; i < WORDS; i++)
		p[i] = mul(b, scaled, w[i]);
	for (int i = 0; i < 2; i++) /* keeps these products modulo 4 */
		p[i] = sub(b, p[i], sub(b, add(b, p[i], fours), fours));
	V head = add(b, p[0], p[1]), shifted = add(b, add(b, head, p[2]), shift);
	V rest = add(b, sub(b, head, sub(b, shifted, shift)), p[2]);
	rest = add(b, rest, add(b, p[3], p[4]));
	return (Quadrant){bits(b, U64, shifted), mul(b, rest, number(b, x, 0x1.921fb54442d18p+0))};
}

static V
trig(B *b, LoopOp op, V x, Quadrant far)
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
	V large = ge(b, absolute(b, x), number(b, x, 0x1p30));
	Quadrant near = quadrant_of_small(b, select(b, large, number(b, x, 0), x));
	V k = select(b, large, far.k, near.k), r = select(b, large, far.r, near.r);

	if (op == LOOP_cos)
		k = add(b, k, lb_int(b, U64, 1));
	V z = mul(b, r, r), s = horner(b, z, sines, COUNT(sines));
	s = fma3(b, mul(b, s, z), r, r);
	V c = horner(b, z, cosines, COUNT(cosines)), zero = lb_int(b, U64, 0);
	V v = select(b, ne(b, and(b, k, lb_int(b, U64, 1)), zero), c, s);
	return select(b, ne(b, and(b, k, lb_int(b, U64, 2)), zero), neg(b, v), v);
}

V
build_trig_f64(B *b, const FunctionRow *row, const V *x)
{
	return trig(b, row->op, x[0], quadrant_of_large(b, x[0]));
}

V
build_trig_f32(B *b, const FunctionRow *row, const V *x)
{
	V wide = lb_cast(b, F64, x[0]);

	return lb_cast(b, F32, trig(b, row->op, wide, quadrant_of_large_f32(b, wide)));
}

/* x^y = e^(y log|x|); an odd y gives x's sign; special cases as in C */
V
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

/* x - y trunc(x / y), corrected if x / y was rounded across an integer. The quotient may have up
 * to `exponents` bits, more than fit into a number. So 50 bits are taken at a time: x is replaced
 * by its remainder modulo 2^(50k) y, for k from the largest to 0. Each of these remainders is
 * exact. */
static V
remainder_of(B *b, V x, V y, int exponents)
{
	V zero = number(b, x, 0), below = lt(b, x, zero), a = absolute(b, y), r = x;
	V none = number(b, x, INFINITY);

	for (int k = exponents / 50; k >= 0; k--) {
		V by = a;
		for (int left = 50 * k; left > 0; left -= 1000)
			by = mul(b, by, number(b, x, ldexp(1, left < 1000 ? left : 1000)));
		V q = divide(b, r, by);
		V t = select(b, below, lb_unary(b, LOOP_ceil, q), lower(b, q));
		V next = fma3(b, neg(b, t), by, r);
		V crossed = and(b, ne(b, next, zero), ne(b, lt(b, next, zero), below));
		next = select(b, crossed, select(b, below, sub(b, next, by), add(b, next, by)),
		              next);
		r = select(b, eq(b, by, none), r, next);
	}
	return add(b, r, mul(b, zero, x)); /* infinity gives NaN */
}

V
build_rem_f64(B *b, const FunctionRow *row, const V *x)
{
	return remainder_of(b, x[0], x[1], 1024 + 1074);
}

V
build_rem_f32(B *b, const FunctionRow *row, const V *x)
{
	return lb_cast(b, F32,
	               remainder_of(b, lb_cast(b, F64, x[0]), lb_cast(b, F64, x[1]), 128 + 149));
}

/* Rarely used functions in f32 are computed in f64: at most 0.501 ulp. */
V
build_by_f64(B *b, const FunctionRow *row, const V *x)
{
	V wide[2];

	for (int i = 0; i < row->n_params; i++)
		wide[i] = lb_cast(b, F64, x[i]);
	return lb_cast(b, F32, lb_op(b, row->op, F64, wide));
}
