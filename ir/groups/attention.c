/* Recognizes attention: a product, a softmax over one of its axes, and a product with the result,
 * whatever stands in between. Exporters write attention in many ways. Scales may stand before the
 * product or after it, heads may be reshaped and transposed anywhere, masks are added or
 * selected. So the recognizer does not look for patterns. It walks back from the second product to
 * the softmax and on to the first product, through any elementwise nodes, reshapes and transposes.
 * While it builds the body, it puts all of them on one shape: batch, queries, keys.
 *
 * What the elementwise nodes read besides the scores (masks, positions, random numbers) is
 * computed in the body, too, as far as it has an element for each query and key. So masks are not
 * stored.
 *
 * Takes linear time, because all walks are bounded. */
#include "ir/groups/attention.h"
#include "ir/loop/loop.h"
#include "ir/ops/ops.h"

#include <math.h>

enum {
	MOST_STEPS = 96,    /* of a walk from the second product to the first */
	MOST_ABSORBED = 96, /* nodes that compute masks and the like */
};

typedef struct {
	Recognition *r;
	Node *product;         /* weights v */
	int side;              /* operand of the product that has the weights */
	Value *p, *logits;     /* result and operand of the softmax */
	int axis;              /* of the softmax */
	bool zero_rows;        /* are rows without a logit above -inf 0? */
	Node *scores;          /* q k */
	int keys_side;         /* operand of the scores that has the keys */
	VEC(const Node *) own; /* nodes that only the attention should read */
	int steps;
	AttentionMask mask;
	const char *why; /* it is not recognized; NULL: no reason so far */
} Match;

/* ---- values from row to row */
static bool
passes_on(const Node *n)
{
	return n->n_operands == 1 && (op_row(n)->fuse == FUSE_VIEW || n->op == OP_stop_gradient);
}

/* The value of which v, a value with one number for each row, repeats the elements. */
static Value *
row_base(Match *m, Value *v)
{
	while (v->node && passes_on(v->node)) {
		vec_push(m->r->scratch, &m->own, (const Node *)v->node);
		v = node_operand(v->node, 0);
	}
	return v;
}

/* Is each element of v the element of `base` that belongs to its row? A row runs along `axis`. */
static bool
repeats_rows(Match *m, const Value *v, const Value *base, int axis)
{
	Arena *scratch = m->r->scratch;
	LoopBuilder *lb = loop_builder(kernel_new(scratch, "", NULL), m->r->m, scratch);
	Index at = {.rank = v->type->rank}, next;
	Type t = v->type;
	int64_t stride = 1;
	Affine row = affine_constant(0);

	if (t->n == 0 || base->type->n != t->n / t->dims[axis])
		return false;
	for (int i = 0; i < t->rank; i++)
		at.at[i] = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, t->dims[i]));
	for (int i = t->rank - 1; i >= 0; i--)
		if (i != axis && t->dims[i] != 1) {
			row = affine_add_scaled(lb, row, at.at[i], stride);
			stride *= t->dims[i];
		}
	for (; v != base; v = node_operand(v->node, 0))
		if (op_row(v->node)->fuse == FUSE_VIEW) {
			next = (Index){0};
			op_row(v->node)->map(lb, v->node, &at, &next);
			at = next;
		}
	Affine place = index_flat(lb, base->type, &at);
	for (int i = 0; i < t->rank; i++)
		lb_end(lb);
	return affine_same(&place, &row);
}

/* The reduction whose results v holds, perhaps reshaped; NULL: no reduction over one axis. */
static const Node *
reduction_of(Match *m, Value *v, ReduceKind kind)
{
	while (v->node && (v->node->op == OP_reshape || v->node->op == OP_stop_gradient)) {
		vec_push(m->r->scratch, &m->own, (const Node *)v->node);
		v = node_operand(v->node, 0);
	}
	const Node *n = v->node;
	const ReduceAttr *a = n && n->op == OP_reduce ? n->attr : NULL;
	if (!a || a->kind != (int)kind || a->axes.n != 1)
		return NULL;
	vec_push(m->r->scratch, &m->own, n);
	return n;
}

/* w repeats the sum of e over each row; or its inverse, if `inverse` is set. Sets m->axis. */
static bool
repeats_sum(Match *m, Value *w, const Value *e, bool inverse)
{
	Value *base = row_base(m, w), *sum = base;
	double one;

	if (inverse) {
		Node *n = base->node;
		if (!n || n->op != OP_div || !value_splat(node_operand(n, 0), &one) || one != 1)
			return false;
		vec_push(m->r->scratch, &m->own, (const Node *)n);
		sum = node_operand(n, 1);
	}
	const Node *reduce = reduction_of(m, sum, REDUCE_SUM);
	if (!reduce || node_operand(reduce, 0) != e)
		return false;
	m->axis = (int)((const ReduceAttr *)reduce->attr)->axes.at[0];
	return repeats_rows(m, w, base, m->axis);
}

/* d is x minus the largest x of its row, or x itself. */
static Value *
logits_of(Match *m, Value *d)
{
	Node *n = d->node;

	if (!n || n->op != OP_sub)
		return d;
	Value *x = node_operand(n, 0), *most = node_operand(n, 1), *base = row_base(m, most);
	const Node *reduce = reduction_of(m, base, REDUCE_MAX);
	if (!reduce || node_operand(reduce, 0) != x ||
	    ((const ReduceAttr *)reduce->attr)->axes.at[0] != m->axis ||
	    !repeats_rows(m, most, base, m->axis))
		return d;
	vec_push(m->r->scratch, &m->own, (const Node *)n);
	return x;
}

/* v = exp(d - log(sum of exp(d))), as a logarithm of a softmax and an exp compute it. */
static bool
is_exp_of_log_softmax(Match *m, const Node *exp)
{
	const Node *sub = node_operand(exp, 0)->node;

	if (!sub || sub->op != OP_sub)
		return false;
	Value *d = node_operand(sub, 0), *w = node_operand(sub, 1), *base = row_base(m, w);
	const Node *log = base->node;
	if (!log || log->op != OP_log)
		return false;
	const Node *reduce = reduction_of(m, node_operand(log, 0), REDUCE_SUM);
	const Node *e = reduce ? node_operand(reduce, 0)->node : NULL;
	if (!e || e->op != OP_exp || node_operand(e, 0) != d)
		return false;
	m->axis = (int)((const ReduceAttr *)reduce->attr)->axes.at[0];
	if (!repeats_rows(m, w, base, m->axis))
		return false;
	vec_push(m->r->scratch, &m->own, sub);
	vec_push(m->r->scratch, &m->own, log);
	vec_push(m->r->scratch, &m->own, e);
	m->logits = logits_of(m, d);
	return true;
}

static bool
divides_by_sum(Match *m, const Node *n, int i)
{
	Value *e = node_operand(n, i);
	const Node *exp = e->node;

	if (!exp || exp->op != OP_exp || !repeats_sum(m, node_operand(n, 1 - i), e, n->op == OP_mul))
		return false;
	vec_push(m->r->scratch, &m->own, exp);
	m->logits = logits_of(m, node_operand(exp, 0));
	return true;
}

/* v before casts, which importers put where a recipe has 16 bits. */
static Value *
before_casts(Value *v)
{
	while (value_cast_of(v))
		v = value_cast_of(v);
	return v;
}

static bool
is_zero(Value *v)
{
	double x;

	return value_splat(before_casts(v), &x) && x == 0;
}

/* The value, x or a cast of x, for which v, a bool, says in which rows its largest number is -inf;
 * NULL: v says something else. */
static Value *
tells_hidden_rows(Match *m, Value *v, Value *x)
{
	Value *base = row_base(m, v);
	const Node *eq = base->node;
	double least;

	if (!eq || eq->op != OP_eq || !value_splat(node_operand(eq, 1), &least) || least != -INFINITY)
		return NULL;
	const Node *most = reduction_of(m, node_operand(eq, 0), REDUCE_MAX);
	vec_push(m->r->scratch, &m->own, eq);
	if (!most || before_casts(node_operand(most, 0)) != before_casts(x) ||
	    ((const ReduceAttr *)most->attr)->axes.at[0] != m->axis ||
	    !repeats_rows(m, v, base, m->axis))
		return NULL;
	return node_operand(most, 0);
}

static bool is_softmax(Match *m, Value *v);

/* select(hidden, 0, softmax(select(hidden, 0, x))), where the largest x of hidden rows is -inf: the
 * softmax of ONNX's Attention. */
static bool
is_softmax_with_zeros(Match *m, const Node *n)
{
	if (!is_zero(node_operand(n, 1)) || !node_operand(n, 2)->node ||
	    !is_softmax(m, node_operand(n, 2)))
		return false;
	const Node *inner = before_casts(m->logits)->node;
	if (!inner || inner->op != OP_select || !is_zero(node_operand(inner, 1)))
		return false;
	Value *x = node_operand(inner, 2), *logits = tells_hidden_rows(m, node_operand(n, 0), x);
	if (!logits || !tells_hidden_rows(m, node_operand(inner, 0), x))
		return false;
	if (m->logits->node != inner)
		vec_push(m->r->scratch, &m->own, (const Node *)m->logits->node);
	vec_push(m->r->scratch, &m->own, inner);
	m->logits = logits;
	m->zero_rows = true;
	return true;
}

/* Is v the result of a softmax over one axis? */
static bool
is_softmax(Match *m, Value *v)
{
	const Node *n = v->node;
	int before = m->own.n;
	bool is = false;

	if (n->op == OP_div)
		is = divides_by_sum(m, n, 0);
	else if (n->op == OP_mul)
		is = divides_by_sum(m, n, 0) || divides_by_sum(m, n, 1);
	else if (n->op == OP_exp)
		is = is_exp_of_log_softmax(m, n);
	else if (n->op == OP_select)
		is = is_softmax_with_zeros(m, n);
	if (!is)
		m->own.n = before;
	else
		vec_push(m->r->scratch, &m->own, n);
	return is;
}

/* ---- walks from product to product */
static bool
is_link(const Value *v)
{
	const Node *n = v->node;

	return n && n->n_results == 1 &&
	       (op_row(n)->fuse == FUSE_ELEMENTWISE || op_row(n)->fuse == FUSE_VIEW);
}

/* Can the elements of v's operand x be the scores from which v is computed? */
static bool
leads_on(const Value *v, const Value *x)
{
	return x && x->type->n == v->type->n && dtype_is_float(x->type->dtype);
}

static bool
find_softmax(Match *m, Value *v)
{
	if (!is_link(v) || m->steps++ > MOST_STEPS)
		return false;
	if (is_softmax(m, v)) {
		m->p = v;
		return true;
	}
	for (int i = 0; i < v->node->n_operands; i++)
		if (leads_on(v, node_operand(v->node, i)) &&
		    find_softmax(m, node_operand(v->node, i)))
			return true;
	return false;
}

/* Finds the products from which v is computed; false: there are several. */
static bool
find_scores(Match *m, Value *v)
{
	if (v->node && v->node->op == OP_dot) {
		if (m->scores && m->scores != v->node)
			return false;
		m->scores = v->node;
		return true;
	}
	if (!is_link(v) || m->steps++ > MOST_STEPS)
		return true;
	for (int i = 0; i < v->node->n_operands; i++)
		if (leads_on(v, node_operand(v->node, i)) && !find_scores(m, node_operand(v->node, i)))
			return false;
	return true;
}

/* The operand that n multiplies by one number; *by: the number. NULL: n does no such thing. */
static Value *
scaled_by(const Node *n, double *by)
{
	for (int i = 0; n->op == OP_mul && i < 2; i++)
		if (value_splat(node_operand(n, i), by))
			return node_operand(n, 1 - i);
	if (n->op != OP_div || !value_splat(node_operand(n, 1), by) || *by == 0)
		return NULL;
	*by = 1 / *by;
	return node_operand(n, 0);
}

Peeled
attention_peel(Value *v, bool scales)
{
	Peeled p = {.base = v, .scale = 1};

	for (double by; p.base->node; ) {
		const Node *n = p.base->node;
		Value *inner = scales ? scaled_by(n, &by) : NULL;
		if (inner && isfinite(by)) {
			p.scale *= by;
			p.base = inner;
			continue;
		}
		if ((n->op != OP_reshape && n->op != OP_transpose) || p.n == MOST_VIEWS)
			break;
		p.views[p.n++] = n;
		p.base = node_operand(n, 0);
	}
	return p;
}

/* ---- the body */
/* What an elementwise part of the attention (f or g) computes from: `base` in the graph, `inside`
 * in the body. */
typedef struct {
	const Value *base;
	MergedAxes axes; /* of base */
	Value *inside;
} Origin;
/* A value of such a part. */
typedef struct {
	bool depends; /* on the origin's base */
	MergedAxes axes;
	Value *inside;
} Link;
typedef struct {
	Match *m;
	Attention *a;
	Builder b;
	const Origin *from;
	IntMap *links;    /* value id in the graph -> number in `list` */
	IntMap *absorbed; /* value id in the graph -> value in the body */
	VEC(Link) list;
	int n_absorbed;
	AttentionMask mask;
} Build;

static bool
fail(Match *m, const char *why)
{
	m->why = m->why ? m->why : why;
	return false;
}

static bool
is_trained(const Recognition *r, const Value *v)
{
	return dtype_is_float(v->type->dtype) && (v->id >= r->n_values || r->trained[v->id]);
}

/* A parameter of the body that stands for v. */
static Value *
argument(Build *c, Value *v, const char *name)
{
	vec_push(c->m->r->scratch, &c->a->arguments, v);
	vec_push(c->m->r->scratch, &c->a->trained, c->a->arguments.n > 3 && is_trained(c->m->r, v));
	return function_param(c->a->body, v->type, name);
}

/* Should the body compute v itself? Yes, if v has an element for each query and key, and costs
 * little. */
static bool
should_absorb(const Build *c, const Value *v)
{
	const Node *n = v->node;
	const Attention *a = c->a;
	double splat;

	if (!n || n->n_results != 1 || c->n_absorbed >= MOST_ABSORBED)
		return false;
	FuseClass fuse = op_row(n)->fuse;
	if (fuse == FUSE_VIEW || (n->op == OP_constant && value_splat(v, &splat)))
		return true;
	if (fuse == FUSE_INDEX && n->n_operands == 0)
		return n->op != OP_constant;
	return (fuse == FUSE_ELEMENTWISE || (fuse == FUSE_INDEX && !is_trained(c->m->r, v))) &&
	       !op_row(n)->effect && v->type->n >= a->sizes[a->n - 1] * a->sizes[a->n - 2];
}

/* v, which does not depend on the scores, in the body. */
static Value *
absorb(Build *c, Value *v)
{
	uint64_t known;

	if (!v)
		return NULL;
	if (intmap_get(c->absorbed, v->id, &known))
		return (Value *)(uintptr_t)known;
	Value *inside;
	if (should_absorb(c, v)) {
		const Node *n = v->node;
		Value **x = NEW_ARRAY(c->m->r->scratch, Value *, n->n_operands + 1);
		c->n_absorbed++;
		for (int i = 0; i < n->n_operands; i++)
			x[i] = absorb(c, node_operand(n, i));
		inside = build(&c->b, n->op, n->n_operands, x, n->attr);
	} else {
		inside = argument(c, v, arena_printf(c->m->r->scratch, "x%d", c->a->arguments.n));
	}
	intmap_put(c->absorbed, v->id, (uint64_t)(uintptr_t)inside);
	return inside;
}

static int find_link(Build *c, Value *v);

/* A view that keeps all elements: the body needs none. */
static bool
link_view(Build *c, Link *l, const Node *n, const Link *x)
{
	Ints shape = ints_of_type(node_result(n, 0)->type);

	l->inside = x->inside;
	l->axes = x->axes;
	if (n->op == OP_transpose) {
		merged_transpose(&l->axes, &((const TransposeAttr *)n->attr)->order);
		return true;
	}
	bool keeps = n->op == OP_reshape || (n->op == OP_broadcast &&
	                                     node_operand(n, 0)->type->n == node_result(n, 0)->type->n);
	int label;
	int64_t outer;
	return (keeps && merged_reshape(&l->axes, c->a->sizes, &shape, &label, &outer)) ||
	       fail(c->m, "its scores are sliced or regrouped on the way");
}

static bool
link_elementwise(Build *c, Link *l, const Node *n, const int *links)
{
	Value **x = NEW_ARRAY(c->m->r->scratch, Value *, n->n_operands);
	bool first = true;

	for (int i = 0; i < n->n_operands; i++) {
		if (links[i] < 0 || !c->list.at[links[i]].depends)
			continue;
		if (!first && !merged_equal(&l->axes, &c->list.at[links[i]].axes))
			return fail(c->m, "its scores are combined in two shapes");
		l->axes = c->list.at[links[i]].axes;
		first = false;
	}
	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		bool depends = links[i] >= 0 && c->list.at[links[i]].depends;
		if (v && !depends && c->from->base == node_result(c->m->scores, 0))
			attention_note_mask(&c->mask, n, i, &l->axes);
		x[i] = depends ? c->list.at[links[i]].inside
		       : v     ? merged_split(&c->b, absorb(c, v), &l->axes, c->a->sizes, c->a->n)
		               : NULL;
	}
	l->inside = build(&c->b, n->op, n->n_operands, x, n->attr);
	return true;
}

/* Makes a link of v, whose operands are links, if one of these depends on the base. */
static bool
make_link(Build *c, Link *l, Value *v)
{
	const Node *n = v->node;
	int *links = NEW_ARRAY(c->m->r->scratch, int, n->n_operands + 1);

	for (int i = 0; i < n->n_operands; i++) {
		Value *x = node_operand(n, i);
		links[i] = x && x->type->n == v->type->n ? find_link(c, x) : -1;
		if (links[i] >= 0)
			l->depends |= c->list.at[links[i]].depends;
	}
	if (!l->depends || c->m->why)
		return !c->m->why;
	vec_push(c->m->r->scratch, &c->m->own, n);
	return op_row(n)->fuse == FUSE_VIEW ? link_view(c, l, n, &c->list.at[links[0]])
	                                    : link_elementwise(c, l, n, links);
}

/* The number of v's link. m->why is set if v depends on the base in a way that is not supported. */
static int
find_link(Build *c, Value *v)
{
	Match *m = c->m;
	uint64_t known;
	Link l = {0};

	if (intmap_get(c->links, v->id, &known))
		return (int)known;
	if (v == c->from->base)
		l = (Link){true, c->from->axes, c->from->inside};
	else if (is_link(v) && m->steps++ > MOST_STEPS)
		fail(m, "too many nodes stand between its products");
	else if (is_link(v))
		make_link(c, &l, v);
	vec_push(m->r->scratch, &c->list, l);
	intmap_put(c->links, v->id, (uint64_t)(c->list.n - 1));
	return c->list.n - 1;
}

/* v in the body, and its axes; NULL: v is not computed from `from` alone. */
static Value *
follow(Build *c, const Origin *from, Value *v, MergedAxes *axes)
{
	c->from = from;
	c->links = intmap_new(c->m->r->scratch);
	c->list.n = 0;
	c->m->steps = 0;
	int i = find_link(c, v);
	if (c->m->why || !c->list.at[i].depends)
		return NULL;
	*axes = c->list.at[i].axes;
	return c->list.at[i].inside;
}

/* ---- labels */
/* The scores' axes in the order batch, free axes of x, free axes of y, each as a product of
 * factors: later reshapes may split an axis, as [8,64,64] to [2,4,64,64]. */
typedef struct {
	int n;
	int count[MAX_RANK];
	int64_t size[MAX_RANK][MAX_RANK];
} Factors;

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
	if (!is_link(v) || (*steps)++ > MOST_STEPS)
		return false;
	for (int i = 0; i < v->node->n_operands; i++)
		if (leads_on(v, node_operand(v->node, i)) &&
		    reaches(node_operand(v->node, i), base, steps))
			return true;
	return false;
}

typedef struct {
	int n;
	const Node *at[2 * MOST_VIEWS];
} Views;

/* Puts the views on a way from base to v before the list. False: there are too many, or no way. */
static bool
find_views(const Value *v, const Value *base, Views *out)
{
	Views found = {0};
	int most = COUNT(found.at) - out->n;

	while (v != base) {
		const Value *next = NULL;
		for (int i = 0, steps = 0; is_link(v) && i < v->node->n_operands && !next; i++) {
			const Value *x = node_operand(v->node, i);
			if (leads_on(v, x) && reaches(x, base, &steps))
				next = x;
		}
		if (!next || found.n == most)
			return false;
		if (op_row(v->node)->fuse == FUSE_VIEW)
			found.at[found.n++] = v->node;
		v = next;
	}
	for (int i = 0; i < out->n; i++)
		found.at[found.n + i] = out->at[i];
	for (int i = 0; i < found.n / 2; i++) {
		const Node *n = found.at[i];
		found.at[i] = found.at[found.n - 1 - i];
		found.at[found.n - 1 - i] = n;
	}
	found.n += out->n;
	*out = found;
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
				merged_transpose(&a, &((const TransposeAttr *)views->at[i]->attr)->order);
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
static int
find_factors(Match *m, Factors *f)
{
	const DotAttr *d = m->scores->attr;
	Type t = node_result(m->scores, 0)->type;
	Views before = {0}, all = {0};
	MergedAxes axes = {0};

	*f = (Factors){.n = t->rank};
	for (int i = 0; i < t->rank; i++) {
		int from = d->order.n ? (int)d->order.at[i] : i;
		f->count[from] = 1;
		f->size[from][0] = t->dims[i];
	}
	if (!find_views(node_operand(m->product, m->side), m->p, &all) ||
	    !find_views(m->logits, node_result(m->scores, 0), &before))
		return -1;
	int until = before.n;
	if (before.n + all.n > COUNT(all.at))
		return -1;
	for (int i = 0; i < all.n; i++)
		before.at[before.n++] = all.at[i];
	if (!follow_axes(m->scores, f, &before, until, &axes) || axes.count[m->axis] != 1)
		return -1;
	int label = axes.labels.at[merged_first(&axes, m->axis)], axis = 0;
	while (label >= f->count[axis])
		label -= f->count[axis++];
	return f->count[axis] == 1 ? axis : -1;
}

/* Labels of q, k and of the scores in the graph, with the keys last. keys: the axis of the scores
 * that the softmax runs over. */
static bool
label_scores(Match *m, Attention *a, const Factors *f, int keys, MergedAxes *scores)
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
		return fail(m, "its softmax does not run over keys");
	if (free[k].n != 1)
		return fail(m, "its keys have several axes");
	if (free[1 - k].n == 0)
		return fail(m, "its queries have no axis");
	m->keys_side = k;
	for (int i = 0; i < nb + free[1 - k].n + 1; i++) {
		int axis = i < nb ? i : i < nb + free[1 - k].n ? first_query + i - nb : keys;
		for (int c = 0; c < f->count[axis]; c++) {
			of_axis[axis].at[of_axis[axis].n++] = a->n;
			a->sizes[a->n++] = f->size[axis][c];
		}
	}
	for (int side = 0; side < 2; side++) {
		Labels *of = side == k ? &a->k : &a->q;
		for (int i = 0; i < t[side]->rank; i++) {
			int axis = -1;
			for (int c = 0; c < nb; c++)
				axis = batch[side]->at[c] == i ? c : axis;
			for (int c = 0; c < free[side].n; c++)
				axis = free[side].at[c] == i ? nb + (side ? free[0].n : 0) + c : axis;
			for (int c = 0; axis >= 0 && c < of_axis[axis].n; c++)
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
			if (a->sizes[l->at[c]] != 1) {
				scores->labels.at[scores->labels.n++] = l->at[c];
				scores->count[i]++;
			}
	}
	return true;
}

static int
push_label(Attention *a, Labels *l, int label, int64_t size)
{
	l->at[l->n++] = label;
	a->sizes[label] = size;
	return label;
}

/* Labels of v and o, for weights whose axes are `w`. */
static bool
label_values(Match *m, Attention *a, const MergedAxes *w)
{
	const DotAttr *d = m->product->attr;
	int side = m->side, keys = (int)(side ? d->y_contract : d->x_contract).at[0];
	const Ints *batch[2] = {side ? &d->y_batch : &d->x_batch, side ? &d->x_batch : &d->y_batch};
	Type v = node_operand(m->product, 1 - side)->type;
	int v_keys = (int)(side ? d->x_contract : d->y_contract).at[0], values = 0;
	MergedAxes of_v = {.n = v->rank};

	if (w->count[keys] != 1 || w->labels.at[merged_first(w, keys)] != a->n - 1)
		return fail(m, "its second product does not sum over keys");
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
		return fail(m, "its values have no width");
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

/* ---- building */
Ints
attention_shape(const Attention *a, const Labels *l)
{
	Ints shape = {.n = l->n};

	for (int i = 0; i < l->n; i++)
		shape.at[i] = a->sizes[l->at[i]];
	return shape;
}

Value *
attention_views(Builder *b, Value *x, const Peeled *from)
{
	for (int i = from->n - 1; i >= 0; i--)
		x = build(b, from->views[i]->op, 1, &x, from->views[i]->attr);
	return x;
}

/* softmax over the last axis; *first is its first value, and *most and *sum are of each row. zero_rows:
 * a row whose largest x is -inf has *most = 0 and *sum = inf, so its softmax is 0. */
static Value *
softmax(Builder *b, Value *x, bool zero_rows, Value **first, Value **most, Value **sum)
{
	Ints axes = {.n = 1, .at = {x->type->rank - 1}};
	Value *hidden = NULL;

	*most = *first = b_reduce(b, REDUCE_MAX, x, axes);
	if (zero_rows) {
		hidden = b_with(b, OP_eq, *most, -INFINITY);
		*most = b_select(b, hidden, b_number_like(b, *most, 0), *most);
	}
	Value *shift = b_broadcast_back(b, b_unary(b, OP_stop_gradient, *most), x->type, axes);
	Value *e = b_unary(b, OP_exp, b_binary(b, OP_sub, x, shift));
	*sum = b_reduce(b, REDUCE_SUM, e, axes);
	if (zero_rows)
		*sum = b_select(b, hidden, b_number_like(b, *sum, INFINITY), *sum);
	return b_binary(b, OP_div, e, b_broadcast_back(b, *sum, x->type, axes));
}

static bool
build_body(Match *m, Attention *a, const Factors *f, int keys)
{
	Build c = {.m = m, .a = a, .absorbed = intmap_new(m->r->scratch)};
	Labels all;
	MergedAxes scores_axes;
	Value *most, *sum, *inner = node_result(m->scores, 0);
	MergedAxes axes;

	if (!label_scores(m, a, f, keys, &scores_axes))
		return false;
	a->q_from = attention_peel(node_operand(m->scores, 1 - m->keys_side), true);
	a->k_from = attention_peel(node_operand(m->scores, m->keys_side), true);
	a->v_from = attention_peel(node_operand(m->product, 1 - m->side), false);
	a->q_type = node_operand(m->scores, 1 - m->keys_side)->type;
	a->k_type = node_operand(m->scores, m->keys_side)->type;
	a->v_type = node_operand(m->product, 1 - m->side)->type;
	a->o_type = node_result(m->product, 0)->type;
	all = labels_range(0, a->n);
	c.b = (Builder){.m = m->r->m, .f = a->body};
	Value *q = attention_views(&c.b, argument(&c, a->q_from.base, "q"), &a->q_from);
	Value *k = attention_views(&c.b, argument(&c, a->k_from.base, "k"), &a->k_from);
	q = b_reshape(&c.b, q, attention_shape(a, &a->q));
	k = b_reshape(&c.b, k, attention_shape(a, &a->k));
	Value *v = argument(&c, a->v_from.base, "v");
	Value *s = labels_dot(&c.b, q, &a->q, k, &a->k, &all, inner->type->dtype);
	double scale = a->q_from.scale * a->k_from.scale;
	if (scale != 1)
		s = b_binary(&c.b, OP_mul, s, b_splat(&c.b, s->type, scale));
	Origin from = {inner, scores_axes, s};
	a->logits = follow(&c, &from, m->logits, &axes);
	if (!a->logits)
		return fail(m, "its softmax reads more than the scores");
	if (dtype_info[a->logits->type->dtype].bits < 32)
		return fail(m, "its softmax is computed in 16 bits");
	if (attention_range_exists(m->r, a, &c.mask)) {
		a->range = a->arguments.n;
		for (int i = 0; i < 2; i++) { /* attention_range_set sets them */
			vec_push(m->r->scratch, &a->arguments, (Value *)NULL);
			vec_push(m->r->scratch, &a->trained, false);
		}
		a->logits = attention_range(&c.b, a, a->logits);
	}
	a->p = softmax(&c.b, a->logits, m->zero_rows, &a->most, &most, &sum);
	from = (Origin){m->p, axes, a->p};
	a->weights = follow(&c, &from, node_operand(m->product, m->side), &axes);
	if (!a->weights)
		return fail(m, "its second product reads more than the softmax");
	if (!label_values(m, a, &axes))
		return false;
	int n_trained = 0;
	for (int i = 0; i < a->trained.n; i++)
		n_trained += a->trained.at[i];
	if (n_trained > MOST_TRAINED_ARGUMENTS)
		return fail(m, "its scores depend on many trained values");
	v = b_reshape(&c.b, attention_views(&c.b, v, &a->v_from), attention_shape(a, &a->v));
	Value *o = labels_dot(&c.b, a->weights, &all, v, &a->v, &a->o, a->o_type->dtype);
	o = b_reshape(&c.b, o, ints_of_type(a->o_type));
	b_return(&c.b, 3, (Value *[]){o, most, sum});
	m->mask = c.mask;
	function_name_result(a->body, "o");
	function_name_result(a->body, "max");
	function_name_result(a->body, "sum");
	return true;
}

/* ---- in the graph */
static bool
is_own(const Match *m, const Node *n)
{
	for (int i = 0; i < m->own.n; i++)
		if (m->own.at[i] == n)
			return true;
	return n == m->product;
}

/* The first node besides the attention's that reads what would not be computed any more: the
 * scores, and all that depends on them. NULL: no such node. */
static const Node *
other_reader(const Match *m)
{
	for (int i = 0; i < m->own.n; i++)
		for (int k = 0; k < m->own.at[i]->n_results; k++)
			for_each_use(node_result(m->own.at[i], k), u)
				if (!is_own(m, u->user))
					return u->user;
	return NULL;
}

static void
put_call(Match *m, Attention *a, const GroupBody *body)
{
	Builder b = {.m = m->r->m,
	             .f = m->r->f,
	             .before = m->product,
	             .loc = m->product->loc,
	             .phase = m->product->phase};
	CallAttr attr = {.callee = body->body, .gradient = body->gradient};

	if (a->range)
		attention_range_set(&b, a, &m->mask);
	Node *call = build_node(&b, OP_call, a->arguments.n, a->arguments.at, &attr);

	value_replace_uses(node_result(m->product, 0), node_result(call, 0));
}

static bool
is_attention(Match *m)
{
	Value *weights = node_operand(m->product, m->side);

	if (weights->type->n == 0 || !find_softmax(m, weights))
		return false;
	m->steps = 0;
	return find_scores(m, m->logits) ? m->scores != NULL
	                                 : fail(m, "its scores are a sum of several products") || true;
}

static bool
recognize_side(Recognition *r, Node *n, int side)
{
	Match m = {.r = r, .product = n, .side = side};
	Attention a = {0};

	if (!is_attention(&m))
		return false;
	Factors factors;
	int keys = m.why ? -1 : find_factors(&m, &factors);
	if (keys < 0)
		fail(&m, "its scores are sliced or regrouped on the way");
	a.body = m.why ? NULL : group_begin(r->m, &group_attention);
	if (!m.why && build_body(&m, &a, &factors, keys)) {
		vec_push(r->scratch, &m.own, (const Node *)m.scores);
		const Node *reader = other_reader(&m);
		if (reader)
			fail(&m, arena_printf(r->scratch, "%s reads its scores, too",
			                      reader->op == OP_return
			                              ? "the model's user"
			                              : arena_printf(r->scratch, "node \"%s\"",
			                                             loc_origin(reader->loc))));
	}
	if (m.why) {
		group_note(r, &group_attention, n, m.why);
		if (a.body)
			function_remove(a.body);
		return false;
	}
	GroupBody *body = group_share(r, a.body);
	if (!body->gradient)
		body->gradient = attention_gradient(r, &a);
	put_call(&m, &a, body);
	return true;
}

/* n may be the second product, with the weights as either operand. */
static bool
recognize_attention(Recognition *r, Node *n)
{
	const DotAttr *a = n->op == OP_dot ? n->attr : NULL;

	if (!a || a->x_contract.n != 1 || !dtype_is_float(node_result(n, 0)->type->dtype))
		return false;
	return recognize_side(r, n, 0) || recognize_side(r, n, 1);
}

const GroupRow group_attention = {
	.name = "attention",
	.doc = "softmax(f(q k)) v: o, and of each query's row the largest logit and the sum of exponentials",
	.recognize = recognize_attention,
	.drop_hints = attention_drop_range};
