/* The op lookup: reads one number of a small table for each element. */
#include "ir/ops/elementwise.h"
#include "ir/ops/ops.h"

/* ---- lookup: table: T[k], indices: s64[...] -> T[...]. It computes the same as a gather from a
 * vector, but is elementwise: it can share a kernel with the nodes that compute the indices, and
 * a kernel that reads the result may compute it again. An index out of range gives 0. */
enum { TABLE, INDICES };

static void
lookup_infer(Infer *in)
{
	Type table = in->operand[TABLE], indices = in->operand[INDICES];
	Ints shape = ints_of_type(indices);

	if (table->rank != 1)
		infer_error(in, "the table has rank %d, not 1", table->rank);
	else if (indices->dtype != S64 && indices->dtype != S32)
		infer_error(in, "indices are %s, need s64 or s32", dtype_info[indices->dtype].name);
	else
		infer_set(in, 0, table->dtype, &shape);
}

static void
lookup_eval(Eval *ev)
{
	const EvalTensor *table = &ev->operand[TABLE], *indices = &ev->operand[INDICES];

	for (int64_t i = 0; i < indices->type->n; i++)
		if (indices->i[i] >= 0 && indices->i[i] < table->type->n)
			eval_move(&ev->result[0], i, table, indices->i[i]);
}

/* dtable: dy summed at the indices */
static void
lookup_grad(Grad *g)
{
	Value *table = node_operand(g->node, TABLE), *indices = node_operand(g->node, INDICES);
	Ints flat = {.n = 1, .at = {indices->type->n}};

	grad_add(g, TABLE,
	         b_scatter(g->b, SCATTER_ADD, b_splat(g->b, table->type, 0),
	                   b_reshape(g->b, indices, flat), b_reshape(g->b, DY, flat), 0));
}

static LoopValue
lookup_element(Lower *lw, const Node *n, const Index *at)
{
	Value *table = node_operand(n, TABLE);
	LoopBuilder *lb = lw->lb;

	if (table->type->n == 0)
		return lb_number(lb, compute_type(table->type->dtype), 0);
	LoopValue i = lb_cast(lb, S64, lower_element(lw, node_operand(n, INDICES), at));
	Index place = {.rank = 1, .at = {affine_scalar(lb, i)}};
	LoopValue inside = lb_inside(lb, affine_scalar(lb, i), table->type->dims[0]);
	return lower_element_inside(lw, table, &place, inside);
}

/* Every part has the whole table. */
static void
lookup_factors(Partition *p)
{
	Type indices = node_operand(p->node, INDICES)->type;

	for (int i = 0; i < indices->rank; i++) {
		Factor *f = partition_add(p, indices->dims[i], COMBINE_JOIN);
		factor_cut_operand(f, INDICES, i);
		factor_cut_result(f, 0, i);
	}
}

static const Sample lookup_samples[] = {
	{"", "f64[12], s64[7,3] in 12"},  {"", "f64[5], s64[] in 5"},
	{"", "f64[256], s64[40] in 256"}, {"", "f64[3], s64[2,0] in 3"},
	{"", "f64[1], s64[1,3] in 1"},    {0}};
const OpRow op_lookup = {
	.name = "lookup",
	.doc = "for each index, the number at that place of a vector; 0 if the index is out of range",
	.operands = {{"table", OPERAND_REQUIRED}, {"indices", OPERAND_REQUIRED}},
	.results = {"y"},
	.infer = lookup_infer,
	.eval = lookup_eval,
	.grad = lookup_grad,
	.fuse = FUSE_ELEMENTWISE,
	.element = lookup_element,
	.weight = 4,
	.flops = flops_none,
	.precision = PRECISION_FOLLOW,
	.partition = {.factors = lookup_factors, .doc = "every axis of the indices"},
	.samples = lookup_samples};
