/* Recorded runs: the first run executes normally, the second is recorded, and later runs launch the recording with the same
 * results. */
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/exec/exec.h"
#include "runtime/exec/walk.h"
#include "tests/unit/runtime/runtime_tiny.h"

static void
k_count_up(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	for (int64_t i = 0; i < 4096 * (end - begin); i++)
		((double *)b[0])[i] += 1;
}

enum { BLOCK = 4096 };
static const TinyKernel kernel = {"k", k_count_up, 2, 1, {{2 * BLOCK * 8, F64, BOTH}}};

/* The async device, counting its calls. */
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
launch(Device *d, const Recorded *r, const EventShift *shift)
{
	counts.launches++;
	return device_async.launch(d, r, shift);
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
	ProgramRecord p = {
		.role = ROLE_FORWARD, .n_instructions = 1, .bytes[SPACE_WORKSPACE] = 2 * BLOCK * 8};
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
		x.turns[TURN_STEP] = turn_after(x.turns[TURN_STEP]); /* a recording for each turn */
		x.timers[x.turns[TURN_STEP]].n = 0;
		must(executor_run(&x, &f.programs[0], &(MicroBatch){0, 1}));
	}
	Span at = executor_slot(&x, 0);
	at.bytes = 8;
	must(executor_read(&x, &first, at));
	assert_true(first == 12);
	assert_int_equal(counts.runs,
	                 2 * IN_FLIGHT); /* of each turn a normal run, and one that was recorded */
	assert_int_equal(counts.begins, IN_FLIGHT);
	assert_int_equal(counts.launches, 12 - IN_FLIGHT);
	executor_close(&x);
	arena_free(arena);
}

/* Micro-batches between a step's first and last share recordings, and each has timers of its own. With more changes of phase
 * than timers, runs are launched all the same. */
static void
run_steps(int micro_batches, int want_runs)
{
	Arena *arena = arena_new();
	Format f = tables(arena);
	const int turn = 0;
	double first;
	Executor x;

	memset(&counts, 0, sizeof(counts));
	must(executor_open(
		arena, &f,
		&(ExecutorOptions){.ops = &counting, .variant = tiny_image(arena, &kernel, 1)},
		&x));
	x.timed = true;
	for (int step = 0; step < 2; step++) {
		x.timers[turn].n = 0;
		x.timers[turn].full = false;
		for (int i = 0; i < micro_batches; i++) {
			x.turns[TURN_MICRO] = turn_after(x.turns[TURN_MICRO]);
			must(executor_run(&x, &f.programs[0], &(MicroBatch){i, micro_batches}));
		}
	}
	Span at = executor_slot(&x, 0);
	at.bytes = 8;
	must(executor_read(&x, &first, at));
	assert_true(first == 2 * micro_batches);
	assert_int_equal(counts.runs, want_runs);
	bool full = 2 * micro_batches > MAX_TIMERS;
	assert_int_equal(x.timers[turn].full, full);
	for (int i = 0; !full && i + 1 < 2 * micro_batches; i++) {
		double seconds;
		must(counting.elapsed(x.device, timer_event(turn, i), timer_event(turn, i + 1),
		                      &seconds));
		assert_true(seconds > 0);
		assert_int_equal(x.timers[turn].phase[i + 1], i % 2 ? 0 : -1);
	}
	executor_close(&x);
	arena_free(arena);
}

static void
test_micro_batches_share_recordings(void **state)
{
	(void)state;
	/* a normal run and a recorded run each: first, between at each turn, last. Steps have a multiple of IN_FLIGHT
	 * micro-batches, so each step's first and last have the same turn. */
	run_steps(50 * IN_FLIGHT, 2 * (2 + IN_FLIGHT));
	run_steps(MAX_TIMERS / IN_FLIGHT * IN_FLIGHT, 2 * (2 + IN_FLIGHT));
}

/* ---- with a communicator that works on streams */
static CommCount begun;

static Status
enqueue_nothing(CommData *d, const Collective *c, void *stream)
{
	(void)d;
	(void)stream;
	begun.started++;
	begun.bytes += c->n;
	return NULL;
}

static int
two_members(const CommData *d, CommGroup group)
{
	(void)d;
	(void)group;
	return 2;
}

static void
count_begun(const CommData *d, CommCount out[N_GROUPS])
{
	(void)d;
	memset(out, 0, sizeof(*out) * N_GROUPS);
	out[GROUP_DATA] = begun;
}

static void
repeat_begun(CommData *d, const CommCount more[N_GROUPS])
{
	(void)d;
	begun.started += more[GROUP_DATA].started;
	begun.bytes += more[GROUP_DATA].bytes;
}

static Status
no_stream(Device *d, int stream, void **out)
{
	(void)d;
	(void)stream;
	*out = NULL;
	return NULL;
}

static Format
tables_with_a_sum(Arena *arena)
{
	FormatWriter *w = format_writer_new(arena);
	ProgramRecord p = {.role = ROLE_FORWARD, .n_instructions = 1, .bytes[SPACE_WORKSPACE] = 64};
	CollectiveRecord c = {
		.kind = COMM_ALL_REDUCE, .group = GROUP_DATA, .dtype = F32, .n = 16, .block = 1};
	Format f;

	vec_push(arena, &w->bindings, ((BindingRecord){.rows = 1}));
	vec_push(arena, &w->targets, ((TargetRecord){0}));
	tiny_add_kernel(w, &kernel);
	tiny_slot(w, SPACE_WORKSPACE, 0, 64, "sum");
	tiny_slot(w, SPACE_PINNED, 0, 64, "copy");
	for (uint32_t i = 0; i < 4; i++)
		vec_push(arena, &w->arguments, ((Argument){.slot = i / 2}));
	vec_push(arena, &w->collectives, c);
	vec_push(arena, &w->instructions,
	         ((Instruction){.kind = COLLECTIVE, .stream = STREAM_COMMUNICATION, .n_args = 4}));
	vec_push(arena, &w->programs, p);
	must(tiny_read(w, &f));
	return f;
}

/* Every run counts in the traffic, recorded or not. No run is recorded while a rank is observed. */
static void
test_collectives_are_recorded(void **state)
{
	static const CommDataOps ops = {.name = "streams",
	                                .reads_device_memory = true,
	                                .group_size = two_members,
	                                .enqueue = enqueue_nothing,
	                                .counts = count_begun,
	                                .repeat = repeat_begun};
	const Comm comm = {.data_ops = &ops, .size = 2};

	(void)state;
	counting.native_stream = no_stream;
	for (int records = 0; records < 2; records++) {
		Arena *arena = arena_new();
		Format f = tables_with_a_sum(arena);
		ExecutorOptions options = {
			.ops = &counting, .comm = &comm, .variant = tiny_image(arena, &kernel, 1)};
		Executor x;

		begun = (CommCount){0};
		must(executor_open(arena, &f, &options, &x));
		x.timed = true;
		x.records_ranks = records;
		for (int i = 0; i < 5; i++) {
			x.timers[0].n = 0;
			must(executor_run(&x, &f.programs[0], &(MicroBatch){0, 1, false}));
		}
		must(executor_drain(&x));
		assert_int_equal(begun.started, 5);
		assert_int_equal(begun.bytes, 5 * 16);
		assert_int_equal(counts.launches, records ? 4 : 0);
		executor_close(&x);
		arena_free(arena);
	}
}

/* If single instructions are observed, they run one by one. */
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
		cmocka_unit_test_setup(test_micro_batches_share_recordings, set_up),
		cmocka_unit_test_setup(test_collectives_are_recorded, set_up),
		cmocka_unit_test_setup(test_poison_is_not_recorded, set_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
