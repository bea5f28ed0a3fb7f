/* Bodies that hold nodes of the graph as they are. Example, with `exp` and `dot` as members:
 *
 *	%3 = exp %2                       group @g(%x: f32[4,8], %w: ..) { exp, dot, return }
 *	%5 = dot %3, %4            ->     %5 = call %2, %4 {callee = @g} */
#include "ir/groups/group_nodes.h"

static bool
has(const IntMap *ids, const Node *n)
{
	return intmap_get(ids, n->id, NULL);
}

bool
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

bool
group_nodes_are_readers(const GroupNodes *g, const Value *v)
{
	for_each_use(v, u)
		if (!has(g->inside, u->user) && !has(g->member, u->user))
			return false;
	return true;
}

/* ---- the body */
static Value *
param_for(GroupNodes *g, Value *v)
{
	Value *p = function_param(g->body, v->type, v->kind == VALUE_PARAM ? v->name : "x");

	vec_push(g->r->scratch, &g->arguments, v);
	return p;
}

Value *
group_nodes_copy(const GroupNodes *g, const Value *v)
{
	uint64_t found = 0;

	intmap_get(g->copy, v->id, &found);
	return (Value *)(uintptr_t)found;
}

/* The value of the body that stands for v, computed inside or a parameter. */
static Value *
body_value(GroupNodes *g, Value *v)
{
	Value *found = group_nodes_copy(g, v);

	if (found)
		return found;
	Value *p = param_for(g, v);
	intmap_put(g->copy, v->id, (uint64_t)(uintptr_t)p);
	return p;
}

static void
copy_node(GroupNodes *g, const Node *n)
{
	Arena *scratch = g->r->scratch;
	Value **operands = NEW_ARRAY(scratch, Value *, n->n_operands);
	Type *types = NEW_ARRAY(scratch, Type, n->n_results);

	for (int i = 0; i < n->n_operands; i++)
		operands[i] = node_operand(n, i) ? body_value(g, node_operand(n, i)) : NULL;
	for (int i = 0; i < n->n_results; i++)
		types[i] = node_result(n, i)->type;
	Node *copy = node_insert(g->body, NULL, n->op, n->n_operands, operands, n->attr,
	                         n->n_results, types, n->loc);
	copy->phase = n->phase;
	for (int i = 0; i < n->n_results; i++)
		intmap_put(g->copy, node_result(n, i)->id,
		           (uint64_t)(uintptr_t)node_result(copy, i));
}

/* Copies n, after the nodes inside that n needs. */
static void
copy_with_needed(GroupNodes *g, const Node *n)
{
	if (intmap_get(g->copy, node_result(n, 0)->id, NULL))
		return;
	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		if (v && v->node && has(g->inside, v->node))
			copy_with_needed(g, v->node);
	}
	copy_node(g, n);
}

void
group_nodes_build(GroupNodes *g)
{
	VEC(Value *) copies = {0};

	g->copy = intmap_new(g->r->scratch);
	for (Node *n = g->first; n != g->last->next; n = n->next) {
		if (!has(g->member, n))
			continue;
		copy_with_needed(g, n);
		for (int k = 0; k < n->n_results; k++) {
			Value *v = node_result(n, k);
			if (group_nodes_are_readers(g, v))
				continue;
			vec_push(g->r->scratch, &g->results, v);
			vec_push(g->r->scratch, &copies, body_value(g, v));
		}
	}
	b_return(&(Builder){.m = g->r->m, .f = g->body}, copies.n, copies.at);
}

/* ---- in the graph */
bool
group_nodes_run_together(Recognition *r, const IntMap *member, Node *first, Node *last)
{
	IntMap *outside = intmap_new(r->scratch); /* ids of values that depend on the group */

	for (Node *n = first; n != last->next; n = n->next) {
		bool depends = false;
		for (int i = 0; i < n->n_operands; i++) {
			const Value *v = node_operand(n, i);
			depends |= v && (intmap_get(outside, v->id, NULL) ||
			                 (v->node && !has(member, n) && has(member, v->node)));
		}
		if (depends && has(member, n))
			return false;
		for (int i = 0; depends && i < n->n_results; i++)
			intmap_put(outside, node_result(n, i)->id, 1);
	}
	return true;
}

void
group_nodes_call(const GroupNodes *g, const GroupBody *body)
{
	Node *after = g->last->next;
	IntMap *moved = intmap_new(g->r->scratch);
	Builder at = {.m = g->r->m,
	              .f = g->r->f,
	              .before = after,
	              .loc = g->first->loc,
	              .phase = g->first->phase};
	CallAttr attr = {.callee = body->body, .gradient = body->gradient};
	Node *call = build_node(&at, OP_call, g->arguments.n, g->arguments.at, &attr);

	for (Node *n = g->first, *next; n != call; n = next) {
		bool depends = false;
		next = n->next;
		for (int i = 0; i < n->n_operands && !has(g->member, n); i++) {
			const Node *from = node_operand(n, i) ? node_operand(n, i)->node : NULL;
			depends |= from && (has(g->member, from) || has(moved, from));
		}
		if (!depends)
			continue;
		intmap_put(moved, n->id, 1);
		node_move(n, after);
	}
	for (int i = 0; i < g->results.n; i++)
		value_replace_uses(g->results.at[i], node_result(call, i));
}
