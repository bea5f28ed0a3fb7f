/* Some values, such as a weight that is stored as codes, are computed by each kernel that reads
 * them (OpRow.computed_by_readers). Their operands, such as the scales of the weight's blocks
 * (themselves computed from codes), would stay in memory until the last reader, in the backward
 * pass. This file copies the nodes that compute these operands to just before each reader. So the
 * operands exist only around one matrix product at a time.
 *
 * Changes no bit of any result. Takes linear time in the number of nodes and readers. */
#include "codegen/legalize/rewrites.h"

typedef struct {
	Builder b;
	IntMap *copies; /* by value id: copies for the current reader */
} Beside;

/* A copy of v and of all nodes from which v is computed, up to parameters and states. */
static Value *
again(Beside *s, Value *v)
{
	const Node *n = v->node;
	Value *operands[MAX_OPERANDS];
	uint64_t known;

	if (!n || n->n_operands == 0)
		return v;
	if (intmap_get(s->copies, v->id, &known))
		return (Value *)(uintptr_t)known;
	for (int i = 0; i < n->n_operands; i++)
		operands[i] = again(s, node_operand(n, i));
	Value *copy = b_retyped(&s->b, n, operands);
	intmap_put(s->copies, v->id, (uint64_t)(uintptr_t)copy);
	return copy;
}

/* Is v computed from states only, by nodes that may be copied to any place? */
static bool
is_of_states(const Value *v)
{
	const Node *n = v->node;

	if (!n)
		return v->kind == VALUE_STATE;
	FuseClass c = op_row(n)->fuse;
	if (n->n_operands && !op_row(n)->computed_by_readers && c != FUSE_ELEMENTWISE &&
	    c != FUSE_VIEW)
		return false;
	for (int i = 0; i < n->n_operands; i++)
		if (!is_of_states(node_operand(n, i)))
			return false;
	return true;
}

static void
erase_unused(Node *n)
{
	Value *operands[MAX_OPERANDS];
	int count = n->n_operands;

	for (int i = 0; i < n->n_results; i++)
		if (value_used(node_result(n, i)))
			return;
	for (int i = 0; i < count; i++)
		operands[i] = node_operand(n, i);
	node_erase(n);
	for (int i = 0; i < count; i++)
		if (operands[i] && operands[i]->node)
			erase_unused(operands[i]->node);
}

/* Is operand i of n, possibly behind views, a value with computed_by_readers, such as a
 * dequantized weight? Is it also computed from states only, and at least one of its own operands
 * by a node? */
static bool
reads_made(const Node *n, int i)
{
	Value *v = node_operand(n, i), *base = v ? behind_views(v) : NULL;
	const Node *d = base ? base->node : NULL;

	if (!d || !op_row(d)->computed_by_readers || !is_of_states(base))
		return false;
	for (int k = 0; k < d->n_operands; k++)
		if (node_operand(d, k)->node)
			return true;
	return false;
}

void
compute_beside_readers(Function *f, Arena *arena)
{
	for_each_node(f, n) {
		if (op_row(n)->fuse == FUSE_VIEW || op_row(n)->computed_by_readers)
			continue;
		for (int i = 0; i < n->n_operands; i++) {
			if (!reads_made(n, i))
				continue;
			Value *old = node_operand(n, i);
			Beside s = {.b = {.m = f->module,
			                  .f = f,
			                  .before = n,
			                  .loc = old->node->loc,
			                  .phase = n->phase},
			            .copies = intmap_new(arena)};
			node_set_operand(n, i, again(&s, old));
			erase_unused(old->node);
		}
	}
}
