/* The pass `ungroup`: puts the nodes of a group in place of its call, if no strategy of the program's
 * target computes the group in one kernel. Changes no number. Takes linear time in the number of
 * nodes. */
#include "codegen/codegen.h"
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

static bool
run_ungroup(Pass *p, Module *m)
{
	for_each_function(m, f) {
		const Target *target = pass_target(p, f);
		if (!target)
			return false;
		if (f->kind != FUNCTION_PLAIN)
			continue;
		for_each_node(f, n) {
			if (!called_group(n) || group_strategy(target, called_function(n)))
				continue;
			call_inline(n);
			p->changed = true;
		}
	}
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
