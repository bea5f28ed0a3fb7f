/* The op all_reduce, which all ranks of a run compute together. The interpreter runs a single
 * rank, whose sum is its own value. */
#include "ir/ops/elementwise.h"

/* ---- all_reduce: the sum of x over the ranks that share the data, given to all these ranks.
 * Its gradient is a sum over the ranks, too, because each rank's loss depends on every rank's x.
 *
 *	y = sum over ranks r of x[r],  loss = sum over r of loss[r](y)      dx = sum over r of dy[r] = all_reduce(dy) */
static void
all_reduce_infer(Infer *in)
{
	infer_same(in, FLOATS, false);
}

static void
all_reduce_eval(Eval *ev)
{
	for (int64_t i = 0; i < ev->operand[0].type->n; i++)
		eval_move(&ev->result[0], i, &ev->operand[0], i);
}

static void
all_reduce_grad(Grad *g)
{
	grad_add(g, 0, b_unary(g->b, OP_all_reduce, DY));
}

static const Sample all_reduce_samples[] = {
	{"", "f64[12,5]"}, {"", "f64[]"}, {"", "f64[1,0]"}, {0}};
const OpRow op_all_reduce = {.name = "all_reduce",
                             .doc = "the sum of x over all ranks",
                             .operands = {{"x", OPERAND_REQUIRED}},
                             .results = {"y"},
                             .infer = all_reduce_infer,
                             .eval = all_reduce_eval,
                             .grad = all_reduce_grad,
                             .fuse = FUSE_OPAQUE,
                             .flops = flops_none,
                             .precision = PRECISION_HIGH,
                             .partition = ELEMENTWISE_PARTITION,
                             .samples = all_reduce_samples};
