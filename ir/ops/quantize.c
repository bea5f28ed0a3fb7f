/* The ops quantize and fake_quantize, which turn numbers into codes of few bits: code =
 * clamp(round(x / scale) + zero), ties to even, clamped to the range of an integer type. This is
 * ONNX's QuantizeLinear (https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html): it divides,
 * and rounds before it adds the zero point. `division = reciprocal` multiplies by 1 / scale, as
 * the quantizers of PyTorch and torchao do. The two divisions differ in the last bit, which
 * changes the code where x / scale lies in the middle between two integers.
 *
 * The ops are elementwise: a scale of a channel, token or block is broadcast to the elements that
 * share it. Without a zero point the codes are symmetric. The way back, (code - zero) * scale,
 * needs no op of its own. */
#include "ir/ops/elementwise.h"

#include <math.h>

enum { QUANTIZE_X, QUANTIZE_SCALE, QUANTIZE_ZERO };

static const char *const division_names[] = {"exact", "reciprocal", NULL};
static const char *const clip_names[] = {"rounded", "real", NULL};

static const Field quantize_fields[] = {
	{"to", FIELD_DTYPE, offsetof(QuantizeAttr, to), NULL, false},
	{"division", FIELD_ENUM, offsetof(QuantizeAttr, division), division_names, true},
	{0}};
static const Field fake_quantize_fields[] = {
	{"to", FIELD_DTYPE, offsetof(QuantizeAttr, to), NULL, false},
	{"division", FIELD_ENUM, offsetof(QuantizeAttr, division), division_names, true},
	{"clip", FIELD_ENUM, offsetof(QuantizeAttr, clip), clip_names, true},
	{"scale_grad", FIELD_FLOAT, offsetof(QuantizeAttr, scale_grad), NULL, true},
	{0}};

typedef struct {
	double low, high;
} Range;

static Range
range_of(DType t)
{
	Range r;

	dtype_range(t, &r.low, &r.high);
	return r;
}

static bool
has_zero(const Node *n)
{
	return n->n_operands > QUANTIZE_ZERO && node_operand(n, QUANTIZE_ZERO);
}

/* x, scale and zero are floats of one type and shape. */
static void
infer_quantizer(Infer *in)
{
	const QuantizeAttr *a = in->attr;
	DTypeClass class = dtype_info[a->to].class;
	Type x = in->operand[QUANTIZE_X];

	infer_same(in, FLOATS, false);
	if (class != CLASS_SIGNED && class != CLASS_UNSIGNED)
		infer_error(in, "codes of %s are no integers", dtype_info[a->to].name);
	else if (dtype_info[a->to].bits > 32)
		infer_error(in, "codes of %s have more than 32 bits", dtype_info[a->to].name);
	in->result[0] = x;
}

/* Drops a zero point of 0. */
static Value *
simplify_quantizer(Builder *b, Node *n)
{
	Value *operands[] = {node_operand(n, QUANTIZE_X), node_operand(n, QUANTIZE_SCALE)};

	return has_zero(n) && operand_is(n, QUANTIZE_ZERO, 0)
	               ? build(b, n->op, COUNT(operands), operands, n->attr)
	               : NULL;
}

static DType
arithmetic_of(const Eval *ev)
{
	return ev->interp->real || ev->operand[QUANTIZE_X].type->dtype == F64 ? F64 : F32;
}

/* The code of element i, computed as a kernel computes it. */
static int64_t
code_of(const Eval *ev, int64_t i)
{
	const QuantizeAttr *a = ev->attr;
	const EvalTensor *at = ev->operand;
	double zero = has_zero(ev->node) ? at[QUANTIZE_ZERO].f[i] : 0;

	return dtype_quantize(a->to, arithmetic_of(ev), a->division == DIVISION_RECIPROCAL,
	                      at[QUANTIZE_X].f[i], at[QUANTIZE_SCALE].f[i], nearbyint(zero));
}

/* x / scale. safe: divides by 1 if the scale is 0; all results of a scale of 0 are 0 anyway. */
static LoopValue
ratio_in_loops(LoopBuilder *lb, const Node *n, const LoopValue *x, bool safe)
{
	const QuantizeAttr *a = n->attr;
	LoopValue scale = x[QUANTIZE_SCALE];
	LoopValue one = lb_number(lb, lb_type(lb, scale), 1),
		  none = lb_number(lb, lb_type(lb, scale), 0);

	if (safe)
		scale = lb_select(lb, lb_compare(lb, LOOP_eq, scale, none), one, scale);
	if (a->division == DIVISION_EXACT)
		return lb_binary(lb, LOOP_div, x[QUANTIZE_X], scale);
	return lb_binary(lb, LOOP_mul, x[QUANTIZE_X], lb_binary(lb, LOOP_div, one, scale));
}

static LoopValue
code_in_loops(LoopBuilder *lb, const Node *n, const LoopValue *x, bool safe)
{
	LoopValue code = lb_unary(lb, LOOP_round, ratio_in_loops(lb, n, x, safe));

	return has_zero(n)
	               ? lb_binary(lb, LOOP_add, code, lb_unary(lb, LOOP_round, x[QUANTIZE_ZERO]))
	               : code;
}

/* ---- quantize {to, division}: the codes. The code of NaN is 0. */
static void
infer_quantize(Infer *in)
{
	const QuantizeAttr *a = in->attr;

	infer_quantizer(in);
	in->result[0] = type_with_dtype(in->m, in->operand[QUANTIZE_X], a->to);
}

static void
eval_quantize(Eval *ev)
{
	for (int64_t i = 0; i < ev->result[0].type->n; i++)
		ev->result[0].i[i] = code_of(ev, i);
}

static LoopValue
scalar_quantize(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	const QuantizeAttr *a = n->attr;

	return lb_cast(lb, a->to, code_in_loops(lb, n, x, false));
}

/* A division, two roundings, a sum. The conversion to integers clamps without additional cost. */
static int64_t
quantize_flops(const Node *n)
{
	const QuantizeAttr *a = n->attr;

	return (2 + (a->division != DIVISION_EXACT) + 2 * has_zero(n)) * node_result(n, 0)->type->n;
}

static const Sample quantize_samples[] = {
	{"{to = s8}", "f64[12,5], f64[12,5] positive"},
	{"{to = s16}", "f64[12,5], f64[12,5] positive, f64[12,5] integers"},
	{"{to = u8, division = reciprocal}", "f64[7] large, f64[7] positive, f64[7] integers"},
	{"{to = s4}", "f64[3,5] eighths, f64[3,5] positive, f64[3,5] integers"},
	{"{to = u2}", "f64[] nans, f64[] positive"},
	{"{to = s32}", "f64[1,0], f64[1,0] positive"},
	{0}};
/* The columns that both rows have. */
#define QUANTIZER(op, text, result, gradient, time)                      \
	const OpRow op_##op = {.name = #op,                              \
	                       .doc = text,                              \
	                       .operands = {{"x", OPERAND_REQUIRED},     \
	                                    {"scale", OPERAND_REQUIRED}, \
	                                    {"zero", OPERAND_OPTIONAL}}, \
	                       .results = {result},                      \
	                       .fields = op##_fields,                    \
	                       .attr_size = sizeof(QuantizeAttr),        \
	                       .infer = infer_##op,                      \
	                       .eval = eval_##op,                        \
	                       .grad = gradient,                         \
	                       .fuse = FUSE_ELEMENTWISE,                 \
	                       .scalar = scalar_##op,                    \
	                       .weight = time,                           \
	                       .flops = op##_flops,                      \
	                       .precision = PRECISION_HIGH,              \
	                       .partition = ELEMENTWISE_PARTITION,       \
	                       .simplify = simplify_quantizer,           \
	                       .samples = op##_samples}
QUANTIZER(quantize, "round(x / scale) + zero, clamped to the range of an integer type", "code",
          grad_zero, 4);

/* ---- fake_quantize {to, division, clip, scale_grad}: (code - zero) * scale: x after quantize
 * and back. NaN stays. The gradient is straight-through: rounding counts as the identity. With r
 * = round(x / scale) + zero, s = scale:
 *
 *	        inside         at an end of the range
 *	dx      dy             0
 *	dscale  dy (y-x)/s     dy y/s
 *	dzero   0              -dy s
 *
 * clip = rounded: r decides whether a number is inside the range, as in PyTorch
 * (aten/src/ATen/native/quantized/FakeQuantPerTensorAffine.cpp). clip = real: x / scale + zero
 * decides, as in LSQ (Esser et al. 2019, arXiv:1902.08153, section 2.1). The ends of the range
 * are inside. scale_grad multiplies dscale and dzero; left out, it is 1. */
static void
infer_fake_quantize(Infer *in)
{
	infer_quantizer(in);
}

static void
eval_fake_quantize(Eval *ev)
{
	for (int64_t i = 0; i < ev->result[0].type->n; i++) {
		double x = ev->operand[QUANTIZE_X].f[i];
		double zero = has_zero(ev->node) ? nearbyint(ev->operand[QUANTIZE_ZERO].f[i]) : 0;
		double scale = ev->operand[QUANTIZE_SCALE].f[i];
		double code = dtype_round(arithmetic_of(ev), (double)code_of(ev, i));
		if (scale == 0) /* all numbers become 0 */
			code = zero;
		ev->result[0].f[i] = isnan(x) ? x : (code - zero) * scale;
	}
}

static LoopValue
scalar_fake_quantize(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	const QuantizeAttr *a = n->attr;
	Range r = range_of(a->to);
	LoopValue code = code_in_loops(lb, n, x, true);
	DType t = lb_type(lb, code);

	code = lb_binary(lb, LOOP_max, code, lb_number(lb, t, r.low));
	code = lb_binary(lb, LOOP_min, code, lb_number(lb, t, r.high));
	if (has_zero(n))
		code = lb_binary(lb, LOOP_sub, code, lb_unary(lb, LOOP_round, x[QUANTIZE_ZERO]));
	return lb_binary(lb, LOOP_mul, code, x[QUANTIZE_SCALE]);
}

/* Multiplies a slope by scale_grad. */
static Value *
scaled(Grad *g, Value *slope)
{
	const QuantizeAttr *a = g->node->attr;

	return a->scale_grad != 0 ? mul(g, slope, number(g, X, a->scale_grad)) : slope;
}

static void
grad_fake_quantize(Grad *g)
{
	const QuantizeAttr *a = g->node->attr;
	Range r = range_of(a->to);
	Value *scale = node_operand(g->node, QUANTIZE_SCALE), *none = number(g, X, 0);
	Value *at = a->division == DIVISION_EXACT ? divide(g, X, scale)
	                                          : mul(g, X, divide(g, number(g, X, 1), scale));

	if (a->clip == CLIP_ROUNDED)
		at = b_unary(B, OP_round, at);
	if (has_zero(g->node))
		at = add(g, at, b_unary(B, OP_round, node_operand(g->node, QUANTIZE_ZERO)));
	Value *inside = b_binary(B, OP_and, b_binary(B, OP_ge, at, number(g, X, r.low)),
	                         b_binary(B, OP_le, at, number(g, X, r.high)));
	if (g->needs[QUANTIZE_X])
		grad_add(g, QUANTIZE_X, b_select(B, inside, DY, none));
	if (g->needs[QUANTIZE_SCALE])
		grad_add(g, QUANTIZE_SCALE,
		         mul(g, DY,
		             scaled(g, divide(g, sub(g, Y, b_select(B, inside, X, none)), scale))));
	if (has_zero(g->node) && g->needs[QUANTIZE_ZERO])
		grad_add(g, QUANTIZE_ZERO,
		         b_select(B, inside, none, neg(g, mul(g, DY, scaled(g, scale)))));
}

/* As quantize, plus a product, two bounds and, with a zero point, a difference. */
static int64_t
fake_quantize_flops(const Node *n)
{
	return quantize_flops(n) + (3 + has_zero(n)) * node_result(n, 0)->type->n;
}

/* Finite differences only see the gradient outside of the range. tests/unit/base/quantize_test.c
 * tests the other gradients. */
static const Sample fake_quantize_samples[] = {
	{"{to = u2}", "f64[12,5] large, f64[12,5] positive"},
	{"{to = s2, division = reciprocal, clip = real, scale_grad = 1}",
         "f64[7] large, f64[7] positive"},
	{"{to = s8}", "f64[12,5] fixed, f64[12,5] ties_nonzero, f64[12,5] ties"},
	{"{to = u4, division = reciprocal, clip = real}",
         "f64[7] fixed, f64[7] ties_nonzero, f64[7] ties"},
	{"{to = s4, scale_grad = 0.25}", "f64[5] fixed, f64[5] ties_nonzero"},
	{"{to = s4}", "f64[] fixed, f64[] ties_nonzero"},
	{"{to = s8}", "f64[60] ties, f64[60] ties"}, /* 0 divided by a scale of 0 */
	{"{to = s2}", "f64[1,0] large, f64[1,0] positive"},
	{0}};
QUANTIZER(fake_quantize, "x after quantize and back; the gradient treats rounding as the identity",
          "y", grad_fake_quantize, 6);
