/* The best evaluation of a training by options.metric, and early stopping. Checkpoints hold both, so a resumed run continues
 * with them.
 *
 * Early stopping is that of Keras: an evaluation that beats the mark by more than min-delta becomes the mark; after N
 * evaluations in a row that do not, training ends. */
#include "runtime/train/steps.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- early stopping */
Status
early_stop_parse(const char *text, int64_t *patience, double *min_delta)
{
	static const char key[] = ",min-delta=";
	char number[24];
	size_t n = strcspn(text, ",");

	*min_delta = 0;
	snprintf(number, sizeof(number), "%.*s", (int)(n < 23 ? n : 0), text);
	bool ok = parse_int(number, patience) && *patience > 0;
	if (ok && text[n])
		ok = strncmp(text + n, key, sizeof(key) - 1) == 0 &&
		     parse_double(text + n + sizeof(key) - 1, min_delta) && *min_delta >= 0 &&
		     isfinite(*min_delta);
	return ok ? NULL
	          : status_error(EXIT_USAGE,
	                         "--early-stop=%s: need a number of evaluations, and perhaps a "
	                         "least improvement, as 5 or 5,min-delta=0.001",
	                         text);
}

/* Does the value beat the other one by more than `by`? NaN beats nothing, and any number beats NaN. */
static bool
beats(const GradcBest *b, double value, double other, double by)
{
	if (isnan(value) || isnan(other))
		return !isnan(value);
	return b->higher_is_better ? value > other + by : value < other - by;
}

/* Decides whether early stopping ends the training. */
static void
decide(Gradc *run)
{
	GradcBest *b = &run->best;

	b->stops = run->patience > 0 && b->since >= run->patience;
}

/* ---- judging */
/* EXIT_USAGE if the model does not have the metric. */
static Status
take_metric(Gradc *run, const char *name)
{
	MetricTask task = eval_metrics_task(run, 0);
	Metric metric;

	RETURN_IF_ERROR(metric_check(run->arena, name, &task, &metric));
	run->best.metric = arena_strdup(run->arena, name);
	run->best.higher_is_better = metric.row->higher_is_better;
	return NULL;
}

Status
best_open(Gradc *run)
{
	run->best = (GradcBest){.step = -1, .value = NAN, .mark = NAN};
	if (run->options.early_stop)
		RETURN_IF_ERROR(
			early_stop_parse(run->options.early_stop, &run->patience, &run->min_delta));
	return take_metric(run, run->options.metric ? run->options.metric : "loss");
}

void
best_judge(Gradc *run, const GradcEval *eval, bool counts)
{
	GradcBest *b = &run->best;
	double value = eval->metric.value;

	b->improved = beats(b, value, b->value, 0);
	if (b->improved) {
		b->step = run->step;
		b->value = value;
		b->data = run->eval_data;
	}
	if (isnan(value) && eval->count != 0 && run->diag && gradc_rank(run) == 0)
		diag_warning(run->diag,
		             "step %lld: the evaluation has no %s: its value is not a number",
		             (long long)run->step, b->metric);
	if (counts) {
		bool better = beats(b, value, b->mark, run->min_delta);
		b->mark = better ? value : b->mark;
		b->since = better ? 0 : b->since + 1;
	}
	decide(run);
}

/* Why the best step of the resumed training is no longer the best step; NULL: it still is. */
static const char *
forgotten(const Gradc *run, const GradcBest *saved)
{
	if (strcmp(saved->metric, run->best.metric) != 0)
		return arena_printf(run->arena, "it was the best by %s", saved->metric);
	if (run->eval_data && saved->data && saved->data != run->eval_data)
		return "other rows are evaluated now";
	return NULL;
}

Status
best_resume(Gradc *run, const GradcBest *saved)
{
	GradcBest *b = &run->best;

	b->improved = false;
	if (!saved->metric)
		return NULL;
	if (!run->options.metric) {
		/* a metric that these evaluation data do not have is forgotten */
		status_free(take_metric(run, saved->metric));
		RETURN_IF_ERROR(eval_metrics_update(run));
	}
	const char *why = forgotten(run, saved);
	if (!why) {
		b->step = saved->step;
		b->value = saved->value;
		b->data = saved->data;
		b->mark = saved->mark;
		b->since = saved->since;
	} else if (saved->step >= 0 && run->diag && gradc_rank(run) == 0) {
		diag_warning(
			run->diag,
			"the best step so far, %lld, is forgotten: %s; the best of the steps from "
			"now on counts",
			(long long)saved->step, why);
	}
	decide(run);
	return NULL;
}
