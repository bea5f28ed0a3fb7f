/* Imports normalizations without running statistics (LayerNormalization, GroupNormalization, LRN
 * ...). Floats of 16 bits are computed in a wider type where the operator's definition says so. */
#include "frontend/import/import.h"

/* (x - mean) / sqrt(variance + epsilon) over some axes; the variance is the population's */
Value *
e_normalize(OnnxNode *n, Value *x, Ints axes, double epsilon, Value **mean, Value **inverse)
{
	*mean = e_mean(n, x, axes, true);
	Value *d = e_binary(n, OP_sub, x, *mean);
	Value *variance = e_mean(n, e_binary(n, OP_mul, d, d), axes, true);
	*inverse = e_unary(n, OP_rsqrt, e_with(n, OP_add, variance, epsilon));
	return e_binary(n, OP_mul, d, *inverse);
}

/* Converts x to the type of the statistics if x is narrower. Sets *stash_type to this type. */
static Value *
widen(OnnxNode *n, Value *x, DType *stash_type)
{
	DType stash;

	if (!x || !want_dtype(n, want_int(n, "stash_type", 1), &stash))
		return NULL;
	if (!dtype_is_float(stash)) {
		report_invalid(n, "stash_type is %s, needs a float type", dtype_info[stash].name);
		return NULL;
	}
	*stash_type = stash;
	return dtype_info[x->type->dtype].bits < dtype_info[stash].bits ? e_cast(n, x, stash) : x;
}

static void
import_layer_norm(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *scale = want_input(n, 1), *mean, *inverse;

	if (!x || !scale)
		return;
	int axis = want_axis(n, want_int(n, "axis", -1), x->type->rank);
	if (axis < 0)
		return;
	DType stash = x->type->dtype;
	Value *wide = widen(n, x, &stash);
	Ints axes = ints_range(axis, x->type->rank);
	Value *y = e_normalize(n, wide, axes, want_float(n, "epsilon", 1e-5f), &mean, &inverse);
	y = e_binary(n, OP_mul, e_cast(n, y, x->type->dtype), e_broadcast(n, scale, shape_of(x)));
	if (has_input(n, 2))
		y = e_binary(n, OP_add, y, e_broadcast(n, want_input(n, 2), shape_of(x)));
	set_output(n, 0, y);
	set_output(n, 1, e_cast(n, mean, stash));
	set_output(n, 2, e_cast(n, inverse, stash));
}

/* x / sqrt(mean x^2 + epsilon) * scale; SimplifiedLayerNormalization also returns the inverted root. */
static void
import_rms_norm(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *scale = want_input(n, 1);

	if (!x || !scale)
		return;
	int axis = want_axis(n, want_int(n, "axis", -1), x->type->rank);
	if (axis < 0)
		return;
	DType stash;
	Value *wide = widen(n, x, &stash);
	Value *square = e_mean(n, e_binary(n, OP_mul, wide, wide), ints_range(axis, x->type->rank),
	                       true);
	square = e_with(n, OP_add, square, want_float(n, "epsilon", 1e-5f));
	Value *inverse = e_unary(n, OP_rsqrt, square);
	Value *y = e_binary(n, OP_mul, wide, inverse);
	set_output(n, 1, inverse);
	set_output(n, 0,
	           e_binary(n, OP_mul, e_cast(n, y, scale->type->dtype),
	                    e_broadcast(n, scale, shape_of(x))));
}

static void
import_instance_norm(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *scale = want_input(n, 1), *bias = want_input(n, 2);
	Value *mean, *inverse;

	if (!x || !scale || !bias)
		return;
	if (x->type->rank < 3) {
		report_invalid(n, "input of rank %d, needs 3 or more", x->type->rank);
		return;
	}
	Value *y = e_normalize(n, x, ints_range(2, x->type->rank), want_float(n, "epsilon", 1e-5f),
	                       &mean, &inverse);
	y = e_binary(n, OP_mul, y, e_channel(n, scale, x, 1));
	set_output(n, 0, e_binary(n, OP_add, y, e_channel(n, bias, x, 1)));
}

/* scale and bias: per group in opset 18, per channel from 21 */
static void
import_group_norm(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *scale = want_input(n, 1), *bias = want_input(n, 2);
	Value *mean, *inverse;
	int64_t groups = want_int(n, "num_groups", 0);

	if (!x || !scale || !bias)
		return;
	if (x->type->rank < 2 || groups < 1 || x->type->dims[1] % groups) {
		report_invalid(n,
		               "%lld groups do not fit an input of rank %d: need rank 2 or "
		               "more, and groups that divide the channels",
		               (long long)groups, x->type->rank);
		return;
	}
	Ints shape = {.n = 3, .at = {x->type->dims[0], groups, 1}};
	if (x->type->dims[0] && x->type->n)
		shape.at[2] = x->type->n / x->type->dims[0] / groups;
	DType stash;
	Value *wide = n->extra->flag ? widen(n, x, &stash) : x;
	Value *y = e_normalize(n, e_reshape(n, wide, shape), (Ints){.n = 1, .at = {2}},
	                       want_float(n, "epsilon", 1e-5f), &mean, &inverse);
	y = e_cast(n, y, x->type->dtype);
	if (!n->extra->flag) {
		y = e_binary(n, OP_mul, y, e_channel(n, scale, y, 1));
		set_output(n, 0,
		           e_reshape(n, e_binary(n, OP_add, y, e_channel(n, bias, y, 1)),
		                     shape_of(x)));
		return;
	}
	y = e_reshape(n, y, shape_of(x));
	y = e_binary(n, OP_mul, y, e_channel(n, scale, x, 1));
	set_output(n, 0, e_binary(n, OP_add, y, e_channel(n, bias, x, 1)));
}

static void
import_lp_norm(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	int64_t p = want_int(n, "p", 2);
	int axis = x ? want_axis(n, want_int(n, "axis", -1), x->type->rank) : -1;
	Ints axes = {.n = 1, .at = {axis}};

	if (axis < 0)
		return;
	if (p != 1 && p != 2) {
		report_invalid(n, "p is %lld, needs 1 or 2", (long long)p);
		return;
	}
	Value *term = p == 1 ? e_unary(n, OP_abs, x) : e_binary(n, OP_mul, x, x);
	Value *norm = e_reduce(n, REDUCE_SUM, term, axes, true);
	norm = e_select(n, e_with(n, OP_eq, norm, 0), e_number(n, norm, 1), norm); /* 0 / 0 is 0 */
	set_output(n, 0, e_binary(n, OP_div, x, p == 1 ? norm : e_unary(n, OP_sqrt, norm)));
}

/* (x - E x) / (sqrt(E (x - E x)^2) + 1e-9). ONNX's function body computes E x^2 - (E x)^2 instead.
 * That cancels if the mean is large: in f32, with a mean of 4e4, a variance of 1 is lost. */
static void
import_mean_variance(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	Ints list, axes;

	if (!want_ints(n, "axes", &list) && !n->failed)
		list = (Ints){.n = 3, .at = {0, 2, 3}};
	else if (x && list.n == 0) /* all axes, as ReduceMean in the function body */
		list = ints_range(0, x->type->rank);
	if (!x || !want_axes(n, list, x->type->rank, &axes))
		return;
	Value *mean = e_mean(n, x, axes, true);
	Value *d = e_binary(n, OP_sub, x, mean);
	Value *variance = e_mean(n, e_binary(n, OP_mul, d, d), axes, true);
	Value *deviation = e_with(n, OP_add, e_unary(n, OP_sqrt, variance), 1e-9f);
	set_output(n, 0, e_binary(n, OP_div, d, deviation));
}

/* LRN: https://onnx.ai/onnx/operators/onnx__LRN.html. x / (bias + alpha / size * sum x^2)^beta. The
 * sum is over channels [c - floor((size - 1) / 2), c + ceil((size - 1) / 2)] and is computed as a
 * pool. */
static void
import_lrn(OnnxNode *n)
{
	enum { MOST = 1 << 30 };
	Value *x = want_float_input(n, 0);
	int64_t size = want_int(n, "size", 0);
	double alpha = want_float(n, "alpha", 0.0001), beta = want_float(n, "beta", 0.75),
	       bias = want_float(n, "bias", 1);

	if (!x)
		return;
	if (size < 1 || size > MOST || x->type->rank < 2) {
		report_invalid(n,
		               "size is %lld and the input has rank %d: need a positive size "
		               "that is not too large, and rank 2 or more",
		               (long long)size, x->type->rank);
		return;
	}
	int64_t rows = x->type->dims[0], channels = x->type->dims[1];
	int64_t rest = x->type->n ? x->type->n / (rows * channels) : 0;
	Ints one = {.n = 2, .at = {1, 1}};
	PoolAttr a = {.kind = POOL_SUM,
	              .window = {.n = 2, .at = {size, 1}},
	              .stride = one,
	              .dilation = one,
	              .low = {.n = 2, .at = {(size - 1) / 2, 0}},
	              .high = {.n = 2, .at = {size / 2, 0}}};
	if (x->type->n == 0) {
		set_output(n, 0, x);
		return;
	}
	Value *square = e_reshape(n, e_binary(n, OP_mul, x, x),
	                          (Ints){.n = 4, .at = {rows, 1, channels, rest}});
	Value *sum = e_reshape(n, e_op(n, OP_pool, 1, &square, &a), shape_of(x));
	Value *base = e_with(n, OP_add, e_with(n, OP_mul, sum, alpha / (double)size), bias);
	set_output(n, 0, e_binary(n, OP_div, x, e_with(n, OP_pow, base, beta)));
}

const ImportRow import_norm_rows[] = {
	/* name                   from  to  importer  extra */
	/* before opset 17: onnxruntime's operator */
	{"LayerNormalization", 1, 0, import_layer_norm,
         .facts = {.weights = INPUTS(1, 2), .channels = INPUTS(1, 2)}},
	{"RMSNormalization", 23, 0, import_rms_norm,
         .facts = {.weights = INPUT(1), .channels = INPUT(1)}},
	/* onnxruntime's operator */
	{"SimplifiedLayerNormalization", 1, 0, import_rms_norm, .facts = {.weights = INPUT(1)}},
	{"InstanceNormalization", 6, 0, import_instance_norm,
         .facts = {.weights = INPUTS(1, 2), .channels = INPUTS(1, 2)}},
	/* opset 21 has a scale per channel */
	{"GroupNormalization", 18, 20, import_group_norm,
         .facts = {.weights = INPUTS(1, 2), .channels = INPUTS(1, 2), .changed = 21}},
	{"GroupNormalization", 21, 0, import_group_norm, {.flag = true}, NULL},
	{"LpNormalization", 1, 0, import_lp_norm, {0}, NULL},
	{"MeanVarianceNormalization", 9, 0, import_mean_variance, {0}, NULL},
	{"LRN", 1, 0, import_lrn, {0}, NULL},
	{0},
};
