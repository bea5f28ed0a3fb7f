/* The scalar functions of kernels, one implementation each. This text is compiled into the loop-IR
 * interpreter and stands at the head of every generated C file, so both give the same bits; it is
 * compiled with -ffp-contract=off and calls nothing but builtins that are single instructions.
 * Branches are written as selects so that loops over these functions vectorize. Errors in ulp are
 * listed in docs/loop-ir.md. */
#ifndef GRADC_SCALAR_MATH_H
#define GRADC_SCALAR_MATH_H

#include <stdint.h>
#include <string.h>

/* clang-format off */
#define SCALAR static inline __attribute__((always_inline, unused))

SCALAR double gradc_bits_f64(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }
SCALAR uint64_t gradc_f64_bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
SCALAR float gradc_bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
SCALAR uint32_t gradc_f32_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }

#define FLOAT_FUNCTIONS(T, S, B)                                                                 \
	SCALAR T gradc_abs_##S(T x) { return __builtin_fabs##B(x); }                             \
	SCALAR T gradc_sqrt_##S(T x) { return __builtin_sqrt##B(x); }                            \
	SCALAR T gradc_floor_##S(T x) { return __builtin_floor##B(x); }                          \
	SCALAR T gradc_ceil_##S(T x) { return __builtin_ceil##B(x); }                            \
	SCALAR T gradc_round_##S(T x) { return __builtin_rint##B(x); }                           \
	SCALAR T gradc_fma_##S(T x, T y, T z) { return __builtin_fma##B(x, y, z); }              \
	SCALAR _Bool gradc_is_nan_##S(T x) { return x != x; }                                    \
	SCALAR _Bool gradc_is_finite_##S(T x) { return x - x == 0; }                             \
	SCALAR T gradc_max_##S(T x, T y) { return x > y || x != x ? x : y; }                     \
	SCALAR T gradc_min_##S(T x, T y) { return x < y || x != x ? x : y; }
FLOAT_FUNCTIONS(float, f32, f)
FLOAT_FUNCTIONS(double, f64, )

#define INTEGER_FUNCTIONS(T, S)                                                                  \
	SCALAR T gradc_max_##S(T x, T y) { return x > y ? x : y; }                               \
	SCALAR T gradc_min_##S(T x, T y) { return x < y ? x : y; }
INTEGER_FUNCTIONS(int32_t, s32)
INTEGER_FUNCTIONS(int64_t, s64)
INTEGER_FUNCTIONS(uint32_t, u32)
INTEGER_FUNCTIONS(uint64_t, u64)

/* Division never traps: by zero gives 0, the one overflow wraps. */
#define SIGNED_DIVISION(T, U, S)                                                                 \
	SCALAR T gradc_abs_##S(T x) { return x < 0 ? (T)(0 - (U)x) : x; }                        \
	SCALAR T gradc_div_##S(T x, T y)                                                         \
	{ return y == 0 ? 0 : y == -1 ? (T)(0 - (U)x) : x / y; }                                 \
	SCALAR T gradc_rem_##S(T x, T y) { return y == 0 || y == -1 ? 0 : x % y; }
#define UNSIGNED_DIVISION(T, S)                                                                  \
	SCALAR T gradc_abs_##S(T x) { return x; }                                                \
	SCALAR T gradc_div_##S(T x, T y) { return y == 0 ? 0 : x / y; }                          \
	SCALAR T gradc_rem_##S(T x, T y) { return y == 0 ? 0 : x % y; }
SIGNED_DIVISION(int32_t, uint32_t, s32)
SIGNED_DIVISION(int64_t, uint64_t, s64)
UNSIGNED_DIVISION(uint32_t, u32)
UNSIGNED_DIVISION(uint64_t, u64)
#define INTEGER_POWER(T, U, S, NEGATIVE)                                                         \
	SCALAR T gradc_pow_##S(T x, T y)                                                         \
	{                                                                                        \
		U r = 1, b = (U)x;                                                               \
		if (NEGATIVE)                                                                    \
			return x == 1 ? 1 : x == (T)-1 ? (y & 1 ? (T)-1 : 1) : 0;                \
		for (U e = (U)y; e; e >>= 1, b *= b)                                             \
			if (e & 1)                                                               \
				r *= b;                                                          \
		return (T)r;                                                                     \
	}
INTEGER_POWER(int32_t, uint32_t, s32, y < 0)
INTEGER_POWER(int64_t, uint64_t, s64, y < 0)
INTEGER_POWER(uint32_t, uint32_t, u32, 0)
INTEGER_POWER(uint64_t, uint64_t, u64, 0)

/* exp: x = n ln 2 + r, |r| <= ln 2 / 2, by a two-part ln 2; Taylor series of e^r to r^13; 2^n in two
 * factors so that subnormal results come out. n + 1.5 2^52 carries n in its low bits. */
SCALAR double
gradc_exp_f64(double x)
{
	double c = x < -746.0 ? -746.0 : x > 710.0 ? 710.0 : x;
	double shifted = c * 0x1.71547652b82fep+0 + 0x1.8p52, n = shifted - 0x1.8p52;
	double r = __builtin_fma(-n, 0x1.62e42feep-1, c);
	double p = 0x1.6124613a86d09p-33; /* 1/13! */

	r = __builtin_fma(-n, 0x1.a39ef35793c76p-33, r);
	p = __builtin_fma(p, r, 0x1.1eed8eff8d898p-29);
	p = __builtin_fma(p, r, 0x1.ae64567f544e4p-26);
	p = __builtin_fma(p, r, 0x1.27e4fb7789f5cp-22);
	p = __builtin_fma(p, r, 0x1.71de3a556c734p-19);
	p = __builtin_fma(p, r, 0x1.a01a01a01a01ap-16);
	p = __builtin_fma(p, r, 0x1.a01a01a01a01ap-13);
	p = __builtin_fma(p, r, 0x1.6c16c16c16c17p-10);
	p = __builtin_fma(p, r, 0x1.1111111111111p-7);
	p = __builtin_fma(p, r, 0x1.5555555555555p-5);
	p = __builtin_fma(p, r, 0x1.5555555555555p-3);
	p = __builtin_fma(p, r, 0.5);
	p = __builtin_fma(p, r, 1.0);
	p = __builtin_fma(p, r, 1.0);
	double half_shifted = n * 0.5 + 0x1.8p52, half = half_shifted - 0x1.8p52;
	double rest = (n - half) + 0x1.8p52;
	double a = gradc_bits_f64((gradc_f64_bits(half_shifted) + 1023) << 52);
	double b = gradc_bits_f64((gradc_f64_bits(rest) + 1023) << 52);
	return x != x ? x : p * a * b;
}

SCALAR float
gradc_exp_f32(float x)
{
	float c = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
	float shifted = c * 0x1.715476p+0f + 0x1.8p23f, n = shifted - 0x1.8p23f;
	float r = __builtin_fmaf(-n, 0x1.62e4p-1f, c);
	float p = 0x1.a01a02p-13f; /* 1/7! */

	r = __builtin_fmaf(-n, 0x1.7f7d1cp-20f, r);
	p = __builtin_fmaf(p, r, 0x1.6c16c2p-10f);
	p = __builtin_fmaf(p, r, 0x1.111112p-7f);
	p = __builtin_fmaf(p, r, 0x1.555556p-5f);
	p = __builtin_fmaf(p, r, 0x1.555556p-3f);
	p = __builtin_fmaf(p, r, 0.5f);
	p = __builtin_fmaf(p, r, 1.0f);
	p = __builtin_fmaf(p, r, 1.0f);
	float half_shifted = n * 0.5f + 0x1.8p23f, half = half_shifted - 0x1.8p23f;
	float rest = (n - half) + 0x1.8p23f;
	float a = gradc_bits_f32((gradc_f32_bits(half_shifted) + 127) << 23);
	float b = gradc_bits_f32((gradc_f32_bits(rest) + 127) << 23);
	return x != x ? x : p * a * b;
}

/* expm1: its own series near 0, where exp(x) - 1 cancels */
SCALAR double
gradc_expm1_f64(double x)
{
	double p = 0x1.ae7f3e733b81fp-41; /* 1/15! */

	p = __builtin_fma(p, x, 0x1.93974a8c07c9dp-37);
	p = __builtin_fma(p, x, 0x1.6124613a86d09p-33);
	p = __builtin_fma(p, x, 0x1.1eed8eff8d898p-29);
	p = __builtin_fma(p, x, 0x1.ae64567f544e4p-26);
	p = __builtin_fma(p, x, 0x1.27e4fb7789f5cp-22);
	p = __builtin_fma(p, x, 0x1.71de3a556c734p-19);
	p = __builtin_fma(p, x, 0x1.a01a01a01a01ap-16);
	p = __builtin_fma(p, x, 0x1.a01a01a01a01ap-13);
	p = __builtin_fma(p, x, 0x1.6c16c16c16c17p-10);
	p = __builtin_fma(p, x, 0x1.1111111111111p-7);
	p = __builtin_fma(p, x, 0x1.5555555555555p-5);
	p = __builtin_fma(p, x, 0x1.5555555555555p-3);
	p = __builtin_fma(p, x, 0.5);
	double small = __builtin_fma(x * x, p, x), large = gradc_exp_f64(x) - 1;
	return __builtin_fabs(x) < 0.5 ? small : large;
}

/* log: x = 2^e m, m in [sqrt(1/2), sqrt 2); log m = 2 atanh(s), s = (m - 1)/(m + 1) */
SCALAR double
gradc_log_f64(double x)
{
	_Bool tiny = x < 0x1p-1022;
	double y = tiny ? x * 0x1p54 : x;
	uint64_t u = gradc_f64_bits(y) - 0x3fe6a09e667f3bcdull;
	double e = (double)(int32_t)((int64_t)u >> 52) - (tiny ? 54 : 0);
	double m = gradc_bits_f64((u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
	double f = m - 1, s = f / (2 + f), z = s * s, p = 0x1.642c8590b2164p-4; /* 2/23 */

	p = __builtin_fma(p, z, 0x1.8618618618618p-4);
	p = __builtin_fma(p, z, 0x1.af286bca1af28p-4);
	p = __builtin_fma(p, z, 0x1.e1e1e1e1e1e1ep-4);
	p = __builtin_fma(p, z, 0x1.1111111111111p-3);
	p = __builtin_fma(p, z, 0x1.3b13b13b13b14p-3);
	p = __builtin_fma(p, z, 0x1.745d1745d1746p-3);
	p = __builtin_fma(p, z, 0x1.c71c71c71c71cp-3);
	p = __builtin_fma(p, z, 0x1.2492492492492p-2);
	p = __builtin_fma(p, z, 0x1.999999999999ap-2);
	p = __builtin_fma(p, z, 0x1.5555555555555p-1);
	/* log m = f - (f^2/2 - s (f^2/2 + z p)), as fdlibm arranges it */
	double h = 0.5 * f * f;
	double low = __builtin_fma(s, h + z * p, e * 0x1.a39ef35793c76p-33);
	double r = __builtin_fma(e, 0x1.62e42feep-1, f - (h - low));
	r = x == 0 ? -__builtin_inf() : x < 0 ? __builtin_nan("") : r;
	return x == __builtin_inf() || x != x ? x : r;
}

/* log1p: log u with u = 1 + x rounded, corrected for what the rounding lost (Kahan) */
SCALAR double
gradc_log1p_f64(double x)
{
	double u = 1 + x, lost = x - (u - 1);
	double r = gradc_log_f64(u) + (u > 0 && u < __builtin_inf() ? lost / u : 0);

	return __builtin_fabs(x) < 0x1p-54 ? x : r;
}

/* tanh = t / (t + 2), t = e^2|x| - 1 */
SCALAR double
gradc_tanh_f64(double x)
{
	double a = __builtin_fabs(x), c = a > 22 ? 22 : a;
	double t = gradc_expm1_f64(2 * c), r = t / (t + 2);

	return __builtin_copysign(r, x);
}

/* erf: x P(x^2) below 1; 1 - exp(-x^2) Q(t) above, t = 2/(2 + x). P and Q are Chebyshev fits made with
 * 40 digits (errors 2e-21 and 3e-21). exp(-x^2) with the square's low half added back. */
SCALAR double
gradc_erf_f64(double x)
{
	double a = __builtin_fabs(x), z = a * a;
	double p = -0x1.29b9f1b3df556p-38;
	p = __builtin_fma(p, z, 0x1.7f072188e194dp-34);
	p = __builtin_fma(p, z, -0x1.4e607b41a6416p-30);
	p = __builtin_fma(p, z, 0x1.fc4356498c2d9p-27);
	p = __builtin_fma(p, z, -0x1.5f6d925a0bc7ap-23);
	p = __builtin_fma(p, z, 0x1.b9e6509b9867dp-20);
	p = __builtin_fma(p, z, -0x1.f4d2561aeafd4p-17);
	p = __builtin_fma(p, z, 0x1.f9a326c233146p-14);
	p = __builtin_fma(p, z, -0x1.c02db3feeb579p-11);
	p = __builtin_fma(p, z, 0x1.565bcd0e6502dp-8);
	p = __builtin_fma(p, z, -0x1.b82ce312889bap-6);
	p = __builtin_fma(p, z, 0x1.ce2f21a042bdep-4);
	p = __builtin_fma(p, z, -0x1.812746b0379e7p-2);
	p = __builtin_fma(p, z, 0x1.20dd750429b6dp+0);
	double c = a > 6 ? 6 : a, t = 2 / (2 + c), u = (t - 11.0 / 24) * 4.8;
	double q = -0x1.972123e71fec4p-47;
	q = __builtin_fma(q, u, 0x1.6047ff95d9850p-46);
	q = __builtin_fma(q, u, 0x1.b8f62fff3b970p-43);
	q = __builtin_fma(q, u, -0x1.1f1efe5e0be5fp-40);
	q = __builtin_fma(q, u, -0x1.08275a84268d9p-42);
	q = __builtin_fma(q, u, 0x1.87f9a755f8791p-36);
	q = __builtin_fma(q, u, -0x1.434cb49304534p-34);
	q = __builtin_fma(q, u, -0x1.2795f2dff86e0p-32);
	q = __builtin_fma(q, u, 0x1.68a1dfe70bbc7p-29);
	q = __builtin_fma(q, u, -0x1.438cc4900b92ap-31);
	q = __builtin_fma(q, u, -0x1.2ce04532dcc8cp-24);
	q = __builtin_fma(q, u, 0x1.5f1cb831e80c6p-23);
	q = __builtin_fma(q, u, 0x1.09b139d77ace0p-19);
	q = __builtin_fma(q, u, -0x1.ec9d234b0730ep-18);
	q = __builtin_fma(q, u, -0x1.52ddf8014442fp-14);
	q = __builtin_fma(q, u, 0x1.9d6e4a46754aap-13);
	q = __builtin_fma(q, u, 0x1.6e44c72762ecdp-8);
	q = __builtin_fma(q, u, 0x1.3be3609c853acp-5);
	q = __builtin_fma(q, u, 0x1.4b8edae15a041p-3);
	q = __builtin_fma(q, u, 0x1.c57cd9cd3f3a9p-3);
	double w = c * c, e = gradc_exp_f64(-w);
	e = __builtin_fma(-e, __builtin_fma(c, c, -w), e);
	double r = a < 1 ? a * p : 1 - e * q;
	return x != x ? x : __builtin_copysign(r, x);
}

/* sin and cos: x = n pi/2 + r by a three-part pi/2, good for |x| < 2^30; Taylor series on
 * [-pi/4, pi/4]; the quadrant picks series and sign. */
SCALAR double
gradc_trig_f64(double x, uint64_t quadrant)
{
	double shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = shifted - 0x1.8p52;
	double r = __builtin_fma(-n, 0x1.921fb54442d18p+0, x);
	uint64_t k = gradc_f64_bits(shifted) + quadrant;

	r = __builtin_fma(-n, 0x1.1a62633145c07p-54, r);
	r = __builtin_fma(-n, -0x1.f1976b7ed8fbcp-110, r);
	double z = r * r, s = 0x1.952c77030ad4ap-49; /* 1/17! */
	s = __builtin_fma(s, z, -0x1.ae7f3e733b81fp-41);
	s = __builtin_fma(s, z, 0x1.6124613a86d09p-33);
	s = __builtin_fma(s, z, -0x1.ae64567f544e4p-26);
	s = __builtin_fma(s, z, 0x1.71de3a556c734p-19);
	s = __builtin_fma(s, z, -0x1.a01a01a01a01ap-13);
	s = __builtin_fma(s, z, 0x1.1111111111111p-7);
	s = __builtin_fma(s, z, -0x1.5555555555555p-3);
	s = __builtin_fma(s * z, r, r);
	double c = 0x1.ae7f3e733b81fp-45; /* 1/16! */
	c = __builtin_fma(c, z, -0x1.93974a8c07c9dp-37);
	c = __builtin_fma(c, z, 0x1.1eed8eff8d898p-29);
	c = __builtin_fma(c, z, -0x1.27e4fb7789f5cp-22);
	c = __builtin_fma(c, z, 0x1.a01a01a01a01ap-16);
	c = __builtin_fma(c, z, -0x1.6c16c16c16c17p-10);
	c = __builtin_fma(c, z, 0x1.5555555555555p-5);
	c = __builtin_fma(c, z, -0.5);
	c = __builtin_fma(c, z, 1.0);
	double v = k & 1 ? c : s;
	return k & 2 ? -v : v;
}
SCALAR double gradc_sin_f64(double x) { return gradc_trig_f64(x, 0); }
SCALAR double gradc_cos_f64(double x) { return gradc_trig_f64(x, 1); }

/* x^y = e^(y log|x|), the sign from odd y; C's special cases */
SCALAR double
gradc_pow_f64(double x, double y)
{
	double a = __builtin_fabs(x), r = gradc_exp_f64(y * gradc_log_f64(a));
	double whole = __builtin_floor(y), half = y * 0.5;
	_Bool is_whole = whole == y, odd = is_whole && __builtin_floor(half) != half;

	r = a == 0 ? (y < 0 ? __builtin_inf() : 0) : r;
	r = x < 0 && !is_whole ? __builtin_nan("") : r;
	r = odd && x < 0 ? -r : r;
	return y == 0 || x == 1 ? 1 : x != x || y != y ? x + y : r;
}
SCALAR double gradc_rem_f64(double x, double y)
{
	double q = x / y, t = q < 0 ? __builtin_ceil(q) : __builtin_floor(q);
	double r = __builtin_fma(-t, y, x), a = __builtin_fabs(y);

	/* the quotient may have been rounded across an integer */
	r = r != 0 && (r < 0) != (x < 0) ? (x < 0 ? r - a : r + a) : r;
	return __builtin_fabs(r) >= a ? (r < 0 ? r + a : r - a) : r;
}

/* In f32 all but exp go through f64: at most 0.501 ulp. */
#define BY_F64(name)                                                                             \
	SCALAR float gradc_##name##_f32(float x) { return (float)gradc_##name##_f64((double)x); }
BY_F64(expm1) BY_F64(log) BY_F64(log1p) BY_F64(tanh) BY_F64(erf) BY_F64(sin) BY_F64(cos)
SCALAR float gradc_pow_f32(float x, float y) { return (float)gradc_pow_f64(x, y); }
SCALAR float gradc_rem_f32(float x, float y) { return (float)gradc_rem_f64(x, y); }

/* Conversions as IR's cast: to integers truncates and saturates, NaN gives 0. */
#define FROM_FLOAT(T, S, LOW, HIGH, F, FS)                                                       \
	SCALAR T gradc_##FS##_to_##S(F x)                                                        \
	{ return x != x ? 0 : x <= (F)(LOW) ? (LOW) : x >= (F)(HIGH) ? (HIGH) : (T)x; }
FROM_FLOAT(int32_t, s32, INT32_MIN, INT32_MAX, double, f64)
FROM_FLOAT(int64_t, s64, INT64_MIN, INT64_MAX, double, f64)
FROM_FLOAT(uint32_t, u32, 0, UINT32_MAX, double, f64)
FROM_FLOAT(uint64_t, u64, 0, UINT64_MAX, double, f64)
FROM_FLOAT(int32_t, s32, INT32_MIN, INT32_MAX, float, f32)
FROM_FLOAT(int64_t, s64, INT64_MIN, INT64_MAX, float, f32)
FROM_FLOAT(uint32_t, u32, 0, UINT32_MAX, float, f32)
FROM_FLOAT(uint64_t, u64, 0, UINT64_MAX, float, f32)

/* f16 and bf16 are storage only: widened on load, rounded to nearest even on store. */
SCALAR float gradc_load_bf16(uint16_t x) { return gradc_bits_f32((uint32_t)x << 16); }
SCALAR uint16_t gradc_store_bf16(float x)
{
	uint32_t u = gradc_f32_bits(x);

	return x != x ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
SCALAR float gradc_load_f16(uint16_t x)
{
	uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;
	float scaled = gradc_bits_f32(rest << 13) * 0x1p112f;
	uint32_t special = (rest << 13) + 0x70000000u;

	return gradc_bits_f32(sign | (rest >= 0x7c00 ? special : gradc_f32_bits(scaled)));
}
SCALAR uint16_t gradc_store_f16(float x)
{
	uint32_t u = gradc_f32_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
	uint32_t normal = (a - 0x38000000u + 0xfff + (a >> 13 & 1)) >> 13;
	uint32_t small = gradc_f32_bits(gradc_bits_f32(a) + 0.5f) - 0x3f000000u;
	uint32_t r = a < 0x38800000u ? small : a >= 0x477ff000u ? 0x7c00u : normal;

	return (uint16_t)(sign | (a > 0x7f800000u ? 0x7e00u : r));
}

#endif
