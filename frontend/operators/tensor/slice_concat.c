/* Imports Concat, Split, Slice, Pad, CenterCropPad, Tile and Trilu. */
#include "frontend/import/import.h"

#include <math.h>
#include <string.h>

/* --repair=batch, if the file's batch size is 1: expands an input of one row that is concatenated
 * with the model's inputs, such as a class token, to the batch. */
static void
expand_rows(OnnxNode *n, Value **x, int count)
{
	int64_t rows = n->im->baked_batch == 1 ? n->im->options->batch : 0;
	bool leads = false;

	for (int i = 0; i < count; i++)
		leads |= x[i]->type->rank > 0 && x[i]->type->dims[0] == rows;
	for (int i = 0; leads && i < count; i++) {
		Ints shape = ints_of_type(x[i]->type);
		if (shape.n == 0 || shape.at[0] != 1)
			continue;
		shape.at[0] = rows;
		x[i] = e_broadcast(n, x[i], shape);
	}
}

static void
import_concat(OnnxNode *n)
{
	int count = n_inputs(n);
	Value **x = NEW_ARRAY(n->im->arena, Value *, count);
	bool ok = true;

	for (int i = 0; i < count; i++)
		ok &= (x[i] = want_input(n, i)) != NULL;
	if (!ok)
		return;
	int axis = want_axis(n, want_int(n, "axis", 1), x[0]->type->rank);
	if (axis > 0)
		expand_rows(n, x, count);
	if (axis >= 0)
		set_output(n, 0, e_concat(n, count, x, axis));
}

/* Sizes in version 1 of Split: a tensor of the input's type. */
static bool
want_float_sizes(OnnxNode *n, Ints *sizes)
{
	const Tensor *t = want_constant(n, 1);

	*sizes = (Ints){0};
	if (t && (t->type->rank != 1 || t->type->n > MAX_RANK))
		report_invalid(n,
		               "input 1 has %lld numbers and rank %d, needs a list with one "
		               "for each axis",
		               (long long)t->type->n, t->type->rank);
	for (int64_t i = 0; t && !n->failed && i < t->type->n; i++) {
		double size = dtype_is_float(t->type->dtype) ? tensor_float(t, i)
		                                             : (double)tensor_int(t, i);
		sizes->at[sizes->n++] = size >= 0 && size <= (double)MAX_ELEMENTS ? (int64_t)size
		                                                                  : -1;
	}
	return !n->failed;
}

/* Sets the sizes of the outputs: those that the node gives, or equal sizes. From opset 18 on the
 * last of the equal sizes may be smaller (num_outputs); before, equal sizes must divide the
 * axis. */
static bool
split_sizes(OnnxNode *n, int64_t total, int count, int64_t *sizes)
{
	Ints given;
	bool listed = n->extra->flag && has_input(n, 1) ? want_float_sizes(n, &given)
	              : n->extra->input ? has_input(n, 1) && want_constant_ints(n, 1, &given)
	                                : want_ints(n, "split", &given);
	int64_t chunk = (total + count - 1) / count, sum = 0;

	if (n->failed)
		return false;
	if (listed && given.n != count) {
		report_invalid(n, "%d sizes, needs one for each of %d outputs", given.n, count);
		return false;
	}
	if (!listed && n->opset < 18 && total % count) {
		report_invalid(n, "%lld elements do not divide into %d parts", (long long)total,
		               count);
		return false;
	}
	for (int i = 0; i < count; i++) {
		int64_t left = total - sum;
		sizes[i] = listed ? given.at[i] : left < chunk ? left : chunk;
		if (sizes[i] < 0 || sizes[i] > left) {
			report_invalid(n, "part %d has %lld elements, but %lld are left", i,
			               (long long)sizes[i], (long long)left);
			return false;
		}
		sum += sizes[i];
	}
	if (sum != total)
		report_invalid(n, "the parts together have %lld elements, but the axis has %lld",
		               (long long)sum, (long long)total);
	return sum == total;
}

static void
import_split(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	int count = n_outputs(n);
	int64_t *sizes = NEW_ARRAY(n->im->arena, int64_t, count), at = 0;

	if (!x)
		return;
	int axis = want_axis(n, want_int(n, "axis", 0), x->type->rank);
	if (has_attribute(n, "num_outputs") && want_int(n, "num_outputs", 0) != count) {
		report_invalid(n, "num_outputs is %lld, the node has %d",
		               (long long)want_int(n, "num_outputs", 0), count);
		return;
	}
	if (has_attribute(n, "num_outputs") && has_input(n, 1)) {
		report_invalid(n, "both input split and attribute num_outputs are given");
		return;
	}
	if (axis < 0 || count == 0 || !split_sizes(n, x->type->dims[axis], count, sizes))
		return;
	for (int i = 0; i < count; i++) {
		set_output(n, i, e_slice_axis(n, x, axis, at, at + sizes[i]));
		at += sizes[i];
	}
}

/* ---- slice */
/* Slices one axis by ONNX's rules; a negative step becomes a slice and a reversal. */
static bool
slice_axis(OnnxNode *n, int axis, int64_t size, int64_t start, int64_t stop, int64_t step,
           SliceAttr *a, Ints *reversed)
{
	if (step == 0) {
		report_invalid(n, "step 0 along axis %d", axis);
		return false;
	}
	step = step > MAX_ELEMENTS ? MAX_ELEMENTS : step < -MAX_ELEMENTS ? -MAX_ELEMENTS : step;
	start = start < 0 ? start + size : start;
	stop = stop < 0 ? stop < -size ? -1 : stop + size : stop;
	if (step > 0) {
		start = start < 0 ? 0 : start > size ? size : start;
		stop = stop < 0 ? 0 : stop > size ? size : stop;
		a->start.at[axis] = start;
		a->stop.at[axis] = stop < start ? start : stop;
		a->step.at[axis] = step;
		return true;
	}
	/* start, start + step, ... above stop: read upwards from the last of these */
	start = start < 0 ? -1 : start > size - 1 ? size - 1 : start;
	stop = stop > size - 1 ? size - 1 : stop;
	int64_t count = start > stop ? (start - stop - step - 1) / -step : 0;
	a->start.at[axis] = count ? start + (count - 1) * step : 0;
	a->stop.at[axis] = count ? start + 1 : 0;
	a->step.at[axis] = -step;
	reversed->at[reversed->n++] = axis;
	return true;
}

static void
slice_by(OnnxNode *n, Value *x, Ints starts, Ints ends, Ints axes, Ints steps)
{
	SliceAttr a = {
		.start = {.n = x->type->rank}, .stop = shape_of(x), .step = {.n = x->type->rank}};
	Ints reversed = {0}, sorted;
	unsigned seen = 0;

	if (starts.n != ends.n || starts.n != axes.n || starts.n != steps.n) {
		report_invalid(n, "%d starts, %d ends, %d axes, %d steps: need equal numbers",
		               starts.n, ends.n, axes.n, steps.n);
		return;
	}
	for (int i = 0; i < x->type->rank; i++)
		a.step.at[i] = 1;
	for (int i = 0; i < axes.n; i++) {
		int axis = want_axis(n, axes.at[i], x->type->rank);
		if (axis < 0)
			return;
		if (seen >> axis & 1)
			report_invalid(n, "axis %d is named twice", axis);
		seen |= 1u << axis;
		if (n->failed || !slice_axis(n, axis, x->type->dims[axis], starts.at[i], ends.at[i],
		                             steps.at[i], &a, &reversed))
			return;
	}
	Value *y = e_slice(n, x, a.start, a.stop, a.step);
	if (reversed.n && want_axes(n, reversed, x->type->rank, &sorted))
		y = e_op(n, OP_reverse, 1, &y, &(ReverseAttr){sorted});
	set_output(n, 0, y);
}

static void
import_slice(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Ints starts, ends, axes = {0}, steps = {0};
	bool input = n->extra->input;

	if (!x)
		return;
	if (input ? !want_constant_ints(n, 1, &starts) || !want_constant_ints(n, 2, &ends)
	          : !want_ints(n, "starts", &starts) || !want_ints(n, "ends", &ends))
		return;
	bool named = input ? has_input(n, 3) && want_constant_ints(n, 3, &axes)
	                   : want_ints(n, "axes", &axes);
	bool stepped = input && has_input(n, 4) && want_constant_ints(n, 4, &steps);
	if (n->failed)
		return;
	if (!named)
		axes = ints_range(0, starts.n);
	if (!stepped) {
		steps.n = starts.n;
		for (int i = 0; i < steps.n; i++)
			steps.at[i] = 1;
	}
	slice_by(n, x, starts, ends, axes, steps);
}

/* ---- pad */
/* Pads one axis by a gather of the positions that the mode (edge, reflect, wrap) names. */
static Value *
pad_by_index(OnnxNode *n, Value *x, int axis, int64_t low, int64_t high, const char *mode)
{
	int64_t size = x->type->dims[axis], count;

	if (!size_add(size, low, &count) || !size_add(count, high, &count) || count < 0 ||
	    count > 1 << 24 || size == 0 || (size == 1 && !strcmp(mode, "reflect"))) {
		report_invalid(n,
		               "axis %d has %lld elements, which do not allow pads of %lld and "
		               "%lld",
		               axis, (long long)size, (long long)low, (long long)high);
		return NULL;
	}
	int64_t *at = NEW_ARRAY(n->im->arena, int64_t, count), period = 2 * (size - 1);
	for (int64_t i = 0; i < count; i++) {
		int64_t p = i - low;
		if (!strcmp(mode, "edge")) {
			p = p < 0 ? 0 : p >= size ? size - 1 : p;
		} else if (!strcmp(mode, "wrap")) {
			p = (p % size + size) % size;
		} else if (period) {
			p = (p % period + period) % period;
			p = p >= size ? period - p : p;
		}
		at[i] = p;
	}
	return e_gather(n, x, e_constant_ints(n, (int)count, at), axis);
}

static bool
pad_amounts(OnnxNode *n, const Value *x, Ints *low, Ints *high)
{
	Ints pads, axes = ints_range(0, x->type->rank);
	bool input = n->extra->input;

	*low = *high = (Ints){.n = x->type->rank};
	if (x->type->rank > MAX_RANK / 2) {
		report_unsupported(n, "pads of a rank-%d tensor", x->type->rank);
		return false;
	}
	const char *name = n->opset < 2 ? "paddings" : "pads";
	if (input ? !want_constant_ints(n, 1, &pads) : !want_ints(n, name, &pads))
		return false;
	if (input && has_input(n, 3) && !want_constant_ints(n, 3, &axes))
		return false;
	if (pads.n != 2 * axes.n) {
		report_invalid(n, "%d pads, needs two for each of %d axes", pads.n, axes.n);
		return false;
	}
	for (int i = 0; i < axes.n; i++) {
		int axis = want_axis(n, axes.at[i], x->type->rank);
		if (axis < 0)
			return false;
		low->at[axis] = pads.at[i];
		high->at[axis] = pads.at[axes.n + i];
	}
	return true;
}

/* Cuts off elements where pads are negative, and sets these pads to 0. */
static Value *
crop(OnnxNode *n, Value *x, Ints *low, Ints *high)
{
	for (int i = 0; i < low->n; i++) {
		int64_t size = x->type->dims[i], cut_low = low->at[i] < 0 ? low->at[i] : 0;
		int64_t cut_high = high->at[i] < 0 ? high->at[i] : 0;
		if (cut_low < -size || cut_high < -size || size + cut_low + cut_high < 0) {
			report_invalid(n,
			               "pads %lld and %lld cut off more than an axis of %lld "
			               "elements has",
			               (long long)cut_low, (long long)cut_high, (long long)size);
			return NULL;
		}
		x = e_slice_axis(n, x, i, -cut_low, size + cut_high);
		if (!x)
			return NULL;
		low->at[i] -= cut_low;
		high->at[i] -= cut_high;
	}
	return x;
}

/* Pads x with input 2, one element that depends on data. */
static Value *
pad_with_value(OnnxNode *n, Value *x, Ints low, Ints high)
{
	Value *value = want_input(n, 2);

	if (value && value->type->n != 1) {
		report_invalid(n, "input 2 has %lld elements, needs one",
		               (long long)value->type->n);
		return NULL;
	}
	Value *inside = e_pad(n, e_splat(n, BOOL, shape_of(x), 1), low, high, 0);
	return e_select(n, inside, e_pad(n, x, low, high, 0), e_reshape(n, value, (Ints){0}));
}

/* Is input i a float that need not stay constant? The input's gradient may be needed even if the
 * number is known. */
static bool
is_computed(OnnxNode *n, int i)
{
	Value *v = n->extra->input && has_input(n, i) ? want_input(n, i) : NULL;

	return v && !value_constant(v) && (is_float(v) || !known_value(n->im, v));
}

static void
import_pad(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	const char *mode = want_word(n, "mode", "constant reflect edge wrap");
	double value = n->extra->input ? 0 : want_float(n, "value", 0);
	bool constant = !strcmp(mode, "constant"), computed = is_computed(n, 2);
	Ints low, high;

	if (!x || !pad_amounts(n, x, &low, &high))
		return;
	if (n->extra->input && has_input(n, 2) && !computed && !want_constant_float(n, 2, &value))
		return;
	if (!(x = crop(n, x, &low, &high)))
		return;
	computed |= !is_float(x) && fabs(value) >= 0x1p53; /* e_pad takes a double */
	if (constant) {
		set_output(n, 0,
		           computed ? pad_with_value(n, x, low, high)
		                    : e_pad(n, x, low, high, value));
		return;
	}
	for (int i = 0; i < low.n && x; i++)
		if (low.at[i] || high.at[i])
			x = pad_by_index(n, x, i, low.at[i], high.at[i], mode);
	set_output(n, 0, x);
}

/* ---- tile, trilu */
/* Before opset 6: one repeat count for one axis, of any type. */
static bool
want_tiles(OnnxNode *n, const Value *x, Ints *repeats)
{
	double tiles, along;

	*repeats = (Ints){.n = x->type->rank};
	if (!want_constant_float(n, 1, &tiles) || !want_constant_float(n, 2, &along))
		return false;
	int axis = fabs(along) <= MAX_RANK ? want_axis(n, (int64_t)along, x->type->rank) : -1;
	if (axis < 0 || !(tiles >= 0) || tiles > (double)MAX_ELEMENTS) {
		report_invalid(n, "%g tiles along axis %g: need 0 or more, and not too many", tiles,
		               along);
		return false;
	}
	for (int i = 0; i < repeats->n; i++)
		repeats->at[i] = i == axis ? (int64_t)tiles : 1;
	return true;
}

/* Repeats [a, b] by [p, q]: reshaped to [1, a, 1, b], broadcast to [p, a, q, b], reshaped to [p a,
 * q b] */
static void
import_tile(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Ints repeats, wide = {0}, from = {0}, shape = {0};

	if (!x ||
	    !(n->extra->flag ? want_tiles(n, x, &repeats) : want_constant_ints(n, 1, &repeats)))
		return;
	if (repeats.n != x->type->rank) {
		report_invalid(n, "%d repeats, needs one for each of %d axes", repeats.n,
		               x->type->rank);
		return;
	}
	for (int i = 0; i < repeats.n; i++) {
		int64_t d = x->type->dims[i];
		shape.at[shape.n++] = d;
		if (repeats.at[i] < 0 || !size_mul(d, repeats.at[i], &shape.at[i])) {
			report_invalid(n, "%lld repeats of axis %d: negative, or too many",
			               (long long)repeats.at[i], i);
			return;
		}
		if (wide.n + 2 > MAX_RANK) {
			report_unsupported(n, "tiling of so many axes");
			return;
		}
		if (repeats.at[i] != 1)
			wide.at[wide.n++] = repeats.at[i];
		from.at[from.n++] = wide.n;
		wide.at[wide.n++] = d;
	}
	if (shape_fits(n, shape))
		set_output(n, 0, e_reshape(n, e_broadcast_axes(n, x, wide, from), shape));
}

/* upper keeps column >= row + k, lower keeps column <= row + k */
static void
import_trilu(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Value *k = has_input(n, 1) ? want_input(n, 1) : e_constant_ints(n, 1, &(int64_t){0});

	if (!x || !k)
		return;
	if (k->type->n != 1 || k->type->dtype != S64) {
		report_invalid(n, "k is %s of %lld elements, needs one of int64",
		               dtype_info[k->type->dtype].name, (long long)k->type->n);
		return;
	}
	int rank = x->type->rank;
	if (rank < 2) {
		report_invalid(n, "rank %d, needs 2 or more", rank);
		return;
	}
	Ints shape = {.n = 2, .at = {x->type->dims[rank - 2], x->type->dims[rank - 1]}};
	k = e_at_most(n, e_reshape(n, k, (Ints){0}), e_scalar(n, S64, (double)shape.at[1]));
	k = e_at_least(n, k, e_scalar(n, S64, -(double)shape.at[0]));
	Value *row = e_binary(n, OP_add, e_iota(n, S64, shape, 0), k);
	Value *keep = e_binary(n, want_int(n, "upper", 1) ? OP_ge : OP_le, e_iota(n, S64, shape, 1),
	                       row);
	set_output(n, 0, e_select(n, keep, x, e_number(n, x, 0)));
}

/* CenterCropPad: https://onnx.ai/onnx/operators/onnx__CenterCropPad.html. If the difference is odd,
 * the larger half is cut or added at the end. */
static void
import_center_crop_pad(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Ints given, axes, named, low = {0}, high = {0};

	if (!x || !want_constant_ints(n, 1, &given))
		return;
	if (!want_ints(n, "axes", &axes))
		axes = ints_range(0, x->type->rank);
	if (n->failed || !want_axes(n, axes, x->type->rank, &named))
		return;
	low.n = high.n = x->type->rank;
	if (given.n != axes.n) {
		report_invalid(n, "shape has %d numbers, needs one for each of %d axes", given.n,
		               axes.n);
		return;
	}
	for (int i = 0; i < axes.n; i++) {
		int axis = want_axis(n, axes.at[i], x->type->rank);
		int64_t size = x->type->dims[axis], want = given.at[i], cut = size - want;
		if (want < 0 || want > MAX_ELEMENTS) {
			report_invalid(n, "a size of %lld along axis %d is negative or too large",
			               (long long)want, axis);
			return;
		}
		if (cut > 0)
			x = e_slice_axis(n, x, axis, cut / 2, cut / 2 + want);
		low.at[axis] = cut < 0 ? -cut / 2 : 0;
		high.at[axis] = cut < 0 ? -cut - low.at[axis] : 0;
		if (!x)
			return;
	}
	set_output(n, 0, e_pad(n, x, low, high, 0));
}

const ImportRow import_slice_concat_rows[] = {
	/* name      from  to  importer  extra */
	{"Concat", 1, 3, import_concat, .facts = {.padded = PADDED_CONCAT, .filling = ALL_INPUTS}},
	{"Concat", 4, 0, import_concat, {0}, NULL},
	{"Split", 1, 1, import_split, {.flag = true}, .facts = {.steering = INPUT(1)}},
	{"Split", 2, 12, import_split, {0}, NULL},
	{"Split", 13, 0, import_split, {.input = true}, NULL},
	{"Slice", 1, 9, import_slice, {0}, NULL},
	{"Slice", 10, 0, import_slice, {.input = true}, NULL},
	{"Pad", 1, 1, import_pad, .facts = {.steering = INPUT(2)}},
	{"Pad", 2, 10, import_pad, {0}, NULL},
	{"Pad", 11, 0, import_pad, {.input = true}, NULL},
	{"Tile", 1, 5, import_tile, {.flag = true}, .facts = {.steering = INPUTS(1, 2)}},
	{"Tile", 6, 0, import_tile, {0}, NULL},
	{"CenterCropPad", 18, 0, import_center_crop_pad, {0}, NULL},
	{"Trilu", 14, 0, import_trilu, {0}, NULL},
	{0},
};
