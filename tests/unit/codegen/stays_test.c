/* Times and places of units: at most two of a kind at a time, and never two in one place. */
#include "codegen/programs/stays.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LAYERS = 40, ROUNDS = 200 };

static void
add(Arena *arena, Stays *stays, bool gradient, int first, int last, int64_t bytes)
{
	vec_push(arena, stays,
	         ((Stay){.gradient = gradient, .first = first, .last = last, .bytes = bytes}));
}

static int
by_first(const void *a, const void *b)
{
	return ((const Stay *)a)->first - ((const Stay *)b)->first;
}

static void
sort(Stays *stays)
{
	qsort(stays->at, (size_t)stays->n, sizeof *stays->at, by_first);
}

/* Adds the weights and gradients of random layers, each a unit of random bytes. The gradient of a layer may stay beyond the
 * begin of the next layer's backward pass, as a bias's does (reach). A tied weight stays all the time. Returns the number of
 * instructions. */
static int
random_layers(Arena *arena, Stays *stays, int reach, bool tied)
{
	int n_layers = 2 + rand() % (LAYERS - 2), at = tied, most = 0;
	int64_t bytes[LAYERS];

	for (int k = 0; k < n_layers; k++, at += 10) {
		bytes[k] = 1 + rand() % 1000;
		if (k < n_layers - 1)
			add(arena, stays, false, at, at + 9, bytes[k]);
	}
	add(arena, stays, false, at - 10, at + 9,
	    bytes[n_layers - 1]); /* the last layer's weights stay for the backward pass */
	add(arena, stays, true, at, at + 9 + rand() % (reach + 1), bytes[n_layers - 1]);
	for (int k = n_layers - 2; k >= 0; k--) {
		at += 10;
		add(arena, stays, false, at, at + 9, bytes[k]);
		add(arena, stays, true, at, at + 9 + rand() % (reach + 1), bytes[k]);
	}
	for (int i = 0; i < stays->n; i++)
		most = stays->at[i].last > most ? stays->at[i].last : most;
	if (tied) {
		add(arena, stays, false, 0, most + 1, 5000);
		add(arena, stays, true, 10 * n_layers, most + 1, 5000);
	}
	sort(stays);
	return most + 2;
}

static void
check_places(const Stays *stays, int64_t top)
{
	for (int i = 0; i < stays->n; i++) {
		const Stay *a = &stays->at[i];
		assert_true(a->begin <= a->first && a->end >= a->last);
		assert_true(a->offset >= 0 && a->offset % 64 == 0 && a->offset + a->bytes <= top);
		for (int k = 0; k < i; k++) {
			const Stay *b = &stays->at[k];
			if (a->begin <= b->end && b->begin <= a->end)
				assert_true(a->offset + a->bytes <= b->offset ||
				            b->offset + b->bytes <= a->offset);
		}
	}
}

/* The most units at a time, not counting units that stay around others: the last layer's kept weights, and a tied weight. */
static int
most_at_a_time(const Stays *stays, int n, bool gradient)
{
	int most = 0;

	for (int at = 0; at < n; at++) {
		int live = 0;
		for (int i = 0; i < stays->n; i++) {
			const Stay *s = &stays->at[i];
			live += s->gradient == gradient && s->begin <= at && s->end >= at &&
			        s->bytes < 5000;
		}
		most = live > most ? live : most;
	}
	return most;
}

static void
test_two_of_a_kind(void **state)
{
	srand(1);
	for (int round = 0; round < ROUNDS; round++) {
		Arena *arena = arena_new();
		Stays stays = {0};
		bool tied = round % 2;
		int n = random_layers(arena, &stays, round % 9, tied);
		int64_t largest = 0;
		stays_time(&stays, n);
		int64_t top = stays_place(&stays, arena);
		check_places(&stays, top);
		assert_int_equal(most_at_a_time(&stays, n, false), 2);
		assert_int_equal(most_at_a_time(&stays, n, true), 2);
		for (int i = 0; i < stays.n; i++)
			if (stays.at[i].bytes < 5000 && stays.at[i].bytes > largest)
				largest = stays.at[i].bytes;
		assert_true(top <= 4 * (largest + 63) + (tied ? 2 * 5056 : 0));
		arena_free(arena);
	}
}

/* A unit is gathered while the previous unit is read, and travels while the next unit is made. */
static void
test_travels_beside_computation(void **state)
{
	Arena *arena = arena_new();
	Stays stays = {0};

	add(arena, &stays, false, 0, 9, 1);
	add(arena, &stays, false, 10, 19, 1);
	add(arena, &stays, false, 20, 29, 1);
	add(arena, &stays, true, 20, 22, 1);
	add(arena, &stays, true, 23, 29, 1);
	stays_time(&stays, 30);
	assert_int_equal(stays.at[1].begin, 0);
	assert_int_equal(stays.at[2].begin, 10);
	assert_int_equal(stays.at[3].end, 29);
	assert_int_equal(stays.at[4].end, 30);
	arena_free(arena);
}

/* Two units that begin to be read together also travel together, while the units before them are read. */
static void
test_read_together(void **state)
{
	Arena *arena = arena_new();
	Stays stays = {0};

	add(arena, &stays, false, 0, 9, 1);
	add(arena, &stays, false, 10, 19, 1);
	add(arena, &stays, false, 10, 19, 1);
	add(arena, &stays, false, 20, 29, 1);
	stays_time(&stays, 30);
	assert_int_equal(stays.at[1].begin, 0);
	assert_int_equal(stays.at[2].begin, 0);
	assert_int_equal(stays.at[3].begin, 10);
	arena_free(arena);
}

/* A program that itself reads three units at a time. */
static void
test_three_that_are_touched(void **state)
{
	Arena *arena = arena_new();
	Stays stays = {0};

	for (int k = 0; k < 3; k++)
		add(arena, &stays, false, k, 10 + k, 100);
	for (int k = 0; k < 3; k++)
		add(arena, &stays, true, 3 + k, 10 + k, 100);
	stays_time(&stays, 20);
	check_places(&stays, stays_place(&stays, arena));
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_of_a_kind),
	                                   cmocka_unit_test(test_travels_beside_computation),
	                                   cmocka_unit_test(test_read_together),
	                                   cmocka_unit_test(test_three_that_are_touched)};

	return cmocka_run_group_tests_name("stays", tests, NULL, NULL);
}
