/* A thread reads rows ahead of the step that needs them. Nothing else changes: the order, the losses, the step to which a
 * fault belongs. Reads go through this file's pread, which counts calls and can hold them back. */
#include "runtime/data/data.h"
#include "tests/unit/runtime/runtime_tiny.h"

#include <jansson.h>
#include <pthread.h>
#include <sys/syscall.h>

enum { CALLS_A_STEP = 2 /* x, labels: consecutive rows */, ANY = 1 << 30 };

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int calls;   /* number of finished calls */
	int allowed; /* number of calls before the next one must wait */
	int last;    /* thread that made the last call */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

ssize_t
pread(int fd, void *to, size_t n, off_t offset)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.calls >= gate.allowed)
		pthread_cond_wait(&gate.changed, &gate.lock);
	ssize_t got = syscall(SYS_pread64, fd, to, n, offset);
	gate.calls++;
	gate.last = (int)syscall(SYS_gettid);
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
	return got;
}

static void
gate_open(int allowed)
{
	pthread_mutex_lock(&gate.lock);
	gate.allowed = allowed;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

static int
gate_calls(void)
{
	pthread_mutex_lock(&gate.lock);
	int calls = gate.calls;
	pthread_mutex_unlock(&gate.lock);
	return calls;
}

static void
wait_asleep(int thread)
{
	char path[64], line[256] = "", *end = NULL;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
	while (!end || end[2] != 'S') {
		FILE *file = fopen(path, "r");
		assert_non_null(file);
		end = fgets(line, sizeof(line), file) ? strrchr(line, ')')
		                                      : NULL; /* "1 (name) S ..." */
		fclose(file);
	}
}

/* Waits until this many calls are finished and their rows are decoded. */
static void
gate_wait(int calls)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.calls < calls)
		pthread_cond_wait(&gate.changed, &gate.lock);
	int reader = gate.last;
	pthread_mutex_unlock(&gate.lock);
	wait_asleep(reader);
}

static void *
open_when_asleep(void *data)
{
	wait_asleep(*(int *)data);
	gate_open(ANY);
	return NULL;
}

/* Starts a run of 16 rows in order, four per step. Counts calls from here on. */
static Gradc *
start_keeping(Tiny *t, int steps, int64_t bytes)
{
	Gradc *run;

	gate_open(ANY);
	*t = tiny_open(true, 16);
	t->options.keep_data = bytes;
	t->options.shuffle = false;
	t->options.steps = steps;
	tiny_data(t, "eval-", 8, &t->options.eval_data);
	must(gradc_open(&t->model, &t->options, t->diag, &run));
	must(gradc_bind_data(run));
	gate.calls = 0;
	return run;
}

static Gradc *
start(Tiny *t, int steps)
{
	return start_keeping(t, steps, 0);
}

static void
finish(Tiny *t, Gradc *run)
{
	gate_open(ANY);
	gradc_close(run);
	tiny_close(t);
}

/* While the host program makes no calls, the next step's rows are read, so the step need not wait. */
static void
test_rows_are_read_ahead(void **state)
{
	Tiny t;
	Gradc *run = start(&t, 3);
	GradcStep step;

	for (int i = 1; i <= 3; i++) {
		must(gradc_step(run, &step));
		assert_int_equal(step.data_waits, i == 1);
		gate_wait(CALLS_A_STEP * (i < 3 ? i + 1 : i));
		assert_int_not_equal(gate.last, (int)syscall(SYS_gettid));
	}
	finish(&t, run);
	assert_int_equal(gate.calls, CALLS_A_STEP * 3); /* no reads for a fourth step */
}

/* A step does not wait for the rows of the next step. Only a step whose own rows are missing waits. */
static void
test_waits_are_counted(void **state)
{
	Tiny t;
	Gradc *run = start(&t, 2);
	GradcStep step;
	pthread_t opener;
	int self = (int)syscall(SYS_gettid);

	gate_open(CALLS_A_STEP);
	must(gradc_step(run, &step));
	assert_int_equal(gate_calls(), CALLS_A_STEP);
	assert_int_equal(pthread_create(&opener, NULL, open_when_asleep, &self), 0);
	must(gradc_step(run, &step));
	pthread_join(opener, NULL);
	assert_int_equal(step.data_waits, 1);
	finish(&t, run);
}

/* The file is truncated behind the rows already read: only the step that needs the missing rows fails. */
static void
test_fault_at_its_step(void **state)
{
	Tiny t;
	Gradc *run = start(&t, 4);
	GradcStep step;

	must(gradc_step(run, &step));
	gate_wait(2 * CALLS_A_STEP);
	assert_int_equal(truncate(t.options.data.at[0].value, 128 + 10 * 8 + 3), 0);
	must(gradc_step(run, &step));
	expect_status(gradc_step(run, &step), EXIT_DATA,
	              "x.npy: row 10: the file has shrunk to 211 bytes since it was opened");
	finish(&t, run);
}

/* Rows that were read in vain are dropped: after an evaluation, or after a resume from another step. */
static void
test_other_rows_than_those_read(void **state)
{
	Tiny t;
	Gradc *run = start(&t, 4);
	GradcStep steps[4], step;
	GradcEval eval;

	for (int i = 0; i < 4; i++)
		must(gradc_step(run, &steps[i]));
	finish(&t, run);
	run = start(&t, 4);
	must(gradc_evaluate(run, &eval));
	assert_int_equal(eval.rows, 8);
	for (int i = 0; i < 4; i++) {
		must(gradc_step(run, &step));
		assert_true(step.loss == steps[i].loss);
		must(gradc_evaluate(run, &eval));
	}
	run->step = run->samples = 0; /* as if resumed from before the first step */
	must(gradc_step(run, &step));
	assert_int_equal(step.samples, 4);
	assert_true(step.loss < steps[0].loss); /* the same rows, after training */
	finish(&t, run);
}

/* After an evaluation, the next step's rows are read. */
static void
test_evaluation_reads_ahead(void **state)
{
	Tiny t;
	Gradc *run = start(&t, 1);
	GradcEval eval;
	GradcStep step;

	must(gradc_evaluate(run, &eval));
	gate_wait(3 * CALLS_A_STEP);
	must(gradc_step(run, &step));
	assert_int_equal(step.data_waits, 0);
	finish(&t, run);
	assert_int_equal(gate.calls, 3 * CALLS_A_STEP);
}

static int
count_threads(void)
{
	FILE *file = fopen("/proc/self/status", "r");
	char line[256];
	int n = 0;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		sscanf(line, "Threads: %d", &n);
	fclose(file);
	return n;
}

/* Small files are read once, and the step decodes its rows itself. Larger files are read by the thread as usual. */
static void
test_small_files_are_kept(void **state)
{
	const int64_t bytes[] = {0, 16 * 8, 2 * 16 * 8},
		      calls[] = {CALLS_A_STEP, CALLS_A_STEP - 1, 0};
	double losses[4];
	GradcStep step;
	GradcEval eval;

	for (int k = 0; k < 3; k++) {
		Tiny t;
		Gradc *run = start_keeping(&t, 4, bytes[k]);

		assert_int_equal(run->train->at_hand, calls[k] == 0);
		for (int i = 0; i < 4; i++) {
			must(gradc_step(run, &step));
			losses[i] = k ? losses[i] : step.loss;
			assert_true(step.loss == losses[i]);
			assert_int_equal(step.data_waits, calls[k] && i == 0);
			if (calls[k])
				gate_wait((int)calls[k] * (i < 3 ? i + 2 : 4));
		}
		assert_int_equal(gate_calls(), 4 * calls[k]);
		must(gradc_evaluate(run, &eval));
		finish(&t, run);
	}
}

/* The truncation of a kept file is detected before the next micro-batch, whichever rows it needs. */
static void
test_a_kept_file_shrinks(void **state)
{
	Tiny t;
	Gradc *run = start_keeping(&t, 4, 1 << 20);
	GradcStep step;

	must(gradc_step(run, &step));
	assert_int_equal(truncate(t.options.data.at[0].value, 128 + 10 * 8 + 3), 0);
	expect_status(gradc_step(run, &step), EXIT_DATA,
	              "x.npy: row 10: the file has shrunk to 211 bytes since it was opened");
	finish(&t, run);
}

/* Closing during a slow read leaves no thread behind. */
static void
test_close_while_reading(void **state)
{
	int before = count_threads();
	Tiny t;
	Gradc *run = start(&t, 4);
	GradcStep step;

	gate_open(CALLS_A_STEP + 1);
	must(gradc_step(run, &step));
	gate_wait(CALLS_A_STEP + 1);
	assert_int_equal(count_threads(), before + 1);
	finish(&t, run);
	assert_int_equal(count_threads(), before);
}

/* A fault in rows that no step asks for is not reported: the run ends before the bad row. */
static void
test_fault_behind_the_end(void **state)
{
	Tiny t;
	Gradc *run = start(&t, 4);
	GradcStep step;

	must(gradc_step(run, &step));
	gate_wait(2 * CALLS_A_STEP);
	assert_int_equal(truncate(t.options.data.at[1].value, 128 + 8 * 8), 0);
	must(gradc_step(run, &step));
	finish(&t, run);
}

/* The thread writes trace spans while steps do; checked by the thread sanitizer, and no span is lost. */
static void
test_trace_from_two_threads(void **state)
{
	Tiny t = tiny_open(true, 400);
	Gradc *run;
	GradcStep step;
	json_error_t error;
	int n_reads = 0;

	gate_open(ANY);
	t.options.keep_data = 0;
	t.options.trace = tiny_path(&t, "trace.json");
	t.options.lr = 1e-9;
	must(gradc_open(&t.model, &t.options, t.diag, &run));
	must(gradc_bind_data(run));
	for (int i = 0; i < 100; i++)
		must(gradc_step(run, &step));
	must(gradc_finish(run));
	gradc_close(run);
	json_t *root = json_load_file(t.options.trace, 0, &error), *event;
	size_t i;
	assert_non_null(root);
	json_array_foreach(json_object_get(root, "traceEvents"), i, event)
		n_reads += strcmp(json_string_value(json_object_get(event, "name")), "read") == 0;
	assert_int_equal(n_reads, 100);
	json_decref(root);
	tiny_close(&t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_are_read_ahead),
		cmocka_unit_test(test_waits_are_counted),
		cmocka_unit_test(test_fault_at_its_step),
		cmocka_unit_test(test_other_rows_than_those_read),
		cmocka_unit_test(test_evaluation_reads_ahead),
		cmocka_unit_test(test_small_files_are_kept),
		cmocka_unit_test(test_a_kept_file_shrinks),
		cmocka_unit_test(test_close_while_reading),
		cmocka_unit_test(test_fault_behind_the_end),
		cmocka_unit_test(test_trace_from_two_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
