/* Private to schedule: states that are divided among ranks (ZeRO-1 to ZeRO-3), and how programs
 * change for such states. A divided state is called a piece: it is a unit (the states of a layer
 * block) or a state outside of units. */
#ifndef GRADC_CODEGEN_SCHEDULE_SHARD_H
#define GRADC_CODEGEN_SCHEDULE_SHARD_H

#include "codegen/schedule/travel.h"

/* ---- shard_states.c: sets State.sharded, State.block and State.offloaded. Called before states
 * get places in memory. */
/* offload: which states may lie in the host's memory, as bits of format.h's Offload. */
void shard_states(Module *m, uint32_t offload, Arena *arena);

/* ---- shard_update.c */
/* Replaces each launch of @update that touches divided states by one launch for each piece, over this rank's
 * part. */
void shard_update(ShardPlan *plan);

/* ---- offload.c: called after shard_update */
void offload_update(ShardPlan *plan);

/* ---- shard_gather.c */
/* For programs that read weights and make gradients: gathers weights before they are read, and reduces
 * gradients when they are complete. */
void shard_gather(ShardPlan *plan);

/* The slot of the instruction's argument i. */
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
/* Does the instruction write argument i? Instructions other than launches write their first argument. */
static inline bool
shard_is_written(const ShardPlan *plan, const Instruction *n, uint32_t i)
{
	return n->kind == RUN_KERNEL ? (shard_argument(plan, n, i)->access & ACCESS_WRITE) != 0
	                             : i == 0;
}
/* The outermost state around s: its run of units, its unit, or s itself. */
static inline const State *
shard_outermost(const State *s)
{
	while (s->unit)
		s = s->unit;
	return s;
}

/* ---- shard.c */
/* The piece that the slot lies in: a unit, or a state outside of units. NULL: the slot's state
 * is not divided in this mode. */
const State *shard_piece(const ShardPlan *plan, const Slot *slot);
/* The space of a rank's parts of the state, as given by format.h's state_space. */
static inline Space
shard_space(const State *s)
{
	return state_space(&(StateRecord){.sharded = s->sharded, .offloaded = s->offloaded});
}
/* Does each rank have the sum over all ranks only for its own part of s, in this mode? */
static inline bool
shard_is_partial(const State *s, DataParallelMode mode)
{
	return s->sharded && mode && (s->sharded <= mode || s->kind == STATE_GRADIENT);
}

#endif
