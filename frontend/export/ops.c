/* Writes most primitives of the IR as ONNX: each becomes one operator, or a few. Products, windows
 * and indices have files of their own. */
#include "frontend/export/writer.h"

#include <math.h>
#include <string.h>

/* ---- elementwise */
static bool
write_same(GraphWriter *w, const Node *n)
{
	return done(w, n, writer_operand(w, n, 0));
}

/* e^x - 1 = tanh(x / 2) (e^x + 1), without cancellation. */
static bool
write_expm1(GraphWriter *w, const Node *n)
{
	const char *x = writer_operand(w, n, 0);
	const char *t = writer_unary(
		w, "Tanh", writer_binary(w, "Mul", x, writer_number(w, dtype_of(n), 0.5)));
	const char *e = writer_binary(w, "Add", writer_unary(w, "Exp", x),
	                              writer_number(w, dtype_of(n), 1));

	return done(w, n, writer_binary(w, "Mul", t, e));
}

/* log(1 + x) by Kahan's formula. Let u = 1 + x. The result is log(u) x / (u - 1), or x if u is
 * 1. */
static bool
write_log1p(GraphWriter *w, const Node *n)
{
	const char *x = writer_operand(w, n, 0), *one = writer_number(w, dtype_of(n), 1);
	const char *u = writer_binary(w, "Add", x, one), *d = writer_binary(w, "Sub", u, one);
	const char *flat = writer_binary(w, "Equal", d, writer_number(w, dtype_of(n), 0));
	const char *safe = writer_where(w, flat, one, d);
	const char *y = writer_binary(w, "Mul", writer_unary(w, "Log", u),
	                              writer_binary(w, "Div", x, safe));

	return done(w, n, writer_where(w, flat, x, y));
}

static bool
write_rsqrt(GraphWriter *w, const Node *n)
{
	return done(
		w, n,
		writer_unary(w, "Reciprocal", writer_unary(w, "Sqrt", writer_operand(w, n, 0))));
}

/* An integer divided by 0 is 0 with remainder 0; onnxruntime would stop. */
static bool
divide(GraphWriter *w, const Node *n, const char *op, const WrittenAttribute *attributes)
{
	const char *x = writer_operand(w, n, 0), *y = writer_operand(w, n, 1);
	const Tensor *t = value_constant(node_operand(n, 1));
	bool may_fail = !dtype_is_float(dtype_of(n)) && !t;

	for (int64_t i = 0; t && !dtype_is_float(dtype_of(n)) && i < t->type->n; i++)
		may_fail |= tensor_int(t, i) == 0;
	if (!may_fail)
		return done(w, n, writer_node(w, op, attributes, 2, (const char *[]){x, y}));
	const char *zero = writer_number(w, dtype_of(n), 0);
	const char *none = writer_binary(w, "Equal", y, zero);
	const char *by = writer_where(w, none, writer_number(w, dtype_of(n), 1), y);
	const char *z = writer_node(w, op, attributes, 2, (const char *[]){x, by});
	return done(w, n, writer_where(w, none, zero, z));
}

static bool
write_div(GraphWriter *w, const Node *n)
{
	return divide(w, n, "Div", NULL);
}

static bool
write_rem(GraphWriter *w, const Node *n)
{
	const WrittenAttribute a[] = {{.name = "fmod", .kind = WRITE_INT, .i = 1}, {0}};

	return divide(w, n, "Mod", a);
}

/* ONNX has Pow of floats, s32 and s64. */
static bool
write_pow(GraphWriter *w, const Node *n)
{
	DType d = dtype_of(n);

	return (dtype_is_float(d) || d == S32 || d == S64) &&
	       done(w, n,
	            writer_binary(w, "Pow", writer_operand(w, n, 0), writer_operand(w, n, 1)));
}

static bool
write_ne(GraphWriter *w, const Node *n)
{
	return done(w, n,
	            writer_unary(w, "Not",
	                         writer_binary(w, "Equal", writer_operand(w, n, 0),
	                                       writer_operand(w, n, 1))));
}

/* And, Or, Xor and Not of bools, or of the bits of integers. */
static bool
write_bits(GraphWriter *w, const Node *n)
{
	static const char *const names[][3] = {{"and", "And", "BitwiseAnd"},
	                                       {"or", "Or", "BitwiseOr"},
	                                       {"xor", "Xor", "BitwiseXor"}};

	for (int i = 0; i < COUNT(names); i++)
		if (strcmp(names[i][0], op_row(n)->name) == 0)
			return done(w, n,
			            writer_binary(w, names[i][dtype_of(n) == BOOL ? 1 : 2],
			                          writer_operand(w, n, 0),
			                          writer_operand(w, n, 1)));
	return false;
}

static bool
write_select(GraphWriter *w, const Node *n)
{
	const char *c = writer_operand(w, n, 0), *x = writer_operand(w, n, 1),
		   *y = writer_operand(w, n, 2);

	if (dtype_of(n) != BOOL)
		return done(w, n, writer_where(w, c, x, y));
	const char *first = writer_binary(w, "And", c, x);
	return done(w, n,
	            writer_binary(w, "Or", first,
	                          writer_binary(w, "And", writer_unary(w, "Not", c), y)));
}

/* Float to integer: truncated, clamped to the type's range, 0 for NaN. ONNX defines only the
 * truncation. The steps use s64, for which onnxruntime has operators. x0 is x in f32 or f64 without
 * NaN. */
static const char *
saturated(GraphWriter *w, const char *x, DType from, DType to)
{
	DType d = from == F64 ? F64 : F32;
	double most = d == F64 ? 0x1p63 - 0x1p10 : 0x1p63 - 0x1p39, low, high;
	const char *wide = d == from ? x : writer_cast(w, x, d);
	const char *x0 = writer_where(w, writer_unary(w, "IsNaN", wide), writer_number(w, d, 0),
	                              wide);
	const char *bounded = writer_node(
		w, "Clip", NULL, 3,
		(const char *[]){x0, writer_number(w, d, -0x1p63), writer_number(w, d, most)});
	const char *above = writer_binary(w, "Greater", x0, writer_number(w, d, most));
	const char *y = writer_where(w, above, writer_integer(w, INT64_MAX),
	                             writer_cast(w, bounded, S64));

	if (to == S64)
		return y;
	dtype_range(to, &low, &high);
	const char *clipped = writer_node(w, "Clip", NULL, 3,
	                                  (const char *[]){y, writer_integer(w, (int64_t)low),
	                                                   writer_integer(w, (int64_t)high)});
	return writer_cast(w, clipped, to);
}

/* Cast, without stochastic rounding. */
static bool
write_cast(GraphWriter *w, const Node *n)
{
	const CastAttr *a = n->attr;
	const char *x = writer_operand(w, n, 0);
	DType from = type_of(n, 0)->dtype;
	bool to_integer = !dtype_is_float(a->to) && a->to != BOOL;

	if (n->n_operands != 1 || a->round != ROUND_NEAREST || a->overflow != OVERFLOW_DEFAULT)
		return false;
	if (!dtype_is_float(from) || !to_integer)
		return done(w, n, writer_cast(w, x, a->to));
	return a->to != U64 && done(w, n, saturated(w, x, from, a->to));
}

/* ---- GELU: ir/ops/transcendental.c has the formulas. Its derivative has two parts: t = tanh u, and
 * u'. */
#define GELU_A 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_B 0.044715

/* x (c + b x^2) if times_x, else c + b x^2; d is the type */
static const char *
with_square(GraphWriter *w, const char *x, DType d, double c, double b, bool times_x)
{
	const char *square = writer_binary(w, "Mul", writer_binary(w, "Mul", x, x),
	                                   writer_number(w, d, b));
	const char *sum = writer_binary(w, "Add", square, writer_number(w, d, c));

	return times_x ? writer_binary(w, "Mul", x, sum) : sum;
}

static bool
write_gelu(GraphWriter *w, const Node *n)
{
	const char *x = writer_operand(w, n, 0);
	DType d = dtype_of(n);
	const char *t = writer_unary(w, "Tanh",
	                             with_square(w, x, d, GELU_A, GELU_A * GELU_B, true));
	const char *half = writer_binary(w, "Mul", x, writer_number(w, d, 0.5));

	return done(
		w, n,
		writer_binary(w, "Mul", half, writer_binary(w, "Add", t, writer_number(w, d, 1))));
}

static bool
write_gelu_grad(GraphWriter *w, const Node *n)
{
	const char *dy = writer_operand(w, n, 0), *x = writer_operand(w, n, 1);
	DType d = dtype_of(n);
	const char *one = writer_number(w, d, 1), *half = writer_number(w, d, 0.5);
	const char *t = writer_unary(w, "Tanh",
	                             with_square(w, x, d, GELU_A, GELU_A * GELU_B, true));
	const char *slope = writer_binary(w, "Sub", one, writer_binary(w, "Mul", t, t));
	const char *bend = with_square(w, x, d, GELU_A, 3 * GELU_A * GELU_B, false);
	const char *first = writer_binary(w, "Mul", half, writer_binary(w, "Add", one, t));
	const char *second = writer_binary(
		w, "Mul", writer_binary(w, "Mul", writer_binary(w, "Mul", half, x), slope), bend);

	return done(w, n, writer_binary(w, "Mul", dy, writer_binary(w, "Add", first, second)));
}

/* ---- shapes */
static bool
write_broadcast(GraphWriter *w, const Node *n)
{
	const BroadcastAttr *a = n->attr;
	Ints ones = {.n = a->shape.n};

	for (int i = 0; i < ones.n; i++)
		ones.at[i] = 1;
	for (int i = 0; i < a->axes.n; i++)
		ones.at[a->axes.at[i]] = type_of(n, 0)->dims[i];
	const char *x = writer_reshape(w, writer_operand(w, n, 0), ones);
	return done(w, n, writer_binary(w, "Expand", x, writer_ints(w, a->shape)));
}

static bool
write_reshape(GraphWriter *w, const Node *n)
{
	return done(
		w, n,
		writer_reshape(w, writer_operand(w, n, 0), ((const ReshapeAttr *)n->attr)->shape));
}

static bool
write_transpose(GraphWriter *w, const Node *n)
{
	return done(w, n,
	            writer_transpose(w, writer_operand(w, n, 0),
	                             ((const TransposeAttr *)n->attr)->order));
}

static bool
write_slice(GraphWriter *w, const Node *n)
{
	const SliceAttr *a = n->attr;

	return done(w, n, writer_slice(w, writer_operand(w, n, 0), a->start, a->stop, a->step));
}

static bool
write_reverse(GraphWriter *w, const Node *n)
{
	const ReverseAttr *a = n->attr;
	Ints start = {0}, stop = {0}, step = {0};

	for (int i = 0; i < type_of(n, 0)->rank; i++) {
		bool back = ints_has(&a->axes, i);
		start.at[start.n++] = back ? -1 : 0;
		stop.at[stop.n++] = back ? INT64_MIN : type_of(n, 0)->dims[i];
		step.at[step.n++] = back ? -1 : 1;
	}
	return done(w, n, writer_slice(w, writer_operand(w, n, 0), start, stop, step));
}

/* Puts `interior` elements between neighbours along the axis. Reshapes [.., n, ..] to [.., n, 1,
 * ..], pads to [.., n, 1 + interior, ..], reshapes to [.., n (1 + interior), ..] and cuts off the
 * padding after the last element. */
static const char *
spread_axis(GraphWriter *w, const char *x, DType d, Ints *shape, int axis, int64_t interior,
            double value)
{
	Ints split = {0}, low = {0}, high = {0}, start = {0}, step = {0};
	int64_t n = shape->at[axis];

	for (int i = 0; i < shape->n; i++) {
		split.at[split.n++] = shape->at[i];
		if (i == axis)
			split.at[split.n++] = 1;
	}
	low.n = high.n = split.n;
	high.at[axis + 1] = interior;
	const char *y = writer_pad(w, writer_reshape(w, x, split), d, low, high, value);
	shape->at[axis] = n * (1 + interior);
	y = writer_reshape(w, y, *shape);
	shape->at[axis] -= n ? interior : 0;
	start.n = step.n = shape->n;
	for (int i = 0; i < step.n; i++)
		step.at[i] = 1;
	return writer_slice(w, y, start, *shape, step);
}

static bool
write_pad(GraphWriter *w, const Node *n)
{
	const PadAttr *a = n->attr;
	Type t = type_of(n, 0);
	Ints shape = ints_of_type(t), low = {.n = t->rank}, high = {.n = t->rank},
	     start = {.n = t->rank}, stop, step = {.n = t->rank};
	const char *x = writer_operand(w, n, 0);

	if (t->rank >= MAX_RANK)
		return false;
	for (int i = 0; i < t->rank; i++)
		if (i < a->interior.n && a->interior.at[i])
			x = spread_axis(w, x, t->dtype, &shape, i, a->interior.at[i], a->value);
	stop = shape;
	for (int i = 0; i < t->rank; i++) {
		int64_t before = i < a->low.n ? a->low.at[i] : 0,
			behind = i < a->high.n ? a->high.at[i] : 0;
		low.at[i] = before > 0 ? before : 0;
		high.at[i] = behind > 0 ? behind : 0;
		start.at[i] = before < 0 ? -before : 0;
		stop.at[i] += behind < 0 ? behind : 0;
		step.at[i] = 1;
	}
	x = writer_slice(w, x, start, stop, step);
	return done(w, n, writer_pad(w, x, t->dtype, low, high, a->value));
}

static bool
write_concat(GraphWriter *w, const Node *n)
{
	const WrittenAttribute a[] = {
		{.name = "axis", .kind = WRITE_INT, .i = ((const AxisAttr *)n->attr)->axis}, {0}};
	const char **inputs = NEW_ARRAY(w->arena, const char *, n->n_operands);

	for (int i = 0; i < n->n_operands; i++)
		inputs[i] = writer_operand(w, n, i);
	return done(w, n, writer_node(w, "Concat", a, n->n_operands, inputs));
}

/* ---- constants and iotas */
static bool
write_constant(GraphWriter *w, const Node *n)
{
	const Tensor *t = value_constant(node_result(n, 0));
	double splat;

	if (tensor_is_splat(t, &splat) && t->type->n > 1)
		return done(w, n,
		            writer_binary(w, "Expand", writer_number(w, t->type->dtype, splat),
		                          writer_ints(w, ints_of_type(t->type))));
	return done(w, n,
	            writer_tensor(w, arena_printf(w->arena, "constant%d", w->count++),
	                          t->type->dtype, ints_of_type(t->type), t->data));
}

static bool
write_iota(GraphWriter *w, const Node *n)
{
	const IotaAttr *a = n->attr;
	Ints ones = {.n = a->shape.n};
	int64_t count = a->shape.n ? a->shape.at[a->axis] : 1,
		*numbers = NEW_ARRAY(w->arena, int64_t, count + 1);

	for (int64_t i = 0; i < count; i++)
		numbers[i] = i;
	for (int i = 0; i < ones.n; i++)
		ones.at[i] = i == a->axis ? count : 1;
	const char *x = writer_tensor(w, arena_printf(w->arena, "iota%d", w->count++), S64, ones,
	                              numbers);
	x = a->dtype == S64 ? x : writer_cast(w, x, a->dtype);
	return done(w, n, writer_binary(w, "Expand", x, writer_ints(w, a->shape)));
}

/* ---- reductions, sorting */
static bool
write_reduce(GraphWriter *w, const Node *n)
{
	static const char *const names[] = {"ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"};
	const WrittenAttribute a[] = {{.name = "keepdims", .kind = WRITE_INT, .i = 0}, {0}};
	const ReduceAttr *r = n->attr;

	if (r->axes.n == 0)
		return write_same(w, n);
	return done(
		w, n,
		writer_node(w, names[r->kind], a, 2,
	                    (const char *[]){writer_operand(w, n, 0), writer_ints(w, r->axes)}));
}

static bool
write_argmax(GraphWriter *w, const Node *n)
{
	const char *x = writer_operand(w, n, 0);
	const WrittenAttribute a[] = {
		{.name = "axis", .kind = WRITE_INT, .i = ((const AxisAttr *)n->attr)->axis},
		{.name = "keepdims", .kind = WRITE_INT, .i = 0},
		{0}};

	return done(w, n, writer_node(w, "ArgMax", a, 1, &x));
}

/* Among equal elements the first stays first, in gradc and in ONNX. */
static bool
write_sort(GraphWriter *w, const Node *n)
{
	const SortAttr *s = n->attr;
	const WrittenAttribute a[] = {{.name = "axis", .kind = WRITE_INT, .i = s->axis},
	                              {.name = "largest", .kind = WRITE_INT, .i = s->descending},
	                              {0}};
	Ints count = {.n = 1, .at = {type_of(n, 0)->dims[s->axis]}};
	const char *results[2];

	writer_node_of(w, "TopK", a, 2,
	               (const char *[]){writer_operand(w, n, 0), writer_ints(w, count)}, 2,
	               results);
	writer_set(w, n, 0, results[0]);
	writer_set(w, n, 1, results[1]);
	return true;
}

static bool
write_cumulate(GraphWriter *w, const Node *n)
{
	const CumulateAttr *c = n->attr;
	const WrittenAttribute a[] = {{.name = "exclusive", .kind = WRITE_INT, .i = c->exclusive},
	                              {.name = "reverse", .kind = WRITE_INT, .i = c->reverse},
	                              {0}};

	if (c->kind != REDUCE_SUM)
		return false;
	return done(w, n,
	            writer_node(w, "CumSum", a, 2,
	                        (const char *[]){writer_operand(w, n, 0),
	                                         writer_number(w, S64, (double)c->axis)}));
}

const WriteRow write_op_rows[] = {
	{"neg", NULL, "Neg"},
	{"abs", NULL, "Abs"},
	{"sign", NULL, "Sign"},
	{"floor", NULL, "Floor"},
	{"ceil", NULL, "Ceil"},
	{"round", NULL, "Round"},
	{"add", NULL, "Add"},
	{"sub", NULL, "Sub"},
	{"mul", NULL, "Mul"},
	{"div", write_div, NULL},
	{"rem", write_rem, NULL},
	{"max", NULL, "Max"},
	{"min", NULL, "Min"},
	{"exp", NULL, "Exp"},
	{"expm1", write_expm1, NULL},
	{"log", NULL, "Log"},
	{"log1p", write_log1p, NULL},
	{"sqrt", NULL, "Sqrt"},
	{"rsqrt", write_rsqrt, NULL},
	{"sin", NULL, "Sin"},
	{"cos", NULL, "Cos"},
	{"tanh", NULL, "Tanh"},
	{"atan", NULL, "Atan"},
	{"erf", NULL, "Erf"},
	{"sigmoid", NULL, "Sigmoid"},
	{"gelu", write_gelu, NULL},
	{"gelu_grad", write_gelu_grad, NULL},
	{"pow", write_pow, NULL},
	{"not", NULL, "Not"},
	{"is_nan", NULL, "IsNaN"},
	{"and", write_bits, NULL},
	{"or", write_bits, NULL},
	{"xor", write_bits, NULL},
	{"eq", NULL, "Equal"},
	{"ne", write_ne, NULL},
	{"lt", NULL, "Less"},
	{"le", NULL, "LessOrEqual"},
	{"gt", NULL, "Greater"},
	{"ge", NULL, "GreaterOrEqual"},
	{"select", write_select, NULL},
	{"cast", write_cast, NULL},
	{"stop_gradient", write_same, NULL},
	{"copy", write_same, NULL},
	{"barrier", write_same, NULL},
	{"broadcast", write_broadcast, NULL},
	{"reshape", write_reshape, NULL},
	{"transpose", write_transpose, NULL},
	{"slice", write_slice, NULL},
	{"reverse", write_reverse, NULL},
	{"pad", write_pad, NULL},
	{"concat", write_concat, NULL},
	{"constant", write_constant, NULL},
	{"iota", write_iota, NULL},
	{"reduce", write_reduce, NULL},
	{"argmax", write_argmax, NULL},
	{"cumulate", write_cumulate, NULL},
	{"sort", write_sort, NULL},
	{0},
};
