/* Builds the random number generator Philox4x32-10 as operations of loop IR, as two scalar
 * functions of u64: philox(key, index, step) gives words 0 and 1 of philox_at in
 * base/numbers/philox.c, and philox_high gives words 2 and 3. The first word of a pair is the
 * lower half. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3". */
#include "ir/scalar/scalar.h"

enum { ROUNDS = 10 };

static V
low_half(B *b, V x)
{
	return and(b, x, integer(b, x, UINT32_MAX));
}

static V
high_half(B *b, V x)
{
	return shr(b, x, integer(b, x, 32));
}

V
build_philox(B *b, const FunctionRow *row, const V *x)
{
	V k0 = low_half(b, x[0]), k1 = high_half(b, x[0]);
	V c[4] = {low_half(b, x[1]), high_half(b, x[1]), low_half(b, x[2]), high_half(b, x[2])};

	for (int round = 0; round < ROUNDS; round++) {
		V p0 = mul(b, c[0], integer(b, c[0], 0xd2511f53u));
		V p1 = mul(b, c[2], integer(b, c[2], 0xcd9e8d57u));
		V c0 = xor(b, xor(b, high_half(b, p1), c[1]), k0);
		V c2 = xor(b, xor(b, high_half(b, p0), c[3]), k1);

		c[0] = c0;
		c[1] = low_half(b, p1);
		c[2] = c2;
		c[3] = low_half(b, p0);
		k0 = low_half(b, add(b, k0, integer(b, k0, 0x9e3779b9u)));
		k1 = low_half(b, add(b, k1, integer(b, k1, 0xbb67ae85u)));
	}
	V first = row->op == LOOP_philox ? c[0] : c[2],
	  second = row->op == LOOP_philox ? c[1] : c[3];
	return or (b, first, shl(b, second, integer(b, second, 32)));
}
