/* GPTQ: rounds a product's weights one input after the other, and changes the weights of later
 * inputs so that they compensate the rounding errors (gptq.h). */
#include "quantize/gptq.h"
#include "quantize/calibrate.h"

#include <math.h>
#include <string.h>

/* Replaces a symmetric matrix, given by its lower half, by its lower factor l: a = l l'. false: the
 * matrix is not positive definite. */
static bool
factor(double *a, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j <= i; j++) {
			double sum = a[i * n + j];
			for (int64_t k = 0; k < j; k++)
				sum -= a[i * n + k] * a[j * n + k];
			if (i == j && !(sum > 0))
				return false;
			a[i * n + j] = i == j ? sqrt(sum) : sum / a[j * n + j];
		}
	return true;
}

/* Replaces l by the lower half of the inverse of a = l l'. */
static void
invert(double *l, int64_t n, Arena *arena)
{
	double *inverse = NEW_ARRAY(arena, double, n *n); /* inverse of l, lower triangular */

	for (int64_t j = 0; j < n; j++)
		for (int64_t i = j; i < n; i++) {
			double sum = i == j;
			for (int64_t k = j; k < i; k++)
				sum -= l[i * n + k] * inverse[k * n + j];
			inverse[i * n + j] = sum / l[i * n + i];
		}
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j <= i; j++) {
			double sum = 0;
			for (int64_t k = i; k < n; k++)
				sum += inverse[k * n + i] * inverse[k * n + j];
			l[i * n + j] = sum;
		}
}

/* The upper matrix u with h^-1 = u' u. Row i says how much of input i's error each later input
 * compensates. h is the matrix of sums of x[i] x[j], with a hundredth of its mean diagonal added to
 * the diagonal, as in the paper. u[i][j] is at [i * n + j]. */
static double *
compensation(const InputSums *g, Arena *arena)
{
	int64_t n = g->n;
	double *h = NEW_ARRAY(arena, double, n *n), mean = 0;

	memcpy(h, g->sums, sizeof(double) * (size_t)(n * n));
	for (int64_t i = 0; i < n; i++)
		mean += h[i * n + i] / (double)n;
	if (!(mean > 0))
		return NULL;
	for (int64_t i = 0; i < n; i++)
		h[i * n + i] = (h[i * n + i] > 0 ? h[i * n + i] : mean) + 0.01 * mean;
	if (!factor(h, n))
		return NULL;
	invert(h, n, arena);
	if (!factor(h, n)) /* gives the lower factor l = u' */
		return NULL;
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < i; j++)
			h[j * n + i] = h[i * n + j];
	return h;
}

/* A matrix [inputs, outputs]. Element [i, o] is at i * input_step + o * output_step. */
typedef struct {
	float *at;
	int64_t inputs, outputs, input_step, output_step;
} Matrix;

static float *
element(const Matrix *m, int64_t input, int64_t output)
{
	return m->at + input * m->input_step + output * m->output_step;
}

static int64_t
group_at(const QuantizedTensor *t, int axis, int64_t input, int64_t output)
{
	int64_t at[2] = {axis == 0 ? input : output, axis == 0 ? output : input};
	Groups groups = quantized_groups(t);

	return groups_at(&groups, at);
}

/* Computes the scales of the groups that start at this input. */
static void
open_groups(QuantizedTensor *t, const Matrix *m, int axis, int64_t input, float *low, float *high)
{
	int64_t size = t->group.at[axis], end = input + size < m->inputs ? input + size : m->inputs;

	memset(low, 0, sizeof(float) * (size_t)t->n_scales);
	memset(high, 0, sizeof(float) * (size_t)t->n_scales);
	for (int64_t i = input; i < end; i++)
		for (int64_t o = 0; o < m->outputs; o++) {
			int64_t g = group_at(t, axis, i, o);
			low[g] = fminf(low[g], *element(m, i, o));
			high[g] = fmaxf(high[g], *element(m, i, o));
		}
	for (int64_t o = 0; o < m->outputs; o++) {
		int64_t g = group_at(t, axis, input, o);
		quantization_of(t->type, dtype_info[t->type].class == CLASS_SIGNED, low[g], high[g],
		                &t->scale[g], &t->zero[g]);
	}
}

bool
gptq_round(const InputSums *g, Arena *arena, int inputs, QuantizedTensor *t)
{
	Matrix m = {.at = arena_copy(arena, t->numbers, sizeof(float) * (size_t)t->n),
	            .inputs = t->shape.at[inputs],
	            .outputs = t->shape.at[!inputs],
	            .input_step = inputs == 0 ? t->shape.at[1] : 1,
	            .output_step = inputs == 0 ? 1 : t->shape.at[1]};
	Arena *scratch = arena_new();
	const double *u = m.inputs == g->n && g->rows > 0 ? compensation(g, scratch) : NULL;
	float *low = NEW_ARRAY(scratch, float, t->n_scales),
	      *high = NEW_ARRAY(scratch, float, t->n_scales);

	for (int64_t i = 0; i < m.inputs && u; i++) {
		if (i % t->group.at[inputs] == 0)
			open_groups(t, &m, inputs, i, low, high);
		for (int64_t o = 0; o < m.outputs; o++) {
			int64_t group = group_at(t, inputs, i, o);
			float *w = element(&m, i, o);
			float back = (float)code_number(t->type, *w, t->scale[group],
			                                t->zero[group]);
			double error = ((double)*w - back) / u[i * g->n + i];
			*w = back;
			for (int64_t j = i + 1; j < m.inputs; j++)
				*element(&m, j, o) -= (float)(error * u[i * g->n + j]);
		}
	}
	if (u)
		t->numbers = m.at;
	arena_free(scratch);
	return u != NULL;
}
