/* cumulate: lines in parallel, each in order. */
#include "codegen/kernels/kernels.h"
#include "ir/shapes.h"

static void
cumulate_kernel(Lower *lw, const Node *n)
{
	const CumulateAttr *a = n->attr;
	LoopBuilder *lb = lw->lb;
	Type x = node_operand(n, 0)->type;
	DType t = compute_type(x->dtype);
	Type lines = type_drop_axis(lw->m, x, (int)a->axis);
	int64_t size = x->dims[a->axis];
	int out = lower_buffer(lw, node_result(n, 0)), sum = lb_local(lb, t, 1);
	Index at, full;

	LoopValue line = lb_for(lb, LOOP_PARALLEL, lines->n);
	index_split(lb, lines, affine_scalar(lb, line), &at);
	full = index_of_line(&at, a->axis);
	lb_store(lb, sum, affine_constant(0), lb_number(lb, t, a->kind == REDUCE_PROD));
	LoopValue j = lb_for(lb, LOOP_PLAIN, size);
	full.at[a->axis] = a->reverse ? affine_plus(affine_scale(lb, affine_scalar(lb, j), -1),
	                                            size - 1)
	                              : affine_scalar(lb, j);
	LoopValue old = lb_load(lb, sum, affine_constant(0));
	LoopValue v = lower_element(lw, node_operand(n, 0), &full);
	LoopValue new = lb_binary(lb, a->kind == REDUCE_PROD ? LOOP_mul : LOOP_add, old, v);
	lb_store(lb, sum, affine_constant(0), new);
	lb_store(lb, out, index_flat(lb, x, &full), a->exclusive ? old : new);
	lb_end(lb);
	lb_end(lb);
}

const Strategy strategy_cumulate = {.op = OP_cumulate,
                                    .kinds = ON_EVERY_KIND,
                                    .doc = "each line in order",
                                    .emit = cumulate_kernel};
