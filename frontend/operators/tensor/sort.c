/* Imports TopK, ArgMax, ArgMin and CumSum. */
#include "frontend/import/import.h"

static void
import_top_k(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	int64_t k = want_int(n, "k", 0);

	if (!x || (n->extra->input && !want_constant_int(n, 1, &k)))
		return;
	int axis = want_axis(n, want_int(n, "axis", -1), x->type->rank);
	if (axis < 0)
		return;
	if (k < 0 || k > x->type->dims[axis]) {
		report_invalid(n, "k is %lld, needs 0 to the size of axis %d, %lld", (long long)k,
		               axis, (long long)x->type->dims[axis]);
		return;
	}
	SortAttr a = {.axis = axis, .descending = want_int(n, "largest", 1)};
	Value *values = e_op(n, OP_sort, 1, &x, &a);
	if (!values)
		return;
	set_output(n, 0, e_slice_axis(n, values, axis, 0, k));
	set_output(n, 1, e_slice_axis(n, node_result(values->node, 1), axis, 0, k));
}

/* A number whose order is the reverse of x's: -x for floats. For integers it is -x - 1, which flips
 * every bit and never overflows, signed or not. */
static Value *
reversed_order(OnnxNode *n, Value *x)
{
	Value *y = e_unary(n, OP_neg, x);

	return y && !dtype_is_float(x->type->dtype) ? e_binary(n, OP_sub, y, e_number(n, y, 1)) : y;
}

/* Index of the largest or smallest element. Of equal elements the first counts; select_last_index
 * counts the last, by reversing the axis. */
static void
import_arg(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	int axis = x ? want_axis(n, want_int(n, "axis", 0), x->type->rank) : -1;
	bool last = want_int(n, "select_last_index", 0);

	if (axis < 0)
		return;
	Ints shape = shape_of(x), axes = {.n = 1, .at = {axis}};
	if (last)
		x = e_op(n, OP_reverse, 1, &x, &(ReverseAttr){axes});
	if (n->extra->flag && x)
		x = reversed_order(n, x);
	Value *at = e_op(n, OP_argmax, 1, &x, &(AxisAttr){axis});
	if (last && at)
		at = e_binary(n, OP_sub, e_number(n, at, (double)shape.at[axis] - 1), at);
	shape.at[axis] = 1;
	set_output(n, 0, want_int(n, "keepdims", 1) ? e_reshape(n, at, shape) : at);
}

static void
import_cum_sum(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	int64_t given;

	if (!x || !want_constant_int(n, 1, &given))
		return;
	int axis = want_axis(n, given, x->type->rank);
	CumulateAttr a = {.kind = n->extra->kind,
	                  .axis = axis,
	                  .reverse = want_int(n, "reverse", 0),
	                  .exclusive = want_int(n, "exclusive", 0)};
	if (axis >= 0)
		set_output(n, 0, e_op(n, OP_cumulate, 1, &x, &a));
}

const ImportRow import_sort_rows[] = {
	/* name    from  to  importer  extra */
	{"TopK", 1, 9, import_top_k, {0}, NULL},
	{"TopK", 10, 0, import_top_k, {.input = true}, NULL},
	{"ArgMax", 1, 0, import_arg, .facts = {.no_gradient = true}},
	{"ArgMin", 1, 0, import_arg, {.flag = true}, .facts = {.no_gradient = true}},
	{"CumSum", 11, 0, import_cum_sum, {.kind = REDUCE_SUM}, NULL},
	{"CumProd", 26, 0, import_cum_sum, {.kind = REDUCE_PROD}, NULL},
	{0},
};
