/* Elementwise ops for arithmetic, signs and rounding: add, div, abs, floor and so on. */
#include "ir/ops/elementwise.h"

#include <math.h>

/* clang-format off */
FLOAT1(neg, -x)
INT1(neg, 0 - U(x))
INT1(abs, x < 0 && !u ? 0 - U(x) : U(x))
FLOAT1(sign, isnan(x) ? x : (x > 0) - (x < 0))
INT1(sign, u ? x != 0 : (x > 0) - (x < 0))
FLOAT2(add, x + y)
FLOAT2(sub, x - y)
FLOAT2(mul, x * y)
FLOAT2(div, x / y)
FLOAT2(max, isnan(x) || x > y ? x : isnan(y) || y > x ? y : x)
FLOAT2(min, isnan(x) || x < y ? x : isnan(y) || y < x ? y : x)
INT2(add, U(x) + U(y))
INT2(sub, U(x) - U(y))
INT2(mul, U(x) * U(y))
INT2(max, int_less(x, y, u) ? y : x)
INT2(min, int_less(y, x, u) ? y : x)
/* Integer division by zero gives 0, and the one division that overflows, the least number by -1,
 * wraps around, so evaluation never traps. */
INT2(div, y == 0 ? 0 : u ? (int64_t)(U(x) / U(y)) : y == -1 ? i_neg(x, u) : x / y)
INT2(rem, y == 0 ? 0 : u ? (int64_t)(U(x) % U(y)) : y == -1 ? 0 : x % y)

DIRECT(neg) DIRECT(abs) DIRECT(floor) DIRECT(ceil) DIRECT(round)
DIRECT(add) DIRECT(sub) DIRECT(mul) DIRECT(div) DIRECT(rem) DIRECT(max) DIRECT(min)

static void grad_neg(Grad *g) { grad_add(g, 0, neg(g, DY)); }
static void grad_abs(Grad *g) { grad_add(g, 0, mul(g, DY, b_unary(B, OP_sign, X))); }
/* clang-format on */

static LoopValue
scalar_sign(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	DType t = lb_type(lb, x[0]);
	LoopValue zero = lb_number(lb, t, 0), one = lb_number(lb, t, 1);
	LoopValue low = lb_select(lb, lb_compare(lb, LOOP_lt, x[0], zero), lb_number(lb, t, -1),
	                          x[0]);

	(void)n; /* the sign of 0 is 0, and that of NaN is NaN */
	return lb_select(lb, lb_compare(lb, LOOP_gt, x[0], zero), one, low);
}

static void
grad_of_add(Grad *g)
{
	grad_add(g, 0, DY);
	grad_add(g, 1, DY);
}

static void
grad_sub(Grad *g)
{
	grad_add(g, 0, DY);
	if (g->needs[1])
		grad_add(g, 1, neg(g, DY));
}

static void
grad_mul(Grad *g)
{
	if (g->needs[0])
		grad_add(g, 0, mul(g, DY, Z));
	if (g->needs[1])
		grad_add(g, 1, mul(g, DY, X));
}

/* y = x/z: dx = dy/z, dz = -dy y/z */
static void
grad_div(Grad *g)
{
	Value *dx = divide(g, DY, Z);

	grad_add(g, 0, dx);
	if (g->needs[1])
		grad_add(g, 1, neg(g, mul(g, dx, Y)));
}

/* y = x - z trunc(x/z): dx = dy, dz = -dy (x - y)/z */
static void
grad_rem(Grad *g)
{
	grad_add(g, 0, DY);
	if (g->needs[1])
		grad_add(g, 1, neg(g, mul(g, DY, divide(g, sub(g, X, Y), Z))));
}

/* The larger operand takes dy; equal operands take half of it each (torch.maximum). */
static void
grad_extremum(Grad *g, OpKind wins)
{
	Value *half = mul(g, DY, number(g, DY, 0.5)), *zero = number(g, DY, 0);
	Value *tie = b_binary(B, OP_eq, X, Z);

	for (int i = 0; i < 2; i++) {
		Value *a = i ? Z : X, *b = i ? X : Z;
		if (g->needs[i])
			grad_add(g, i,
			         b_select(B, tie, half,
			                  b_select(B, b_binary(B, wins, a, b), DY, zero)));
	}
}

static void
grad_max(Grad *g)
{
	grad_extremum(g, OP_gt);
}

static void
grad_min(Grad *g)
{
	grad_extremum(g, OP_lt);
}

static Value *
simplify_add(Builder *b, Node *n)
{
	if (operand_is(n, 1, 0))
		return node_operand(n, 0);
	if (operand_is(n, 0, 0))
		return node_operand(n, 1);
	Value *joined = join_pads(b, node_operand(n, 0), node_operand(n, 1));
	return joined ? joined : add_to_scatter(b, n);
}

static Value *
simplify_sub(Builder *b, Node *n)
{
	(void)b;
	return operand_is(n, 1, 0) ? node_operand(n, 0) : NULL;
}

static Value *
simplify_mul(Builder *b, Node *n)
{
	for (int i = 0; i < 2; i++) {
		if (operand_is(n, i, 1))
			return node_operand(n, !i);
		if (operand_is(n, i, -1))
			return b_unary(b, OP_neg, node_operand(n, !i));
	}
	return NULL;
}

static Value *
simplify_div(Builder *b, Node *n)
{
	(void)b;
	return operand_is(n, 1, 1) ? node_operand(n, 0) : NULL;
}

/* Samples may have equal operands: there the test's finite difference for one operand is half of
 * dy, like its gradient. */
static const Sample extremum_samples[] = {{"", "f64[12,5], f64[12,5]"},
                                          {"", "f64[5,3] integers, f64[5,3] integers"},
                                          {"", "f64[5] nans, f64[5]"},
                                          {"", "s64[3,5], s64[3,5]"},
                                          {"", "u64[3,5], u64[3,5]"},

                                          {"", "f64[5], f64[5] nans"},

                                          {"", "f64[], f64[]"},
                                          {"", "f64[1,0], f64[1,0]"},
                                          {0}};

/* clang-format off */
UNARY(neg, "-x", NUMBERS, false, f_neg, i_neg, 1,
      flops_one, PRECISION_FOLLOW, grad_neg, unary_samples, .simplify = simplify_involution,
      .as_floats = OPERAND(0), .leaves_range = true, .smooth = true)
UNARY(abs, "|x|; gradient 0 at 0", NUMBERS, false, fabs, i_abs, 1,
      flops_one, PRECISION_FOLLOW, grad_abs, unary_samples)
UNARY(sign, "-1, 0 or 1; NaN stays", NUMBERS, false, f_sign, i_sign, 1,
      flops_none, PRECISION_FOLLOW, grad_zero, unary_samples)
UNARY(floor, "largest integer <= x", FLOATS, false, floor, NULL, 1,
      flops_one, PRECISION_FOLLOW, grad_zero, unary_samples)
UNARY(ceil, "smallest integer >= x", FLOATS, false, ceil, NULL, 1,
      flops_one, PRECISION_FOLLOW, grad_zero, unary_samples)
UNARY(round, "nearest integer, halves to even", FLOATS, false, nearbyint, NULL, 1,
      flops_one, PRECISION_FOLLOW, grad_zero, unary_samples)
BINARY(add, "x + y; integers wrap", NUMBERS, false, f_add, i_add, 1,
       flops_one, PRECISION_HIGH, grad_of_add, binary_samples, .simplify = simplify_add,
       .commutative = true, .joins = JOINS_SUM,
       .as_floats = OPERAND(0) | OPERAND(1), .leaves_range = true, .smooth = true)
BINARY(sub, "x - y", NUMBERS, false, f_sub, i_sub, 1,
       flops_one, PRECISION_HIGH, grad_sub, binary_samples, .simplify = simplify_sub,
       .as_floats = OPERAND(0) | OPERAND(1), .leaves_range = true, .smooth = true)
BINARY(mul, "x * y", NUMBERS, false, f_mul, i_mul, 1,
       flops_one, PRECISION_FOLLOW, grad_mul, binary_samples, .simplify = simplify_mul,
       .commutative = true,
       .as_floats = OPERAND(0) | OPERAND(1), .leaves_range = true, .smooth = true)
BINARY(div, "x / y; integer quotients are truncated, and division by zero gives 0", NUMBERS, false, f_div, i_div, 2,
       flops_one, PRECISION_FOLLOW, grad_div, binary_samples, .simplify = simplify_div,
       .smooth = true)
BINARY(rem, "x - y * trunc(x / y), as C's fmod and %", NUMBERS, false, fmod, i_rem, 10,
       flops_one, PRECISION_FOLLOW, grad_rem, binary_samples)
/* not commutative: of 0 and -0, the first operand is the result */
BINARY(max, "the larger operand; NaN wins; equal operands share the gradient", NUMBERS, false, f_max, i_max, 1,
       flops_one, PRECISION_FOLLOW, grad_max, extremum_samples,
       .as_floats = OPERAND(0) | OPERAND(1))
BINARY(min, "the smaller operand; NaN wins; equal operands share the gradient", NUMBERS, false, f_min, i_min, 1,
       flops_one, PRECISION_FOLLOW, grad_min, extremum_samples,
       .as_floats = OPERAND(0) | OPERAND(1))
/* clang-format on */
