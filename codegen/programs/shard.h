/* Private to programs: states that are divided among ranks (ZeRO-1 to ZeRO-3), and how programs
 * change for such states. A divided state is called a piece: it is a unit (the states of a layer
 * block) or a state outside of units. */
#ifndef GRADC_CODEGEN_PROGRAMS_SHARD_H
#define GRADC_CODEGEN_PROGRAMS_SHARD_H

#include "codegen/schedule/schedule.h"
#include "ir/programs/programs.h"

typedef struct {
	Arena *arena; /* scratch */
	const Module *m;
	Program *p; /* the program that is rewritten */
	AccessTable accesses;
	int64_t **each; /* by kernel: kernel_each of its arguments; NULL: not known yet */
	/* the pieces: units and single states that are divided among ranks, by offset */
	const State **pieces;
	int n_pieces;
} ShardPlan;

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
	return plan->p->arguments.at[n->args + i].slot;
}
static inline bool
shard_is_written(const ShardPlan *plan, const Instruction *n, uint32_t i)
{
	return (instruction_access(&plan->accesses, n, i) & ACCESS_WRITE) != 0;
}

/* ---- shard.c */
/* Of a launch: the elements of argument i for each iteration, as kernel_each gives them. */
int64_t shard_each(const ShardPlan *plan, const Instruction *n, uint32_t i);
/* The piece that the slot lies in: a unit, or a state outside of units. NULL: the slot's state
 * is not divided in this mode. */
const State *shard_piece(const ShardPlan *plan, const Slot *slot);
/* The piece that begins at this offset of the region of states; NULL: no piece begins there. */
const State *shard_piece_at(const ShardPlan *plan, int64_t offset);
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
