/* Imports Softmax, LogSoftmax and Hardmax. Until opset 12 they flatten the input from `axis` on, so
 * all these axes are normalized together. From 13 on, one axis is normalized. */
#include "frontend/import/import.h"

/* e^(x - m) / sum e^(x - m), or its logarithm (x - m) - log sum. m = max x has no gradient. All
 * elements are multiplied by 1 / sum, because on a GPU a division takes ten times as long as a
 * product. The sum is at least 1, so 1 / sum is finite. */
Value *
e_softmax(OnnxNode *n, Value *x, Ints axes, bool log)
{
	Value *m = e_unary(n, OP_stop_gradient, e_reduce(n, REDUCE_MAX, x, axes, true));
	Value *d = e_binary(n, OP_sub, x, m), *e = e_unary(n, OP_exp, d);
	Value *sum = e_reduce(n, REDUCE_SUM, e, axes, true);

	if (log)
		return e_binary(n, OP_sub, d, e_unary(n, OP_log, sum));
	return e_binary(n, OP_mul, e, e_binary(n, OP_div, e_number(n, sum, 1), sum));
}

static bool
softmax_axes(OnnxNode *n, const Value *x, Ints *axes)
{
	int axis = want_axis(n, want_int(n, "axis", n->extra->flag ? -1 : 1), x->type->rank);

	*axes = n->extra->flag ? (Ints){.n = 1, .at = {axis}} : ints_range(axis, x->type->rank);
	return axis >= 0;
}

static void
import_softmax(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	Ints axes;

	if (x && softmax_axes(n, x, &axes))
		set_output(n, 0, e_softmax(n, x, axes, n->extra->kind));
}

/* 1 at the first maximum, 0 elsewhere */
static void
import_hardmax(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	Ints axes, flat = {.n = 2, .at = {1, 1}};

	if (!x || !softmax_axes(n, x, &axes))
		return;
	if (x->type->n == 0) {
		set_output(n, 0, x);
		return;
	}
	int axis = n->extra->flag ? (int)axes.at[0] : 1;
	for (int i = 0; i < x->type->rank; i++)
		flat.at[ints_has(&axes, i)] *= x->type->dims[i];
	Value *rows = n->extra->flag ? x : e_reshape(n, x, flat);
	Value *at = e_op(n, OP_argmax, 1, &rows, &(AxisAttr){axis});
	if (!at)
		return;
	Ints shape = shape_of(rows), thin = shape;
	thin.at[axis] = 1;
	Value *hit = e_binary(n, OP_eq, e_iota(n, S64, shape, axis), e_reshape(n, at, thin));
	set_output(n, 0, e_reshape(n, e_cast(n, hit, x->type->dtype), shape_of(x)));
}

const ImportRow import_softmax_rows[] = {
	/* name        from  to  importer  extra */
	/* opset 13: over `axis` only; older: over `axis` and all axes after it */
	{"Softmax", 1, 12, import_softmax, .facts = {.changed = 13}},
	{"Softmax", 13, 0, import_softmax, {.flag = true}, NULL},
	{"LogSoftmax", 1, 12, import_softmax, {.kind = 1}, .facts = {.changed = 13}},
	{"LogSoftmax", 13, 0, import_softmax, {.kind = 1, .flag = true}, NULL},
	{"Hardmax", 1, 12, import_hardmax, .facts = {.changed = 13}},
	{"Hardmax", 13, 0, import_hardmax, {.flag = true}, NULL},
	{0},
};
