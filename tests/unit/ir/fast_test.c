/* What is computed from exp_fast, rounded to 16 bits, is the nearest number or its neighbour (ADR 41), whatever the GPU's
 * instruction does within its bound. The instruction is a model: 2^(x log2 e) times 1 + bound or 1 - bound, where log2 e and the
 * product are rounded to f32, and subnormal results are 0. */
#include "base/numbers/numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static double off; /* relative error of the instruction */

static float
exp_fast(float x)
{
	float scaled = x * 0x1.715476p+0f;
	double y = exp2((double)scaled) * (1 + off);

	return fabs(y) < 0x1p-126 ? 0 : (float)y;
}

/* As tanh of loop IR, with this exp. */
static float
tanh_fast(float x)
{
	float a = fabsf(x);

	if (a < 0.55f)
		return tanhf(x);
	return copysignf(1 - 2 / (exp_fast(2 * a) + 1), x);
}

static float
sigmoid_fast(float x)
{
	return 1 / (1 + exp_fast(-x));
}

static float
gelu_fast(float x)
{
	float u = x * (0.7978845608f + 0.0356774081f * (x * x));

	return 0.5f * x * (2 / (1 + exp_fast(-2 * u)));
}

static double
f_exp(double x)
{
	return exp(x);
}
static double
f_tanh(double x)
{
	return tanh(x);
}
static double
f_sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}
static double
f_gelu(double x)
{
	return x / (1 + exp(-2 * 0.79788456080286535588 * x * (1 + 0.044715 * x * x)));
}

/* The distance between x and the next number of a type with so many bits of mantissa and this least exponent. */
static double
unit(double x, int mantissa, int least)
{
	int e;

	frexp(x, &e);
	e = e - 1 < least ? least : e - 1;
	return ldexp(1, e - mantissa);
}

static double
stored(DType t, float x)
{
	char bytes[2];

	dtype_store_float(t, bytes, 0, x);
	return dtype_load_float(t, bytes, 0);
}

/* Every step-th f32 in [low, high]. Numbers beyond the type's range are left out. */
static void
check(float (*fast)(float), double (*exact)(double), double low, double high, uint32_t step)
{
	static const struct {
		DType type;
		int mantissa, least;
		double most;
	} types[] = {{BF16, 7, -126, 3e38}, {F16, 10, -14, 65000}};

	for (uint64_t bits = 0; bits <= UINT32_MAX; bits += step) {
		uint32_t word = (uint32_t)bits;
		float x;
		memcpy(&x, &word, sizeof(x));
		if (!(x >= low && x <= high))
			continue;
		double want = exact((double)x);
		for (int i = 0; i < COUNT(types); i++) {
			if (fabs(want) > types[i].most)
				continue;
			double got = stored(types[i].type, fast(x));
			double one = unit(want, types[i].mantissa, types[i].least);
			/* half a unit of the rounding, and half a unit for what came before */
			if (!(fabs(got - want) <= one))
				fail_msg("x = %a gives %a, not %a", (double)x, got, want);
		}
	}
}

static void
test_rounded_results(void **state)
{
	enum { STEP = 4099 };

	(void)state;
	for (int side = -1; side <= 1; side += 2) {
		off = side * 0x1p-22;
		check(exp_fast, f_exp, -87, 88, STEP);
		check(tanh_fast, f_tanh, -100, 100, STEP);
		check(sigmoid_fast, f_sigmoid, -87, 100, STEP);
		check(gelu_fast, f_gelu, -4, 100, STEP);
	}
}

/* The test sees an instruction that is much worse. */
static void
test_a_worse_instruction(void **state)
{
	(void)state;
	off = 0x1p-9;
	double got = stored(F16, exp_fast(1.0f)), one = unit(exp(1), 10, -14);
	assert_true(fabs(got - exp(1)) > one);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounded_results),
	                                   cmocka_unit_test(test_a_worse_instruction)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
