/* Losses whose targets are class indices: cross_entropy (of logits) and nll (of log-probabilities). They compute what
 * PyTorch's CrossEntropyLoss and NLLLoss with ignore_index = -100 do: targets with this index have weight 0. With class
 * weights the mean divides by the sum of the targets' weights. */
#include "passes/losses/loss.h"

enum { IGNORE_INDEX = -100 };

static Ints
only(int64_t axis)
{
	return (Ints){.n = 1, .at = {axis}};
}

Value *
loss_along_classes(const Loss *l, Value *v)
{
	return b_broadcast_back(l->b, v, l->output->type, only(l->class_axis));
}

Value *
loss_over_classes(const Loss *l, Value *v)
{
	return b_reduce(l->b, REDUCE_SUM, v, only(l->class_axis));
}

/* v of shape [classes], repeated over all other axes */
static Value *
over_targets(const Loss *l, Value *v)
{
	return b_broadcast(l->b, v, ints_of_type(l->output->type), only(l->class_axis));
}

static Value *
class_weights(const Loss *l)
{
	const Tensor *t = l->class_weight;
	Module *m = l->b->m;
	Type type = type_new(m, l->output->type->dtype, 1, t->type->dims);
	void *data = arena_alloc(m->arena, (size_t)type_bytes(type));

	dtype_convert(type->dtype, data, t->type->dtype, t->data, type->n);
	return b_constant(l->b, tensor_borrow(m, type, data));
}

Targets
loss_targets(Loss *l)
{
	Builder *b = l->b;
	Value *labels = l->target;
	Type shape = labels->type;
	DType d = l->output->type->dtype;
	Targets t;

	Value *ignore = b_splat(b, shape, IGNORE_INDEX);
	t.valid = b_binary(b, OP_ne, labels, ignore);
	Value *w = loss_row_weights(l, shape);
	Type wt = type_with_dtype(b->m, shape, d);
	t.row = b_select(b, t.valid, w, b_splat(b, wt, 0));
	Value *classes = b_iota(b, labels->type->dtype, ints_of_type(l->output->type),
	                        l->class_axis);
	t.hot = b_binary(b, OP_eq, classes, loss_along_classes(l, labels));
	t.weight = t.row;
	if (l->class_weight) {
		Value *cw = over_targets(l, class_weights(l));
		Value *own = b_select(b, t.hot, cw, b_splat(b, l->output->type, 0));
		t.weight = b_binary(b, OP_mul, t.row, loss_over_classes(l, own));
	}
	return t;
}

static Value *
sum_all(Builder *b, Value *x)
{
	Ints axes = {.n = x->type->rank};

	for (int i = 0; i < axes.n; i++)
		axes.at[i] = i;
	return b_reduce(b, REDUCE_SUM, x, axes);
}

/* correct: the first index of the largest output equals the label */
static Value *
count_correct(Loss *l, const Targets *t)
{
	Builder *b = l->b;
	Value *best = build(b, OP_argmax, 1, &l->output, &(AxisAttr){l->class_axis});
	Value *hit = b_binary(b, OP_eq, b_cast(b, best, l->target->type->dtype), l->target);

	return sum_all(b, b_select(b, hit, t->row, b_splat(b, t->row->type, 0)));
}

/* With label smoothing e: 1 - e times the weighted loss, summed over targets, plus e/classes times the loss summed
 * over all classes. */
void
loss_of_targets(Loss *l, const Targets *t, Value *per_target, Value *per_class)
{
	Builder *b = l->b;
	double e = l->options->label_smoothing;
	Value *each = b_binary(b, OP_mul, per_target, t->weight);

	if (e != 0) {
		int64_t classes = l->output->type->dims[l->class_axis];
		if (l->class_weight)
			per_class = b_binary(b, OP_mul, per_class,
			                     over_targets(l, class_weights(l)));
		Value *all = loss_over_classes(l, per_class);
		Value *smooth = b_binary(b, OP_mul, all, t->row);
		smooth = b_binary(b, OP_mul, smooth, b_splat(b, all->type, e / (double)classes));
		each = b_binary(b, OP_mul, each, b_splat(b, each->type, 1 - e));
		each = b_binary(b, OP_add, each, smooth);
	}
	l->sum = sum_all(b, each);
	l->count = sum_all(b, t->weight);
	l->correct = count_correct(l, t);
	l->targets = l->target->type->n;
}

/* -logp = log(sum(exp(x - m))) - (x - m) with m = max x; no gradient goes through m */
static void
build_cross_entropy(Loss *l)
{
	Builder *b = l->b;
	Targets t = loss_targets(l);
	Value *max = b_unary(b, OP_stop_gradient,
	                     b_reduce(b, REDUCE_MAX, l->output, only(l->class_axis)));
	Value *z = b_binary(b, OP_sub, l->output, loss_along_classes(l, max));
	Value *total = loss_over_classes(l, b_unary(b, OP_exp, z));
	Value *lse = b_unary(b, OP_log, total);
	Value *own = b_select(b, t.hot, z, b_splat(b, z->type, 0));
	Value *picked = loss_over_classes(l, own);
	Value *per_class = NULL;

	if (l->options->label_smoothing != 0)
		per_class = b_binary(b, OP_sub, loss_along_classes(l, lse), z);
	loss_of_targets(l, &t, b_binary(b, OP_sub, lse, picked), per_class);
}

static void
build_nll(Loss *l)
{
	Builder *b = l->b;
	Targets t = loss_targets(l);
	Value *minus = b_unary(b, OP_neg, l->output);
	Value *own = b_select(b, t.hot, minus, b_splat(b, minus->type, 0));

	loss_of_targets(l, &t, loss_over_classes(l, own), minus);
}

const LossRow loss_cross_entropy = {
	.name = "cross_entropy",
	.doc = "softmax and negative log-likelihood over class indices; ignores -100",
	.takes = LOSS_TAKES_LOGITS,
	.class_targets = true,
	.build = build_cross_entropy};
const LossRow loss_nll = {.name = "nll",
                          .doc = "negative log-likelihood of log-probabilities",
                          .takes = LOSS_TAKES_LOG_PROBABILITIES,
                          .class_targets = true,
                          .build = build_nll};
