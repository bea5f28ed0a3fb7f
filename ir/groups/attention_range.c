/* Finds out which keys a query sees, so that a kernel can leave out blocks of keys that no query of
 * a block sees. Before the attention, the graph computes for each query the first and the last
 * visible key from the mask. So any mask helps: causal masks, windows, padding, packed documents.
 *
 * A hidden key has a logit of -1e30 or less, and its weight is exactly 0, if its query sees some
 * other key and no number is infinite or NaN. A query that sees no key has the range of all keys,
 * and so have all queries if k or v has a number that is not finite. So the results are those
 * without ranges, bit for bit. */
#include "ir/groups/attention.h"
#include "ir/loop/loop.h"

#include <math.h>

/* A number that hides a key where it is added to a score. */
static const double HIDES = -1e30;

enum { MOST_MASK_NODES = 16 };

/* Is v computed from a number that hides keys? */
static bool
may_hide(const Value *v, int *steps)
{
	const Node *n = v->node;
	double number;

	if (value_splat(v, &number))
		return number <= HIDES;
	if (!n || (*steps)++ > MOST_MASK_NODES ||
	    (op_row(n)->fuse != FUSE_ELEMENTWISE && op_row(n)->fuse != FUSE_VIEW))
		return false;
	for (int i = 0; i < n->n_operands; i++)
		if (node_operand(n, i) && may_hide(node_operand(n, i), steps))
			return true;
	return false;
}

/* An input of the model may hide keys, too. */
static bool
is_input(const Value *v)
{
	while (v->node && op_row(v->node)->fuse == FUSE_VIEW)
		v = node_operand(v->node, 0);
	return v->kind == VALUE_PARAM && v->param == PARAM_INPUT;
}

void
attention_note_mask(AttentionMask *mask, const Node *n, int other, const MergedAxes *axes)
{
	Value *v = node_operand(n, other);
	int steps = 0;
	double number;

	if (n->op == OP_add && (is_input(v) || may_hide(v, &steps))) {
		mask->n++;
		*mask = (AttentionMask){v, *axes, false, mask->n};
	} else if (n->op == OP_select && other > 0 && value_splat(v, &number) && number <= HIDES) {
		mask->n++;
		*mask = (AttentionMask){node_operand(n, 0), *axes, other == 1, mask->n};
	}
}

static Value *
key_numbers(Builder *b, Type t, int axis)
{
	return b_iota(b, S32, ints_of_type(t), axis);
}

Value *
attention_range(Builder *b, Attention *a, Value *logits)
{
	Type row = type_with_dtype(b->m, type_drop_axis(b->m, logits->type, a->n - 1), S32);
	Ints keys = {.n = 1, .at = {a->n - 1}};
	Value *begin = function_param_as(a->body, row, "begin", PARAM_HINT, 0);
	Value *end = function_param_as(a->body, row, "end", PARAM_HINT, 1);
	Value *j = key_numbers(b, logits->type, a->n - 1);
	Value *from = b_binary(b, OP_ge, j, b_broadcast_back(b, begin, logits->type, keys));
	Value *below = b_binary(b, OP_lt, j, b_broadcast_back(b, end, logits->type, keys));

	return b_select(b, b_binary(b, OP_and, from, below), logits,
	                b_splat(b, logits->type, -INFINITY));
}

/* The hint that v repeats along keys, if v compares numbers of keys with a hint; NULL: it does not. */
static const Value *
compared_hint(const Value *v)
{
	const Node *row = v->node && v->node->n_operands == 2 ? node_operand(v->node, 1)->node
	                                                      : NULL;
	const Value *hint = row && row->op == OP_broadcast ? node_operand(row, 0) : NULL;

	return hint && hint->kind == VALUE_PARAM && hint->param == PARAM_HINT ? hint : NULL;
}

void
attention_drop_range(Function *body)
{
	for_each_node(body, n) {
		const Node *both = n->op == OP_select ? node_operand(n, 0)->node : NULL;
		if (both && both->op == OP_and && compared_hint(node_operand(both, 0)) &&
		    compared_hint(node_operand(both, 1)))
			value_replace_uses(node_result(n, 0), node_operand(n, 1));
	}
}

/* ---- in the graph */
/* The mask behind views that repeat its elements, and the label of each of its axes; -1: an axis of
 * one element. */
typedef struct {
	Value *value;
	Labels labels;
	int keys; /* the axis of keys */
} Bare;

/* The index of the mask's value, whose axes are merged labels. */
static Index
merged_index(LoopBuilder *lb, const MergedAxes *axes, const int64_t *sizes, const LoopValue *labels)
{
	Index at = {.rank = axes->n};

	for (int i = 0; i < axes->n; i++) {
		int first = merged_first(axes, i);
		at.at[i] = affine_constant(0);
		for (int k = 0; k < axes->count[i]; k++) {
			int label = axes->labels.at[first + k];
			at.at[i] = affine_add(lb, affine_scale(lb, at.at[i], sizes[label]),
			                      affine_scalar(lb, labels[label]));
		}
	}
	return at;
}

static bool
find_bare(Arena *scratch, const Attention *a, const AttentionMask *mask, Bare *out)
{
	Module *m = a->body->module;
	LoopBuilder *lb = loop_builder(kernel_new(scratch, "", NULL), m, scratch);
	LoopValue loops[MAX_RANK];

	for (int i = 0; i < a->n; i++)
		loops[i] = lb_for(lb, LOOP_PLAIN, a->sizes[i]);
	Index at = merged_index(lb, &mask->axes, a->sizes, loops), next;
	*out = (Bare){.value = mask->value, .keys = -1};
	for (; out->value->node && op_row(out->value->node)->fuse == FUSE_VIEW;
	     out->value = node_operand(out->value->node, 0)) {
		next = (Index){0};
		op_row(out->value->node)->map(lb, out->value->node, &at, &next);
		at = next;
	}
	for (int i = 0; i < a->n; i++)
		lb_end(lb);
	out->labels.n = out->value->type->rank;
	for (int i = 0; i < out->labels.n; i++) {
		const Affine *f = &at.at[i];
		int label = -1;
		for (int k = 0; f->n == 1 && k < a->n; k++)
			label = f->terms[0].scalar == loops[k] ? k : label;
		if (out->value->type->dims[i] != 1 &&
		    (label < 0 || f->constant || f->terms[0].coefficient != 1 ||
		     out->value->type->dims[i] != a->sizes[label]))
			return false;
		out->labels.at[i] = out->value->type->dims[i] == 1 ? -1 : label;
		out->keys = out->labels.at[i] == a->n - 1 ? i : out->keys;
	}
	return out->keys >= 0;
}

bool
attention_range_exists(Recognition *r, const Attention *a, const AttentionMask *mask)
{
	Bare bare;

	return mask->n == 1 && find_bare(r->scratch, a, mask, &bare);
}

/* x, whose axes have these labels, as rows: the scores' axes without keys. */
static Value *
as_rows(Builder *b, const Attention *a, Value *x, const Labels *labels)
{
	Ints shape = {0}, kept = {0}, axes = {0};
	Labels from = {0}, to = {0};

	for (int i = 0; i < labels->n; i++)
		if (labels->at[i] >= 0 && a->sizes[labels->at[i]] != 1) {
			kept.at[kept.n++] = a->sizes[labels->at[i]];
			from.at[from.n++] = labels->at[i];
		}
	for (int label = 0; label < a->n - 1; label++) {
		shape.at[shape.n++] = a->sizes[label];
		if (labels_find(&from, label) >= 0) {
			to.at[to.n++] = label;
			axes.at[axes.n++] = label;
		}
	}
	x = labels_transpose(b, b_reshape(b, x, kept), &from, &to);
	return b_broadcast(b, x, shape, axes);
}

/* The magnitudes of x, in f32 or more: maxima are computed in these types. */
static Value *
magnitudes(Builder *b, Value *x)
{
	return b_unary(b, OP_abs, dtype_info[x->type->dtype].bits < 32 ? b_cast(b, x, F32) : x);
}

/* Are all magnitudes x finite, by row? x has these labels, of which the rows have those below a->n - 1. */
static Value *
is_finite(Builder *b, const Attention *a, Value *x, const Labels *labels)
{
	Ints axes = {0};
	Labels left = {0};

	for (int i = 0; i < labels->n; i++)
		if (labels->at[i] >= a->n - 1)
			axes.at[axes.n++] = i;
		else
			left.at[left.n++] = labels->at[i];
	Value *most = b_reduce(b, REDUCE_MAX, x, axes);
	return as_rows(b, a, b_with(b, OP_lt, most, INFINITY), &left);
}

/* k with its axes in the order of v's, its width in the place of v's width; NULL: their axes differ. */
static Value *
ordered_like_values(Builder *b, const Attention *a, Value *k, const Value *v)
{
	Labels to = a->v;
	int width = -1;

	for (int i = 0; i < a->k.n; i++)
		width = labels_find(&a->v, a->k.at[i]) < 0 ? a->k.at[i] : width;
	for (int i = 0; i < to.n; i++)
		to.at[i] = labels_find(&a->k, to.at[i]) < 0 ? width : to.at[i];
	for (int i = 0; i < to.n; i++)
		if (a->k.n != to.n || labels_find(&to, to.at[i]) != i ||
		    labels_find(&a->k, to.at[i]) < 0)
			return NULL;
	k = labels_transpose(b, k, &a->k, &to);
	return k->type == v->type ? k : NULL;
}

/* Are all numbers of k and v finite, by row? Usually one reduction looks at k - v: a difference with an infinity or a NaN is not finite. If finite numbers
 * have an infinite difference, all queries see all keys. */
static Value *
are_finite(Builder *b, const Attention *a)
{
	Value *k = attention_views(b, a->k_from.base, &a->k_from);
	Value *v = attention_views(b, a->v_from.base, &a->v_from);

	k = b_reshape(b, k, attention_shape(a, &a->k));
	v = b_reshape(b, v, attention_shape(a, &a->v));
	Value *ordered = ordered_like_values(b, a, k, v);
	if (!ordered)
		return b_binary(b, OP_and, is_finite(b, a, magnitudes(b, k), &a->k),
		                is_finite(b, a, magnitudes(b, v), &a->v));
	return is_finite(b, a, magnitudes(b, b_binary(b, OP_sub, ordered, v)), &a->v);
}

bool
attention_range_set(Builder *b, Attention *a, const AttentionMask *mask)
{
	Arena *scratch = arena_new();
	Bare bare;
	bool ok = find_bare(scratch, a, mask, &bare);

	arena_free(scratch);
	if (!ok)
		return false;
	Value *m = bare.value, *sees = m;
	if (m->type->dtype != BOOL)
		sees = b_unary(b, OP_not, b_with(b, OP_le, m, HIDES));
	else if (mask->hides_true)
		sees = b_unary(b, OP_not, m);
	Ints axes = {.n = 1, .at = {bare.keys}};
	Value *j = key_numbers(b, m->type, bare.keys);
	Value *none = b_number_like(b, j, 0);
	int64_t keys = a->sizes[a->n - 1];
	Value *all = b_splat(b, j->type, (double)keys);
	Value *end = b_reduce(b, REDUCE_MAX, b_select(b, sees, b_with(b, OP_add, j, 1), none),
	                      axes);
	Value *begin = b_reduce(b, REDUCE_MIN, b_select(b, sees, j, all), axes);
	Labels labels = {0};
	for (int i = 0; i < bare.labels.n; i++)
		if (i != bare.keys)
			labels.at[labels.n++] = bare.labels.at[i];
	begin = as_rows(b, a, begin, &labels);
	end = as_rows(b, a, end, &labels);

	Value *bounded = b_binary(b, OP_and, are_finite(b, a), b_with(b, OP_gt, end, 0));
	a->arguments.at[a->range] = b_select(b, bounded, begin, b_splat(b, begin->type, 0));
	a->arguments.at[a->range + 1] = b_select(b, bounded, end,
	                                         b_splat(b, end->type, (double)keys));
	return true;
}
