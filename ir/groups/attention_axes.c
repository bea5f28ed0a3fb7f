/* Gives labels to the axes of an attention. Reshapes and transposes between its products may merge,
 * split and move axes of the scores; their labels are the factors of which all these axes are
 * products. */
#include "ir/groups/attention_match.h"
#include "ir/ops/ops.h"

static bool
split_factor(Factors *f, int label, int64_t outer)
{
	int axis = 0, total = 0;

	for (int i = 0; i < f->n; i++)
		total += f->count[i];
	while (label >= f->count[axis])
		label -= f->count[axis++];
	if (total == MAX_RANK)
		return false;
	for (int i = f->count[axis]++; i > label; i--)
		f->size[axis][i] = f->size[axis][i - 1];
	f->size[axis][label] = outer;
	f->size[axis][label + 1] /= outer;
	return true;
}

/* Is v computed from `base` along links whose elements are v's? */
static bool
reaches(const Value *v, const Value *base, int *steps)
{
	if (v == base)
		return true;
	if (!attention_is_link(v) || (*steps)++ > MOST_STEPS)
		return false;
	for (int i = 0; i < v->node->n_operands; i++)
		if (attention_leads_on(v, node_operand(v->node, i)) &&
		    reaches(node_operand(v->node, i), base, steps))
			return true;
	return false;
}

typedef struct {
	int n;
	const Node *at[2 * MOST_VIEWS];
} Views;

/* Appends the views on a way from base to v to the list. False: there are too many, or no way. */
static bool
find_views(const Value *v, const Value *base, Views *out)
{
	int first = out->n;

	while (v != base) {
		const Value *next = NULL;
		for (int i = 0, steps = 0; attention_is_link(v) && i < v->node->n_operands && !next;
		     i++) {
			const Value *x = node_operand(v->node, i);
			if (attention_leads_on(v, x) && reaches(x, base, &steps))
				next = x;
		}
		if (!next || out->n == COUNT(out->at))
			return false;
		if (op_row(v->node)->fuse == FUSE_VIEW)
			out->at[out->n++] = v->node;
		v = next;
	}
	for (int i = first, k = out->n - 1; i < k; i++, k--) { /* they were found from the end on */
		const Node *n = out->at[i];
		out->at[i] = out->at[k];
		out->at[k] = n;
	}
	return true;
}

/* The axes of the scores in the graph, as labels 0, 1, ... of the factors in their order. */
static MergedAxes
factored_axes(const Node *scores, const Factors *f, int64_t *sizes)
{
	const DotAttr *d = scores->attr;
	MergedAxes a = {.n = f->n};
	int first[MAX_RANK], next = 0;

	for (int i = 0; i < f->n; i++) {
		first[i] = next;
		for (int k = 0; k < f->count[i]; k++)
			sizes[next++] = f->size[i][k];
	}
	for (int i = 0; i < f->n; i++) {
		int from = d->order.n ? (int)d->order.at[i] : i;
		for (int k = 0; k < f->count[from]; k++)
			if (f->size[from][k] != 1) {
				a.labels.at[a.labels.n++] = first[from] + k;
				a.count[i]++;
			}
	}
	return a;
}

/* Follows the axes through the views; splits factors where a reshape needs it. `until`: *axes are
 * the axes after that many views. */
static bool
follow_axes(const Node *scores, Factors *f, const Views *views, int until, MergedAxes *axes)
{
	int64_t sizes[MAX_RANK], outer;
	int label;

	for (int round = 0; round <= MAX_RANK; round++) {
		MergedAxes a = factored_axes(scores, f, sizes);
		int i = 0;
		for (bool ok = true; i < views->n && ok; i += ok) {
			Ints shape = ints_of_type(node_result(views->at[i], 0)->type);
			if (i == until)
				*axes = a;
			if (views->at[i]->op == OP_transpose)
				merged_transpose(
					&a, &((const TransposeAttr *)views->at[i]->attr)->order);
			else
				ok = merged_reshape(&a, sizes, &shape, &label, &outer);
		}
		if (i == views->n) {
			if (until == views->n)
				*axes = a;
			return true;
		}
		if (label < 0 || !split_factor(f, label, outer))
			return false;
	}
	return false;
}

/* Finds the factors of the scores' axes, and which of the axes, in the order batch, free axes of x
 * and of y, the softmax runs over; -1: the axes cannot be followed. */
int
attention_factors(AttentionMatch *m, Factors *f)
{
	const DotAttr *d = m->scores->attr;
	Type t = node_result(m->scores, 0)->type;
	Views views = {0};
	MergedAxes axes = {0};

	*f = (Factors){.n = t->rank};
	for (int i = 0; i < t->rank; i++) {
		int from = d->order.n ? (int)d->order.at[i] : i;
		f->count[from] = 1;
		f->size[from][0] = t->dims[i];
	}
	if (!find_views(m->logits, node_result(m->scores, 0), &views))
		return -1;
	int before_softmax = views.n;
	if (!find_views(node_operand(m->product, m->side), m->p, &views) ||
	    !follow_axes(m->scores, f, &views, before_softmax, &axes) || axes.count[m->axis] == 0)
		return -1;
	const int *labels = &axes.labels.at[merged_first(&axes, m->axis)];
	int label = labels[0], axis = 0;
	while (label >= f->count[axis])
		label -= f->count[axis++];
	for (int i = 1; i < axes.count[m->axis]; i++)
		if (labels[i] != labels[0] + i)
			return -1;
	return label == 0 && f->count[axis] == axes.count[m->axis] ? axis : -1;
}

/* Is the operand with the keys computed from another product, as where heads are mixed? */
static bool
is_mix_of_scores(AttentionMatch *m, int side)
{
	const Value *v = node_operand(m->scores, side);

	for (int steps = 0; v->node && steps < MOST_STEPS; steps++) {
		if (v->node->op == OP_dot)
			return v->type->n == node_result(m->scores, 0)->type->n;
		if (!attention_is_link(v))
			return false;
		const Value *next = NULL;
		for (int i = 0; i < v->node->n_operands && !next; i++)
			if (attention_leads_on(v, node_operand(v->node, i)))
				next = node_operand(v->node, i);
		if (!next)
			return false;
		v = next;
	}
	return false;
}

/* Labels of q, k and, as the match has them, of the scores in the graph, with the keys last. keys: the
 * axis of the scores that the softmax runs over. */
bool
attention_label_scores(AttentionMatch *m, Attention *a, const Factors *f, int keys,
                       MergedAxes *scores)
{
	const DotAttr *d = m->scores->attr;
	Type t[2] = {node_operand(m->scores, 0)->type, node_operand(m->scores, 1)->type};
	const Ints *batch[2] = {&d->x_batch, &d->y_batch};
	const Ints *contract[2] = {&d->x_contract, &d->y_contract};
	Ints free[2] = {free_axes(t[0]->rank, batch[0], contract[0]),
	                free_axes(t[1]->rank, batch[1], contract[1])};
	int nb = batch[0]->n, k = keys >= nb + free[0].n; /* operand with the keys */
	int first_query = nb + (k ? 0 : free[0].n);
	Labels of_axis[MAX_RANK] = {{0}}; /* by axis of the scores */

	if (keys < nb)
		return attention_fail(m, "its softmax does not run over keys");
	if (free[k].n != 1)
		return attention_fail(m, is_mix_of_scores(m, k) ? "another product mixes its scores"
		                                                : "its keys have several axes");
	if (free[1 - k].n == 0)
		return attention_fail(m, "its queries have no axis");
	m->keys_side = k;
	for (int i = 0; i < nb + free[1 - k].n + 1; i++) {
		int axis = i < nb ? i : i < nb + free[1 - k].n ? first_query + i - nb : keys;
		for (int c = 0; c < f->count[axis]; c++) {
			of_axis[axis].at[of_axis[axis].n++] = m->n;
			m->sizes[m->n++] = f->size[axis][c];
		}
	}
	a->n = m->n - f->count[keys] + 1;
	for (int i = 0; i < a->n - 1; i++)
		a->sizes[i] = m->sizes[i];
	a->sizes[a->n - 1] = t[k]->dims[free[k].at[0]];
	for (int side = 0; side < 2; side++) {
		Labels *of = side == k ? &a->k : &a->q;
		for (int i = 0; i < t[side]->rank; i++) {
			int axis = -1;
			for (int c = 0; c < nb; c++)
				axis = batch[side]->at[c] == i ? c : axis;
			for (int c = 0; c < free[side].n; c++)
				axis = free[side].at[c] == i ? nb + (side ? free[0].n : 0) + c
				                             : axis;
			for (int c = 0; axis >= 0 && c < (axis == keys ? 1 : of_axis[axis].n); c++)
				of->at[of->n++] = of_axis[axis].at[c];
			for (int c = 0; axis < 0 && c < contract[side]->n; c++)
				if (contract[side]->at[c] == i) {
					a->sizes[WIDTH_LABEL + c] = t[side]->dims[i];
					of->at[of->n++] = WIDTH_LABEL + c;
				}
		}
	}
	*scores = (MergedAxes){.n = f->n};
	for (int i = 0; i < f->n; i++) {
		const Labels *l = &of_axis[d->order.n ? d->order.at[i] : i];
		for (int c = 0; c < l->n; c++)
			if (m->sizes[l->at[c]] != 1) {
				scores->labels.at[scores->labels.n++] = l->at[c];
				scores->count[i]++;
			}
	}
	return true;
}

bool
attention_join_keys(const AttentionMatch *m, const Attention *a, MergedAxes *axes)
{
	MergedAxes joined = {.n = axes->n};
	int keys = a->n - 1, parts = m->n - keys;

	for (int i = 0; i < axes->n; i++) {
		const int *labels = &axes->labels.at[merged_first(axes, i)];
		for (int k = 0; k < axes->count[i]; k++) {
			for (int c = 1; labels[k] == keys && c < parts; c++)
				if (k + c >= axes->count[i] || labels[k + c] != keys + c)
					return false;
			if (labels[k] <= keys) {
				joined.labels.at[joined.labels.n++] = labels[k];
				joined.count[i]++;
			}
		}
	}
	*axes = joined;
	return true;
}

static int
push_label(Attention *a, Labels *l, int label, int64_t size)
{
	l->at[l->n++] = label;
	a->sizes[label] = size;
	return label;
}

/* Has y all axes of samples, heads and queries that x has? */
static bool
has_batches(const Attention *a, const Labels *x, const Labels *y)
{
	for (int i = 0; i < x->n; i++)
		if (x->at[i] < a->n - 1 && a->sizes[x->at[i]] != 1 && labels_find(y, x->at[i]) < 0)
			return false;
	return true;
}

/* Labels of v and o, for weights whose axes are `w`. */
bool
attention_label_values(AttentionMatch *m, Attention *a, const MergedAxes *w)
{
	const DotAttr *d = m->product->attr;
	int side = m->side, keys = (int)(side ? d->y_contract : d->x_contract).at[0];
	const Ints *batch[2] = {side ? &d->y_batch : &d->x_batch, side ? &d->x_batch : &d->y_batch};
	Type v = node_operand(m->product, 1 - side)->type;
	int v_keys = (int)(side ? d->x_contract : d->y_contract).at[0], values = 0;
	MergedAxes of_v = {.n = v->rank};

	if (w->count[keys] != 1 || w->labels.at[merged_first(w, keys)] != a->n - 1)
		return attention_fail(m, "its second product does not sum over keys");
	for (int i = 0; i < v->rank; i++) {
		int pair = -1;
		for (int k = 0; k < batch[1]->n; k++)
			pair = batch[1]->at[k] == i ? (int)batch[0]->at[k] : pair;
		if (pair < 0) {
			int label = i == v_keys ? a->n - 1 : VALUE_LABEL + values++;
			push_label(a, &a->v, label, v->dims[i]);
			of_v.count[i] = 1;
			continue;
		}
		of_v.count[i] = w->count[pair];
		for (int k = 0; k < w->count[pair]; k++) {
			int label = w->labels.at[merged_first(w, pair) + k];
			a->v.at[a->v.n++] = label;
		}
	}
	if (values == 0)
		return attention_fail(m, "its values have no width");
	if (!has_batches(a, &a->v, &a->k) || !has_batches(a, &a->k, &a->v))
		return attention_fail(m, "its keys and values have different axes");
	/* the axes of the graph's product: batch, free axes of x, free axes of y, in its order */
	Labels natural[MAX_RANK] = {{0}};
	int n = 0;
	for (int k = 0; k < batch[0]->n; k++, n++)
		for (int i = 0, p = (int)batch[0]->at[k]; i < w->count[p]; i++)
			natural[n].at[natural[n].n++] = w->labels.at[merged_first(w, p) + i];
	for (int s = 0; s < 2; s++) {
		const Ints *b = s == side ? batch[0] : batch[1];
		Ints sum = {.n = 1, .at = {s == side ? keys : v_keys}};
		Ints free = free_axes(node_operand(m->product, s)->type->rank, b, &sum);
		for (int k = 0; k < free.n; k++, n++) {
			int axis = (int)free.at[k];
			int count = s == side ? w->count[axis] : 1;
			for (int i = 0; i < count; i++)
				natural[n].at[natural[n].n++] =
					s == side ? w->labels.at[merged_first(w, axis) + i]
						  : a->v.at[merged_first(&of_v, axis)];
		}
	}
	/* labels of one element come first: the reshape to the graph's type drops them */
	for (int label = 0; label < a->n - 1; label++)
		if (a->sizes[label] == 1)
			a->o.at[a->o.n++] = label;
	for (int k = 0; k < n; k++) {
		const Labels *l = &natural[d->order.n ? d->order.at[k] : k];
		for (int i = 0; i < l->n; i++)
			a->o.at[a->o.n++] = l->at[i];
	}
	return true;
}
