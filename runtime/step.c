/* One step: micro-batches, then the update; and evaluation, which is the first half on other
 * data. No step crosses an epoch; `samples` counts positions of the data order. */
#include "runtime/runtime_impl.h"

#include <math.h>

/* A nan has a sign on some processors, which says nothing. */
static double
without_sign(double x)
{
	return isnan(x) ? NAN : x;
}

Status
read_scalar(Gradc *run, int state, double *out)
{
	const StateRecord *s = &run->format.states[state];
	char raw[16] = {0};
	Span from = executor_state(&run->executor, state);

	*out = NAN;
	from.bytes = dtype_bytes((DType)s->dtype, 1);
	RETURN_IF_ERROR(executor_read(&run->executor, raw, from));
	*out = dtype_is_float((DType)s->dtype) ? dtype_load_float((DType)s->dtype, raw, 0)
	                                       : (double)dtype_load_int((DType)s->dtype, raw, 0);
	return NULL;
}

static int64_t
lower(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Positions [first, end) of an epoch's order are a step's; `next` is the first one of the step
 * behind it, counted from the start of training. */
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
		rows.next += d->rows - end; /* what is left of the epoch is dropped */
	return rows;
}

/* Micro-batch j of rank r is part r A + j of the step's rows. */
static int64_t
part_of_step(const Gradc *run, int64_t j)
{
	return gradc_rank(run) * run->options.accumulate + j;
}

/* Of this rank. */
static MicroRows
micro_rows(const Gradc *run, const StepRows *step, int64_t j)
{
	Dataset *d = run->train;
	int64_t part = part_of_step(run, j);
	int64_t first = lower(step->first + part * d->micro_rows, step->end);

	return (MicroRows){d, step->epoch, first, lower(first + d->micro_rows, step->end)};
}

/* What is computed after micro-batch j of this step is read meanwhile; after the last one of the
 * training nothing is. */
static void
ask_next(Gradc *run, const StepRows *step, int64_t j)
{
	bool same_step = j + 1 < run->options.accumulate;
	StepRows rows = same_step ? *step : step_rows(run, step->next);
	MicroRows next = micro_rows(run, &rows, same_step ? j + 1 : 0);

	if (same_step || run->step + 1 < run->total_steps)
		prefetch_ask(run->prefetch, &next);
}

static Status
run_micro(Gradc *run, const StepRows *step, int64_t j, GradcStep *out)
{
	MicroRows rows = micro_rows(run, step, j);
	bool last = j + 1 == run->options.accumulate, waited;
	Scalar scalars[N_SCALARS];
	MicroBatch micro = {j, run->options.accumulate, scalars, last ? run->reduction : NULL};
	double start = seconds_now();

	hyper_scalars(&run->hyper, run->step, part_of_step(run, j) * run->train->micro_rows,
	              scalars);
	RETURN_IF_ERROR(prefetch_take(run->prefetch, &rows, &waited));
	out->data_waits += waited;
	out->data_seconds += seconds_now() - start;
	observe_span(run, waited ? "data (waited)" : "data", start, -1);
	ask_next(run, step, j);
	start = seconds_now();
	RETURN_IF_ERROR(executor_run(&run->executor, run->train->program, &micro));
	observe_span(run, "micro-batch", start, j);
	return NULL;
}

Status
step_accumulate(Gradc *run, GradcStep *out)
{
	StepRows rows = step_rows(run, run->samples);
	int64_t n_micro = run->options.accumulate;
	double start = seconds_now();
	Status status = NULL;

	*out = (GradcStep){.step = run->step + 1,
	                   .lr = hyper_lr(&run->hyper, run->step),
	                   .grad_norm = NAN,
	                   .rows = rows.end - rows.first,
	                   .save_seconds = run->saver.seconds};
	run->saver.seconds = 0;
	run->step_started = start;
	observe_step(run, out->step);
	for (int p = 0; p < N_PHASES; p++)
		run->executor.phase_seconds[p] = 0;
	for (int64_t j = 0; j < n_micro && !status; j++) {
		status = run_micro(run, &rows, j, out);
	}
	if (!status && run->reduction)
		status = reduction_finish(run->reduction);
	RETURN_IF_ERROR(status);
	RETURN_IF_ERROR(read_scalar(run, run->loss_sum, &run->loss));
	RETURN_IF_ERROR(read_scalar(run, run->loss_count, &run->count));
	run->samples = rows.next;
	out->count = run->count;
	out->loss = run->loss = run->count != 0 ? without_sign(run->loss / run->count) : NAN;
	out->samples = run->samples;
	out->seconds = seconds_now() - start;
	return NULL;
}

static Status
read_norm(Gradc *run, const ProgramRecord *p, double *norm)
{
	char raw[16] = {0};

	if (p->n_outputs == 0)
		return NULL;
	const PortRecord *port = &run->format.ports[p->first_output];
	Span from = executor_slot(&run->executor, port->slot);
	from.bytes = dtype_bytes((DType)port->dtype, 1);
	RETURN_IF_ERROR(executor_read(&run->executor, raw, from));
	*norm = without_sign(dtype_load_float((DType)port->dtype, raw, 0));
	return NULL;
}

static Status
apply_update(Gradc *run, GradcStep *out)
{
	const ProgramRecord *p = program_any(run, ROLE_UPDATE, run->train->binding);
	Scalar scalars[N_SCALARS];
	MicroBatch micro = {0, 1, scalars, NULL};

	if (run->count == 0)
		return NULL; /* every target was ignored */
	if (!isfinite(run->loss))
		return status_error(EXIT_NON_FINITE,
		                    "step %lld: the loss is %g; the parameters are those "
		                    "before the step",
		                    (long long)out->step, run->loss);
	hyper_scalars(&run->hyper, run->step, 0, scalars);
	RETURN_IF_ERROR(weights_unmap(run));
	RETURN_IF_ERROR(executor_run(&run->executor, p, &micro));
	RETURN_IF_ERROR(read_norm(run, p, &out->grad_norm));
	if (p->n_outputs > 0 && !isfinite(out->grad_norm))
		return status_error(EXIT_NON_FINITE,
		                    "step %lld: the norm of the gradients is %g; the "
		                    "parameters are those before the step",
		                    (long long)out->step, out->grad_norm);
	return NULL;
}

Status
step_update(Gradc *run, GradcStep *out)
{
	double start = seconds_now();

	RETURN_IF_ERROR(apply_update(run, out));
	observe_span(run, "step", run->step_started, out->step);
	run->step++;
	out->seconds += seconds_now() - start;
	for (int p = 0; p < N_PHASES; p++)
		out->phase_seconds[p] = run->executor.phase_seconds[p];
	return NULL;
}

Status
gradc_step(Gradc *run, GradcStep *out)
{
	RETURN_IF_ERROR(gradc_accumulate(run, out));
	return gradc_update(run, out);
}

/* Micro-batch j of this rank's share of an evaluation: every W-th one. */
static MicroRows
eval_rows(const Gradc *run, int64_t j, int64_t covered)
{
	Dataset *d = run->eval;
	int64_t part = j * gradc_ranks(run) + gradc_rank(run);
	int64_t first = lower(part * d->micro_rows, covered);

	return (MicroRows){d, 0, first, lower(first + d->micro_rows, covered)};
}

/* Behind the last micro-batch of an evaluation comes the next step of the training. */
static void
ask_next_eval(Gradc *run, int64_t j, int64_t covered)
{
	MicroRows next = eval_rows(run, j + 1, covered);
	StepRows step = step_rows(run, run->samples);
	bool over = next.first >= covered;

	if (over)
		next = micro_rows(run, &step, 0);
	if (!over || run->step < run->total_steps)
		prefetch_ask(run->prefetch, &next);
}

static Status
clear_scalar(Gradc *run, int state)
{
	Span at = executor_state(&run->executor, state);

	return run->executor.ops->fill_zero(run->executor.device, 0, at);
}

/* What evaluation counts: loss, targets, correct ones. Every rank gets the sums. */
static Status
for_each_sum(Gradc *run, Status (*call)(Gradc *run, int state))
{
	const int states[] = {run->loss_sum, run->loss_count, run->metric_correct};

	for (int i = 0; i < COUNT(states); i++)
		if (states[i] >= 0)
			RETURN_IF_ERROR(call(run, states[i]));
	return NULL;
}

/* Evaluation takes the rows as they come; the last partial batch is padded where rows of weight 0
 * are possible and left out where not. */
static Status
evaluate_rows(Gradc *run, GradcEval *out)
{
	Dataset *d = run->eval;
	bool pad = d->has_weight && !info_is(&run->format, "eval_padding", "0"), waited;
	int64_t covered = pad ? d->rows : d->rows / d->micro_rows * d->micro_rows;
	Scalar scalars[N_SCALARS];
	MicroBatch micro = {0, covered / d->micro_rows + 1, scalars, NULL};

	RETURN_IF_ERROR(for_each_sum(run, clear_scalar));
	for (;; micro.index++) {
		MicroRows rows = eval_rows(run, micro.index, covered);

		if (rows.first >= covered)
			break;
		RETURN_IF_ERROR(prefetch_take(run->prefetch, &rows, &waited));
		ask_next_eval(run, micro.index, covered);
		hyper_scalars(&run->hyper, run->step, rows.first, scalars);
		RETURN_IF_ERROR(executor_run(&run->executor, d->program, &micro));
	}
	if (gradc_ranks(run) > 1)
		RETURN_IF_ERROR(for_each_sum(run, ranks_sum_state));
	out->rows = covered;
	out->all_rows = d->rows;
	return NULL;
}

Status
step_evaluate(Gradc *run, GradcEval *out)
{
	double start = seconds_now(), correct = NAN;

	*out = (GradcEval){.loss = NAN, .accuracy = NAN, .perplexity = NAN};
	if (!run->eval)
		return status_error(EXIT_USAGE, "there are no evaluation data");
	run->executor.observer = NULL;
	RETURN_IF_ERROR(evaluate_rows(run, out));
	observe_span(run, "evaluation", start, -1);
	if (out->rows == 0) /* nothing ran: the sums are those of another run */
		return NULL;
	RETURN_IF_ERROR(read_scalar(run, run->loss_sum, &out->loss));
	RETURN_IF_ERROR(read_scalar(run, run->loss_count, &out->count));
	if (run->metric_correct >= 0)
		RETURN_IF_ERROR(read_scalar(run, run->metric_correct, &correct));
	out->loss = out->count != 0 ? without_sign(out->loss / out->count) : NAN;
	out->accuracy = out->count != 0 ? correct / out->count : NAN;
	if (info_is(&run->format, "eval_metric", "perplexity"))
		out->perplexity = exp(out->loss);
	out->seconds = seconds_now() - start;
	return NULL;
}
