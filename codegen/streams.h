/* From the order of the kernels to a schedule of streams: see streams.c. */
#ifndef GRADC_CODEGEN_STREAMS_H
#define GRADC_CODEGEN_STREAMS_H

#include "format/format.h"
#include "ir/ir.h"

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

#endif
