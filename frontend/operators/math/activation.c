/* Imports activations (Relu, Elu, Gelu ...), each as a few primitives of the IR. At a kink the
 * gradient is that of the negative side, as in PyTorch. */
#include "frontend/import/import.h"

#include <math.h>
#include <string.h>

/* x > 0 ? y : z */
static Value *
positive_else(OnnxNode *n, Value *x, Value *y, Value *z)
{
	return e_select(n, e_with(n, OP_gt, x, 0), y, z);
}

/* The comparison is <=, so that NaN stays NaN. */
static Value *
relu(OnnxNode *n, Value *x)
{
	return e_select(n, e_with(n, OP_le, x, 0), e_number(n, x, 0), x);
}

static Value *
leaky(OnnxNode *n, Value *x, double a, double b)
{
	(void)b;
	return positive_else(n, x, x, e_with(n, OP_mul, x, a));
}

static Value *
leaky_relu(OnnxNode *n, Value *x)
{
	return leaky(n, x, want_float(n, "alpha", 0.01f), 0);
}

/* a (e^(x/s) - 1) for x <= 0. The exponential gets no positive x: its overflow would give NaN. */
static Value *
exponential_below(OnnxNode *n, Value *x, double a, double s)
{
	Value *low = positive_else(n, x, e_number(n, x, 0), x);
	Value *e = e_unary(n, OP_expm1, s == 1 ? low : e_with(n, OP_div, low, s));

	return a == 1 ? e : e_with(n, OP_mul, e, a);
}

static Value *
exponential(OnnxNode *n, Value *x, double a, double b)
{
	(void)b;
	return positive_else(n, x, x, exponential_below(n, x, a, 1));
}

static Value *
elu(OnnxNode *n, Value *x)
{
	return exponential(n, x, want_float(n, "alpha", 1), 0);
}

static Value *
celu(OnnxNode *n, Value *x)
{
	double alpha = want_float(n, "alpha", 1);

	if (alpha == 0) {
		report_invalid(n, "alpha is 0, but x is divided by it");
		return NULL;
	}
	return positive_else(n, x, x, exponential_below(n, x, alpha, alpha));
}

/* b (e^x - 1) a for x <= 0, b x above */
static Value *
scaled_exponential(OnnxNode *n, Value *x, double a, double b)
{
	return e_with(n, OP_mul, positive_else(n, x, x, exponential_below(n, x, a, 1)), b);
}

static Value *
selu(OnnxNode *n, Value *x)
{
	bool old = n->opset < 6; /* before opset 6 the standard gave fewer digits */
	double alpha = want_float(n, "alpha", old ? 1.6732f : 1.67326319217681884765625f);
	double gamma = want_float(n, "gamma", old ? 1.0507f : 1.05070102214813232421875f);

	return scaled_exponential(n, x, alpha, gamma);
}

static Value *
thresholded(OnnxNode *n, Value *x, double a, double b)
{
	(void)b;
	return e_select(n, e_with(n, OP_gt, x, a), x, e_number(n, x, 0));
}

static Value *
thresholded_relu(OnnxNode *n, Value *x)
{
	return thresholded(n, x, want_float(n, "alpha", 1), 0);
}

/* log(1 + e^x) = max(x, 0) + log1p(e^-|x|). At 0 both terms have the derivative of their negative
 * side, and these add up to 1/2. */
static Value *
softplus(OnnxNode *n, Value *x)
{
	Value *e = e_unary(n, OP_exp, positive_else(n, x, e_unary(n, OP_neg, x), x));

	return e_binary(n, OP_add, relu(n, x), e_unary(n, OP_log1p, e));
}

static Value *
softsign(OnnxNode *n, Value *x)
{
	return e_binary(n, OP_div, x, e_with(n, OP_add, e_unary(n, OP_abs, x), 1));
}

static Value *
mish(OnnxNode *n, Value *x)
{
	return e_binary(n, OP_mul, x, e_unary(n, OP_tanh, softplus(n, x)));
}

Value *
e_silu(OnnxNode *n, Value *x)
{
	return e_binary(n, OP_mul, x, e_unary(n, OP_sigmoid, x));
}

static Value *
swish(OnnxNode *n, Value *x)
{
	double alpha = want_float(n, "alpha", 1);
	Value *inner = alpha == 1 ? x : e_with(n, OP_mul, x, alpha);

	return e_binary(n, OP_mul, x, e_unary(n, OP_sigmoid, inner));
}

static Value *
clamp01(OnnxNode *n, Value *x)
{
	return e_at_most(n, e_at_least(n, x, e_number(n, x, 0)), e_number(n, x, 1));
}

static Value *
hard(OnnxNode *n, Value *x, double a, double b)
{
	return clamp01(n, e_with(n, OP_add, e_with(n, OP_mul, x, a), b));
}

static Value *
hard_sigmoid(OnnxNode *n, Value *x)
{
	return hard(n, x, want_float(n, "alpha", 0.2f), want_float(n, "beta", 0.5));
}

/* x clamp(x/6 + 1/2). As in ONNX's function body 1/6 is an f32 number, in f64 too: the result
 * differs from PyTorch's by 3e-8. */
static Value *
hard_swish(OnnxNode *n, Value *x)
{
	Value *y = e_with(n, OP_add, e_with(n, OP_mul, x, 1.0f / 6), 0.5);

	return e_binary(n, OP_mul, x, clamp01(n, y));
}

/* approximate "none": x/2 (1 + erf(x / sqrt 2)); "tanh": x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715
 * x^3))). As in ONNX's function body, 2/pi and 0.044715 are f32 numbers, in f64 too. */
Value *
e_gelu(OnnxNode *n, Value *x, bool tanh)
{
	Value *t;

	if (!tanh) {
		t = e_unary(n, OP_erf, e_with(n, OP_mul, x, 0.70710678118654752440));
	} else {
		Value *cube = e_binary(n, OP_mul, e_binary(n, OP_mul, x, x), x);
		Value *inner = e_binary(n, OP_add, x, e_with(n, OP_mul, cube, 0.044715f));
		t = e_unary(n, OP_tanh, e_with(n, OP_mul, inner, sqrt(0.63661977236758134308f)));
	}
	return e_binary(n, OP_mul, e_with(n, OP_mul, x, 0.5), e_with(n, OP_add, t, 1));
}

static Value *
gelu(OnnxNode *n, Value *x)
{
	return e_gelu(n, x, !strcmp(want_word(n, "approximate", "none tanh"), "tanh"));
}

static Value *
clip(OnnxNode *n, Value *x, double a, double b)
{
	return e_at_most(n, e_at_least(n, x, e_number(n, x, a)), e_number(n, x, b));
}

static Value *
affine(OnnxNode *n, Value *x, double a, double b)
{
	return e_with(n, OP_add, e_with(n, OP_mul, x, a), b);
}

/* a tanh(b x) */
static Value *
scaled_tanh(OnnxNode *n, Value *x, double a, double b)
{
	return e_with(n, OP_mul, e_unary(n, OP_tanh, e_with(n, OP_mul, x, b)), a);
}

Value *
e_curve(OnnxNode *n, Value *x, const char *name, int count, const double *numbers)
{
	static const struct {
		const char *name;
		OpKind op; /* for activations that are one operator */
		Value *(*plain)(OnnxNode *n, Value *x);
		Value *(*curve)(OnnxNode *n, Value *x, double a, double b);
		double a, b;
	} rows[] = {{.name = "Tanh", .op = OP_tanh},
	            {.name = "Sigmoid", .op = OP_sigmoid},
	            {.name = "Relu", .plain = relu},
	            {.name = "Softplus", .plain = softplus},
	            {.name = "Softsign", .plain = softsign},
	            {.name = "HardSwish", .plain = hard_swish},
	            {.name = "LeakyRelu", .curve = leaky, .a = 0.01f},
	            {.name = "ThresholdedRelu", .curve = thresholded, .a = 1},
	            {.name = "Elu", .curve = exponential, .a = 1},
	            {.name = "Selu",
	             .curve = scaled_exponential,
	             .a = 1.67326319217681884765625f,
	             .b = 1.05070102214813232421875f},
	            {.name = "HardSigmoid", .curve = hard, .a = 0.2f, .b = 0.5},
	            {.name = "Clip", .curve = clip, .a = -HUGE_VAL, .b = HUGE_VAL},
	            {.name = "Affine", .curve = affine, .a = 1},
	            {.name = "ScaledTanh", .curve = scaled_tanh, .a = 1, .b = 1}};

	for (int i = 0; i < COUNT(rows); i++) {
		if (strcmp(rows[i].name, name))
			continue;
		if (rows[i].curve)
			return rows[i].curve(n, x, count > 0 ? numbers[0] : rows[i].a,
			                     count > 1 ? numbers[1] : rows[i].b);
		return rows[i].plain ? rows[i].plain(n, x) : e_unary(n, rows[i].op, x);
	}
	report_unsupported(n, "activation %s is not supported", quoted(n->im->model, name));
	return NULL;
}

static void
import_activation(OnnxNode *n)
{
	Value *x = n->extra->flag ? want_input(n, 0) : want_float_input(n, 0);

	set_output(n, 0, x ? n->extra->pre(n, x) : NULL);
}

static Value *
shrink(OnnxNode *n, Value *x)
{
	double bias = want_float(n, "bias", 0), lambd = want_float(n, "lambd", 0.5);
	Value *zero = e_number(n, x, 0);
	Value *up = e_select(n, e_with(n, OP_gt, x, lambd), e_with(n, OP_sub, x, bias), zero);

	return e_select(n, e_with(n, OP_lt, x, -lambd), e_with(n, OP_add, x, bias), up);
}

/* Integers are compared with bounds that need not be whole. */
static void
import_shrink(OnnxNode *n)
{
	Value *x = want_input(n, 0);

	if (x)
		set_output(
			n, 0,
			e_cast(n, shrink(n, is_float(x) ? x : e_cast(n, x, F64)), x->type->dtype));
}

/* The slope broadcasts to x's shape. */
static void
import_prelu(OnnxNode *n)
{
	Value *x = want_input(n, 0), *slope = want_input(n, 1);

	/* Before opset 7 a vector has a slope per channel. */
	if (x && slope && n->opset < 7 && slope->type->rank == 1 && slope->type->n > 1)
		slope = e_channel(n, slope, x, 1);
	if (x && slope)
		set_output(
			n, 0,
			positive_else(n, x, x,
		                      e_binary(n, OP_mul, x, e_broadcast(n, slope, shape_of(x)))));
}

#define ACTIVATION(name, since, fn)                                        \
	{                                                                  \
		name, since, 0, import_activation, {.pre = fn}, .facts = { \
			.padded = PADDED_ELEMENTWISE                       \
		}                                                          \
	}

/* clang-format off */
const ImportRow import_activation_rows[] = {
	{"Relu", 6, 0, import_activation, {.pre = relu, .flag = true},
	 .facts = {.padded = PADDED_ELEMENTWISE}},
	ACTIVATION("LeakyRelu", 6, leaky_relu),
	ACTIVATION("Elu", 6, elu),
	ACTIVATION("Selu", 6, selu),
	ACTIVATION("Celu", 12, celu),
	ACTIVATION("ThresholdedRelu", 10, thresholded_relu),
	ACTIVATION("Softplus", 1, softplus),
	ACTIVATION("Softsign", 1, softsign),
	ACTIVATION("Mish", 18, mish),
	ACTIVATION("Swish", 24, swish),
	ACTIVATION("HardSigmoid", 6, hard_sigmoid),
	ACTIVATION("HardSwish", 14, hard_swish),
	ACTIVATION("Gelu", 20, gelu),
	{"Shrink", 9, 0, import_shrink, .facts = {.padded = PADDED_ELEMENTWISE}},
	{"PRelu", 6, 0, import_prelu,
	 .facts = {.padded = PADDED_ELEMENTWISE, .weights = INPUT(1), .channels = INPUT(1)}},
	{0},
};
/* clang-format on */
