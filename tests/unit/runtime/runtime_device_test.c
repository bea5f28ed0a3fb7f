/* Conformance of devices: the tests are written once against the device table and run for each device of
 * runtime/device/device_list.def. Also a schedule without one of its WAITs: a device with no more order
 * than it promises shows the race. */
#include "runtime/device/device.h"
#include "runtime/gradc.h"
#include "runtime/host/host.h"
#include "runtime/run/run.h"
#include "tests/unit/runtime/tiny_cuda.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
	const DeviceOps *ops;
	Device *device;
	Arena *arena;
	const CodeImage *image;
	Format *tables;
	Code *code;
	Span a, b, other, scalars; /* in the device's memory */
} Bench;
enum { N = ADDED };

/* The tiny model's code for the device. */
static const CodeImage *
image_for(Arena *arena, const DeviceOps *ops)
{
	return ops->image_kind == IMAGE_BYTES ? tiny_cuda_image(arena, "sm_90a")
	                                      : tiny_image(arena, tiny_kernels, N_KERNELS);
}

/* A device that this machine lacks is skipped, unless GRADC_TEST_DEVICE=cuda asks for it. */
static Device *
device_open(const DeviceOps *ops)
{
	const char *must_be_there = getenv("GRADC_TEST_DEVICE");
	Device *device;
	Status status = ops->open(&(DeviceOptions){.threads = 2, .no_libraries = true}, &device);

	if (status && ops->image_kind == IMAGE_BYTES &&
	    (!must_be_there || strcmp(must_be_there, ops->name) != 0)) {
		print_message("%s\n", status->message);
		status_free(status);
		skip();
	}
	must(status);
	return device;
}

static Bench
bench_open(void **state)
{
	Bench t = {.ops = device_find(*state)};
	int64_t bytes;

	assert_non_null(t.ops); /* the table's name is the list's name */
	t.device = device_open(t.ops);
	t.arena = arena_new();
	t.image = image_for(t.arena, t.ops);
	t.tables = arena_alloc(t.arena, sizeof(*t.tables));
	void *blob = tiny_blob(t.arena, true, &bytes);
	must(format_read(blob, bytes, t.tables));
	CodeSource source = {.images = t.image, .n_images = 1, .tables = t.tables};
	must(t.ops->load(t.device, &source, &t.code));
	must(t.ops->alloc(t.device, MEMORY_DEVICE, N * 8, &t.a));
	must(t.ops->alloc(t.device, MEMORY_DEVICE, N * 8, &t.b));
	must(t.ops->alloc(t.device, MEMORY_DEVICE, N * 8, &t.other));
	must(t.ops->alloc(t.device, MEMORY_DEVICE, SCALARS_BYTES, &t.scalars));
	must(t.ops->copy(t.device, 0, t.scalars, (const Scalar[N_SCALARS]){[SCALAR_LR].f = 1}));
	must(t.ops->sync(t.device));
	return t;
}

static void
bench_close(Bench *t)
{
	t->ops->free(t->device, MEMORY_DEVICE, t->a);
	t->ops->free(t->device, MEMORY_DEVICE, t->b);
	t->ops->free(t->device, MEMORY_DEVICE, t->other);
	t->ops->free(t->device, MEMORY_DEVICE, t->scalars);
	t->ops->unload(t->device, t->code);
	t->ops->close(t->device);
	arena_free(t->arena);
}

static void
launch(Bench *t, int stream, Span from, Span to)
{
	void *buffers[] = {from.at, to.at};
	Launch l = {.kernel = K_ADD_ONE,
	            .n_buffers = 2,
	            .buffers = buffers,
	            .scalars = (const Scalar *)(const void *)t->scalars.at,
	            .end = N};

	must(t->ops->run(t->device, stream, t->code, &l));
	buffers[0] = buffers[1] = NULL; /* the launch has copied the pointers */
}

/* The value in the device's memory after all work is done. */
static double
value(Bench *t, Span from, int i)
{
	double all[N];

	must(t->ops->copy(t->device, 0, (Span){(char *)all, sizeof(all)}, from.at));
	must(t->ops->sync(t->device));
	return all[i];
}

static void
test_memory_is_zero_and_aligned(void **state)
{
	Bench t = bench_open(state);

	assert_int_equal((uintptr_t)t.a.at % 64, 0);
	for (int i = 0; i < N; i++)
		assert_true(value(&t, t.a, i) == 0);
	bench_close(&t);
}

/* Code that the device cannot run is refused, with a message that lists the available code. Beside other code it does no
 * harm. */
static void
test_other_code_is_refused(void **state)
{
	static const KernelCode none[N_KERNELS];
	const CodeImage gpu = {"sm_70", "", IMAGE_BYTES, "cubin", 5, 0};
	const CodeImage cpu = {"future", "", IMAGE_FUNCTIONS, none, N_KERNELS, 0};
	Bench t = bench_open(state);
	bool on_gpu = t.ops->image_kind == IMAGE_BYTES;
	const CodeImage images[] = {on_gpu ? cpu : gpu, *t.image};
	CodeSource source = {.images = images, .n_images = 1, .tables = t.tables};
	Code *code;

	Status status = t.ops->load(t.device, &source, &code);
	assert_null(code);
	expect_status(status_copy(status), EXIT_SYSTEM,
	              on_gpu ? "there is code for future" : "there is code for sm_70");
	expect_status(status, EXIT_SYSTEM, on_gpu ? "--target=cuda" : "--target=cpu:native");
	source.n_images = 2;
	must(t.ops->load(t.device, &source, &code));
	t.ops->unload(t.device, code);
	bench_close(&t);
}

/* Loads the tiny model's code after one change to its description. */
static void
expect_other_code(const Bench *t, void (*change)(CodeImage *image, KernelCode *code),
                  const char *words)
{
	Arena *arena = arena_new();
	int64_t bytes;
	Format f;
	Code *code;

	void *blob = tiny_blob(arena, true, &bytes);
	must(format_read(blob, bytes, &f));
	CodeImage *own = (CodeImage *)tiny_image(arena, tiny_kernels, N_KERNELS);
	change(own, (KernelCode *)own->data);
	Status status = t->ops->load(
		t->device, &(CodeSource){.images = own, .n_images = 1, .tables = &f}, &code);
	if (words) {
		expect_status(status, EXIT_SYSTEM, words);
	} else {
		must(status);
		t->ops->unload(t->device, code);
	}
	arena_free(arena);
}

static void
change_nothing(CodeImage *own, KernelCode *code)
{
	(void)own;
	(void)code;
}
static void
change_size(CodeImage *own, KernelCode *code)
{
	(void)code;
	own->size--;
}
static void
change_facts(CodeImage *own, KernelCode *code)
{
	(void)own;
	code[K_UPDATE].facts ^= 1;
}
static void
change_function(CodeImage *own, KernelCode *code)
{
	(void)own;
	code[K_EVAL].run = NULL;
}

static void
test_code_is_that_of_the_tables(void **state)
{
	Bench t = bench_open(state);

	if (t.ops->image_kind != IMAGE_FUNCTIONS) { /* other images: bundle_test.c */
		bench_close(&t);
		skip();
	}
	expect_other_code(&t, change_nothing, NULL);
	expect_other_code(&t, change_size, "6 kernels, but the code has 5");
	expect_other_code(&t, change_facts, "the record of kernel k_update");
	expect_other_code(&t, change_function, "no code of kernel k_eval");
	bench_close(&t);
}

static void
test_one_stream_is_in_order(void **state)
{
	Bench t = bench_open(state);

	for (int i = 0; i < 10; i++) {
		launch(&t, 0, t.a, t.b);
		must(t.ops->copy(t.device, 0, t.a, t.b.at));
	}
	assert_true(value(&t, t.a, N - 1) == 10);
	must(t.ops->fill_zero(t.device, 0, t.a));
	assert_true(value(&t, t.a, 0) == 0);
	bench_close(&t);
}

static void
test_wait_orders_streams(void **state)
{
	Bench t = bench_open(state);

	for (int i = 0; i < 20; i++) {
		launch(&t, 1, t.a, t.b);
		must(t.ops->record(t.device, 1, 3));
		must(t.ops->wait(t.device, 2, 3));
		launch(&t, 2, t.b, t.a);
		must(t.ops->record(t.device, 2, 4));
		must(t.ops->wait(t.device, 1, 4));
	}
	must(t.ops->sync(t.device));
	assert_true(value(&t, t.a, 0) == 40);
	bench_close(&t);
}

static void
test_wait_without_record_returns(void **state)
{
	Bench t = bench_open(state);

	must(t.ops->wait(t.device, 1, 9));
	must(t.ops->sync(t.device));
	bench_close(&t);
}

/* ---- tasks of the host in a stream */
typedef struct {
	int polls, until; /* reports done after `until` polls */
	Status fault;     /* fault to report then; NULL: no fault */
} Countdown;

static Status
poll_countdown(HostTask *task, bool *done)
{
	Countdown *c = task->context;

	*done = ++c->polls >= c->until;
	return *done ? c->fault : NULL;
}

/* Work behind a task in its stream waits for the task, and so do waits for an event behind it; other streams go on. */
static void
test_tasks_have_their_turn(void **state)
{
	Bench t = bench_open(state);
	Countdown c = {.until = 7};
	const HostTask task = {.poll = poll_countdown, .context = &c};

	must(t.ops->call(t.device, 1, &task));
	launch(&t, 1, t.a, t.b);                     /* b = 1 */
	must(t.ops->copy(t.device, 1, t.a, t.b.at)); /* a = 1 */
	must(t.ops->record(t.device, 1, 3));
	launch(&t, 0, t.other, t.other); /* not touched by the other launches */
	must(t.ops->wait(t.device, 2, 3));
	launch(&t, 2, t.a, t.b); /* b = 2 */
	must(t.ops->fill_zero(t.device, 2, t.a));
	must(t.ops->record(t.device, 2, 4));
	must(t.ops->host_wait(t.device, 4));
	assert_int_equal(c.polls, 7);
	assert_true(t.ops->is_done(t.device, 3) && t.ops->is_done(t.device, 4));
	assert_true(value(&t, t.b, 5) == 2 && value(&t, t.a, 5) == 0);
	assert_true(value(&t, t.other, 5) == 1);
	bench_close(&t);
}

/* Every caller gets the fault, as often as it asks. Work queued behind the fault, on any stream, does not run, and no caller
 * waits for ever. */
static void
test_fault_of_a_task(void **state)
{
	Bench t = bench_open(state);
	Countdown c = {.until = 2, .fault = status_error(EXIT_COMM, "lost")}, behind = {.until = 1};
	Status status = t.ops->call(t.device, 1,
	                            &(HostTask){.poll = poll_countdown, .context = &c});

	for (int stream = 1; stream < 3 && !status; stream++) {
		status = t.ops->call(t.device, stream,
		                     &(HostTask){.poll = poll_countdown, .context = &behind});
		if (!status)
			status = t.ops->record(t.device, stream, 3);
		if (!status && stream == 1)
			status = t.ops->wait(t.device, 2, 3);
	}
	must(t.ops->host_wait(t.device, 3));
	if (!status)
		status = t.ops->sync(t.device);
	expect_status(status, EXIT_COMM, "lost");
	expect_status(t.ops->sync(t.device), EXIT_COMM, "lost");
	expect_status(t.ops->fault(t.device), EXIT_COMM, "lost");
	assert_true(c.polls == 2 && behind.polls == 0);
	bench_close(&t);
}

/* ---- the host's access to the device's memory */
static void
die_quietly(int signal)
{
	_exit(signal);
}

static void
test_memory_that_is_apart_is_not_read(void **state)
{
	Bench t = bench_open(state);
	int ended;

	if (!t.ops->host_memory) {
		pid_t child = fork();
		if (child == 0) {
			signal(SIGSEGV, die_quietly);
			_exit(*(volatile char *)t.a.at); /* 0, if the host can read it */
		}
		assert_int_equal(waitpid(child, &ended, 0), child);
		assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == SIGSEGV);
	} else {
		assert_int_equal(*(volatile char *)t.a.at, 0);
	}
	bench_close(&t);
}

/* A recorded run does not execute. Each launch of the recording does, in the order of its streams and events. */
static void
test_recordings_are_launched(void **state)
{
	Bench t = bench_open(state);
	Recorded *recorded;

	if (!t.ops->capture_begin) {
		print_message("%s records nothing\n", t.ops->name);
		bench_close(&t);
		skip();
	}
	must(t.ops->capture_begin(t.device));
	launch(&t, 1, t.a, t.b);
	must(t.ops->record(t.device, 1, 3));
	must(t.ops->wait(t.device, 2, 3));
	must(t.ops->copy(t.device, 2, t.a, t.b.at));
	must(t.ops->record(t.device, 2, 4));
	must(t.ops->wait(t.device, 1, 4));
	must(t.ops->capture_end(t.device, &recorded));
	assert_true(value(&t, t.a, 0) == 0);
	for (int i = 0; i < 5; i++) /* in place of event 4, launch i records event 4 + i */
		must(t.ops->launch(t.device, recorded, &(EventShift){4, 1, i}));
	must(t.ops->sync(t.device));
	assert_true(value(&t, t.a, 0) == 5 && value(&t, t.b, N - 1) == 5);
	for (int i = 0; i < 4; i++) {
		double seconds;
		must(t.ops->elapsed(t.device, 4 + i, 5 + i, &seconds));
		assert_true(seconds > 0);
	}
	t.ops->forget(t.device, recorded);
	bench_close(&t);
}

static void
test_elapsed_is_positive(void **state)
{
	Bench t = bench_open(state);
	double seconds;

	must(t.ops->record(t.device, 0, 0));
	launch(&t, 0, t.a, t.b);
	must(t.ops->record(t.device, 0, 1));
	must(t.ops->sync(t.device));
	must(t.ops->elapsed(t.device, 0, 1, &seconds));
	assert_true(seconds >= 0 && seconds < 60);
	bench_close(&t);
}

enum { STEPS = 30 };

/* Opens a training with or without the WAIT in its schedule. */
static Gradc *
training_open(const char *device, bool with_wait, Tiny *t)
{
	Gradc *run;

	*t = tiny_open(with_wait, 16);
	t->options.device = device;
	t->model.images = image_for(t->arena, device_find(device));
	t->options.libraries = false;
	t->options.steps = STEPS;
	must(gradc_open(&t->model, &t->options, t->diag, &run));
	must(gradc_bind_data(run));
	return run;
}

/* The loss after some steps on a device. */
static double
train_on(const char *device, bool with_wait)
{
	Tiny t;
	Gradc *run = training_open(device, with_wait, &t);
	GradcStep step = {0};

	for (int i = 0; i < STEPS; i++)
		must(gradc_step(run, &step));
	gradc_close(run);
	tiny_close(&t);
	return step.loss;
}

static void
test_training_is_the_same(void **state)
{
	const DeviceOps *ops = device_find(*state);

	ops->close(device_open(ops));
	assert_true(train_on(*state, true) == train_on("cpu", true));
}

/* Between two steps the host waits once: for the results of the previous step. */
static void
test_the_host_waits_once_a_step(void **state)
{
	const DeviceOps *ops = device_find(*state);
	GradcStep step;
	bool got;
	Tiny t;

	ops->close(device_open(ops));
	Gradc *run = training_open(*state, true, &t);
	must(gradc_queue_step(run));
	int64_t before = run->executor.host_waits;
	for (int i = 1; i < STEPS; i++) {
		must(gradc_queue_step(run));
		must(gradc_step_result(run, true, &step, &got));
		assert_true(got && step.step == i);
	}
	assert_int_equal(run->executor.host_waits - before, STEPS - 1);
	gradc_close(run);
	tiny_close(&t);
}

static void
test_lost_wait_is_seen(void **state)
{
#ifndef __SANITIZE_THREAD__ /* the thread sanitizer would report the deliberate race */
	assert_true(train_on("async", false) != train_on("cpu", true));
#endif
}

/* Memory that maps a file: pages become private when they are written, and the whole memory after unmap. */
static void
test_mapped_memory(void **state)
{
	enum { PAGE = 4096, BYTES = 3 << 20, MAPPED = BYTES - 5 * PAGE };
	Bench t = bench_open(state);
	FILE *file = tmpfile();
	Span all, part = {NULL, MAPPED};

	if (!t.ops->map) {
		print_message("%s copies files\n", t.ops->name);
		fclose(file);
		bench_close(&t);
		skip();
	}
	for (int i = 0; i < BYTES / 4; i++)
		fwrite(&i, sizeof(i), 1, file);
	fflush(file);
	must(t.ops->alloc(t.device, MEMORY_DEVICE, BYTES, &all));
	part.at = all.at + 2 * PAGE - (uintptr_t)all.at % PAGE;
	must(t.ops->map(t.device, part, fileno(file), PAGE));
	int *at = (int *)part.at;
	at[7] = -1;
	must(t.ops->unmap(t.device, part));
	at[MAPPED / 4 - 1] = -2;
	for (int i = 0; i < MAPPED / 4; i++)
		assert_int_equal(at[i], i == 7 ? -1 : i == MAPPED / 4 - 1 ? -2 : i + PAGE / 4);
	assert_int_equal(part.at[-1] | part.at[MAPPED], 0); /* memory around it is unchanged */
	rewind(file);
	for (int i = 0, read; i < BYTES / 4; i++) {
		assert_int_equal(fread(&read, sizeof(read), 1, file), 1);
		assert_int_equal(read, i);
	}
	t.ops->free(t.device, MEMORY_DEVICE, all);
	fclose(file);
	bench_close(&t);
}

/* Copies of any size at any place, several within one thread's share, with checksums of the copied bytes. */
static void
test_hashed_copies(void **state)
{
	static const int64_t sizes[] = {40,    0, 1,       1 << 15, 5 << 20,
	                                70001, 0, 3 << 20, 12345,   1 << 16};
	enum { ROOM = 10 << 20, GAP = 4096 };
	Bench t = bench_open(state);
	HashedCopy copies[COUNT(sizes)];
	Span from, to;
	int64_t at = 0;

	if (!t.ops->copy_hashed) {
		print_message("%s leaves checksums to the host\n", t.ops->name);
		bench_close(&t);
		skip();
	}
	must(t.ops->alloc(t.device, MEMORY_DEVICE, ROOM, &from));
	must(t.ops->alloc(t.device, MEMORY_PINNED, ROOM, &to));
	for (int i = 0; i < ROOM; i++)
		from.at[i] = (char)(i * 2654435761u >> 13);
	for (int i = 0; i < COUNT(sizes); at += sizes[i++]) {
		at += i == 5 ? GAP : 0;
		copies[i] = (HashedCopy){{to.at + at, sizes[i]}, from.at + ROOM - at - sizes[i], 0};
	}
	must(t.ops->copy_hashed(t.device, copies, COUNT(sizes)));
	must(t.ops->copy_hashed(t.device, NULL, 0));
	for (int i = 0; i < COUNT(sizes); i++) {
		assert_memory_equal(copies[i].to.at, copies[i].from, (size_t)sizes[i]);
		assert_true(copies[i].checksum == checksum_bytes(copies[i].from, sizes[i]));
	}
	for (int i = 0; i < GAP; i++)
		assert_int_equal(copies[5].to.at[-1 - i], 0);
	t.ops->free(t.device, MEMORY_PINNED, to);
	t.ops->free(t.device, MEMORY_DEVICE, from);
	bench_close(&t);
}

/* Looks up `n` bytes, and compares each number with its channel's entry. `to` has no byte more than the numbers. */
static void
check_look_up(Bench *t, int n, int channels, int stride)
{
	enum { ENTRIES = 256 };
	Span from, back, to, tables;
	int64_t table_bytes = 4 * ENTRIES * channels;

	must(t->ops->alloc(t->device, MEMORY_PINNED, n, &from));
	must(t->ops->alloc(t->device, MEMORY_PINNED, 4 * n + table_bytes, &back));
	must(t->ops->alloc(t->device, MEMORY_DEVICE, 4 * n, &to));
	must(t->ops->alloc(t->device, MEMORY_DEVICE, table_bytes, &tables));
	uint8_t *bytes = (uint8_t *)from.at;
	uint32_t *numbers = (uint32_t *)(void *)back.at;
	for (int i = 0; i < n; i++)
		bytes[i] = (uint8_t)((unsigned)i * 2654435761u >> 13);
	for (int i = 0; i < ENTRIES * channels; i++)
		numbers[i] = (uint32_t)i * 40503u;
	must(t->ops->copy(t->device, 1, tables, numbers));
	must(t->ops->sync(t->device));
	const LookUp l = {.to = to.at,
	                  .from = bytes,
	                  .tables = tables.at,
	                  .n = n,
	                  .channels = channels,
	                  .stride = stride,
	                  .bytes = 4};
	assert_true(t->ops->has_look_up(t->code, &l));
	must(t->ops->look_up(t->device, 1, t->code, &l));
	must(t->ops->copy(t->device, 1, (Span){back.at, 4 * n}, to.at));
	must(t->ops->sync(t->device));
	for (int i = 0; i < n; i++)
		assert_int_equal(numbers[i],
		                 (uint32_t)(i / stride % channels * ENTRIES + bytes[i]) * 40503u);
	t->ops->free(t->device, MEMORY_PINNED, from);
	t->ops->free(t->device, MEMORY_PINNED, back);
	t->ops->free(t->device, MEMORY_DEVICE, to);
	t->ops->free(t->device, MEMORY_DEVICE, tables);
}

/* Of all lengths modulo a thread's 16 bytes, and of more bytes than the threads of a launch take at a time. */
static void
test_look_ups(void **state)
{
	Bench t = bench_open(state);

	if (!t.ops->look_up) {
		print_message("%s leaves look-ups to the host\n", t.ops->name);
		bench_close(&t);
		skip();
	}
	for (int n = 1; n <= 40; n++)
		check_look_up(&t, n, 1, n);
	check_look_up(&t, 300015, 3, 1);
	check_look_up(&t, 300015, 3, 5);
	check_look_up(&t, 3 * 3 * 1025, 3, 1025);
	bench_close(&t);
}

#define DEVICE(name)                                                                        \
	{"memory " #name, test_memory_is_zero_and_aligned, NULL, NULL, #name},              \
		{"images " #name, test_other_code_is_refused, NULL, NULL, #name},           \
		{"tables " #name, test_code_is_that_of_the_tables, NULL, NULL, #name},      \
		{"order " #name, test_one_stream_is_in_order, NULL, NULL, #name},           \
		{"wait " #name, test_wait_orders_streams, NULL, NULL, #name},               \
		{"early wait " #name, test_wait_without_record_returns, NULL, NULL, #name}, \
		{"elapsed " #name, test_elapsed_is_positive, NULL, NULL, #name},            \
		{"tasks " #name, test_tasks_have_their_turn, NULL, NULL, #name},            \
		{"fault " #name, test_fault_of_a_task, NULL, NULL, #name},                  \
		{"apart " #name, test_memory_that_is_apart_is_not_read, NULL, NULL, #name}, \
		{"recordings " #name, test_recordings_are_launched, NULL, NULL, #name},     \
		{"map " #name, test_mapped_memory, NULL, NULL, #name},                      \
		{"hashed copies " #name, test_hashed_copies, NULL, NULL, #name},            \
		{"look-ups " #name, test_look_ups, NULL, NULL, #name},                      \
		{"train " #name, test_training_is_the_same, NULL, NULL, #name},             \
		{"waits " #name, test_the_host_waits_once_a_step, NULL, NULL, #name},

int
main(void)
{
	const struct CMUnitTest tests[] = {
#include "runtime/device/device_list.def"
		cmocka_unit_test(test_lost_wait_is_seen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
