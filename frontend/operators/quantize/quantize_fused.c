/* Imports onnxruntime's operators that take codes (quantized numbers) and return codes or floats:
 * https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. Sums of codes are
 * exact. onnxruntime's CPU kernels compute other functions by a table of 256 numbers. Here these
 * functions are computed from dequantized floats, which gives the same codes after rounding, and
 * has a gradient. */
#include "frontend/operators/quantize/quantize.h"

#include <math.h>

/* ---- products with a result of floats */
/* Multiplies a sum of products of codes by both scales and adds the bias. */
static void
set_scaled(OnnxNode *n, Value *sum, Value *factor, int bias)
{
	if (n->failed || !sum || !factor)
		return;
	Value *y = e_binary(n, OP_mul, e_cast(n, sum, factor->type->dtype), factor);
	set_output(n, 0, y && has_input(n, bias) ? e_binary(n, OP_add, y, want_input(n, bias)) : y);
}

static void
import_matmul_integer_to_float(OnnxNode *n)
{
	Value *x = codes_want_matrix(n, 0, 4, 1), *y = codes_want_matrix(n, 1, 5, 0);
	Value *xs = want_float_input(n, 2), *ys = want_float_input(n, 3);
	Value *sum = n->failed ? NULL : e_matmul(n, x, y);

	if (!sum)
		return;
	set_scaled(n, sum,
	           e_binary(n, OP_mul, codes_spread_matrix(n, xs, sum, 1),
	                    codes_spread_matrix(n, ys, sum, 0)),
	           6);
}

/* x is quantized to 8 bits over its own range, as by DynamicQuantizeLinear. */
static void
import_dynamic_quantize_matmul(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *y = codes_want_matrix(n, 1, 3, 0), *scale, *zero;
	Value *ys = want_float_input(n, 2);

	if (n->failed)
		return;
	b_dynamic_range(n->b, x, ints_range(0, x->type->rank), &scale, &zero);
	Value *at = codes_spread(n, zero, x, 0, 0);
	Value *codes = codes_of_floats(n, x, codes_spread(n, scale, x, 0, 0), at, U8);
	Value *sum = e_matmul(n, codes_shifted(n, codes, e_cast(n, at, S32)), y);
	if (!sum)
		return;
	set_scaled(n, sum,
	           e_binary(n, OP_mul, codes_spread(n, scale, sum, 0, 0),
	                    codes_spread_matrix(n, ys, sum, 0)),
	           4);
}

/* A matrix minus its zero points, one for each row or column of the product. */
static Value *
gemm_operand(OnnxNode *n, int i, int z, const char *turned, bool by_column)
{
	Value *x = want_input(n, i), *zero = want_input(n, z);
	bool turn = want_int(n, turned, 0);

	if (n->failed || !codes_check(n, x->type->dtype, zero))
		return NULL;
	if (x->type->rank != 2) {
		report_invalid(n, "input %d has rank %d, need 2", i, x->type->rank);
		return NULL;
	}
	x = turn ? e_transpose(n, x, (Ints){.n = 2, .at = {1, 0}}) : x;
	return codes_shifted(n, x,
	                     codes_spread_matrix(n, e_cast(n, zero, S32), x, by_column ? 0 : 1));
}

static void
import_qgemm(OnnxNode *n)
{
	Value *x = gemm_operand(n, 0, 2, "transA", false);
	Value *y = gemm_operand(n, 3, 5, "transB", true);
	Value *xs = want_float_input(n, 1), *ys = want_float_input(n, 4);
	Value *sum = n->failed ? NULL : e_matmul(n, x, y);

	if (sum && has_input(n, 6))
		sum = e_binary(n, OP_add, sum, want_input(n, 6));
	if (n->failed || !sum)
		return;
	Value *alpha = e_with(n, OP_mul, codes_spread_matrix(n, xs, sum, 1),
	                      want_float(n, "alpha", 1));
	Value *from = e_binary(n, OP_mul, alpha, codes_spread_matrix(n, ys, sum, 0));
	if (has_input(n, 7))
		set_output(n, 0, codes_requantize(n, sum, from, 7, 8));
	else
		set_scaled(n, sum, from, n_inputs(n));
}

/* ---- codes to codes */
/* Input i, dequantized; its scale and zero point are the next two inputs. */
static Value *
want_decoded(OnnxNode *n, int i)
{
	Value *x = codes_want_matrix(n, i, i + 2, 0), *scale = want_float_input(n, i + 1);

	if (n->failed || !x)
		return NULL;
	if (scale->type->n != 1) {
		report_unsupported(n, "input %d has more than one scale", i);
		return NULL;
	}
	return e_binary(n, OP_mul, e_cast(n, x, scale->type->dtype),
	                codes_spread(n, scale, x, 0, 0));
}

/* Sets the output to x quantized with the scale in input i and the zero point in input i + 1.
 * Without zero point the type is `otherwise`. */
static void
set_codes(OnnxNode *n, Value *x, int i, DType otherwise)
{
	Value *scale = want_float_input(n, i);
	Value *zero = has_input(n, i + 1) ? want_input(n, i + 1) : NULL;
	DType type = zero ? zero->type->dtype : otherwise;

	if (n->failed || !x || !codes_check(n, type, NULL))
		return;
	Value *at = zero ? codes_spread(n, e_cast(n, zero, x->type->dtype), x, 0, 0) : NULL;
	set_output(n, 0, codes_of_floats(n, x, codes_spread(n, scale, x, 0, 0), at, type));
}

static DType
type_of_input(OnnxNode *n, int i)
{
	Value *x = want_input(n, i);

	return x ? x->type->dtype : U8;
}

/* Input i, of one element, as a float scalar; 0 if it is not given. */
static Value *
want_scalar(OnnxNode *n, int i, DType d)
{
	Value *v = has_input(n, i) ? want_input(n, i) : NULL;

	if (!has_input(n, i))
		return e_scalar(n, d, 0);
	if (v && v->type->n != 1) {
		report_unsupported(n, "input %d has more than one element", i);
		return NULL;
	}
	return v ? e_cast(n, e_reshape(n, v, (Ints){0}), d) : NULL;
}

/* x y + z, rounded once to f32, like the kernels' fused instruction. */
static Value *
multiply_add(OnnxNode *n, Value *x, Value *y, Value *z)
{
	Value *product = e_binary(n, OP_mul, e_cast(n, x, F64), e_cast(n, y, F64));

	return e_cast(n, e_binary(n, OP_add, product, e_cast(n, z, F64)), F32);
}

/* Sets the output to x rounded to codes. x is the result divided by the result's scale, plus its
 * zero point. */
static void
set_steps(OnnxNode *n, Value *x, DType type)
{
	if (x && !n->failed)
		set_output(n, 0, codes_of_floats(n, x, e_number(n, x, 1), NULL, type));
}

/* a ra + (b rb + (zero of y - za ra - zb rb)), with ra and rb the scales divided by y's scale. */
static void
import_qlinear_add(OnnxNode *n)
{
	Value *x[2], *ratio[2], *zero[2], *to = want_scalar(n, 6, F32);

	for (int i = 0; i < 2; i++) {
		x[i] = want_input(n, 3 * i);
		ratio[i] = e_binary(n, OP_div, want_scalar(n, 3 * i + 1, F32), to);
		zero[i] = want_scalar(n, 3 * i + 2, F32);
		if (n->failed || !codes_check(n, x[i]->type->dtype, NULL))
			return;
	}
	Value *less = e_binary(n, OP_add, e_binary(n, OP_mul, ratio[0], zero[0]),
	                       e_binary(n, OP_mul, ratio[1], zero[1]));
	Value *fixed = e_binary(n, OP_sub, want_scalar(n, 7, F32), less);
	Value *second = multiply_add(n, x[1], ratio[1], fixed);
	set_steps(n, multiply_add(n, x[0], ratio[0], second), x[0]->type->dtype);
}

static void
import_qlinear_mul(OnnxNode *n)
{
	Value *a = codes_want_matrix(n, 0, 2, 0), *b = codes_want_matrix(n, 3, 5, 0);
	Value *scale = e_binary(n, OP_mul, want_scalar(n, 1, F32), want_scalar(n, 4, F32));
	Value *ratio = e_binary(n, OP_div, scale, want_scalar(n, 6, F32));

	if (n->failed || !a || !b)
		return;
	Value *y = e_binary(n, OP_mul, e_cast(n, e_binary(n, OP_mul, a, b), F32), ratio);
	set_steps(n, e_binary(n, OP_add, y, want_scalar(n, 7, F32)), type_of_input(n, 0));
}

static void
import_qlinear_sigmoid(OnnxNode *n)
{
	Value *x = want_decoded(n, 0);

	set_codes(n, x ? e_unary(n, OP_sigmoid, x) : NULL, 3, type_of_input(n, 0));
}

static void
import_qlinear_leaky_relu(OnnxNode *n)
{
	Value *x = want_decoded(n, 0);
	double alpha = want_float(n, "alpha", 0.01);

	if (x)
		set_codes(n, e_select(n, e_with(n, OP_ge, x, 0), x, e_with(n, OP_mul, x, alpha)), 3,
		          type_of_input(n, 0));
}

/* Inputs: scale and zero point of the result, then each tensor with its scale and zero point. */
static void
import_qlinear_concat(OnnxNode *n)
{
	int count = (n_inputs(n) - 2) / 3;
	Value **parts = NEW_ARRAY(n->im->arena, Value *, count + 1);

	if (count < 1 || n_inputs(n) != 2 + 3 * count) {
		report_invalid(n, "%d inputs, need 2 and 3 for each part", n_inputs(n));
		return;
	}
	for (int i = 0; i < count; i++)
		if (!(parts[i] = want_decoded(n, 2 + 3 * i)))
			return;
	int axis = want_axis(n, want_int(n, "axis", 0), parts[0]->type->rank);
	if (axis >= 0)
		set_codes(n, e_concat(n, count, parts, axis), 0, U8);
}

/* Before opset 13 all axes from `axis` on are normalized together. onnxruntime computes in steps of
 * 1 / floor(1 / scale). */
static void
import_qlinear_softmax(OnnxNode *n)
{
	Value *x = want_decoded(n, 0), *scale = want_float_input(n, 3), *zero = want_input(n, 4);

	if (n->failed || !x)
		return;
	int rank = x->type->rank, axis = want_axis(n, want_int(n, "axis", -1), rank);
	bool to_end = want_int(n, "opset", 13) < 13;
	if (axis < 0 || !codes_check(n, zero->type->dtype, NULL))
		return;
	Ints axes = ints_range(axis, to_end ? rank : axis + 1);
	Value *y = e_softmax(n, x, axes, false);
	Value *one = e_number(n, scale, 1);
	Value *step = e_binary(n, OP_div, one,
	                       e_unary(n, OP_floor, e_binary(n, OP_div, one, scale)));
	Value *at = codes_spread(n, e_cast(n, zero, F32), x, 0, 0);
	set_output(n, 0,
	           codes_of_floats(n, y, codes_spread(n, step, x, 0, 0), at, zero->type->dtype));
}

/* The sum of codes is exact; one product with scale / (scale of y * elements) gives the mean. */
static void
import_qlinear_global_pool(OnnxNode *n)
{
	Value *x = codes_want_matrix(n, 0, 2, 0), *scale = want_float_input(n, 1);
	bool last = want_int(n, "channels_last", 0);

	if (n->failed || !x)
		return;
	int rank = x->type->rank;
	if (rank < 3) {
		report_invalid(n, "input 0 has rank %d, need 3 or more", rank);
		return;
	}
	Ints axes = ints_range(last ? 1 : 2, last ? rank - 1 : rank);
	double places = 1;
	for (int i = 0; i < axes.n; i++)
		places *= (double)x->type->dims[axes.at[i]];
	Value *sum = e_reduce(n, REDUCE_SUM, x, axes, true);
	Value *from = e_with(n, OP_div, e_reshape(n, scale, (Ints){0}), places);
	set_output(n, 0, codes_requantize(n, sum, codes_spread(n, from, sum, 0, 0), 3, 4));
}

/* ---- DynamicQuantizeLSTM, whose other parts are in recurrent.c */
Value *
codes_want_gates(OnnxNode *n, int input, int scale_input)
{
	Value *w = want_input(n, input), *scale = want_float_input(n, scale_input);
	Value *zero = has_input(n, scale_input + 1) ? want_input(n, scale_input + 1) : NULL;

	if (n->failed || !codes_check(n, w->type->dtype, zero))
		return NULL;
	Ints shape = {.n = 3, .at = {1, 1, 1}};
	for (int i = 0; i < scale->type->rank && i < 2; i++)
		shape.at[2 * i] = scale->type->dims[i];
	if (w->type->rank != 3 || scale->type->rank > 2 ||
	    (zero && zero->type->n != scale->type->n)) {
		report_invalid(n,
		               "input %d is %s, its scale %s: need rank 3, a scale of rank 2 "
		               "or less, and a zero point of the scale's size",
		               input, type_text(n, w->type), type_text(n, scale->type));
		return NULL;
	}
	Value *x = e_cast(n, w, scale->type->dtype);
	if (zero)
		x = e_binary(n, OP_sub, x,
		             e_reshape(n, e_cast(n, zero, scale->type->dtype), shape));
	x = e_binary(n, OP_mul, x, e_reshape(n, scale, shape));
	return x ? e_transpose(n, x, (Ints){.n = 3, .at = {0, 2, 1}}) : NULL;
}

#define MICROSOFT "com.microsoft"
/* clang-format off */
const ImportRow import_quantize_fused_rows[] = {
	/* name               from  to  importer  extra  domain */
	{"MatMulIntegerToFloat", 1, 0, import_matmul_integer_to_float, {0}, MICROSOFT,
	 .facts = {.weights = INPUT(6),
	           .codes = {{1, 3, 5, ALONG_COLUMNS},
	                     {NO_INPUT, 2, 4, ALONG_ROWS}}}},
	{"DynamicQuantizeMatMul", 1, 0, import_dynamic_quantize_matmul, {0}, MICROSOFT,
	 .facts = {.weights = INPUT(4), .codes = {{1, 2, 3, ALONG_COLUMNS}}}},
	{"QGemm", 1, 0, import_qgemm, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_ROWS},
	                     {3, 4, 5, ALONG_CHANNELS},
	                     {NO_INPUT, 7, 8, ALONG_ROWS}}}},
	{"QLinearAdd", 1, 0, import_qlinear_add, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_FIRST},
	                     {NO_INPUT, 4, 5, ALONG_FIRST},
	                     {NO_INPUT, 6, 7, ALONG_FIRST}}}},
	{"QLinearMul", 1, 0, import_qlinear_mul, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_FIRST},
	                     {NO_INPUT, 4, 5, ALONG_FIRST},
	                     {NO_INPUT, 6, 7, ALONG_FIRST}}}},
	{"QLinearSigmoid", 1, 0, import_qlinear_sigmoid, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_FIRST},
	                     {NO_INPUT, 3, 4, ALONG_FIRST}}}},
	{"QLinearLeakyRelu", 1, 0, import_qlinear_leaky_relu, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_FIRST},
	                     {NO_INPUT, 3, 4, ALONG_FIRST}}}},
	{"QLinearConcat", 1, 0, import_qlinear_concat, {0}, MICROSOFT},
	{"QLinearSoftmax", 1, 0, import_qlinear_softmax, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_FIRST},
	                     {NO_INPUT, 3, 4, ALONG_FIRST}}}},
	{"QLinearGlobalAveragePool", 1, 0, import_qlinear_global_pool, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_FIRST},
	                     {NO_INPUT, 3, 4, ALONG_FIRST}}}},
	{0},
};
/* clang-format on */
