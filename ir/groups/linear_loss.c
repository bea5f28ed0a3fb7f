/* The group linear_loss: the last product of a model, its loss, and their gradients. Together they need the logits
 * (the product's result) of a few rows at a time, not of all rows. The body holds the nodes as they are, so
 * it covers every loss that is computed row by row, with any options: cross entropy with weights and smoothing, squared
 * errors, a loss inside the model. */
#include "ir/groups/group_nodes.h"
#include "ir/groups/linear_loss_match.h"

extern const GroupRow group_linear_loss;

typedef struct {
	LossMatch *m;
	GroupNodes nodes;
} LossBody;

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
	       (cheap || (op_row(n)->precision == PRECISION_LOW &&
	                  group_nodes_are_readers(&b->nodes, node_result(n, 0))));
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
	if (intmap_get(b->nodes.inside, n->id, NULL))
		return;
	intmap_put(b->nodes.inside, n->id, 1);
	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		if (!v || !v->node)
			continue;
		bool view = value_viewed(v) && (views || is_read_whole(b->m, n, i));
		if (view || is_pulled(b, v->node))
			add_node(b, v->node, view);
	}
}

static void
build_body(LossBody *b)
{
	const LossMatch *m = b->m;

	for (int i = 0; i < m->reached.n; i++)
		if (linear_loss_has(m, m->reached.at[i]))
			add_node(b, m->reached.at[i], false);
	group_nodes_build(&b->nodes);
}

/* Can the body be computed for some rows at a time, without storing the logits of all rows? */
static bool
is_row_by_row(const LossBody *b)
{
	const Node *ret = function_return(b->nodes.body);
	Value *product = group_nodes_copy(&b->nodes, node_result(b->m->product, 0));
	AxisCut cut;

	if (!axis_cut(b->m->r->scratch, b->nodes.body, product, b->m->axis, &cut))
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

static bool
recognize_axis(Recognition *r, Node *n, int axis, const char **why)
{
	LossMatch m = {.r = r,
	               .product = n,
	               .axis = axis,
	               .rows = intmap_new(r->scratch),
	               .member = intmap_new(r->scratch)};

	if (!linear_loss_match(&m)) {
		*why = m.why;
		return false;
	}
	LossBody b = {.m = &m,
	              .nodes = {.r = r,
	                        .member = m.member,
	                        .first = n,
	                        .last = m.last,
	                        .body = group_begin(r->m, &group_linear_loss),
	                        .inside = intmap_new(r->scratch)}};
	b.nodes.body->loc = n->loc;
	build_body(&b);
	if (!is_row_by_row(&b) || !r->takes(r->ctx, b.nodes.body)) {
		function_remove(b.nodes.body);
		return false;
	}
	group_nodes_call(&b.nodes, group_share(r, b.nodes.body));
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
