/* Losses of elements, such as mse: the target has the output's shape, and the mean is over all elements of the
 * output. */
#include "passes/losses/loss.h"

static Value *
number(Loss *l, double x)
{
	return b_splat(l->b, l->output->type, x);
}

void
loss_of_elements(Loss *l, Value *each)
{
	Builder *b = l->b;
	Ints axes = {.n = each->type->rank};

	for (int i = 0; i < axes.n; i++)
		axes.at[i] = i;
	Value *w = loss_row_weights(l, each->type);
	l->sum = b_reduce(b, REDUCE_SUM, b_binary(b, OP_mul, each, w), axes);
	l->count = b_reduce(b, REDUCE_SUM, w, axes);
	l->targets = each->type->n;
}

static Value *
difference(Loss *l)
{
	return b_binary(l->b, OP_sub, l->output, l->target);
}

static void
build_mse(Loss *l)
{
	Value *d = difference(l);

	loss_of_elements(l, b_binary(l->b, OP_mul, d, d));
}

static void
build_l1(Loss *l)
{
	loss_of_elements(l, b_unary(l->b, OP_abs, difference(l)));
}

/* delta = 1: d^2/2 where |d| < 1, else |d| - 1/2 */
static void
build_huber(Loss *l)
{
	Builder *b = l->b;
	Value *d = difference(l), *a = b_unary(b, OP_abs, d);
	Value *square = b_binary(b, OP_mul, b_binary(b, OP_mul, d, d), number(l, 0.5));
	Value *line = b_binary(b, OP_sub, a, number(l, 0.5));

	loss_of_elements(l, b_select(b, b_binary(b, OP_lt, a, number(l, 1)), square, line));
}

/* max(x, 0) - x t + log(1 + exp(-|x|)), with target t. max(x, 0) is written in a form whose
 * derivative at 0 is 1/2, as for the logistic function. */
static void
build_bce_with_logits(Loss *l)
{
	Builder *b = l->b;
	Value *x = l->output, *zero = number(l, 0);
	Value *positive = b_binary(b, OP_gt, x, zero);
	Value *minus_abs = b_select(b, positive, b_unary(b, OP_neg, x), x);
	Value *tail = b_unary(b, OP_log1p, b_unary(b, OP_exp, minus_abs));
	Value *linear = b_binary(b, OP_sub, b_select(b, positive, x, zero),
	                         b_binary(b, OP_mul, x, l->target));

	loss_of_elements(l, b_binary(b, OP_add, linear, tail));
}

const LossRow loss_mse = {.name = "mse", .doc = "squared error", .build = build_mse};
const LossRow loss_l1 = {.name = "l1", .doc = "absolute error", .build = build_l1};
const LossRow loss_huber = {.name = "huber", .doc = "Huber loss, delta 1", .build = build_huber};
const LossRow loss_bce_with_logits = {.name = "bce_with_logits",
                                      .doc = "binary cross entropy of logits",
                                      .takes = LOSS_TAKES_LOGITS,
                                      .build = build_bce_with_logits};
