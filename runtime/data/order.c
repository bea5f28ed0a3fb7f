/* The random order of the rows in an epoch: a permutation of [0, n), computed for each index from seed and epoch alone, so that
 * it needs no memory.
 *
 * A Feistel network permutes [0, 4^half_bits), the smallest such range that contains [0, n). An index that lands outside [0, n)
 * is permuted again until it lands inside, after less than four steps on average. The result is again a permutation. */
#include "runtime/data/sources.h"

enum { ROUNDS = 4 };

Order
order_new(int64_t n, bool shuffle, uint64_t seed, int64_t epoch)
{
	Order order = {.n = n, .shuffle = shuffle, .half_bits = 1};
	const uint32_t counter[4] = {(uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32),
	                             0x6f726472u, 0};
	Philox keys = philox4x32(counter, seed);

	while (order.half_bits < 31 && (1ll << 2 * order.half_bits) < n)
		order.half_bits++;
	for (int i = 0; i < ROUNDS; i++)
		order.keys[i] = keys.at[i];
	return order;
}

static uint64_t
permute(const Order *o, uint64_t x)
{
	uint64_t mask = (1ull << o->half_bits) - 1, left = x >> o->half_bits, right = x & mask;

	for (int round = 0; round < ROUNDS; round++) {
		uint64_t next = left ^
		                (hash_mix(right, ((uint64_t)round << 32) | o->keys[round]) & mask);

		left = right;
		right = next;
	}
	return left << o->half_bits | right;
}

int64_t
order_at(const Order *o, int64_t index)
{
	if (!o->shuffle || o->n < 2)
		return index;
	uint64_t x = (uint64_t)index;
	do
		x = permute(o, x);
	while (x >= (uint64_t)o->n);
	return (int64_t)x;
}
