/* The free blocks of an arena against a map of its bytes: best fit, and neighbours are joined. */
#include "base/base.h"
#include "codegen/schedule/free_blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 2048, STEPS = 20000, MOST = 200 };

/* The smallest run of free bytes that holds n; the first of equal runs; -1: no such run. */
static int64_t
best_fit(const bool *free_byte, int64_t n)
{
	int64_t best = -1, best_bytes = SIZE + 1;

	for (int64_t at = 0; at < SIZE;) {
		int64_t end = at;
		while (end < SIZE && free_byte[end])
			end++;
		if (end - at >= n && end - at < best_bytes) {
			best = at;
			best_bytes = end - at;
		}
		at = end + 1;
	}
	return best;
}

static void
test_random(void **state)
{
	Arena *arena = arena_new();
	FreeBlocks list = {.arena = arena};
	bool free_byte[SIZE];
	struct {
		int64_t at, n;
	} taken[MOST];
	int n_taken = 0, refused = 0;

	memset(free_byte, true, sizeof(free_byte));
	free_blocks_put(&list, 0, SIZE);
	srand(1);
	for (int step = 0; step < STEPS; step++) {
		if (n_taken < MOST && rand() % 2) {
			int64_t n = 1 + rand() % 100, at = -1;
			bool found = free_blocks_take(&list, n, &at);
			assert_int_equal(at, best_fit(free_byte, n));
			refused += !found;
			if (!found)
				continue;
			memset(free_byte + at, false, (size_t)n);
			taken[n_taken].at = at;
			taken[n_taken++].n = n;
		} else if (n_taken) {
			int i = rand() % n_taken;
			free_blocks_put(&list, taken[i].at, taken[i].n);
			memset(free_byte + taken[i].at, true, (size_t)taken[i].n);
			taken[i] = taken[--n_taken];
		}
	}
	assert_true(refused > 10);
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};

	return cmocka_run_group_tests_name("free_blocks", tests, NULL, NULL);
}
