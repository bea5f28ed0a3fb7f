/* A run on a device with a program for the host's processors. The program runs in its stream's order and touches only the
 * host's memory. */
#include "runtime/device/device.h"
#include "runtime/exec/exec.h"
#include "tests/unit/runtime/runtime_tiny.h"

static void
k_host_add_one(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	*(double *)b[0] += 1;
}

static void
k_double(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	*(double *)b[0] *= scalars[SCALAR_LR].f;
}

static const TinyKernel kernels[] = {{"k_host_add_one", k_host_add_one, 1, 1, {ONE(BOTH)}},
                                     {"k_double", k_double, 1, 1, {ONE(BOTH)}}};
enum { ON_DEVICE, ON_HOST }; /* targets, and slots whose number is the target's */
enum { SLOT_STEP_SCALARS = 2 };

static void
add_program(FormatWriter *w, Role role, uint32_t target, uint32_t first)
{
	ProgramRecord p = {.role = role,
	                   .target = target,
	                   .first_instruction = first,
	                   .n_instructions = (uint32_t)w->instructions.n - first,
	                   .on_host = target == ON_HOST,
	                   .scalars = target == ON_HOST ? SLOT_STEP_SCALARS + 1 : 0,
	                   .bytes = {[SPACE_WORKSPACE] = 8,
	                             [SPACE_STEP] = SCALARS_BYTES,
	                             [SPACE_STEP_HOST] = SCALARS_BYTES}};

	vec_push(w->arena, &w->programs, p);
}

/* The device adds one and copies out; the host doubles `touched` and copies in. */
static Format
tables(Arena *arena, uint32_t touched)
{
	FormatWriter *w = format_writer_new(arena);
	Format f;

	for (int i = 0; i < COUNT(kernels); i++) {
		tiny_add_kernel(w, &kernels[i]);
		w->kernels.at[i].targets = 1u << i;
		vec_push(arena, &w->targets, ((TargetRecord){0}));
	}
	vec_push(arena, &w->bindings, ((BindingRecord){.rows = 1}));
	tiny_slot(w, SPACE_WORKSPACE, 0, 8, "number");
	tiny_slot(w, SPACE_HOST, 0, 8, "number");
	tiny_slot(w, SPACE_STEP, 0, SCALARS_BYTES, "scalars");
	tiny_add(w, (Instruction){.kind = RUN_KERNEL, .what = 0}, 1, (const uint32_t[]){ON_DEVICE});
	tiny_add(w, (Instruction){.kind = COPY}, 2, (const uint32_t[]){ON_HOST, ON_DEVICE});
	add_program(w, ROLE_ACCUMULATE, ON_DEVICE, 0);
	tiny_add(w, (Instruction){.kind = RUN_KERNEL, .what = 1}, 1, &touched);
	tiny_add(w, (Instruction){.kind = COPY}, 2, (const uint32_t[]){ON_DEVICE, ON_HOST});
	add_program(w, ROLE_UPDATE, ON_HOST, 2);
	must(tiny_read(w, &f));
	return f;
}

static Status
start(Arena *arena, const Format *f, const char *device, Executor *x)
{
	CodeImage *host = arena_copy(arena, tiny_image(arena, kernels, COUNT(kernels)),
	                             sizeof(CodeImage));

	host->target = ON_HOST;
	return executor_open(
		arena, f,
		&(ExecutorOptions){.ops = device_find(device),
	                           .variant = tiny_image(arena, kernels, COUNT(kernels)),
	                           .host = host},
		x);
}

static void
test_the_host_computes_in_turn(void **state)
{
	Arena *arena = arena_new();
	Format f = tables(arena, ON_HOST);
	const MicroBatch micro = {0, 1};
	double want = 0, got;
	Executor x;

	must(start(arena, &f, *state, &x));
	x.timed = true; /* as in a step: recording is allowed */
	for (int i = 0; i < 9; i++) {
		x.timers[x.turns[TURN_STEP]].n = 0;
		must(executor_run(&x, &f.programs[0], &micro));
		x.turns[TURN_STEP] = turn_after(x.turns[TURN_STEP]);
		if (i < IN_FLIGHT)
			executor_scalars(&x, &f.programs[1])[SCALAR_LR].f = 2 + i;
		must(executor_run(&x, &f.programs[1], &micro));
		want = (want + 1) * (2 + i % IN_FLIGHT);
	}
	must(executor_read(&x, &got, executor_slot(&x, ON_DEVICE)));
	assert_true(got == want);
	executor_close(&x);
	arena_free(arena);
}

static void
test_memory_of_the_device_is_refused(void **state)
{
	Arena *arena = arena_new();
	Format f = tables(arena, ON_DEVICE);
	Executor x;

	expect_status(start(arena, &f, "async", &x), EXIT_SYSTEM,
	              "\"k_double\" is for the host and reads or writes workspace");
	executor_close(&x);
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		{"host beside cpu", test_the_host_computes_in_turn, NULL, NULL, "cpu"},
		{"host beside async", test_the_host_computes_in_turn, NULL, NULL, "async"},
		cmocka_unit_test(test_memory_of_the_device_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
