/* Metrics of numbers: R2, mean absolute error, root mean squared error. If rows are vectors, each column has its own value, and
 * the metric is the mean over columns, as in scikit-learn. */
#include "runtime/metrics/values.h"

#include <math.h>

/* A record: the number of rows, then for each number of a row its label and output. */
typedef struct {
	double label, output;
} Pair;

void
numbers_open(MetricSums *s)
{
	s->columns = NEW_ARRAY(s->arena, NumberSums, s->task.columns);
}

int64_t
numbers_record_bytes(const MetricSums *s)
{
	return (int64_t)sizeof(int64_t) + s->micro_rows * s->task.per_row * (int64_t)sizeof(Pair);
}

static Pair *
pairs(const void *record)
{
	return (Pair *)((char *)(uintptr_t)record + sizeof(int64_t));
}

static double
load(const Batch *b, int64_t row, int64_t at)
{
	int64_t i = (at / b->after * b->rows + row) * b->after + at % b->after;

	return dtype_is_float(b->dtype) ? dtype_load_float(b->dtype, b->at, i)
	                                : (double)dtype_load_int(b->dtype, b->at, i);
}

void
numbers_record(MetricSums *s, const Batch *output, const Batch *labels, int64_t rows, void *record)
{
	int64_t n = 0;

	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < s->task.per_row; i++)
			pairs(record)[n++] = (Pair){load(labels, r, i), load(output, r, i)};
	*(int64_t *)record = n;
}

void
numbers_add(MetricSums *s, const void *record)
{
	int64_t n = *(const int64_t *)record;

	for (int64_t i = 0; i < n; i++) {
		NumberSums *c = &s->columns[i % s->task.columns];
		const Pair *p = &pairs(record)[i];
		double from_mean = p->label - c->mean, error = p->label - p->output;

		c->n++;
		c->mean += from_mean / (double)c->n;
		c->deviations += from_mean * (p->label - c->mean);
		c->squares += error * error;
		c->errors += fabs(error);
	}
}

static double
mean_over_columns(const MetricSums *s, double (*of)(const NumberSums *c))
{
	double sum = 0;

	for (int64_t i = 0; i < s->task.columns; i++)
		sum += of(&s->columns[i]);
	return s->columns[0].n ? sum / (double)s->task.columns : NAN;
}

/* Labels that are all equal have no variance: 1 if the outputs are equal to them, else 0, as in scikit-learn. */
static double
r2_of(const NumberSums *c)
{
	if (c->n < 2)
		return NAN;
	if (c->deviations == 0)
		return c->squares == 0;
	return 1 - c->squares / c->deviations;
}

static double
mae_of(const NumberSums *c)
{
	return c->errors / (double)c->n;
}

static double
rmse_of(const NumberSums *c)
{
	return sqrt(c->squares / (double)c->n);
}

double
value_r2(const MetricSums *s, const Metric *m)
{
	(void)m;
	return mean_over_columns(s, r2_of);
}

double
value_mae(const MetricSums *s, const Metric *m)
{
	(void)m;
	return mean_over_columns(s, mae_of);
}

double
value_rmse(const MetricSums *s, const Metric *m)
{
	(void)m;
	return mean_over_columns(s, rmse_of);
}
