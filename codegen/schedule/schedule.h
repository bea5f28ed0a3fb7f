/* The order of instructions, their streams, and where their values lie. Sections are named after the .c
 * file. */
#ifndef GRADC_CODEGEN_SCHEDULE_SCHEDULE_H
#define GRADC_CODEGEN_SCHEDULE_SCHEDULE_H

#include "format/format.h"
#include "ir/loop/loop.h"

typedef VEC(Instruction) Instructions;
struct Travels;

/* ---- buckets.c: gradients that ranks sum, in pieces that travel while earlier layers are still computed */
/* Elements: ranks share a sum in whole blocks of this size, and a block is an iteration of the sum's kernel. */
enum { SUM_BLOCK = 256 };
typedef struct {
	DType dtype;
	int64_t offset;   /* bytes in the state region */
	int64_t n;        /* elements */
	const char *name; /* name of the state */
} Bucket;
typedef VEC(Bucket) Buckets;
/* Buckets of all states that last for a step, except the states that ranks hold parts of in this mode. */
Buckets buckets_of(Arena *arena, const Module *m, DataParallelMode mode);
/* is it summed over ranks, and too small for a bucket of its own? */
bool state_is_small_sum(const State *s);
/* bytes of the state's place: whole blocks if ranks sum it */
int64_t state_place_bytes(const State *s);
/* Gives small sums places from `at` on: states of one type side by side, together in whole blocks. Returns
 * where they end. */
int64_t small_sums_place(Module *m, int64_t at);

/* ---- rank_sum.c */
void rank_sums_add(Pass *p, Module *m); /* adds the kernels that sum buckets over ranks */
bool rank_sum_has(DType dtype);

/* ---- streams.c */
/* Puts a program on streams. Its instructions are the last of w: all on the compute stream, in a correct
 * order. inputs: slots that the host fills; results: slots that it reads. */
typedef VEC(uint32_t) SlotList;
typedef struct {
	const Module *m;
	Role role;
	SlotList inputs, results;
	const Buckets *buckets;        /* gradients to sum in the last micro-batch; NULL: none */
	const struct Travels *travels; /* what else travels (travel.h); NULL: nothing */
	/* bytes in SPACE_GATHERED that the program uses itself; rooms lie behind */
	int64_t rooms_at;
} StreamPlan;
void streams_write(FormatWriter *w, const StreamPlan *plan, ProgramRecord *program);

/* ---- blocks.c */
/* For each instruction of a list: the outermost loop or branch around it, from its opening to its END; or
 * the instruction itself. */
typedef struct {
	int *first, *last;
} OuterBlocks;
OuterBlocks outermost_blocks(Arena *arena, int n, const Instruction *list);

/* ---- order.c: adds the RECORDs and WAITs that instructions on several streams need */
/* If two instructions on different streams touch the same bytes and one of them writes, they run in the
 * order of the list. *n_events: events of the program in use so far. */
Instructions streams_order(Arena *arena, const FormatWriter *w, const Instructions *list,
                           uint32_t *n_events);

/* ---- by_iteration.c */
/* Elements of an argument for each iteration of the kernel, if iteration i touches [i * each, (i + 1) *
 * each) and nothing else. 0: it touches more, or a library call may. */
int64_t kernel_each(const Kernel *k, int buffer);

/* ---- fill.c: does the kernel only write zeros? */
bool kernel_fills_zero(const Kernel *k);

/* ---- in_place.c */
/* May result `output` lie in the same place as operand `input`, which has the same size? */
bool kernel_may_overwrite(const Kernel *k, int input, int output);

/* ---- storage.c: states that share storage, such as a unit and its members */
/* Calls visit for the value in f of every state that shares storage with s, s included, until visit returns
 * true. Returns whether it did. */
bool storage_any_value(const Function *f, const State *s,
                       bool (*visit)(void *ctx, const Value *old), void *ctx);

/* ---- memory.c */
/* Bytes of the workspace for f's values. The values of f's loops and branches lie behind and are not
 * counted. */
int64_t function_workspace(const Function *f);

/* ---- travel.c: data that ranks exchange while a program computes */
typedef enum {
	TRAVEL_SUM,    /* sum over all ranks, to every rank */
	TRAVEL_REDUCE, /* sum over all ranks, to each rank its part */
	TRAVEL_GATHER, /* every rank's part, to every rank: the whole */
	/* like GATHER, as a sum in any order: exact if all but one number is zero, or when exactness does
	 * not matter */
	TRAVEL_FILL,
} TravelKind;
typedef struct {
	TravelKind kind;
	int behind; /* the computed instruction after which it starts; -1: before the first */
	RunWhen when;
	bool adds; /* REDUCE: the part is a sum over micro-batches; the first one stores */
	/* Slots in the device's memory, with the same type and number of elements. The part has a block size
	 * that ranks divide it by; it may lie within the whole. */
	Slot whole, part;
} Travel;
typedef struct Travels Travels;
struct Travels {
	Travel *at;
	int n, cap;
};

/* ---- shard.c: rewrites the last program of w for a data-parallel mode */
typedef struct {
	Arena *arena;
	FormatWriter *w;
	const Module *m;
	ProgramRecord *program;
	DataParallelMode mode;
	int first_slot; /* index of the program's first slot */
	/* states that ranks may hold parts of, by offset; set by shard_program */
	const State **pieces;
	int n_pieces;
	bool offloads;    /* result of offload_changes */
	Travels travels;  /* out: what ranks exchange */
	int64_t gathered; /* out: bytes that the program needs in SPACE_GATHERED */
} ShardPlan;
void shard_program(ShardPlan *plan);
/* Does the mode change the program? */
bool shard_changes(const Function *f, DataParallelMode mode);

/* ---- offload.c */
/* offload_changes: is f, in that mode, an update of states in the host's memory? offload_on_host: do its
 * kernels run on the host's cores, because the optimizer's states lie there? */
bool offload_changes(const Function *f, DataParallelMode mode);
bool offload_on_host(const Function *f, DataParallelMode mode);

#endif
