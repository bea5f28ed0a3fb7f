/* Imports RoiAlign and MaxRoiPool, which pool over regions of interest. The number of elements in a
 * region depends on data, but shapes must not. So each result is a sum or a maximum over the whole
 * axis, in which elements outside of the region have no weight. */
#include "frontend/import/import.h"

#include <math.h>
#include <string.h>

enum { MOST_BINS = 1 << 16, MOST_SAMPLES = 1 << 16 };

/* Regions along one axis; each value is [regions]. */
typedef struct {
	Value *start, *size;  /* in elements of the input */
	int64_t bins, length; /* number of results along the axis, number of the input's elements */
} Regions;

/* 0, 1, 2 .. along an axis of the shape */
static Value *
counted(OnnxNode *n, const Value *like, Ints shape, int axis)
{
	return e_cast(n, e_iota(n, S64, shape, axis), like->type->dtype);
}

/* Column i of rois: [regions, columns] */
static Value *
roi_column(OnnxNode *n, Value *rois, int i)
{
	return e_flat(n, e_slice_axis(n, rois, 1, i, i + 1));
}

static bool
want_regions(OnnxNode *n, const Value *x, const Value *rois, int columns)
{
	if (x->type->rank != 4 || rois->type->rank != 2 || rois->type->dims[1] != columns) {
		report_invalid(
			n,
			"an input of rank %d and regions of rank %d, needs [N, C, H, W] and [regions, %d]",
			x->type->rank, rois->type->rank, columns);
		return false;
	}
	for (int i = 0; i < 4; i++)
		if (x->type->dims[i] < 1) {
			report_invalid(n, "axis %d of the input has no elements", i);
			return false;
		}
	return true;
}

static bool
want_bins(OnnxNode *n, int64_t bins)
{
	if (bins < 1 || bins > MOST_BINS)
		report_invalid(n, "%lld results along an axis, needs 1 to %d", (long long)bins,
		               MOST_BINS);
	return bins >= 1 && bins <= MOST_BINS;
}

/* ---- RoiAlign: https://onnx.ai/onnx/operators/onnx__RoiAlign.html. A bin is the mean, or the
 * maximum, of samples that are evenly spaced within it */
typedef struct {
	Value *at;     /* [regions, bins, samples]: positions in elements */
	Value *inside; /* does the sample belong to the bin, and lie inside the input? */
	Value *count;  /* [regions]: number of samples per bin */
	Value *beyond; /* [regions, bins]: do some samples lie outside the input? */
} Samples;

/* Upper bound of the number of a bin's samples. Without a ratio only samples from -1 to `length`
 * matter, which count as inside the input. A bin then has ceil(size / bins) samples; several
 * samples are more than 1/2 apart, so at most 2 (length + 1) + 2 of them lie inside. */
static int64_t
samples_of(const Regions *r, int64_t ratio)
{
	return ratio > 0 ? ratio : 2 * (r->length + 1) + 2;
}

static Samples
samples_along(OnnxNode *n, const Regions *r, int64_t ratio)
{
	int64_t regions = r->start->type->n;
	Ints shape = {.n = 3, .at = {regions, r->bins, samples_of(r, ratio)}},
	     column = {.n = 3, .at = {regions, r->bins, 1}};
	Value *bin = e_with(n, OP_div, r->size, (double)r->bins), *one = e_number(n, bin, 1);
	Value *count = ratio > 0 ? e_number(n, bin, (double)ratio) : e_unary(n, OP_ceil, bin);
	Value *step = e_column(n, e_binary(n, OP_div, bin, e_binary(n, OP_max, count, one)), 3);
	Value *first = counted(n, bin, column, 1);
	first = e_binary(n, OP_add, e_binary(n, OP_mul, first, e_column(n, bin, 3)),
	                 e_column(n, r->start, 3));
	Value *number = counted(n, bin, shape, 2), *skipped = NULL, *counts = e_column(n, count, 3);
	if (ratio <= 0) { /* skips the samples before -1 */
		Value *flat = e_with(n, OP_eq, step, 0),
		      *by = e_select(n, flat, e_number(n, step, 1), step);
		skipped = e_binary(n, OP_div, e_binary(n, OP_sub, e_number(n, first, -1), first),
		                   by);
		skipped = e_unary(n, OP_floor, e_with(n, OP_sub, skipped, 0.5));
		skipped = e_binary(n, OP_max, skipped, e_number(n, skipped, 0));
		number = e_binary(n, OP_add, number, skipped);
	}
	Samples s = {.count = count};
	s.at = e_binary(n, OP_add, first,
	                e_binary(n, OP_mul, e_with(n, OP_add, number, 0.5), step));
	Value *in = e_binary(n, OP_and, e_with(n, OP_ge, s.at, -1),
	                     e_with(n, OP_le, s.at, (double)r->length));
	s.inside = e_binary(n, OP_and, in, e_binary(n, OP_lt, number, counts));
	Value *low = e_binary(n, OP_add, first, e_with(n, OP_mul, step, 0.5));
	Value *last = e_binary(n, OP_mul, e_with(n, OP_sub, counts, 0.5), step);
	last = e_binary(n, OP_add, first, last);
	s.beyond = e_binary(n, OP_or, e_with(n, OP_lt, low, -1),
	                    e_with(n, OP_gt, last, (double)r->length));
	s.beyond = e_reshape(n, s.beyond, (Ints){.n = 2, .at = {regions, r->bins}});
	return s;
}

/* Clamps positions to the axis. */
static Value *
on_axis(OnnxNode *n, Value *at, int64_t length)
{
	return e_at_most(n, e_at_least(n, at, e_number(n, at, 0)),
	                 e_number(n, at, (double)length - 1));
}

/* [regions, bins, length]: weight of each element in the sum over samples, by linear interpolation */
static Value *
sample_weights(OnnxNode *n, const Regions *r, const Samples *s)
{
	Ints shape = s->at ? shape_of(s->at) : (Ints){0}, wide = shape;
	Ints axes = {.n = 1, .at = {2}};

	if (!s->at)
		return NULL;
	wide.at[wide.n++] = r->length;
	shape.at[shape.n++] = 1;
	Value *at = e_reshape(n, on_axis(n, s->at, r->length), shape);
	Value *far = e_unary(n, OP_abs, e_binary(n, OP_sub, at, counted(n, at, wide, 3)));
	Value *near = e_binary(n, OP_sub, e_number(n, far, 1), far);
	Value *counts = e_binary(n, OP_and, e_with(n, OP_gt, near, 0),
	                         e_reshape(n, s->inside, shape));
	return e_reduce(n, REDUCE_SUM, e_select(n, counts, near, e_number(n, near, 0)), axes,
	                false);
}

/* The sum over samples is a sum over all rows and columns: y[r, c, p, q] = sum over b, h, w of
 * [b == batch[r]] rows[r, p, h] columns[r, q, w] x[b, c, h, w] / count. [..] is 1 if true, else 0;
 * rows and columns are the weights from sample_weights. */
static Value *
mean_of_samples(OnnxNode *n, Value *x, Value *batch, const Regions r[2], const Samples s[2])
{
	Value *rows = sample_weights(n, &r[0], &s[0]), *columns = sample_weights(n, &r[1], &s[1]);
	int64_t images = x->type->dims[0], regions = batch->type->n;
	Ints wide = {.n = 4, .at = {regions, r[0].bins, images, r[0].length}}, thin = wide;
	DotAttr by_rows = {.x_contract = {.n = 2, .at = {2, 3}},
	                   .y_contract = {.n = 2, .at = {0, 2}}};
	DotAttr by_columns = {.x_batch = {.n = 1},
	                      .y_batch = {.n = 1},
	                      .x_contract = {.n = 1, .at = {3}},
	                      .y_contract = {.n = 1, .at = {2}}};

	thin.at[2] = 1;
	Value *count = e_binary(n, OP_mul, s[0].count, s[1].count);
	rows = e_reshape(n, rows, thin);
	Value *own = e_binary(n, OP_eq, e_iota(n, S64, wide, 2),
	                      e_column(n, e_cast(n, batch, S64), 4));
	rows = rows ? e_select(n, own, rows, e_number(n, rows, 0)) : NULL;
	Value *y = e_dot(n, e_dot(n, rows, x, &by_rows), columns,
	                 &by_columns); /* [region, p, c, q] */
	y = e_binary(n, OP_div, y,
	             e_column(n, e_binary(n, OP_max, count, e_number(n, count, 1)), 4));
	return e_transpose(n, y, (Ints){.n = 4, .at = {0, 2, 1, 3}});
}

/* [regions, bins, samples] of rows or columns, reshaped to broadcast over [regions, p, q, i, j] */
static Value *
crossed(OnnxNode *n, Value *v, bool columns)
{
	Ints shape = v ? shape_of(v) : (Ints){0};

	return v ? e_reshape(n, v,
	                     columns ? (Ints){.n = 5,
	                                      .at = {shape.at[0], 1, shape.at[1], 1, shape.at[2]}}
	                             : (Ints){.n = 5,
	                                      .at = {shape.at[0], shape.at[1], 1, shape.at[2], 1}})
	         : NULL;
}

/* v: [..] times x: [.., channels] */
static Value *
times_rows(OnnxNode *n, Value *v, Value *x)
{
	Ints column = v ? shape_of(v) : (Ints){0};

	column.at[column.n++] = 1;
	return e_binary(n, OP_mul, x, e_reshape(n, v, column));
}

/* [region, p, q, i, j, c]: the largest weighted element of the four around each sample */
static Value *
max_of_corners(OnnxNode *n, Value *x, Value *batch, const Regions r[2], const Samples s[2])
{
	int64_t width = r[1].length, plane = r[0].length * width;
	Value *at[2][2], *weight[2][2], *most = NULL, *rows = e_rows_of_places(n, x);
	Value *base = e_column(n, e_with(n, OP_mul, e_cast(n, batch, S64), (double)plane), 5);

	for (int k = 0; k < 2; k++) {
		Value *c = on_axis(n, s[k].at, r[k].length), *low = e_unary(n, OP_floor, c);
		Value *rest = e_binary(n, OP_sub, c, low),
		      *next = on_axis(n, e_with(n, OP_add, low, 1), r[k].length);
		weight[k][0] = crossed(n, e_binary(n, OP_sub, e_number(n, rest, 1), rest), k);
		weight[k][1] = crossed(n, rest, k);
		at[k][0] = crossed(n, e_cast(n, low, S64), k);
		at[k][1] = crossed(n, e_cast(n, next, S64), k);
	}
	for (int corner = 0; corner < 4; corner++) {
		int i = corner / 2, j = corner % 2;
		Value *place = e_binary(n, OP_add, base,
		                        e_with(n, OP_mul, at[0][i], (double)width));
		Value *y = e_gather(n, rows, e_binary(n, OP_add, place, at[1][j]), 0);
		y = times_rows(n, e_binary(n, OP_mul, weight[0][i], weight[1][j]), y);
		most = most ? e_binary(n, OP_max, most, y) : y;
	}
	return most;
}

/* The maximum over samples. A sample outside the input counts as 0; a bin without samples is 0. */
static Value *
max_of_samples(OnnxNode *n, Value *x, Value *batch, const Regions r[2], const Samples s[2])
{
	int64_t regions = batch->type->n;
	Value *most = max_of_corners(n, x, batch, r, s);
	Value *inside = e_binary(n, OP_and, crossed(n, s[0].inside, false),
	                         crossed(n, s[1].inside, true));

	if (!most || !inside)
		return NULL;
	Ints column = shape_of(inside), axes = {.n = 2, .at = {3, 4}};
	column.at[column.n++] = 1;
	most = e_select(n, e_reshape(n, inside, column), most, e_number(n, most, -HUGE_VAL));
	Value *y = e_reduce(n, REDUCE_MAX, most, axes, false); /* [region, p, q, c] */
	Value *zero = e_number(n, y, 0);
	Value *beyond = e_binary(
		n, OP_or,
		e_reshape(n, s[0].beyond, (Ints){.n = 4, .at = {regions, r[0].bins, 1, 1}}),
		e_reshape(n, s[1].beyond, (Ints){.n = 4, .at = {regions, 1, r[1].bins, 1}}));
	Value *none = e_binary(n, OP_or, e_with(n, OP_lt, s[0].count, 1),
	                       e_with(n, OP_lt, s[1].count, 1));
	y = e_select(n, beyond, e_binary(n, OP_max, y, zero), y);
	y = e_select(n, e_column(n, none, 4), zero, y);
	return e_transpose(n, y, (Ints){.n = 4, .at = {0, 3, 1, 2}});
}

/* half: an element is a square around its position, so regions move by half an element. Otherwise a
 * region has at least the size of one element. */
static Regions
align_axis(OnnxNode *n, Value *rois, int column, bool half, double scale, int64_t bins,
           int64_t length)
{
	Value *start = e_with(n, OP_mul, roi_column(n, rois, column), scale);
	Value *end = e_with(n, OP_mul, roi_column(n, rois, column + 2), scale),
	      *size = e_binary(n, OP_sub, end, start);

	if (half)
		start = e_with(n, OP_sub, start, 0.5);
	else
		size = size ? e_at_least(n, size, e_number(n, size, 1)) : NULL;
	return (Regions){.start = start, .size = size, .bins = bins, .length = length};
}

static void
import_roi_align(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *rois = want_input(n, 1), *batch = want_input(n, 2);
	bool max = !strcmp(want_word(n, "mode", "avg max"), "max");
	bool half = n->extra->flag && !strcmp(want_word(n, "coordinate_transformation_mode",
	                                                "half_pixel output_half_pixel"),
	                                      "half_pixel");
	int64_t ratio = want_int(n, "sampling_ratio", 0);
	double scale = want_float(n, "spatial_scale", 1);
	int64_t bins[] = {want_int(n, "output_height", 1), want_int(n, "output_width", 1)};
	Regions r[2];
	Samples s[2];

	if (!x || !rois || !batch || n->failed || !want_regions(n, x, rois, 4) ||
	    !want_bins(n, bins[0]) || !want_bins(n, bins[1]))
		return;
	if (ratio < 0 || ratio > MOST_SAMPLES) {
		report_invalid(n, "sampling_ratio is %lld, needs 0 to %d", (long long)ratio,
		               MOST_SAMPLES);
		return;
	}
	if (batch->type->rank != 1 || batch->type->n != rois->type->dims[0]) {
		report_invalid(n,
		               "%lld regions and %lld batch indices of rank %d: needs a list "
		               "of one index for each region",
		               (long long)rois->type->dims[0], (long long)batch->type->n,
		               batch->type->rank);
		return;
	}
	if (!(batch = e_indices(n, batch, x->type->dims[0], false)))
		return;
	for (int k = 0; k < 2; k++) {
		r[k] = align_axis(n, rois, 1 - k, half, scale, bins[k], x->type->dims[2 + k]);
		if (!r[k].start || !r[k].size)
			return;
		s[k] = samples_along(n, &r[k], ratio);
	}
	set_output(n, 0,
	           max ? max_of_samples(n, x, batch, r, s) : mean_of_samples(n, x, batch, r, s));
}

/* ---- MaxRoiPool: https://onnx.ai/onnx/operators/onnx__MaxRoiPool.html. The maximum over the
 * elements of each bin, 0 for an empty bin */
/* To the nearest integer, halves away from 0. */
static Value *
rounded(OnnxNode *n, Value *x)
{
	Value *size = e_unary(n, OP_floor, e_with(n, OP_add, e_unary(n, OP_abs, x), 0.5));

	return e_binary(n, OP_mul, size, e_unary(n, OP_sign, x));
}

/* [regions, bins, length]: does the element lie in the bin, from floor(p size / bins) to before
 * ceil((p + 1) size / bins)? */
static Value *
bin_members(OnnxNode *n, const Regions *r)
{
	int64_t regions = r->start->type->n;
	Ints shape = {.n = 3, .at = {regions, r->bins, r->length}},
	     column = {.n = 3, .at = {regions, r->bins, 1}};
	Value *bin = e_column(n, e_with(n, OP_div, r->size, (double)r->bins), 3),
	      *start = e_column(n, r->start, 3);
	Value *p = counted(n, start, column, 1), *at = counted(n, start, shape, 2);
	Value *low = e_unary(n, OP_floor, e_binary(n, OP_mul, p, bin));
	Value *high = e_unary(n, OP_ceil, e_binary(n, OP_mul, e_with(n, OP_add, p, 1), bin));

	return e_binary(n, OP_and, e_binary(n, OP_ge, at, e_binary(n, OP_add, low, start)),
	                e_binary(n, OP_lt, at, e_binary(n, OP_add, high, start)));
}

/* x: [regions, .., length] -> [regions, .., bins]: the maximum of each bin's elements, -infinity for
 * an empty bin */
static Value *
max_of_bins(OnnxNode *n, Value *x, Value *members)
{
	if (!x || !members)
		return NULL;
	int rank = x->type->rank;
	Ints wide = shape_of(x), own = {.n = rank + 1}, axes = {.n = 1, .at = {rank}};
	wide.at[wide.n++] = wide.at[rank - 1];
	wide.at[rank - 1] = 1;
	for (int i = 0; i <= rank; i++)
		own.at[i] = i == 0         ? members->type->dims[0]
		            : i < rank - 1 ? 1
		                           : members->type->dims[i - rank + 2];
	Value *y = e_select(n, e_reshape(n, members, own), e_reshape(n, x, wide),
	                    e_number(n, e_scalar(n, x->type->dtype, 0), -HUGE_VAL));
	return e_reduce(n, REDUCE_MAX, y, axes, false);
}

static void
import_max_roi_pool(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *rois = want_input(n, 1);
	double scale = want_float(n, "spatial_scale", 1);
	Ints pooled, swap = {.n = 4, .at = {0, 1, 3, 2}};
	Value *members[2];

	if (!x || !rois || !want_regions(n, x, rois, 5))
		return;
	if (!want_ints(n, "pooled_shape", &pooled) || pooled.n != 2) {
		report_invalid(n, "pooled_shape has %d numbers, needs 2", pooled.n);
		return;
	}
	if (!want_bins(n, pooled.at[0]) || !want_bins(n, pooled.at[1]))
		return;
	for (int k = 0; k < 2; k++) {
		Value *start = rounded(n, e_with(n, OP_mul, roi_column(n, rois, 2 - k), scale));
		Value *end = rounded(n, e_with(n, OP_mul, roi_column(n, rois, 4 - k), scale));
		Value *size = e_with(n, OP_add, e_binary(n, OP_sub, end, start), 1);
		if (!size)
			return;
		Regions r = {start, e_binary(n, OP_max, size, e_number(n, size, 1)), pooled.at[k],
		             x->type->dims[2 + k]};
		members[k] = bin_members(n, &r);
	}
	Value *own = e_gather(n, x, e_cast(n, roi_column(n, rois, 0), S64), 0);
	Value *y = max_of_bins(n, own, members[1]); /* [region, c, h, q] */
	y = e_transpose(n, max_of_bins(n, e_transpose(n, y, swap), members[0]),
	                swap); /* [region, c, p, q] */
	set_output(n, 0,
	           y ? e_select(n, e_with(n, OP_eq, y, -HUGE_VAL), e_number(n, y, 0), y) : NULL);
}

const ImportRow import_roi_rows[] = {
	/* name        from  to  importer  extra */
	/* opset 16 shifts boxes by half a pixel */
	{"RoiAlign", 10, 15, import_roi_align, .facts = {.steering = INPUT(1), .changed = 16}},
	{"RoiAlign", 16, 0, import_roi_align, {.flag = true}, NULL},
	{"MaxRoiPool", 1, 0, import_max_roi_pool, .facts = {.steering = INPUT(1)}},
	{0},
};
