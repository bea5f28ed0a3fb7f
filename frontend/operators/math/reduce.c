/* Imports ReduceSum and its relatives: https://onnx.ai/onnx/operators/onnx__ReduceSum.html. Axes
 * are an attribute until opset 17 (ReduceSum: 12), then an input. Without a list of axes, all axes
 * are reduced, or no axis if noop_with_empty_axes is set. */
#include "frontend/import/import.h"

#include <math.h>

static Value *
square(OnnxNode *n, Value *x)
{
	return e_binary(n, OP_mul, x, x);
}

static Value *
absolute(OnnxNode *n, Value *x)
{
	return e_unary(n, OP_abs, x);
}

/* If all elements are 0, the norm's gradient is 0, as in PyTorch; the square root's own gradient
 * would be infinite. */
static Value *
root(OnnxNode *n, Value *x)
{
	Value *zero = e_with(n, OP_eq, x, 0);

	return e_select(n, zero, x, e_unary(n, OP_sqrt, e_select(n, zero, e_number(n, x, 1), x)));
}

static Value *
logarithm(OnnxNode *n, Value *x)
{
	return e_unary(n, OP_log, x);
}

bool
want_reduce_axes(OnnxNode *n, const Value *x, Ints *axes)
{
	Ints list;

	if (!want_axes_list(n, "axes", 1, &list) && n->failed)
		return false;
	if (list.n == 0) {
		*axes = want_int(n, "noop_with_empty_axes", 0) ? (Ints){0}
		                                               : ints_range(0, x->type->rank);
		return true;
	}
	return want_axes(n, list, x->type->rank, axes);
}

/* Bools (Max and Min from opset 20) are computed in u8; integers with a root or logarithm are
 * computed in f64. */
static void
import_reduce(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	bool keep = want_int(n, "keepdims", 1);
	Ints axes;

	if (!x || !want_reduce_axes(n, x, &axes))
		return;
	DType t = x->type->dtype;
	if (t == BOOL)
		x = e_cast(n, x, U8);
	if (n->extra->post && !is_float(x))
		x = e_cast(n, x, F64);
	if (n->extra->pre)
		x = n->extra->pre(n, x);
	Value *y = e_reduce(n, (ReduceKind)n->extra->kind, x, axes, keep);
	if (n->extra->post)
		y = n->extra->post(n, y);
	set_output(n, 0, e_cast(n, y, t));
}

static void
import_reduce_mean(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Ints axes;

	if (x && want_reduce_axes(n, x, &axes))
		set_output(n, 0, e_mean(n, x, axes, want_int(n, "keepdims", 1)));
}

/* log sum e^x = m + log sum e^(x - m), with m = max x if that is finite, else 0 */
static void
import_log_sum_exp(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	bool keep = want_int(n, "keepdims", 1);
	Ints axes;

	if (!x || !want_reduce_axes(n, x, &axes))
		return;
	DType t = x->type->dtype;
	x = is_float(x) ? x : e_cast(n, x, F64);
	Value *m = e_unary(n, OP_stop_gradient, e_reduce(n, REDUCE_MAX, x, axes, true));
	Value *infinite = e_with(n, OP_eq, e_unary(n, OP_abs, m), HUGE_VAL);
	m = e_select(n, infinite, e_number(n, m, 0), m);
	Value *e = e_unary(n, OP_exp, e_binary(n, OP_sub, x, m));
	Value *y = e_unary(n, OP_log, e_reduce(n, REDUCE_SUM, e, axes, true));
	y = e_binary(n, OP_add, y, m);
	Ints shape = {0};
	for (int i = 0; i < x->type->rank; i++)
		if (!ints_has(&axes, i))
			shape.at[shape.n++] = x->type->dims[i];
	set_output(n, 0, e_cast(n, keep ? y : e_reshape(n, y, shape), t));
}

/* rule, identity: the facts `padded` and `neutral` */
#define REDUCE(name, importer, last, rule, identity, ...)                                         \
	{name, 1, last, importer, {__VA_ARGS__}, .facts = {.padded = rule, .neutral = identity}}, \
	{                                                                                         \
		name, (last) + 1, 0, importer, {__VA_ARGS__, .input = true}, NULL                 \
	}

const ImportRow import_reduce_rows[] = {
	REDUCE("ReduceSum", import_reduce, 12, PADDED_REDUCE, 0, .kind = REDUCE_SUM),
	REDUCE("ReduceMax", import_reduce, 17, PADDED_REDUCE, -HUGE_VAL, .kind = REDUCE_MAX),
	REDUCE("ReduceMin", import_reduce, 17, PADDED_REDUCE, HUGE_VAL, .kind = REDUCE_MIN),
	REDUCE("ReduceProd", import_reduce, 17, PADDED_REDUCE, 1, .kind = REDUCE_PROD),
	REDUCE("ReduceL1", import_reduce, 17, PADDED_REDUCE, 0, .kind = REDUCE_SUM,
               .pre = absolute),
	REDUCE("ReduceL2", import_reduce, 17, PADDED_REDUCE, 0, .kind = REDUCE_SUM, .pre = square,
               .post = root),
	REDUCE("ReduceSumSquare", import_reduce, 17, PADDED_REDUCE, 0, .kind = REDUCE_SUM,
               .pre = square),
	REDUCE("ReduceLogSum", import_reduce, 17, PADDED_REDUCE, 0, .kind = REDUCE_SUM,
               .post = logarithm),
	REDUCE("ReduceMean", import_reduce_mean, 17, PADDED_MEAN, 0, .kind = REDUCE_SUM),
	REDUCE("ReduceLogSumExp", import_log_sum_exp, 17, PADDED_REDUCE, -HUGE_VAL,
               .kind = REDUCE_SUM),
	{0},
};
