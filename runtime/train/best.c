/* The best evaluation of a training by options.metric, and early stopping. Checkpoints hold both, so a resumed run continues
 * with them.
 *
 * Early stopping is that of Keras: an evaluation that beats the mark by more than min-delta becomes the mark; after N
 * evaluations in a row that do not, training ends. */
#include "runtime/train/steps.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- metrics */
static const struct {
	const char *name;
	size_t at; /* offset of a double in GradcEval */
	bool higher_is_better;
} metrics[] = {
	{"loss", offsetof(GradcEval, loss), false},
	{"accuracy", offsetof(GradcEval, accuracy), true},
	{"perplexity", offsetof(GradcEval, perplexity), false},
};

static int
metric_index(const char *name)
{
	for (int i = 0; i < COUNT(metrics); i++)
		if (strcmp(metrics[i].name, name) == 0)
			return i;
	return -1;
}

static bool
has_metric(const Gradc *run, const char *name)
{
	if (strcmp(name, "accuracy") == 0)
		return run->metric_correct >= 0;
	return strcmp(name, "perplexity") != 0 ||
	       format_info_is(&run->format, "eval_metric", "perplexity");
}

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
	int64_t patience = 0;
	double min_delta;

	if (run->options.early_stop)
		status_free(early_stop_parse(run->options.early_stop, &patience, &min_delta));
	b->stops = patience > 0 && b->since >= patience;
}

/* ---- judging */
Status
best_open(Gradc *run)
{
	const char *name = run->options.metric ? run->options.metric : "loss";
	int i = metric_index(name);

	run->best = (GradcBest){.step = -1, .value = NAN, .mark = NAN};
	if (i < 0 || !has_metric(run, name))
		return status_error(EXIT_USAGE,
		                    "--metric=%s: the metrics of this model are loss%s%s", name,
		                    has_metric(run, "accuracy") ? ", accuracy" : "",
		                    has_metric(run, "perplexity") ? ", perplexity" : "");
	run->best.metric = metrics[i].name;
	run->best.higher_is_better = metrics[i].higher_is_better;
	return NULL;
}

void
best_judge(Gradc *run, const GradcEval *eval, bool counts)
{
	GradcBest *b = &run->best;
	double value = *(const double *)((const char *)eval + metrics[metric_index(b->metric)].at);
	int64_t patience;
	double min_delta = 0;

	b->improved = beats(b, value, b->value, 0);
	if (b->improved) {
		b->step = run->step;
		b->value = value;
	}
	if (run->options.early_stop)
		status_free(early_stop_parse(run->options.early_stop, &patience, &min_delta));
	if (counts) {
		bool better = beats(b, value, b->mark, min_delta);
		b->mark = better ? value : b->mark;
		b->since = better ? 0 : b->since + 1;
	}
	decide(run);
}

void
best_resume(Gradc *run, const GradcBest *saved)
{
	GradcBest *b = &run->best;

	b->improved = false;
	int i = saved->metric ? metric_index(saved->metric) : -1;
	if (!run->options.metric && i >= 0 && has_metric(run, saved->metric)) {
		b->metric = metrics[i].name;
		b->higher_is_better = metrics[i].higher_is_better;
	}
	if (saved->metric && strcmp(saved->metric, b->metric) == 0) {
		b->step = saved->step;
		b->value = saved->value;
		b->mark = saved->mark;
		b->since = saved->since;
	}
	decide(run);
}
