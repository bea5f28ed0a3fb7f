/* Builds the arctangent as operations of loop IR, for kernels and the interpreter. For a = |x|,
 * two identities reduce the argument to t <= tan(pi/8):
 *
 *	atan(a) = pi/2 - atan(1/a)
 *	atan(a) = pi/4 + atan((a - 1)/(a + 1))
 *
 * Then atan(t) = t + t^3 p(t^2), where the polynomial p interpolates at Chebyshev's points. For
 * more precision, pi is a sum of two numbers. */
#include "ir/scalar/scalar.h"

V
build_atan_f64(B *b, const FunctionRow *row, const V *x)
{
	static const double series[] = {
		0x1.0acd9e91a5a35p-6,  -0x1.1b311bb48c215p-5, 0x1.74dccfb93fff0p-5,
		-0x1.ac7a5a79b3f26p-5, 0x1.e19a0bfa3eef9p-5,  -0x1.110e87b4357d2p-4,
		0x1.3b1392d519db1p-4,  -0x1.745d165dc9713p-4, 0x1.c71c71c303dbbp-4,
		-0x1.249249248d7dcp-3, 0x1.9999999999953p-3,  -0x1.5555555555555p-2};
	V one = number(b, x[0], 1), zero = number(b, x[0], 0), a = absolute(b, x[0]);
	V far = gt(b, a, one), t = select(b, far, divide(b, one, a), a);
	V middle = gt(b, t, number(b, t, 0x1.a827999fcef32p-2));
	V quarter = select(b, middle, one, zero), half = select(b, far, one, zero);
	V high = fma3(b, half, number(b, t, 0x1.921fb54442d18p+0), zero);
	V low = fma3(b, half, number(b, t, 0x1.1a62633145c07p-54), zero);

	(void)row;
	t = select(b, middle, divide(b, sub(b, t, one), add(b, t, one)), t);
	t = select(b, far, neg(b, t), t);
	quarter = select(b, far, neg(b, quarter), quarter);
	high = fma3(b, quarter, number(b, t, 0x1.921fb54442d18p-1), high);
	low = fma3(b, quarter, number(b, t, 0x1.1a62633145c07p-55), low);
	V z = mul(b, t, t), p = horner(b, z, series, COUNT(series));
	V r = add(b, high, add(b, t, fma3(b, mul(b, t, z), p, low)));
	return select(b, is_nan(b, x[0]), x[0], copysign_of(b, r, x[0]));
}
