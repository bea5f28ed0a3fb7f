/* Steps that are queued before the previous step's results are there, on a slow device. */
#include "runtime/exec/exec.h"
#include "runtime/gradc.h"
#include "runtime/run/run.h"
#include "tests/unit/runtime/runtime_tiny.h"

enum { STEPS = 9 };

/* Every piece of work on the compute stream takes 20 ms, so a queued step is not finished at once. */
static Gradc *
start(Tiny *t, const char *device)
{
	Gradc *run;

	*t = tiny_open(true, 16);
	t->options.device = device;
	t->options.shuffle = false;
	t->options.steps = STEPS;
	must(gradc_open(&t->model, &t->options, t->diag, &run));
	must(gradc_bind_data(run));
	return run;
}

static void
finish(Tiny *t, Gradc *run)
{
	gradc_close(run);
	tiny_close(t);
}

/* The losses of STEPS steps; each step is waited for. */
static void
train_on_cpu(double losses[STEPS])
{
	Tiny t;
	Gradc *run = start(&t, "cpu");

	for (int i = 0; i < STEPS; i++) {
		GradcStep step;
		must(gradc_step(run, &step));
		losses[i] = step.loss;
	}
	finish(&t, run);
}

static bool
has_recordings(const Executor *x)
{
	for (int i = 0; i < x->format->n[SECTION_PROGRAMS] * RUNS_PER_PROGRAM; i++)
		if (x->recorded[i].recorded)
			return true;
	return false;
}

static void
test_results_come_one_step_late(void **state)
{
	Tiny t;
	Gradc *run = start(&t, "async");
	double losses[STEPS];
	int taken = 0;
	bool got;

	train_on_cpu(losses);
	for (int i = 0; i < STEPS; i++) {
		GradcStep step;

		must(gradc_queue_step(run));
		int64_t waits = run->executor.host_waits;
		must(gradc_step_result(run, false, &step, &got));
		assert_false(got && i == 0); /* the step takes at least 20 ms */
		if (!got && gradc_steps_queued(run) > 1)
			must(gradc_step_result(run, true, &step, &got));
		assert_true(run->executor.host_waits - waits <= 1);
		if (got) {
			assert_int_equal(step.step, taken + 1);
			assert_true(step.loss == losses[taken++]);
		}
	}
	assert_true(taken < STEPS);
	for (got = true; got;) {
		GradcStep step;
		must(gradc_step_result(run, true, &step, &got));
		assert_true(!got || step.loss == losses[taken++]);
	}
	assert_int_equal(taken, STEPS);
	assert_true(has_recordings(&run->executor)); /* most steps were launches of a recording */
	finish(&t, run);
}

static void
test_few_steps_are_queued_at_most(void **state)
{
	Tiny t;
	Gradc *run = start(&t, "cpu");
	char words[64];

	for (int i = 0; i < MAX_QUEUED; i++)
		must(gradc_queue_step(run));
	snprintf(words, sizeof(words), "%d steps are queued", MAX_QUEUED);
	expect_status(gradc_queue_step(run), EXIT_USAGE, words);
	finish(&t, run);
}

/* Calls that wait for their own step, or need the state after a step. */
static void
test_results_are_taken_first(void **state)
{
	Tiny t;
	Gradc *run = start(&t, "cpu");
	const char *words = "a step is queued: take its results first";
	GradcResume resumed;
	GradcStep step;
	bool got;

	must(gradc_queue_step(run));
	expect_status(gradc_step(run, &step), EXIT_USAGE, words);
	expect_status(gradc_accumulate(run, &step), EXIT_USAGE, words);
	expect_status(gradc_update(run, &step), EXIT_USAGE, "gradc_accumulate comes first");
	expect_status(gradc_resume(run, &resumed), EXIT_USAGE, words);
	must(gradc_step_result(run, true, &step, &got));
	assert_true(got && step.step == 1 && gradc_steps_done(run) == 1);
	must(gradc_step(run, &step));
	assert_int_equal(step.step, 2);
	finish(&t, run);
}

/* Between the two halves of a step no other call computes with its sums. */
static void
test_halves_of_a_step_follow_each_other(void **state)
{
	Tiny t;
	Gradc *run = start(&t, "cpu");
	const char *words = "gradients wait for gradc_update";
	GradcStep step;
	GradcEval eval;

	expect_status(gradc_update(run, &step), EXIT_USAGE, "gradc_accumulate comes first");
	must(gradc_accumulate(run, &step));
	expect_status(gradc_accumulate(run, &step), EXIT_USAGE, words);
	expect_status(gradc_step(run, &step), EXIT_USAGE, words);
	expect_status(gradc_queue_step(run), EXIT_USAGE, words);
	expect_status(gradc_evaluate(run, &eval), EXIT_USAGE, words);
	must(gradc_update(run, &step));
	assert_int_equal(step.step, 1);
	expect_status(gradc_update(run, &step), EXIT_USAGE, "gradc_accumulate comes first");
	must(gradc_step(run, &step));
	assert_int_equal(step.step, 2);
	finish(&t, run);
}

static double
weight(Gradc *run)
{
	double w;

	must(executor_read(&run->executor, &w, executor_state(&run->executor, 1)));
	return w;
}

/* The second step's rows are too large. Work queued behind it changes nothing, and the fault names the second step. */
static void
test_what_is_queued_behind_a_failure_does_nothing(void **state)
{
	Tiny t = tiny_open(true, 16);
	double x[16], y[16];
	const int64_t dims[] = {16};
	GradcStep step;
	Gradc *run;
	bool got;

	for (int i = 0; i < 16; i++) {
		x[i] = i / 4 == 1 ? 1e200 : 1;
		y[i] = 3;
	}
	must(npy_write(t.options.data.at[0].value, F64, 1, dims, x));
	must(npy_write(t.options.data.at[1].value, F64, 1, dims, y));
	t.options.device = "async";
	t.options.shuffle = false;
	must(gradc_open(&t.model, &t.options, t.diag, &run));
	must(gradc_bind_data(run));
	must(gradc_step(run, &step));
	double after_first = weight(run);
	assert_true(after_first != tiny_weight);
	must(gradc_queue_step(run));
	must(gradc_queue_step(run));
	expect_status(gradc_step_result(run, true, &step, &got), EXIT_NON_FINITE,
	              "step 2: the loss is inf");
	assert_int_equal(step.step, 2);
	expect_status(gradc_step_result(run, true, &step, &got), EXIT_NON_FINITE,
	              "step 3 changed nothing");
	assert_true(got && step.step == 3 && weight(run) == after_first);
	finish(&t, run);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_results_come_one_step_late),
		cmocka_unit_test(test_few_steps_are_queued_at_most),
		cmocka_unit_test(test_results_are_taken_first),
		cmocka_unit_test(test_halves_of_a_step_follow_each_other),
		cmocka_unit_test(test_what_is_queued_behind_a_failure_does_nothing),
	};

	setenv("GRADC_ASYNC_SLOW", "0", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
