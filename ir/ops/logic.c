/* Elementwise ops: comparisons, logic, operations on bits, and select (a choice by a bool). */
#include "ir/ops/elementwise.h"

#include <math.h>

/* clang-format off */
INT1(not, !x)
FLOAT1(is_nan, isnan(x))
INT2(and, x & y)
INT2(or, x | y)
INT2(xor, x ^ y)
FLOAT2(eq, x == y)
FLOAT2(ne, x != y)
FLOAT2(lt, x < y)
FLOAT2(le, x <= y)
FLOAT2(gt, x > y)
FLOAT2(ge, x >= y)
INT2(eq, x == y)
INT2(ne, x != y)
INT2(lt, int_less(x, y, u))
INT2(le, !int_less(y, x, u))
INT2(gt, int_less(y, x, u))
INT2(ge, !int_less(x, y, u))

DIRECT(not) DIRECT(is_nan) DIRECT(and) DIRECT(or) DIRECT(xor) DIRECT(select)
DIRECT(eq) DIRECT(ne) DIRECT(lt) DIRECT(le) DIRECT(gt) DIRECT(ge)
	/* clang-format on */

	/* Simplifies `and` and `or` with a constant bool operand. If the constant is `keeps`, the
	 * result is the other operand; otherwise the result is the constant. NULL: no operand is
	 * constant. */
	static Value *simplify_with(Node *n, bool keeps)
{
	for (int i = 0; i < 2 && node_result(n, 0)->type->dtype == BOOL; i++) {
		if (operand_is(n, i, keeps))
			return node_operand(n, !i);
		if (operand_is(n, i, !keeps))
			return node_operand(n, i);
	}
	return NULL;
}

static Value *
simplify_and(Builder *b, Node *n)
{
	(void)b;
	return simplify_with(n, true);
}

static Value *
simplify_or(Builder *b, Node *n)
{
	(void)b;
	return simplify_with(n, false);
}

static const Sample bool_samples[] = {{"", "bool[12,5]"}, {"", "bool[]"}, {"", "bool[1,0]"}, {0}};
static const Sample bools_samples[] = {
	{"", "bool[12,5], bool[12,5]"}, {"", "s64[4], s64[4]"}, {"", "u8[1,0], u8[1,0]"}, {0}};

/* clang-format off */
UNARY(not, "logical negation", BOOLS, true, NULL, i_not, 1,
      flops_none, PRECISION_FIXED, grad_zero, bool_samples, .simplify = simplify_involution)
UNARY(is_nan, "x is NaN", FLOATS, true, f_is_nan, NULL, 1,
      flops_none, PRECISION_FOLLOW, grad_zero, unary_samples)
BINARY(and, "x and y, bitwise on integers", INTS | BOOLS, false, NULL, i_and, 1,
       flops_none, PRECISION_FIXED, grad_zero, bools_samples, .simplify = simplify_and,
       .commutative = true)
BINARY(or, "x or y, bitwise on integers", INTS | BOOLS, false, NULL, i_or, 1,
       flops_none, PRECISION_FIXED, grad_zero, bools_samples, .simplify = simplify_or,
       .commutative = true)
BINARY(xor, "x exclusive-or y", INTS | BOOLS, false, NULL, i_xor, 1,
       flops_none, PRECISION_FIXED, grad_zero, bools_samples, .commutative = true)
BINARY(eq, "x = y", ANY, true, f_eq, i_eq, 1,
       flops_none, PRECISION_FOLLOW, grad_zero, binary_samples, .commutative = true)
BINARY(ne, "x != y", ANY, true, f_ne, i_ne, 1,
       flops_none, PRECISION_FOLLOW, grad_zero, binary_samples, .commutative = true)
BINARY(lt, "x < y", NUMBERS, true, f_lt, i_lt, 1,
       flops_none, PRECISION_FOLLOW, grad_zero, binary_samples)
BINARY(le, "x <= y", NUMBERS, true, f_le, i_le, 1,
       flops_none, PRECISION_FOLLOW, grad_zero, binary_samples)
BINARY(gt, "x > y", NUMBERS, true, f_gt, i_gt, 1,
       flops_none, PRECISION_FOLLOW, grad_zero, binary_samples)
BINARY(ge, "x >= y", NUMBERS, true, f_ge, i_ge, 1,
       flops_none, PRECISION_FOLLOW, grad_zero, binary_samples)
/* clang-format on */

/* ---- select (c, x, y): x where c is true, else y */
static void
infer_select(Infer *in)
{
	Type c = in->operand[0], x = in->operand[1];

	if (c->dtype != BOOL || !type_same_shape(c, x) || in->operand[2] != x)
		infer_error(in, "needs bool[...], T[...], T[...] of one shape");
	in->result[0] = x;
}

static void
eval_select(Eval *ev)
{
	for (int64_t i = 0; i < ev->result[0].type->n; i++)
		eval_move(&ev->result[0], i, &ev->operand[ev->operand[0].i[i] ? 1 : 2], i);
}

static void
grad_select(Grad *g)
{
	Value *zero = number(g, DY, 0);

	if (g->needs[1])
		grad_add(g, 1, b_select(B, X, DY, zero));
	if (g->needs[2])
		grad_add(g, 2, b_select(B, X, zero, DY));
}

static Value *
simplify_select(Builder *b, Node *n)
{
	double c;

	(void)b;
	if (value_splat(node_operand(n, 0), &c))
		return node_operand(n, c != 0 ? 1 : 2);
	return node_operand(n, 1) == node_operand(n, 2) ? node_operand(n, 1) : NULL;
}

static const Sample select_samples[] = {{"", "bool[12,5], f64[12,5], f64[12,5]"},
                                        {"", "bool[], f64[], f64[]"},
                                        {"", "bool[0,1], f64[0,1], f64[0,1]"},
                                        {0}};
const OpRow op_select = {
	.name = "select",
	.doc = "x where c is true, else y",
	.operands = {{"c", OPERAND_REQUIRED}, {"x", OPERAND_REQUIRED}, {"y", OPERAND_REQUIRED}},
	.results = {"z"},
	.infer = infer_select,
	.eval = eval_select,
	.grad = grad_select,
	.fuse = FUSE_ELEMENTWISE,
	.scalar = scalar_select,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = OPERAND(1) | OPERAND(2),
	.partition = ELEMENTWISE_PARTITION,
	.simplify = simplify_select,
	.samples = select_samples};
