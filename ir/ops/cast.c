/* Conversion between dtypes, and the value that no gradient passes. */
#include "ir/ops/elementwise.h"

#include <math.h>

/* ---- cast {to} */
static const Field cast_fields[] = {{"to", FIELD_DTYPE, offsetof(CastAttr, to), NULL, false}, {0}};

static void
infer_cast(Infer *in)
{
	in->result[0] = type_with_dtype(in->m, in->operand[0], ((const CastAttr *)in->attr)->to);
}

static void
eval_cast(Eval *ev)
{
	const EvalTensor *x = &ev->operand[0];
	EvalTensor *y = &ev->result[0];
	DType from = x->type->dtype, to = y->type->dtype;
	DType wide_from = dtype_is_float(from) ? F64 : from == U64 ? U64 : S64;
	DType wide_to = dtype_is_float(to) ? F64 : to == U64 ? U64 : S64;

	if (to == BOOL) {
		for (int64_t i = 0; i < x->type->n; i++)
			y->i[i] = wide_from == F64 ? x->f[i] != 0 : x->i[i] != 0;
	} else if (dtype_is_float(from) && !dtype_is_float(to)) {
		/* saturates at the target's range, not at s64's */
		char *narrow = arena_alloc(ev->arena, (size_t)dtype_bytes(to, x->type->n));
		dtype_convert(to, narrow, F64, x->f, x->type->n);
		for (int64_t i = 0; i < x->type->n; i++)
			y->i[i] = dtype_load_int(to, narrow, i);
	} else {
		dtype_convert(wide_to, y->at, wide_from, x->at, x->type->n);
	}
}

static void
grad_cast(Grad *g)
{
	if (dtype_is_float(X->type->dtype) && dtype_is_float(Y->type->dtype))
		grad_add(g, 0, b_cast(B, DY, X->type->dtype));
}

static LoopValue
scalar_cast(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	return lb_cast(lb, node_result(n, 0)->type->dtype, x[0]);
}

static Value *
simplify_cast(Builder *b, Node *n)
{
	Value *x = node_operand(n, 0);

	(void)b;
	return x->type == node_result(n, 0)->type ? x : NULL;
}

static const Sample cast_samples[] = {
	{"{to = f32}", "f64[12] eighths"}, {"{to = s64}", "f64[3]"},
	{"{to = bool}", "f64[2,2]"},       {"{to = f64}", "s64[3]"},
	{"{to = f64}", "bool[3]"},         {"{to = u8}", "f64[5] large"},
	{"{to = s8}", "f64[5] large"},

	{"{to = f32}", "f64[1,0]"},        {0}};

const OpRow op_cast = {.name = "cast",
                       .doc = "conversion; to integers truncates and saturates, to bool is x != 0",
                       .operands = {{"x", OPERAND_REQUIRED}},
                       .results = {"y"},
                       .fields = cast_fields,
                       .attr_size = sizeof(CastAttr),
                       .infer = infer_cast,
                       .eval = eval_cast,
                       .grad = grad_cast,
                       .fuse = FUSE_ELEMENTWISE,
                       .scalar = scalar_cast,
                       .flops = flops_none,
                       .precision = PRECISION_FIXED,
                       .partition = ELEMENTWISE_PARTITION,
                       .simplify = simplify_cast,
                       .samples = cast_samples};

/* ---- stop_gradient, copy: x itself */
/* clang-format off */
FLOAT1(same, x)
INT1(same, x)
/* clang-format on */

#define SAME(name)                                                                         \
	static LoopValue scalar_##name(LoopBuilder *lb, const Node *n, const LoopValue *x) \
	{                                                                                  \
		(void)lb, (void)n;                                                         \
		return x[0];                                                               \
	}
SAME(stop_gradient)
SAME(copy)

static void
grad_copy(Grad *g)
{
	grad_add(g, 0, DY);
}

static const Sample fixed_samples[] = {
	{"", "f64[12,5] fixed"}, {"", "f64[1,0]"}, {0}}; /* no differences */
/* clang-format off */
UNARY(stop_gradient, "x, through which no gradient flows", ANY, false, f_same, i_same, 1,
      flops_none, PRECISION_FOLLOW, grad_zero, fixed_samples)
UNARY(copy, "x, in memory of its own", ANY, false, f_same, i_same, 1,
      flops_none, PRECISION_FOLLOW, grad_copy, unary_samples)
/* clang-format on */
