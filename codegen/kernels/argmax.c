/* argmax: lines in parallel. */
#include "codegen/kernels/kernels.h"
#include "ir/shapes.h"

#include <math.h>

/* One pass for the maximum, one for the smallest index that has it. */
static void
argmax_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	int64_t axis = ((const AxisAttr *)n->attr)->axis;
	Type x = node_operand(n, 0)->type, y = node_result(n, 0)->type;
	DType t = compute_type(x->dtype);
	Index at, full;
	int64_t size = x->dims[axis];

	LoopValue i = lb_for(lb, LOOP_PARALLEL, y->n);
	index_split(lb, y, affine_scalar(lb, i), &at);
	full = index_of_line(&at, axis);
	LoopValue j = lb_for(lb, LOOP_VECTOR, size);
	full.at[axis] = affine_scalar(lb, j);
	LoopValue v = lower_element(lw, node_operand(n, 0), &full);
	LoopValue best = lb_accumulator(lb, ACC_MAX, t);
	if (dtype_is_float(t))
		v = lb_select(lb, lb_op(lb, LOOP_is_nan, BOOL, &v), lb_float(lb, t, -INFINITY), v);
	lb_accumulate(lb, best, v);
	lb_end(lb);
	j = lb_for(lb, LOOP_VECTOR, size);
	full.at[axis] = affine_scalar(lb, j);
	v = lower_element(lw, node_operand(n, 0), &full);
	LoopValue first = lb_accumulator(lb, ACC_MIN, S64);
	LoopValue hit = lb_compare(lb, LOOP_eq, v, best);
	lb_accumulate(lb, first, lb_select(lb, hit, j, lb_int(lb, S64, size)));
	lb_end(lb);
	/* NaN alone is nowhere equal to the maximum: the first, as in eval */
	LoopValue none = lb_compare(lb, LOOP_eq, first, lb_int(lb, S64, size));
	first = lb_select(lb, none, lb_int(lb, S64, 0), first);
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), affine_scalar(lb, i), first);
	lb_end(lb);
}

const Strategy strategy_argmax = {.op = OP_argmax,
                                  .kinds = ON_EVERY_KIND,
                                  .doc = "the maximum, then the first that has it",
                                  .emit = argmax_kernel};
