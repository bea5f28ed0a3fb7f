/* Rewrites a program for a mode in which ranks hold parts of states. Kernels are not changed.
 * Only the places of their arguments change, and instructions are added that exchange data
 * between ranks. The input is the list of instructions that goes into the executable's tables,
 * before these instructions are divided among streams. So all modes share kernels and passes, and
 * the number of ranks never appears in the IR. */
#include "codegen/schedule/shard.h"

#include <stdlib.h>

static bool
is_update(Role role)
{
	return role == ROLE_UPDATE || role == ROLE_REFRESH;
}

const State *
shard_piece(const ShardPlan *plan, const Slot *slot)
{
	int low = 0, high = plan->n_pieces;

	/* binary search: the last piece that begins at or before the slot */
	while (slot->space == SPACE_STATE && low < high) {
		int middle = low + (high - low) / 2;
		if (plan->pieces[middle]->offset <= slot->offset)
			low = middle + 1;
		else
			high = middle;
	}
	const State *s = slot->space == SPACE_STATE && low ? plan->pieces[low - 1] : NULL;
	return s && slot->offset < s->offset + type_bytes(s->type) &&
	                       shard_is_partial(s, plan->mode)
	               ? s
	               : NULL;
}

static int
by_offset(const void *a, const void *b)
{
	const State *const *x = a, *const *y = b;

	return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

static void
sort_pieces(ShardPlan *plan)
{
	const Module *m = plan->m;

	plan->pieces = NEW_ARRAY(plan->arena, const State *, m->states.n + 1);
	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->block)
			plan->pieces[plan->n_pieces++] = m->states.at[i];
	qsort(plan->pieces, (size_t)plan->n_pieces, sizeof(State *), by_offset);
}

bool
shard_changes(const Function *f, DataParallelMode mode)
{
	if (f->role == ROLE_ACCUMULATE || f->role == ROLE_ESTIMATE)
		return true;
	for (int i = 0; i < f->states.n; i++)
		if (shard_is_partial(f->states.at[i]->state, mode))
			return true;
	return false;
}

void
shard_program(ShardPlan *plan)
{
	sort_pieces(plan);
	if (is_update((Role)plan->program->role)) {
		shard_update(plan);
		if (plan->offloads)
			offload_update(plan);
	} else
		shard_gather(plan);
}
