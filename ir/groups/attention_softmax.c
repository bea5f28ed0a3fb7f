/* Finds the softmax of an attention: exponentials divided by their sum over one axis, however the
 * nodes move them from shape to shape. */
#include "ir/groups/attention_match.h"
#include "ir/loop/loop.h"

#include <math.h>

static bool
passes_on(const Node *n)
{
	return n->n_operands == 1 && (op_row(n)->fuse == FUSE_VIEW || n->op == OP_stop_gradient);
}

/* The value of which v, a value with one number for each row, repeats the elements. */
static Value *
row_base(AttentionMatch *m, Value *v)
{
	while (v->node && passes_on(v->node)) {
		vec_push(m->r->scratch, &m->own, (const Node *)v->node);
		v = node_operand(v->node, 0);
	}
	return v;
}

/* Is each element of v the element of `base` that belongs to its row? A row runs along `axis`. */
static bool
repeats_rows(AttentionMatch *m, const Value *v, const Value *base, int axis)
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
reduction_of(AttentionMatch *m, Value *v, ReduceKind kind)
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
repeats_sum(AttentionMatch *m, Value *w, const Value *e, bool inverse)
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
logits_of(AttentionMatch *m, Value *d)
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
is_exp_of_log_softmax(AttentionMatch *m, const Node *exp)
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
divides_by_sum(AttentionMatch *m, const Node *n, int i)
{
	Value *e = node_operand(n, i);
	const Node *exp = e->node;

	int before = m->own.n;

	if (!exp || exp->op != OP_exp ||
	    !repeats_sum(m, node_operand(n, 1 - i), e, n->op == OP_mul)) {
		m->own.n = before;
		return false;
	}
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
tells_hidden_rows(AttentionMatch *m, Value *v, Value *x)
{
	Value *base = row_base(m, v);
	const Node *eq = base->node;
	double least;

	if (!eq || eq->op != OP_eq || !value_splat(node_operand(eq, 1), &least) ||
	    least != -INFINITY)
		return NULL;
	const Node *most = reduction_of(m, node_operand(eq, 0), REDUCE_MAX);
	vec_push(m->r->scratch, &m->own, eq);
	if (!most || before_casts(node_operand(most, 0)) != before_casts(x) ||
	    ((const ReduceAttr *)most->attr)->axes.at[0] != m->axis ||
	    !repeats_rows(m, v, base, m->axis))
		return NULL;
	return node_operand(most, 0);
}

/* select(hidden, 0, softmax(select(hidden, 0, x))), where the largest x of hidden rows is -inf: the
 * softmax of ONNX's Attention. */
static bool
is_softmax_with_zeros(AttentionMatch *m, const Node *n)
{
	if (!is_zero(node_operand(n, 1)) || !node_operand(n, 2)->node ||
	    !attention_is_softmax(m, node_operand(n, 2)))
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
bool
attention_is_softmax(AttentionMatch *m, Value *v)
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
