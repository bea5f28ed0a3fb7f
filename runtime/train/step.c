/* One training step: its micro-batches, then the update. The rows of a step all belong to one epoch. `samples` counts rows
 * since the start of training.
 *
 * Steps are queued, and results are taken later: while the device computes step s, the host queues step s + 1, and only then
 * waits for the results of step s. If step s fails (its loss is NaN, for example), the device itself skips the updates of s and
 * s + 1. */
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/model/model.h"
#include "runtime/train/steps.h"

#include <math.h>
#include <string.h>

double
without_sign(double x)
{
	return isnan(x) ? NAN : x;
}

static int64_t
lower(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* A step's rows: positions [first, end) of an epoch's order. `next` is the first position of the next step, counted from the
 * start of training. */
typedef struct {
	int64_t epoch, first, end, next;
} StepRows;

static StepRows
step_rows(const Gradc *run, int64_t samples)
{
	const Dataset *d = run->train;
	int64_t first = samples % d->rows;
	int64_t end = lower(d->rows,
	                    first + d->micro_rows * run->options.accumulate * gradc_ranks(run));
	StepRows rows = {samples / d->rows, first, end, samples + end - first};

	if (!run->options.keep_last && d->rows - end < end - first)
		rows.next += d->rows - end; /* the rest of the epoch is dropped */
	return rows;
}

/* The number of this rank's micro-batch j among all micro-batches of the step: r A + j for rank r, with A micro-batches per
 * rank. */
static int64_t
part_of_step(const Gradc *run, int64_t j)
{
	return gradc_rank(run) * run->options.accumulate + j;
}

/* Rows of this rank's micro-batch j. */
static MicroRows
micro_rows(const Gradc *run, const StepRows *step, int64_t j)
{
	Dataset *d = run->train;
	int64_t part = part_of_step(run, j);
	int64_t first = lower(step->first + part * d->micro_rows, step->end);

	return (MicroRows){d, step->epoch, first, lower(first + d->micro_rows, step->end)};
}

/* Asks for the rows of the micro-batch after j, so that they are read while micro-batch j is computed. After the last step of
 * training there are no more rows to ask for. */
static void
ask_next(Gradc *run, const StepRows *step, int64_t j)
{
	bool same_step = j + 1 < run->options.accumulate;
	StepRows rows = same_step ? *step : step_rows(run, step->next);
	MicroRows next = micro_rows(run, &rows, same_step ? j + 1 : 0);

	if (same_step || run->step + 1 < run->total_steps)
		prefetch_ask(run->prefetch, &next);
}

void
step_ask_first(Gradc *run)
{
	if (!run->train || run->step >= run->total_steps)
		return;
	StepRows step = step_rows(run, run->samples);
	MicroRows first = micro_rows(run, &step, 0);
	prefetch_ask(run->prefetch, &first);
}

static Status
run_micro(Gradc *run, const StepRows *step, int64_t j, QueuedStep *q)
{
	const ProgramRecord *p = run->train->program;
	MicroRows rows = micro_rows(run, step, j);
	MicroBatch micro = {j, run->options.accumulate};
	DataWait wait;

	RETURN_IF_ERROR(unread_take(run, &rows, &q->unread, &wait));
	q->out.data_waits += wait.waited;
	q->out.data_seconds += wait.seconds;
	observe_span(run, wait.waited ? "data (waited)" : "data", wait.begin, -1);
	hyper_scalars(&run->hyper, run->step, part_of_step(run, j) * run->train->micro_rows,
	              executor_scalars(&run->executor, p));
	ask_next(run, step, j);
	if (q->unread)
		RETURN_IF_ERROR(unread_spoil_count(run, &micro));
	double start = seconds_now();
	RETURN_IF_ERROR(executor_run(&run->executor, p, &micro));
	observe_span(run, "micro-batch", start, j);
	return NULL;
}

/* Takes the next place of the queue. Steps take turns at IN_FLIGHT copies of some memory; the results of the last step with
 * this turn have already been taken. */
static QueuedStep *
begin_step(Gradc *run, const StepRows *rows)
{
	QueuedStep *q = &run->queued[run->n_queued];
	Executor *x = &run->executor;

	x->turns[TURN_STEP] = run->step_turn;
	x->timers[x->turns[TURN_STEP]].n = 0;
	x->timers[x->turns[TURN_STEP]].full = false;
	x->timed = true;
	*q = (QueuedStep){.begin = seconds_now(),
	                  .turn = x->turns[TURN_STEP],
	                  .first = run->samples,
	                  .out = {.step = run->step + 1,
	                          .lr = hyper_lr(&run->hyper, run->step),
	                          .loss = NAN,
	                          .grad_norm = NAN,
	                          .rows = rows->end - rows->first,
	                          .samples = rows->next,
	                          .save_seconds = run->saver->seconds,
	                          .offload_in_bytes = -x->copied_in,
	                          .offload_out_bytes = -x->copied_out}};
	run->saver->seconds = 0;
	observe_step(run, q->out.step);
	return q;
}

static Status
queue_micro_batches(Gradc *run)
{
	StepRows rows = step_rows(run, run->samples);
	Status status = NULL;

	if (run->n_queued == MAX_QUEUED)
		return status_error(EXIT_USAGE,
		                    "%d steps are queued: take the results of one before the next",
		                    MAX_QUEUED);
	QueuedStep *q = begin_step(run, &rows);
	for (int64_t j = 0; j < run->options.accumulate && !status; j++)
		status = run_micro(run, &rows, j, q);
	run->executor.timed = false;
	if (!status)
		run->samples = rows.next;
	else
		status = status_first(q->unread, status);
	return status;
}

static Status
take_again(Gradc *run, const QueuedStep *q, const MicroRows *rows, DataWait *wait)
{
	Status fault = prefetch_take(run->prefetch, rows, wait);

	if (!fault || !q->unread)
		return fault;
	status_free(fault); /* q->unread already holds this fault */
	return prefetch_take_zeros(run->prefetch);
}

/* Runs a step's rows again, with the scalars of that step (learning rate, random seeds): program p for each micro-batch, then
 * program `last`. */
static Status
run_again(Gradc *run, const QueuedStep *q, const ProgramRecord *p, const ProgramRecord *last,
          Status (*how)(Executor *, const ProgramRecord *, const MicroBatch *))
{
	StepRows step = step_rows(run, q->first);
	MicroBatch micro = {0, run->options.accumulate};
	Executor *x = &run->executor;
	DataWait wait;

	for (; micro.index < micro.n; micro.index++) {
		MicroRows rows = micro_rows(run, &step, micro.index);

		RETURN_IF_ERROR(take_again(run, q, &rows, &wait));
		hyper_scalars(&run->hyper, q->out.step - 1,
		              part_of_step(run, micro.index) * run->train->micro_rows,
		              executor_scalars(x, p));
		ask_next(run, &step, micro.index);
		RETURN_IF_ERROR(how(x, p, &micro));
	}
	/* the scalars of `last` may lie where the image has an input, which the device may not have read yet */
	RETURN_IF_ERROR(executor_wait_image(x, x->turns[TURN_MICRO]));
	hyper_scalars(&run->hyper, q->out.step - 1, 0, executor_scalars(x, last));
	return how(x, last, &(MicroBatch){0, 1});
}

/* Runs the optimizer's estimate (for example Sophia's estimate of the curvature), with labels drawn from the model. The
 * gradients of the step may be overwritten. */
static Status
queue_estimate(Gradc *run, const QueuedStep *q)
{
	return run_again(run, q, program_any(run, ROLE_ESTIMATE, run->train->binding),
	                 program_any(run, ROLE_REFRESH, run->train->binding), executor_run);
}

static Status
queue_update(Gradc *run)
{
	const ProgramRecord *p = program_any(run, ROLE_UPDATE, run->train->binding);
	const MicroBatch micro = {0, 1};

	hyper_scalars(&run->hyper, run->step, 0, executor_scalars(&run->executor, p));
	RETURN_IF_ERROR(weights_unmap(run));
	run->executor.timed = true;
	run->torn = true;
	Status status = executor_run(&run->executor, p, &micro);
	run->executor.timed = false;
	if (status) {
		status_free(run->queued[run->n_queued].unread);
		return status;
	}
	run->queued[run->n_queued].out.offload_in_bytes += run->executor.copied_in;
	run->queued[run->n_queued].out.offload_out_bytes += run->executor.copied_out;
	run->step++;
	run->n_queued++;
	run->step_turn = turn_after(run->step_turn);
	if (run->every > 0 && run->step % run->every == 0)
		RETURN_IF_ERROR(queue_estimate(run, &run->queued[run->n_queued - 1]));
	run->torn = false;
	return NULL;
}

bool
gradc_is_whole(const Gradc *run)
{
	return run->train && !run->torn && !run->accumulated && !run->failed && run->n_queued == 0;
}

Status
step_queue(Gradc *run)
{
	run->fault_is_shared = false;
	RETURN_IF_ERROR(step_check_accumulated(run));
	RETURN_IF_ERROR(queue_micro_batches(run));
	return queue_update(run);
}

/* ---- results */

/* The value of the output of program @update whose port has this kind; NaN if there is no such output. */
static double
reported(const Gradc *run, const ProgramRecord *p, PortKind kind)
{
	for (uint32_t i = 0; i < p->n_outputs; i++) {
		const PortRecord *port = &run->format.ports[p->first_output + i];
		if (port->kind == (uint32_t)kind)
			return without_sign(dtype_load_float(
				(DType)port->dtype, executor_host(&run->executor, port->slot), 0));
	}
	return NAN;
}

/* Why @update has skipped the update: the name of the number (such as the loss) that is not finite, by the same rule as in
 * passes/update/optimizer.c; NULL if the step did not fail. */
static const char *
find_unfit(const GradcStep *out, double *value)
{
	if (out->overflow)
		return NULL;
	if (!(out->count >= 0)) {
		*value = out->count;
		return "count of the loss";
	}
	*value = isfinite(out->loss) ? out->grad_norm : out->loss;
	if (out->count == 0 || isfinite(*value))
		return NULL;
	return isfinite(out->loss) ? "norm of the gradients" : "loss";
}

static Status
check_finite(Gradc *run, const GradcStep *out)
{
	double value;
	const char *what = find_unfit(out, &value);

	if (run->failed)
		return status_error(
			EXIT_NON_FINITE,
			"step %lld changed nothing: the loss or norm of step %lld was not "
			"finite",
			(long long)out->step, (long long)run->failed);
	if (!what)
		return NULL;
	run->failed = out->step;
	bool least = isfinite(out->loss) && out->count >= 0 && !isnan(out->loss_scale);
	const char *at = least ? arena_printf(run->arena, " at the least loss scale, %g",
	                                      out->loss_scale)
	                       : "";
	return status_error(EXIT_NON_FINITE,
	                    "step %lld: the %s is %g%s; the parameters are those before the step",
	                    (long long)out->step, what, value, at);
}

static void
set_loss(GradcStep *out, double sum, double count)
{
	out->count = count;
	out->loss = count != 0 ? without_sign(sum / count) : NAN;
}

static void
remember_loss(Gradc *run, const GradcStep *out)
{
	run->loss = out->loss;
	run->count = out->count;
}

static Status
read_report(Gradc *run, const QueuedStep *q, GradcStep *out)
{
	const ProgramRecord *p = program_any(run, ROLE_UPDATE, run->train->binding);
	Executor *x = &run->executor;
	uint8_t turn = x->turns[TURN_STEP];
	double end = seconds_now();

	*out = q->out;
	x->turns[TURN_STEP] = (uint8_t)q->turn;
	set_loss(out, reported(run, p, PORT_LOSS_SUM), reported(run, p, PORT_LOSS_COUNT));
	if (out->count != 0)
		out->grad_norm = reported(run, p, PORT_NORM);
	out->loss_scale = reported(run, p, PORT_LOSS_SCALE);
	out->overflow = out->count != 0 && reported(run, p, PORT_MADE) == 0 &&
	                reported(run, p, PORT_FAILED) == 0;
	out->overflows = run->overflows += out->overflow;
	x->turns[TURN_STEP] = turn;
	out->seconds = end - (q->begin > run->last_result ? q->begin : run->last_result);
	run->last_result = end;
	observe_span(run, "step", q->begin, out->step);
	return executor_step_times(x, q->turn, out->phase_seconds);
}

/* ---- finding the cause of a failed step */

/* Repeats the failed step with the same random numbers. The failed step has changed none of its inputs, so the results are the
 * same. */
static Status
repeat_step(Gradc *run, const QueuedStep *q)
{
	return run_again(run, q, run->train->program,
	                 program_any(run, ROLE_UPDATE, run->train->binding), executor_walk);
}

/* Looks for the cause of a failed step. All ranks call this, because the repeated step has sums over all ranks. */
static Status
look_for_cause(Gradc *run, const QueuedStep *q, const GradcNotFinite **out, int *found)
{
	const ProgramRecord *update = program_any(run, ROLE_UPDATE, run->train->binding);
	Executor *x = &run->executor;

	RETURN_IF_ERROR(finder_open(run->arena, x));
	RETURN_IF_ERROR(repeat_step(run, q));
	Cause cause = finder_result(x, update);
	*out = finder_describe(run, &cause);
	return ranks_agree(run, *out != NULL, found);
}

/* Adds the cause to `failure`, as far as this rank knows the cause. If the search itself fails, its fault replaces `failure`
 * only if other ranks may be waiting for this rank. */
static Status
explain_failure(Gradc *run, const QueuedStep *q, GradcStep *out, Status failure)
{
	Executor *x = &run->executor;
	Observer *observer = x->observer;
	uint8_t turn = x->turns[TURN_STEP];
	int found = 0;
	Text text = {0};

	x->observer = NULL;
	x->turns[TURN_STEP] = (uint8_t)q->turn;
	Status fault = look_for_cause(run, q, &out->not_finite, &found);
	x->observer = observer;
	x->turns[TURN_STEP] = turn;
	finder_close(x);
	if (fault && gradc_ranks(run) > 1) {
		status_free(failure);
		return status_annotate(fault, "--find-nan: when step %lld was repeated",
		                       (long long)out->step);
	}
	if (out->not_finite)
		finder_print(&text, out->not_finite, run->options.accumulate);
	else if (fault)
		text_printf(&text, "--find-nan: %s\n", fault->message);
	else if (!found)
		text_add(&text,
		         "--find-nan: when the step was repeated, all its numbers were finite\n");
	if (out->not_finite && gradc_rank(run) > 0)
		failure = status_annotate(failure, "rank %d", gradc_rank(run));
	failure = status_output(failure, text.at, text.n);
	text_free(&text);
	status_free(fault);
	return failure;
}

/* Lets training continue: the states are still those before the failed step. */
Status
step_forget_failure(Gradc *run)
{
	int state = format_state_of_kind(&run->format, STATE_FAILED);
	Executor *x = &run->executor;

	run->failed = 0;
	if (state < 0)
		return NULL;
	RETURN_IF_ERROR(x->ops->fill_zero(x->device, STREAM_COMPUTE, executor_state(x, state)));
	return executor_drain(x);
}

/* Sets the counts of steps and rows back to before a step whose rows could not be read, and drops the steps that were queued
 * after it. None of these steps has changed a state. */
static Status
take_back(Gradc *run, const QueuedStep *q)
{
	Status fault = NULL;

	for (int i = 0; i < run->n_queued; i++) {
		const QueuedStep *behind = &run->queued[i];
		fault = status_first(fault, executor_wait_report(&run->executor, behind->turn));
		status_free(behind->unread);
	}
	run->n_queued = 0;
	run->step = q->out.step - 1;
	run->samples = q->first;
	return status_first(fault, step_forget_failure(run));
}

Status
step_result(Gradc *run, bool wait, GradcStep *out, bool *got)
{
	QueuedStep q = run->queued[0];
	Executor *x = &run->executor;

	*got = false;
	if (run->n_queued == 0 || (!wait && !executor_has_report(x, q.turn)))
		return NULL;
	RETURN_IF_ERROR(executor_wait_report(x, q.turn));
	run->n_queued--;
	memmove(run->queued, run->queued + 1, (size_t)run->n_queued * sizeof(*run->queued));
	*got = true;
	RETURN_IF_ERROR(read_report(run, &q, out));
	bool failed_before = run->failed != 0;
	Status status = failed_before ? NULL : unread_share(run, out->count, &q.unread);
	if (status)
		return status_first(status, take_back(run, &q));
	status_free(q.unread);
	remember_loss(run, out);
	status = check_finite(run, out);
	return status && run->options.find_nan && !failed_before
	               ? explain_failure(run, &q, out, status)
	               : status;
}

/* ---- the two halves of a step, gradc_accumulate and gradc_update; each half waits for its results */
Status
step_accumulate(Gradc *run, GradcStep *out)
{
	double sum, count;

	run->fault_is_shared = false;
	RETURN_IF_ERROR(step_is_whole(run));
	RETURN_IF_ERROR(queue_micro_batches(run));
	RETURN_IF_ERROR(read_scalar(run, run->loss_sum, &sum));
	RETURN_IF_ERROR(read_scalar(run, run->loss_count, &count));
	QueuedStep *q = &run->queued[run->n_queued];
	Status status = unread_share(run, count, &q->unread); /* the count of all ranks */
	if (status)
		return status_first(status, take_back(run, q));
	run->accumulated = true;
	*out = q->out;
	set_loss(out, sum, count);
	remember_loss(run, out);
	out->seconds = seconds_now() - q->begin;
	return NULL;
}

Status
step_update(Gradc *run, GradcStep *out)
{
	bool got;

	if (!run->accumulated)
		return status_error(EXIT_USAGE,
		                    "there are no gradients: gradc_accumulate comes first");
	run->accumulated = false;
	RETURN_IF_ERROR(queue_update(run));
	return step_result(run, true, out, &got);
}

Status
step_take(Gradc *run, GradcStep *out)
{
	bool got;

	RETURN_IF_ERROR(step_is_whole(run));
	RETURN_IF_ERROR(step_queue(run));
	return step_result(run, true, out, &got);
}
