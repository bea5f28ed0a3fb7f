/* Regions are as large as training needs, and grow for a forward program: between steps, while a thread reads ahead. */
#include "tests/unit/runtime/runtime_tiny.h"

enum { STEPS = 4, GROWS_BEFORE = 2 };

/* With sanitizers, too, too large a region is a fault of the call. */
#define SANITIZER_OPTIONS __attribute__((visibility("default"))) const char *
SANITIZER_OPTIONS __asan_default_options(void);
SANITIZER_OPTIONS __tsan_default_options(void);
const char *
__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}
const char *
__tsan_default_options(void)
{
	return "allocator_may_return_null=1";
}

/* The losses of STEPS steps; before step GROWS_BEFORE the forward program runs. exit: that call's exit code; -1: there is no such call. */
static void
train(const char *device, int64_t forward_io, int exit, double losses[STEPS])
{
	tiny_forward_io = forward_io;
	Tiny t = tiny_open(true, 8 * ROWS), one = tiny_open(true, ROWS);
	GradcPairs inputs = {&one.options.data.at[0], 1, 1};
	GradcStep step;
	Gradc *run;

	t.options.device = device;
	must(gradc_open(&t.model, &t.options, t.diag, &run));
	must(gradc_bind_data(run));
	int64_t before = gradc_peak_bytes(run);
	for (int i = 0; i < STEPS; i++) {
		if (i == GROWS_BEFORE && exit >= 0) {
			Status status = gradc_once(run, &inputs, false, tiny_path(&t, "once"));
			assert_int_equal(status ? status->exit_code : 0, exit);
			if (status)
				assert_non_null(strstr(status->message, "io 64.0 TiB"));
			status_free(status);
			assert_true(exit ? gradc_peak_bytes(run) == before
			                 : gradc_peak_bytes(run) > before);
		}
		must(gradc_step(run, &step));
		losses[i] = step.loss;
	}
	gradc_close(run);
	tiny_close(&one);
	tiny_close(&t);
	tiny_forward_io = 256;
}

static void
check(const char *device, int64_t forward_io, int exit)
{
	double plain[STEPS], with[STEPS];

	train(device, 256, -1, plain);
	train(device, forward_io, exit, with);
	assert_memory_equal(plain, with, sizeof(plain));
}

static void
test_regions_grow(void **state)
{
	check("cpu", 4096, 0);
	check("async", 4096, 0);
}

/* Without enough memory the call fails, and training goes on. */
static void
test_regions_stay(void **state)
{
	check("cpu", 1ll << 45, EXIT_SYSTEM);
	check("async", 1ll << 45, EXIT_SYSTEM);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_regions_grow),
	                                   cmocka_unit_test(test_regions_stay)};

	return cmocka_run_group_tests_name("runtime_regions", tests, NULL, NULL);
}
