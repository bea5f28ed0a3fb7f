/* The order of instructions, the streams they run on, and where values lie in memory. Each
 * section declares the functions of the .c file that it is named after. */
#ifndef GRADC_CODEGEN_SCHEDULE_SCHEDULE_H
#define GRADC_CODEGEN_SCHEDULE_SCHEDULE_H

#include "format/format.h"
#include "ir/loop/loop.h"

typedef VEC(Instruction) Instructions;
struct Travels;

/* ---- buckets.c: gradients that ranks sum, in buckets that are sent while earlier layers are
 * still computed */
typedef struct {
	DType dtype;
	int64_t offset;   /* bytes in the state region */
	int64_t n;        /* elements */
	const char *name; /* name of the state */
} Bucket;
typedef VEC(Bucket) Buckets;
/* Buckets of all states that last for a step, except the states that ranks hold parts of in this mode. */
Buckets buckets_of(Arena *arena, const Module *m, DataParallelMode mode);

/* ---- streams.c */
/* Divides a program among streams. Before the call, the program's instructions are the last of
 * the writer w, all on the compute stream and in a correct order. inputs: slots that the host
 * fills; results: slots that the host reads. */
typedef VEC(uint32_t) SlotList;
typedef struct {
	const Module *m;
	Role role;
	SlotList inputs, results;
	const Buckets *buckets; /* gradients to sum in the last micro-batch; NULL: none */
	/* other data that ranks exchange (travel.h); NULL: nothing */
	const struct Travels *travels;
	/* bytes in SPACE_GATHERED that the program itself uses; the rooms (places for the
	 * versions of a part that other ranks send) lie behind them */
	int64_t rooms_at;
} StreamPlan;
void streams_write(FormatWriter *w, const StreamPlan *plan, ProgramRecord *program);

/* ---- order.c: adds RECORD and WAIT instructions, which order instructions on different streams */
/* Returns the list with RECORD and WAIT added, so that two instructions on different streams run
 * in the order of the list if they touch the same bytes and one of them writes. *n_events: number
 * of events that the program uses; the call adds the new ones. */
Instructions streams_order(Arena *arena, const FormatWriter *w, const Instructions *list,
                           uint32_t *n_events);

/* ---- by_iteration.c */
/* Elements of an argument for each iteration of the kernel, if iteration i touches [i * each, (i
 * + 1) * each) and nothing else. 0: an iteration touches more, or a library call may touch more. */
int64_t kernel_each(const Kernel *k, int buffer);

/* ---- fill.c: does the kernel only write zeros? */
bool kernel_fills_zero(const Kernel *k);

/* ---- memory.c */
/* Bytes of the workspace for f's values. The values of f's loops and branches lie after the
 * workspace and are not counted. */
int64_t function_workspace(const Function *f);

/* ---- travel.c: a travel is one exchange of data between ranks (a collective) while a program
 * computes */
typedef enum {
	TRAVEL_SUM,    /* every rank gets the sum over all ranks */
	TRAVEL_REDUCE, /* each rank gets its part of the sum over all ranks */
	TRAVEL_GATHER, /* every rank gets the parts of all ranks, which make the whole */
	/* like GATHER, but done as a sum in any order: each rank fills the elements of the other
	 * ranks with zeros. The sum is exact if at most one rank's number is not zero; for other
	 * uses a rounded sum is enough */
	TRAVEL_FILL,
} TravelKind;
typedef struct {
	TravelKind kind;
	/* the travel starts after this instruction of the compute stream; -1: before the first */
	int behind;
	When when;
	bool adds; /* REDUCE: adds to the part in later micro-batches; stores in the first */
	/* Slots in the device's memory. Both describe the same tensor; `part` stands for this
	 * rank's share of it, cut at multiples of the slot's block size. The part may lie within
	 * the whole. */
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
	/* the pieces: units and single states that are divided among ranks, by offset; set by
	 * shard_program */
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
/* offload_changes: does f, in that mode, update states that lie in the host's memory?
 * offload_on_host: do f's kernels then run on the host's CPU, because the optimizer's states lie
 * in the host's memory? */
bool offload_changes(const Function *f, DataParallelMode mode);
bool offload_on_host(const Function *f, DataParallelMode mode);

#endif
