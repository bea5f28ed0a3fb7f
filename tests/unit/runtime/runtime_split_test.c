/* --split: held-out rows cover each class by its share, and the two sides cover all rows once. */
#include "runtime/data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Every row lies on exactly one side, and both sides are ascending. */
static void
check_sides(const Split *s)
{
	char *seen = calloc((size_t)s->rows, 1);

	for (int side = 0; side < 2; side++) {
		int64_t n = side ? s->n : s->rows - s->n, last = -1;
		for (int64_t i = 0; i < n; i++) {
			int64_t row = split_row(s, side, i);
			assert_true(row > last && row < s->rows);
			assert_int_equal(seen[row]++, 0);
			last = row;
		}
	}
	for (int64_t i = 0; i < s->rows; i++)
		assert_int_equal(seen[i], 1);
	free(seen);
}

static void
test_any_share(void **state)
{
	const double shares[] = {1e-9, 0.001, 0.2, 0.5, 0.999999};

	for (int64_t rows = 2; rows < 2000; rows = rows * 3 / 2 + 1)
		for (int i = 0; i < COUNT(shares); i++) {
			Arena *arena = arena_new();
			const Split *s = split_choose(arena, NULL, rows, shares[i], 5);
			assert_true(s->n >= 1 && s->n < rows);
			assert_true(shares[i] * (double)rows < 1 || rows < 4 ||
			            labs(s->n - (int64_t)(shares[i] * (double)rows)) <= 1);
			check_sides(s);
			arena_free(arena);
		}
}

static void
count(const Split *s, const int64_t *labels, int64_t held[4])
{
	memset(held, 0, 4 * sizeof(*held));
	for (int64_t i = 0; i < s->n; i++)
		held[labels[s->held[i]] + 100]++;
}

/* 700, 200, 90 and 10 rows: a fifth of each class. One row of a class stays in training. */
static void
test_classes(void **state)
{
	int64_t labels[1000], held[4];
	Arena *arena = arena_new();

	for (int i = 0; i < COUNT(labels); i++)
		labels[i] = (i % 10 < 7 ? 0 : i % 10 < 9 ? 1 : i < 900 ? 2 : 3) - 100;
	const Split *s = split_choose(arena, labels, COUNT(labels), 0.2, 0);
	count(s, labels, held);
	assert_int_equal(s->n, 200);
	assert_int_equal(held[0], 140);
	assert_int_equal(held[1], 40);
	assert_int_equal(held[2], 18);
	assert_int_equal(held[3], 2);
	check_sides(s);

	const int64_t few[] = {-100, -99, -98, -97, -97, -97};
	s = split_choose(arena, few, COUNT(few), 0.34, 0);
	count(s, few, held);
	assert_int_equal(s->n, 2);
	assert_int_equal(held[3], 2);
	arena_free(arena);
}

static void
test_seeds(void **state)
{
	Arena *arena = arena_new();
	const Split *a = split_choose(arena, NULL, 500, 0.3, 1),
		    *again = split_choose(arena, NULL, 500, 0.3, 1),
		    *b = split_choose(arena, NULL, 500, 0.3, 2);

	assert_memory_equal(a->held, again->held, (size_t)a->n * sizeof(*a->held));
	assert_memory_not_equal(a->held, b->held, (size_t)a->n * sizeof(*a->held));
	arena_free(arena);
}

static void
test_texts(void **state)
{
	const char *const wrong[] = {"",      "0",   "1",      "nan",     "-0.1", "0.2,",
	                             "0.2,x", "1e9", "0.2,-1", "0.2,1,2", "x",    ",1"};
	uint64_t seed;
	double share;

	for (int i = 0; i < COUNT(wrong); i++) {
		Status status = split_parse(wrong[i], &share, &seed);
		assert_non_null(status);
		assert_int_equal(status->exit_code, EXIT_USAGE);
		status_free(status);
	}
	assert_null(split_parse("0.25", &share, &seed));
	assert_true(share == 0.25 && seed == 0);
	assert_null(split_parse("0.5,18446744073709551615", &share, &seed));
	assert_true(share == 0.5 && seed == UINT64_MAX);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_share),
		cmocka_unit_test(test_classes),
		cmocka_unit_test(test_seeds),
		cmocka_unit_test(test_texts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
