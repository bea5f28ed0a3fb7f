/* The ops that process the elements along an axis in order: cumulate (running sums and
 * products), sort and sort_runs. */
#include "ir/ops/family.h"

#include <math.h>

/* ---- cumulate {kind, axis, reverse, exclusive}: running sums or products */
static const char *const cumulate_kind_names[] = {"sum", "prod", NULL};
static const Field cumulate_fields[] = {
	{"kind", FIELD_ENUM, offsetof(CumulateAttr, kind), cumulate_kind_names, false},
	{"axis", FIELD_INT, offsetof(CumulateAttr, axis), NULL, false},
	{"reverse", FIELD_BOOL, offsetof(CumulateAttr, reverse), NULL, true},
	{"exclusive", FIELD_BOOL, offsetof(CumulateAttr, exclusive), NULL, true},
	{0}};

static void
cumulate_infer(Infer *in)
{
	infer_axis(in, ((const CumulateAttr *)in->attr)->axis, in->operand[0]->rank);
	if (in->operand[0]->dtype == BOOL)
		infer_error(in, "not defined for bool");
	in->result[0] = in->operand[0];
}

static void
cumulate_line(const CumulateAttr *a, const EvalTensor *x, EvalTensor *y, int64_t base,
              int64_t stride, int64_t size)
{
	double f = a->kind == REDUCE_PROD;
	uint64_t u = a->kind == REDUCE_PROD;

	for (int64_t k = 0; k < size; k++) {
		int64_t i = base + (a->reverse ? size - 1 - k : k) * stride;
		double old_f = f;
		uint64_t old_u = u;
		if (dtype_is_float(x->type->dtype)) {
			f = a->kind == REDUCE_PROD ? f * x->f[i] : f + x->f[i];
			y->f[i] = a->exclusive ? old_f : f;
		} else {
			u = a->kind == REDUCE_PROD ? u * (uint64_t)x->i[i] : u + (uint64_t)x->i[i];
			y->i[i] = (int64_t)(a->exclusive ? old_u : u);
		}
	}
}

static void
cumulate_eval(Eval *ev)
{
	const CumulateAttr *a = ev->attr;
	const EvalTensor *x = &ev->operand[0];
	int64_t strides[MAX_RANK];

	type_strides(x->type, strides);
	for (IndexWalk w = index_walk(x->type); w.ok; index_walk_next(&w))
		if (w.at[a->axis] == 0)
			cumulate_line(a, x, &ev->result[0], w.flat, strides[a->axis],
			              x->type->dims[a->axis]);
}

/* sum: dx_i = sum_{j >= i} dy_j
 * prod: dx_i = sum_{j >= i} dy_j prod_{k <= j, k != i} x_k
 * The inner product is computed for every pair (i, j). */
static void
cumulate_grad(Grad *g)
{
	CumulateAttr a = *(const CumulateAttr *)g->node->attr;

	if (a.kind == REDUCE_SUM) {
		a.reverse = !a.reverse;
		grad_add(g, 0, build(g->b, OP_cumulate, 1, &g->dresult[0], &a));
		return;
	}
	/* X[..., j, i] = x_j if j != i, else 1. Accumulated along j it is prod_{k<=j, k!=i} x_k.
	 * For j before i, the result y_j does not depend on x_i, so these pairs are set to 0. */
	Builder *b = g->b;
	Value *x = node_operand(g->node, 0);
	int rank = x->type->rank;
	Ints shape = ints_of_type(x->type), axes = {.n = rank};
	for (int i = 0; i < rank; i++)
		axes.at[i] = i;
	shape.at[shape.n++] = x->type->dims[a.axis];
	Value *pairs = b_broadcast(b, x, shape, axes);
	Value *j = b_iota(b, S64, shape, (int)a.axis), *i = b_iota(b, S64, shape, rank);
	Value *one = b_splat(b, pairs->type, 1), *zero = b_splat(b, pairs->type, 0);
	Value *others = b_select(b, b_binary(b, OP_eq, i, j), one, pairs);
	Value *paths = build(b, OP_cumulate, 1, &others, &a);
	OpKind before = a.reverse ? (a.exclusive ? OP_lt : OP_le) : (a.exclusive ? OP_gt : OP_ge);
	paths = b_select(b, b_binary(b, before, j, i), paths, zero);
	Value *dy = b_broadcast(b, g->dresult[0], shape, axes);
	Value *dx = b_reduce(b, REDUCE_SUM, b_binary(b, OP_mul, dy, paths),
	                     (Ints){.n = 1, .at = {a.axis}});
	/* Axis i is the last axis now: moves it to the place of axis j. */
	Ints order = {.n = rank};
	for (int k = 0; k < rank; k++)
		order.at[k] = k < a.axis ? k : k == a.axis ? rank - 1 : k - 1;
	grad_add(g, 0, b_transpose(b, dx, order));
}

static void
cumulate_factors(Partition *p)
{
	partition_alike(p, &(Ints){.n = 1, .at = {((const CumulateAttr *)p->node->attr)->axis}});
}

static const Sample cumulate_samples[] = {
	{"{kind = sum, axis = 1}", "f64[12,5,3]"},
	{"{kind = sum, axis = 0, reverse = true, exclusive = true}", "f64[5]"},
	{"{kind = prod, axis = 1}", "f64[2,4]"},
	{"{kind = prod, axis = 0, exclusive = true}", "f64[4,2] with_zero"},
	{"{kind = prod, axis = 0, reverse = true}", "f64[3]"},
	{"{kind = prod, axis = 0, reverse = true, exclusive = true}", "f64[4]"},
	{"{kind = sum, axis = 0}", "f64[0,3]"},
	{"{kind = prod, axis = 1}", "f64[1,0]"},
	{"{kind = prod, axis = 0}", "f64[1,3]"},
	{"{kind = sum, axis = 0}", "f64[16400] ties"},
	{"{kind = sum, axis = 1, reverse = true, exclusive = true}", "f64[3,6001] ties"},
	{0}};
const OpRow op_cumulate = {
	COLUMNS(cumulate, CumulateAttr, cumulate_fields, cumulate_grad,
                "running sum or product along an axis"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_OPAQUE,
	.flops = flops_one,
	.precision = PRECISION_HIGH,
	.partition =
		{.factors = cumulate_factors,
                 .doc = "every axis but `axis`: there a part needs the sum of the parts before"},
};

/* ---- sort {axis, descending}: a stable sort; results are the values and their old places */
static const Field sort_fields[] = {
	{"axis", FIELD_INT, offsetof(SortAttr, axis), NULL, false},
	{"descending", FIELD_BOOL, offsetof(SortAttr, descending), NULL, true},
	{0}};

static void
sort_infer(Infer *in)
{
	infer_axis(in, ((const SortAttr *)in->attr)->axis, in->operand[0]->rank);
	in->result[0] = in->operand[0];
	in->result[1] = type_with_dtype(in->m, in->operand[0], S64);
}

/* Does element i stand before element j? NaN is larger than all numbers. */
static bool
sort_before(const EvalTensor *x, bool descending, int64_t i, int64_t j)
{
	if (!dtype_is_float(x->type->dtype)) {
		int64_t a = x->i[descending ? j : i], b = x->i[descending ? i : j];
		return x->type->dtype == U64 ? (uint64_t)a < (uint64_t)b : a < b;
	}
	double a = x->f[descending ? j : i], b = x->f[descending ? i : j];
	return a < b || (isnan(b) && !isnan(a));
}

/* Sorts the n elements from `base` on; place: the old place of each sorted element. */
static void
sort_line(const EvalTensor *x, bool descending, int64_t base, int64_t stride, int64_t n,
          EvalTensor *y, EvalTensor *place)
{
	for (int64_t i = 0; i < n; i++) { /* insertion: naive and stable */
		int64_t k = i;
		for (; k > 0 && sort_before(x, descending, base + i * stride,
		                            base + place->i[base + (k - 1) * stride] * stride);
		     k--)
			place->i[base + k * stride] = place->i[base + (k - 1) * stride];
		place->i[base + k * stride] = i;
	}
	for (int64_t k = 0; k < n; k++)
		eval_move(y, base + k * stride, x, base + place->i[base + k * stride] * stride);
}

static void
sort_eval(Eval *ev)
{
	const SortAttr *a = ev->attr;
	const EvalTensor *x = &ev->operand[0];
	int64_t strides[MAX_RANK];

	type_strides(x->type, strides);
	for (IndexWalk w = index_walk(x->type); w.ok; index_walk_next(&w))
		if (w.at[a->axis] == 0)
			sort_line(x, a->descending, w.flat, strides[a->axis],
			          x->type->dims[a->axis], &ev->result[0], &ev->result[1]);
}

/* dx[place] = dy: a scatter over the flat elements */
static void
sort_grad(Grad *g)
{
	const SortAttr *a = g->node->attr;
	Builder *b = g->b;
	Value *x = node_operand(g->node, 0), *place = node_result(g->node, 1);
	Ints shape = ints_of_type(x->type), flat = {.n = 1, .at = {x->type->n}};
	int64_t strides[MAX_RANK];
	Value *linear = NULL;

	if (!g->dresult[0])
		return;
	type_strides(x->type, strides);
	for (int i = 0; i < x->type->rank; i++) {
		Value *at = i == a->axis ? place : b_iota(b, S64, shape, i);
		at = b_binary(b, OP_mul, at, b_splat(b, place->type, (double)strides[i]));
		linear = linear ? b_binary(b, OP_add, linear, at) : at;
	}
	Value *dx = b_scatter(b, SCATTER_ADD, b_reshape(b, zeros_like(b, x), flat),
	                      b_reshape(b, linear, flat), b_reshape(b, g->dresult[0], flat), 0);
	grad_add(g, 0, b_reshape(b, dx, shape));
}

static void
sort_factors(Partition *p)
{
	partition_alike(p, &(Ints){.n = 1, .at = {((const SortAttr *)p->node->attr)->axis}});
}

static const Sample sort_samples[] = {
	{"{axis = 1}", "f64[12,5,3]"}, {"{axis = 0, descending = true}", "f64[33]"},
	{"{axis = 0}", "f64[7] nans"}, {"{axis = 0, descending = true}", "f64[7] nans"},

	{"{axis = 0}", "f64[0]"},      {"{axis = 1, descending = true}", "f64[0,3]"},
	{"{axis = 0}", "f64[1]"},      {0}};
const OpRow op_sort = {
	COLUMNS(sort, SortAttr, sort_fields, sort_grad,
                "stable sort along an axis; NaN is larger than all numbers"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"values", "indices"},
	.fuse = FUSE_OPAQUE,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.partition = {.factors = sort_factors, .doc = "every axis but the sorted one"},
};

/* ---- sort_runs {axis, from, to, descending}: a step of a merge sort. Before, each run of `from`
 * elements is sorted; afterwards, each run of `to` elements is. Operand 1, the elements' indices,
 * is moved in the same way. `legalize` makes it from `sort`. */
static const Field sort_runs_fields[] = {
	{"axis", FIELD_INT, offsetof(SortRunsAttr, axis), NULL, false},
	{"from", FIELD_INT, offsetof(SortRunsAttr, from), NULL, false},
	{"to", FIELD_INT, offsetof(SortRunsAttr, to), NULL, false},
	{"descending", FIELD_BOOL, offsetof(SortRunsAttr, descending), NULL, true},
	{0}};

static void
sort_runs_infer(Infer *in)
{
	const SortRunsAttr *a = in->attr;

	infer_axis(in, a->axis, in->operand[0]->rank);
	if (in->operand[1] != type_with_dtype(in->m, in->operand[0], S64))
		infer_error(in, "indices are not s64 of x's shape");
	if (a->from < 1 || a->to < a->from || (a->from > 1 && a->to != 2 * a->from))
		infer_error(in, "from = %lld, to = %lld: needs from = 1, or to = 2 * from",
		            (long long)a->from, (long long)a->to);
	in->result[0] = in->operand[0];
	in->result[1] = in->operand[1];
}

static void
sort_runs_eval(Eval *ev)
{
	const SortRunsAttr *a = ev->attr;
	const EvalTensor *x = &ev->operand[0], *indices = &ev->operand[1];
	EvalTensor *places = &ev->result[1];
	int64_t strides[MAX_RANK], size = x->type->dims[a->axis];

	type_strides(x->type, strides);
	for (IndexWalk w = index_walk(x->type); w.ok; index_walk_next(&w)) {
		int64_t first = w.at[a->axis], left = size - first, stride = strides[a->axis];
		int64_t n = left < a->to ? left : a->to;
		if (first % a->to)
			continue;
		sort_line(x, a->descending, w.flat, stride, n, &ev->result[0], places);
		for (int64_t k = 0; k < n; k++) {
			int64_t *place = &places->i[w.flat + k * stride];
			*place = indices->i[w.flat + *place * stride];
		}
	}
}

static void
sort_runs_factors(Partition *p)
{
	partition_alike(p, &(Ints){.n = 1, .at = {((const SortRunsAttr *)p->node->attr)->axis}});
}

static const Sample sort_runs_samples[] = {
	{"{axis = 1, from = 1, to = 3}", "f64[12,8,3], s64[12,8,3] in 8"},
	{"{axis = 0, from = 1, to = 8, descending = true}", "f64[29] nans, s64[29] in 29"},
	{"{axis = 0, from = 1, to = 16, descending = true}", "f64[29], s64[29] in 29"},
	{"{axis = 0, from = 8, to = 16}", "f64[45] runs, s64[45] in 45"},
	{"{axis = 1, from = 8, to = 16}", "f64[3,16] runs, s64[3,16] in 16"},
	{"{axis = 0, from = 8, to = 16}", "f64[7] runs, s64[7] in 7"},
	{"{axis = 0, from = 8, to = 16}", "f64[0], s64[0]"},
	{"{axis = 0, from = 1, to = 4}", "f64[1], s64[1]"},
	{0}};
const OpRow op_sort_runs = {
	COLUMNS(sort_runs, SortRunsAttr, sort_runs_fields, grad_none,
                "stably sorts every run of `to` elements, whose runs of `from` elements are sorted already"),
	.operands = {{"x", OPERAND_REQUIRED}, {"indices", OPERAND_REQUIRED}},
	.results = {"values", "indices"},
	.fuse = FUSE_OPAQUE,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.partition = {.factors = sort_runs_factors, .doc = "every axis but the sorted one"},
};
