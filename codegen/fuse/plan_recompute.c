/* Marks cheap elementwise values that are not stored: each group that reads such a value computes
 * it again. */
#include "codegen/fuse/plan.h"
#include "codegen/fuse/recompute.h"

static bool
needs_memory(const StorePlan *p, const Node *reader, int gi)
{
	if (plan_stands_outside(reader))
		return true;
	int g = plan_group_of(p, node_result(reader, 0));
	return g != gi && (p->groups.at[g].opaque || fuse_class_of(reader) == FUSE_INDEX);
}

/* The context of source_in_group: which group the recomputed value belongs to. */
typedef struct {
	const StorePlan *plan;
	int gi;
} InGroup;

/* Where a value comes from when v's readers compute v again. Results of reductions count as
 * loaded from memory: they are small, so storing them is cheap. */
static RecomputeSource
source_in_group(const void *ctx, const Value *v)
{
	const InGroup *g = ctx;
	const StorePlan *p = g->plan;
	const Node *n = v->node;

	if (n && plan_is_copied(p, n))
		return FROM_NOTHING;
	if (!n)
		return FROM_MEMORY;
	int gi = plan_own_group(p, n);
	if (p->recomputed[v->id] && gi != g->gi)
		return FROM_LINK;
	bool there = gi != g->gi || reduces(n) || plan_stored_for(p, v, plan_readers(p, v, gi));
	return there ? FROM_MEMORY : FROM_LINK;
}

/* Counts the groups other than gi that read v; stops counting at 4. */
static int
outside_readers(const StorePlan *p, const Value *v, int gi, int *seen, int n)
{
	for_each_use(v, u) {
		Node *reader = u->user;
		if (plan_is_copied(p, reader)) {
			n = outside_readers(p, node_result(reader, 0), gi, seen, n);
			continue;
		}
		int g = fuse_class_of(reader) == FUSE_NONE
		                ? -1
		                : plan_group_of(p, node_result(reader, 0));
		bool known = g == gi;
		for (int i = 0; i < n; i++)
			known |= seen[i] == g;
		if (!known && n < 4)
			seen[n++] = g;
	}
	return n;
}

/* Marks v and the recomputed values (links) from which v is computed, down to values in memory. */
static void
mark_recomputed(StorePlan *p, Value *v, const InGroup *g)
{
	p->recomputed[v->id] = true;
	for (int i = 0; i < v->node->n_operands; i++) {
		Value *x = behind_views(node_operand(v->node, i));
		if (!x->node || plan_is_copied(p, x->node) || plan_own_group(p, x->node) != g->gi)
			continue;
		if (source_in_group(g, x) == FROM_LINK)
			mark_recomputed(p, x, g);
		else if (reduces(x->node))
			p->kept[x->id] = true;
	}
}

void
plan_recompute_node(StorePlan *p, Node *n)
{
	Value *v = node_result(n, 0);
	InGroup g = {p, plan_group_of(p, v)};
	RecomputeCost cost;
	int seen[4];

	if (fuse_class_of(n) != FUSE_ELEMENTWISE ||
	    !recompute_matters(p->target, v, KEPT_FOR_NEXT) || p->kept[v->id] ||
	    !(plan_readers(p, v, g.gi) & READ_OUTSIDE) || plan_any_reader(p, v, needs_memory, g.gi))
		return;
	/* Compare the bytes. If v is stored: one write, and one read by each of these groups. If
	 * v is computed again: each of these groups reads v's leaves, the values in memory from
	 * which v is computed. */
	int readers = outside_readers(p, v, g.gi, seen, 0);
	if (recompute_cost(v, source_in_group, &g, &cost) &&
	    recompute_pays(p->target, &cost, cost.leaf_bytes * readers,
	                   type_bytes(v->type) * (1 + readers), KEPT_FOR_NEXT))
		mark_recomputed(p, v, &g);
}
