/* The pass `ungroup`: puts the nodes of a group in place of its call, if no strategy of the program's
 * target computes the group in one kernel. Then drops the functions that no node calls: gradients of
 * groups, which have become part of the backward pass. Changes no number. Takes linear time in the
 * number of nodes. */
#include "codegen/codegen.h"
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

/* Marks the functions that f's nodes name. */
static void
mark_named(const Function *f, bool *named)
{
	for_each_node(f, n)
		for (const Field *field = op_row(n)->fields; field && field->name; field++) {
			if (field->kind != FIELD_FUNC)
				continue;
			const Function *g = *(Function **)((char *)n->attr + field->offset);
			if (g)
				named[g->index] = true;
		}
}

/* Drops the helpers that no node names. What a dropped helper names stays: it was inlined before. */
static void
drop_unnamed(Pass *p, Module *m)
{
	bool *named = NEW_ARRAY(p->scratch, bool, m->functions.n);

	for_each_function(m, f)
		mark_named(f, named);
	for (int i = m->functions.n - 1; i >= 0; i--) {
		Function *f = m->functions.at[i];
		if (f->role == ROLE_HELPER && f->kind == FUNCTION_PLAIN && !named[i])
			function_remove(f);
	}
}

/* The function whose nodes take the place of a call of `group`. */
static Function *
opened(Module *m, Function *group, IntMap *without_hints)
{
	uint64_t found;

	if (!group->group->drop_hints)
		return group;
	if (intmap_get(without_hints, (uint64_t)(uintptr_t)group, &found))
		return (Function *)(uintptr_t)found;
	const char *name = arena_printf(m->arena, "%s.open", group->name);
	Function *f = function_clone(group, module_fresh_name(m, name));
	group->group->drop_hints(f);
	intmap_put(without_hints, (uint64_t)(uintptr_t)group, (uint64_t)(uintptr_t)f);
	return f;
}

static bool
run_ungroup(Pass *p, Module *m)
{
	IntMap *without_hints = intmap_new(p->scratch);

	for_each_function(m, f) {
		const Target *target = pass_target(p, f);
		if (!target)
			return false;
		if (f->kind != FUNCTION_PLAIN)
			continue;
		for_each_node(f, n) {
			if (!called_group(n) || group_strategy(target, called_function(n)))
				continue;
			((CallAttr *)n->attr)->callee =
				opened(m, called_function(n), without_hints);
			call_inline(n);
			p->changed = true;
		}
	}
	drop_unnamed(p, m);
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
