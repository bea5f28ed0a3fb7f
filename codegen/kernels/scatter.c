/* scatter: a copy, and updates in their order. */
#include "codegen/kernels/kernels.h"
#include "ir/shapes.h"

static const LoopOp scatter_ops[] = {[SCATTER_ADD] = LOOP_add,
                                     [SCATTER_MUL] = LOOP_mul,
                                     [SCATTER_MAX] = LOOP_max,
                                     [SCATTER_MIN] = LOOP_min};

/* Copies data, then walks the updates in order: slices of the axis' inner dimensions are vectors. */
static void
scatter_kernel(Lower *lw, const Node *n)
{
	const ScatterAttr *a = n->attr;
	LoopBuilder *lb = lw->lb;
	Type data = node_operand(n, 0)->type, updates = node_operand(n, 2)->type;
	int out = lower_buffer(lw, node_result(n, 0)), r = node_operand(n, 1)->type->rank;
	int inner = (int)a->axis + r; /* first inner axis of updates */
	int64_t width = 1, outer = 1;
	Index at, place;
	LoopValue inside;

	LoopValue i = lb_for(lb, LOOP_VECTOR, data->n);
	index_split(lb, data, affine_scalar(i), &at);
	lb_store(lb, out, affine_scalar(i), lower_element(lw, node_operand(n, 0), &at));
	lb_end(lb);
	for (int k = inner; k < updates->rank; k++)
		width *= updates->dims[k];
	outer = width ? updates->n / width : 0;
	LoopValue o = lb_for(lb, LOOP_PLAIN, outer);
	LoopValue w = lb_for(lb, LOOP_PLAIN, width);
	Affine flat = affine_add(affine_scale(affine_scalar(o), width), affine_scalar(w));
	index_split(lb, updates, flat, &at);
	gather_place(lw, node_operand(n, 1), data, a->axis, &at, &place, &inside);
	lb_if(lb, inside);
	LoopValue u = lower_element(lw, node_operand(n, 2), &at);
	Affine to = index_flat(data, &place);
	if (a->kind != SCATTER_SET)
		u = lb_binary(lb, scatter_ops[a->kind], lb_load(lb, out, to), u);
	lb_store(lb, out, to, u);
	lb_end(lb);
	lb_end(lb);
	lb_end(lb);
}

static bool
scatter_sums(const Node *n)
{
	const ScatterAttr *a = n->attr;

	return a->kind == SCATTER_ADD || a->kind == SCATTER_MUL;
}

const Strategy strategy_scatter = {.op = OP_scatter,
                                   .kinds = ON(CPU),
                                   .doc = "a copy, and updates in their order",
                                   .emit = scatter_kernel,
                                   .sums_in_memory = scatter_sums};
