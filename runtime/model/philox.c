/* Random numbers for initial weights (the Philox generator). Each number depends only on seed, stream and index, so numbers can
 * be computed in any order. */
#include "runtime/model/values.h"

#include <math.h>

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

/* Box-Muller transform of two uniform numbers. */
double
philox_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
	Philox r = draw(seed, stream, index);
	double u = 1 - unit_interval(r.at[0], r.at[1]), v = unit_interval(r.at[2], r.at[3]);

	return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}
