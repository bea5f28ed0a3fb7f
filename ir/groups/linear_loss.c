/* The group linear_loss: the last product of a model, its loss, and their gradients. Together they need the logits
 * (the product's result) of a few rows at a time, not of all rows. The body holds the nodes as they are, so
 * it covers every loss that is computed row by row, with any options: cross entropy with weights and smoothing, squared
 * errors, a loss inside the model. */
#include "ir/groups/linear_loss_match.h"

extern const GroupRow group_linear_loss;

typedef struct {
	LossMatch *m;
	Function *body;
	IntMap *inside; /* ids of the nodes that the body copies */
	IntMap *copy;   /* value id -> value of the body */
	VEC(Value *) arguments, results;
} LossBody;

/* ---- the body */
static Value *
param_for(LossBody *b, Value *v)
{
	Value *p = function_param(b->body, v->type, v->kind == VALUE_PARAM ? v->name : "x");

	vec_push(b->m->r->scratch, &b->arguments, v);
	return p;
}

/* Does the node view or repeat an index, or one number? Other constants are parameters, of which a chunk reads its part. */
static bool
is_index_or_number(const Node *n)
{
	const Value *x = n->n_operands ? node_operand(n, 0) : NULL;
	double number;

	if (op_row(n)->effect || n->n_results != 1 || n->n_operands > 1)
		return false;
	if (!x)
		return !value_constant(node_result(n, 0)) ||
		       value_splat(node_result(n, 0), &number);
	return op_row(n)->fuse == FUSE_VIEW && x->node && is_index_or_number(x->node);
}

/* Do only nodes of the body read v? */
static bool
is_read_inside(const LossBody *b, const Value *v)
{
	for_each_use(v, u)
		if (!intmap_get(b->inside, u->user->id, NULL) && !linear_loss_has(b->m, u->user))
			return false;
	return true;
}

/* Is the node, on which the product does not depend, computed inside the group? So are nodes with a large result, such as
 * labels that are compared with the number of a class, if computing them again is cheap. */
static bool
is_pulled(const LossBody *b, const Node *n)
{
	const LossMatch *m = b->m;
	FuseClass c = node_fuse_class(n);
	bool cheap = c == FUSE_ELEMENTWISE || c == FUSE_VIEW || c == FUSE_INDEX;

	if (is_index_or_number(n))
		return true;
	return linear_loss_is_large(m, node_result(n, 0)) && !op_row(n)->effect &&
	       n->when == WHEN_ALWAYS &&
	       (cheap ||
	        (op_row(n)->precision == PRECISION_LOW && is_read_inside(b, node_result(n, 0))));
}

/* Does every row of n read the whole of operand i? Then the views of it, such as a transposed weight, are computed
 * inside the group, where the product reads through them. */
static bool
is_read_whole(const LossMatch *m, const Node *n, int i)
{
	const Factor *f = linear_loss_has(m, n) ? linear_loss_factor(m, n) : NULL;

	return f && f->operand[i].kind == SHARE_WHOLE;
}

/* Adds n, and the nodes that it needs, to the nodes of the body. views: so are nodes that view the operands of n. */
static void
add_node(LossBody *b, const Node *n, bool views)
{
	if (intmap_get(b->inside, n->id, NULL))
		return;
	intmap_put(b->inside, n->id, 1);
	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		if (!v || !v->node)
			continue;
		bool view = value_viewed(v) && (views || is_read_whole(b->m, n, i));
		if (view || is_pulled(b, v->node))
			add_node(b, v->node, view);
	}
}

/* The value of the body that stands for v, computed inside or a parameter. */
static Value *
body_value(LossBody *b, Value *v)
{
	uint64_t found;

	if (intmap_get(b->copy, v->id, &found))
		return (Value *)(uintptr_t)found;
	Value *p = param_for(b, v);
	intmap_put(b->copy, v->id, (uint64_t)(uintptr_t)p);
	return p;
}

static void
copy_node(LossBody *b, const Node *n)
{
	Arena *scratch = b->m->r->scratch;
	Value **operands = NEW_ARRAY(scratch, Value *, n->n_operands);
	Type *types = NEW_ARRAY(scratch, Type, n->n_results);

	for (int i = 0; i < n->n_operands; i++)
		operands[i] = node_operand(n, i) ? body_value(b, node_operand(n, i)) : NULL;
	for (int i = 0; i < n->n_results; i++)
		types[i] = node_result(n, i)->type;
	Node *copy = node_insert(b->body, NULL, n->op, n->n_operands, operands, n->attr,
	                         n->n_results, types, n->loc);
	copy->phase = n->phase;
	for (int i = 0; i < n->n_results; i++)
		intmap_put(b->copy, node_result(n, i)->id,
		           (uint64_t)(uintptr_t)node_result(copy, i));
}

static void
build_body(LossBody *b)
{
	LossMatch *m = b->m;
	VEC(Value *) copies = {0};

	for (int i = 0; i < m->reached.n; i++)
		if (linear_loss_has(m, m->reached.at[i]))
			add_node(b, m->reached.at[i], false);
	for (Node *n = m->r->f->first; n != m->last->next; n = n->next) {
		if (!intmap_get(b->inside, n->id, NULL))
			continue;
		copy_node(b, n);
		for (int k = 0; linear_loss_has(m, n) && k < n->n_results; k++) {
			Value *v = node_result(n, k);
			if (is_read_inside(b, v))
				continue;
			vec_push(m->r->scratch, &b->results, v);
			vec_push(m->r->scratch, &copies, body_value(b, v));
		}
	}
	b_return(&(Builder){.m = m->r->m, .f = b->body}, copies.n, copies.at);
}

/* Can the body be computed for some rows at a time, without storing the logits of all rows? */
static bool
is_row_by_row(const LossBody *b)
{
	const Node *ret = function_return(b->body);
	uint64_t product;
	AxisCut cut;

	intmap_get(b->copy, node_result(b->m->product, 0)->id, &product);
	if (!axis_cut(b->m->r->scratch, b->body, (Value *)(uintptr_t)product, b->m->axis, &cut))
		return false;
	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		bool stored = cut.of[v->id].axis >= 0 &&
		              op_row(v->node)->precision != PRECISION_LOW;
		if (!cut.of[v->id].known || (stored && linear_loss_is_large(b->m, v)))
			return false;
	}
	return true;
}

/* ---- in the graph */
/* Puts the call after the last member. Nodes between the members that depend on them move behind the call. */
static Node *
put_call(const LossBody *b)
{
	LossMatch *m = b->m;
	Node *after = m->last->next;
	IntMap *moved = intmap_new(m->r->scratch);
	Builder at = {.m = m->r->m,
	              .f = m->r->f,
	              .before = after,
	              .loc = m->product->loc,
	              .phase = m->product->phase};
	CallAttr attr = {.callee = group_share(m->r, b->body)->body};
	Node *call = build_node(&at, OP_call, b->arguments.n, b->arguments.at, &attr);

	for (Node *n = m->product, *next; n != call; n = next) {
		bool depends = false;
		next = n->next;
		for (int i = 0; i < n->n_operands && !linear_loss_has(m, n); i++) {
			const Node *from = node_operand(n, i) ? node_operand(n, i)->node : NULL;
			depends |= from &&
			           (linear_loss_has(m, from) || intmap_get(moved, from->id, NULL));
		}
		if (!depends)
			continue;
		intmap_put(moved, n->id, 1);
		node_move(n, after);
	}
	for (int i = 0; i < b->results.n; i++)
		value_replace_uses(b->results.at[i], node_result(call, i));
	return call;
}

static bool
recognize_axis(Recognition *r, Node *n, int axis, const char **why)
{
	LossMatch m = {.r = r,
	               .product = n,
	               .axis = axis,
	               .rows = intmap_new(r->scratch),
	               .member = intmap_new(r->scratch)};
	LossBody b = {.m = &m, .inside = intmap_new(r->scratch), .copy = intmap_new(r->scratch)};

	if (!linear_loss_match(&m)) {
		*why = m.why;
		return false;
	}
	b.body = group_begin(r->m, &group_linear_loss);
	b.body->loc = n->loc;
	build_body(&b);
	if (!is_row_by_row(&b) || !r->takes(r->ctx, b.body)) {
		function_remove(b.body);
		return false;
	}
	put_call(&b);
	return true;
}

/* Is n a product that may be the model's last one: of floats, larger than its operand 0, and no later product or loop of the
 * forward pass depends on it? */
static bool
may_be_last(const Recognition *r, const Node *n)
{
	if (op_row(n)->precision != PRECISION_LOW || n->n_operands < 2 || n->n_results != 1 ||
	    n->phase == PHASE_BACKWARD)
		return false;
	const Value *z = node_result(n, 0);
	return dtype_is_float(z->type->dtype) && z->type->n > node_operand(n, 0)->type->n &&
	       z->id < r->n_values && value_used(z) && !r->leads_to_product[z->id];
}

/* Notes only the reason at the first axis, which mostly counts rows. */
static bool
recognize_linear_loss(Recognition *r, Node *n)
{
	const char *why = NULL, *other;
	bool first = true;

	if (!may_be_last(r, n))
		return false;
	Type t = node_result(n, 0)->type;
	for (int i = 0; i < t->rank; i++) {
		if (t->dims[i] < 2)
			continue;
		if (recognize_axis(r, n, i, first ? &why : &other))
			return true;
		first = false;
	}
	if (why)
		group_note(r, &group_linear_loss, n, why);
	return false;
}

const GroupRow group_linear_loss = {
	.name = "linear_loss",
	.doc = "the last product and its loss, with their gradients: no logits are stored for all rows",
	.spans_backward = true,
	.recognize = recognize_linear_loss};
