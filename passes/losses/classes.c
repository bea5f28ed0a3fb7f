/* Losses over class indices: cross_entropy (logits) and nll (log-probabilities). PyTorch's
 * CrossEntropyLoss and NLLLoss with ignore_index = -100: targets of that index have weight 0; with class
 * weights the mean divides by the sum of the targets' weights. */
#include "passes/pass.h"

enum { IGNORE_INDEX = -100 };

static Ints
only(int64_t axis)
{
	return (Ints){.n = 1, .at = {axis}};
}

/* v, of the labels' shape, repeated along the class axis */
static Value *
along_classes(const Loss *l, Value *v)
{
	return b_broadcast_back(l->b, v, l->output->type, only(l->class_axis));
}

/* [classes] repeated over everything else */
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

typedef struct {
	Value *hot;    /* bool, logits' shape: the target's class */
	Value *valid;  /* bool, labels' shape */
	Value *weight; /* labels' shape: row weight, 0 where ignored */
	Value *row;    /* as weight, without the class weight */
} Targets;

static Targets
prepare_targets(Loss *l)
{
	Builder *b = l->b;
	Value *labels = l->target;
	Type shape = labels->type;
	DType d = l->output->type->dtype;
	Targets t;

	Value *ignore = b_splat(b, shape, IGNORE_INDEX);
	t.valid = b_binary(b, OP_ne, labels, ignore);
	Value *w = b_broadcast(b, l->weight, ints_of_type(shape), only(0));
	Type wt = type_with_dtype(b->m, shape, d);
	t.row = b_select(b, t.valid, w, b_splat(b, wt, 0));
	Value *classes = b_iota(b, labels->type->dtype, ints_of_type(l->output->type),
	                        l->class_axis);
	t.hot = b_binary(b, OP_eq, classes, along_classes(l, labels));
	t.weight = t.row;
	if (l->class_weight) {
		Value *cw = over_targets(l, class_weights(l));
		Value *own = b_select(b, t.hot, cw, b_splat(b, l->output->type, 0));
		t.weight = b_binary(b, OP_mul, t.row,
		                    b_reduce(b, REDUCE_SUM, own, only(l->class_axis)));
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

/* first index of the largest output == label */
static Value *
count_correct(Loss *l, const Targets *t)
{
	Builder *b = l->b;
	Value *best = build(b, OP_argmax, 1, &l->output, &(AxisAttr){l->class_axis});
	Value *hit = b_binary(b, OP_eq, b_cast(b, best, l->target->type->dtype), l->target);

	return sum_all(b, b_select(b, hit, t->row, b_splat(b, t->row->type, 0)));
}

/* sum of -w logp[label], with label smoothing e: (1-e) of that and e/classes of -sum over classes of
 * their weighted logp. per_class(c) is -logp, per_target -logp[label]. */
static void
finish(Loss *l, const Targets *t, Value *per_target, Value *per_class)
{
	Builder *b = l->b;
	double e = l->options->label_smoothing;
	Value *each = b_binary(b, OP_mul, per_target, t->weight);

	if (e != 0) {
		int64_t classes = l->output->type->dims[l->class_axis];
		if (l->class_weight)
			per_class = b_binary(b, OP_mul, per_class,
			                     over_targets(l, class_weights(l)));
		Value *all = b_reduce(b, REDUCE_SUM, per_class, only(l->class_axis));
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

/* -logp = log(sum(exp(x - m))) - (x - m), m = max x, a constant of the derivative */
static void
build_cross_entropy(Loss *l)
{
	Builder *b = l->b;
	Targets t = prepare_targets(l);
	Value *max = b_unary(b, OP_stop_gradient,
	                     b_reduce(b, REDUCE_MAX, l->output, only(l->class_axis)));
	Value *z = b_binary(b, OP_sub, l->output, along_classes(l, max));
	Value *total = b_reduce(b, REDUCE_SUM, b_unary(b, OP_exp, z), only(l->class_axis));
	Value *lse = b_unary(b, OP_log, total);
	Value *own = b_select(b, t.hot, z, b_splat(b, z->type, 0));
	Value *picked = b_reduce(b, REDUCE_SUM, own, only(l->class_axis));
	Value *per_class = NULL;

	if (l->options->label_smoothing != 0)
		per_class = b_binary(b, OP_sub, along_classes(l, lse), z);
	finish(l, &t, b_binary(b, OP_sub, lse, picked), per_class);
}

static void
build_nll(Loss *l)
{
	Builder *b = l->b;
	Targets t = prepare_targets(l);
	Value *minus = b_unary(b, OP_neg, l->output);
	Value *own = b_select(b, t.hot, minus, b_splat(b, minus->type, 0));

	finish(l, &t, b_reduce(b, REDUCE_SUM, own, only(l->class_axis)), minus);
}

const LossRow loss_cross_entropy = {
	.name = "cross_entropy",
	.doc = "softmax and negative log-likelihood over class indices; ignores -100",
	.class_targets = true,
	.build = build_cross_entropy};
const LossRow loss_nll = {.name = "nll",
                          .doc = "negative log-likelihood of log-probabilities",
                          .class_targets = true,
                          .build = build_nll};
