/* Places of blocks of memory: no two blocks that are needed at one time share a byte, and the memory is small. */
#include "base/base.h"
#include "codegen/schedule/place_blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static bool
share(const Block *a, const Block *b)
{
	return a->begin <= b->end && b->begin <= a->end && a->offset < b->offset + b->bytes &&
	       b->offset < a->offset + a->bytes;
}

/* Checks the places, and returns the end of the last block. */
static int64_t
check(const Blocks *blocks)
{
	int64_t top = 0;

	for (int i = 0; i < blocks->n; i++) {
		const Block *b = &blocks->at[i];
		assert_true(b->offset >= 0);
		top = b->offset + b->bytes > top ? b->offset + b->bytes : top;
		for (int k = 0; k < i; k++)
			assert_false(share(b, &blocks->at[k]));
	}
	return top;
}

/* The most bytes at any node. */
static int64_t
most(const Blocks *blocks, int nodes)
{
	int64_t at_most = 0;

	for (int node = 0; node < nodes; node++) {
		int64_t bytes = 0;
		for (int i = 0; i < blocks->n; i++)
			if (blocks->at[i].begin <= node && node <= blocks->at[i].end)
				bytes += blocks->at[i].bytes;
		at_most = bytes > at_most ? bytes : at_most;
	}
	return at_most;
}

static void
test_example(void **state)
{
	Arena *arena = arena_new();
	Blocks blocks = {0};

	vec_push(arena, &blocks, ((Block){.bytes = 2, .begin = 0, .end = 1}));
	vec_push(arena, &blocks, ((Block){.bytes = 2, .begin = 1, .end = 3}));
	vec_push(arena, &blocks, ((Block){.bytes = 3, .begin = 2, .end = 3}));
	assert_int_equal(blocks_least(&blocks, arena), 5);
	assert_int_equal(place_blocks(&blocks, arena), 5);
	assert_int_equal(check(&blocks), 5);
	arena_free(arena);
}

static void
test_nothing(void **state)
{
	Arena *arena = arena_new();
	Blocks blocks = {0};

	assert_int_equal(place_blocks(&blocks, arena), 0);
	arena_free(arena);
}

/* As in training: values that wait for the backward pass, and values that are needed for a few nodes only. */
static void
test_random(void **state)
{
	enum { CASES = 60, NODES = 200 };
	int64_t top = 0, least = 0;

	srand(1);
	for (int i = 0; i < CASES; i++) {
		Arena *arena = arena_new();
		Blocks blocks = {0};
		for (int node = 0; node < NODES; node++) {
			int end = rand() % 3 ? node + rand() % 4 : 2 * NODES - node;
			vec_push(arena, &blocks,
			         ((Block){.bytes = 1 + rand() % 1000, .begin = node, .end = end}));
			vec_push(arena, &blocks,
			         ((Block){.bytes = 1 + rand() % 1000,
			                  .begin = 2 * NODES - node - rand() % 4,
			                  .end = 2 * NODES - node}));
		}
		int64_t bytes = place_blocks(&blocks, arena);
		assert_int_equal(bytes, check(&blocks));
		assert_int_equal(blocks_least(&blocks, arena), most(&blocks, 2 * NODES + 1));
		assert_true(bytes >= blocks_least(&blocks, arena));
		top += bytes;
		least += blocks_least(&blocks, arena);
		arena_free(arena);
	}
	/* of all cases together: sizes of models repeat, and need less */
	assert_true((double)top <= 1.02 * (double)least);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_example),
	                                   cmocka_unit_test(test_nothing),
	                                   cmocka_unit_test(test_random)};

	return cmocka_run_group_tests_name("place_blocks", tests, NULL, NULL);
}
