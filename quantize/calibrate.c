/* Finds the range of an activation from its values over data, for the scale of its codes, by the
 * method of --calibrate: minmax, percentile, entropy, mse or others. */
#include "quantize/calibrate.h"
#include "base/base.h"

#include <float.h>
#include <math.h>
#include <string.h>

bool
calibration_parse(const char *text, Calibration *out, Diag *diag)
{
	size_t n = strcspn(text, ":");
	Text names = {0};

	*out = (Calibration){.type = U8, .percentile = 99.999};
	for (const CalibrationMethod *m = calibration_methods; m->name; m++) {
		text_printf(&names, "%s%s", names.n ? ", " : "", m->name);
		if (strlen(m->name) == n && strncmp(m->name, text, n) == 0)
			out->method = m;
	}
	bool is_percentile = out->method && strcmp(out->method->name, "percentile") == 0;
	bool ok = out->method &&
	          (!text[n] || (is_percentile && parse_double(text + n + 1, &out->percentile) &&
	                        out->percentile > 50 && out->percentile <= 100));
	if (!ok)
		diag_error(
			diag, EXIT_USAGE,
			"--calibrate=%s: need one of %s; percentile:P with P above 50 and up to 100",
			text, names.at);
	text_free(&names);
	return ok;
}

void
calibration_see(Calibration *c, const float *x, int64_t n)
{
	float low = INFINITY, high = -INFINITY, smallest = c->n_batches ? c->smallest : INFINITY;

	for (int64_t i = 0; i < n; i++) {
		c->n_bad += isnan(x[i]) || isinf(x[i]);
		low = x[i] < low ? x[i] : low;
		smallest = fabsf(x[i]) < smallest ? fabsf(x[i]) : smallest;
		high = x[i] > high ? x[i] : high;
	}
	if (c->n_batches == 0 || low < c->low)
		c->low = low;
	if (c->n_batches == 0 || high > c->high)
		c->high = high;
	c->smallest = smallest;
	c->sums[0] += low;
	c->sums[1] += high;
	c->n_batches++;
	c->n_values += n;
}

/* ---- the histogram, counted like numpy.histogram: edges are f32, and the last bin includes both
 * its ends */
static void
open_histogram(Calibration *c, Arena *arena)
{
	int n = c->method->bins;
	float last = fmaxf(fabsf(c->low), fabsf(c->high));
	float first = c->method->absolute ? c->smallest : -last;

	if (first == last) {
		/* at large numbers 0.5 is below f32's precision */
		first = fminf(first - 0.5f, nextafterf(first, -INFINITY));
		last = fmaxf(last + 0.5f, nextafterf(last, INFINITY));
	}
	bool is_wide = isinf(last - first); /* overflows in numpy's f32 */
	float step = is_wide ? (float)(((double)last - first) / n) : (last - first) / (float)n;
	c->edges = NEW_ARRAY(arena, float, n + 1);
	c->histogram = NEW_ARRAY(arena, int64_t, n);
	for (int i = 0; i < n; i++) {
		volatile float offset = (float)i * step; /* no fused multiply-add */
		c->edges[i] = offset + first;
	}
	c->edges[n] = last;
}

static void
count_one(Calibration *c, float x)
{
	int bins = c->method->bins;
	float first = c->edges[0], last = c->edges[bins];

	if (!(x >= first && x <= last))
		return;
	double place = ((double)x - first) / ((double)last - first) * bins;
	int k = place < bins ? (int)place : bins - 1;
	if (k > 0 && x < c->edges[k])
		k--;
	else if (k < bins - 1 && x >= c->edges[k + 1])
		k++;
	c->histogram[k]++;
}

void
calibration_count(Calibration *c, Arena *arena, const float *x, int64_t n)
{
	if (!c->histogram)
		open_histogram(c, arena);
	for (int64_t i = 0; i < n; i++)
		count_one(c, c->method->absolute ? fabsf(x[i]) : x[i]);
}

/* ---- methods */
static bool
range_minmax(const Calibration *c, float *low, float *high)
{
	*low = c->low;
	*high = c->high;
	return true;
}

/* The mean of the batches' ranges, as the moving average of onnxruntime's calibrator computes it. */
static bool
range_average(const Calibration *c, float *low, float *high)
{
	*low = c->sums[0] / (float)c->n_batches;
	*high = c->sums[1] / (float)c->n_batches;
	return true;
}

/* The first bin such that at least the fraction `part` of the values lies in this bin and the bins
 * before. */
static int
bin_of(const Calibration *c, double part)
{
	int64_t total = 0;
	double sum = 0;
	int n = c->method->bins;

	for (int i = 0; i < n; i++)
		total += c->histogram[i];
	for (int i = 0; i < n; i++)
		if ((sum += (double)c->histogram[i] / (double)total) >= part)
			return i;
	return n;
}

/* Sets the range to -m .. m, where m is the magnitude below which the given percentage of the
 * values lies. */
static bool
range_percentile(const Calibration *c, float *low, float *high)
{
	*high = c->edges[bin_of(c, c->percentile / 100)];
	*low = -*high;
	return true;
}

/* Adds a small number to each empty bin and subtracts the same total from the other bins
 * (onnxruntime's smooth_distribution); false: too few bins have values. */
static bool
smooth(double *p, int n)
{
	const double eps = 1e-4;
	int zeros = 0;

	for (int i = 0; i < n; i++)
		zeros += p[i] == 0;
	if (zeros == n)
		return false;
	double less = eps * zeros / (n - zeros);
	for (int i = 0; i < n; i++)
		p[i] += p[i] == 0 ? eps : -less;
	return less < 1;
}

/* Kullback-Leibler divergence of p from q. p is the histogram of bins [start, end), with the values
 * outside added to its ends. q is p reduced to `levels` levels. */
static double
divergence(const Calibration *c, Arena *arena, int start, int end, int levels)
{
	int n = end - start, merged = n / levels, bins = c->method->bins;
	double *p = NEW_ARRAY(arena, double, n), *q = NEW_ARRAY(arena, double, n), sums[2] = {0, 0},
	       d = 0;

	for (int i = 0; i < bins; i++)
		p[i < start ? 0 : i >= end ? n - 1 : i - start] += (double)c->histogram[i];
	for (int k = 0; k < levels; k++) {
		int from = k * merged, to = from + merged, last = k == levels - 1 ? n : to;
		int64_t sum = 0;
		int filled = 0;
		for (int i = from; i < last; i++)
			sum += c->histogram[start + i];
		for (int i = from; i < to; i++)
			filled += p[i] != 0;
		for (int i = from; i < to && filled; i++)
			q[i] = floor((double)sum / filled);
	}
	if (!smooth(p, n) || !smooth(q, n))
		return INFINITY;
	for (int i = 0; i < n; i++) {
		sums[0] += p[i];
		sums[1] += q[i];
	}
	for (int i = 0; i < n; i++)
		d += p[i] / sums[0] * log(p[i] / sums[0] / (q[i] / sums[1]));
	return d;
}

static bool
range_entropy(const Calibration *c, float *low, float *high)
{
	enum { LEVELS = 128 };
	int bins = c->method->bins, middle = bins / 2;
	double best = INFINITY;
	bool found = false;

	for (int i = LEVELS / 2; i <= middle; i++) {
		Arena *arena = arena_new();
		int start = middle - i, end = middle + i + 1 < bins ? middle + i + 1 : bins;
		double d = divergence(c, arena, start, end, LEVELS);
		arena_free(arena);
		if (found && !(d < best))
			continue;
		found = true;
		best = d;
		*low = c->edges[start];
		*high = c->edges[end];
	}
	return found;
}

/* Shrinks the range of all values to the fraction, 1 to 0.2, whose codes have the smallest mean
 * square error. */
static bool
range_mse(const Calibration *c, float *low, float *high)
{
	double best = INFINITY;

	for (int percent = 100; percent >= 20; percent--) {
		float scale,
			ends[] = {c->low * (float)percent / 100, c->high * (float)percent / 100};
		int32_t zero;
		double error = 0;
		quantization_of(c->type, false, ends[0], ends[1], &scale, &zero);
		for (int i = 0; i < c->method->bins; i++) {
			double x = ((double)c->edges[i] + c->edges[i + 1]) / 2;
			double back = code_number(c->type, x, scale, zero);
			error += (double)c->histogram[i] * (x - back) * (x - back);
		}
		if (error < best) {
			best = error;
			*low = ends[0];
			*high = ends[1];
		}
	}
	return isfinite(best);
}

/* The range that gives the scale which onnxruntime's quantizer uses for 8-bit floats. */
static bool
range_distribution(const Calibration *c, float *low, float *high)
{
	double least, most, sums[3] = {0};

	for (int i = 0; i < c->method->bins; i++) {
		float x = (c->edges[i] + c->edges[i + 1]) * 0.5f, power = 1;
		for (int k = 0; k < COUNT(sums); k++, power *= x)
			sums[k] += (double)c->histogram[i] * power;
	}
	double mean = sums[1] / sums[0], variance = sums[2] / sums[0] - mean * mean;
	dtype_range(c->type, &least, &most);
	*high = (float)sqrt(variance) / DEVIATION_OF_BYTES * (float)most;
	*low = -*high;
	return *high > 0;
}

const CalibrationMethod calibration_methods[] = {
	{"minmax", "the lowest and the highest value", false, false, 0, range_minmax},
	{"percentile", "percentile:P, P % of the magnitudes are in the range (99.999)", true, true,
         2048, range_percentile},
	{"entropy", "the range whose codes lose least information about the values", true, false,
         128, range_entropy},
	{"mse", "the range whose codes have the least square error", true, false, 2048, range_mse},
	{"moving-average", "the mean of the batches' ranges", false, false, 0, range_average},
	{"distribution", "the range by the standard deviation", true, false, 2048,
         range_distribution},
	{0},
};

void
calibration_range(const Calibration *c, float *low, float *high)
{
	bool narrows = c->method->counts && !dtype_is_float(c->type);

	*low = *high = 0;
	if (c->n_values == 0)
		return;
	if (!c->method->range(c, low, high))
		range_minmax(c, low, high);
	*low = *low < c->low && narrows ? c->low : *low;
	*high = *high > c->high && narrows ? c->high : *high;
}
