/* Elementwise ops: exponentials, logarithms, roots, powers, tanh, erf, GELU and similar
 * functions. */
#include "ir/ops/elementwise.h"

#include <math.h>

/* clang-format off */
FLOAT1(rsqrt, 1 / sqrt(x))
FLOAT1(sigmoid, x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)))

DIRECT(exp) DIRECT(expm1) DIRECT(log) DIRECT(log1p) DIRECT(sqrt) DIRECT(sin) DIRECT(cos)
DIRECT(atan) DIRECT(tanh) DIRECT(erf) DIRECT(pow)

/* d exp = y */
static void grad_exp(Grad *g) { grad_add(g, 0, mul(g, DY, Y)); }
static void grad_expm1(Grad *g) { grad_add(g, 0, mul(g, DY, add(g, Y, number(g, Y, 1)))); }
static void grad_log(Grad *g) { grad_add(g, 0, divide(g, DY, X)); }
static void grad_log1p(Grad *g) { grad_add(g, 0, divide(g, DY, add(g, X, number(g, X, 1)))); }
/* d sqrt = 1 / (2 y) */
static void grad_sqrt(Grad *g) { grad_add(g, 0, divide(g, DY, add(g, Y, Y))); }
static void grad_sin(Grad *g) { grad_add(g, 0, mul(g, DY, b_unary(B, OP_cos, X))); }
static void grad_cos(Grad *g) { grad_add(g, 0, neg(g, mul(g, DY, b_unary(B, OP_sin, X)))); }
/* clang-format on */

static int64_t
i_pow(int64_t x, int64_t y, bool u)
{
	int64_t r = 1;

	if (y < 0 && !u)
		return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
	for (uint64_t e = U(y); e; e >>= 1, x = (int64_t)(U(x) * U(x)))
		if (e & 1)
			r = (int64_t)(U(r) * U(x));
	return r;
}

/* d rsqrt = -y^3 / 2 */
static void
grad_rsqrt(Grad *g)
{
	Value *y3 = mul(g, mul(g, Y, Y), Y);

	grad_add(g, 0, mul(g, DY, mul(g, y3, number(g, Y, -0.5))));
}

/* d atan = 1 / (1 + x^2) */
static void
grad_atan(Grad *g)
{
	grad_add(g, 0, divide(g, DY, add(g, mul(g, X, X), number(g, X, 1))));
}

/* d tanh = 1 - y^2 */
static void
grad_tanh(Grad *g)
{
	grad_add(g, 0, mul(g, DY, sub(g, number(g, Y, 1), mul(g, Y, Y))));
}

/* d erf = 2/sqrt(pi) exp(-x^2) */
static void
grad_erf(Grad *g)
{
	Value *e = b_unary(B, OP_exp, neg(g, mul(g, X, X)));

	grad_add(g, 0, mul(g, DY, mul(g, e, number(g, X, 1.12837916709551257390))));
}

/* d sigmoid = y (1 - y) */
static void
grad_sigmoid(Grad *g)
{
	grad_add(g, 0, mul(g, DY, mul(g, Y, sub(g, number(g, Y, 1), Y))));
}

/* y = x^z: dx = dy z x^(z-1), 0 where z = 0; dz = dy y log x, 0 where x = 0 and z >= 0 (torch.pow) */
static void
grad_pow(Grad *g)
{
	Value *zero = number(g, Y, 0);

	if (g->needs[0]) {
		Value *p = b_binary(B, OP_pow, X, sub(g, Z, number(g, Z, 1)));
		Value *is0 = b_binary(B, OP_eq, Z, zero);
		grad_add(g, 0, mul(g, DY, b_select(B, is0, zero, mul(g, Z, p))));
	}
	if (g->needs[1]) {
		Value *dead = b_binary(B, OP_and, b_binary(B, OP_eq, X, zero),
		                       b_binary(B, OP_ge, Z, zero));
		Value *l = mul(g, Y, b_unary(B, OP_log, X));
		grad_add(g, 1, mul(g, DY, b_select(B, dead, zero, l)));
	}
}

static LoopValue
scalar_rsqrt(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	(void)n;
	return lb_binary(lb, LOOP_div, lb_number(lb, lb_type(lb, x[0]), 1),
	                 lb_unary(lb, LOOP_sqrt, x[0]));
}

/* 1 / (1 + exp(-x)): if exp(-x) overflows to infinity, the result is 1 / infinity = 0, which is
 * right */
static LoopValue
scalar_sigmoid(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	LoopValue one = lb_number(lb, lb_type(lb, x[0]), 1);
	LoopValue e = lb_unary(lb, LOOP_exp, lb_unary(lb, LOOP_neg, x[0]));

	(void)n;
	return lb_binary(lb, LOOP_div, one, lb_binary(lb, LOOP_add, one, e));
}

/* neg, exp, add, div */
static int64_t
sigmoid_flops(const Node *n)
{
	return 4 * node_result(n, 0)->type->n;
}

/* ---- GELU with tanh: Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2.
 * y = x/2 (1 + t), t = tanh u, u = a x (1 + b x^2) */
#define GELU_A 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_B 0.044715

static double
f_gelu(double x)
{
	return x / 2 * (1 + tanh(GELU_A * x * (1 + GELU_B * x * x)));
}

/* dy (1/2 (1 + t) + x/2 (1 - t^2) u'), u' = a (1 + 3 b x^2) */
static double
f_gelu_grad(double dy, double x)
{
	double t = tanh(GELU_A * x * (1 + GELU_B * x * x));

	return dy * ((1 + t) / 2 + x / 2 * (1 - t * t) * GELU_A * (1 + 3 * GELU_B * x * x));
}

static void
grad_gelu(Grad *g)
{
	grad_add(g, 0, b_binary(B, OP_gelu_grad, DY, X));
}

/* The second derivative of y is s u' + x/2 s (u'' - 2 t u'^2), with s = 1 - t^2 and u'' = 6 a b x. */
static Value *
gelu_curvature(Grad *g, Value *x)
{
	Value *x2 = mul(g, x, x), *one = number(g, x, 1);
	Value *u = mul(g, x,
	               add(g, number(g, x, GELU_A), mul(g, x2, number(g, x, GELU_A * GELU_B))));
	Value *u1 = add(g, number(g, x, GELU_A), mul(g, x2, number(g, x, 3 * GELU_A * GELU_B)));
	Value *u2 = mul(g, x, number(g, x, 6 * GELU_A * GELU_B));
	Value *t = b_unary(B, OP_tanh, u), *s = sub(g, one, mul(g, t, t));
	Value *bend = sub(g, u2, mul(g, mul(g, number(g, x, 2), t), mul(g, u1, u1)));

	return mul(g, s, add(g, u1, mul(g, mul(g, x, number(g, x, 0.5)), bend)));
}

static void
grad_gelu_grad(Grad *g)
{
	if (g->needs[0])
		grad_add(g, 0, b_binary(B, OP_gelu_grad, DY, Z));
	if (g->needs[1])
		grad_add(g, 1, mul(g, mul(g, DY, X), gelu_curvature(g, Z)));
}

/* c + d x^2 */
static LoopValue
lb_square(LoopBuilder *lb, LoopValue x, double c, double d)
{
	DType t = lb_type(lb, x);
	LoopValue x2 = lb_binary(lb, LOOP_mul, x, x);

	return lb_binary(lb, LOOP_add, lb_number(lb, t, c),
	                 lb_binary(lb, LOOP_mul, lb_number(lb, t, d), x2));
}

/* GELU's t = tanh u as the numbers that the result needs. */
typedef struct {
	LoopValue half; /* x/2 */
	LoopValue more; /* 1 + t */
	LoopValue bell; /* 1 - t^2 */
} GeluParts;

/* Where exp is fast, 1 + t = 2 sigmoid(2u), without the tanh's polynomial near 0. */
static GeluParts
lb_gelu(LoopBuilder *lb, LoopValue x)
{
	DType type = lb_type(lb, x);
	LoopValue u = lb_binary(lb, LOOP_mul, x, lb_square(lb, x, GELU_A, GELU_A * GELU_B));
	LoopValue one = lb_number(lb, type, 1);
	GeluParts p = {.half = lb_binary(lb, LOOP_mul, lb_number(lb, type, 0.5), x)};

	if (lb->fast && type == F32) {
		LoopValue two = lb_number(lb, type, 2);
		LoopValue e = lb_binary(lb, LOOP_mul, lb_number(lb, type, -2), u);
		e = lb_binary(lb, LOOP_add, one, lb_unary(lb, LOOP_exp, e));
		p.more = lb_binary(lb, LOOP_div, two, e);
		p.bell = lb_binary(lb, LOOP_mul, p.more, lb_binary(lb, LOOP_sub, two, p.more));
		return p;
	}
	LoopValue t = lb_unary(lb, LOOP_tanh, u);
	p.more = lb_binary(lb, LOOP_add, one, t);
	p.bell = lb_binary(lb, LOOP_sub, one, lb_binary(lb, LOOP_mul, t, t));
	return p;
}

static LoopValue
scalar_gelu(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	GeluParts p = lb_gelu(lb, x[0]);

	(void)n;
	return lb_binary(lb, LOOP_mul, p.half, p.more);
}

static LoopValue
scalar_gelu_grad(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	DType type = lb_type(lb, x[1]);
	GeluParts p = lb_gelu(lb, x[1]);
	LoopValue bend = lb_square(lb, x[1], GELU_A, 3 * GELU_A * GELU_B);
	LoopValue whole = lb_binary(lb, LOOP_mul, lb_number(lb, type, 0.5), p.more);
	LoopValue rest = lb_binary(lb, LOOP_mul, lb_binary(lb, LOOP_mul, p.half, p.bell), bend);

	(void)n;
	return lb_binary(lb, LOOP_mul, x[0], lb_binary(lb, LOOP_add, whole, rest));
}

/* per element: 1 for x^2, 2 for 1 + b x^2, 1 for x, 1 for tanh, 3 for the rest */
static int64_t
gelu_flops(const Node *n)
{
	return 8 * node_result(n, 0)->type->n;
}

/* per element: t and x/2 with x^2 once, 2 for s, 2 for u', 2 for 1/2 (1 + t), 3 for the sum, 1 for dy */
static int64_t
gelu_grad_flops(const Node *n)
{
	return 16 * node_result(n, 0)->type->n;
}

/* Powers 1, 2, 3, 0.5, -1 and -0.5. */
static Value *
simplify_pow(Builder *b, Node *n)
{
	Value *x = node_operand(n, 0);
	double e;

	if (!value_splat(node_operand(n, 1), &e) || !dtype_is_float(x->type->dtype))
		return NULL;
	if (e == 1)
		return x;
	if (e == 2)
		return b_binary(b, OP_mul, x, x);
	if (e == 3)
		return b_binary(b, OP_mul, b_binary(b, OP_mul, x, x), x);
	if (e == 0.5)
		return b_unary(b, OP_sqrt, x);
	if (e == -0.5)
		return b_unary(b, OP_rsqrt, x);
	return e == -1 ? b_binary(b, OP_div, b_splat(b, x->type, 1), x) : NULL;
}

static const Sample float_pairs[] = {
	{"", "f64[12,3], f64[12,3]"}, {"", "f64[], f64[]"}, {"", "f64[1,0], f64[1,0]"}, {0}};
static const Sample pow_samples[] = {{"", "f64[12,5] positive, f64[12,5]"},
                                     {"", "f64[5] ties, f64[5] positive"},
                                     {"", "s64[3,5], s64[3,5]"},
                                     {"", "u64[3,5], u64[3,5] in 9"},

                                     {"", "f64[7] nonzero, f64[7] ties"},
                                     {"", "f64[0,1], f64[0,1]"},
                                     {0}};

/* clang-format off */
UNARY(exp, "e^x", FLOATS, false, exp, NULL, 4,
      flops_one, PRECISION_HIGH, grad_exp, unary_samples)
UNARY(expm1, "e^x - 1", FLOATS, false, expm1, NULL, 10,
      flops_one, PRECISION_HIGH, grad_expm1, unary_samples)
UNARY(log, "natural logarithm", FLOATS, false, log, NULL, 10,
      flops_one, PRECISION_HIGH, grad_log, positive_samples)
UNARY(log1p, "log(1 + x)", FLOATS, false, log1p, NULL, 10,
      flops_one, PRECISION_HIGH, grad_log1p, positive_samples)
UNARY(sqrt, "square root", FLOATS, false, sqrt, NULL, 2,
      flops_one, PRECISION_FOLLOW, grad_sqrt, positive_samples)
UNARY(rsqrt, "1 / sqrt(x)", FLOATS, false, f_rsqrt, NULL, 2,
      flops_two, PRECISION_HIGH, grad_rsqrt, positive_samples)
UNARY(sin, "sine, x in radians", FLOATS, false, sin, NULL, 10,
      flops_one, PRECISION_FOLLOW, grad_sin, unary_samples)
UNARY(cos, "cosine, x in radians", FLOATS, false, cos, NULL, 10,
      flops_one, PRECISION_FOLLOW, grad_cos, unary_samples)
UNARY(atan, "arctangent", FLOATS, false, atan, NULL, 10,
      flops_one, PRECISION_FOLLOW, grad_atan, unary_samples)
UNARY(tanh, "hyperbolic tangent", FLOATS, false, tanh, NULL, 10,
      flops_one, PRECISION_FOLLOW, grad_tanh, unary_samples, .smooth = true)
UNARY(erf, "error function", FLOATS, false, erf, NULL, 10,
      flops_one, PRECISION_FOLLOW, grad_erf, unary_samples)
UNARY(sigmoid, "1 / (1 + e^-x)", FLOATS, false, f_sigmoid, NULL, 6,
      sigmoid_flops, PRECISION_FOLLOW, grad_sigmoid, unary_samples)
UNARY(gelu, "x/2 (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x^2))), GELU with tanh", FLOATS, false, f_gelu, NULL, 18,
      gelu_flops, PRECISION_FOLLOW, grad_gelu, unary_samples, .joins = JOINS_GELU)
BINARY(gelu_grad, "x times the derivative of `gelu` at y", FLOATS, false, f_gelu_grad, NULL, 24,
       gelu_grad_flops, PRECISION_FOLLOW, grad_gelu_grad, float_pairs, .joins = JOINS_GELU_GRAD)
BINARY(pow, "x to the power y", NUMBERS, false, pow, i_pow, 20,
       flops_one, PRECISION_HIGH, grad_pow, pow_samples, .simplify = simplify_pow)
/* clang-format on */
