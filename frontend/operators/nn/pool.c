/* Imports pools, which take the maximum, the mean or the p-norm of each window; and MaxUnpool. */
#include "frontend/operators/nn/window.h"

static bool
pool_input(OnnxNode *n, Value **x, Window *w)
{
	*x = want_input(n, 0);
	if (!*x || !want_window(n, *x, NULL, w))
		return false;
	for (int i = 0; i < w->spatial; i++)
		if (window_count(w, i, (*x)->type->dims[i + 2]) < 1) {
			report_invalid(
				n,
				"a window over %lld elements is too large for spatial axis %d, "
				"which has %lld with pads %lld and %lld",
				(long long)window_reach(w, i), i,
				(long long)(*x)->type->dims[i + 2], (long long)w->low.at[i],
				(long long)w->high.at[i]);
			return false;
		}
	return true;
}

static PoolAttr
pool_attr(PoolKind kind, const Window *w)
{
	return (PoolAttr){.kind = kind,
	                  .window = w->kernel,
	                  .stride = w->stride,
	                  .low = w->low,
	                  .high = w->high,
	                  .dilation = w->dilation};
}

static Value *
emit_pool(OnnxNode *n, PoolKind kind, Value *x, const Window *w)
{
	PoolAttr a = pool_attr(kind, w);

	return e_op(n, OP_pool, 1, &x, &a);
}

/* The index of each element in the whole tensor x; with storage_order = 1 the first spatial axis
 * varies fastest. */
static Value *
element_numbers(OnnxNode *n, const Value *x, bool columns)
{
	int64_t strides[MAX_RANK], stride = 1;
	Ints shape = shape_of(x);
	Value *sum = NULL;

	type_strides(x->type, strides);
	for (int i = 2; columns && i < shape.n; stride *= shape.at[i++])
		strides[i] = stride;
	for (int i = 0; i < shape.n; i++) {
		Value *at = e_with(n, OP_mul, e_iota(n, S64, shape, i), (double)strides[i]);
		sum = sum ? e_binary(n, OP_add, sum, at) : at;
	}
	return sum;
}

/* The indices of the maxima. They are computed in f64, which holds whole numbers up to 2^53. */
static Value *
max_places(OnnxNode *n, Value *x, const Window *w)
{
	bool columns = want_int(n, "storage_order", 0);
	PoolAttr a = pool_attr(POOL_MAX, w);
	Value *numbers = e_cast(n, element_numbers(n, x, columns), F64);
	Value *operands[] = {numbers, e_cast(n, e_unary(n, OP_stop_gradient, x), F64)};

	return e_cast(n, e_op(n, OP_pool_gather, 2, operands, &a), S64);
}

/* https://onnx.ai/onnx/operators/onnx__MaxPool.html */
static void
import_max_pool(OnnxNode *n)
{
	Value *x;
	Window w;

	if (!pool_input(n, &x, &w))
		return;
	DType t = x->type->dtype;
	x = is_float(x) ? x : e_cast(n, x, F32); /* 8-bit integers, which f32 holds exactly */
	set_output(n, 0, e_cast(n, emit_pool(n, POOL_MAX, x, &w), t));
	if (has_output(n, 1))
		set_output(n, 1, max_places(n, x, &w));
}

/* ---- https://onnx.ai/onnx/operators/onnx__LpPool.html: (sum |x|^p)^(1/p) */
/* In version 1 of the operator p is a float. */
static bool
want_p(OnnxNode *n, double *p)
{
	enum { MOST = 1 << 20 };

	*p = n->extra->flag ? want_float(n, "p", 2) : (double)want_int(n, "p", 2);
	if (*p > 0 && *p <= MOST)
		return true;
	report_invalid(n, "p is %g, needs more than 0, up to %d", *p, MOST);
	return false;
}

/* |x|^p */
static Value *
to_power(OnnxNode *n, Value *x, double p)
{
	if (p == 2)
		return e_binary(n, OP_mul, x, x);
	x = e_unary(n, OP_abs, x);
	return p == 1 ? x : e_with(n, OP_pow, x, p);
}

/* y^(1/p). If all x are 0, the gradient is 0, as in PyTorch. */
static Value *
to_root(OnnxNode *n, Value *y, double p)
{
	if (p == 1)
		return y;
	Value *none = e_with(n, OP_eq, y, 0), *safe = e_select(n, none, e_number(n, y, 1), y);
	Value *root = p == 2 ? e_unary(n, OP_sqrt, safe) : e_with(n, OP_pow, safe, 1 / p);
	return e_select(n, none, y, root);
}

static void
import_lp_pool(OnnxNode *n)
{
	double p;
	Value *x = want_float_input(n, 0);
	Window w;

	if (want_p(n, &p) && x && pool_input(n, &x, &w))
		set_output(n, 0, to_root(n, emit_pool(n, POOL_SUM, to_power(n, x, p), &w), p));
}

/* ---- MaxUnpool: https://onnx.ai/onnx/operators/onnx__MaxUnpool.html. Each x goes to its index; 0
 * elsewhere */
/* The shape before pooling, as far as x's shape determines it. */
static bool
unpooled_shape(OnnxNode *n, const Value *x, const Window *w, Ints *shape)
{
	*shape = shape_of(x);
	for (int i = 0; i < w->spatial; i++) {
		int64_t *size = &shape->at[i + 2], whole;
		if (!size_mul(*size - 1, w->stride.at[i], &whole))
			whole = INT64_MAX / 2;
		*size = whole - w->low.at[i] - w->high.at[i] + w->kernel.at[i];
		if (*size < 1) {
			report_invalid(n,
			               "the result has %lld elements along spatial axis %d, "
			               "needs 1 or more",
			               (long long)*size, i);
			return false;
		}
	}
	return shape_fits(n, *shape);
}

/* Indices refer to a tensor of shape `inner`. If output_shape is larger, zeros are appended. */
static Value *
grown(OnnxNode *n, Value *y, Ints inner)
{
	Ints outer, none = {.n = inner.n}, more = {.n = inner.n};

	if (!has_input(n, 2) || !want_constant_ints(n, 2, &outer))
		return n->failed ? NULL : y;
	if (outer.n != inner.n) {
		report_invalid(n, "output_shape has %d numbers, needs %d", outer.n, inner.n);
		return NULL;
	}
	for (int i = 0; i < inner.n; i++) {
		more.at[i] = outer.at[i] - inner.at[i];
		if (outer.at[i] < inner.at[i] || outer.at[i] > MAX_ELEMENTS) {
			report_invalid(
				n, "output_shape is %lld along axis %d, at least %lld were pooled",
				(long long)outer.at[i], i, (long long)inner.at[i]);
			return NULL;
		}
	}
	return e_pad(n, y, none, more, 0);
}

static void
import_max_unpool(OnnxNode *n)
{
	Value *x = want_input(n, 0), *at = want_input(n, 1);
	Window w;
	Ints shape;

	if (!x || !at || !want_window(n, x, NULL, &w) || !unpooled_shape(n, x, &w, &shape))
		return;
	if (!type_same_shape(x->type, at->type)) {
		report_invalid(n, "x and the indices have different shapes");
		return;
	}
	Value *zeros = e_splat(n, x->type->dtype, shape, 0);
	zeros = e_flat(n, zeros);
	at = zeros ? e_flat(n, e_indices(n, at, zeros->type->n, false)) : NULL;
	Value *y = e_op(n, OP_scatter, 3, (Value *[]){zeros, at, e_flat(n, x)},
	                &(ScatterAttr){SCATTER_SET, 0});
	set_output(n, 0, grown(n, e_reshape(n, y, shape), shape));
}

enum { MAX_WINDOWS = 1 << 24 }; /* limit along one axis */

/* The number of k in [0, n) with first + k * step < end. */
static int64_t
taps_below(int64_t first, int64_t step, int64_t n, int64_t end)
{
	int64_t count = end > first ? (end - first + step - 1) / step : 0;

	return count < n ? count : n;
}

/* Counts the taps of each window along an axis that lie in [-low, size + high); returns whether all
 * counts are equal. */
static bool
count_taps(const Window *w, int i, int64_t size, int64_t low, int64_t high, int64_t count,
           double *taps)
{
	bool equal = true;

	for (int64_t o = 0; o < count; o++) {
		int64_t first = o * w->stride.at[i] - w->low.at[i];
		int64_t n = w->kernel.at[i], step = w->dilation.at[i];
		taps[o] = (double)(taps_below(first, step, n, size + high) -
		                   taps_below(first, step, n, -low));
		equal &= taps[o] == taps[0];
	}
	return equal;
}

static void
import_average_pool(OnnxNode *n)
{
	bool with_pads = want_int(n, "count_include_pad", 0);
	Value *x;
	Window w;

	if (!pool_input(n, &x, &w))
		return;
	if (!is_float(x)) {
		report_unsupported(n, "an average of integers");
		return;
	}
	Value *y = emit_pool(n, POOL_SUM, x, &w);
	double scale = 1;
	for (int i = 0; y && i < w.spatial; i++) {
		int64_t count = y->type->dims[i + 2];
		if (count > MAX_WINDOWS) {
			report_unsupported(n,
			                   "%lld windows along axis %d, at most %d are supported",
			                   (long long)count, i + 2, MAX_WINDOWS);
			return;
		}
		double *taps = NEW_ARRAY(n->im->arena, double, count);
		bool equal = count_taps(&w, i, x->type->dims[i + 2], with_pads ? w.low.at[i] : 0,
		                        with_pads ? w.padded.at[i] : 0, count, taps);
		if (equal) {
			scale *= taps[0];
			continue;
		}
		Value *v = e_vector(n, x->type->dtype, (int)count, taps);
		y = e_binary(n, OP_div, y, e_channel(n, v, y, i + 2));
	}
	set_output(n, 0, scale == 1 ? y : e_with(n, OP_div, y, scale));
}

static bool
has_spatial_axes(OnnxNode *n, const Value *x)
{
	if (x && x->type->rank < 3)
		report_invalid(n, "input of rank %d, needs 3 or more", x->type->rank);
	return x && x->type->rank >= 3;
}

static void
import_global_lp_pool(OnnxNode *n)
{
	double p;
	Value *x = want_float_input(n, 0);

	if (!want_p(n, &p) || !has_spatial_axes(n, x))
		return;
	Value *sum = e_reduce(n, REDUCE_SUM, to_power(n, x, p), ints_range(2, x->type->rank), true);
	set_output(n, 0, to_root(n, sum, p));
}

static void
import_global_pool(OnnxNode *n)
{
	Value *x = want_input(n, 0);

	if (!has_spatial_axes(n, x))
		return;
	Ints axes = ints_range(2, x->type->rank);
	set_output(n, 0,
	           n->extra->flag ? e_mean(n, x, axes, true)
	                          : e_reduce(n, REDUCE_MAX, x, axes, true));
}

const ImportRow import_pool_rows[] = {
	/* name              from  to  importer  extra */
	{"MaxPool", 1, 0, import_max_pool, {0}, NULL},
	{"AveragePool", 1, 0, import_average_pool, {0}, NULL},
	{"LpPool", 1, 1, import_lp_pool, {.flag = true}, NULL},
	{"LpPool", 2, 0, import_lp_pool, {0}, NULL},
	{"MaxUnpool", 9, 0, import_max_unpool, {0}, NULL},
	{"GlobalLpPool", 1, 1, import_global_lp_pool, {.flag = true}, NULL},
	{"GlobalLpPool", 2, 0, import_global_lp_pool, {0}, NULL},
	{"GlobalMaxPool", 1, 0, import_global_pool, {0}, NULL},
	{"GlobalAveragePool", 1, 0, import_global_pool, {.flag = true}, NULL},
	{0},
};
