/* The pass `fuse`: turns groups of nodes into functions that become kernels. The store plan
 * (store_plan.h) says which nodes form a group. Each group becomes one call of a `fused`
 * function; groups with equal bodies share a function. The results of the call are the values
 * that other groups read. Takes linear time in the number of nodes. */
#include "codegen/codegen.h"
#include "codegen/fuse/outline.h"
#include "ir/groups/groups.h"

/* Makes stores and the function's return read the results of the calls, and erases the nodes
 * that the calls replace. */
static void
remove_old_nodes(Fuse *fu, uint32_t n_old)
{
	for (Node *n = function_stores(fu->f); n; n = n->next)
		for (int i = 0; i < n->n_operands; i++)
			if (fu->stored[node_operand(n, i)->id])
				node_set_operand(n, i, fu->stored[node_operand(n, i)->id]);
	for_each_node_reverse(fu->f, n)
		if (n->id < n_old && !op_row(n)->effect)
			node_erase(n);
}

static void
fuse_function(Pass *p, const Target *target, Module *m, Function *f, FusedBodies *bodies)
{
	const TargetOptions *o = p->options;
	uint32_t n_old = f->next_node_id;
	Fuse fu = {.m = m,
	           .f = f,
	           .arena = p->scratch,
	           .bodies = bodies,
	           .plan = store_plan(f, target, o->cores, p->scratch),
	           .stored = NEW_ARRAY(p->scratch, Value *, f->next_value_id),
	           .reference = NEW_ARRAY(p->scratch, int, f->next_value_id)};
	Node *before = function_stores(f);
	for (int gi = 0; gi < fu.plan->groups.n; gi++)
		if (fu.plan->groups.at[gi].merged_into < 0)
			fuse_outline_group(&fu, gi, before);
	remove_old_nodes(&fu, n_old);
}

/* A fused function that calls a group becomes the group's kernel: the body takes the call's place. */
static void
open_groups(Module *m)
{
	for_each_function(m, f) {
		for_each_node(f, n) {
			if (f->kind != FUNCTION_FUSED || !called_group(n))
				continue;
			f->group = called_group(n);
			call_inline(n);
		}
	}
}

/* Drops the bodies of groups: every call is a kernel's function now. */
static void
drop_groups(Module *m)
{
	for (int i = m->functions.n - 1; i >= 0; i--)
		if (m->functions.at[i]->kind == FUNCTION_GROUP)
			function_remove(m->functions.at[i]);
}

/* Reports a node that can become neither a kernel nor an instruction. A call with a gradient of
 * its own is not such a node: after autograd, the function's body has replaced the call. */
static bool
refuse_node(const Pass *p, const Node *n)
{
	FuseClass c = node_fuse_class(n);

	if (c != FUSE_NONE || op_row(n)->effect || launched_kernel(n))
		return false;
	diag_error(p->diag, EXIT_UNSUPPORTED,
	           "%s: node \"%s\" (%s): no compiled form in this build; the interpreter runs it",
	           n->function->module->name, loc_origin(n->loc), op_row(n)->name);
	return true;
}

static bool
run_fuse(Pass *p, Module *m)
{
	FusedBodies bodies = {.by_hash = intmap_new(p->scratch)};
	int n = m->functions.n;
	bool refused = false;

	if (!pass_check_cores(p))
		return false;
	for_each_function(m, f)
		for_each_node(f, node)
			refused |= f->kind == FUNCTION_PLAIN && refuse_node(p, node);
	if (refused)
		return false;
	for (int i = 0; i < n; i++) {
		Function *f = m->functions.at[i];
		const Target *target = pass_target(p, f);
		if (!target)
			return false;
		if (f->kind == FUNCTION_PLAIN)
			fuse_function(p, target, m, f, &bodies);
	}
	open_groups(m);
	drop_groups(m);
	p->changed = true;
	return true;
}

const PassRow pass_fuse = {.name = "fuse",
                           .help = "group nodes into kernels",
                           .needed = true,
                           .takes = STAGE_REMATERIALIZED,
                           .leaves = STAGE_FUSED,
                           .options = target_options,
                           .options_size = sizeof(TargetOptions),
                           .defaults = &target_defaults,
                           .run = run_fuse};
