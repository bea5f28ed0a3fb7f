/* Compares a derivative of f at x with central differences (f(x + step) - f(x - step)) / (2 step). The first step is
 * cbrt(eps) max(1, |x|), where truncation error and rounding error are about equal (Press et al., Numerical Recipes,
 * 5.7). If a kink lies within this step, the difference is wrong though the derivative may be right. So if derivative
 * and difference disagree, smaller steps follow, as long as rounding leaves enough digits to tell the two apart. If no
 * step agrees and the slopes on the left and on the right stay apart, f has a kink at x and thus no slope. */
#include "base/numbers/numbers.h"

#include <float.h>
#include <math.h>

typedef struct {
	DifferenceOf f;
	void *context;
	DType dtype;
	double x, middle, derivative;
} Point;

/* The slopes of one step: central, left, right; noise is the rounding error of a slope. */
typedef struct {
	double slope, left, right, noise;
} Slopes;

static Status
slopes_at(const Point *p, double h, double eps, Slopes *out)
{
	double above = dtype_round(p->dtype, p->x + h), below = dtype_round(p->dtype, p->x - h), up,
	       down;

	RETURN_IF_ERROR(p->f(p->context, above, &up));
	RETURN_IF_ERROR(p->f(p->context, below, &down));
	*out = (Slopes){.slope = (up - down) / (above - below),
	                .left = (p->middle - down) / (p->x - below),
	                .right = (up - p->middle) / (above - p->x),
	                .noise = eps * fmax(fabs(up), fabs(down)) / h};
	return NULL;
}

static double
relative_error(double slope, double derivative)
{
	return fabs(slope - derivative) / fmax(fmax(fabs(slope), fabs(derivative)), 1e-4);
}

/* For a smooth function the left and right slopes approach each other as steps get smaller. */
static bool
is_kink(const Slopes *first, const Slopes *last)
{
	return fabs(last->right - last->left) > 0.5 * fabs(first->right - first->left);
}

Status
difference_check(DifferenceOf f, void *context, DType dtype, double x, double derivative,
                 Difference *out)
{
	double eps = dtype == F64 ? DBL_EPSILON : FLT_EPSILON, h = cbrt(eps) * fmax(1, fabs(x));
	Point p = {f, context, dtype, x, 0, derivative};
	Slopes first, last;

	*out = (Difference){.error = INFINITY};
	RETURN_IF_ERROR(f(context, x, &p.middle));
	for (int k = 0; k < 6; k++, h /= 8) {
		RETURN_IF_ERROR(slopes_at(&p, h, eps, &last));
		double error = relative_error(last.slope, derivative);
		if (k == 0)
			first = last;
		if (!(error >= out->error))
			*out = (Difference){.slope = last.slope, .error = error};
		if (!(out->error > cbrt(eps)))
			return NULL;
		out->kink = k > 0 && is_kink(&first, &last);
		if (8 * last.noise > 0.1 * fabs(last.slope - derivative))
			return NULL;
	}
	return NULL;
}

void
difference_add(WorstDifference *worst, const Difference *d, double derivative, int64_t at)
{
	bool only_kinks = worst->kinks == worst->checked;
	bool is_worse = isnan(d->error) || (!isnan(worst->error) && d->error > worst->error);

	if (only_kinks || (is_worse && !d->kink)) {
		worst->error = d->error;
		worst->derivative = derivative;
		worst->slope = d->slope;
		worst->at = at;
	}
	worst->checked++;
	worst->kinks += d->kink;
}
