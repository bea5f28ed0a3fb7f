/* Groups nodes into kernels. Every group becomes one call of a `fused` function, which equal groups share;
 * the call's results are what other groups read.
 *
 *   1. Each node joins the latest group among its operands' groups when their iteration spaces fit,
 *      else opens a new one. Groups are numbered in that order, and a node's operands never come
 *      from a later group than its own, so the order of groups is an order of execution.
 *   2. A cheap elementwise value that would be stored only for other groups is computed again there
 *      instead (sink).
 *   3. Reductions of equal form over a shared operand are put into one group (siblings).
 *   4. Views and indices are copied into every group that reads through them.
 *
 * Near linear: every step looks at a node's operands and uses only. */
#include "codegen/fuse_impl.h"

/* Stores and the return read the calls' results; the old nodes go. */
static void
remove_old_nodes(Fuse *fu, uint32_t n_old)
{
	for (Node *n = function_stores(fu->f); n; n = n->next)
		for (int i = 0; i < n->n_operands; i++)
			if (fu->stored[node_operand(n, i)->id])
				node_set_operand(n, i, fu->stored[node_operand(n, i)->id]);
	for_each_node_reverse(fu->f, n)
		if (n->id < n_old && n->op != OP_store && n->op != OP_return)
			node_erase(n);
}

static void
fuse_function(Pass *p, Module *m, Function *f, FusedBodies *bodies)
{
	Fuse fu = {.p = p,
	           .m = m,
	           .f = f,
	           .arena = p->scratch,
	           .bodies = bodies,
	           .parts = PARTS_A_CORE * ((const TargetOptions *)p->options)->cores};
	uint32_t n_old = f->next_node_id;
	fu.n_nodes = n_old;
	fu.copied = NEW_ARRAY(fu.arena, uint8_t, n_old);
	fu.group = NEW_ARRAY(fu.arena, int, n_old);
	fu.pulled = NEW_ARRAY(fu.arena, bool, f->next_value_id);
	fu.kept = NEW_ARRAY(fu.arena, bool, f->next_value_id);
	fu.readers = NEW_ARRAY(fu.arena, uint8_t, f->next_value_id);
	for (uint32_t i = 0; i < n_old; i++)
		fu.group[i] = -1;
	for_each_node(f, n) {
		if (fuse_class_of(n) == FUSE_NONE)
			continue;
		fuse_mark_copied(&fu, n);
		if (!fuse_is_copied(&fu, n) || fuse_must_be_stored(n))
			fuse_place_node(&fu, n);
	}
	for (int i = 0; i < fu.nodes.n; i++)
		fuse_sink_node(&fu, fu.nodes.at[i]);
	for (int gi = 0; gi < fu.groups.n; gi++)
		fuse_merge_siblings(&fu, gi);
	fu.stored = NEW_ARRAY(fu.arena, Value *, f->next_value_id);
	fu.reference = NEW_ARRAY(fu.arena, int, f->next_value_id);
	Node *before = function_stores(f);
	for (int gi = 0; gi < fu.groups.n; gi++)
		if (fu.groups.at[gi].merged_into < 0)
			fuse_outline_group(&fu, gi, before);
	remove_old_nodes(&fu, n_old);
}

static bool
run_fuse(Pass *p, Module *m)
{
	FusedBodies bodies = {.by_hash = intmap_new(p->scratch)};
	int n = m->functions.n;

	if (!pass_target(p))
		return false;
	for (int i = 0; i < n; i++)
		if (m->functions.at[i]->kind == FUNCTION_PLAIN)
			fuse_function(p, m, m->functions.at[i], &bodies);
	p->changed = true;
	return true;
}

const PassRow pass_fuse = {.name = "fuse",
                           .help = "group nodes into kernels",
                           .needed = true,
                           .takes = STAGE_TRAIN,
                           .leaves = STAGE_FUSED,
                           .options = target_options,
                           .options_size = sizeof(TargetOptions),
                           .defaults = &target_defaults,
                           .run = run_fuse};
