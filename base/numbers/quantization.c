/* Quantization: computes scales and zero points from ranges of numbers, and converts numbers to codes and back. */
#include "base/numbers/numbers.h"

#include <float.h>
#include <math.h>

void
quantization_of(DType type, bool symmetric, float low, float high, float *scale, int32_t *zero)
{
	double least, most;

	symmetric |= dtype_is_float(type);
	dtype_range(type, &least, &most);
	if (symmetric && least < 0 && dtype_info[type].bits >= 8)
		least = -most;
	low = fminf(low, 0);
	high = fmaxf(high, 0);
	if (symmetric) {
		high = fmaxf(-low, high);
		low = -high;
	}
	volatile float range = high - low; /* in f32, as onnxruntime computes it */
	double step = (isinf(range) ? (double)high - low : range) / (most - least);
	*zero = 0;
	if (step < FLT_MIN) {
		*scale = 1;
		return;
	}
	*zero = (int32_t)(symmetric ? nearbyint((least + most) / 2)
	                            : nearbyint(least - low / step));
	*scale = (float)step;
}

/* ---- float codes */
/* The sum in NumPy's order: up to 128 numbers in eight partial sums; more numbers are split in halves. */
static float
pairwise_sum(const float *x, int64_t n)
{
	enum { AT_ONCE = 8, BLOCK = 128 };
	float part[AT_ONCE] = {0}, sum = 0;
	int64_t i = 0, half = n / 2 - n / 2 % AT_ONCE;

	if (n > BLOCK)
		return pairwise_sum(x, half) + pairwise_sum(x + half, n - half);
	for (; i + AT_ONCE <= n; i += AT_ONCE)
		for (int k = 0; k < AT_ONCE; k++)
			part[k] += x[i + k];
	if (n >= AT_ONCE)
		sum = ((part[0] + part[1]) + (part[2] + part[3])) +
		      ((part[4] + part[5]) + (part[6] + part[7]));
	for (; i < n; i++)
		sum += x[i];
	return sum;
}

/* numpy.std, to the bit. Overwrites x with the squared deviations. */
static float
standard_deviation(float *x, int64_t n)
{
	float mean = (float)((double)pairwise_sum(x, n) / (double)n);

	for (int64_t i = 0; i < n; i++)
		x[i] = (x[i] - mean) * (x[i] - mean);
	return sqrtf((float)((double)pairwise_sum(x, n) / (double)n));
}

/* Computes the scale of each group from the group's standard deviation. If the group's largest number would then be out
 * of range, the old scale stays. */
static void
scales_by_deviation(const Groups *g, int64_t n, DType dtype, const void *data, Arena *scratch,
                    float *scale)
{
	int64_t n_groups = groups_count(g), *end = NEW_ARRAY(scratch, int64_t, n_groups + 1);
	float *sorted = NEW_ARRAY(scratch, float, n);

	for (GroupWalk w = group_walk(g); w.i < n; group_next(&w))
		end[w.group + 1]++;
	for (int64_t k = 0; k < n_groups; k++)
		end[k + 1] += end[k];
	for (GroupWalk w = group_walk(g); w.i < n; group_next(&w))
		sorted[end[w.group]++] = (float)dtype_load_float(dtype, data, w.i);
	for (int64_t k = 0, first = 0; k < n_groups; first = end[k++]) {
		float step = standard_deviation(sorted + first, end[k] - first) /
		             DEVIATION_OF_BYTES;
		if (step > scale[k] && isfinite(step))
			scale[k] = step;
	}
}

void
quantization_of_groups(DType type, const Groups *g, DType dtype, const void *data, Arena *scratch,
                       float *scale, int32_t *zero)
{
	int64_t n_groups = groups_count(g), n = 1;
	float *low = NEW_ARRAY(scratch, float, n_groups),
	      *high = NEW_ARRAY(scratch, float, n_groups);

	for (int i = 0; i < g->rank; i++)
		n *= g->dims[i];
	for (GroupWalk w = group_walk(g); w.i < n; group_next(&w)) {
		float x = (float)dtype_load_float(dtype, data, w.i);
		low[w.group] = fminf(low[w.group], x);
		high[w.group] = fmaxf(high[w.group], x);
	}
	for (int64_t k = 0; k < n_groups; k++)
		quantization_of(type, dtype_info[type].class == CLASS_SIGNED, low[k], high[k],
		                &scale[k], &zero[k]);
	if (dtype_is_float(type) && dtype_info[type].bits == 8)
		scales_by_deviation(g, n, dtype, data, scratch, scale);
}

/* ---- from number to code and back */
/* x / scale, rounded to the type; float types clamp it to their largest number. */
static double
nearest_code(DType type, double x, double scale)
{
	return dtype_round_as(type, (Conversion){.overflow = OVERFLOW_SATURATE}, (float)(x / scale),
	                      0);
}

void
code_store(DType type, void *at, int64_t i, double x, double scale, double zero)
{
	if (dtype_is_float(type))
		dtype_store_float(type, at, i, nearest_code(type, x, scale));
	else
		dtype_store_int(type, at, i, dtype_quantize(type, F32, false, x, scale, zero));
}

double
code_number(DType type, double x, double scale, double zero)
{
	if (dtype_is_float(type))
		return nearest_code(type, x, scale) * scale;
	return ((double)dtype_quantize(type, F32, false, x, scale, zero) - zero) * scale;
}
