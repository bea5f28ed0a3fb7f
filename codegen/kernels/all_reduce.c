/* all_reduce: sums a tensor over ranks. The kernel only copies the rank's own numbers to the
 * result's place. After the kernel, an instruction of the executable replaces them by the sum
 * over all ranks (codegen/schedule/streams.c). */
#include "codegen/lower/lower.h"
#include "codegen/strategy/strategy.h"

static void
all_reduce_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Type x = node_operand(n, 0)->type;
	Index at;

	Affine i = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, x->n));
	index_split(lb, x, i, &at);
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), i,
	         lower_element(lw, node_operand(n, 0), &at));
	lb_end(lb);
	lb->k->all_reduces = true;
}

const Strategy strategy_all_reduce = {.op = OP_all_reduce,
                                      .kinds = ON_EVERY_KIND,
                                      .doc = "a copy, which ranks then add up",
                                      .emit = all_reduce_kernel};
