/* Builds the body of an attention: all its nodes on one shape, batch, queries, keys. What the
 * elementwise nodes read besides the scores (masks, positions, random numbers) is computed in the
 * body, too, as far as it has an element for each query and key. So masks are not stored. */
#include "ir/groups/attention_match.h"

#include <math.h>

enum {
	MOST_ABSORBED = 96, /* nodes that compute masks and the like */
	MOST_LINK_OPERANDS = 4
};

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

/* The same for a factor in mixed precision: cast(cast(x, f32) * by, bf16). The scores are multiplied instead, so one
 * rounding is left out. Not f16: q k could be too large without the factor. */
static Value *
scaled_in_f32(const Node *n, double *by)
{
	Value *product = value_cast_of(node_result(n, 0));
	Value *wide = product && product->node ? scaled_by(product->node, by) : NULL;
	Value *x = wide ? value_cast_of(wide) : NULL;

	return x && x->type == node_result(n, 0)->type && x->type->dtype == BF16 ? x : NULL;
}

Peeled
attention_peel(Value *v, bool scales)
{
	Peeled p = {.base = v, .scale = 1};

	for (double by; p.base->node;) {
		const Node *n = p.base->node;
		Value *inner = scales ? scaled_by(n, &by) : NULL;
		inner = scales && !inner ? scaled_in_f32(n, &by) : inner;
		if (inner && isfinite(by)) {
			p.scale *= by;
			p.base = inner;
			continue;
		}
		if (!is_move(n) || p.n == MOST_VIEWS)
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
	AttentionMatch *m;
	Attention *a;
	Builder b;
	const Origin *from;
	IntMap *links;    /* value id in the graph -> number in `list` */
	IntMap *absorbed; /* value id in the graph -> value in the body */
	IntMap *moved;    /* value id in the body -> the value that moved_first gives */
	VEC(Link) list;
	int n_absorbed;
	int64_t n_scores;
	AttentionMask mask;
} Build;

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
 * little. Of trained values, it computes what has an element for each score, and moves; so the
 * gradients of its arguments are sums over tiles of the scores. */
static bool
should_absorb(const Build *c, const Value *v)
{
	const Node *n = v->node;
	const Attention *a = c->a;
	double splat;

	if (!n || n->n_results != 1 || c->n_absorbed >= MOST_ABSORBED)
		return false;
	FuseClass fuse = op_row(n)->fuse;
	if (is_trained(c->m->r, v))
		return is_move(n) || (v->type->n == c->n_scores && !op_row(n)->effect &&
		                      (n->op == OP_broadcast || fuse == FUSE_ELEMENTWISE));
	if (fuse == FUSE_VIEW || (n->op == OP_constant && value_splat(v, &splat)))
		return true;
	if (fuse == FUSE_INDEX && n->n_operands == 0)
		return n->op != OP_constant;
	return (fuse == FUSE_ELEMENTWISE || fuse == FUSE_INDEX) && !op_row(n)->effect &&
	       v->type->n >= a->sizes[a->n - 1] * a->sizes[a->n - 2];
}

/* x as cast by n, with a cast to more bits before reshapes and broadcasts. So the gradient of what is
 * broadcast is a sum of f32. */
static Value *
widened_first(Builder *b, Value *x, const Node *n)
{
	const Node *view = x->node;
	DType to = node_result(n, 0)->type->dtype;

	if (!(is_move(view) || (view && view->op == OP_broadcast)) ||
	    dtype_info[to].bits < dtype_info[x->type->dtype].bits)
		return build(b, n->op, 1, &x, n->attr);
	x = widened_first(b, node_operand(view, 0), n);
	return build(b, view->op, 1, &x, view->attr);
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
		inside = value_cast_of(v) ? widened_first(&c->b, x[0], n)
		                          : build(&c->b, n->op, n->n_operands, x, n->attr);
	} else {
		inside = argument(c, v, arena_printf(c->m->r->scratch, "x%d", c->a->arguments.n));
	}
	intmap_put(c->absorbed, v->id, (uint64_t)(uintptr_t)inside);
	return inside;
}

/* Reshapes and transposes, the last one first, that move behind elementwise nodes. */
typedef struct {
	Builder *b;
	const Node *moves[MOST_VIEWS];
	int n;
	IntMap *done; /* value id -> the moved value */
} Moves;
static Value *moved_first(Build *c, Value *v);

/* x moved by all moves, with the moves before the elementwise nodes that compute x. */
static Value *
move_operands(Build *c, const Moves *m, Value *x)
{
	Value *operands[MOST_LINK_OPERANDS], *y;
	const Node *f = x->node;
	uint64_t known;

	if (intmap_get(m->done, x->id, &known))
		return (Value *)(uintptr_t)known;
	if (f && op_row(f)->fuse == FUSE_ELEMENTWISE && f->n_operands <= COUNT(operands)) {
		for (int i = 0; i < f->n_operands; i++) {
			operands[i] = node_operand(f, i);
			if (operands[i])
				operands[i] = move_operands(c, m, moved_first(c, operands[i]));
		}
		y = build(m->b, f->op, f->n_operands, operands, f->attr);
	} else {
		y = x;
		for (int i = m->n - 1; i >= 0; i--)
			y = build(m->b, m->moves[i]->op, 1, &y, m->moves[i]->attr);
	}
	intmap_put(m->done, x->id, (uint64_t)(uintptr_t)y);
	return y;
}

/* If v is a reshape or a transpose of elementwise nodes, moves it before them: reshape(f(x, y)) becomes
 * f(reshape(x), reshape(y)). So the gradients of x and y are sums of values of the scores' shape. */
static Value *
moved_first(Build *c, Value *v)
{
	Moves m = {.b = &c->b};
	Value *x = v;
	uint64_t known;

	if (!is_move(v->node))
		return v;
	if (intmap_get(c->moved, v->id, &known))
		return (Value *)(uintptr_t)known;
	m.done = intmap_new(c->m->r->scratch);
	for (; is_move(x->node) && m.n < COUNT(m.moves); x = node_operand(x->node, 0))
		m.moves[m.n++] = x->node;
	bool inside = x->node && op_row(x->node)->fuse == FUSE_ELEMENTWISE;
	Value *y = inside ? move_operands(c, &m, x) : v;
	intmap_put(c->moved, v->id, (uint64_t)(uintptr_t)y);
	return y;
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
	bool keeps = n->op == OP_reshape ||
	             (n->op == OP_broadcast &&
	              node_operand(n, 0)->type->n == node_result(n, 0)->type->n);
	int label;
	int64_t outer;
	return (keeps && merged_reshape(&l->axes, c->m->sizes, &shape, &label, &outer)) ||
	       attention_fail(c->m, "its scores are sliced or regrouped on the way");
}

static bool
depends(const Build *c, const int *links, int i)
{
	return links[i] >= 0 && c->list.at[links[i]].depends;
}

static bool
is_zero(const Value *v)
{
	double x;

	return value_splat(v, &x) && x == 0;
}

/* Is n linear in the softmax? Then a kernel can do it before it divides by the sum. A guard against
 * NaN counts as linear, because a row of a softmax has either no NaN or only NaN. */
static bool
is_linear(const Build *c, const Node *n, const int *links)
{
	switch (n->op) {
	case OP_neg:
	case OP_copy:
	case OP_is_nan:
	case OP_not:
	case OP_stop_gradient: return true;
	case OP_cast: return n->n_operands == 1;
	case OP_mul: return depends(c, links, 0) != depends(c, links, 1);
	case OP_div: return !depends(c, links, 1);
	case OP_select:
		return (depends(c, links, 1) || is_zero(node_operand(n, 1))) &&
		       (depends(c, links, 2) || is_zero(node_operand(n, 2)));
	default: return false;
	}
}

/* Does n keep hidden keys hidden? A softcap after the mask, for example, does not. */
static bool
keeps_hidden(const Build *c, const Node *n, const int *links)
{
	double by;
	int scale = depends(c, links, 0) ? 1 : 0;

	switch (n->op) {
	case OP_add:
	case OP_cast: return true;
	case OP_mul: return value_splat(node_operand(n, scale), &by) && by > 1e-6;
	case OP_div: return value_splat(node_operand(n, 1), &by) && by > 0 && by < 1e6;
	default: return false;
	}
}

/* Notes the masks among n's operands, and forgets a mask that n makes useless. */
static void
note_masks(Build *c, const Node *n, const int *links, const MergedAxes *axes)
{
	bool masked = c->mask.n > 0 && !keeps_hidden(c, n, links);
	MergedAxes whole = *axes;
	bool joined = attention_join_keys(c->m, c->a, &whole);
	int before = c->mask.n;

	for (int i = 0; i < n->n_operands; i++)
		if (node_operand(n, i) && !depends(c, links, i))
			attention_note_mask(&c->mask, n, i, &whole);
	c->mask.n += masked + (!joined && c->mask.n > before);
}

static bool
link_elementwise(Build *c, Link *l, const Node *n, const int *links)
{
	bool after_softmax = c->from->base == c->m->p;
	Value **x = NEW_ARRAY(c->m->r->scratch, Value *, n->n_operands);
	bool first = true;

	for (int i = 0; i < n->n_operands; i++) {
		if (!depends(c, links, i))
			continue;
		if (!first && !merged_equal(&l->axes, &c->list.at[links[i]].axes))
			return attention_fail(c->m, "its scores are combined in two shapes");
		l->axes = c->list.at[links[i]].axes;
		first = false;
	}
	if (after_softmax && !is_linear(c, n, links))
		return attention_fail(c->m, n->op == OP_add
		                                    ? "another value is added to its softmax"
		                                    : "what follows its softmax is not linear");
	if (!after_softmax)
		note_masks(c, n, links, &l->axes);
	Labels all = labels_range(0, c->a->n);
	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		if (depends(c, links, i)) {
			x[i] = c->list.at[links[i]].inside;
		} else if (v) {
			x[i] = merged_split(&c->b, absorb(c, v), &l->axes, c->m->sizes, c->m->n);
			x[i] = b_reshape(&c->b, x[i], attention_shape(c->a, &all));
			x[i] = is_trained(c->m->r, v) ? moved_first(c, x[i]) : x[i];
		}
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
	AttentionMatch *m = c->m;
	uint64_t known;
	Link l = {0};

	if (intmap_get(c->links, v->id, &known))
		return (int)known;
	if (v == c->from->base)
		l = (Link){true, c->from->axes, c->from->inside};
	else if (attention_is_link(v) && m->steps++ > MOST_STEPS)
		attention_fail(m, "too many nodes stand between its products");
	else if (attention_is_link(v))
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

bool
attention_build_body(AttentionMatch *m, Attention *a, const Factors *f, int keys)
{
	Build c = {.m = m,
	           .a = a,
	           .absorbed = intmap_new(m->r->scratch),
	           .moved = intmap_new(m->r->scratch),
	           .n_scores = node_result(m->scores, 0)->type->n};
	Labels all;
	MergedAxes scores_axes;
	Value *most, *sum, *inner = node_result(m->scores, 0);
	MergedAxes axes;

	if (!attention_label_scores(m, a, f, keys, &scores_axes))
		return false;
	a->q_from = attention_peel(node_operand(m->scores, 1 - m->keys_side), true);
	a->k_from = attention_peel(node_operand(m->scores, m->keys_side), true);
	a->v_from = attention_peel(node_operand(m->product, 1 - m->side), false);
	a->allow_tf32 = ((const DotAttr *)m->scores->attr)->allow_tf32 &&
	                ((const DotAttr *)m->product->attr)->allow_tf32;
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
	Value *s = labels_dot(&c.b, (Labeled){q, &a->q}, (Labeled){k, &a->k}, &all,
	                      inner->type->dtype, a->allow_tf32);
	double scale = a->q_from.scale * a->k_from.scale;
	if (scale != 1)
		s = b_binary(&c.b, OP_mul, s, b_splat(&c.b, s->type, scale));
	Origin from = {inner, scores_axes, s};
	a->logits = follow(&c, &from, m->logits, &axes);
	if (!a->logits)
		return attention_fail(m, "its softmax reads more than the scores");
	if (dtype_info[a->logits->type->dtype].bits < 32)
		return attention_fail(m, "its softmax is computed in 16 bits");
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
		return attention_fail(m, "its second product reads more than the softmax");
	if (!attention_join_keys(m, a, &axes))
		return attention_fail(m, "its second product does not sum over keys");
	if (!attention_label_values(m, a, &axes))
		return false;
	int n_trained = 0;
	for (int i = 0; i < a->trained.n; i++)
		n_trained += a->trained.at[i];
	if (n_trained > MOST_TRAINED_ARGUMENTS)
		return attention_fail(m, "its scores depend on many trained values");
	v = b_reshape(&c.b, attention_views(&c.b, v, &a->v_from), attention_shape(a, &a->v));
	Value *o = labels_dot(&c.b, (Labeled){a->weights, &all}, (Labeled){v, &a->v}, &a->o,
	                      a->o_type->dtype, a->allow_tf32);
	o = b_reshape(&c.b, o, ints_of_type(a->o_type));
	b_return(&c.b, 3, (Value *[]){o, most, sum});
	function_drop_unread(a->body);
	m->mask = c.mask;
	function_name_result(a->body, "o");
	function_name_result(a->body, "max");
	function_name_result(a->body, "sum");
	return true;
}
