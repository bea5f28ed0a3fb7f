/* Philox4x32-10: computes random numbers as a pure function of (key, counter). */
#include "base/numbers/numbers.h"

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

Philox
philox_at(uint64_t key, uint64_t index, uint64_t step)
{
	const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)step,
	                             (uint32_t)(step >> 32)};

	return philox4x32(counter, key);
}
