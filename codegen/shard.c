/* A program in a mode in which ranks hold parts of states: the same kernels, over other places, and what ranks exchange. It is
 * made of the tables' instructions, when these are in order and not yet on streams, so that modes share kernels and passes, and
 * no number of ranks is in the IR. */
#include "codegen/shard.h"

static bool
is_update(Role role)
{
	return role == ROLE_UPDATE || role == ROLE_REFRESH;
}

const State *
shard_piece(const ShardPlan *plan, const Slot *slot)
{
	if (slot->space != SPACE_STATE)
		return NULL;
	for (int i = 0; i < plan->m->states.n; i++) {
		const State *s = plan->m->states.at[i];
		if (s->block && slot->offset >= s->offset &&
		    slot->offset < s->offset + type_bytes(s->type))
			return shard_is_partial(s, plan->mode) ? s : NULL;
	}
	return NULL;
}

bool
shard_changes(const Function *f, DataParallelMode mode)
{
	if (f->role == FUNCTION_ACCUMULATE || f->role == FUNCTION_ESTIMATE)
		return true;
	for (int i = 0; i < f->states.n; i++)
		if (shard_is_partial(f->states.at[i]->state, mode))
			return true;
	return false;
}

void
shard_program(ShardPlan *plan)
{
	if (is_update((Role)plan->program->role)) {
		shard_update(plan);
		if (plan->offloads)
			offload_update(plan);
	} else
		shard_gather(plan);
}
