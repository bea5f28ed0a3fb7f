/* The builder of loop IR. The checker accepts the team code that it builds, the text form reads back, and the interpreter
 * runs it. A load under a mask is one statement. Indices share their terms. */
#include "ir/loop/loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3, COLUMNS = 64, MEMBERS = 16, OWN = COLUMNS / MEMBERS };

typedef struct {
	Arena *arena;
	Module *m;
	Diag *diag;
	LoopBuilder *lb;
} Case;

static Case
case_open(const int64_t *in, int n_in, const int64_t *out, int n_out)
{
	Case c = {.arena = arena_new(), .m = module_new("m"), .diag = diag_new("test", stderr)};

	c.lb = loop_builder(kernel_new(c.arena, "k", NULL), c.m, c.arena);
	lb_buffer(c.lb, "x0", BUFFER_IN, type_new(c.m, F32, n_in, in));
	lb_buffer(c.lb, "y0", BUFFER_OUT, type_new(c.m, F32, n_out, out));
	return c;
}

/* Adds the kernel to the module; its text must read back as the same text. */
static const Kernel *
finished(Case *c)
{
	PrintOptions options = {0};
	Text once = {0}, twice = {0};

	kernel_close(c->lb);
	const Kernel *k = kernel_add(c->m, c->lb->k, "k");
	assert_true(kernel_verify(c->m, k, c->diag));
	kernel_print(&once, k, &options);
	Module *again = module_parse(arena_printf(c->arena, "module @m {\n%s}\n", once.at), "k.gir",
	                             strmap_new(c->arena), c->diag);
	assert_non_null(again);
	kernel_print(&twice, again->kernels.at[0], &options);
	assert_string_equal(once.at, twice.at);
	module_free(again);
	text_free(&once);
	text_free(&twice);
	return k;
}

static void
case_close(Case *c)
{
	module_free(c->m);
	arena_free(c->arena);
	diag_free(c->diag);
}

/* Sums of rows; each element is kept in registers and divided by the sum. Every member's last element goes to its neighbour
 * through the team's array. */
static void
test_team(void **state)
{
	static const int members[] = {MEMBERS};
	const int64_t shape[] = {ROWS, COLUMNS};
	Case c = case_open(shape, 2, shape, 2);
	LoopBuilder *lb = c.lb;
	float x[ROWS * COLUMNS], y[ROWS * COLUMNS];

	(void)state;
	lb_team(lb, 1, members);
	Affine row = affine_scale(lb, affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, ROWS)), COLUMNS);
	int own = lb_private(lb, F32, OWN), told = lb_local(lb, F32, MEMBERS);
	LoopValue member = lb_for(lb, LOOP_TEAM, MEMBERS);
	LoopValue sum = lb_accumulator(lb, ACC_ADD, F32), j = lb_for(lb, LOOP_UNROLL, OWN);
	Affine at = affine_add_scaled(lb, affine_scalar(lb, member), affine_scalar(lb, j), MEMBERS);
	LoopValue v = lb_load(lb, 0, affine_add(lb, row, at));
	lb_store(lb, own, affine_scalar(lb, j), v);
	lb_accumulate(lb, sum, v);
	lb_end(lb);
	lb_store(lb, told, affine_scalar(lb, member), lb_load(lb, own, affine_constant(OWN - 1)));
	lb_end(lb);
	lb_barrier(lb);
	member = lb_for(lb, LOOP_TEAM, MEMBERS);
	LoopValue last = lb_load(
		lb, told,
		affine_plus(affine_scale(lb, affine_scalar(lb, member), -1), MEMBERS - 1));
	j = lb_for(lb, LOOP_UNROLL, OWN);
	at = affine_add_scaled(lb, affine_scalar(lb, member), affine_scalar(lb, j), MEMBERS);
	v = lb_binary(lb, LOOP_div, lb_load(lb, own, affine_scalar(lb, j)), sum);
	lb_store(lb, 1, affine_add(lb, row, at), lb_binary(lb, LOOP_add, v, last));
	lb_end(lb);
	lb_end(lb);
	lb_end(lb);
	const Kernel *k = finished(&c);
	for (int i = 0; i < ROWS * COLUMNS; i++)
		x[i] = (float)(1 + i % 7); /* small integers, so sums are exact */
	kernel_interpret(k, (void *[]){x, y}, NULL, 0, k->iterations);
	for (int i = 0; i < ROWS * COLUMNS; i++) {
		int r = i / COLUMNS, column = i % COLUMNS;
		float all = 0, other = x[r * COLUMNS + COLUMNS - 1 - column % MEMBERS];
		for (int e = 0; e < COLUMNS; e++)
			all += x[r * COLUMNS + e];
		assert_true(y[i] == x[i] / all + other);
	}
	case_close(&c);
}

static void
test_no_team_has_no_barrier(void **state)
{
	const int64_t shape[] = {4};
	Case c = case_open(shape, 1, shape, 1);

	(void)state;
	lb_barrier(c.lb);
	assert_int_equal(c.lb->k->body.n, 0);
	case_close(&c);
}

/* Each element's predecessor; the first element has none and loads nothing. */
static void
test_load_inside(void **state)
{
	const int64_t shape[] = {4};
	Case c = case_open(shape, 1, shape, 1);
	LoopBuilder *lb = c.lb;
	float x[] = {1, 2, 3, 4}, y[] = {9, 9, 9, 9}, want[] = {0, 1, 2, 3};

	(void)state;
	LoopValue i = lb_for(lb, LOOP_VECTOR, 4), inside = -1;
	Affine place = affine_plus(affine_scalar(lb, i), -1);
	lb_and_inside(lb, place, 4, &inside);
	LoopValue v = lb_load_if(lb, 0, place, inside);
	assert_int_equal(lb_load_if(lb, 0, place, inside), v);
	assert_int_not_equal(lb_load(lb, 0, affine_scalar(lb, i)), v);
	lb_store(lb, 1, affine_scalar(lb, i), v);
	lb_end(lb);
	const Kernel *k = finished(&c);
	kernel_interpret(k, (void *[]){x, y}, NULL, 0, k->iterations);
	assert_memory_equal(y, want, sizeof(y));
	case_close(&c);
}

/* An index has as many terms as there are loops. Indices share terms: building one index from another leaves the other
 * unchanged. */
static void
test_places(void **state)
{
	enum { LOOPS = 40 };
	const int64_t shape[] = {64};
	Case c = case_open(shape, 1, shape, 1);
	LoopBuilder *lb = c.lb;
	float x[64], y[64] = {0};

	(void)state;
	for (int i = 0; i < 64; i++)
		x[i] = (float)i;
	Affine at = affine_constant(1);
	for (int i = 0; i < LOOPS; i++)
		at = affine_add(lb, at, affine_scalar(lb, lb_for(lb, LOOP_PLAIN, i < 4 ? 2 : 1)));
	Affine twice = affine_add(lb, at, at), none = affine_add_scaled(lb, at, at, -1);
	assert_int_equal(at.n, LOOPS);
	assert_int_equal(at.terms[0].coefficient, 1);
	assert_int_equal(twice.terms[LOOPS - 1].coefficient, 2);
	assert_int_equal(none.n + none.constant, 0);
	assert_true(affine_scale(lb, at, 0).n == 0 && affine_scale(lb, at, 1).terms == at.terms);
	lb_store(lb, 1, twice, lb_load(lb, 0, at));
	for (int i = 0; i < LOOPS; i++)
		lb_end(lb);
	const Kernel *k = finished(&c);
	kernel_interpret(k, (void *[]){x, y}, NULL, 0, k->iterations);
	for (int i = 0; i < 64; i++)
		assert_true(y[i] == (i % 2 == 0 && i >= 2 && i <= 10 ? (float)(i / 2) : 0));
	case_close(&c);
}

static void
test_multiples(void **state)
{
	const AffineTerm terms[] = {{.scalar = 1, .coefficient = 8},
	                            {.scalar = 2, .coefficient = -12}};
	const Affine place = {.constant = -4, .n = 2, .terms = terms};

	(void)state;
	assert_true(affine_is_multiple(&place, -1, 4));
	assert_true(affine_is_multiple(&place, -1, 1));
	assert_false(affine_is_multiple(&place, -1, 8));
	const Affine first = affine_plus(place, 4);
	assert_true(affine_is_multiple(&first, 2, 8));
	assert_false(affine_is_multiple(&first, 1, 8));
	assert_false(affine_is_multiple(&place, 2, 8));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_team), cmocka_unit_test(test_no_team_has_no_barrier),
		cmocka_unit_test(test_load_inside), cmocka_unit_test(test_places),
		cmocka_unit_test(test_multiples)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
