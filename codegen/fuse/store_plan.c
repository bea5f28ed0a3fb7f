/* Makes the store plan: groups of nodes, each of which becomes one kernel. There are four steps:
 *   0. A pattern that a strategy computes in one kernel becomes a group.
 *   1. Each other node joins the latest group of its operands if it fits that group's domain. Otherwise it opens a new
 *      group. Groups are numbered as they open, and a node never reads from a later group than its own, so the order of
 *      groups is an order of execution.
 *   2. A cheap elementwise value that would be stored only for other groups is computed again by those groups.
 *   3. Groups with reductions of equal form over a shared operand are merged (siblings).
 * Views and indices have no group of their own: every group that reads through them has a copy. */
#include "codegen/fuse/plan.h"

static bool
is_among(const Gathered *g, const Node *n)
{
	for (int i = 0; i < g->nodes.n; i++)
		if (g->nodes.at[i] == n)
			return true;
	return false;
}

/* Do only the gathered nodes read v, directly or through views? */
static bool
stays_among(const Gathered *g, const Value *v)
{
	for_each_use(v, u) {
		bool view = fuse_class_of(u->user) == FUSE_VIEW;
		if (view ? !stays_among(g, node_result(u->user, 0)) : !is_among(g, u->user))
			return false;
	}
	return true;
}

/* Records the pattern that ends in n, if a strategy (code that emits a kind of kernel) computes
 * such a pattern in one kernel. */
static void
gather(StorePlan *p, Node *n)
{
	Gathered g = {.arena = p->arena};

	if (fuse_class_of(n) != FUSE_OPAQUE || !strategy_gathering(p->target, n, &g))
		return;
	for (int i = 0; i < g.nodes.n - 1; i++) {
		const Node *m = g.nodes.at[i];
		if (p->pattern[m->id])
			return;
		for (int k = 0; k < m->n_results; k++)
			if (!stays_among(&g, node_result(m, k)))
				return;
	}
	vec_push(p->arena, &p->patterns, g);
	for (int i = 0; i < g.nodes.n; i++)
		p->pattern[g.nodes.at[i]->id] = p->patterns.n;
}

/* Places n in a group. If n belongs to a pattern, does nothing until n is the pattern's last
 * node, and then places all its nodes: by then their operands are computed, and no other node
 * reads their results. */
static void
place(StorePlan *p, Node *n)
{
	const Gathered *g = p->pattern[n->id] ? &p->patterns.at[p->pattern[n->id] - 1] : NULL;

	if (g && g->nodes.at[g->nodes.n - 1] == n) {
		plan_place_pattern(p, g);
	} else if (!g && fuse_class_of(n) != FUSE_NONE) {
		plan_mark_copied(p, n);
		if (!plan_is_copied(p, n) || plan_must_be_stored(n))
			plan_place_node(p, n);
	}
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
	                 .pattern = NEW_ARRAY(arena, int, nodes),
	                 .space = NEW_ARRAY(arena, uint8_t, values),
	                 .recomputed = NEW_ARRAY(arena, bool, values),
	                 .kept = NEW_ARRAY(arena, bool, values),
	                 .readers = NEW_ARRAY(arena, uint8_t, values)};
	for (uint32_t i = 0; i < nodes; i++)
		p->group[i] = -1;
	for_each_node(f, n)
		gather(p, n);
	for_each_node(f, n)
		place(p, n);
	for (int i = 0; i < p->nodes.n; i++)
		plan_recompute_node(p, p->nodes.at[i]);
	for (int gi = 0; gi < p->groups.n; gi++)
		plan_merge_siblings(p, gi);
	return p;
}
