/* Private to schedule: functions that several files of the folder share. Sections are named after
 * the .c file. */
#ifndef GRADC_CODEGEN_SCHEDULE_ORDER_H
#define GRADC_CODEGEN_SCHEDULE_ORDER_H

#include "codegen/schedule/schedule.h"

/* ---- buckets.c */
/* Is the state summed over ranks, and too small for a bucket of its own? */
bool state_is_small_sum(const State *s);
/* Bytes that the state takes in memory. If ranks sum the state, its size is rounded up to whole
 * blocks. */
int64_t state_place_bytes(const State *s);
/* Gives the small sums offsets from byte `at` on. The states of one type lie next to each other;
 * their total size is rounded up to whole blocks. Returns the byte after the last place. */
int64_t small_sums_place(Module *m, int64_t at);

/* ---- rank_sum.c */
void rank_sums_add(Pass *p, Module *m); /* adds the kernels that sum buckets over ranks */

/* ---- shard_states.c: sets State.sharded, State.block and State.offloaded, before states get places
 * in memory. offload: which states may lie in the host's memory, as bits of format.h's Offload */
void shard_states(Module *m, uint32_t offload, Arena *arena);

/* ---- in_place.c */
/* May result `output` lie in the same place as operand `input`, which has the same size? */
bool kernel_may_overwrite(const Kernel *k, int input, int output);

/* ---- running_sums.c */
/* Prepares gradients that loops add up for being computed in their own places. Returns the ids of the nodes that compute
 * them. */
IntMap *sums_keep_place(Pass *p, Function *f);

/* ---- storage.c: states that share storage, such as a unit and its members */
typedef VEC(Value *) StateValues;
/* The values of a function's states, by the units that hold the states. */
typedef struct {
	const Function *f;
	IntMap *members; /* by id of a unit: the index of its list */
	VEC(StateValues) lists;
} Storage;
Storage storage_of(Arena *arena, const Function *f);
/* Calls visit(ctx, value) for every state that shares storage with s, and for s itself; the value
 * is the state's content in the function. Stops and returns true when visit returns true; false if
 * no call does. */
bool storage_any_value(const Storage *storage, const State *s,
                       bool (*visit)(void *ctx, const Value *old), void *ctx);

#endif
