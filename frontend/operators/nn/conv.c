/* Imports Conv and ConvTranspose. ConvTranspose becomes a conv_grad_input: it is the gradient of a
 * Conv with respect to the Conv's input. */
#include "frontend/operators/nn/window.h"

#include <string.h>

/* Limit of strides, dilations, kernels and pads: a product of two cannot overflow. */
enum { LONGEST_STEP = 1 << 30 };

int64_t
window_reach(const Window *w, int i)
{
	return (w->kernel.at[i] - 1) * w->dilation.at[i] + 1;
}

int64_t
window_count(const Window *w, int i, int64_t size)
{
	int64_t room = size + w->low.at[i] + w->high.at[i] - window_reach(w, i);

	return room < 0 ? -1 : room / w->stride.at[i] + 1;
}

static bool
want_positive(OnnxNode *n, const char *name, int spatial, Ints *out)
{
	if (!want_ints(n, name, out)) {
		out->n = spatial;
		for (int i = 0; i < spatial; i++)
			out->at[i] = 1;
		return !n->failed;
	}
	if (out->n != spatial) {
		report_invalid(n, "%s has %d numbers, needs %d, one for each spatial axis", name,
		               out->n, spatial);
		return false;
	}
	for (int i = 0; i < spatial; i++)
		if (out->at[i] < 1 || out->at[i] > LONGEST_STEP) {
			report_invalid(n,
			               "%s is %lld along spatial axis %d, which is not "
			               "positive, or too large",
			               name, (long long)out->at[i], i);
			return false;
		}
	return true;
}

static bool
want_pads(OnnxNode *n, Window *w)
{
	Ints pads;

	w->low.n = w->high.n = w->spatial;
	if (!want_ints(n, "pads", &pads))
		return !n->failed;
	if (pads.n != 2 * w->spatial) {
		report_invalid(n, "pads has %d numbers, needs two for each of %d spatial axes",
		               pads.n, w->spatial);
		return false;
	}
	for (int i = 0; i < pads.n; i++) {
		if (pads.at[i] < 0 || pads.at[i] > LONGEST_STEP) {
			report_invalid(n, "a pad of %lld is negative or too large",
			               (long long)pads.at[i]);
			return false;
		}
		*(i < w->spatial ? &w->low.at[i] : &w->high.at[i - w->spatial]) = pads.at[i];
	}
	return true;
}

/* auto_pad SAME: one window per stride. If the total padding is odd, the extra element goes to the
 * end (UPPER) or to the beginning (LOWER). */
static void
pad_same(Window *w, const Value *x, bool upper)
{
	for (int i = 0; i < w->spatial; i++) {
		int64_t size = x->type->dims[i + 2], s = w->stride.at[i];
		int64_t count = (size + s - 1) / s,
			total = (count - 1) * s + window_reach(w, i) - size;
		total = total < 0 ? 0 : total;
		w->low.at[i] = upper ? total / 2 : total - total / 2;
		w->high.at[i] = total - w->low.at[i];
	}
}

/* ceil_mode: a last, partial window counts if it starts before the end of the data. */
static void
pad_ceil(Window *w, const Value *x)
{
	for (int i = 0; i < w->spatial; i++) {
		int64_t size = x->type->dims[i + 2], s = w->stride.at[i];
		int64_t room = size + w->low.at[i] + w->high.at[i] - window_reach(w, i);
		if (room < 0)
			continue;
		int64_t count = (room + s - 1) / s + 1;
		if ((count - 1) * s >= size + w->low.at[i])
			count--;
		int64_t high = (count - 1) * s + window_reach(w, i) - size - w->low.at[i];
		if (high > w->high.at[i])
			w->high.at[i] = high;
	}
}

bool
want_steps(OnnxNode *n, int spatial, Window *out)
{
	*out = (Window){.spatial = spatial};
	return want_positive(n, "strides", spatial, &out->stride) &&
	       want_positive(n, "dilations", spatial, &out->dilation) && want_pads(n, out);
}

bool
want_window(OnnxNode *n, const Value *x, const Ints *kernel, Window *out)
{
	const char *auto_pad = want_string(n, "auto_pad", "NOTSET");
	Ints given;

	*out = (Window){.spatial = x->type->rank - 2};
	if (out->spatial < 1) {
		report_invalid(n, "input of rank %d, needs 3 or more", x->type->rank);
		return false;
	}
	if (!want_steps(n, out->spatial, out) ||
	    !want_positive(n, "kernel_shape", out->spatial, &given))
		return false;
	out->kernel = kernel ? *kernel : given;
	for (int i = 0; i < out->spatial; i++) {
		if (kernel && has_attribute(n, "kernel_shape") && given.at[i] != kernel->at[i]) {
			report_invalid(
				n,
				"kernel_shape is %lld along spatial axis %d, the weight has %lld",
				(long long)given.at[i], i, (long long)kernel->at[i]);
			return false;
		}
		if (out->kernel.at[i] < 1 || out->kernel.at[i] > LONGEST_STEP) {
			report_invalid(n,
			               "a kernel of %lld along spatial axis %d is not "
			               "positive, or too large",
			               (long long)out->kernel.at[i], i);
			return false;
		}
	}
	if (!strncmp(auto_pad, "SAME_", 5)) {
		pad_same(out, x, !strcmp(auto_pad, "SAME_UPPER"));
	} else if (!strcmp(auto_pad, "VALID")) {
		out->low = out->high = (Ints){.n = out->spatial};
	} else if (strcmp(auto_pad, "NOTSET") && *auto_pad) {
		report_invalid(n, "unknown auto_pad");
		return false;
	}
	out->padded = out->high;
	if (want_int(n, "ceil_mode", 0))
		pad_ceil(out, x);
	return true;
}

/* v [C] in the shape of `like`, with the channels along `axis` */
Value *
e_channel(OnnxNode *n, Value *v, Value *like, int axis)
{
	Ints axes = {.n = 1, .at = {axis}};

	if (!v || !like)
		return NULL;
	if (v->type->rank != 1 || v->type->dims[0] != like->type->dims[axis]) {
		report_invalid(
			n,
			"a value per channel has %lld elements and rank %d, needs %lld elements "
			"and rank 1",
			(long long)v->type->n, v->type->rank, (long long)like->type->dims[axis]);
		return NULL;
	}
	return e_broadcast_axes(n, v, shape_of(like), axes);
}

static Value *
add_bias(OnnxNode *n, Value *y, int i)
{
	if (!y || !has_input(n, i))
		return y;
	return e_binary(n, OP_add, y, e_channel(n, want_input(n, i), y, 1));
}

static bool
weight_kernel(OnnxNode *n, const Value *x, const Value *w, Ints *kernel)
{
	if (!x || !w)
		return false;
	if (x->type->rank < 3 || w->type->rank != x->type->rank) {
		report_invalid(n,
		               "the weight has rank %d and the input rank %d: need equal ranks, "
		               "3 or more",
		               w->type->rank, x->type->rank);
		return false;
	}
	*kernel = (Ints){.n = x->type->rank - 2};
	for (int i = 0; i < kernel->n; i++)
		kernel->at[i] = w->type->dims[i + 2];
	return true;
}

static ConvAttr
conv_attr(const Window *w, int64_t groups)
{
	return (ConvAttr){.stride = w->stride,
	                  .low = w->low,
	                  .high = w->high,
	                  .dilation = w->dilation,
	                  .groups = groups};
}

Value *
e_conv(OnnxNode *n, Value *x, Value *w, int weight)
{
	int64_t groups = want_int(n, "group", 1);
	Ints kernel;
	Window window;

	if (!weight_kernel(n, x, w, &kernel) || !want_window(n, x, &kernel, &window))
		return NULL;
	if (groups < 1 || groups > w->type->dims[0]) {
		report_invalid(n,
		               "%lld groups do not fit %lld output channels: need 1 or more, "
		               "and at most a group for each channel",
		               (long long)groups, (long long)w->type->dims[0]);
		return NULL;
	}
	if (w->type->dims[1] * groups != x->type->dims[1]) {
		report_invalid(n, "weight %s has %lld input channels%s, input has %lld",
		               quoted(n->im->model, n->proto->input[weight]),
		               (long long)w->type->dims[1], groups > 1 ? " a group" : "",
		               (long long)x->type->dims[1]);
		return NULL;
	}
	ConvAttr a = conv_attr(&window, groups);
	return e_op(n, OP_conv, 2, (Value *[]){x, w}, &a);
}

static void
import_conv(OnnxNode *n)
{
	Value *y = e_conv(n, want_input(n, 0), want_input(n, 1), 1);

	set_output(n, 0, add_bias(n, y, 2));
}

/* ---- com.microsoft: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md */
/* [N, C, ...] -> [N, ..., C], or back. */
static Value *
move_channels(OnnxNode *n, Value *x, bool last)
{
	Ints order = {0};

	for (int i = 0; x && i < x->type->rank; i++)
		order.at[order.n++] = i;
	for (int i = 1; last && i + 1 < order.n; i++)
		order.at[i] = i + 1;
	for (int i = 2; !last && i < order.n; i++)
		order.at[i] = i - 1;
	if (order.n > 2)
		order.at[last ? order.n - 1 : 1] = last ? 1 : order.n - 1;
	return e_transpose(n, x, order);
}

/* activation(conv + B + Z). flag: channels are last in the input and the result. kind: channels are
 * last in the weight, too. onnxruntime's optimizer writes, and its CUDA kernel reads, such weights,
 * although the documentation says otherwise. */
static void
import_fused_conv(OnnxNode *n)
{
	const char *activation = want_string(n, "activation", "");
	Value *x = want_input(n, 0), *w = want_input(n, 1), *y;
	double numbers[2];
	int count = want_floats(n, "activation_params", 2, numbers);

	y = e_conv(n, n->extra->flag ? move_channels(n, x, false) : x,
	           n->extra->kind ? move_channels(n, w, false) : w, 1);
	y = add_bias(n, y, 2);
	if (n->extra->flag)
		y = move_channels(n, y, true);
	if (y && has_input(n, 3))
		y = e_binary(n, OP_add, y, e_broadcast(n, want_input(n, 3), shape_of(y)));
	set_output(n, 0, *activation ? e_curve(n, y, activation, count, numbers) : y);
}

/* Computes the result's spatial sizes, and the pads if output_shape gives the sizes. If
 * output_shape is larger than the convolution's result, *more is the number of elements at the end
 * of each axis that no window reaches; these elements are filled with 0. */
static bool
transpose_size(OnnxNode *n, const Value *x, Window *w, Ints *size, Ints *more)
{
	const char *auto_pad = want_string(n, "auto_pad", "NOTSET");
	Ints extra, given = {0};
	bool sized = want_ints(n, "output_shape", &given), same = !strncmp(auto_pad, "SAME_", 5);

	if (!want_ints(n, "output_padding", &extra))
		extra = (Ints){.n = w->spatial};
	*size = *more = (Ints){.n = w->spatial};
	if (extra.n != w->spatial || (sized && given.n < w->spatial)) {
		report_invalid(
			n,
			"output_padding or output_shape has another length than the spatial axes");
		return false;
	}
	for (int i = 0; i < w->spatial; i++) {
		int64_t in = x->type->dims[i + 2], s = w->stride.at[i];
		if (extra.at[i] < 0 || extra.at[i] > LONGEST_STEP || in < 1 ||
		    in > MAX_ELEMENTS / s) {
			report_invalid(n,
			               "output_padding is %lld, needs 0 or more; the input "
			               "has %lld elements along the axis, needs 1 or more; "
			               "neither may be too large",
			               (long long)extra.at[i], (long long)in);
			return false;
		}
		int64_t full = s * (in - 1) + extra.at[i] + window_reach(w, i);
		if (!sized && !same) {
			size->at[i] = full - w->low.at[i] - w->high.at[i];
			continue;
		}
		size->at[i] = sized ? given.at[given.n - w->spatial + i] : in * s;
		if (size->at[i] < 1) {
			report_invalid(n,
			               "output_shape is %lld along spatial axis %d, needs 1 "
			               "or more",
			               (long long)size->at[i], i);
			return false;
		}
		int64_t total = full - size->at[i];
		if (total < 0) {
			more->at[i] = -total;
			size->at[i] = full;
			total = 0;
		}
		w->low.at[i] = !strcmp(auto_pad, "SAME_UPPER") ? total / 2 : total - total / 2;
		w->high.at[i] = total - w->low.at[i];
	}
	return true;
}

/* y, padded with zeros at the end of its spatial axes */
static Value *
lengthened(OnnxNode *n, Value *y, Ints more)
{
	Ints none = {.n = more.n + 2}, high = none;

	for (int i = 0; i < more.n; i++)
		high.at[i + 2] = more.at[i];
	return e_pad(n, y, none, high, 0);
}

static void
import_conv_transpose(OnnxNode *n)
{
	Value *x = want_input(n, 0), *w = want_input(n, 1);
	int64_t groups = want_int(n, "group", 1);
	Ints kernel, size, more;
	Window window;

	if (!weight_kernel(n, x, w, &kernel) || !want_window(n, x, &kernel, &window) ||
	    !transpose_size(n, x, &window, &size, &more))
		return;
	if (groups < 1 || w->type->dims[0] != x->type->dims[1] || x->type->dims[1] % groups) {
		report_invalid(n,
		               "the weight has %lld input channels, the input has %lld in %lld "
		               "groups: need equal numbers, which the groups divide",
		               (long long)w->type->dims[0], (long long)x->type->dims[1],
		               (long long)groups);
		return;
	}
	for (int i = 0; i < size.n; i++)
		if (size.at[i] < 1) {
			report_invalid(n,
			               "the result has %lld elements along spatial axis %d, "
			               "needs 1 or more",
			               (long long)size.at[i], i);
			return;
		}
	ConvAttr a = conv_attr(&window, groups);
	a.size = size;
	Value *y = e_op(n, OP_conv_grad_input, 2, (Value *[]){x, w}, &a);
	set_output(n, 0, add_bias(n, lengthened(n, y, more), 2));
}

/* clang-format off */
const ImportRow import_conv_rows[] = {
	/* name          from  to  importer  extra */
	{"Conv", 1, 0, import_conv,
	 .facts = {.weights = INPUTS(1, 2), .channels = INPUT(2), .bias = 2,
	           .products = {{.weight = 1, .outputs = 0, .inputs = 1, .x_inputs = 1, .result = 1}}}},
	{"ConvTranspose", 1, 0, import_conv_transpose,
	 .facts = {.weights = INPUTS(1, 2), .channels = INPUT(2), .bias = 2,
	           .products = {{.weight = 1, .outputs = 1, .inputs = 0, .x_inputs = 1, .result = 1}}}},
	{"FusedConv", 1, 0, import_fused_conv, {0}, "com.microsoft",
	 .facts = {.weights = INPUTS(1, 2)}},
	{"NhwcConv", 1, 0, import_fused_conv, {.flag = true, .kind = 1}, "com.microsoft",
	 .facts = {.weights = INPUTS(1, 2)}},
	{"NhwcFusedConv", 1, 0, import_fused_conv, {.flag = true}, "com.microsoft",
	 .facts = {.weights = INPUTS(1, 2)}},
	{0},
};
/* clang-format on */
