/* Imports Resize and Upsample: https://onnx.ai/onnx/operators/onnx__Resize.html. Axes are resized
 * one after the other. Along an axis each result is a weighted sum of 1 (nearest), 2 (linear) or 4
 * (cubic) gathers with constant indices and weights. With antialias each result sums more elements:
 * a product with a matrix of weights. */
#include "frontend/import/import.h"

#include <math.h>
#include <string.h>

typedef struct {
	const char *mode, *coordinates, *nearest;
	double cubic_a, extrapolation;
	bool exclude_outside, antialias;
} Resize;
typedef struct {
	int64_t in, out;
	double scale, roi_start, roi_end;
} ResizeAxis;
enum { MOST_GATHERS = 4, MAX_RESIZED = 1 << 24, LARGEST_MATRIX = 1 << 25 };

/* Position of result i in the input. Where ONNX's formulas use the length of the result, `length`
 * is scale * input length, not rounded. */
static double
source_of(const Resize *r, const ResizeAxis *a, int64_t i)
{
	const char *c = r->coordinates;
	double x = (double)i, in = (double)a->in, length = a->scale * in;

	if (!strcmp(c, "asymmetric"))
		return x / a->scale;
	if (!strcmp(c, "align_corners"))
		return length == 1 ? 0 : x * (in - 1) / (length - 1);
	if (!strcmp(c, "pytorch_half_pixel") && length <= 1)
		return 0;
	if (!strcmp(c, "tf_half_pixel_for_nn"))
		return (x + 0.5) / a->scale;
	if (!strcmp(c, "tf_crop_and_resize")) {
		double from = a->roi_start * (in - 1), to = a->roi_end * (in - 1);
		double t = length == 1 ? 0.5 : x / (length - 1);
		/* this form is exact at both ends; an inexact position could fall just outside the
		 * input, and such positions get the extrapolation value */
		return from * (1 - t) + to * t;
	}
	if (!strcmp(c, "half_pixel_symmetric"))
		return in / 2 * (1 - (double)a->out / length) + (x + 0.5) / a->scale - 0.5;
	return (x + 0.5) / a->scale - 0.5;
}

static double
nearest_of(const Resize *r, double x)
{
	if (!strcmp(r->nearest, "floor"))
		return floor(x);
	if (!strcmp(r->nearest, "ceil"))
		return ceil(x);
	return !strcmp(r->nearest, "round_prefer_ceil") ? floor(x + 0.5) : ceil(x - 0.5);
}

/* Keys' kernel with parameter a */
static double
cubic_weight(double a, double x)
{
	x = fabs(x);
	if (x <= 1)
		return ((a + 2) * x - (a + 3)) * x * x + 1;
	return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* The factor by which distances are multiplied before the kernel is evaluated. With antialias a
 * downscale widens the kernel to the distance between neighbouring results. */
static double
stretch_of(const Resize *r, const ResizeAxis *a)
{
	return r->antialias && a->scale < 1 ? a->scale : 1;
}

/* The number of input elements under the kernel, which reaches 1 (linear) or 2 (cubic) elements to
 * each side, divided by stretch_of. */
static int64_t
tap_count(const Resize *r, const ResizeAxis *a)
{
	double reach = !strcmp(r->mode, "cubic") ? 2 : 1;

	return !strcmp(r->mode, "nearest") ? 1 : 2 * (int64_t)ceil(reach / stretch_of(r, a));
}

/* The taps of a result at position x of the input: indices (clamped) and weights, whose sum is 1. */
static void
taps_of(const Resize *r, const ResizeAxis *a, double x, int64_t taps, int64_t *at, double *w)
{
	bool nearest = !strcmp(r->mode, "nearest"), cubic = !strcmp(r->mode, "cubic");
	double base = nearest ? nearest_of(r, x) : floor(x) - (double)(taps / 2 - 1), sum = 0;

	for (int64_t k = 0; k < taps; k++) {
		double p = base + (double)k, far = (p - x) * stretch_of(r, a);
		w[k] = nearest         ? 1
		       : cubic         ? cubic_weight(r->cubic_a, far)
		       : fabs(far) < 1 ? 1 - fabs(far)
		                       : 0;
		if (r->exclude_outside && (p < 0 || p > (double)a->in - 1))
			w[k] = 0;
		sum += w[k];
		at[k] = p < 0 ? 0 : p > (double)a->in - 1 ? a->in - 1 : (int64_t)p;
	}
	for (int64_t k = 0; k < taps && (r->exclude_outside || r->antialias) && sum != 0; k++)
		w[k] /= sum;
}

/* Tap k of result i is at[k * out + i]. */
typedef struct {
	int64_t n, *at;
	double *weight;
} TapTable;

static TapTable
tap_table(OnnxNode *n, const Resize *r, const ResizeAxis *a)
{
	Arena *arena = n->im->arena;
	TapTable t = {.n = tap_count(r, a)};
	int64_t *at = NEW_ARRAY(arena, int64_t, t.n);
	double *weight = NEW_ARRAY(arena, double, t.n);

	t.at = NEW_ARRAY(arena, int64_t, t.n * a->out);
	t.weight = NEW_ARRAY(arena, double, t.n * a->out);
	for (int64_t i = 0; i < a->out; i++) {
		taps_of(r, a, source_of(r, a, i), t.n, at, weight);
		for (int64_t k = 0; k < t.n; k++) {
			t.at[k * a->out + i] = at[k];
			t.weight[k * a->out + i] = weight[k];
		}
	}
	return t;
}

static Value *
resize_by_gathers(OnnxNode *n, const TapTable *t, int64_t out, Value *x, int axis)
{
	Value *sum = NULL;

	for (int64_t k = 0; k < t->n; k++) {
		Value *y = e_gather(n, x, e_constant_ints(n, (int)out, t->at + k * out), axis);
		if (t->n > 1 && y)
			y = e_binary(n, OP_mul, y,
			             e_channel(n,
			                       e_vector(n, x->type->dtype, (int)out,
			                                t->weight + k * out),
			                       y, axis));
		sum = sum ? e_binary(n, OP_add, sum, y) : y;
	}
	return sum;
}

static Value *
resize_by_matrix(OnnxNode *n, const TapTable *t, const ResizeAxis *a, Value *x, int axis)
{
	double *m = NEW_ARRAY(n->im->arena, double, a->out * a->in);
	Ints order = {.n = x->type->rank};
	DotAttr dot = {.x_contract = {.n = 1, .at = {axis}}, .y_contract = {.n = 1, .at = {1}}};

	memset(m, 0, sizeof(*m) * (size_t)(a->out * a->in));
	for (int64_t i = 0; i < a->out; i++)
		for (int64_t k = 0; k < t->n; k++)
			m[i * a->in + t->at[k * a->out + i]] += t->weight[k * a->out + i];
	Value *matrix = e_reshape(n, e_vector(n, x->type->dtype, (int)(a->out * a->in), m),
	                          (Ints){.n = 2, .at = {a->out, a->in}});
	for (int i = 0; i < order.n; i++) /* the product puts the resized axis last */
		order.at[i] = i < axis ? i : i == axis ? order.n - 1 : i - 1;
	return e_transpose(n, e_dot(n, x, matrix, &dot), order);
}

static Value *
resize_axis(OnnxNode *n, const Resize *r, const ResizeAxis *a, Value *x, int axis)
{
	bool gathers = tap_count(r, a) <= MOST_GATHERS;

	if (!gathers && a->in > LARGEST_MATRIX / a->out) {
		report_unsupported(n, "axis %d: antialias of %lld elements to %lld is too large",
		                   axis, (long long)a->in, (long long)a->out);
		return NULL;
	}
	TapTable t = tap_table(n, r, a);
	return gathers ? resize_by_gathers(n, &t, a->out, x, axis)
	               : resize_by_matrix(n, &t, a, x, axis);
}

/* tf_crop_and_resize: positions outside the input get a fixed value. */
static Value *
extrapolate(OnnxNode *n, const Resize *r, const ResizeAxis *a, Value *y, int axis)
{
	uint8_t *outside = NEW_ARRAY(n->im->arena, uint8_t, a->out);
	bool any = false;

	for (int64_t i = 0; i < a->out; i++) {
		double x = source_of(r, a, i);
		outside[i] = x < 0 || x > (double)a->in - 1;
		any |= outside[i];
	}
	if (!any || !y)
		return y;
	Type type = type_new(n->b->m, BOOL, 1, &a->out);
	Value *mask = b_constant(n->b, tensor_new(n->b->m, type, outside));
	return e_select(n, e_channel(n, mask, y, axis), e_number(n, y, r->extrapolation), y);
}

/* ---- sizes and scales */
static bool
known_floats(OnnxNode *n, int i, int count, double *out)
{
	const Tensor *t = want_constant(n, i);

	if (!t)
		return false;
	if (t->type->rank > 1 || t->type->n != count) {
		report_invalid(n, "input %d has %lld numbers, needs one for each of %d axes", i,
		               (long long)t->type->n, count);
		return false;
	}
	for (int k = 0; k < count; k++)
		out[k] = dtype_is_float(t->type->dtype) ? tensor_float(t, k)
		                                        : (double)tensor_int(t, k);
	return true;
}

static bool
input_filled(OnnxNode *n, int i)
{
	Value *v = has_input(n, i) ? want_input(n, i) : NULL;

	return v && v->type->n > 0;
}

static bool
axis_from_scale(OnnxNode *n, ResizeAxis *a, double scale)
{
	if (!(scale > 0) || scale * (double)a->in > MAX_RESIZED) {
		report_invalid(n,
		               "a scale of %g for %lld elements is not positive, or gives "
		               "too many",
		               scale, (long long)a->in);
		return false;
	}
	a->scale = scale;
	a->out = (int64_t)floor((double)a->in * scale);
	return true;
}

static const char *
aspect_policy(OnnxNode *n)
{
	return want_word(n, "keep_aspect_ratio_policy", "stretch not_larger not_smaller");
}

static bool
axes_from_sizes(OnnxNode *n, ResizeAxis *a, int count, const double *sizes)
{
	const char *policy = aspect_policy(n);
	bool larger = !strcmp(policy, "not_smaller");
	double common = 0;

	for (int i = 0; i < count; i++) {
		if (!(sizes[i] >= 1) || sizes[i] > MAX_RESIZED || a[i].in < 1) {
			report_invalid(n,
			               "a size of %g for %lld elements: need 1 or more of "
			               "both, and a size that is not too large",
			               sizes[i], (long long)a[i].in);
			return false;
		}
		a[i].out = (int64_t)sizes[i];
		a[i].scale = sizes[i] / (double)a[i].in;
		if (i == 0 || (larger ? a[i].scale > common : a[i].scale < common))
			common = a[i].scale;
	}
	for (int i = 0; i < count && strcmp(policy, "stretch"); i++) {
		a[i].scale = common;
		a[i].out = (int64_t)floor(common * (double)a[i].in + 0.5);
	}
	return true;
}

/* sizes_input < 0: the operator has no sizes */
static bool
resized_axes(OnnxNode *n, const Value *x, int scales_input, int sizes_input, Ints axes,
             ResizeAxis *a)
{
	double numbers[MAX_RANK];
	bool scaled = input_filled(n, scales_input), sized = input_filled(n, sizes_input);

	for (int i = 0; i < axes.n; i++)
		a[i] = (ResizeAxis){.in = x->type->dims[axes.at[i]], .roi_end = 1};
	if (n->failed)
		return false;
	if (scaled == sized) {
		report_invalid(n, "needs either scales or sizes");
		return false;
	}
	if (!known_floats(n, scaled ? scales_input : sizes_input, axes.n, numbers))
		return false;
	if (sized)
		return axes_from_sizes(n, a, axes.n, numbers);
	if (strcmp(aspect_policy(n), "stretch")) {
		report_invalid(n, "keep_aspect_ratio_policy is for sizes, scales are given");
		return false;
	}
	for (int i = 0; i < axes.n; i++)
		if (!axis_from_scale(n, &a[i], numbers[i]))
			return false;
	return true;
}

static void
resize_by(OnnxNode *n, Value *x, const Resize *r, Ints axes, const ResizeAxis *a)
{
	enum { LONGEST = 1 << 20 }; /* limit of an axis: indices and weights are tables */
	bool crop = !strcmp(r->coordinates, "tf_crop_and_resize"), none = false;
	Ints shape = shape_of(x);

	for (int i = 0; i < axes.n; i++) {
		bool same = a[i].out == a[i].in && a[i].scale == 1 && !crop;
		none |= a[i].out == 0;
		shape.at[axes.at[i]] = a[i].out;
		if (!same && (a[i].in < 1 || a[i].out < 0))
			report_invalid(n, "axis %lld: cannot make %lld elements from %lld",
			               (long long)axes.at[i], (long long)a[i].out,
			               (long long)a[i].in);
		else if (!same && a[i].out > LONGEST)
			report_unsupported(n, "axis %lld: %lld elements, at most %d can be made",
			                   (long long)axes.at[i], (long long)a[i].out, LONGEST);
	}
	DType t = x->type->dtype;
	if (none) {
		set_output(n, 0, e_splat(n, t, shape, 0));
		return;
	}
	if (strcmp(r->mode, "nearest") && !is_float(x)) /* results are truncated to integers */
		x = e_cast(n, x, F64);
	for (int i = 0; i < axes.n && x && !n->failed; i++)
		if (a[i].out != a[i].in || a[i].scale != 1 || crop)
			x = resize_axis(n, r, &a[i], x, (int)axes.at[i]);
	if (n->failed)
		return;
	for (int i = 0; i < axes.n && crop; i++)
		x = extrapolate(n, r, &a[i], x, (int)axes.at[i]);
	set_output(n, 0, e_cast(n, x, t));
}

/* "bilinear" is an old name of "linear". */
static bool
known_mode(OnnxNode *n, Resize *r)
{
	if (!strcmp(r->mode, "bilinear"))
		r->mode = "linear";
	return !n->failed;
}

static void
import_resize(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Resize r = {.mode = want_word(n, "mode", "nearest linear cubic"),
	            .coordinates = want_word(n, "coordinate_transformation_mode",
	                                     "half_pixel half_pixel_symmetric pytorch_half_pixel "
	                                     "align_corners asymmetric tf_crop_and_resize "
	                                     "tf_half_pixel_for_nn"),
	            .nearest = want_word(n, "nearest_mode",
	                                 "round_prefer_floor round_prefer_ceil floor ceil"),
	            .cubic_a = want_float(n, "cubic_coeff_a", -0.75),
	            .extrapolation = want_float(n, "extrapolation_value", 0),
	            .exclude_outside = want_int(n, "exclude_outside", 0),
	            .antialias = want_int(n, "antialias", 0)};
	ResizeAxis a[MAX_RANK];
	double roi[2 * MAX_RANK];
	Ints axes;

	if (!x || !known_mode(n, &r))
		return;
	if (!want_ints(n, "axes", &axes))
		axes = ints_range(0, x->type->rank);
	for (int i = 0; i < axes.n; i++)
		if ((axes.at[i] = want_axis(n, axes.at[i], x->type->rank)) < 0)
			return;
	if (!resized_axes(n, x, 2, 3, axes, a))
		return;
	if (!strcmp(r.coordinates, "tf_crop_and_resize")) {
		if (!known_floats(n, 1, 2 * axes.n, roi))
			return;
		for (int i = 0; i < axes.n; i++) {
			a[i].roi_start = roi[i];
			a[i].roi_end = roi[axes.n + i];
		}
	}
	resize_by(n, x, &r, axes, a);
}

/* The two scales of Upsample 1: height and width. */
static bool
plane_scales(OnnxNode *n, Ints axes, double *scales)
{
	for (int i = 0; i < axes.n; i++)
		scales[i] = i == 2   ? want_float(n, "height_scale", 0)
		            : i == 3 ? want_float(n, "width_scale", 0)
		                     : 1;
	if (axes.n != 4)
		report_invalid(n, "an input of rank %d, needs 4", axes.n);
	return axes.n == 4;
}

/* The list of scales of Upsample 7. */
static bool
listed_scales(OnnxNode *n, Ints axes, double *scales)
{
	const AttributeProto *a = node_attribute(n->proto, "scales");

	if (!a || a->n_floats != (size_t)axes.n) {
		report_invalid(n, "scales for %d axes are missing", axes.n);
		return false;
	}
	for (int i = 0; i < axes.n; i++)
		scales[i] = a->floats[i];
	return true;
}

/* Resize 10 and Upsample: positions are i / scale, rounded down. */
static void
import_upsample(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Resize r = {.mode = want_word(n, "mode", "nearest linear bilinear"),
	            .coordinates = "asymmetric",
	            .nearest = "floor",
	            .cubic_a = -0.75};
	ResizeAxis a[MAX_RANK];
	double scales[MAX_RANK];

	if (!x || !known_mode(n, &r))
		return;
	Ints axes = ints_range(0, x->type->rank);
	if (n->extra->input) {
		if (resized_axes(n, x, 1, 999, axes, a))
			resize_by(n, x, &r, axes, a);
		return;
	}
	if (!(n->extra->flag ? plane_scales : listed_scales)(n, axes, scales))
		return;
	for (int i = 0; i < axes.n; i++) {
		a[i] = (ResizeAxis){.in = x->type->dims[i]};
		if (!axis_from_scale(n, &a[i], scales[i]))
			return;
	}
	resize_by(n, x, &r, axes, a);
}

/* clang-format off */
const ImportRow import_resize_rows[] = {
	/* name    from  to  importer  extra */
	{"Upsample", 1, 6, import_upsample, {.flag = true}, .facts = {.steering = INPUT(1)}},
	{"Upsample", 7, 8, import_upsample, {0}, NULL},
	{"Upsample", 9, 9, import_upsample, {.input = true}, NULL},
	/* opset 11 has another input before the scales, and samples at other coordinates */
	{"Resize", 10, 10, import_upsample, {.input = true},
	 .facts = {.steering = INPUTS(1, 3), .changed = 11}},
	{"Resize", 11, 0, import_resize, {0}, NULL},
	{0},
};
/* clang-format on */
