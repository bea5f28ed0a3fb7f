/* Imports operators on quantized tensors, such as QuantizeLinear and MatMulInteger. A tensor of
 * integer codes, with a scale and a zero point, stands for (code - zero) scale. Products of codes
 * are exact, in s32. passes/straight_through.c defines how gradients pass through codes. */
#include "frontend/operators/quantize/quantize.h"
#include "frontend/operators/nn/window.h"

#include <string.h>

/* ---- scales of elements */
/* Broadcasts a scale to the elements: one scale for all, one for each index along `axis`, or with
 * block > 0 one for each block along `axis`. */
Value *
codes_spread(OnnxNode *n, Value *v, Value *like, int axis, int64_t block)
{
	if (!v || !like)
		return NULL;
	Ints shape = shape_of(like), group = shape, counts = shape;
	bool is_single = v->type->n == 1 && !block;
	if (is_single)
		return e_broadcast_axes(n, e_reshape(n, v, (Ints){0}), shape, (Ints){0});
	for (int i = 0; i < group.n; i++) {
		bool is_axis = i == axis;
		group.at[i] = is_axis && block ? block : is_axis || block ? 1 : shape.at[i];
		group.at[i] = group.at[i] ? group.at[i] : 1;
		counts.at[i] = shape.at[i] ? (shape.at[i] - 1) / group.at[i] + 1 : 0;
	}
	if (!block)
		return e_channel(n, v, like, axis);
	if ((v->type->rank != shape.n ||
	     memcmp(v->type->dims, counts.at, sizeof(int64_t) * (size_t)shape.n))) {
		report_invalid(n,
		               "blocks of %lld along axis %d: a scale or zero point has another "
		               "shape than one element a block",
		               (long long)block, axis);
		return NULL;
	}
	if (shape.n == MAX_RANK) {
		report_unsupported(n, "blocks in a tensor of rank %d", MAX_RANK);
		return NULL;
	}
	return b_spread(n->b, v, shape, group);
}

typedef struct {
	int axis;
	int64_t block; /* 0: no blocks */
} Grouping;

static bool
want_grouping(OnnxNode *n, const Value *x, const Value *scale, const Value *zero, Grouping *out)
{
	*out = (Grouping){.block = want_int(n, "block_size", 0)};
	if (!x || !scale)
		return false;
	if (out->block < 0) {
		report_invalid(n, "block_size is %lld, needs 0 or more", (long long)out->block);
		return false;
	}
	if (zero && zero->type->n != scale->type->n) {
		report_invalid(n, "its scale is %s, its zero point %s: need one shape",
		               type_text(n, scale->type), type_text(n, zero->type));
		return false;
	}
	/* per-tensor quantization ignores the axis, which may be out of range */
	if (scale->type->n != 1 || out->block)
		out->axis = want_axis(n, want_int(n, "axis", 1), x->type->rank);
	return out->axis >= 0;
}

/* ---- floats to codes and back */
/* x and scale: floats of one type and shape. For floats of 8 and 4 bits this is a cast. */
Value *
codes_of_floats(OnnxNode *n, Value *x, Value *scale, Value *zero, DType to)
{
	Value *operands[] = {x, scale, zero};
	bool saturate = want_int(n, "saturate", 1) != 0;

	if (!x || !scale)
		return NULL;
	if (!dtype_is_float(to))
		return e_op(n, OP_quantize, zero ? 3 : 2, operands, &(QuantizeAttr){.to = to});
	Value *ratio = e_binary(n, OP_div, x, scale);
	CastAttr cast = {.to = to, .overflow = saturate ? OVERFLOW_SATURATE : OVERFLOW_SPECIAL};
	return ratio ? e_op(n, OP_cast, 1, &ratio, &cast) : NULL;
}

/* Does the standard have codes of this type, and has the zero point the same type? */
bool
codes_check(OnnxNode *n, DType t, const Value *zero)
{
	const DTypeInfo *info = &dtype_info[t];
	bool may = info->class == CLASS_FLOAT ? info->bits <= 8 && t != E8M0
	                                      : info->class != CLASS_BOOL && info->bits <= 32;

	if (!may)
		report_invalid(n, "%s cannot be the type of codes", info->name);
	else if (zero && zero->type->dtype != t)
		report_invalid(n, "codes are %s, but their zero point is %s", info->name,
		               dtype_info[zero->type->dtype].name);
	return !n->failed;
}

/* A scale: floats, or s32 converted to f64. */
static Value *
want_scale(OnnxNode *n)
{
	Value *scale = want_input(n, 1);

	if (scale && !is_float(scale) && scale->type->dtype != S32) {
		report_unsupported(n, "a scale of %s, only floats and s32 are supported",
		                   dtype_info[scale->type->dtype].name);
		return NULL;
	}
	return scale && !is_float(scale) ? e_cast(n, scale, F64) : scale;
}

static void
import_quantize(OnnxNode *n)
{
	Value *x = want_input(n, 0), *scale = want_scale(n);
	Value *zero = has_input(n, 2) ? want_input(n, 2) : NULL;
	int64_t type = want_int(n, "output_dtype", 0), precision = want_int(n, "precision", 0);
	DType to = zero ? zero->type->dtype : U8, arithmetic = scale ? scale->type->dtype : F32;
	Grouping g;

	if (n->failed || !want_grouping(n, x, scale, zero, &g) ||
	    (type && !want_dtype(n, type, &to)) ||
	    (precision && !want_dtype(n, precision, &arithmetic)) || !codes_check(n, to, zero))
		return;
	if (!dtype_is_float(arithmetic)) {
		report_invalid(n, "precision is %s, needs a float type",
		               dtype_info[arithmetic].name);
		return;
	}
	x = e_cast(n, x, arithmetic);
	scale = codes_spread(n, e_cast(n, scale, arithmetic), x, g.axis, g.block);
	if (zero && !dtype_is_float(to))
		zero = codes_spread(n, e_cast(n, zero, arithmetic), x, g.axis, g.block);
	if (!n->failed)
		set_output(n, 0, codes_of_floats(n, x, scale, zero, to));
}

static void
import_dequantize(OnnxNode *n)
{
	Value *x = want_input(n, 0), *scale = want_float_input(n, 1);
	Value *zero = has_input(n, 2) ? want_input(n, 2) : NULL;
	int64_t type = want_int(n, "output_dtype", 0);
	DType to = scale ? scale->type->dtype : F32;
	Grouping g;

	if (n->failed || !want_grouping(n, x, scale, zero, &g) ||
	    (type && !want_dtype(n, type, &to)) || !codes_check(n, x->type->dtype, zero))
		return;
	Value *y = e_cast(n, x, scale->type->dtype);
	scale = codes_spread(n, scale, y, g.axis, g.block);
	if (zero)
		y = e_binary(n, OP_sub, y,
		             codes_spread(n, e_cast(n, zero, y->type->dtype), y, g.axis, g.block));
	set_output(n, 0, e_cast(n, e_binary(n, OP_mul, y, scale), to));
}

Value *
codes_and_back(OnnxNode *n, Value *x)
{
	Value *scale, *zero;

	if (!x)
		return NULL;
	b_dynamic_range(n->b, x, ints_range(0, x->type->rank), &scale, &zero);
	scale = codes_spread(n, scale, x, 0, 0);
	zero = codes_spread(n, zero, x, 0, 0);
	Value *codes = codes_of_floats(n, x, scale, zero, U8);
	return codes ? e_binary(n, OP_mul,
	                        e_binary(n, OP_sub, e_cast(n, codes, x->type->dtype), zero), scale)
	             : NULL;
}

static void
import_dynamic_quantize(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *scale, *zero;

	if (!x)
		return;
	b_dynamic_range(n->b, x, ints_range(0, x->type->rank), &scale, &zero);
	scale = e_reshape(n, scale, (Ints){0});
	zero = e_reshape(n, zero, (Ints){0});
	Value *operands[] = {x, codes_spread(n, scale, x, 0, 0), codes_spread(n, zero, x, 0, 0)};
	set_output(n, 0, e_op(n, OP_quantize, 3, operands, &(QuantizeAttr){.to = U8}));
	set_output(n, 1, scale);
	set_output(n, 2, e_cast(n, zero, U8));
}

/* ---- products of codes */
/* The scale or zero point of a matrix: one number for all, one per row or column (`axis`, counted
 * from the last), or a tensor of the matrix's rank. */
Value *
codes_spread_matrix(OnnxNode *n, Value *v, Value *like, int axis)
{
	if (!v || !like)
		return NULL;
	if (v->type->rank > 1 && v->type->rank == like->type->rank)
		return e_broadcast(n, v, shape_of(like));
	return codes_spread(n, v, like, like->type->rank > axis ? like->type->rank - 1 - axis : 0,
	                    0);
}

/* code - zero, in s32. Small floats have no zero point and are converted to f32. */
Value *
codes_shifted(OnnxNode *n, Value *x, Value *zero)
{
	if (!x || dtype_is_float(x->type->dtype))
		return e_cast(n, x, F32);
	return zero ? e_binary(n, OP_sub, e_cast(n, x, S32), zero) : e_cast(n, x, S32);
}

/* The codes in input i, less the zero point in input z. */
Value *
codes_want_matrix(OnnxNode *n, int i, int z, int axis)
{
	Value *x = want_input(n, i), *zero = has_input(n, z) ? want_input(n, z) : NULL;

	if (n->failed || !codes_check(n, x->type->dtype, zero))
		return NULL;
	return codes_shifted(n, x,
	                     zero ? codes_spread_matrix(n, e_cast(n, zero, S32), x, axis) : NULL);
}

static void
import_matmul_integer(OnnxNode *n)
{
	Value *x = codes_want_matrix(n, 0, 2, 1), *y = codes_want_matrix(n, 1, 3, 0);

	set_output(n, 0, e_matmul(n, x, y));
}

/* Converts a sum of products with the scale `from` to codes of another scale. As in onnxruntime, the
 * factor between the scales is rounded once. */
Value *
codes_requantize(OnnxNode *n, Value *sum, Value *from, int scale_input, int zero_input)
{
	Value *to = want_float_input(n, scale_input), *zero = want_input(n, zero_input);

	if (n->failed || !sum || !from)
		return NULL;
	if (to->type->n != 1 || zero->type->n != 1) {
		report_unsupported(n, "a result with more than one scale or zero point");
		return NULL;
	}
	Value *factor = e_binary(n, OP_div, from, e_reshape(n, to, (Ints){0}));
	Value *x = e_binary(n, OP_mul, e_cast(n, sum, factor ? factor->type->dtype : F32), factor);
	DType type = zero->type->dtype;
	if (!x || !codes_check(n, type, NULL))
		return NULL;
	Value *at = dtype_is_float(type)
	                    ? NULL
	                    : codes_spread(n, e_cast(n, zero, x->type->dtype), x, 0, 0);
	return codes_of_floats(n, x, e_number(n, x, 1), at, type);
}

static void
import_qlinear_matmul(OnnxNode *n)
{
	Value *x = codes_want_matrix(n, 0, 2, 1), *y = codes_want_matrix(n, 3, 5, 0);
	Value *xs = want_float_input(n, 1), *ys = want_float_input(n, 4);
	Value *sum = e_matmul(n, x, y);

	if (n->failed || !sum)
		return;
	if (x->type->rank < 2 || y->type->rank < 2) {
		report_unsupported(n, "operands of rank %d and %d", x->type->rank, y->type->rank);
		return;
	}
	Value *from = e_binary(n, OP_mul, codes_spread_matrix(n, xs, sum, 1),
	                       codes_spread_matrix(n, ys, sum, 0));
	set_output(n, 0, codes_requantize(n, sum, from, 6, 7));
}

/* [batch, channels, spatial ..] -> [batch, spatial .., channels], or back. */
static Value *
moved_channels(OnnxNode *n, Value *x, bool to_last)
{
	int rank = x ? x->type->rank : 0;
	Ints order = ints_range(0, rank);

	for (int i = 1; i < rank; i++)
		order.at[i] = to_last ? i + 1 < rank ? i + 1 : 1 : i == 1 ? rank - 1 : i - 1;
	return x ? e_transpose(n, x, order) : NULL;
}

static Value *
convolve(OnnxNode *n, int xi, int xz, int wi, int wz)
{
	Value *x = codes_want_matrix(n, xi, xz, 1), *w = want_input(n, wi);
	Value *zero = has_input(n, wz) ? want_input(n, wz) : NULL;
	Value *x_zero = has_input(n, xz) ? want_input(n, xz) : NULL;

	if (x_zero && x_zero->type->n != 1)
		report_invalid(n, "the input has %lld zero points, need one",
		               (long long)x_zero->type->n);

	if (n->failed || !codes_check(n, w->type->dtype, zero))
		return NULL;
	if (want_int(n, "channels_last", 0))
		x = moved_channels(n, x, false);
	w = codes_shifted(n, w, zero ? codes_spread(n, e_cast(n, zero, S32), w, 0, 0) : NULL);
	return e_conv(n, x, w, wi);
}

static void
import_conv_integer(OnnxNode *n)
{
	set_output(n, 0, convolve(n, 0, 2, 1, 3));
}

static void
import_qlinear_conv(OnnxNode *n)
{
	Value *sum = convolve(n, 0, 2, 3, 5);
	Value *xs = want_float_input(n, 1), *ws = want_float_input(n, 4);

	if (sum && has_input(n, 8))
		sum = e_binary(n, OP_add, sum, e_channel(n, want_input(n, 8), sum, 1));
	if (n->failed || !sum)
		return;
	Value *from = e_binary(n, OP_mul, codes_spread(n, xs, sum, 0, 0),
	                       codes_spread(n, ws, sum, 1, 0));
	Value *y = codes_requantize(n, sum, from, 6, 7);
	set_output(n, 0, want_int(n, "channels_last", 0) ? moved_channels(n, y, true) : y);
}

/* ---- com.microsoft: weights of few bits, packed */
/* [N, K] codes from constant bytes; high_first: the first of two 4-bit codes is in the upper half. */
static Value *
packed_codes(OnnxNode *n, int input, DType type, Ints shape, bool high_first)
{
	Value *v = want_input(n, input);
	int64_t count = 1;

	if (v && v->type == type_new(n->b->m, type, shape.n, shape.at))
		return v; /* a trained weight, which is unpacked already */
	const Tensor *bytes = want_constant(n, input);
	if (!bytes)
		return NULL;
	for (int i = 0; i < shape.n; i++)
		count *= shape.at[i];
	if (bytes->type->dtype != U8 || bytes->type->n != dtype_bytes(type, count)) {
		report_invalid(
			n,
			"input %d: %lld elements of %s, need %lld bytes for %lld codes of %d bits",
			input, (long long)bytes->type->n, dtype_info[bytes->type->dtype].name,
			(long long)dtype_bytes(type, count), (long long)count,
			dtype_info[type].bits);
		return NULL;
	}
	Module *m = n->b->m;
	Type t = type_new(m, type, shape.n, shape.at);
	if (!high_first)
		return b_constant(n->b, tensor_borrow(m, t, bytes->data));
	uint8_t *turned = arena_alloc(m->arena, (size_t)bytes->type->n + 1);
	for (int64_t i = 0; i < bytes->type->n; i++) {
		uint8_t byte = ((const uint8_t *)bytes->data)[i];
		turned[i] = (uint8_t)(byte << 4 | byte >> 4);
	}
	return b_constant(n->b, tensor_borrow(m, t, turned));
}

static bool
want_packed_shape(OnnxNode *n, PackedShape *out)
{
	const char *fault = packed_shape(n->proto, n->im->arena, out);

	if (fault)
		report_invalid(n, "%s", fault);
	return !fault;
}

/* x times the weight [N,K], plus input `bias` if `bias` is not 0. */
static Value *
product_with(OnnxNode *n, Value *w, const PackedShape *s, int bias)
{
	Value *x = want_float_input(n, 0);

	if (n->failed || !w)
		return NULL;
	int r = x->type->rank;
	if (r < 1 || x->type->dims[r - 1] != s->columns) {
		report_invalid(n, "input 0 has rank %d, its last axis does not have K = %lld", r,
		               (long long)s->columns);
		return NULL;
	}
	DotAttr a = {.x_contract = {.n = 1, .at = {r - 1}}, .y_contract = {.n = 1, .at = {1}}};
	Value *y = e_dot(n, x, e_cast(n, w, x->type->dtype), &a);
	return y && bias && has_input(n, bias) ? e_binary(n, OP_add, y, want_input(n, bias)) : y;
}

/* Zero points: floats, or packed like the codes, with each row padded to a whole byte. */
static Value *
zero_points(OnnxNode *n, const PackedShape *s, DType type, DType arithmetic)
{
	Ints shape = {.n = 3, .at = {s->rows, s->blocks, 1}};
	Value *v = has_input(n, 3) ? want_input(n, 3) : NULL;
	int per_byte = 8 / dtype_info[type].bits;

	if (!has_input(n, 3))
		return e_scalar(n, arithmetic, 1 << (dtype_info[type].bits - 1));
	if (n->failed)
		return NULL;
	if (is_float(v))
		return e_cast(n, e_reshape(n, v, shape), arithmetic);
	shape.at[1] = (s->blocks + per_byte - 1) / per_byte * per_byte;
	Value *all = e_cast(n, packed_codes(n, 3, type, shape, false), arithmetic);
	return all ? e_slice_axis(n, all, 1, 0, s->blocks) : NULL;
}

/* https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#commicrosoftmatmulnbits */
static void
import_matmul_nbits(OnnxNode *n)
{
	int64_t bits = want_int(n, "bits", 4);
	DType type = bits == 2 ? U2 : bits == 4 ? U4 : U8;
	Value *scale = want_float_input(n, 2);
	PackedShape s;

	if (bits != 2 && bits != 4 && bits != 8) {
		report_unsupported(n, "bits = %lld, only 2, 4 and 8 are supported",
		                   (long long)bits);
		return;
	}
	if (has_input(n, 4)) {
		report_unsupported(n, "g_idx, an order of the rows of groups");
		return;
	}
	if (n->failed || !want_packed_shape(n, &s))
		return;
	Ints blocks = {.n = 3, .at = {s.rows, s.blocks, s.block}};
	Ints one = {.n = 3, .at = {s.rows, s.blocks, 1}};
	Ints padded = {.n = 2, .at = {s.rows, s.blocks * s.block}};
	if (scale->type->n != s.rows * s.blocks) {
		report_invalid(n, "%lld scales, need %lld", (long long)scale->type->n,
		               (long long)(s.rows * s.blocks));
		return;
	}
	Value *w = e_cast(n, packed_codes(n, 1, type, blocks, false), scale->type->dtype);
	w = e_binary(n, OP_sub, w, zero_points(n, &s, type, scale->type->dtype));
	w = e_reshape(n, e_binary(n, OP_mul, w, e_reshape(n, scale, one)), padded);
	w = w ? e_slice_axis(n, w, 1, 0, s.columns) : NULL;
	set_output(n, 0, product_with(n, w, &s, 5));
}

/* https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#commicrosoftmatmulbnb4 */
static void
import_matmul_bnb4(OnnxNode *n)
{
	int64_t kind = want_int(n, "quant_type", 1);
	Value *largest = want_float_input(n, 2);
	PackedShape s;

	if (kind != 0 && kind != 1) {
		report_invalid(n, "quant_type = %lld, need 0 (FP4) or 1 (NF4)", (long long)kind);
		return;
	}
	if (!want_int(n, "transB", 1)) {
		report_unsupported(n, "transB = 0");
		return;
	}
	if (n->failed || !want_packed_shape(n, &s))
		return;
	int64_t count = s.rows * s.columns, blocks = (count + s.block - 1) / s.block;
	Ints flat = {.n = 1, .at = {count}}, matrix = {.n = 2, .at = {s.rows, s.columns}};
	if (largest->type->n != blocks) {
		report_invalid(n, "absmax has %lld elements, need %lld",
		               (long long)largest->type->n, (long long)blocks);
		return;
	}
	Value *code = e_cast(n, packed_codes(n, 1, U4, flat, true), S32);
	double values[FOUR_BIT_CODES];
	for (int i = 0; i < FOUR_BIT_CODES; i++)
		values[i] = four_bit_values[kind ? FOUR_BIT_NF4 : FOUR_BIT_FP4][i];
	Value *table = e_vector(n, largest->type->dtype, FOUR_BIT_CODES, values);
	Value *w = code && table ? e_op(n, OP_lookup, 2, (Value *[]){table, code}, NULL) : NULL;
	Value *factor = codes_spread(n, e_flat(n, largest), w, 0, s.block);
	w = e_reshape(n, e_binary(n, OP_mul, w, factor), matrix);
	set_output(n, 0, product_with(n, w, &s, 0));
}

#define MICROSOFT "com.microsoft"
/* clang-format off */
const ImportRow import_quantize_rows[] = {
	/* name               from  to  importer  extra  domain */
	{"QuantizeLinear", 10, 0, import_quantize,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_ATTRIBUTE}}}},
	{"DequantizeLinear", 10, 0, import_dequantize,
	 .facts = {.typed_by = 1, .codes = {{0, 1, 2, ALONG_ATTRIBUTE}}}},
	{"DynamicQuantizeLinear", 11, 0, import_dynamic_quantize, .facts = {.no_gradient = true}},
	{"MatMulInteger", 10, 0, import_matmul_integer,
	 .facts = {.no_gradient = true,
	           .codes = {{0, NO_INPUT, 2, ALONG_ROWS},
	                     {1, NO_INPUT, 3, ALONG_COLUMNS}}}},
	{"QLinearMatMul", 10, 0, import_qlinear_matmul,
	 .facts = {.codes = {{0, 1, 2, ALONG_ROWS},
	                     {3, 4, 5, ALONG_COLUMNS},
	                     {NO_INPUT, 6, 7, ALONG_ROWS}}}},
	{"ConvInteger", 10, 0, import_conv_integer,
	 .facts = {.no_gradient = true, .codes = {{1, NO_INPUT, 3, ALONG_FIRST}}}},
	{"QLinearConv", 10, 0, import_qlinear_conv,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_FIRST},
	                     {3, 4, 5, ALONG_FIRST},
	                     {NO_INPUT, 6, 7, ALONG_FIRST}}}},
	{"QuantizeLinear", 1, 0, import_quantize, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_ATTRIBUTE}}}},
	{"DequantizeLinear", 1, 0, import_dequantize, {0}, MICROSOFT,
	 .facts = {.typed_by = 1, .codes = {{0, 1, 2, ALONG_ATTRIBUTE}}}},
	{"QLinearConv", 1, 0, import_qlinear_conv, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 1, 2, ALONG_FIRST},
	                     {3, 4, 5, ALONG_FIRST},
	                     {NO_INPUT, 6, 7, ALONG_FIRST}}}},
	{"MatMulNBits", 1, 0, import_matmul_nbits, {0}, MICROSOFT,
	 .facts = {.codes = {{1, 2, 3, ALONG_BLOCKS}}}},
	{"MatMulBnb4", 1, 0, import_matmul_bnb4, {0}, MICROSOFT,
	 .facts = {.codes = {{NO_INPUT, 2, NO_INPUT, ALONG_BLOCKS}}}},
	{0},
};
/* clang-format on */
