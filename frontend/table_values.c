/* What a float tensor is by its values alone: tables that a model reads and no training changes. */
#include "frontend/frontend_impl.h"

#include <math.h>

enum { LEAST_LINE = 6 };
#define WAVE_ERROR 1e-4   /* of the squares: a table may be of bf16 */
#define HIGHEST_WAVE 1.01 /* a line from 0 on solves the recurrence, too, with w = 0 */
#define RAMP_ERROR 5e-3   /* of the ends, likewise */

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

/* Of n numbers, a step apart, each x[p + 1] + x[p - 1] = 2 cos(w) x[p]; *low: the lowest of all so far. */
static bool
is_wave(const TensorData *t, int64_t at, int64_t n, int64_t step, double *low)
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
		*low = x < *low ? x : *low;
	}
	factor = square > 0 ? product / square : 0;
	return rest - factor * product <= WAVE_ERROR * square;
}

bool
values_are_waves(const TensorData *t, bool from_zero)
{
	int64_t step = t->n;

	for (int axis = 0; t->data && t->n && axis < t->rank; axis++) {
		int64_t n = t->dims[axis], lines = t->n / n, line = 0;
		double low = 0;

		step /= n;
		for (; n >= LEAST_LINE && line < lines; line++) {
			int64_t at = line / step * step * n + line % step;
			double first = dtype_load_float(t->dtype, t->data, at);

			if ((from_zero && first != 0 && first != 1) ||
			    !is_wave(t, at, n, step, &low))
				break;
		}
		if (line == lines && low < -0.5)
			return true;
	}
	return false;
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
