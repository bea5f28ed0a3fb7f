/* Philox4x32-10: random numbers as a pure function of (key, counter). */
#include "runtime/runtime_impl.h"

#include <math.h>

Philox
philox4x32(const uint32_t counter[4], uint64_t key)
{
	Philox c = {{counter[0], counter[1], counter[2], counter[3]}};
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

	for (int round = 0; round < 10; round++) {
		uint64_t p0 = 0xd2511f53ull * c.at[0], p1 = 0xcd9e8d57ull * c.at[2];

		c = (Philox){{(uint32_t)(p1 >> 32) ^ c.at[1] ^ k0, (uint32_t)p1,
		              (uint32_t)(p0 >> 32) ^ c.at[3] ^ k1, (uint32_t)p0}};
		k0 += 0x9e3779b9u;
		k1 += 0xbb67ae85u;
	}
	return c;
}

static Philox
draw(uint64_t seed, uint64_t stream, uint64_t index)
{
	const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
	                             (uint32_t)(stream >> 32)};

	return philox4x32(counter, seed);
}

static double
unit_interval(uint32_t low, uint32_t high)
{
	return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

double
philox_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
	Philox r = draw(seed, stream, index);

	return unit_interval(r.at[0], r.at[1]);
}

/* Box and Muller's transform of two uniform numbers. */
double
philox_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
	Philox r = draw(seed, stream, index);
	double u = 1 - unit_interval(r.at[0], r.at[1]), v = unit_interval(r.at[2], r.at[3]);

	return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}
