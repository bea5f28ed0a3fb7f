/* Answers, while groups are made, which group computes a value and who reads it. */
#include "codegen/fuse/plan.h"
#include "ir/groups/groups.h"

FuseClass
fuse_class_of(const Node *n)
{
	return node_fuse_class(n);
}

bool
plan_stands_outside(const Node *n)
{
	return fuse_class_of(n) == FUSE_NONE || fuse_class_of(n) == FUSE_CONTROL;
}

bool
plan_is_copied(const StorePlan *p, const Node *n)
{
	return n->id < p->n_nodes && p->copied[n->id];
}

/* Is v read by one node only, and element by element? */
static bool
has_one_fusible_reader(const Value *v)
{
	if (!value_used_once(v))
		return false;
	FuseClass c = fuse_class_of(v->uses->user);
	return c == FUSE_ELEMENTWISE || c == FUSE_REDUCE;
}

/* The longest chain of nodes that are copied to their readers; copying a chain recurses. */
enum { MAX_COPIED_DEPTH = 16 };

void
plan_mark_copied(StorePlan *p, const Node *n)
{
	FuseClass c = fuse_class_of(n);
	int depth = 1;

	if (c == FUSE_VIEW ||
	    (c == FUSE_INDEX && (n->n_operands == 0 || op_row(n)->computed_by_readers))) {
		p->copied[n->id] = 1;
		return;
	}
	if (c != FUSE_ELEMENTWISE ||
	    (node_result(n, 0)->type->n != 1 && !has_one_fusible_reader(node_result(n, 0))))
		return;
	for (int i = 0; i < n->n_operands; i++) {
		const Node *m = behind_views(node_operand(n, i))->node;
		if (m && (!p->copied[m->id] || p->group[m->id] >= 0))
			return;
		if (m && p->copied[m->id] >= depth)
			depth = p->copied[m->id] + 1;
	}
	if (depth <= MAX_COPIED_DEPTH)
		p->copied[n->id] = (uint8_t)depth;
}

bool
plan_must_be_stored(const Node *n)
{
	for (int i = 0; i < n->n_results; i++)
		for_each_use(node_result(n, i), u)
			if (plan_stands_outside(u->user))
				return true;
	return false;
}

int
plan_own_group(const StorePlan *p, const Node *n)
{
	int g = p->group[n->id];

	while (g >= 0 && p->groups.at[g].merged_into >= 0)
		g = p->groups.at[g].merged_into;
	return g;
}

int
plan_group_of(const StorePlan *p, Value *v)
{
	Value *base = behind_views(v);

	return base->node ? plan_own_group(p, base->node) : -1;
}

bool
plan_any_reader(const StorePlan *p, const Value *v,
                bool (*visit)(const StorePlan *p, const Node *reader, int ctx), int ctx)
{
	for_each_use(v, u) {
		Node *n = u->user;
		if (plan_is_copied(p, n) && plan_any_reader(p, node_result(n, 0), visit, ctx))
			return true;
		if ((!plan_is_copied(p, n) || p->group[n->id] >= 0) && visit(p, n, ctx))
			return true;
	}
	return false;
}

static bool
reads_from_outside(const StorePlan *p, const Node *reader, int gi)
{
	return fuse_class_of(reader) == FUSE_NONE || plan_group_of(p, node_result(reader, 0)) != gi;
}

static unsigned
add_readers(const StorePlan *p, const Value *v, int gi, unsigned found)
{
	for_each_use(v, u) {
		Node *n = u->user;
		bool copied = plan_is_copied(p, n);
		if (copied)
			found = add_readers(p, node_result(n, 0), gi, found);
		if (!copied || p->group[n->id] >= 0)
			found |= reads_from_outside(p, n, gi) ? READ_OUTSIDE : READ_INSIDE;
		if (found == (READ_INSIDE | READ_OUTSIDE))
			break;
	}
	return found;
}

unsigned
plan_readers(const StorePlan *p, const Value *v, int gi)
{
	if (!(p->readers[v->id] & READ_KNOWN))
		p->readers[v->id] = (uint8_t)(READ_KNOWN | add_readers(p, v, gi, 0));
	return p->readers[v->id];
}

bool
plan_stored_for(const StorePlan *p, const Value *v, unsigned readers)
{
	return p->kept[v->id] || (!p->recomputed[v->id] && (readers & READ_OUTSIDE));
}

bool
plan_is_stored(const StorePlan *p, Value *v)
{
	return plan_stored_for(p, v, plan_readers(p, v, plan_group_of(p, v)));
}
