/* The pass `ungroup`: puts the nodes of a group in place of its call, if no strategy of the program's
 * target computes the group in one kernel. Then drops the functions that no program reaches: bodies
 * of opened groups, and gradients of groups, which have become part of the backward pass. Changes no
 * number. Takes linear time in the number of nodes. */
#include "codegen/codegen.h"
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

typedef VEC(Function *) Functions;

static void
reach(Pass *p, Function *f, bool *reached, Functions *todo)
{
	if (!f || reached[f->index])
		return;
	reached[f->index] = true;
	vec_push(p->scratch, todo, f);
}

/* Reaches the functions that f's nodes name. */
static void
reach_named(Pass *p, const Function *f, bool *reached, Functions *todo)
{
	for_each_node(f, n)
		for (const Field *field = op_row(n)->fields; field && field->name; field++)
			if (field->kind == FIELD_FUNC)
				reach(p, *(Function **)((char *)n->attr + field->offset), reached,
				      todo);
	reach(p, f->surrogate, reached, todo);
}

/* Drops the functions that the programs (functions with a role) do not reach. A module without
 * programs, as in a test, keeps all functions. */
static void
drop_unreached(Pass *p, Module *m)
{
	bool *reached = NEW_ARRAY(p->scratch, bool, m->functions.n);
	Functions todo = {0};

	for_each_function(m, f)
		if (f->role != ROLE_HELPER)
			reach(p, f, reached, &todo);
	for (int i = 0; i < todo.n; i++)
		reach_named(p, todo.at[i], reached, &todo);
	for (int i = m->functions.n - 1; i >= 0 && todo.n > 0; i--)
		if (!reached[i])
			function_remove(m->functions.at[i]);
}

/* A call that stays needs no gradient any more: autograd has run. */
static void
open_or_keep(const Target *target, Node *call, IntMap *opened)
{
	CallAttr *a = call->attr;

	if (group_strategy(target, a->callee)) {
		a->gradient = NULL;
		return;
	}
	group_open(call, opened);
}

static bool
run_ungroup(Pass *p, Module *m)
{
	IntMap *opened = intmap_new(p->scratch);

	for_each_function(m, f) {
		const Target *target = pass_target(p, f);
		if (!target)
			return false;
		if (f->kind != FUNCTION_PLAIN)
			continue;
		for_each_node(f, n) {
			if (!called_group(n))
				continue;
			open_or_keep(target, n, opened);
			p->changed = true;
		}
	}
	drop_unreached(p, m);
	return true;
}

const PassRow pass_ungroup = {.name = "ungroup",
                              .help = "open groups that no strategy of the target computes",
                              .needed = true,
                              .takes = STAGE_TRAIN,
                              .leaves = STAGE_ANY,
                              .options = target_options,
                              .options_size = sizeof(TargetOptions),
                              .defaults = &target_defaults,
                              .run = run_ungroup};
