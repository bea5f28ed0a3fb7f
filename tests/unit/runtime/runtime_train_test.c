/* Trains the tiny model through gradc.h and compares with the same steps written out in C. */
#include "tests/unit/runtime/runtime_tiny.h"

#include <pthread.h>

/* One step of gradient descent over rows [first, first+n) of x = 1 + i/4, t = 3x. */
static double
reference_step(double *w, double lr, int first, int n)
{
	double loss = 0, g = 0;

	for (int i = first; i < first + n; i++) {
		double x = 1 + 0.25 * i, diff = *w * x - 3 * x;
		loss += diff * diff;
		g += 2 * diff * x;
	}
	*w -= lr * g / n;
	return loss / n;
}

static void
near(double got, double want)
{
	if (!(fabs(got - want) <= 1e-12 * fabs(want)))
		fail_msg("%.17g is not %.17g", got, want);
}

static Gradc *
start(Tiny *t)
{
	Gradc *run;

	must(gradc_open(&t->model, &t->options, t->diag, &run));
	must(gradc_bind_data(run));
	return run;
}

/* The losses of all steps must equal the reference's, which takes `size` rows per step out of `rows`. */
static void
follow(Tiny *t, int rows, int size, int steps)
{
	Gradc *run = start(t);
	double w = tiny_weight;

	assert_int_equal(gradc_total_steps(run), steps);
	for (int i = 0, at = 0; i < steps; i++) {
		GradcStep step;
		int n = at + size <= rows ? size : rows - at;

		must(gradc_step(run, &step));
		near(step.loss, reference_step(&w, t->options.lr, at, n));
		assert_int_equal(step.rows, n);
		assert_int_equal((int)step.count, n);
		at = (at + n) % rows + size > rows && !t->options.keep_last ? 0 : (at + n) % rows;
	}
	gradc_close(run);
	tiny_close(t);
}

static Tiny
unshuffled(int rows)
{
	Tiny t = tiny_open(true, rows);

	t.options.shuffle = false;
	return t;
}

static void
test_losses(void **state)
{
	Tiny t = unshuffled(16);

	t.options.epochs = 3;
	follow(&t, 16, 4, 12);
}

/* ---- several sessions in one process */
typedef struct {
	Tiny t;
	pthread_t thread;
	double loss;
	Status status;
} Other;

static Status
open_and_train(Other *o)
{
	Gradc *run;
	GradcStep step;
	Status status = gradc_open(&o->t.model, &o->t.options, NULL, &run);
	int n, most;

	if (!status)
		status = gradc_bind_data(run);
	if (!status)
		gradc_settings(run, &n);
	for (int i = 0; !status && i < 12; i++) {
		status = gradc_step(run, &step);
		if (!status)
			status = gradc_agree(run, i, &most);
		o->loss = step.loss;
	}
	gradc_close(run);
	return status;
}

static void *
train_in_thread(void *other)
{
	Other *o = other;

	for (int i = 0; i < 10 && !o->status; i++)
		o->status = open_and_train(o);
	return NULL;
}

/* Each session runs in a thread of its own, from open to close, and gives the same results as alone. */
static void
test_sessions_at_the_same_time(void **state)
{
	Other others[3] = {0};
	double w = tiny_weight, loss = 0;

	for (int i = 0; i < COUNT(others); i++) {
		others[i].t = unshuffled(16);
		others[i].t.options.epochs = 3;
	}
	for (int i = 0; i < 12; i++)
		loss = reference_step(&w, others[0].t.options.lr, i % 4 * 4, 4);
	for (int i = 0; i < COUNT(others); i++)
		assert_int_equal(
			pthread_create(&others[i].thread, NULL, train_in_thread, &others[i]), 0);
	for (int i = 0; i < COUNT(others); i++)
		pthread_join(others[i].thread, NULL);
	for (int i = 0; i < COUNT(others); i++) {
		must(others[i].status);
		near(others[i].loss, loss);
		tiny_close(&others[i].t);
	}
}

static void
test_last_partial_batch_is_dropped(void **state)
{
	Tiny t = unshuffled(11);

	t.options.epochs = 2;
	follow(&t, 11, 4, 4);
}

static void
test_keep_last_pads(void **state)
{
	Tiny t = unshuffled(11);

	t.options.keep_last = true;
	t.options.epochs = 2;
	follow(&t, 11, 4, 6);
}

static void
test_accumulation_is_one_large_batch(void **state)
{
	Tiny t = unshuffled(16);

	t.options.accumulate = 2;
	t.options.steps = 5;
	follow(&t, 16, 8, 5);
}

static void
test_accumulation_keeps_last(void **state)
{
	Tiny t = unshuffled(
		18); /* the last step has 2 rows: one padded micro-batch and one empty */

	t.options.accumulate = 2;
	t.options.keep_last = true;
	t.options.epochs = 1;
	follow(&t, 18, 8, 3);
}

static void
test_evaluation_covers_every_row(void **state)
{
	Tiny t = tiny_open(true, 16);
	GradcEval eval, again;
	GradcStep step;
	double w = tiny_weight;

	tiny_data(&t, "eval-", 10, &t.options.eval_data);
	Gradc *run = start(&t);
	assert_true(gradc_has_eval(run));
	must(gradc_evaluate(run, &eval));
	near(eval.loss, reference_step(&w, 0, 0, 10));
	assert_int_equal(eval.rows, 10);
	must(gradc_step(run, &step));
	must(gradc_evaluate(run, &eval));
	must(gradc_evaluate(run, &again));
	assert_true(eval.loss == again.loss && eval.loss < 100);
	gradc_close(run);
	tiny_close(&t);
}

static void
test_shuffling_uses_every_row_once(void **state)
{
	Tiny t = tiny_open(true, 16);
	double sum = 0, want = 0;

	t.options.lr = 0;
	Gradc *run = start(&t);
	for (int i = 0; i < 4; i++) {
		GradcStep step;
		must(gradc_step(run, &step));
		sum += step.loss * 4;
	}
	for (int i = 0; i < 16; i++)
		want += pow(2.5 * (1 + 0.25 * i), 2);
	near(sum, want);
	gradc_close(run);
	tiny_close(&t);
}

static void
test_non_finite_stops_before_the_update(void **state)
{
	Tiny t = unshuffled(16);
	GradcStep step;
	double huge[16];
	const int64_t dims[] = {16};

	for (int i = 0; i < 16; i++)
		huge[i] = 1e200;
	must(npy_write(t.options.data.at[0].value, F64, 1, dims, huge));
	Gradc *run = start(&t);
	Status status = gradc_step(run, &step);
	assert_non_null(status);
	assert_int_equal(status->exit_code, EXIT_NON_FINITE);
	assert_true(isinf(step.loss));
	status_free(status);
	gradc_close(run);
	tiny_close(&t);
}

/* After a loss that is not finite, further steps compute but change nothing: the loss of equal rows stays the same. */
static void
test_after_a_failure_nothing_is_updated(void **state)
{
	Tiny t = unshuffled(16);
	GradcStep step;
	double x[16], y[16];
	const int64_t dims[] = {16};

	for (int i = 0; i < 16; i++) {
		x[i] = i / 4 == 1 ? 1e200 : 1;
		y[i] = 3;
	}
	must(npy_write(t.options.data.at[0].value, F64, 1, dims, x));
	must(npy_write(t.options.data.at[1].value, F64, 1, dims, y));
	Gradc *run = start(&t);
	must(gradc_step(run, &step));
	double lr = t.options.lr, w = tiny_weight - lr * 2 * (tiny_weight - 3);
	Status status = gradc_step(run, &step);
	assert_non_null(status);
	assert_int_equal(status->exit_code, EXIT_NON_FINITE);
	assert_int_equal(step.step, 2);
	status_free(status);
	for (int i = 0; i < 2; i++) { /* rows behind the failing rows */
		expect_status(gradc_step(run, &step), EXIT_NON_FINITE, "changed nothing");
		near(step.loss, (w - 3) * (w - 3));
	}
	gradc_close(run);
	tiny_close(&t);
}

static void
test_export_fills_the_holes(void **state)
{
	Tiny t = tiny_open(true, 16);
	Gradc *run;
	void *bytes;
	int64_t n;
	const float weight = 0.5f;

	must(gradc_open(&t.model, &t.options, t.diag, &run));
	must(gradc_export(run, tiny_path(&t, "out.onnx")));
	must(file_read(t.arena, tiny_path(&t, "out.onnx"), 1000, &bytes, &n));
	assert_int_equal(n, 4 + 4 + 4 + 13 + 5);
	assert_memory_equal(bytes, "HEAD", 4);
	assert_memory_equal((char *)bytes + 4, &weight, 4);
	assert_memory_equal((char *)bytes + 8, "TAILout.onnx.data", 17);
	assert_memory_equal((char *)bytes + 25, "\xc6\x82\x80\x80\x00", 5); /* 300 + 2*13 */
	gradc_close(run);
	tiny_close(&t);
}

static double
read_double(Tiny *t, const char *name)
{
	NpyInfo info;
	void *data;

	must(npy_read(t->arena, tiny_path(t, name), &info, &data));
	assert_int_equal(info.dtype, F64);
	return *(double *)data;
}

static void
test_gradients_are_means(void **state)
{
	Tiny t = unshuffled(16);
	GradcStep step;
	double w = tiny_weight;

	t.options.accumulate = 2;
	Gradc *run = start(&t);
	must(gradc_accumulate(run, &step));
	must(gradc_dump_gradients(run, tiny_path(&t, "dump")));
	near(read_double(&t, "dump/loss.npy"), reference_step(&w, 1, 0, 8));
	near(read_double(&t, "dump/grad.w.npy"), tiny_weight - w);
	must(gradc_update(run, &step));
	near(step.grad_norm, fabs(tiny_weight - w));
	gradc_close(run);
	tiny_close(&t);
}

static void
test_once(void **state)
{
	Tiny t = tiny_open(true, ROWS);
	GradcPairs inputs = {&t.options.data.at[0], 1, 1};
	Gradc *run;

	must(gradc_open(&t.model, &t.options, t.diag, &run));
	must(gradc_once(run, &inputs, false, tiny_path(&t, "once")));
	near(read_double(&t, "once/y.npy"), 0.5);
	gradc_close(run);
	tiny_close(&t);
}

static void
test_load_by_name(void **state)
{
	Tiny t = tiny_open(true, ROWS);
	GradcPairs inputs = {&t.options.data.at[0], 1, 1};
	const float two = 2;
	SafeTensor tensor = {.name = "w", .dtype = F32, .n_bytes = 4, .data = &two};
	Gradc *run;

	t.options.load = tiny_path(&t, "w.safetensors");
	must(safetensors_write(t.options.load, &tensor, 1));
	must(gradc_open(&t.model, &t.options, t.diag, &run));
	must(gradc_once(run, &inputs, false, tiny_path(&t, "once")));
	near(read_double(&t, "once/y.npy"), 2);
	gradc_close(run);
	tiny_close(&t);
}

static void
test_poison_changes_nothing(void **state)
{
	Tiny t = unshuffled(16);

	t.options.poison = true;
	t.options.epochs = 1;
	follow(&t, 16, 4, 4);
}

/* ---- calls that do not fit the previous calls */
static void
test_calls_out_of_order(void **state)
{
	Tiny t = unshuffled(16);
	GradcStep step;
	GradcEval eval;
	Gradc *run;
	bool got;

	(void)state;
	expect_status(gradc_step(NULL, &step), EXIT_USAGE, "there is no run");
	expect_status(gradc_open(NULL, &t.options, NULL, &run), EXIT_USAGE, "an argument is NULL");
	assert_null(run);
	t.options.steps = 4;
	must(gradc_open(&t.model, &t.options, t.diag, &run));
	expect_status(gradc_step(run, &step), EXIT_USAGE, "no data are bound");
	expect_status(gradc_queue_step(run), EXIT_USAGE, "no data are bound");
	expect_status(gradc_accumulate(run, &step), EXIT_USAGE, "no data are bound");
	expect_status(gradc_evaluate(run, &eval), EXIT_USAGE, "no data are bound");
	must(gradc_step_result(run, true, &step, &got));
	assert_false(got);
	must(gradc_bind_data(run));
	expect_status(gradc_bind_data(run), EXIT_USAGE, "bound already");
	expect_status(gradc_step(run, NULL), EXIT_USAGE, "an argument is NULL");
	expect_status(gradc_update(run, &step), EXIT_USAGE, "gradc_accumulate comes first");
	expect_status(gradc_dump_gradients(run, "/nowhere"), EXIT_USAGE,
	              "gradc_accumulate comes first");
	must(gradc_queue_step(run));
	expect_status(gradc_export(run, tiny_path(&t, "e.onnx")), EXIT_USAGE, "a step is queued");
	assert_false(gradc_is_whole(run));
	must(gradc_step_result(run, true, &step, &got));
	assert_true(got && gradc_is_whole(run));
	must(gradc_finish(run));
	expect_status(gradc_step(run, &step), EXIT_USAGE, "gradc_close");
	expect_status(gradc_finish(run), EXIT_USAGE, "gradc_close");
	gradc_close(run);
	tiny_close(&t);
}

/* Data that cannot be bound leave the session unchanged, so that other data may be bound. */
static void
test_data_are_bound_again(void **state)
{
	Tiny t = unshuffled(16);
	GradcStep step;
	Gradc *run;

	(void)state;
	const char *labels = t.options.data.at[1].value, *away = tiny_path(&t, "away");
	assert_int_equal(rename(labels, away), 0);
	must(gradc_open(&t.model, &t.options, t.diag, &run));
	for (int i = 0; i < 2; i++) {
		expect_status(gradc_bind_data(run), EXIT_SYSTEM, "y.npy");
		expect_status(gradc_step(run, &step), EXIT_USAGE, "no data are bound");
	}
	assert_int_equal(rename(away, labels), 0);
	must(gradc_bind_data(run));
	must(gradc_step(run, &step));
	gradc_close(run);
	tiny_close(&t);
}

static void
test_options_without_sense(void **state)
{
	static const struct {
		size_t at; /* offset of an int64_t option */
		int64_t value;
		const char *says;
	} wrong[] = {
		{offsetof(GradcOptions, keep), -1, "--keep: -1"},
		{offsetof(GradcOptions, shard_bytes), 0, "--shard-bytes: 0"},
		{offsetof(GradcOptions, shard_bytes), INT64_MIN, "--shard-bytes"},
		{offsetof(GradcOptions, keep_data), -1, "keep_data: -1"},
		{offsetof(GradcOptions, steps), INT64_MAX, "--steps"},
		{offsetof(GradcOptions, accumulate), 0, "--accumulate: 0"},
		{offsetof(GradcOptions, accumulate), INT64_MAX, "--accumulate"},
		{offsetof(GradcOptions, micro_batch), -1, "--micro-batch: -1"},
		{offsetof(GradcOptions, warmup), -1, "--warmup: -1"},
		{offsetof(GradcOptions, threads), 1 << 20, "--threads: 1048576"},
	};
	Tiny t = unshuffled(16);
	Gradc *run;

	(void)state;
	for (int i = 0; i < COUNT(wrong); i++) {
		GradcOptions o = t.options;
		*(int64_t *)(void *)((char *)&o + wrong[i].at) = wrong[i].value;
		expect_status(gradc_open(&t.model, &o, NULL, &run), EXIT_USAGE, wrong[i].says);
		assert_null(run);
	}
	GradcOptions o = t.options;
	o.data.n = -1;
	expect_status(gradc_open(&t.model, &o, NULL, &run), EXIT_USAGE, "--data: -1 pairs");
	o = t.options;
	o.lr_schedule = o.communicator = NULL;
	must(gradc_open(&t.model, &o, NULL, &run));
	must(gradc_bind_data(run));
	gradc_close(run);
	tiny_close(&t);
}

/* A session does not overwrite its own inputs. Nor does another session of the process, while the first is open. */
static void
test_inputs_of_a_session_stay(void **state)
{
	Tiny t = unshuffled(16);
	const char *data = t.options.data.at[0].value, *weights = t.options.weights;
	Gradc *run, *other;

	(void)state;
	must(gradc_open(&t.model, &t.options, t.diag, &run));
	must(gradc_bind_data(run));
	expect_status(gradc_export(run, data), EXIT_USAGE, "it would be written over");
	expect_status(gradc_export(run, weights), EXIT_USAGE, "it would be written over");
	GradcOptions o = t.options;
	o.data = (GradcPairs){0};
	o.trace = data;
	expect_status(gradc_open(&t.model, &o, NULL, &other), EXIT_USAGE,
	              "it would be written over");
	gradc_close(run);
	o.trace = NULL;
	must(gradc_open(&t.model, &o, NULL, &other));
	must(gradc_export(other, data)); /* no session reads the file any more */
	gradc_close(other);
	tiny_close(&t);
}

typedef struct {
	Gradc *run;
	_Atomic int refused, made;
} Crowd;

static void *
crowd_step(void *context)
{
	Crowd *c = context;
	GradcStep step;

	for (int i = 0; i < 50; i++) {
		Status status = gradc_step(c->run, &step);
		if (status && strstr(status->message, "under way"))
			c->refused++;
		else if (!status)
			c->made++;
		status_free(status);
	}
	return NULL;
}

/* Two threads use one session at once: each call is complete or refused. */
static void
test_a_crowd(void **state)
{
	Tiny t = unshuffled(16);
	Crowd c = {.run = NULL};
	pthread_t threads[3];

	(void)state;
	t.options.steps = 1000000;
	must(gradc_open(&t.model, &t.options, t.diag, &c.run));
	must(gradc_bind_data(c.run));
	for (int i = 0; i < COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, crowd_step, &c), 0);
	for (int i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(c.made + c.refused, 50 * COUNT(threads));
	assert_int_equal(gradc_steps_done(c.run), c.made);
	gradc_close(c.run);
	tiny_close(&t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls_out_of_order),
		cmocka_unit_test(test_data_are_bound_again),
		cmocka_unit_test(test_options_without_sense),
		cmocka_unit_test(test_inputs_of_a_session_stay),
		cmocka_unit_test(test_a_crowd),
		cmocka_unit_test(test_losses),
		cmocka_unit_test(test_sessions_at_the_same_time),
		cmocka_unit_test(test_last_partial_batch_is_dropped),
		cmocka_unit_test(test_keep_last_pads),
		cmocka_unit_test(test_accumulation_is_one_large_batch),
		cmocka_unit_test(test_accumulation_keeps_last),
		cmocka_unit_test(test_evaluation_covers_every_row),
		cmocka_unit_test(test_shuffling_uses_every_row_once),
		cmocka_unit_test(test_non_finite_stops_before_the_update),
		cmocka_unit_test(test_after_a_failure_nothing_is_updated),
		cmocka_unit_test(test_export_fills_the_holes),
		cmocka_unit_test(test_gradients_are_means),
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_load_by_name),
		cmocka_unit_test(test_poison_changes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
