/* AWQ: chooses a factor for each input of a matrix, so that rounding the matrix changes its
 * products least over the data (awq.h). */
#include "quantize/awq.h"
#include "quantize/calibrate.h"

#include <math.h>
#include <string.h>

enum { N_ALPHAS = 20, MOST_WORK = 1 << 27, LEAST_OUTPUTS = 32 };
#define LEAST_SIZE 1e-4 /* smallest magnitude of an input, as in the authors' code */

/* Sets out[i] to mean|x[i]|^alpha, scaled so that the largest times the smallest factor is 1. */
static void
factors_of(const InputSums *g, double alpha, float *out)
{
	double low = INFINITY, high = 0;

	for (int64_t i = 0; i < g->n; i++) {
		double s = fmax(pow(g->sizes[i] / (double)g->rows, alpha), LEAST_SIZE);
		low = fmin(low, s);
		high = fmax(high, s);
	}
	for (int64_t i = 0; i < g->n; i++) {
		double s = fmax(pow(g->sizes[i] / (double)g->rows, alpha), LEAST_SIZE);
		out[i] = (float)(s / sqrt(low * high));
	}
}

/* Only each stride-th output is measured, because the work is inputs^2 * outputs. */
static int64_t
stride_of(int64_t inputs, int64_t outputs)
{
	int64_t most = MOST_WORK / (inputs * inputs) + 1;

	most = most > LEAST_OUTPUTS ? most : LEAST_OUTPUTS;
	return (outputs - 1) / most + 1;
}

/* The change of w when s w is rounded and divided by s again: [inputs, outputs], for each stride-th
 * output. */
static double *
rounding(const QuantizedTensor *t, const float *s, int64_t stride, Arena *scratch)
{
	int64_t outputs = (t->shape.at[!t->input_axis] - 1) / stride + 1, columns = t->shape.at[1];
	float *numbers = NEW_ARRAY(scratch, float, t->n),
	      *scale = NEW_ARRAY(scratch, float, t->n_scales);
	int32_t *zero = NEW_ARRAY(scratch, int32_t, t->n_scales);
	double *out = NEW_ARRAY(scratch, double, t->n);
	Groups groups = quantized_groups(t);

	for (int64_t i = 0; i < t->n; i++)
		numbers[i] = t->numbers[i] * s[t->input_axis ? i % columns : i / columns];
	quantization_of_groups(t->type, &groups, F32, numbers, scratch, scale, zero);
	for (GroupWalk w = group_walk(&groups); w.i < t->n; group_next(&w)) {
		int64_t input = t->input_axis ? w.i % columns : w.i / columns,
			output = t->input_axis ? w.i / columns : w.i % columns;
		if (output % stride != 0)
			continue;
		double back = code_number(t->type, numbers[w.i], scale[w.group], zero[w.group]);
		out[input * outputs + output / stride] = back / s[input] - t->numbers[w.i];
	}
	return out;
}

static double
dot(const double *a, const double *b, int64_t n)
{
	double sums[4] = {0};
	int64_t i = 0;

	for (; i + 4 <= n; i += 4)
		for (int k = 0; k < 4; k++)
			sums[k] += a[i + k] * b[i + k];
	for (; i < n; i++)
		sums[0] += a[i] * b[i];
	return sums[0] + sums[1] + sums[2] + sums[3];
}

/* The error of the products: the sum over the data of (x d)^2, where d is the change of the weights
 * (see `rounding`). It equals the sum over all i and j of sum(x[i] x[j]) d[i].d[j]. */
static double
error_of(const InputSums *g, const QuantizedTensors *readers, const float *s)
{
	double error = 0;

	for (int r = 0; r < readers->n; r++) {
		const QuantizedTensor *t = readers->at[r];
		int64_t stride = stride_of(g->n, t->shape.at[!t->input_axis]);
		int64_t outputs = (t->shape.at[!t->input_axis] - 1) / stride + 1;
		Arena *scratch = arena_new();
		const double *d = rounding(t, s, stride, scratch);
		for (int64_t i = 0; i < g->n; i++)
			for (int64_t j = 0; j <= i; j++)
				error += (i == j ? 1 : 2) * g->sums[i * g->n + j] *
				         dot(d + i * outputs, d + j * outputs, outputs);
		arena_free(scratch);
	}
	return error;
}

const float *
awq_factors(const InputSums *g, Arena *arena, const QuantizedTensors *readers)
{
	float *tried = NEW_ARRAY(arena, float, g->n), *best = NULL;
	double least = INFINITY;

	for (int k = 0; k < N_ALPHAS && g->rows > 0; k++) {
		factors_of(g, (double)k / N_ALPHAS, tried);
		double error = error_of(g, readers, tried);
		if (!(error < least))
			continue;
		least = error;
		if (k > 0)
			best = arena_copy(arena, tried, sizeof(float) * (size_t)g->n);
	}
	return best;
}
