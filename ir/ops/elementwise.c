/* Elementwise ops: result element i from operand elements i. All operands but the condition of
 * `select` have one type; comparisons give bool. */
#include "ir/ops/family.h"

#include <math.h>

enum { FLOATS = 1, INTS = 2, BOOLS = 4, NUMBERS = FLOATS | INTS, ANY = 7 };

static bool
class_allowed(DType t, int allowed)
{
	DTypeClass c = dtype_info[t].class;

	return allowed & (c == CLASS_FLOAT ? FLOATS : c == CLASS_BOOL ? BOOLS : INTS);
}

/* x: T[...], y: T[...]  ->  T[...], or bool[...] for comparisons */
static void
infer_same(Infer *in, int allowed, bool to_bool)
{
	Type x = in->operand[0];

	for (int i = 0; i < in->n_operands; i++)
		if (in->operand[i] != x)
			infer_error(in, "operands have different types");
	if (!class_allowed(x->dtype, allowed))
		infer_error(in, "not defined for %s", dtype_info[x->dtype].name);
	in->result[0] = to_bool ? type_with_dtype(in->m, x, BOOL) : x;
}

typedef double (*Float1)(double);
typedef int64_t (*Int1)(int64_t);
typedef double (*Float2)(double, double);
typedef int64_t (*Int2)(int64_t, int64_t, bool is_u64);

static void
eval_unary(Eval *ev, Float1 f, Int1 g)
{
	const EvalTensor *x = &ev->operand[0];
	EvalTensor *y = &ev->result[0];

	for (int64_t i = 0; i < x->type->n; i++) {
		if (!dtype_is_float(x->type->dtype))
			y->i[i] = g(x->i[i]);
		else if (dtype_is_float(y->type->dtype))
			y->f[i] = f(x->f[i]);
		else
			y->i[i] = f(x->f[i]) != 0;
	}
}

static void
eval_binary(Eval *ev, Float2 f, Int2 g)
{
	const EvalTensor *x = &ev->operand[0], *z = &ev->operand[1];
	EvalTensor *y = &ev->result[0];
	bool is_u64 = x->type->dtype == U64;

	for (int64_t i = 0; i < x->type->n; i++) {
		if (!dtype_is_float(x->type->dtype))
			y->i[i] = g(x->i[i], z->i[i], is_u64);
		else if (dtype_is_float(y->type->dtype))
			y->f[i] = f(x->f[i], z->f[i]);
		else
			y->i[i] = f(x->f[i], z->f[i]) != 0;
	}
}

/* ---- scalars on the two number classes */
/* clang-format off: tables of one-line functions and rows */
#define U(x) ((uint64_t)(x))
static double
f_neg(double x)
{
	return -x;
}
static int64_t
i_neg(int64_t x)
{
	return (int64_t)(0 - U(x));
}
static int64_t
i_abs(int64_t x)
{
	return x < 0 ? i_neg(x) : x;
}
static double
f_sign(double x)
{
	return isnan(x) ? x : (x > 0) - (x < 0);
}
static int64_t
i_sign(int64_t x)
{
	return (x > 0) - (x < 0);
}
static double
f_rsqrt(double x)
{
	return 1 / sqrt(x);
}
static double
f_sigmoid(double x)
{
	return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
static int64_t
i_not(int64_t x)
{
	return !x;
}
static double
f_is_nan(double x)
{
	return isnan(x);
}
static double
f_same(double x)
{
	return x;
}
static int64_t
i_same(int64_t x)
{
	return x;
}
static double
f_add(double x, double y)
{
	return x + y;
}
static double
f_sub(double x, double y)
{
	return x - y;
}
static double
f_mul(double x, double y)
{
	return x * y;
}
static double
f_div(double x, double y)
{
	return x / y;
}
static double
f_max(double x, double y)
{
	return isnan(x) || x > y ? x : isnan(y) || y > x ? y : x;
}
static double
f_min(double x, double y)
{
	return isnan(x) || x < y ? x : isnan(y) || y < x ? y : x;
}
static int64_t
i_add(int64_t x, int64_t y, bool u)
{
	(void)u;
	return (int64_t)(U(x) + U(y));
}
static int64_t
i_sub(int64_t x, int64_t y, bool u)
{
	(void)u;
	return (int64_t)(U(x) - U(y));
}
static int64_t
i_mul(int64_t x, int64_t y, bool u)
{
	(void)u;
	return (int64_t)(U(x) * U(y));
}
/* Division by zero gives 0 and the one overflow wraps: evaluation never traps. */
static int64_t
i_div(int64_t x, int64_t y, bool u)
{
	if (y == 0)
		return 0;
	return u ? (int64_t)(U(x) / U(y)) : y == -1 ? i_neg(x) : x / y;
}
static int64_t
i_rem(int64_t x, int64_t y, bool u)
{
	if (y == 0)
		return 0;
	return u ? (int64_t)(U(x) % U(y)) : y == -1 ? 0 : x % y;
}
static int64_t
i_pow(int64_t x, int64_t y, bool u)
{
	int64_t r = 1;

	if (y < 0 && !u)
		return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
	for (uint64_t e = U(y); e; e >>= 1, x = i_mul(x, x, u))
		if (e & 1)
			r = i_mul(r, x, u);
	return r;
}
static bool
i_less(int64_t x, int64_t y, bool u)
{
	return u ? U(x) < U(y) : x < y;
}
static int64_t
i_max(int64_t x, int64_t y, bool u)
{
	return i_less(x, y, u) ? y : x;
}
static int64_t
i_min(int64_t x, int64_t y, bool u)
{
	return i_less(y, x, u) ? y : x;
}
static int64_t
i_and(int64_t x, int64_t y, bool u)
{
	(void)u;
	return x & y;
}
static int64_t
i_or(int64_t x, int64_t y, bool u)
{
	(void)u;
	return x | y;
}
static int64_t
i_xor(int64_t x, int64_t y, bool u)
{
	(void)u;
	return x ^ y;
}
static double
f_eq(double x, double y)
{
	return x == y;
}
static double
f_ne(double x, double y)
{
	return x != y;
}
static double
f_lt(double x, double y)
{
	return x < y;
}
static double
f_le(double x, double y)
{
	return x <= y;
}
static double
f_gt(double x, double y)
{
	return x > y;
}
static double
f_ge(double x, double y)
{
	return x >= y;
}
static int64_t
i_eq(int64_t x, int64_t y, bool u)
{
	(void)u;
	return x == y;
}
static int64_t
i_ne(int64_t x, int64_t y, bool u)
{
	(void)u;
	return x != y;
}
static int64_t
i_lt(int64_t x, int64_t y, bool u)
{
	return i_less(x, y, u);
}
static int64_t
i_le(int64_t x, int64_t y, bool u)
{
	return !i_less(y, x, u);
}
static int64_t
i_gt(int64_t x, int64_t y, bool u)
{
	return i_less(y, x, u);
}
static int64_t
i_ge(int64_t x, int64_t y, bool u)
{
	return !i_less(x, y, u);
}

/* clang-format on */

/* ---- gradients: dy is the cotangent of the result */
#define X node_operand(g->node, 0)
#define Z node_operand(g->node, 1)
#define Y node_result(g->node, 0)
#define DY g->dresult[0]
#define B g->b

static Value *
number(Grad *g, const Value *like, double x)
{
	return b_splat(g->b, like->type, x);
}
/* clang-format off */
static Value *add(Grad *g, Value *a, Value *b) { return b_binary(g->b, OP_add, a, b); }
static Value *sub(Grad *g, Value *a, Value *b) { return b_binary(g->b, OP_sub, a, b); }
static Value *mul(Grad *g, Value *a, Value *b) { return b_binary(g->b, OP_mul, a, b); }
static Value *divide(Grad *g, Value *a, Value *b) { return b_binary(g->b, OP_div, a, b); }
static Value *neg(Grad *g, Value *a) { return b_unary(g->b, OP_neg, a); }

static void grad_neg(Grad *g) { grad_add(g, 0, neg(g, DY)); }
static void grad_abs(Grad *g) { grad_add(g, 0, mul(g, DY, b_unary(B, OP_sign, X))); }
/* d exp = y */
static void grad_exp(Grad *g) { grad_add(g, 0, mul(g, DY, Y)); }
static void grad_expm1(Grad *g) { grad_add(g, 0, mul(g, DY, add(g, Y, number(g, Y, 1)))); }
static void grad_log(Grad *g) { grad_add(g, 0, divide(g, DY, X)); }
static void grad_log1p(Grad *g) { grad_add(g, 0, divide(g, DY, add(g, X, number(g, X, 1)))); }
/* d sqrt = 1 / (2 y) */
static void grad_sqrt(Grad *g) { grad_add(g, 0, divide(g, DY, add(g, Y, Y))); }
/* clang-format on */
/* d rsqrt = -y^3 / 2 */
static void
grad_rsqrt(Grad *g)
{
	Value *y3 = mul(g, mul(g, Y, Y), Y);

	grad_add(g, 0, mul(g, DY, mul(g, y3, number(g, Y, -0.5))));
}
static void
grad_sin(Grad *g)
{
	grad_add(g, 0, mul(g, DY, b_unary(B, OP_cos, X)));
}
static void
grad_cos(Grad *g)
{
	grad_add(g, 0, neg(g, mul(g, DY, b_unary(B, OP_sin, X))));
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
static void
grad_cast(Grad *g)
{
	if (dtype_is_float(X->type->dtype) && dtype_is_float(Y->type->dtype))
		grad_add(g, 0, b_cast(B, DY, X->type->dtype));
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
/* The larger operand takes dy, equal ones half each (torch.maximum). */
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
static void
grad_select(Grad *g)
{
	Value *zero = number(g, DY, 0);

	if (g->needs[1])
		grad_add(g, 1, b_select(B, X, DY, zero));
	if (g->needs[2])
		grad_add(g, 2, b_select(B, X, zero, DY));
}
#undef X
#undef Z
#undef Y
#undef DY
#undef B

/* ---- scalars of kernels */
/* clang-format off */
#define DIRECT(name)                                                                             \
	static LoopValue scalar_##name(LoopBuilder *lb, const Node *n, const LoopValue *x)       \
	{                                                                                        \
		(void)n;                                                                         \
		return lb_op(lb, LOOP_##name, lb_type(lb, x[0]), x);                             \
	}
#define COMPARE(name)                                                                            \
	static LoopValue scalar_##name(LoopBuilder *lb, const Node *n, const LoopValue *x)       \
	{                                                                                        \
		(void)n;                                                                         \
		return lb_compare(lb, LOOP_##name, x[0], x[1]);                                  \
	}
DIRECT(neg) DIRECT(abs) DIRECT(exp) DIRECT(expm1) DIRECT(log) DIRECT(log1p) DIRECT(sqrt)
DIRECT(sin) DIRECT(cos) DIRECT(tanh) DIRECT(erf) DIRECT(floor) DIRECT(ceil) DIRECT(round)
DIRECT(not) DIRECT(add) DIRECT(sub) DIRECT(mul) DIRECT(div) DIRECT(rem) DIRECT(pow) DIRECT(max)
DIRECT(min) DIRECT(and) DIRECT(or) DIRECT(xor)
COMPARE(eq) COMPARE(ne) COMPARE(lt) COMPARE(le) COMPARE(gt) COMPARE(ge)

	/* clang-format on */

	static LoopValue scalar_sign(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	DType t = lb_type(lb, x[0]);
	LoopValue zero = lb_number(lb, t, 0), one = lb_number(lb, t, 1);
	LoopValue low = lb_select(lb, lb_compare(lb, LOOP_lt, x[0], zero), lb_number(lb, t, -1),
	                          x[0]);

	(void)n; /* 0 and NaN stay */
	return lb_select(lb, lb_compare(lb, LOOP_gt, x[0], zero), one, low);
}
static LoopValue
scalar_rsqrt(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	(void)n;
	return lb_binary(lb, LOOP_div, lb_number(lb, lb_type(lb, x[0]), 1),
	                 lb_unary(lb, LOOP_sqrt, x[0]));
}
/* 1 / (1 + exp(-x)): exp overflows to inf, whose inverse is the right 0 */
static LoopValue
scalar_sigmoid(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	LoopValue one = lb_number(lb, lb_type(lb, x[0]), 1);
	LoopValue e = lb_unary(lb, LOOP_exp, lb_unary(lb, LOOP_neg, x[0]));

	(void)n;
	return lb_binary(lb, LOOP_div, one, lb_binary(lb, LOOP_add, one, e));
}
static LoopValue
scalar_is_nan(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	(void)n;
	return lb_op(lb, LOOP_is_nan, BOOL, x);
}
static LoopValue
scalar_stop_gradient(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	(void)lb, (void)n;
	return x[0];
}
static LoopValue
scalar_cast(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	return lb_cast(lb, node_result(n, 0)->type->dtype, x[0]);
}
static LoopValue
scalar_select(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	(void)n;
	return lb_select(lb, x[0], x[1], x[2]);
}

/* ---- algebra: identities that keep every bit but the sign of zero and NaN payloads */
static bool
operand_is(const Node *n, int i, double x)
{
	double v;

	return value_splat(node_operand(n, i), &v) && v == x;
}
static Value *
simplify_add(Builder *b, Node *n)
{
	if (operand_is(n, 1, 0))
		return node_operand(n, 0);
	return operand_is(n, 0, 0) ? node_operand(n, 1)
	                           : join_pads(b, node_operand(n, 0), node_operand(n, 1));
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
/* x^1, x^2, x^3, x^0.5, x^-1, x^-0.5 */
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
/* neg neg x, not not x */
static Value *
simplify_involution(Builder *b, Node *n)
{
	Node *inner = node_operand(n, 0)->node;

	(void)b;
	return inner && inner->op == n->op ? node_operand(inner, 0) : NULL;
}
static Value *
simplify_and(Builder *b, Node *n)
{
	(void)b;
	if (node_result(n, 0)->type->dtype != BOOL)
		return NULL;
	for (int i = 0; i < 2; i++)
		if (operand_is(n, i, 1))
			return node_operand(n, !i);
		else if (operand_is(n, i, 0))
			return node_operand(n, i);
	return NULL;
}
static Value *
simplify_or(Builder *b, Node *n)
{
	(void)b;
	if (node_result(n, 0)->type->dtype != BOOL)
		return NULL;
	for (int i = 0; i < 2; i++)
		if (operand_is(n, i, 0))
			return node_operand(n, !i);
		else if (operand_is(n, i, 1))
			return node_operand(n, i);
	return NULL;
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
static Value *
simplify_cast(Builder *b, Node *n)
{
	Value *x = node_operand(n, 0);

	(void)b;
	return x->type == node_result(n, 0)->type ? x : NULL;
}

/* ---- samples: shapes with 0, 1 and odd sizes; the word behind a type says what values */
static const Sample unary_samples[] = {
	{"", "f64[3,5]"}, {"", "f64[1]"}, {"", "f64[]"}, {"", "f64[0,4]"}, {0}};
static const Sample positive_samples[] = {
	{"", "f64[3,5] positive"}, {"", "f64[] positive"}, {"", "f64[0,1]"}, {0}};
static const Sample binary_samples[] = {{"", "f64[3,5], f64[3,5] nonzero"},
                                        {"", "f64[], f64[] nonzero"},
                                        {"", "f64[1,0], f64[1,0]"},
                                        {"", "f64[2,3] ties, f64[2,3] ties_nonzero"},
                                        {0}};
static const Sample pow_samples[] = {{"", "f64[3,5] positive, f64[3,5]"},
                                     {"", "f64[7] nonzero, f64[7] integers"},
                                     {"", "f64[0,1], f64[0,1]"},
                                     {0}};
static const Sample bool_samples[] = {{"", "bool[3,5]"}, {"", "bool[]"}, {"", "bool[1,0]"}, {0}};
static const Sample bools_samples[] = {
	{"", "bool[3,5], bool[3,5]"}, {"", "s64[4], s64[4]"}, {"", "u8[1,0], u8[1,0]"}, {0}};
static const Sample select_samples[] = {{"", "bool[3,5], f64[3,5], f64[3,5]"},
                                        {"", "bool[], f64[], f64[]"},
                                        {"", "bool[0,1], f64[0,1], f64[0,1]"},
                                        {0}};
static const Sample fixed_samples[] = {
	{"", "f64[3,5] fixed"}, {"", "f64[1,0]"}, {0}}; /* no differences */
static const Sample cast_samples[] = {{"{to = f32}", "f64[3] eighths"},
                                      {"{to = s64}", "f64[3]"},
                                      {"{to = bool}", "f64[2,2]"},
                                      {"{to = f64}", "s64[3]"},
                                      {"{to = f64}", "bool[3]"},
                                      {"{to = f32}", "f64[1,0]"},
                                      {0}};

/* ---- rows */
#define INFER(name, allowed, to_bool)             \
	static void infer_##name(Infer *in)       \
	{                                         \
		infer_same(in, allowed, to_bool); \
	}
#define UNARY(op, text, allowed, to_bool, f, i, grad_fn, simplify_fn, sample) \
	INFER(op, allowed, to_bool)                                           \
	static void eval_##op(Eval *ev)                                       \
	{                                                                     \
		eval_unary(ev, f, i);                                         \
	}                                                                     \
	const OpRow op_##op = {.name = #op,                                   \
	                       .doc = text,                                   \
	                       .operands = {{"x", OPERAND_REQUIRED}},         \
	                       .results = {"y"},                              \
	                       .infer = infer_##op,                           \
	                       .eval = eval_##op,                             \
	                       .grad = grad_fn,                               \
	                       .fuse = FUSE_ELEMENTWISE,                      \
	                       .scalar = scalar_##op,                         \
	                       .simplify = simplify_fn,                       \
	                       .weight = weight_##op,                         \
	                       .samples = sample};
#define BINARY(op, text, allowed, to_bool, f, i, grad_fn, simplify_fn, comm, sample)           \
	INFER(op, allowed, to_bool)                                                            \
	static void eval_##op(Eval *ev)                                                        \
	{                                                                                      \
		eval_binary(ev, f, i);                                                         \
	}                                                                                      \
	const OpRow op_##op = {.name = #op,                                                    \
	                       .doc = text,                                                    \
	                       .operands = {{"x", OPERAND_REQUIRED}, {"y", OPERAND_REQUIRED}}, \
	                       .results = {"z"},                                               \
	                       .infer = infer_##op,                                            \
	                       .eval = eval_##op,                                              \
	                       .grad = grad_fn,                                                \
	                       .fuse = FUSE_ELEMENTWISE,                                       \
	                       .scalar = scalar_##op,                                          \
	                       .simplify = simplify_fn,                                        \
	                       .commutative = comm,                                            \
	                       .weight = weight_##op,                                          \
	                       .samples = sample};

/* clang-format off */
/* Cost of an element in additions, measured roughly on one core with vectors of f32. */
enum {
	weight_neg = 1, weight_abs = 1, weight_sign = 1, weight_exp = 4, weight_expm1 = 10,
	weight_log = 10, weight_log1p = 10, weight_sqrt = 2, weight_rsqrt = 2, weight_sin = 10,
	weight_cos = 10, weight_tanh = 10, weight_erf = 10, weight_sigmoid = 6, weight_floor = 1,
	weight_ceil = 1, weight_round = 1, weight_not = 1, weight_is_nan = 1,
	weight_stop_gradient = 1, weight_add = 1, weight_sub = 1, weight_mul = 1, weight_div = 2,
	weight_rem = 10, weight_pow = 20, weight_max = 1, weight_min = 1, weight_and = 1,
	weight_or = 1, weight_xor = 1, weight_eq = 1, weight_ne = 1, weight_lt = 1, weight_le = 1,
	weight_gt = 1, weight_ge = 1,
};

UNARY(neg, "-x", NUMBERS, false, f_neg, i_neg, grad_neg, simplify_involution, unary_samples)
UNARY(abs, "|x|; gradient 0 at 0", NUMBERS, false, fabs, i_abs, grad_abs, NULL, unary_samples)
UNARY(sign, "-1, 0 or 1; NaN stays", NUMBERS, false, f_sign, i_sign, grad_zero, NULL, unary_samples)
UNARY(exp, "e^x", FLOATS, false, exp, NULL, grad_exp, NULL, unary_samples)
UNARY(expm1, "e^x - 1", FLOATS, false, expm1, NULL, grad_expm1, NULL, unary_samples)
UNARY(log, "natural logarithm", FLOATS, false, log, NULL, grad_log, NULL, positive_samples)
UNARY(log1p, "log(1 + x)", FLOATS, false, log1p, NULL, grad_log1p, NULL, positive_samples)
UNARY(sqrt, "square root", FLOATS, false, sqrt, NULL, grad_sqrt, NULL, positive_samples)
UNARY(rsqrt, "1 / sqrt(x)", FLOATS, false, f_rsqrt, NULL, grad_rsqrt, NULL, positive_samples)
UNARY(sin, "sine, x in radians", FLOATS, false, sin, NULL, grad_sin, NULL, unary_samples)
UNARY(cos, "cosine, x in radians", FLOATS, false, cos, NULL, grad_cos, NULL, unary_samples)
UNARY(tanh, "hyperbolic tangent", FLOATS, false, tanh, NULL, grad_tanh, NULL, unary_samples)
UNARY(erf, "error function", FLOATS, false, erf, NULL, grad_erf, NULL, unary_samples)
UNARY(sigmoid, "1 / (1 + e^-x)", FLOATS, false, f_sigmoid, NULL, grad_sigmoid, NULL, unary_samples)
UNARY(floor, "largest integer <= x", FLOATS, false, floor, NULL, grad_zero, NULL, unary_samples)
UNARY(ceil, "smallest integer >= x", FLOATS, false, ceil, NULL, grad_zero, NULL, unary_samples)
UNARY(round, "nearest integer, halves to even", FLOATS, false, nearbyint, NULL, grad_zero, NULL,
      unary_samples)
UNARY(not, "logical negation", BOOLS, true, NULL, i_not, grad_zero, simplify_involution, bool_samples)
UNARY(is_nan, "x is NaN", FLOATS, true, f_is_nan, NULL, grad_zero, NULL, unary_samples)
UNARY(stop_gradient, "x, through which no gradient flows", ANY, false, f_same, i_same, grad_zero,
      NULL, fixed_samples)
BINARY(add, "x + y; integers wrap", NUMBERS, false, f_add, i_add, grad_of_add, simplify_add, true,
       binary_samples)
BINARY(sub, "x - y", NUMBERS, false, f_sub, i_sub, grad_sub, simplify_sub, false, binary_samples)
BINARY(mul, "x * y", NUMBERS, false, f_mul, i_mul, grad_mul, simplify_mul, true, binary_samples)
BINARY(div, "x / y; integers truncate, by zero gives 0", NUMBERS, false, f_div, i_div, grad_div,
       simplify_div, false, binary_samples)
BINARY(rem, "x - y * trunc(x / y), as C's fmod and %", NUMBERS, false, fmod, i_rem, grad_rem, NULL,
       false, binary_samples)
BINARY(pow, "x to the power y", NUMBERS, false, pow, i_pow, grad_pow, simplify_pow, false, pow_samples)
/* not commutative: of 0 and -0 the first operand wins */
BINARY(max, "the larger; NaN wins; equal ones share the gradient", NUMBERS, false, f_max, i_max,
       grad_max, NULL, false, binary_samples)
BINARY(min, "the smaller; NaN wins; equal ones share the gradient", NUMBERS, false, f_min, i_min,
       grad_min, NULL, false, binary_samples)
BINARY(and, "x and y, bitwise on integers", INTS | BOOLS, false, NULL, i_and, grad_zero, simplify_and,
       true, bools_samples)
BINARY(or, "x or y, bitwise on integers", INTS | BOOLS, false, NULL, i_or, grad_zero, simplify_or,
       true, bools_samples)
BINARY(xor, "x exclusive-or y", INTS | BOOLS, false, NULL, i_xor, grad_zero, NULL, true, bools_samples)
BINARY(eq, "x = y", ANY, true, f_eq, i_eq, grad_zero, NULL, true, binary_samples)
BINARY(ne, "x != y", ANY, true, f_ne, i_ne, grad_zero, NULL, true, binary_samples)
BINARY(lt, "x < y", NUMBERS, true, f_lt, i_lt, grad_zero, NULL, false, binary_samples)
BINARY(le, "x <= y", NUMBERS, true, f_le, i_le, grad_zero, NULL, false, binary_samples)
BINARY(gt, "x > y", NUMBERS, true, f_gt, i_gt, grad_zero, NULL, false, binary_samples)
BINARY(ge, "x >= y", NUMBERS, true, f_ge, i_ge, grad_zero, NULL, false, binary_samples)

/* clang-format on */

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
                       .simplify = simplify_cast,
                       .samples = cast_samples};

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
const OpRow op_select = {
	.name = "select",
	.doc = "x where c, else y",
	.operands = {{"c", OPERAND_REQUIRED}, {"x", OPERAND_REQUIRED}, {"y", OPERAND_REQUIRED}},
	.results = {"z"},
	.infer = infer_select,
	.eval = eval_select,
	.grad = grad_select,
	.fuse = FUSE_ELEMENTWISE,
	.scalar = scalar_select,
	.simplify = simplify_select,
	.samples = select_samples};
