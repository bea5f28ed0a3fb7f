/* In which order instructions run, on which streams, and where their values lie. Sections are named after the .c file. */
#ifndef GRADC_CODEGEN_SCHEDULE_SCHEDULE_H
#define GRADC_CODEGEN_SCHEDULE_SCHEDULE_H

#include "format/format.h"
#include "ir/loop/loop.h"

typedef VEC(Instruction) Instructions;
struct Travels;

/* ---- buckets.c: what ranks add up, in pieces that can travel while earlier layers are still computed. */
/* Elements: sums are divided among ranks in whole blocks, so that a kernel's iteration is one. */
enum { SUM_BLOCK = 256 };
typedef struct {
	DType dtype;
	int64_t offset;   /* bytes in the state region */
	int64_t n;        /* elements */
	const char *name; /* of the state */
} Bucket;
typedef VEC(Bucket) Buckets;
/* Of all states that last for a step, but of those that ranks have parts of in that mode. */
Buckets buckets_of(Arena *arena, const Module *m, DataParallelMode mode);
bool state_is_small_sum(const State *s);   /* a step adds it up, and it is no bucket by itself */
int64_t state_place_bytes(const State *s); /* that it takes: whole blocks of what ranks add up */
/* Gives them places from `at` on, those of a type side by side and whole blocks together; where they end. */
int64_t small_sums_place(Module *m, int64_t at);

/* ---- rank_sum.c */
void rank_sums_add(Pass *p, Module *m); /* the kernels that add up buckets */
bool rank_sum_has(DType dtype);

/* ---- streams.c */
/* The program's instructions are the last of w: all of them on the compute stream, in an order that computes the right
 * values. Afterwards they are on all streams. inputs: slots that the host fills, results: that it reads. */
typedef VEC(uint32_t) SlotList;
typedef struct {
	const Module *m;
	Role role;
	SlotList inputs, results;
	const Buckets *buckets;        /* of the last micro-batch; NULL: none */
	const struct Travels *travels; /* what else travels (travel.h); NULL: nothing */
	int64_t rooms_at; /* bytes in SPACE_GATHERED: what lies before is the program's own */
} StreamPlan;
void streams_write(FormatWriter *w, const StreamPlan *plan, ProgramRecord *program);

/* ---- blocks.c */
/* Of each of a list's instructions the outermost loop or branch around it, from its opening to its END; itself where it stands in none. */
typedef struct {
	int *first, *last;
} OuterBlocks;
OuterBlocks outermost_blocks(Arena *arena, int n, const Instruction *list);

/* ---- order.c: the RECORDs and WAITs that a list of instructions on several streams lacks */
/* Two instructions on different streams that touch the same bytes, one of them writing, run in the order of the list.
 * *n_events: of the program's own, in use so far. */
Instructions streams_order(Arena *arena, const FormatWriter *w, const Instructions *list,
                           uint32_t *n_events);

/* ---- by_iteration.c */
/* Elements of an argument that an iteration touches, where iteration i touches [i * each, (i + 1) * each) and no others; 0: it
 * touches more, or a library does. */
int64_t kernel_each(const Kernel *k, int buffer);

/* ---- fill.c: does the kernel write nothing but zeros? */
bool kernel_fills_zero(const Kernel *k);

/* ---- in_place.c */
/* May the kernel's result, buffer `output`, lie where its operand, buffer `input`, does? They have equal sizes. */
bool kernel_may_overwrite(const Kernel *k, int input, int output);

/* ---- storage.c: states that share storage: a unit and its members */
/* Calls visit for the value in f of every such state, s itself included, until it returns true; did it? */
bool storage_any_value(const Function *f, const State *s,
                       bool (*visit)(void *ctx, const Value *old), void *ctx);

/* ---- memory.c */
/* The bytes of the workspace that the values of f take, without what its loops and branches run: that lies behind. */
int64_t function_workspace(const Function *f);

/* ---- travel.c: what ranks exchange while a program computes */
typedef enum {
	TRAVEL_SUM,    /* everybody's whole, added up, to everybody */
	TRAVEL_REDUCE, /* everybody's whole, added up, to each its part */
	TRAVEL_GATHER, /* everybody's part, to everybody: the whole */
	TRAVEL_FILL, /* likewise, in any order: numbers whose sum is exact, as of zeros and one, or need not be */
} TravelKind;
typedef struct {
	TravelKind kind;
	int behind; /* the computed instruction that it starts behind; -1: before the first */
	RunWhen when;
	bool adds; /* REDUCE: the part is a sum over micro-batches, the first of which stores */
	/* In the device's memory, one type and as many elements. A part has the block that parts are multiples of; it may lie where
	 * it is in the whole. */
	Slot whole, part;
} Travel;
typedef struct Travels Travels;
struct Travels {
	Travel *at;
	int n, cap;
};

/* ---- shard.c, of a program's instructions, the last of w: they become those of that mode. */
typedef struct {
	Arena *arena;
	FormatWriter *w;
	const Module *m;
	ProgramRecord *program;
	DataParallelMode mode;
	int first_slot;       /* of its slots */
	const State **pieces; /* shard_program's: by offset, of what ranks may hold parts of */
	int n_pieces;
	bool offloads;    /* offload_changes */
	Travels travels;  /* out: what ranks exchange meanwhile */
	int64_t gathered; /* out: bytes that it needs of SPACE_GATHERED */
} ShardPlan;
void shard_program(ShardPlan *plan);
/* Is it another program in that mode? */
bool shard_changes(const Function *f, DataParallelMode mode);

/* ---- offload.c */
/* Is it, in that mode, an update of states that lie in the host's memory? Of what the optimizer keeps: then the host's
 * cores run it. */
bool offload_changes(const Function *f, DataParallelMode mode);
bool offload_on_host(const Function *f, DataParallelMode mode);

#endif
