/* The scores of a target's classes, and their probabilities. */
#include "runtime/metrics/metrics.h"

#include <math.h>

void
scores_load(double *to, const Scores *from, int64_t first)
{
	if (from->dtype == F32) {
		const float *at = (const float *)from->at + first;
		for (int64_t c = 0; c < from->classes; c++)
			to[c] = (double)at[c * from->stride];
		return;
	}
	for (int64_t c = 0; c < from->classes; c++)
		to[c] = dtype_load_float(from->dtype, from->at, first + c * from->stride);
}

/* Subtracts the largest score from all scores; so equal differences stay equal. Returns the sum of their exp. */
static double
subtract_largest(double *x, int64_t n)
{
	double most = -INFINITY, sum = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, x[i]);
	for (int64_t i = 0; i < n; i++)
		sum += exp(x[i] -= most);
	return sum;
}

static void
softmax(double *x, int64_t n)
{
	double sum = subtract_largest(x, n);

	for (int64_t i = 0; i < n; i++)
		x[i] = exp(x[i]) / sum;
}

static void
log_softmax(double *x, int64_t n)
{
	double sum = subtract_largest(x, n);

	for (int64_t i = 0; i < n; i++)
		x[i] -= log(sum);
}

/* 1 / (1 + exp(-x)), without overflow */
static double
logistic(double x)
{
	double e = exp(-fabs(x));

	return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

void
scores_to_probabilities(double *x, int64_t n, const MetricTask *t)
{
	if (t->kind == TARGETS_CLASSES && t->form == SCORES_LOGITS) {
		softmax(x, n);
		return;
	}
	for (int64_t i = 0; i < n; i++)
		x[i] = t->kind == TARGETS_BINARY ? logistic(x[i]) : exp(x[i]);
}

void
scores_to_order(double *x, int64_t n, const MetricTask *t)
{
	if (t->kind == TARGETS_CLASSES && t->form == SCORES_LOGITS)
		log_softmax(x, n);
}
