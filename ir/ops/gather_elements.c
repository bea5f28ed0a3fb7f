/* The ops gather_elements (reads an element for each index, within the index's own line) and scatter_elements (adds
 * up such elements), along one axis. A line is all elements along the axis. These are torch.gather and
 * torch.Tensor.scatter_add_; relative positions in attention are read so. */
#include "ir/ops/elementwise.h"
#include "ir/ops/ops.h"

/* Checks indices whose lines lie in tensors of the type t: the shapes differ along the axis only. */
static bool
check_lines(Infer *in, Type t, Type indices, int64_t axis)
{
	if (indices->dtype != S64 && indices->dtype != S32)
		infer_error(in, "indices are %s, need s64 or s32", dtype_info[indices->dtype].name);
	else if (indices->rank != t->rank)
		infer_error(in, "indices have rank %d, need %d", indices->rank, t->rank);
	else if (infer_axis(in, axis, t->rank)) {
		for (int i = 0; i < t->rank; i++)
			if (i != axis && indices->dims[i] != t->dims[i]) {
				infer_error(in, "axis %d has %lld indices, need %lld", i,
				            (long long)indices->dims[i], (long long)t->dims[i]);
				return false;
			}
		return true;
	}
	return false;
}

/* data: T[5,7], indices: s64[5,3], axis = 1  ->  T[5,3] */
static void
gather_elements_infer(Infer *in)
{
	Ints shape = ints_of_type(in->operand[1]);

	if (check_lines(in, in->operand[0], in->operand[1], ((const AxisAttr *)in->attr)->axis))
		infer_set(in, 0, in->operand[0]->dtype, &shape);
}

/* Calls visit(ev, i, j) for every index: i is its flat place, j the flat place of the element in `lines` that it
 * selects. Leaves out indices out of range. */
static void
walk(Eval *ev, const EvalTensor *indices, Type lines, int64_t axis,
     void (*visit)(Eval *ev, int64_t i, int64_t j))
{
	int64_t strides[MAX_RANK];

	type_strides(lines, strides);
	for (IndexWalk w = index_walk(indices->type); w.ok; index_walk_next(&w)) {
		int64_t at = indices->i[w.flat];
		if (at >= 0 && at < lines->dims[axis])
			visit(ev, w.flat,
			      flat_of(w.at, strides, lines->rank) +
			              (at - w.at[axis]) * strides[axis]);
	}
}

static void
read_element(Eval *ev, int64_t i, int64_t j)
{
	eval_move(&ev->result[0], i, &ev->operand[0], j);
}

/* An index out of range gives 0. */
static void
gather_elements_eval(Eval *ev)
{
	walk(ev, &ev->operand[1], ev->operand[0].type, ((const AxisAttr *)ev->attr)->axis,
	     read_element);
}

static void
gather_elements_grad(Grad *g)
{
	int64_t axis = ((const AxisAttr *)g->node->attr)->axis;
	ScatterElementsAttr attr = {axis, node_operand(g->node, 0)->type->dims[axis]};

	grad_add(g, 0,
	         build(g->b, OP_scatter_elements, 2,
	               (Value *[]){node_operand(g->node, 1), g->dresult[0]}, &attr));
}

/* The index of indices, and whether it is in range. */
static LoopValue
index_at_place(Lower *lw, const Value *indices, const Index *at, int64_t size, LoopValue *inside)
{
	LoopValue j = lb_cast(lw->lb, S64, lower_element(lw, indices, at));

	*inside = lb_inside(lw->lb, affine_scalar(lw->lb, j), size);
	return j;
}

static LoopValue
gather_elements_element(Lower *lw, const Node *n, const Index *at)
{
	Value *data = node_operand(n, 0);
	int64_t axis = ((const AxisAttr *)n->attr)->axis;
	LoopValue inside;

	if (data->type->n == 0)
		return lb_number(lw->lb, compute_type(data->type->dtype), 0);
	Index place = *at;
	place.of = NULL;
	place.at[axis] = affine_scalar(lw->lb, index_at_place(lw, node_operand(n, 1), at,
	                                                      data->type->dims[axis], &inside));
	return lower_element_inside(lw, data, &place, inside);
}

static void
gather_elements_factors(Partition *p)
{
	Type indices = node_operand(p->node, 1)->type;
	int axis = (int)((const AxisAttr *)p->node->attr)->axis;

	for (int i = 0; i < indices->rank; i++) {
		Factor *f = partition_add(p, indices->dims[i], COMBINE_JOIN);
		if (i != axis)
			factor_cut_operand(f, 0, i);
		factor_cut_operand(f, 1, i);
		factor_cut_result(f, 0, i);
	}
}

static const Sample gather_elements_samples[] = {{"{axis = 1}", "f64[12,12], s64[12,3] in 12"},
                                                 {"{axis = 1}", "f64[4,3,4], s64[4,12,4] in 3"},
                                                 {"{axis = 0}", "f64[5,1], s64[4,1] in 5"},
                                                 {"{axis = 2}", "f64[3,2,4], s64[3,2,0] in 4"},
                                                 {0}};
const OpRow op_gather_elements = {
	COLUMNS(gather_elements, AxisAttr, axis_fields, gather_elements_grad,
                "an element of data for each index, which lies along an axis"),
	.operands = {{"data", OPERAND_REQUIRED}, {"indices", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_INDEX,
	.element = gather_elements_element,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.as_floats = OPERAND(0),
	.partition = {
		.factors = gather_elements_factors,
		.doc = "every axis of the indices; the axis along which they lie cuts no data"}};

/* ---- scatter_elements {axis, size}: zeros, with updates added */
static const Field scatter_elements_fields[] = {
	{"axis", FIELD_INT, offsetof(ScatterElementsAttr, axis), NULL, false},
	{"size", FIELD_INT, offsetof(ScatterElementsAttr, size), NULL, false},
	{0}};

/* indices: s64[5,3], updates: T[5,3], axis = 1, size = 7  ->  T[5,7] */
static void
scatter_elements_infer(Infer *in)
{
	const ScatterElementsAttr *a = in->attr;
	Type updates = in->operand[1];
	Ints shape = ints_of_type(updates);

	if (!check_lines(in, updates, in->operand[0], a->axis))
		return;
	if (in->operand[0]->dims[a->axis] != updates->dims[a->axis] || updates->dtype == BOOL ||
	    a->size < 0) {
		infer_error(in, "updates do not have the indices' shape, are bool, or size is %lld",
		            (long long)a->size);
		return;
	}
	shape.at[a->axis] = a->size;
	infer_set(in, 0, updates->dtype, &shape);
}

static void
add_element(Eval *ev, int64_t i, int64_t j)
{
	EvalTensor *y = &ev->result[0];

	if (dtype_is_float(y->type->dtype))
		y->f[j] += ev->operand[1].f[i];
	else
		y->i[j] = (int64_t)((uint64_t)y->i[j] + (uint64_t)ev->operand[1].i[i]);
}

/* Adds in the order of the indices. An index out of range adds nothing. */
static void
scatter_elements_eval(Eval *ev)
{
	walk(ev, &ev->operand[0], ev->result[0].type, ((const ScatterElementsAttr *)ev->attr)->axis,
	     add_element);
}

static void
scatter_elements_grad(Grad *g)
{
	AxisAttr attr = {((const ScatterElementsAttr *)g->node->attr)->axis};

	grad_add(g, 1,
	         build(g->b, OP_gather_elements, 2,
	               (Value *[]){g->dresult[0], node_operand(g->node, 0)}, &attr));
}

static void
scatter_elements_factors(Partition *p)
{
	Type indices = node_operand(p->node, 0)->type;
	int axis = (int)((const ScatterElementsAttr *)p->node->attr)->axis;

	for (int i = 0; i < indices->rank; i++) {
		Factor *f = partition_add(p, indices->dims[i],
		                          i == axis ? COMBINE_SUM : COMBINE_JOIN);
		factor_cut_operand(f, 0, i);
		factor_cut_operand(f, 1, i);
		if (i != axis)
			factor_cut_result(f, 0, i);
	}
}

static int64_t
scatter_elements_flops(const Node *n)
{
	return node_operand(n, 1)->type->n;
}

static const Sample scatter_elements_samples[] = {
	{"{axis = 1, size = 12}", "s64[12,3] in 12, f64[12,3]"},
	{"{axis = 1, size = 3}", "s64[4,12,4] in 3, f64[4,12,4]"},
	{"{axis = 0, size = 5}", "s64[4,1] in 5, f64[4,1]"},
	{"{axis = 2, size = 4}", "s64[3,2,0] in 4, f64[3,2,0]"},
	{0}};
const OpRow op_scatter_elements = {
	COLUMNS(scatter_elements, ScatterElementsAttr, scatter_elements_fields,
                scatter_elements_grad,
                "sums of the updates with equal indices along an axis, in order"),
	.operands = {{"indices", OPERAND_REQUIRED}, {"updates", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_OPAQUE,
	.flops = scatter_elements_flops,
	.precision = PRECISION_HIGH,
	.partition = {.factors = scatter_elements_factors,
                      .doc = "every axis; results of parts along the indexed axis are added"}};
