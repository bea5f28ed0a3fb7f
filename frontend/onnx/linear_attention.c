/* Attention whose memory is a matrix for each head, and the convolution that stands before it. */
#include "frontend/onnx/attention.h"

#include <math.h>
#include <string.h>

/* What 16 bits are computed in. */
static DType
at_least_f32(DType t)
{
	return dtype_info[t].bits < 32 ? F32 : t;
}

/* ---- https://onnx.ai/onnx/operators/onnx__CausalConvWithState.html */
static bool
causal_conv_fits(OnnxNode *n, const Value *x, const Value *w)
{
	const int64_t *a = x->type->dims, *b = w->type->dims;

	if (x->type->rank == 3 && w->type->rank == 3 && b[0] == a[1] && b[1] == 1 && b[2] >= 1 &&
	    a[1] >= 1)
		return true;
	report_invalid(n, "input of rank %d and weight of rank %d, need [B, C, L] and [C, 1, k]",
	               x->type->rank, w->type->rank);
	return false;
}

/* The k - 1 places before x: what is given, or zeros. */
static Value *
places_before(OnnxNode *n, Value *x, int64_t count)
{
	Ints shape = shape_of(x);

	shape.at[2] = count;
	if (!has_input(n, 3))
		return e_splat(n, x->type->dtype, shape, 0);
	Value *past = want_input(n, 3);
	if (!past)
		return NULL;
	Ints given = shape_of(past);
	if (!memcmp(&given, &shape, sizeof(shape)) && past->type->dtype == x->type->dtype)
		return past;
	report_invalid(n, "past_state is no %s[%lld, %lld, %lld]", dtype_info[x->type->dtype].name,
	               (long long)shape.at[0], (long long)shape.at[1], (long long)count);
	return NULL;
}

/* x sigmoid(x), in f32 or wider */
static Value *
silu(OnnxNode *n, Value *x)
{
	Value *wide = x ? e_cast(n, x, at_least_f32(x->type->dtype)) : NULL;

	return x ? e_cast(n, e_binary(n, OP_mul, wide, e_unary(n, OP_sigmoid, wide)),
	                  x->type->dtype)
	         : NULL;
}

static void
import_causal_conv(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *w = want_input(n, 1);
	const char *activation = want_word(n, "activation", "none silu swish");

	if (!x || !w || !causal_conv_fits(n, x, w))
		return;
	int64_t channels = x->type->dims[1], k = w->type->dims[2], length = x->type->dims[2];
	Value *padded = e_concat(n, 2, (Value *[]){places_before(n, x, k - 1), x}, 2);
	Ints one = {.n = 1, .at = {1}}, zero = {.n = 1};
	ConvAttr a = {
		.stride = one, .low = zero, .high = zero, .dilation = one, .groups = channels};
	Value *y = e_op(n, OP_conv, 2, (Value *[]){padded, w}, &a);
	if (has_input(n, 2))
		y = e_binary(n, OP_add, y, e_channel(n, want_input(n, 2), x, 1));
	set_output(n, 0, strcmp(activation, "none") ? silu(n, y) : y);
	set_output(n, 1, padded ? e_slice_axis(n, padded, 2, length, length + k - 1) : NULL);
}

const ImportRow import_linear_attention_rows[] = {
	/* name                 from  to  importer  extra */
	{"CausalConvWithState", 27, 0, import_causal_conv, {0}, NULL},
	{0},
};
