/* Who computes and who reads a value, while groups are made. */
#include "codegen/fuse_impl.h"

FuseClass
fuse_class_of(const Node *n)
{
	return op_row(n)->fuse;
}

/* Nodes that every reader copies: views, iota, splats. gather is none: it has a group. */
bool
fuse_is_copied(const Fuse *fu, const Node *n)
{
	return n->id < fu->n_nodes && fu->copied[n->id];
}

/* Read by one node, which computes with its elements one by one. */
static bool
has_one_fusible_reader(const Value *v)
{
	if (!value_used_once(v))
		return false;
	FuseClass c = fuse_class_of(v->uses->user);
	return c == FUSE_ELEMENTWISE || c == FUSE_REDUCE;
}

/* How deep the chain of copied nodes below n may get: copying recurses. */
enum { MAX_COPIED_DEPTH = 16 };

void
fuse_mark_copied(Fuse *fu, const Node *n)
{
	FuseClass c = fuse_class_of(n);
	int depth = 1;

	if (c == FUSE_VIEW || (c == FUSE_INDEX && n->n_operands == 0)) {
		fu->copied[n->id] = 1;
		return;
	}
	if (c != FUSE_ELEMENTWISE ||
	    (node_result(n, 0)->type->n != 1 && !has_one_fusible_reader(node_result(n, 0))))
		return;
	for (int i = 0; i < n->n_operands; i++) {
		const Node *m = behind_views(node_operand(n, i))->node;
		if (m && (!fu->copied[m->id] || fu->group[m->id] >= 0))
			return;
		if (m && fu->copied[m->id] >= depth)
			depth = fu->copied[m->id] + 1;
	}
	if (depth <= MAX_COPIED_DEPTH)
		fu->copied[n->id] = (uint8_t)depth;
}

bool
fuse_must_be_stored(const Node *n)
{
	for (int i = 0; i < n->n_results; i++)
		for_each_use(node_result(n, i), u)
			if (fuse_class_of(u->user) == FUSE_NONE)
				return true;
	return false;
}

int
fuse_own_group(const Fuse *fu, const Node *n)
{
	int g = fu->group[n->id];

	while (g >= 0 && fu->groups.at[g].merged_into >= 0)
		g = fu->groups.at[g].merged_into;
	return g;
}

/* The group that computes v, -1 when v is there from the start or copied. */
int
fuse_group_of(const Fuse *fu, Value *v)
{
	Value *base = behind_views(v);

	return base->node ? fuse_own_group(fu, base->node) : -1;
}

/* Calls visit for every node that reads v's elements, directly or through copied nodes; stops and
 * returns true when visit does. */
bool
fuse_any_reader(const Fuse *fu, const Value *v,
                bool (*visit)(const Fuse *fu, const Node *reader, int ctx), int ctx)
{
	for_each_use(v, u) {
		Node *n = u->user;
		if (fuse_is_copied(fu, n) && fuse_any_reader(fu, node_result(n, 0), visit, ctx))
			return true;
		if ((!fuse_is_copied(fu, n) || fu->group[n->id] >= 0) && visit(fu, n, ctx))
			return true;
	}
	return false;
}

bool
fuse_reads_from_outside(const Fuse *fu, const Node *reader, int gi)
{
	return fuse_class_of(reader) == FUSE_NONE ||
	       fuse_group_of(fu, node_result(reader, 0)) != gi;
}

static unsigned
add_readers(const Fuse *fu, const Value *v, int gi, unsigned found)
{
	for_each_use(v, u) {
		Node *n = u->user;
		bool copied = fuse_is_copied(fu, n);
		if (copied)
			found = add_readers(fu, node_result(n, 0), gi, found);
		if (!copied || fu->group[n->id] >= 0)
			found |= fuse_reads_from_outside(fu, n, gi) ? READ_OUTSIDE : READ_INSIDE;
		if (found == (READ_INSIDE | READ_OUTSIDE))
			break;
	}
	return found;
}

unsigned
fuse_readers(const Fuse *fu, const Value *v, int gi)
{
	if (!(fu->readers[v->id] & READ_KNOWN))
		fu->readers[v->id] = (uint8_t)(READ_KNOWN | add_readers(fu, v, gi, 0));
	return fu->readers[v->id];
}

bool
fuse_stored_for(const Fuse *fu, const Value *v, unsigned readers)
{
	return fu->kept[v->id] || (!fu->pulled[v->id] && (readers & READ_OUTSIDE));
}

bool
fuse_is_stored(const Fuse *fu, Value *v)
{
	return fuse_stored_for(fu, v, fuse_readers(fu, v, fuse_group_of(fu, v)));
}
