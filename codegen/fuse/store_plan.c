/* Makes the store plan: groups of nodes, each of which becomes one kernel. There are three steps:
 *   1. Each node joins the latest group of its operands if it fits that group's domain. Otherwise it opens a new
 *      group. Groups are numbered as they open, and a node never reads from a later group than its own, so the order of
 *      groups is an order of execution.
 *   2. A cheap elementwise value that would be stored only for other groups is computed again by those groups.
 *   3. Groups with reductions of equal form over a shared operand are merged (siblings).
 * Views and indices have no group of their own: every group that reads through them has a copy. */
#include "codegen/fuse/plan.h"

/* Places n in a group, if n is no copied node. */
static void
place(StorePlan *p, Node *n)
{
	if (fuse_class_of(n) == FUSE_NONE)
		return;
	plan_mark_copied(p, n);
	if (!plan_is_copied(p, n) || plan_must_be_stored(n))
		plan_place_node(p, n);
}

StorePlan *
store_plan(const Function *f, const Target *target, int64_t cores, Arena *arena)
{
	StorePlan *p = NEW(arena, StorePlan);
	uint32_t nodes = f->next_node_id, values = f->next_value_id;

	*p = (StorePlan){.f = f,
	                 .arena = arena,
	                 .target = target,
	                 .parts = target_parts(target, cores),
	                 .n_nodes = nodes,
	                 .copied = NEW_ARRAY(arena, uint8_t, nodes),
	                 .group = NEW_ARRAY(arena, int, nodes),
	                 .space = NEW_ARRAY(arena, uint8_t, values),
	                 .recomputed = NEW_ARRAY(arena, bool, values),
	                 .kept = NEW_ARRAY(arena, bool, values),
	                 .readers = NEW_ARRAY(arena, uint8_t, values)};
	for (uint32_t i = 0; i < nodes; i++)
		p->group[i] = -1;
	for_each_node(f, n)
		place(p, n);
	for (int i = 0; i < p->nodes.n; i++)
		plan_recompute_node(p, p->nodes.at[i]);
	for (int gi = 0; gi < p->groups.n; gi++)
		plan_merge_siblings(p, gi);
	return p;
}
