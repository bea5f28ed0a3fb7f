/* The ops reduce (sum, product, maximum, minimum over whole axes) and argmax. The reduced axes
 * vanish from the shape. */
#include "ir/ops/family.h"

#include <math.h>

const OpKind reduce_pair[] = {[REDUCE_SUM] = OP_add,
                              [REDUCE_PROD] = OP_mul,
                              [REDUCE_MAX] = OP_max,
                              [REDUCE_MIN] = OP_min};
static const char *const reduce_kind_names[] = {"sum", "prod", "max", "min", NULL};
static const Field reduce_fields[] = {
	{"kind", FIELD_ENUM, offsetof(ReduceAttr, kind), reduce_kind_names, false},
	{"axes", FIELD_INTS, offsetof(ReduceAttr, axes), NULL, false},
	{0}};

/* x: T[4,8], axes = [1]  ->  T[4] */
static void
reduce_infer(Infer *in)
{
	const ReduceAttr *a = in->attr;
	Type x = in->operand[0];
	Ints shape = {0};

	if (x->dtype == BOOL)
		infer_error(in, "not defined for bool");
	for (int i = 0; i < a->axes.n; i++) {
		if (!infer_axis(in, a->axes.at[i], x->rank))
			return;
		if (i && a->axes.at[i] <= a->axes.at[i - 1])
			infer_error(in, "axes must ascend");
	}
	for (int i = 0; i < x->rank; i++)
		if (!ints_has(&a->axes, i))
			shape.at[shape.n++] = x->dims[i];
	infer_set(in, 0, x->dtype, &shape);
}

static double
combine_float(int kind, double a, double b)
{
	switch (kind) {
	case REDUCE_SUM: return a + b;
	case REDUCE_PROD: return a * b;
	case REDUCE_MAX: return isnan(a) || a > b ? a : b;
	default: return isnan(a) || a < b ? a : b;
	}
}

static int64_t
combine_int(int kind, int64_t a, int64_t b, bool is_u64)
{
	bool less = int_less(a, b, is_u64);

	switch (kind) {
	case REDUCE_SUM: return (int64_t)((uint64_t)a + (uint64_t)b);
	case REDUCE_PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
	case REDUCE_MAX: return less ? b : a;
	default: return less ? a : b;
	}
}

/* The result of a reduction over no elements: 0 for a sum, 1 for a product, the lowest number of
 * the type for a maximum, the highest for a minimum. */
static void
reduce_identity(int kind, DType t, EvalTensor *y, int64_t i)
{
	static const double floats[] = {0, 1, -INFINITY, INFINITY};
	int bits = dtype_info[t].bits;
	bool is_signed = dtype_info[t].class == CLASS_SIGNED;
	int64_t high = is_signed ? (int64_t)(~0ull >> (65 - bits))
	                         : (int64_t)(~0ull >> (64 - bits));
	int64_t ints[] = {0, 1, is_signed ? -high - 1 : 0, high};

	if (dtype_is_float(t))
		y->f[i] = floats[kind];
	else
		y->i[i] = ints[kind];
}

static void
reduce_eval(Eval *ev)
{
	const ReduceAttr *a = ev->attr;
	const EvalTensor *x = &ev->operand[0];
	EvalTensor *y = &ev->result[0];
	int64_t strides[MAX_RANK], kept[MAX_RANK] = {0};
	int k = 0;

	type_strides(y->type, strides);
	for (int i = 0; i < x->type->rank; i++)
		if (!ints_has(&a->axes, i))
			kept[i] = strides[k++];
	for (int64_t i = 0; i < y->type->n; i++)
		reduce_identity(a->kind, y->type->dtype, y, i);
	for (IndexWalk w = index_walk(x->type); w.ok; index_walk_next(&w)) {
		int64_t i = flat_of(w.at, kept, x->type->rank);
		if (dtype_is_float(x->type->dtype))
			y->f[i] = combine_float(a->kind, y->f[i], x->f[w.flat]);
		else
			y->i[i] = combine_int(a->kind, y->i[i], x->i[w.flat],
			                      x->type->dtype == U64);
	}
}

/* prod: dx_i = dy * product of the other elements. The product of the others is (product of the
 * elements before i) * (product of the elements after i), so zeros need no special case. The
 * reduced axes are first moved to the end and joined. */
static Value *
prod_grad(Grad *g, Value *x, Value *dy, const Ints *axes)
{
	Builder *b = g->b;
	Ints order = {0}, inverse = {.n = x->type->rank}, joined = {0};
	int64_t n = 1;

	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < x->type->rank; i++)
			if (ints_has(axes, i) == (pass == 1))
				order.at[order.n++] = i;
	for (int i = 0; i < order.n; i++) {
		inverse.at[order.at[i]] = i;
		if (!ints_has(axes, order.at[i]))
			joined.at[joined.n++] = x->type->dims[order.at[i]];
		else
			n *= x->type->dims[order.at[i]];
	}
	joined.at[joined.n++] = n;
	Value *t = b_transpose(b, x, order);
	Value *flat = b_reshape(b, t, joined);
	CumulateAttr forward = {.axis = joined.n - 1, .exclusive = true, .kind = REDUCE_PROD};
	CumulateAttr backward = forward;
	backward.reverse = true;
	Value *others = b_binary(b, OP_mul, build(b, OP_cumulate, 1, &flat, &forward),
	                         build(b, OP_cumulate, 1, &flat, &backward));
	others = b_transpose(b, b_reshape(b, others, ints_of_type(t->type)), inverse);
	return b_binary(b, OP_mul, b_broadcast_back(b, dy, x->type, *axes), others);
}

/* sum:  dx = broadcast(dy)
 * max:  dx = mask * broadcast(dy) / broadcast(sum(mask)),  mask = (x == broadcast(y)) */
static void
reduce_grad(Grad *g)
{
	const ReduceAttr *a = g->node->attr;
	Builder *b = g->b;
	Value *x = node_operand(g->node, 0), *y = node_result(g->node, 0), *dy = g->dresult[0];

	if (a->kind == REDUCE_SUM) {
		grad_add(g, 0, b_broadcast_back(b, dy, x->type, a->axes));
		return;
	}
	if (a->kind == REDUCE_PROD) {
		grad_add(g, 0, prod_grad(g, x, dy, &a->axes));
		return;
	}
	Value *hit = b_binary(b, OP_eq, x, b_broadcast_back(b, y, x->type, a->axes));
	Value *mask = b_cast(b, hit, x->type->dtype);
	Value *share = b_binary(b, OP_div, dy, b_reduce(b, REDUCE_SUM, mask, a->axes));
	grad_add(g, 0, b_binary(b, OP_mul, mask, b_broadcast_back(b, share, x->type, a->axes)));
}

/* Drops a reduction over no axes or over axes of size 1. */
static Value *
reduce_simplify(Builder *b, Node *n)
{
	const ReduceAttr *a = n->attr;
	Value *x = node_operand(n, 0);

	for (int i = 0; i < a->axes.n; i++)
		if (x->type->dims[a->axes.at[i]] != 1)
			return NULL;
	return b_reshape(b, x, ints_of_type(node_result(n, 0)->type));
}

static void
reduce_factors(Partition *p)
{
	static const Combine combine[] = {[REDUCE_SUM] = COMBINE_SUM,
	                                  [REDUCE_PROD] = COMBINE_PROD,
	                                  [REDUCE_MAX] = COMBINE_MAX,
	                                  [REDUCE_MIN] = COMBINE_MIN};
	const ReduceAttr *a = p->node->attr;
	Type x = node_operand(p->node, 0)->type;
	int kept = 0;

	for (int i = 0; i < x->rank; i++) {
		bool goes = ints_has(&a->axes, i);
		Factor *f = partition_add(p, x->dims[i], goes ? combine[a->kind] : COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		if (!goes)
			factor_cut_result(f, 0, kept++);
	}
}

static const Sample reduce_samples[] = {{"{kind = sum, axes = [0,2]}", "f64[12,3,4]"},
                                        {"{kind = sum, axes = [1]}", "f64[12,33]"},
                                        {"{kind = sum, axes = [0]}", "f64[37,3]"},
                                        {"{kind = max, axes = [1]}", "f64[2,12,3] ties"},
                                        {"{kind = max, axes = [0,2]}", "f64[3,1,5]"},
                                        {"{kind = min, axes = [0,1]}", "f64[12,5]"},
                                        {"{kind = max, axes = [1]}", "f64[3,4] pairs"},
                                        {"{kind = max, axes = [0]}", "f64[2,5] nans"},
                                        {"{kind = min, axes = [0]}", "f64[2,5] nans"},

                                        {"{kind = prod, axes = [0]}", "f64[3] with_zero"},
                                        {"{kind = prod, axes = [0,2]}", "f64[12,3,2]"},
                                        {"{kind = sum, axes = [0]}", "f64[0,2]"},
                                        {"{kind = prod, axes = [1]}", "f64[2,0]"},
                                        {"{kind = max, axes = [0]}", "f64[2,0]"},
                                        {0}};
const OpRow op_reduce = {
	COLUMNS(reduce, ReduceAttr, reduce_fields, reduce_grad, "sum, prod, max or min over axes"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_REDUCE,
	.simplify = reduce_simplify,
	.flops = flops_per_operand,
	.precision = PRECISION_HIGH,
	.as_floats = OPERAND(0),
	.leaves_range = true,
	.channels_last = {.operands = OPERAND(0), .build = reduce_channels_last},
	.partition =
		{.factors = reduce_factors,
                 .doc = "every axis; along a reduced axis the results of parts are combined by `kind`"},
};

/* ---- argmax {axis}: the first place of the largest element; NaN counts as the smallest */
static void
argmax_infer(Infer *in)
{
	int64_t axis = ((const AxisAttr *)in->attr)->axis;
	Type x = in->operand[0];

	if (!infer_axis(in, axis, x->rank))
		return;
	if (x->dims[axis] == 0)
		infer_error(in, "no elements along axis %lld", (long long)axis);
	if (x->dtype == BOOL)
		infer_error(in, "not defined for bool");
	in->result[0] = type_with_dtype(in->m, type_drop_axis(in->m, x, (int)axis), S64);
}

static bool
eval_greater(const EvalTensor *x, int64_t i, int64_t j)
{
	if (!dtype_is_float(x->type->dtype))
		return int_less(x->i[j], x->i[i], x->type->dtype == U64);
	return x->f[i] > x->f[j] || (isnan(x->f[j]) && !isnan(x->f[i]));
}

static void
argmax_eval(Eval *ev)
{
	int64_t axis = ((const AxisAttr *)ev->attr)->axis, strides[MAX_RANK];
	const EvalTensor *x = &ev->operand[0];
	EvalTensor *y = &ev->result[0];

	type_strides(x->type, strides);
	for (IndexWalk w = index_walk(y->type); w.ok; index_walk_next(&w)) {
		int64_t base = 0, best = 0;
		for (int i = 0; i < y->type->rank; i++)
			base += w.at[i] * strides[i < axis ? i : i + 1];
		for (int64_t j = 1; j < x->type->dims[axis]; j++)
			if (eval_greater(x, base + j * strides[axis], base + best * strides[axis]))
				best = j;
		y->i[w.flat] = best;
	}
}

static void
argmax_factors(Partition *p)
{
	int64_t axis = ((const AxisAttr *)p->node->attr)->axis;
	Type x = node_operand(p->node, 0)->type;

	for (int i = 0; i < x->rank; i++) {
		if (i == axis)
			continue;
		Factor *f = partition_add(p, x->dims[i], COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		factor_cut_result(f, 0, i < axis ? i : i - 1);
	}
}

static const Sample argmax_samples[] = {{"{axis = 1}", "f64[12,5,2] ties"},
                                        {"{axis = 0}", "f64[1]"},
                                        {"{axis = 1}", "f64[0,3]"},
                                        {"{axis = 0}", "f64[3,3] nans"},
                                        {"{axis = 0}", "s64[4,3]"},
                                        {"{axis = 0}", "f64[65537] ties"},
                                        {"{axis = 1}", "f64[3,30001] nans"},

                                        {0}};
const OpRow op_argmax = {
	COLUMNS(argmax, AxisAttr, axis_fields, grad_zero,
                "the place of the largest element along an axis, the first of equal ones"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_OPAQUE,
	.flops = flops_per_operand,
	.precision = PRECISION_FOLLOW,
	.partition = {.factors = argmax_factors,
                      .doc = "every axis but `axis`: there a part would also need its maximum"},
};
