/* Imports SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss: scores [N,C,d...], labels
 * [N,d...]. The loss is -w[label] log p[label], and 0 if the label is ignore_index. The mean
 * divides by the sum of the weights of labels that are not ignored. */
#include "frontend/import/import.h"

#include <string.h>

/* bool[N,C,d...]: is the class the label? labels: s64[N,d...]. */
static Value *
class_mask(OnnxNode *n, const Value *scores, Value *labels)
{
	Ints shape = shape_of(scores), thin = shape;

	thin.at[1] = 1;
	return e_binary(n, OP_eq, e_iota(n, S64, shape, 1), e_reshape(n, labels, thin));
}

static bool
loss_shapes(OnnxNode *n, const Value *scores, const Value *labels)
{
	if (scores->type->rank < 2 || labels->type->rank != scores->type->rank - 1) {
		report_invalid(n,
		               "scores have rank %d, needs 2 or more, and labels rank %d, "
		               "needs one less than scores",
		               scores->type->rank, labels->type->rank);
		return false;
	}
	for (int i = 0; i < labels->type->rank; i++)
		if (labels->type->dims[i] != scores->type->dims[i ? i + 1 : 0]) {
			report_invalid(n,
			               "labels have %lld elements along axis %d, scores %lld: "
			               "need equal numbers",
			               (long long)labels->type->dims[i], i,
			               (long long)scores->type->dims[i ? i + 1 : 0]);
			return false;
		}
	return true;
}

static void
import_loss(OnnxNode *n)
{
	Value *scores = want_float_input(n, 0), *labels = want_input(n, 1);
	const char *reduction = want_word(n, "reduction", "mean sum none");
	Ints classes = {.n = 1, .at = {1}};

	if (!scores || !labels || !loss_shapes(n, scores, labels))
		return;
	if (labels->type->dtype != S64 && labels->type->dtype != S32) {
		report_invalid(n, "labels are %s, need int64 or int32",
		               dtype_info[labels->type->dtype].name);
		return;
	}
	labels = e_cast(n, labels, S64);
	Value *log_p = n->extra->flag ? e_softmax(n, scores, classes, true) : scores;
	Value *mask = class_mask(n, scores, labels), *zero = e_number(n, log_p, 0);
	Value *picked = e_reduce(n, REDUCE_SUM, e_select(n, mask, log_p, zero), classes, false);
	Value *weight = e_number(n, picked, 1);
	if (has_input(n, 2)) {
		Value *w = e_channel(n, want_input(n, 2), scores, 1);
		weight = e_reduce(n, REDUCE_SUM, e_select(n, mask, w, zero), classes, false);
	}
	/* an ignored label's loss is 0 even if its scores are NaN */
	if (has_attribute(n, "ignore_index") && weight) {
		Value *ignored = e_with(n, OP_eq, labels, (double)want_int(n, "ignore_index", 0));
		weight = e_select(n, ignored, e_number(n, weight, 0), weight);
		picked = e_select(n, ignored, e_number(n, weight, 0), picked);
	}
	Value *loss = e_unary(n, OP_neg, e_binary(n, OP_mul, picked, weight));
	set_output(n, 1, log_p);
	if (!loss)
		return;
	Ints all = ints_range(0, loss->type->rank);
	if (!strcmp(reduction, "none"))
		set_output(n, 0, loss);
	else if (!strcmp(reduction, "sum"))
		set_output(n, 0, e_reduce(n, REDUCE_SUM, loss, all, false));
	else
		set_output(n, 0,
		           e_binary(n, OP_div, e_reduce(n, REDUCE_SUM, loss, all, false),
		                    e_reduce(n, REDUCE_SUM, weight, all, false)));
}

/* clang-format off */
const ImportRow import_loss_rows[] = {
	/* name                       from  to  importer  extra */
	{"SoftmaxCrossEntropyLoss", 12, 0, import_loss, {.flag = true},
	 .facts = {.steering = INPUT(2)}},
	{"NegativeLogLikelihoodLoss", 12, 0, import_loss, .facts = {.steering = INPUT(2)}},
	{0},
};
/* clang-format on */
