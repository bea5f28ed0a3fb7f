/* The order of instructions. One stream: the order of the nodes is the schedule; what nobody reads is
 * dropped. */
#include "codegen/codegen.h"

static bool
is_read(const Node *n)
{
	if (op_row(n)->effect)
		return true;
	for (int i = 0; i < n->n_results; i++)
		if (value_used(node_result(n, i)))
			return true;
	return false;
}

static bool
run_schedule(Pass *p, Module *m)
{
	for_each_function(m, f)
		for_each_node_reverse(f, n)
			if (!is_read(n)) {
				node_erase(n);
				p->changed = true;
			}
	return true;
}

const PassRow pass_schedule = {.name = "schedule",
                               .help = "decide which instructions run, and in which order",
                               .takes = STAGE_LOWERED,
                               .leaves = STAGE_SCHEDULE,
                               .run = run_schedule};
