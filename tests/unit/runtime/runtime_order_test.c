/* Pure functions of the runtime: the order of rows, random numbers, learning rates. */
#include "runtime/data/sources.h"
#include "runtime/hyper/hyper.h"
#include "runtime/model/values.h"
#include "tests/unit/runtime/runtime_tiny.h"

static void
check_bijection(int64_t n, uint64_t seed, int64_t epoch)
{
	Order order = order_new(n, true, seed, epoch);
	char *seen = calloc((size_t)n, 1);

	for (int64_t i = 0; i < n; i++) {
		int64_t row = order_at(&order, i);
		assert_in_range(row, 0, n - 1);
		assert_int_equal(seen[row], 0);
		seen[row] = 1;
	}
	free(seen);
}

static void
test_order_is_a_bijection(void **state)
{
	for (int64_t n = 1; n < 300; n++)
		check_bijection(n, 7, n);
	check_bijection(65536, 1, 0);
	check_bijection(65537, 1, 2);
	check_bijection(100003, 123456789, 3);
}

static int
compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* For 10^9 rows: indices are in range, differ, and are spread over the whole range; no table is built. */
static void
test_order_of_a_huge_set(void **state)
{
	enum { N = 1000000000, SOME = 200000, PARTS = 16 };
	Order order = order_new(N, true, 3, 1);
	int64_t *places = malloc(sizeof(*places) * SOME), parts[PARTS] = {0};

	assert_non_null(places);
	for (int64_t i = 0; i < SOME; i++) {
		places[i] = order_at(&order, i < SOME / 2 ? i : N - SOME + i);
		assert_in_range(places[i], 0, N - 1);
		parts[places[i] * PARTS / N]++;
	}
	qsort(places, SOME, sizeof(*places), compare);
	for (int i = 1; i < SOME; i++)
		assert_true(places[i] > places[i - 1]);
	for (int i = 0; i < PARTS; i++) /* 12500 each, standard deviation 108 */
		assert_in_range(parts[i], SOME / PARTS - 700, SOME / PARTS + 700);
	free(places);
}

static int64_t
equal_places(int64_t n, const Order *a, const Order *b)
{
	int64_t same = 0;

	for (int64_t i = 0; i < n; i++)
		same += order_at(a, i) == order_at(b, i);
	return same;
}

static void
test_order_depends_on_epoch_and_seed(void **state)
{
	enum { N = 10000 };
	Order a = order_new(N, true, 1, 0), b = order_new(N, true, 1, 1),
	      c = order_new(N, true, 2, 0);
	Order again = order_new(N, true, 1, 0), off = order_new(N, false, 1, 0);

	assert_int_equal(equal_places(N, &a, &again), N);
	assert_in_range(equal_places(N, &a, &b), 0, 20);
	assert_in_range(equal_places(N, &a, &c), 0, 20);
	assert_in_range(equal_places(N, &a, &off), 0, 20);
	assert_int_equal(order_at(&off, 17), 17);
}

/* The known answers of the Random123 distribution. */
static void
test_philox_known_answers(void **state)
{
	const uint32_t zeros[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
	const uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
	const uint32_t want[3][4] = {
		{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
		{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
	};
	Philox got[3] = {philox4x32(zeros, 0), philox4x32(ones, ~0ull),
	                 philox4x32(pi, 0x299f31d0a4093822ull)};

	for (int i = 0; i < 3; i++)
		assert_memory_equal(got[i].at, want[i], sizeof(want[i]));
}

static void
test_random_numbers_have_their_moments(void **state)
{
	enum { N = 100000 };
	double sum = 0, squares = 0, uniform = 0;

	for (int i = 0; i < N; i++) {
		double x = philox_normal(1, 2, (uint64_t)i), u = philox_uniform(1, 2, (uint64_t)i);
		assert_true(u >= 0 && u < 1 && isfinite(x));
		sum += x;
		squares += x * x;
		uniform += u;
	}
	assert_true(fabs(sum / N) < 0.02 && fabs(squares / N - 1) < 0.02);
	assert_true(fabs(uniform / N - 0.5) < 0.01);
}

static Hyper
hyper(const char *schedule)
{
	Hyper h = {.lr_schedule = schedule,
	           .values = {[SCALAR_LR] = 1, [SCALAR_BETA1] = 0.9, [SCALAR_BETA2] = 0.99},
	           .min_lr = 0.1,
	           .warmup = 10,
	           .steps = 110};

	assert_null(lr_schedule_parse(schedule, h.lr_settings));
	h.plateau = plateau_new(1);
	return h;
}

static void
expect(double got, double want)
{
	if (fabs(got - want) > 1e-12)
		fail_msg("%.17g is not %.17g", got, want);
}

static void
test_learning_rates(void **state)
{
	for (int i = 0; lr_schedule_names[i]; i++) {
		Hyper h = hyper(lr_schedule_names[i]);
		expect(hyper_lr(&h, 0), 0.1);
		expect(hyper_lr(&h, 9), 1);
		if (strcmp(lr_schedule_names[i], "one-cycle") != 0 &&
		    strncmp(lr_schedule_names[i], "deepspeed-", 10) != 0 &&
		    strcmp(lr_schedule_names[i], "sweep") != 0)
			expect(hyper_lr(&h, 10), 1);
	}
	Hyper constant = hyper("constant"), linear = hyper("linear"), cosine = hyper("cosine");
	Hyper wsd = hyper("wsd");
	expect(hyper_lr(&constant, 109), 1);
	expect(hyper_lr(&linear, 60), 0.55);
	expect(hyper_lr(&cosine, 60), 0.55);
	expect(hyper_lr(&cosine, 35), 0.1 + 0.9 * (1 + cos(3.14159265358979323846 / 4)) / 2);
	expect(hyper_lr(&wsd, 99), 1);
	expect(hyper_lr(&wsd, 105), 0.55);
	Hyper polynomial = hyper("polynomial,power=2"), step = hyper("step,size=25,gamma=0.5");
	expect(hyper_lr(&polynomial, 60), 0.1 + 0.9 * 0.25);
	expect(hyper_lr(&polynomial, 110), 0.1);
	expect(hyper_lr(&step, 34), 1);
	expect(hyper_lr(&step, 35), 0.5);
	expect(hyper_lr(&step, 109), 0.125);
	/* torch.optim.lr_scheduler.OneCycleLR(optimizer, 1, total_steps=100): 0, 10, 29, 30, 99 */
	Hyper cycle = hyper("one-cycle");
	expect(hyper_lr(&cycle, 10), 0.04);
	expect(hyper_lr(&cycle, 20), 0.29516394846410077);
	expect(hyper_lr(&cycle, 39), 1);
	expect(hyper_lr(&cycle, 40), 0.9994965352845243);
	expect(hyper_lr(&cycle, 109), 4e-6);
	Hyper sweep = hyper("sweep,low=0.01,high=100");
	expect(hyper_lr(&sweep, 10), 0.01);
	expect(hyper_lr(&sweep, 43), 0.01 * pow(1e4, 33 / 99.0));
	expect(hyper_lr(&sweep, 109), 100);
}

/* torch.optim.lr_scheduler.ReduceLROnPlateau(factor=0.5, patience=1, cooldown=2, min_lr=0.2): the learning rate after each
 * loss. The first evaluation is the best so far; a loss lower by less than the threshold is no improvement. */
static void
test_plateau(void **state)
{
	static const struct {
		double loss, lr;
	} steps[] = {{2, 1},   {1.9999, 1}, {3, 0.5},    {3, 0.5},  {3, 0.5},  {3, 0.5},
	             {1, 0.5}, {1, 0.5},    {NAN, 0.25}, {1, 0.25}, {1, 0.25}, {1, 0.25},
	             {1, 0.2}, {1, 0.2},    {1, 0.2},    {1, 0.2},  {1, 0.2}};
	Hyper h = hyper("plateau,factor=0.5,patience=1,cooldown=2");

	expect(hyper_lr(&h, 5), 0.6);
	for (int i = 0; i < COUNT(steps); i++) {
		plateau_step(&h.plateau, h.lr_settings, 0.2, steps[i].loss);
		expect(hyper_lr(&h, 20), steps[i].lr);
	}
	Plateau saved = h.plateau, same = plateau_new(1), other = plateau_new(3);
	plateau_resume(&same, &saved);
	expect(same.lr, 0.2);
	expect(same.best, 1);
	plateau_resume(&other, &saved); /* the user has changed the schedule */
	expect(other.lr, 3);
	expect(other.best, 1);
}

static void
test_scalar_block(void **state)
{
	Hyper h = hyper("constant");
	Scalar s[N_SCALARS];

	h.seed = UINT64_MAX - 1;
	hyper_scalars(&h, 20, 3, s);
	assert_int_equal(s[SCALAR_STEP].u, 20);
	assert_true(s[SCALAR_SEED].u == UINT64_MAX - 1); /* not representable in a double */
	assert_int_equal(s[SCALAR_OFFSET].u, 3);
	expect(s[SCALAR_BETA2].f, 0.99);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order_is_a_bijection),
		cmocka_unit_test(test_order_of_a_huge_set),
		cmocka_unit_test(test_order_depends_on_epoch_and_seed),
		cmocka_unit_test(test_philox_known_answers),
		cmocka_unit_test(test_random_numbers_have_their_moments),
		cmocka_unit_test(test_learning_rates),
		cmocka_unit_test(test_plateau),
		cmocka_unit_test(test_scalar_block),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
