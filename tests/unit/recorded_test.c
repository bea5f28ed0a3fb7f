/* Runs that are recorded: one by itself, one that is recorded, and from then on the recording is launched, with the same results. */
#include "runtime/runtime_impl.h"
#include "tests/unit/runtime_tiny.h"

static void
k_increment(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	for (int64_t i = 0; i < 4096 * (end - begin); i++)
		((double *)b[0])[i] += 1;
}

enum { BLOCK = 4096 };
static const TinyKernel kernel = {"k", k_increment, 2, 1, {{2 * BLOCK * 8, F64, BOTH}}};

/* The async device, which counts what it is asked for. */
static DeviceOps counting;
static struct {
	int begins, launches, runs;
} counts;

static Status
begin(Device *d)
{
	counts.begins++;
	return device_async.capture_begin(d);
}

static Status
launch(Device *d, const Recorded *r)
{
	counts.launches++;
	return device_async.launch(d, r);
}

static Status
run(Device *d, int stream, const Code *code, const Launch *l)
{
	counts.runs++;
	return device_async.run(d, stream, code, l);
}

static int
set_up(void **state)
{
	counting = device_async;
	counting.capture_begin = begin;
	counting.launch = launch;
	counting.run = run;
	memset(&counts, 0, sizeof(counts));
	return 0;
}

static Format
tables(Arena *arena)
{
	FormatWriter *w = format_writer_new(arena);
	ProgramRecord p = {.n_instructions = 1, .bytes[SPACE_WORKSPACE] = 2 * BLOCK * 8};
	Format f;

	tiny_add_kernel(w, &kernel);
	vec_push(arena, &w->bindings, ((BindingRecord){.rows = 1}));
	vec_push(arena, &w->targets, ((TargetRecord){0}));
	tiny_slot(w, SPACE_WORKSPACE, 0, 2 * BLOCK * 8, "numbers");
	vec_push(arena, &w->arguments, ((Argument){0}));
	vec_push(arena, &w->instructions, ((Instruction){.kind = RUN_KERNEL, .n_args = 1}));
	vec_push(arena, &w->programs, p);
	must(tiny_read(w, &f));
	return f;
}

static void
test_recordings_are_launched(void **state)
{
	Arena *arena = arena_new();
	Format f = tables(arena);
	double first;
	Executor x;

	must(executor_open(
		arena, &f,
		&(ExecutorOptions){.ops = &counting, .variant = tiny_image(arena, &kernel, 1)},
		&x));
	x.timed = true;
	for (int i = 0; i < 12; i++) {
		x.turns[TURN_STEP] ^= 1; /* a recording for each turn */
		x.timers[x.turns[TURN_STEP]].n = 0;
		must(executor_run(&x, &f.programs[0], &(MicroBatch){0, 1}));
	}
	Span at = executor_slot(&x, 0);
	at.bytes = 8;
	must(executor_read(&x, &first, at));
	assert_true(first == 12);
	assert_int_equal(counts.runs, 4); /* two by themselves, two that were recorded */
	assert_int_equal(counts.begins, 2);
	assert_int_equal(counts.launches, 10);
	executor_close(&x);
	arena_free(arena);
}

/* Whoever looks at single instructions has them run by themselves. */
static void
test_poison_is_not_recorded(void **state)
{
	Arena *arena = arena_new();
	Format f = tables(arena);
	Executor x;

	must(executor_open(
		arena, &f,
		&(ExecutorOptions){.ops = &counting, .variant = tiny_image(arena, &kernel, 1)},
		&x));
	x.timed = x.poison = true;
	for (int i = 0; i < 6; i++)
		must(executor_run(&x, &f.programs[0], &(MicroBatch){0, 1}));
	must(executor_drain(&x));
	assert_int_equal(counts.launches, 0);
	assert_int_equal(counts.runs, 6);
	executor_close(&x);
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_recordings_are_launched, set_up),
		cmocka_unit_test_setup(test_poison_is_not_recorded, set_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
