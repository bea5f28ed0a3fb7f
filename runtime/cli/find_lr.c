/* --find-lr: suggests a learning rate from the losses of steps with exponentially growing rates (Smith, arXiv:1506.01186).
 * Losses are smoothed as in fastai's lr_find: an average with factor 0.98, divided by 1 - 0.98^n. */
#include "runtime/cli/cli.h"

#include <math.h>

#define SMOOTHING 0.98
/* the loss has diverged when it is larger than this multiple of its lowest value */
#define MOST_TIMES 4

LrSweep
lr_sweep_new(Arena *arena, int64_t steps)
{
	return (LrSweep){.lr = NEW_ARRAY(arena, double, steps),
	                 .loss = NEW_ARRAY(arena, double, steps),
	                 .best = INFINITY};
}

bool
lr_sweep_add(LrSweep *s, double lr, double loss)
{
	if (isnan(loss)) /* no target counted */
		return true;
	s->average = SMOOTHING * s->average + (1 - SMOOTHING) * loss;
	double smoothed = s->average / (1 - pow(SMOOTHING, (double)s->n + 1));
	s->lr[s->n] = lr;
	s->loss[s->n++] = smoothed;
	s->best = fmin(s->best, smoothed);
	s->diverged = s->best > 0 && smoothed > MOST_TIMES * s->best;
	return !s->diverged;
}

/* Ignores the first tenth of the steps, where the average is not smooth yet. */
double
lr_sweep_steepest(const LrSweep *s)
{
	double steepest = 0, lr = NAN;

	for (int64_t i = s->n / 10; i + 1 < s->n; i++) {
		double slope = (s->loss[i + 1] - s->loss[i]) / log(s->lr[i + 1] / s->lr[i]);
		if (slope >= steepest)
			continue;
		steepest = slope;
		lr = s->lr[i];
	}
	return lr;
}

double
lr_sweep_lowest(const LrSweep *s)
{
	int64_t best = 0;

	for (int64_t i = 1; i < s->n; i++)
		best = s->loss[i] < s->loss[best] ? i : best;
	return s->n ? s->lr[best] : NAN;
}

static json_t *
list_json(const double *at, int64_t n)
{
	json_t *list = json_array();

	for (int64_t i = 0; i < n; i++)
		json_array_append_new(list, json_number(at[i]));
	return list;
}

static void
print_json(const LrSweep *s, FILE *out)
{
	json_t *root = json_pack("{s:o, s:o, s:o, s:o, s:b}", "steepest",
	                         json_number(lr_sweep_steepest(s)), "tenth_of_lowest",
	                         json_number(lr_sweep_lowest(s) / 10), "lr", list_json(s->lr, s->n),
	                         "loss", list_json(s->loss, s->n), "diverged", s->diverged);

	json_dumpf(root, out, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	fprintf(out, "\n");
	json_decref(root);
}

/* Prints at most ROWS evenly spaced steps. A bar's length shows how far the loss is above the lowest. */
static void
print_rows(const LrSweep *s, FILE *out)
{
	enum { ROWS = 24, COLUMNS = 40 };
	int64_t rows = s->n < ROWS ? s->n : ROWS;
	double high = s->best;

	for (int64_t i = 0; i < s->n; i++)
		high = fmax(high, s->loss[i]);
	fprintf(out, "learning rate  smoothed loss\n");
	for (int64_t r = 0; r < rows; r++) {
		int64_t i = rows > 1 ? r * (s->n - 1) / (rows - 1) : 0;
		double part = high > s->best ? (s->loss[i] - s->best) / (high - s->best) : 0;
		fprintf(out, "%13.3g  %13.6g  ", s->lr[i], s->loss[i]);
		for (int k = 0; k < (int)(part * COLUMNS + 0.5); k++)
			fputc('#', out);
		fputc('\n', out);
	}
}

void
lr_sweep_print(const LrSweep *s, FILE *out, bool json)
{
	double steepest = lr_sweep_steepest(s);

	if (json) {
		print_json(s, out);
		return;
	}
	print_rows(s, out);
	if (s->diverged)
		fprintf(out, "ended after %lld steps: the loss diverged\n", (long long)s->n);
	if (isnan(steepest))
		fprintf(out, "the loss never fell: try other learning rates, or more steps\n");
	else
		fprintf(out,
		        "steepest descent: --lr %.3g; a tenth of where it is lowest: --lr %.3g\n",
		        steepest, lr_sweep_lowest(s) / 10);
}
