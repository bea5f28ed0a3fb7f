/* The choice among variants of the kernels: the variant with the most features that this CPU can run. */
#include "runtime/device/device.h"
#include "tests/unit/runtime/runtime_tiny.h"

static const KernelCode some[1];
static const DeviceChoice cpu = {.ops = &device_cpu};
/* An image that needs these features and runs the programs of this target. */
#define IMAGE(name, features, target)                            \
	{                                                        \
		name, features, IMAGE_FUNCTIONS, some, 1, target \
	}

static void
test_the_richest_runs(void **state)
{
	Arena *arena = arena_new();
	const char *native = cpu_features(arena, "native");
	const CodeImage all[] = {IMAGE("none", "", 0),
	                         IMAGE("native", native, 0),
	                         IMAGE("future", "a-feature-of-tomorrow", 0),
	                         {0}};
	const CodeImage *picked;

	(void)state;
	must(variant_pick(all, NULL, &cpu, &picked));
	assert_string_equal(picked->name, *native ? "native" : "none");
	arena_free(arena);
}

static void
test_what_is_asked_for_runs(void **state)
{
	const CodeImage all[] = {IMAGE("few", "", 1),
	                         IMAGE("x86-64-v2", "", 0),
	                         IMAGE("future", "a-feature-of-tomorrow", 0),
	                         {0}};
	const CodeImage *picked;
	uint64_t here;

	(void)state;
	must(variant_pick(all, "cpu:x86-64-v2", &cpu, &picked));
	assert_ptr_equal(picked, &all[1]);
	must(variant_list(all, NULL, &cpu, &here));
	assert_int_equal(here, 3);
	assert_ptr_equal(variant_best(all, here & 2),
	                 &all[1]); /* a rank with another target does not run the first */
	assert_ptr_equal(variant_best(all, 7), &all[2]);
	assert_null(variant_best(all, 0));

	Status status = variant_pick(all, "cpu:future", &cpu, &picked);
	assert_int_equal(status->exit_code, EXIT_SYSTEM);
	status_free(status);
	status = variant_pick(all, "cpu:pentium", &cpu, &picked);
	assert_int_equal(status->exit_code, EXIT_USAGE);
	assert_string_equal(status->message,
	                    "--target=cpu:pentium: the model is compiled for cpu:few, "
	                    "cpu:x86-64-v2, cpu:future");
	status_free(status);
}

static void
test_what_is_missing_is_named(void **state)
{
	const CodeImage all[] = {IMAGE("x86-64-v9", "a-feature-of-tomorrow more", 0), {0}};
	const CodeImage *picked;

	(void)state;
	Status status = variant_pick(all, NULL, &cpu, &picked);
	assert_non_null(status);
	assert_null(picked);
	assert_int_equal(status->exit_code, EXIT_SYSTEM);
	assert_non_null(strstr(status->message,
	                       "this CPU lacks a-feature-of-tomorrow, which the kernels for "
	                       "cpu:x86-64-v9 use"));
	assert_non_null(strstr(status->message, "--target=cpu:x86-64-v2,cpu:x86-64-v9"));
	status_free(status);
}

/* Code for GPUs is ignored on the CPU. */
static void
test_code_of_gpus_is_passed_over(void **state)
{
	const CodeImage gpu = {"sm_90a", "", IMAGE_BYTES, some, 1, 0};
	const CodeImage all[] = {gpu, IMAGE("few", "", 1), {0}}, none[] = {gpu, {0}};
	const CodeImage *picked;

	(void)state;
	must(variant_pick(all, NULL, &cpu, &picked));
	assert_ptr_equal(picked, &all[1]);
	expect_status(variant_pick(none, NULL, &cpu, &picked), EXIT_SYSTEM,
	              "the model is compiled for cuda:sm_90a only, and --device=cpu runs code for "
	              "CPUs: compile it with --target=cpu,cuda, or run it with --device=cuda");
}

/* There is code for a GPU and for CPUs. A target, given with its kind (cuda:sm_90a) or by name alone, must fit the device. */
static void
test_a_target_of_another_kind_contradicts_the_device(void **state)
{
	const CodeImage all[] = {{"sm_90a", "", IMAGE_BYTES, some, 1, 0}, IMAGE("few", "", 1), {0}};
	const CodeImage *picked;
	DeviceChoice choice;

	(void)state;
	expect_status(variant_pick(all, "cuda:sm_90a", &cpu, &picked), EXIT_USAGE,
	              "--device=cpu runs code for CPUs, and --target=cuda:sm_90a is code for GPUs");
	expect_status(variant_pick(all, "sm_90a", &cpu, &picked), EXIT_USAGE, "--target=sm_90a is");
	must(device_choose(all, NULL, "few", &choice));
	assert_ptr_equal(choice.ops, &device_cpu);
	must(variant_pick(all, "few", &choice, &picked));
	assert_ptr_equal(picked, &all[1]);
}

static void
test_levels_contain_each_other(void **state)
{
	Arena *arena = arena_new();
	const char *levels[] = {"x86-64-v2", "x86-64-v3", "x86-64-v4"};

	(void)state;
	for (int i = 0; i < COUNT(levels) - 1; i++) {
		const char *less = cpu_features(arena, levels[i]);
		assert_memory_equal(cpu_features(arena, levels[i + 1]), less, strlen(less));
		assert_int_equal(cpu_vector_bits(less), 128 << i);
	}
	assert_null(cpu_features(arena, "pentium"));
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_richest_runs),
		cmocka_unit_test(test_what_is_asked_for_runs),
		cmocka_unit_test(test_what_is_missing_is_named),
		cmocka_unit_test(test_code_of_gpus_is_passed_over),
		cmocka_unit_test(test_a_target_of_another_kind_contradicts_the_device),
		cmocka_unit_test(test_levels_contain_each_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
