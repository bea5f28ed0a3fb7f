/* States of which ranks hold parts (ZeRO-1 to ZeRO-3), and what that makes of programs. */
#ifndef GRADC_CODEGEN_SCHEDULE_SHARD_H
#define GRADC_CODEGEN_SCHEDULE_SHARD_H

#include "codegen/schedule/travel.h"

/* ---- shard_states.c: sets State.sharded, State.block and State.offloaded; before states have places. */
/* offload: of format.h's Offload, by bits. */
void shard_states(Module *m, uint32_t offload, Arena *arena);

/* ---- shard_update.c */
/* Launches of @update that touch what is divided become one for each piece, over this rank's part of it. */
void shard_update(ShardPlan *plan);

/* ---- offload.c, behind shard_update */
void offload_update(ShardPlan *plan);

/* ---- shard_gather.c */
/* Programs that read weights and make gradients: weights are gathered before they are read, gradients reduced when they are made. */
void shard_gather(ShardPlan *plan);

/* Of its argument i. */
static inline uint32_t
shard_slot_number(const ShardPlan *plan, const Instruction *n, uint32_t i)
{
	return plan->w->arguments.at[n->args + i].slot;
}
static inline const KernelArgument *
shard_argument(const ShardPlan *plan, const Instruction *n, uint32_t i)
{
	return &plan->w->kernel_arguments.at[plan->w->kernels.at[n->what].first_argument + i];
}
/* Of what is no launch the first argument is written. */
static inline bool
shard_is_written(const ShardPlan *plan, const Instruction *n, uint32_t i)
{
	return n->kind == RUN_KERNEL ? (shard_argument(plan, n, i)->access & ACCESS_WRITE) != 0
	                             : i == 0;
}
/* The run of units, the unit or itself: what lies in no other. */
static inline const State *
shard_outermost(const State *s)
{
	while (s->unit)
		s = s->unit;
	return s;
}

/* The state that a slot lies in, a unit or what lies in none; NULL: ranks do not hold parts of it in that mode. */
const State *shard_piece(const ShardPlan *plan, const Slot *slot);
/* Where a rank's parts of it lie, as format.h's state_space. */
static inline Space
shard_space(const State *s)
{
	return state_space(&(StateRecord){.sharded = s->sharded, .offloaded = s->offloaded});
}
/* In that mode each rank has a right sum of its own part alone. */
static inline bool
shard_is_partial(const State *s, DataParallelMode mode)
{
	return s->sharded && mode && (s->sharded <= mode || s->kind == STATE_GRADIENT);
}

#endif
