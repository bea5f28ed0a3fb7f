/* Recognizes tables of signal processing by their values alone: bases of transforms, windows, filter
 * banks, sequences. Neither training nor random numbers produce these patterns. A line is the
 * numbers along one axis, or a convolution's kernel. */
#include "frontend/weights/values.h"

#include <math.h>

enum {
	LEAST_SYMMETRIC = 8,  /* shortest line whose halves are compared */
	LEAST_PREDICTED = 24, /* shortest line that is predicted from its neighbours */
	LEAST_SEQUENCE = 6,
	LEAST_FILTERS = 3,
	/* different magnitudes of a symmetric line: an identity, a box and a blur of 3 have fewer */
	LEAST_MAGNITUDES = 4,
	/* shortest line that is tested for a sine multiplied by a shared window */
	LEAST_WAVES = 16,
	LONGEST_WAVES = 1 << 13,
	MOST_MAGNITUDES = 8,
	/* for every so many lines, one line may be noise; a basis of 8 numbers has 10 lines */
	LINES_PER_NOISE = 8,
	/* number of roundings when an angle is computed as 2 pi * frequency * index / n */
	ANGLE_ROUNDINGS = 4,
	SAMPLED = 4096,
};
#define WAVE_ERROR 1e-4 /* relative to the sum of squares */
#define ROUGH_ERROR \
	0.5         /* as WAVE_ERROR, for a sine times an unknown window; random numbers have 2 */
#define HIDDEN 0.02 /* numbers that a window makes smaller than this are not judged */
/* relative to the line's largest number; f32 angles of large tables have this error */
#define SYMMETRY_ERROR 1e-3
#define ZERO 1e-6       /* relative to the largest */
#define BUMP_ERROR 1e-3 /* relative to the largest */
#define STEP_ERROR 1e-3 /* relative to a step */
#define PI 3.14159265358979323846

typedef struct {
	const TensorData *t;
	int64_t n, step, count;
	double high; /* largest of a sample; far smaller numbers are rounding errors of zeros */
} Lines;

static double
line_at(const Lines *l, int64_t line, int64_t i)
{
	int64_t at = line / l->step * l->step * l->n + line % l->step + i * l->step;

	return dtype_load_float(l->t->dtype, l->t->data, at);
}

static double
line_highest(const Lines *l, int64_t line)
{
	double high = 0;

	for (int64_t i = 0; i < l->n; i++)
		high = fmax(high, fabs(line_at(l, line, i)));
	return high;
}

static bool
is_zero(const Lines *l, double high)
{
	return high <= ZERO * l->high;
}

/* Is the line zero, or only rounding errors of zeros? For example, the sine at half the sampling
 * rate is 0 at every index, but its angles rise to pi n, and in f32 each operation adds an error of
 * 2^-24 of the angle. *noisy counts the lines of rounding errors: many lines of small numbers are
 * not noise. */
static bool
is_zero_or_noise(const Lines *l, double high, int64_t *noisy)
{
	double noise = ANGLE_ROUNDINGS * 0x1p-24 * PI * (double)l->n;

	if (is_zero(l, high))
		return true;
	return high <= noise * l->high && ++*noisy * LINES_PER_NOISE <= l->count;
}

static Lines
lines_along(const TensorData *t, int axis, double high)
{
	Lines l = {t, t->dims[axis], 1, t->n / t->dims[axis], high};

	for (int i = axis + 1; i < t->rank; i++)
		l.step *= t->dims[i];
	return l;
}

static double
sampled_highest(const TensorData *t)
{
	int64_t step = t->n / SAMPLED | 1;
	double high = 0;

	for (int64_t i = 0; i < t->n; i += step)
		high = fmax(high, fabs(dtype_load_float(t->dtype, t->data, i)));
	return high;
}

/* Does `holds` accept the lines along some axis, or the kernels [out, in, ...]? */
static bool
holds_along_some(const TensorData *t, int64_t least, bool (*holds)(const Lines *))
{
	if (!t->data || t->n == 0)
		return false;
	double high = sampled_highest(t);
	for (int axis = 0; axis < t->rank; axis++) {
		Lines l = lines_along(t, axis, high);
		if (l.n >= least && holds(&l))
			return true;
	}
	Lines kernels = {t, 1, 1, 0, high};
	for (int i = 2; i < t->rank; i++)
		kernels.n *= t->dims[i];
	kernels.count = t->n / kernels.n;
	return t->rank > 3 && kernels.n >= least && holds(&kernels);
}

/* Relative rounding error of the type. */
static double
rounding_of(DType d)
{
	return d == BF16 ? 4e-3 : d == F16 ? 5e-4 : 1e-7;
}

/* ---- bases */
/* Is x[i] = sign * x[n - 1 - i] for all i? If `period`: x[i] = sign * x[n - i], as in sampled
 * windows without their last number. */
static bool
is_mirrored(const Lines *l, int64_t line, bool period, double sign, double error)
{
	for (int64_t i = period; 2 * i < l->n; i++) {
		int64_t other = l->n - 1 - i + period;
		if (!(fabs(line_at(l, line, i) - sign * line_at(l, line, other)) <= error))
			return false;
	}
	return true;
}

static bool
has_magnitudes(const Lines *l, int64_t line, double high, int least)
{
	double seen[MOST_MAGNITUDES];
	int n = 0;

	for (int64_t i = 0; i < l->n && n < least; i++) {
		double x = fabs(line_at(l, line, i));
		bool is_new = x > 0.01 * high;
		for (int k = 0; k < n; k++)
			is_new &= fabs(x - seen[k]) > 0.01 * high;
		if (is_new)
			seen[n++] = x;
	}
	return n == least;
}

/* Does each line equal its mirror image, or the negative of its mirror image? */
static bool
are_mirrored_with(const Lines *l, int least)
{
	int64_t rich = 0, noisy = 0;

	for (int64_t line = 0; line < l->count; line++) {
		double high = line_highest(l, line);
		double error = high * (SYMMETRY_ERROR + rounding_of(l->t->dtype));
		if (is_zero_or_noise(l, high, &noisy))
			continue;
		if (!is_mirrored(l, line, false, 1, error) &&
		    !is_mirrored(l, line, false, -1, error) &&
		    !is_mirrored(l, line, true, 1, error) && !is_mirrored(l, line, true, -1, error))
			return false;
		rich += has_magnitudes(l, line, high, least);
	}
	return 2 * rich >= l->count && rich > 0;
}

static double
neighbours(const Lines *l, int64_t line, int64_t at, int64_t distance)
{
	return distance ? line_at(l, line, at - distance) + line_at(l, line, at + distance)
	                : line_at(l, line, at);
}

static bool
are_mirrored(const Lines *l)
{
	return are_mirrored_with(l, LEAST_MAGNITUDES);
}

static bool
changes_sign(const Lines *l, int64_t line, int64_t begin, int64_t end)
{
	int changes = 0;

	for (int64_t i = begin + 1; i < end && changes < 2; i++)
		changes += line_at(l, line, i) * line_at(l, line, i - 1) < 0;
	return changes == 2;
}

/* The window that all lines share: the root of the sum of the lines' squares. Pairs of sine and
 * cosine add up to the window's square. */
static double
shared_window(const Lines *l, double *window)
{
	double high = 0;

	for (int64_t i = 0; i < l->n; i++) {
		double square = 0;
		for (int64_t line = 0; line < l->count; line++)
			square += line_at(l, line, i) * line_at(l, line, i);
		window[i] = sqrt(square);
		high = fmax(high, window[i]);
	}
	return high;
}

/* Is the line, divided by the window, a sine? Then y[i - 1] + y[i + 1] = 2 cos(w) y[i]. */
static bool
is_sine_behind(const Lines *l, int64_t line, const double *window, double high)
{
	double product = 0, square = 0, rest = 0;
	int64_t judged = 0;

	for (int64_t i = 1; i + 1 < l->n; i++) {
		double before = window[i - 1], here = window[i], behind = window[i + 1];
		if (fmin(before, fmin(here, behind)) <= HIDDEN * high)
			continue;
		double x = line_at(l, line, i);
		double sides = (line_at(l, line, i - 1) / before +
		                line_at(l, line, i + 1) / behind) *
		               here;
		product += x * sides;
		square += x * x;
		rest += sides * sides;
		judged++;
	}
	double factor = square > 0 ? product / square : 0;
	return 2 * judged >= LEAST_WAVES && rest - factor * product <= WAVE_ERROR * square;
}

/* Is the line nearly a sine, x[i - 1] + x[i + 1] = 2 cos(w) x[i], apart from the window's slope?
 * This quick check excludes most weights. */
static bool
is_roughly_sine(const Lines *l, int64_t line)
{
	double product = 0, square = 0, rest = 0;

	for (int64_t i = 1; i + 1 < l->n; i++) {
		double x = line_at(l, line, i),
		       sides = line_at(l, line, i - 1) + line_at(l, line, i + 1);
		product += x * sides;
		square += x * x;
		rest += sides * sides;
	}
	double factor = square > 0 ? product / square : 0;
	return rest - factor * product <= ROUGH_ERROR * square;
}

static bool
are_sines_behind_window(const Lines *l)
{
	double window[LONGEST_WAVES];
	int64_t lines = 0, noisy = 0, noisy_of_three = 0;

	if (l->n > LONGEST_WAVES || l->count < LEAST_FILTERS)
		return false;
	for (int64_t i = 1; i < 4; i++) {
		int64_t line = i * l->count / 4;
		if (!is_zero_or_noise(l, line_highest(l, line), &noisy_of_three) &&
		    !is_roughly_sine(l, line))
			return false;
	}
	double high = shared_window(l, window);
	for (int64_t line = 0; line < l->count; line++) {
		bool zero = is_zero_or_noise(l, line_highest(l, line), &noisy);
		if (!zero && !is_sine_behind(l, line, window, high))
			return false;
		lines += !zero && changes_sign(l, line, 0, l->n);
	}
	return lines > 1 && 4 * lines >= l->count;
}

/* The relative squared error when x[i - 3] + x[i + 3] is predicted over begin + 3 .. end - 3 from
 * x[i - 2] + x[i + 2], x[i - 1] + x[i + 1] and x[i]. A sine times a Hann or Hamming window is a sum
 * of three sines, which satisfies such a recurrence exactly. */
static double
missed_by_recurrence(const Lines *l, int64_t line, int64_t begin, int64_t end)
{
	double dot[4][4] = {{0}}, all;

	for (int64_t i = begin + 3; i < end - 3; i++) {
		double column[4];
		for (int k = 0; k < 4; k++)
			column[k] = neighbours(l, line, i, k);
		for (int k = 0; k < 4; k++)
			for (int j = 0; j <= k; j++)
				dot[k][j] += column[k] * column[j];
	}
	all = dot[3][3];
	/* Cholesky decomposition: what remains of each column after projection on the earlier
	 * columns. */
	for (int k = 0; k < 4; k++)
		for (int j = 0; j <= k; j++) {
			for (int m = 0; m < j; m++)
				dot[k][j] -= dot[k][m] * dot[j][m];
			if (j < k)
				dot[k][j] = dot[j][j] > 0 ? dot[k][j] / dot[j][j] : 0;
			else
				dot[k][k] = k < 3 ? sqrt(fmax(dot[k][k], 0)) : dot[k][k];
		}
	return all > 0 ? fmax(dot[3][3], 0) / all : 0;
}

/* Is each line a sine times a window, with zeros before and after? Lines too short to tell must be
 * fewer than the recognized lines. */
static bool
are_windowed_sines(const Lines *l)
{
	double limit = rounding_of(l->t->dtype) > 1e-6 ? 5e-4 : 1e-6;
	int64_t sines = 0, short_ones = 0, noisy = 0;

	for (int64_t line = 0; line < l->count; line++) {
		double high = line_highest(l, line), zero = ZERO * high;
		int64_t begin = 0, end = is_zero_or_noise(l, high, &noisy) ? 0 : l->n;

		while (begin < end && fabs(line_at(l, line, begin)) <= zero)
			begin++;
		while (end > begin && fabs(line_at(l, line, end - 1)) <= zero)
			end--;
		if (end - begin < LEAST_PREDICTED)
			short_ones += end > begin;
		else if (missed_by_recurrence(l, line, begin, end) > limit)
			return false;
		else
			sines += changes_sign(l, line, begin, end);
	}
	return sines > 1 && sines >= short_ones && 2 * sines >= l->count / 2;
}

bool
values_are_basis(const TensorData *t)
{
	double value;

	return t->data && !tensor_constant_valued(t, &value) &&
	       (holds_along_some(t, LEAST_SYMMETRIC, are_mirrored) ||
	        holds_along_some(t, LEAST_WAVES, are_sines_behind_window) ||
	        holds_along_some(t, LEAST_PREDICTED, are_windowed_sines));
}

/* ---- one bump: rises from zero or more to the highest number, then falls */
static bool
is_bump(const Lines *l, int64_t line, int64_t *peak, int64_t *width)
{
	double high = line_highest(l, line), error = BUMP_ERROR * high;

	*peak = *width = 0;
	if (is_zero(l, high))
		return true;
	for (int64_t i = 0; i < l->n; i++) {
		double x = line_at(l, line, i);
		if (x < -0.01 * high)
			return false;
		*width += x > 0.01 * high;
		if (x > line_at(l, line, *peak))
			*peak = i;
	}
	for (int64_t i = 1; i < l->n; i++) {
		double rise = line_at(l, line, i) - line_at(l, line, i - 1);
		if (!((i <= *peak ? rise : -rise) >= -error))
			return false;
	}
	return true;
}

static bool
is_window(const Lines *l)
{
	int64_t peak, width;

	return l->count == 1 && are_mirrored_with(l, LEAST_MAGNITUDES - 1) &&
	       is_bump(l, 0, &peak, &width);
}

bool
values_are_window(const TensorData *t)
{
	return holds_along_some(t, LEAST_SYMMETRIC, is_window);
}

/* Has each line one bump, do the peaks move in one direction from line to line, and are at least
 * three bumps wide? */
static bool
are_bumps_in_order(const Lines *l)
{
	int64_t last = -1, peak, width, moves = 0, wide = 0;
	int direction = 0;

	for (int64_t line = 0; line < l->count; line++) {
		if (!is_bump(l, line, &peak, &width))
			return false;
		if (width == 0)
			continue;
		int way = last < 0 || peak == last ? 0 : peak > last ? 1 : -1;
		if (way && direction && way != direction)
			return false;
		direction = way ? way : direction;
		moves += way != 0;
		wide += width >= LEAST_FILTERS;
		last = peak;
	}
	return moves + 1 >= LEAST_FILTERS && wide >= LEAST_FILTERS;
}

static int
count_wide(const TensorData *t)
{
	int wide = 0;

	for (int i = 0; i < t->rank; i++)
		wide += t->dims[i] > 1;
	return wide;
}

bool
values_are_filter_bank(const TensorData *t)
{
	return count_wide(t) == 2 && holds_along_some(t, LEAST_SYMMETRIC, are_bumps_in_order);
}

/* ---- sequences */
bool
values_are_sequence(const TensorData *t)
{
	double product = 0, square = 0;

	if (!t->data || t->n < LEAST_SEQUENCE || values_are_wide(t))
		return false;
	Lines l = {t, t->n, 1, 1, 0};
	for (int64_t i = 2; i < l.n; i++) {
		double step = line_at(&l, 0, i) - line_at(&l, 0, i - 1);
		double before = line_at(&l, 0, i - 1) - line_at(&l, 0, i - 2);
		product += step * before;
		square += before * before;
	}
	double ratio = square > 0 ? product / square : 0;
	double way = line_at(&l, 0, l.n - 1) - line_at(&l, 0, 0), rounding = 0;
	for (int64_t i = 2; i < l.n; i++) {
		double x = line_at(&l, 0, i), y = line_at(&l, 0, i - 1), z = line_at(&l, 0, i - 2);
		double error = 4 * rounding_of(t->dtype) * fmax(fabs(x), fmax(fabs(y), fabs(z)));
		rounding = fmax(rounding, error);
		if ((x - y) * way <= 0 || (y - z) * way <= 0 ||
		    !(fabs(x - y - ratio * (y - z)) <= STEP_ERROR * fabs(x - y) + error))
			return false;
	}
	return fabs(way) > 20 * rounding;
}

/* Are all rows or all columns equal, as in an expanded parameter? */
static bool
repeats_somewhere(const TensorData *t)
{
	for (int axis = 0; axis < t->rank; axis++)
		if (values_repeat(t, axis))
			return true;
	return false;
}

bool
values_are_whole(const TensorData *t)
{
	double seen[2];
	int n_seen = 0;
	int64_t zeros = 0;
	bool large = false, third = false;

	for (int64_t i = 0; t->data && i < t->n; i++) {
		double x = dtype_load_float(t->dtype, t->data, i);
		if (!(fabs(x) < 1 << 24) || 2 * x != round(2 * x))
			return false;
		bool is_new = true;
		for (int k = 0; k < n_seen; k++)
			is_new &= x != seen[k];
		third |= is_new && n_seen == 2;
		if (is_new && n_seen < 2)
			seen[n_seen++] = x;
		large |= fabs(x) > 1;
		zeros += x == 0;
	}
	return t->data && t->n >= LEAST_SEQUENCE && large && third && 2 * zeros < t->n &&
	       !repeats_somewhere(t);
}
