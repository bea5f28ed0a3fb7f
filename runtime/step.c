/* One step: micro-batches, then the update; and evaluation, which is the first half on other
 * data. No step crosses an epoch; `samples` counts positions of the data order. */
#include "runtime/runtime_impl.h"

#include <math.h>

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

/* The rows of one micro-batch: at most micro_rows of those in [first, end) of the order. */
static int64_t
pick_rows(const Dataset *d, const Order *order, int64_t first, int64_t end, int64_t *rows)
{
	int64_t n = lower(d->micro_rows, end - first);

	for (int64_t i = 0; i < n; i++)
		rows[i] = order_at(order, first + i);
	return n > 0 ? n : 0;
}

static Status
run_micro(Gradc *run, const int64_t *rows, int64_t n, const MicroBatch *micro)
{
	RETURN_IF_ERROR(dataset_load(run->train, &run->executor, rows, n));
	return executor_run(&run->executor, run->train->program, micro);
}

Status
gradc_accumulate(Gradc *run, GradcStep *out)
{
	Dataset *d = run->train;
	int64_t index = run->samples % d->rows, n_micro = run->options.accumulate;
	int64_t end = lower(d->rows, index + d->micro_rows * n_micro);
	Order order = order_new(d->rows, run->options.shuffle, (uint64_t)run->options.seed,
	                        run->samples / d->rows);
	Scalar scalars[N_SCALARS];
	double start = seconds_now();
	Arena *scratch = arena_new();
	int64_t *rows = NEW_ARRAY(scratch, int64_t, d->micro_rows);
	Status status = NULL;

	*out = (GradcStep){.step = run->step + 1,
	                   .lr = hyper_lr(&run->hyper, run->step),
	                   .grad_norm = NAN,
	                   .rows = end - index};
	hyper_scalars(&run->hyper, run->step, scalars);
	for (int p = 0; p < N_PHASES; p++)
		run->executor.phase_seconds[p] = 0;
	for (int64_t j = 0; j < n_micro && !status; j++) {
		MicroBatch micro = {j, n_micro, scalars};
		int64_t n = pick_rows(d, &order, index + j * d->micro_rows, end, rows);

		status = run_micro(run, rows, n, &micro);
	}
	arena_free(scratch);
	RETURN_IF_ERROR(status);
	RETURN_IF_ERROR(read_scalar(run, run->loss_sum, &run->loss));
	RETURN_IF_ERROR(read_scalar(run, run->loss_count, &run->count));
	run->samples += end - index;
	if (!run->options.keep_last && d->rows - end < end - index)
		run->samples += d->rows - end; /* what is left of the epoch is dropped */
	out->count = run->count;
	out->loss = run->loss = run->count != 0 ? run->loss / run->count : NAN;
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
	*norm = dtype_load_float((DType)port->dtype, raw, 0);
	return NULL;
}

static Status
apply_update(Gradc *run, GradcStep *out)
{
	const ProgramRecord *p = program_any(&run->format, ROLE_UPDATE, run->train->binding);
	Scalar scalars[N_SCALARS];
	MicroBatch micro = {0, 1, scalars};

	if (run->count == 0)
		return NULL; /* every target was ignored */
	if (!isfinite(run->loss))
		return status_error(EXIT_NON_FINITE,
		                    "step %lld: the loss is %g; the parameters are those "
		                    "before the step",
		                    (long long)out->step, run->loss);
	hyper_scalars(&run->hyper, run->step, scalars);
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
gradc_update(Gradc *run, GradcStep *out)
{
	double start = seconds_now();

	RETURN_IF_ERROR(apply_update(run, out));
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

/* Evaluation takes the rows as they come; the last partial batch is padded where rows of weight 0
 * are possible and left out where not. */
static Status
evaluate_rows(Gradc *run, GradcEval *out)
{
	Dataset *d = run->eval;
	bool pad = d->has_weight && !info_is(&run->format, "eval_padding", "0");
	int64_t covered = pad ? d->rows : d->rows / d->micro_rows * d->micro_rows;
	Order order = order_new(d->rows, false, 0, 0);
	Scalar scalars[N_SCALARS];
	Arena *scratch = arena_new();
	int64_t *rows = NEW_ARRAY(scratch, int64_t, d->micro_rows), n_micro = 0;
	Status status = NULL;

	hyper_scalars(&run->hyper, run->step, scalars);
	for (int64_t at = 0; at < covered && !status; at += d->micro_rows) {
		MicroBatch micro = {n_micro++, covered / d->micro_rows + 1, scalars};
		int64_t n = pick_rows(d, &order, at, covered, rows);

		status = dataset_load(d, &run->executor, rows, n);
		if (!status)
			status = executor_run(&run->executor, d->program, &micro);
	}
	out->rows = covered;
	out->all_rows = d->rows;
	arena_free(scratch);
	return status;
}

Status
gradc_evaluate(Gradc *run, GradcEval *out)
{
	double start = seconds_now(), correct = NAN;

	*out = (GradcEval){.loss = NAN, .accuracy = NAN, .perplexity = NAN};
	if (!run->eval)
		return status_error(EXIT_USAGE, "there are no evaluation data");
	RETURN_IF_ERROR(evaluate_rows(run, out));
	if (out->rows == 0) /* nothing ran: the sums are those of another run */
		return NULL;
	RETURN_IF_ERROR(read_scalar(run, run->loss_sum, &out->loss));
	RETURN_IF_ERROR(read_scalar(run, run->loss_count, &out->count));
	if (run->metric_correct >= 0)
		RETURN_IF_ERROR(read_scalar(run, run->metric_correct, &correct));
	out->loss = out->count != 0 ? out->loss / out->count : NAN;
	out->accuracy = out->count != 0 ? correct / out->count : NAN;
	if (info_is(&run->format, "eval_metric", "perplexity"))
		out->perplexity = exp(out->loss);
	out->seconds = seconds_now() - start;
	return NULL;
}
