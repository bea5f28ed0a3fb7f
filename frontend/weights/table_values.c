/* Recognizes tables that training does not change by their values alone. */
#include "frontend/weights/values.h"

#include <math.h>

enum {
	LEAST_LINE = 6,
	LEAST_SHORT_LINE = 4,
	LEAST_FORETOLD = 8, /* numbers predicted by the recurrences of short lines, in total */
	LEAST_COSINES = 3,
	LEAST_FORETOLD_BITS = 40, /* bits of a kernel predicted by its symmetry */
};
#define WAVE_ERROR 1e-4   /* relative to the sum of squares; a table may be bf16 */
#define HIGHEST_WAVE 1.01 /* a line 0, 1, 2 ... also solves the recurrence, with w = 0 */
#define BENT_WAVE 1.9     /* 2 cos(w) of a line that is neither a ramp nor constant */
#define RAMP_ERROR 5e-3   /* relative to the line's ends; a table may be bf16 */
#define PI 3.14159265358979323846

bool
values_are_wide(const TensorData *t)
{
	int wide = 0;

	for (int i = 0; i < t->rank; i++)
		wide += t->dims[i] > 1;
	return wide > 1;
}

bool
values_repeat(const TensorData *t, int axis)
{
	int64_t inner = 1, n = t->dims[axis];

	for (int i = axis + 1; i < t->rank; i++)
		inner *= t->dims[i];
	for (int64_t i = 0; t->data && i < t->n; i++) {
		int64_t first = i / (n * inner) * (n * inner) + i % inner;
		if (dtype_load_float(t->dtype, t->data, i) !=
		    dtype_load_float(t->dtype, t->data, first))
			return false;
	}
	return t->data && n > 1;
}

bool
values_are_binary(const TensorData *t)
{
	bool seen[2] = {false, false};

	for (int64_t i = 0; t->data && i < t->n; i++) {
		double x = dtype_load_float(t->dtype, t->data, i);
		if (x != 0 && x != 1)
			return false;
		seen[x == 1] = true;
	}
	return seen[0] && seen[1];
}

bool
values_are_mask(const TensorData *t)
{
	bool negative = false;

	for (int64_t i = 0; t->data && i < t->n; i++) {
		double x = dtype_load_float(t->dtype, t->data, i);
		if (x != 0 && !(x <= -1e4))
			return false;
		negative |= x != 0;
	}
	return negative && t->n > 1;
}

bool
values_are_triangle(const TensorData *t)
{
	if (!t->data || t->rank < 2 || t->dims[t->rank - 1] < 2 || t->dims[t->rank - 2] < 2)
		return false;
	int64_t columns = t->dims[t->rank - 1], rows = t->dims[t->rank - 2];
	for (int64_t i = 0; i < t->n; i++) {
		int64_t column = i % columns, row = i / columns % rows;
		if (dtype_load_float(t->dtype, t->data, i) != (column <= row))
			return false;
	}
	return true;
}

typedef struct {
	double low;  /* lowest number, without the ends of lines */
	double bend; /* lowest 2 cos(w) */
} Waves;

/* Is a line a wave, x[p + 1] + x[p - 1] = 2 cos(w) x[p]? The line has n numbers, `step` apart in
 * memory. Updates *all with the line's extremes. */
static bool
is_wave(const TensorData *t, int64_t at, int64_t n, int64_t step, Waves *all)
{
	double product = 0, square = 0, rest = 0, factor;

	for (int64_t p = 1; p < n - 1; p++) {
		double x = dtype_load_float(t->dtype, t->data, at + p * step);
		double sides = dtype_load_float(t->dtype, t->data, at + (p - 1) * step) +
		               dtype_load_float(t->dtype, t->data, at + (p + 1) * step);
		if (fabs(x) > HIGHEST_WAVE)
			return false;
		product += x * sides;
		square += x * x;
		rest += sides * sides;
		all->low = x < all->low ? x : all->low;
	}
	factor = square > 0 ? product / square : 0;
	if (square > 0 && factor < all->bend)
		all->bend = factor;
	return rest - factor * product <= WAVE_ERROR * square;
}

static bool
are_waves_along(const TensorData *t, int axis, bool from_zero, Waves *out)
{
	int64_t n = t->dims[axis], step = 1;

	*out = (Waves){0, 2};
	for (int i = axis + 1; i < t->rank; i++)
		step *= t->dims[i];
	for (int64_t line = 0; line < t->n / n; line++) {
		int64_t at = line / step * step * n + line % step;
		double first = dtype_load_float(t->dtype, t->data, at);

		if ((from_zero && first != 0 && first != 1) || !is_wave(t, at, n, step, out))
			return false;
	}
	return true;
}

bool
values_are_waves(const TensorData *t, bool from_zero)
{
	Waves waves;

	for (int axis = 0; t->data && t->n && axis < t->rank; axis++)
		if (t->dims[axis] >= LEAST_LINE && are_waves_along(t, axis, from_zero, &waves) &&
		    waves.low < -0.5)
			return true;
	return false;
}

bool
values_are_short_waves(const TensorData *t)
{
	Waves waves;

	for (int axis = 0; t->data && t->n && axis < t->rank; axis++) {
		int64_t n = t->dims[axis], foretold = t->n / n * (n - 3);

		if (n >= LEAST_SHORT_LINE && n < LEAST_LINE && foretold >= LEAST_FORETOLD &&
		    are_waves_along(t, axis, true, &waves) && waves.bend < BENT_WAVE)
			return true;
	}
	return false;
}

/* Is a line proportional to cos(pi / n (i + 1/2) k), where i is the index in the line? The line has
 * n numbers, `step` apart in memory. */
static bool
is_cosine(const TensorData *t, int64_t at, int64_t n, int64_t step, int64_t k)
{
	double product = 0, square = 0, all = 0;

	for (int64_t i = 0; i < n; i++) {
		double x = dtype_load_float(t->dtype, t->data, at + i * step);
		double wave = cos(PI / (double)n * ((double)i + 0.5) * (double)k);
		product += x * wave;
		square += wave * wave;
		all += x * x;
	}
	return all > 0 && all - product * product / square <= WAVE_ERROR * all;
}

bool
values_are_cosine_transform(const TensorData *t)
{
	int64_t size[2], line = 0;
	int wide = 0;

	for (int i = 0; i < t->rank; i++)
		if (t->dims[i] > 1 && wide++ < 2)
			size[wide - 1] = t->dims[i];
	if (!t->data || wide != 2 || size[0] < LEAST_COSINES || size[1] < LEAST_COSINES)
		return false;
	while (line < size[0] && size[0] <= size[1] &&
	       is_cosine(t, line * size[1], size[1], 1, line))
		line++;
	if (line == size[0])
		return true;
	line = 0;
	while (line < size[1] && size[1] <= size[0] && is_cosine(t, line, size[0], size[1], line))
		line++;
	return line == size[1];
}

/* Does each number equal `sign` times its mirror image along the axis? */
static bool
is_mirrored_along(const TensorData *t, int axis, double sign)
{
	int64_t inner = 1, n = t->dims[axis];

	for (int i = axis + 1; i < t->rank; i++)
		inner *= t->dims[i];
	for (int64_t i = 0; i < t->n; i++) {
		int64_t mirror = i + (n - 1 - 2 * (i / inner % n)) * inner;
		if (dtype_load_float(t->dtype, t->data, i) !=
		    sign * dtype_load_float(t->dtype, t->data, mirror))
			return false;
	}
	return true;
}

static bool
has_two_magnitudes(const TensorData *t)
{
	double first = 0;

	for (int64_t i = 0; i < t->n; i++) {
		double x = fabs(dtype_load_float(t->dtype, t->data, i));
		if (x != 0 && first != 0 && x != first)
			return true;
		first = x != 0 ? x : first;
	}
	return false;
}

bool
values_are_symmetric_kernel(const TensorData *t)
{
	int spatial = t->rank < 3 ? 0 : 2;
	int bits = t->dtype == BF16 ? 8 : t->dtype == F16 ? 11 : 24;
	int64_t own = 1; /* numbers that do not follow from the symmetry */

	if (!t->data || t->n == 0)
		return false;
	for (int i = spatial; i < t->rank; i++)
		own *= (t->dims[i] + 1) / 2;
	if ((t->n - own) * bits < LEAST_FORETOLD_BITS || !has_two_magnitudes(t))
		return false;
	for (int i = 0; i < spatial; i++)
		if (t->dims[i] > 1 && !values_repeat(t, i))
			return false;
	for (int i = spatial; i < t->rank; i++)
		if (!is_mirrored_along(t, i, 1) && !is_mirrored_along(t, i, -1))
			return false;
	return true;
}

bool
values_are_ramps(const TensorData *t)
{
	int64_t n = t->rank > 0 ? t->dims[t->rank - 1] : 0;
	bool rises = false;

	if (!t->data || t->rank < 3 || n < LEAST_LINE)
		return false;
	for (int64_t line = 0; line < t->n; line += n) {
		double first = dtype_load_float(t->dtype, t->data, line);
		double last = dtype_load_float(t->dtype, t->data, line + n - 1);
		double step = (last - first) / (double)(n - 1);

		for (int64_t p = 1; p < n; p++) {
			double x = dtype_load_float(t->dtype, t->data, line + p);
			if (!(fabs(x - first - step * (double)p) <=
			      RAMP_ERROR * (fabs(first) + fabs(last))))
				return false;
		}
		rises |= step != 0;
	}
	return rises;
}
