/* Imports arithmetic and elementary functions: https://onnx.ai/onnx/operators/ Add to Xor, Sum,
 * Cast. */
#include "frontend/import/import.h"

#include <float.h>
#include <math.h>
#include <string.h>

static void
import_unary(OnnxNode *n)
{
	set_output(n, 0, e_unary(n, (OpKind)n->extra->op, want_input(n, 0)));
}

/* Integers: reports a constant divisor of 0, and the one quotient that overflows. */
static bool
divides(OnnxNode *n, const Value *x, const Value *y)
{
	const Tensor *p = value_constant(x), *q = value_constant(y);

	for (int64_t i = 0; q && !is_float(y) && i < q->type->n; i++) {
		int64_t d = tensor_int(q, i);
		bool overflow = false;
		for (int64_t k = 0; p && d == -1 && k < p->type->n; k++)
			overflow |= p->type->dtype == S64 && tensor_int(p, k) == INT64_MIN;
		if (d == 0 || overflow) {
			report_invalid(n, "integer division %s", d ? "overflows" : "by zero");
			return false;
		}
	}
	return true;
}

static void
import_div(OnnxNode *n)
{
	Value *x = want_input(n, 0), *y = want_second_input(n, x);

	if (x && y && divides(n, x, y))
		set_output(n, 0, e_binary(n, OP_div, x, y));
}

static void
import_binary(OnnxNode *n)
{
	Value *x = want_input(n, 0);

	set_output(n, 0, e_binary(n, (OpKind)n->extra->op, x, want_second_input(n, x)));
}

/* x + (round(x) - x), which is exact. The difference counts as a constant, so the gradient passes as
 * if nothing were rounded (straight through, Bengio et al. 2013, arXiv:1308.3432). A model trained
 * with rounding, or exported from x + (round(x) - x).detach(), needs this gradient. */
static void
import_round(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *y = e_unary(n, OP_round, x);

	if (!y)
		return;
	Value *whole = e_binary(n, OP_eq, x, y); /* true for infinite x, too */
	Value *rest = e_select(n, whole, e_number(n, x, 0), e_binary(n, OP_sub, y, x));
	set_output(n, 0, e_binary(n, OP_add, x, e_unary(n, OP_stop_gradient, rest)));
}

/* A function of x that takes several nodes. */
static void
import_composed(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);

	set_output(n, 0, x ? n->extra->pre(n, x) : NULL);
}

static Value *
reciprocal(OnnxNode *n, Value *x)
{
	return e_binary(n, OP_div, e_number(n, x, 1), x);
}

static Value *
tangent(OnnxNode *n, Value *x)
{
	return e_binary(n, OP_div, e_unary(n, OP_sin, x), e_unary(n, OP_cos, x));
}

/* (e^x - 1) / 2 = (u / 2) (u + 2) with u = e^(x/2) - 1: halved before it can overflow. */
static Value *
half_expm1(OnnxNode *n, Value *x)
{
	Value *u = e_unary(n, OP_expm1, e_with(n, OP_div, x, 2));

	return e_binary(n, OP_mul, e_with(n, OP_div, u, 2), e_with(n, OP_add, u, 2));
}

/* (e^x - e^-x) / 2, accurate near 0, finite wherever the result is */
static Value *
sinh_of(OnnxNode *n, Value *x)
{
	return e_binary(n, OP_sub, half_expm1(n, x), half_expm1(n, e_unary(n, OP_neg, x)));
}

/* For x above 2^28 the square root of x^2 +- 1 equals x to the last bit, also in f64; x^2 may be
 * infinite. */
static const double LARGE = 0x1p28;

/* log(2 x) if x is large, else y. Where x is large, the caller computes y from 1 instead of x, so
 * that y is finite. */
static Value *
or_log_twice(OnnxNode *n, Value *large, Value *x, Value *y)
{
	Value *log = e_unary(n, OP_log, e_select(n, large, x, e_number(n, x, 1)));

	return e_select(n, large, e_with(n, OP_add, log, 0x1.62e42fefa39efp-1), y);
}

/* sign(x) log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))). 0 counts as positive, because the derivative there
 * is 1. */
static Value *
asinh_of(OnnxNode *n, Value *x)
{
	Value *negative = e_with(n, OP_lt, x, 0);
	Value *size = e_select(n, negative, e_unary(n, OP_neg, x), x);
	Value *large = e_with(n, OP_ge, size, LARGE);
	Value *s = e_select(n, large, e_number(n, x, 1), size);
	Value *square = e_binary(n, OP_mul, s, s);
	Value *root = e_with(n, OP_add, e_unary(n, OP_sqrt, e_with(n, OP_add, square, 1)), 1);
	Value *y = e_unary(n, OP_log1p, e_binary(n, OP_add, s, e_binary(n, OP_div, square, root)));

	y = or_log_twice(n, large, size, y);
	return e_select(n, negative, e_unary(n, OP_neg, y), y);
}

/* log1p(t + sqrt(t) sqrt(t + 2)), t = x - 1: accurate near 1 */
static Value *
acosh_of(OnnxNode *n, Value *x)
{
	Value *large = e_with(n, OP_ge, x, LARGE);
	Value *t = e_with(n, OP_sub, e_select(n, large, e_number(n, x, 1), x), 1);
	Value *root = e_binary(n, OP_mul, e_unary(n, OP_sqrt, t),
	                       e_unary(n, OP_sqrt, e_with(n, OP_add, t, 2)));

	return or_log_twice(n, large, x, e_unary(n, OP_log1p, e_binary(n, OP_add, t, root)));
}

/* (log1p(x) - log1p(-x)) / 2 */
static Value *
atanh_of(OnnxNode *n, Value *x)
{
	Value *up = e_unary(n, OP_log1p, x), *down = e_unary(n, OP_log1p, e_unary(n, OP_neg, x));

	return e_with(n, OP_div, e_binary(n, OP_sub, up, down), 2);
}

/* acos |x| = 2 atan(sqrt((1 - |x|) / (1 + |x|))); size: |x|. */
static Value *
acos_of_size(OnnxNode *n, Value *size)
{
	Value *one = e_number(n, size, 1);
	Value *ratio = e_binary(n, OP_div, e_binary(n, OP_sub, one, size),
	                        e_with(n, OP_add, size, 1));

	return e_with(n, OP_mul, e_unary(n, OP_atan, e_unary(n, OP_sqrt, ratio)), 2);
}

/* acos |x|; for negative x pi - acos |x|. The derivative at 1 and -1 is infinite, as in mathematics. */
static Value *
acos_of(OnnxNode *n, Value *x)
{
	Value *negative = e_with(n, OP_lt, x, 0);
	Value *y = acos_of_size(n, e_select(n, negative, e_unary(n, OP_neg, x), x));

	return e_select(n, negative, e_binary(n, OP_sub, e_number(n, y, 0x1.921fb54442d18p+1), y),
	                y);
}

/* atan(x / sqrt((1 - x) (1 + x))) for |x| < 1/2, else pi/2 - acos |x| with the sign of x */
static Value *
asin_of(OnnxNode *n, Value *x)
{
	Value *negative = e_with(n, OP_lt, x, 0);
	Value *size = e_select(n, negative, e_unary(n, OP_neg, x), x);
	Value *large = e_with(n, OP_gt, size, 0.5), *zero = e_number(n, x, 0),
	      *one = e_number(n, x, 1);
	Value *s = e_select(n, large, zero, size);
	Value *square = e_binary(n, OP_mul, e_binary(n, OP_sub, one, s), e_with(n, OP_add, s, 1));
	Value *near = e_unary(n, OP_atan, e_binary(n, OP_div, s, e_unary(n, OP_sqrt, square)));
	Value *far = acos_of_size(n, e_select(n, large, size, zero));
	far = e_binary(n, OP_sub, e_number(n, far, 0x1.921fb54442d18p+0), far);
	Value *y = e_select(n, large, far, near);

	return e_select(n, negative, e_unary(n, OP_neg, y), y);
}

/* (e^x + e^-x) / 2, with each power as (e^(x/2))^2: finite if the result is */
static Value *
cosh_of(OnnxNode *n, Value *x)
{
	Value *half = e_with(n, OP_div, x, 2);
	Value *up = e_unary(n, OP_exp, half), *down = e_unary(n, OP_exp, e_unary(n, OP_neg, half));

	return e_binary(n, OP_add, e_binary(n, OP_mul, e_with(n, OP_div, up, 2), up),
	                e_binary(n, OP_mul, e_with(n, OP_div, down, 2), down));
}

/* ONNX allows an exponent of another type; the result has the type of the base. */
static void
import_pow(OnnxNode *n)
{
	Value *x = want_input(n, 0), *y = want_second_input(n, x);

	if (x && y && is_float(y) && !is_float(x)) {
		Value *z = e_binary(n, OP_pow, e_cast(n, x, y->type->dtype), y);
		set_output(n, 0, e_cast(n, z, x->type->dtype));
		return;
	}
	set_output(n, 0, e_binary(n, OP_pow, x, x ? e_cast(n, y, x->type->dtype) : NULL));
}

/* x - floor(x/y) y: the remainder has the sign of y. OP_rem truncates, so its result is corrected by
 * y if the signs differ. */
Value *
e_mod(OnnxNode *n, Value *x, Value *y)
{
	Value *r = e_binary(n, OP_rem, x, y);
	double number;

	if (!r || dtype_info[r->type->dtype].class == CLASS_UNSIGNED)
		return r;
	if (value_splat(y, &number) && number > 0)
		return e_select(n, e_with(n, OP_lt, r, 0), e_binary(n, OP_add, r, y), r);
	Value *zero = e_number(n, r, 0);
	Value *differ = e_binary(n, OP_xor, e_binary(n, OP_lt, r, zero),
	                         e_binary(n, OP_lt, e_broadcast(n, y, shape_of(r)), zero));
	Value *move = e_binary(n, OP_and, differ, e_binary(n, OP_ne, r, zero));
	return e_select(n, move, e_binary(n, OP_add, r, y), r);
}

static void
import_mod(OnnxNode *n)
{
	Value *x = want_input(n, 0), *y = want_input(n, 1);

	if (!x || !y || !divides(n, x, y))
		return;
	if (want_int(n, "fmod", 0))
		set_output(n, 0, e_binary(n, OP_rem, x, y));
	else if (is_float(x))
		report_invalid(n, "the inputs are floats, which need fmod = 1");
	else
		set_output(n, 0, e_mod(n, x, y));
}

/* Sum, Max, Min and Mean of any number of operands. */
static void
import_variadic(OnnxNode *n)
{
	Value *sum = want_input(n, 0);

	for (int i = 1; i < n_inputs(n); i++)
		sum = e_binary(n, (OpKind)n->extra->op, sum, want_input(n, i));
	set_output(n, 0, n->extra->flag ? e_with(n, OP_div, sum, n_inputs(n)) : sum);
}

/* Casts to e8m0 have an attribute for rounding. "nearest" rounds ties up, like every rounding to
 * nearest in e8m0. */
static bool
want_rounding(OnnxNode *n, int *out)
{
	static const struct {
		const char *name;
		Rounding round;
	} modes[] = {{"up", ROUND_AWAY}, {"down", ROUND_TOWARD_ZERO}, {"nearest", ROUND_NEAREST}};
	const char *name = want_string(n, "round_mode", "up");

	for (int i = 0; i < COUNT(modes); i++)
		if (strcmp(modes[i].name, name) == 0) {
			*out = modes[i].round;
			return true;
		}
	report_invalid(n, "round_mode \"%s\" is not one of up, down, nearest", name);
	return false;
}

static bool
overflows_alike(const FloatFormat *f, Overflow a, Overflow b)
{
	OverflowCodes p = float_overflow(f, a), q = float_overflow(f, b);

	return p.finite == q.finite && p.infinite == q.infinite;
}

static Value *
convert(OnnxNode *n, Value *x, DType to)
{
	CastAttr a = {.to = to};
	const FloatFormat *f = float_format(to);

	if (!x || x->type->dtype == to)
		return x;
	if (f && f->bits == 8) { /* the other types have no such attribute */
		Overflow wanted = want_int(n, "saturate", 1) ? OVERFLOW_SATURATE : OVERFLOW_SPECIAL;
		a.overflow = overflows_alike(f, wanted, OVERFLOW_DEFAULT) ? OVERFLOW_DEFAULT
		                                                          : wanted;
	}
	if (to == E8M0 && !want_rounding(n, &a.round))
		return NULL;
	/* Casts to types below 8 bits: a number out of range keeps its low bits, as in ONNX's
	 * tests. The standard leaves this open. */
	if (!f && dtype_info[to].bits < 8 && to != BOOL && is_float(x))
		x = e_cast(n, x, S32);
	return e_op(n, OP_cast, 1, &x, &a);
}

/* Before opset 6 `to` is the name of a type; ONNX's types are numbered in this order. */
static int64_t
type_of_name(OnnxNode *n)
{
	static const char *const names[] = {"FLOAT",  "UINT8",  "INT8",   "UINT16", "INT16",
	                                    "INT32",  "INT64",  "STRING", "BOOL",   "FLOAT16",
	                                    "DOUBLE", "UINT32", "UINT64"};
	const char *name = want_string(n, "to", "");

	for (int i = 0; i < COUNT(names); i++)
		if (!strcmp(names[i], name))
			return i + 1;
	return 0;
}

static void
import_named_cast(OnnxNode *n)
{
	DType to;

	if (want_dtype(n, type_of_name(n), &to))
		set_output(n, 0, convert(n, want_input(n, 0), to));
}

static void
import_cast(OnnxNode *n)
{
	DType to;

	if (want_dtype(n, want_int(n, "to", 0), &to))
		set_output(n, 0, convert(n, want_input(n, 0), to));
}

/* https://onnx.ai/onnx/operators/onnx__BitCast.html */
static void
import_bit_cast(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	DType to;

	if (!want_dtype(n, want_int(n, "to", 0), &to) || !x)
		return;
	if (x->type->dtype == to) {
		set_output(n, 0, x);
		return;
	}
	BitcastAttr a = {.from = (int)x->type->dtype, .to = (int)to, .as = to};
	set_output(n, 0, e_op(n, OP_bitcast, 1, &x, &a));
}

static void
import_cast_like(OnnxNode *n)
{
	Value *x = want_input(n, 0), *like = want_input(n, 1);

	set_output(n, 0, like ? convert(n, x, like->type->dtype) : NULL);
}

/* Floats use a select: NaN stays NaN, and if x equals the bound, the gradient goes to the bound, as
 * in PyTorch's clamp. */
static Value *
bounded(OnnxNode *n, OpKind extremum, OpKind beyond, Value *x, Value *bound)
{
	if (!x || !is_float(x))
		return e_binary(n, extremum, x, bound);
	return e_select(n, e_binary(n, beyond, x, bound), bound, x);
}

Value *
e_at_least(OnnxNode *n, Value *x, Value *bound)
{
	return bounded(n, OP_max, OP_le, x, bound);
}

Value *
e_at_most(OnnxNode *n, Value *x, Value *bound)
{
	return bounded(n, OP_min, OP_ge, x, bound);
}

/* Bounds are attributes before opset 11, then optional inputs. If min > max, the result is max. */
static void
import_clip(OnnxNode *n)
{
	Value *x = want_input(n, 0);

	if (!x)
		return;
	if (!n->extra->input) {
		double most = n->opset >= 6 && is_float(x) ? FLT_MAX : HUGE_VAL;
		double lo = want_float(n, "min", -most), hi = want_float(n, "max", most);
		if (lo > -HUGE_VAL)
			x = e_at_least(n, x, e_number(n, x, lo));
		if (hi < HUGE_VAL)
			x = e_at_most(n, x, e_number(n, x, hi));
		set_output(n, 0, x);
		return;
	}
	for (int i = 1; i <= 2; i++) {
		if (!has_input(n, i))
			continue;
		Value *bound = want_input(n, i);
		if (bound && bound->type->n != 1) {
			report_invalid(n, "input %d has %lld elements, needs one", i,
			               (long long)bound->type->n);
			return;
		}
		bound = e_reshape(n, bound, (Ints){0});
		x = i == 1 ? e_at_least(n, x, bound) : e_at_most(n, x, bound);
	}
	set_output(n, 0, x);
}

#define UNARY(name, since, ir_op)                                       \
	{                                                               \
		name, since, 0, import_unary, {.op = ir_op}, .facts = { \
			.padded = PADDED_ELEMENTWISE                    \
		}                                                       \
	}
#define COMPOSED(name, since, fn)                                        \
	{                                                                \
		name, since, 0, import_composed, {.pre = fn}, .facts = { \
			.padded = PADDED_ELEMENTWISE                     \
		}                                                        \
	}
#define BINARY(name, ir_op, ...)                                     \
	{                                                            \
		name, 6, 0, import_binary, {.op = ir_op}, .facts = { \
			.padded = PADDED_ELEMENTWISE,                \
			__VA_ARGS__                                  \
		}                                                    \
	}

/* clang-format off */
const ImportRow import_math_rows[] = {
	/* name   from  to  importer  extra */
	UNARY("Abs", 6, OP_abs),
	UNARY("Neg", 6, OP_neg),
	UNARY("Exp", 6, OP_exp),
	UNARY("Log", 6, OP_log),
	UNARY("Sqrt", 6, OP_sqrt),
	UNARY("Floor", 6, OP_floor),
	UNARY("Ceil", 6, OP_ceil),
	{"Round", 11, 0, import_round, .facts = {.padded = PADDED_ELEMENTWISE}},
	UNARY("Sign", 9, OP_sign),
	UNARY("Erf", 9, OP_erf),
	UNARY("Sin", 7, OP_sin),
	UNARY("Cos", 7, OP_cos),
	UNARY("Atan", 7, OP_atan),
	UNARY("Tanh", 6, OP_tanh),
	UNARY("Sigmoid", 6, OP_sigmoid),
	COMPOSED("Reciprocal", 6, reciprocal),
	COMPOSED("Tan", 7, tangent),
	COMPOSED("Asin", 7, asin_of),
	COMPOSED("Acos", 7, acos_of),
	COMPOSED("Sinh", 9, sinh_of),
	COMPOSED("Cosh", 9, cosh_of),
	COMPOSED("Asinh", 9, asinh_of),
	COMPOSED("Acosh", 9, acosh_of),
	COMPOSED("Atanh", 9, atanh_of),
	BINARY("Add", OP_add, .terms = INPUTS(0, 1)),
	BINARY("Sub", OP_sub, .terms = INPUTS(0, 1)),
	BINARY("Mul", OP_mul, .factors = INPUTS(0, 1), .joining = INPUTS(0, 1)),
	{"Div", 6, 0, import_div,
	 .facts = {.padded = PADDED_ELEMENTWISE, .factors = INPUTS(0, 1)}},
	{"Pow", 6, 0, import_pow, .facts = {.padded = PADDED_ELEMENTWISE, .steering = INPUT(1)}},
	{"Mod", 10, 0, import_mod, .facts = {.padded = PADDED_ELEMENTWISE, .steering = INPUT(1)}},
	{"Sum", 6, 0, import_variadic, {.op = OP_add}, .facts = {.padded = PADDED_ELEMENTWISE}},
	{"Mean", 6, 0, import_variadic, {.op = OP_add, .flag = true},
	 .facts = {.padded = PADDED_ELEMENTWISE}},
	{"Max", 6, 0, import_variadic, {.op = OP_max},
	 .facts = {.padded = PADDED_ELEMENTWISE, .steering = INPUTS(0, 1)}},
	{"Min", 6, 0, import_variadic, {.op = OP_min},
	 .facts = {.padded = PADDED_ELEMENTWISE, .steering = INPUTS(0, 1)}},
	{"Cast", 1, 5, import_named_cast, .facts = {.padded = PADDED_ELEMENTWISE}},
	{"Cast", 6, 0, import_cast, {0}, NULL},
	{"BitCast", 26, 0, import_bit_cast, .facts = {.no_gradient = true}},
	{"CastLike", 15, 0, import_cast_like,
	 .facts = {.padded = PADDED_ELEMENTWISE, .typed_by = 1, .steering = INPUT(1)}},
	{"Clip", 6, 10, import_clip,
	 .facts = {.padded = PADDED_ELEMENTWISE, .steering = INPUTS(1, 2)}},
	{"Clip", 11, 0, import_clip, {.input = true}, NULL},
	{0},
};
/* clang-format on */
