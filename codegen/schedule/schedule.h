/* The order of launches, and where values and states lie in memory. Each section declares the
 * functions of the .c file that it is named after. */
#ifndef GRADC_CODEGEN_SCHEDULE_SCHEDULE_H
#define GRADC_CODEGEN_SCHEDULE_SCHEDULE_H

#include "format/format.h"
#include "ir/loop/loop.h"

/* ---- buckets.c: gradients that ranks sum, in buckets that are sent while earlier layers are
 * still computed */
/* Number of elements in a block of a sum. Ranks divide a sum into whole blocks; one iteration of
 * the sum's kernel adds one block. */
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

/* ---- rank_sum.c: kernels that sum buckets in the order of ranks */
bool rank_sum_has(DType dtype);                    /* are sums of the type done by such a kernel? */
int rank_sum_kernel(const Module *m, DType dtype); /* its number; -1: the module has none */

/* ---- shard_states.c */
/* The outermost state around s: its run of units, its unit, or s itself. */
static inline const State *
state_outermost(const State *s)
{
	while (s->unit)
		s = s->unit;
	return s;
}

/* ---- by_iteration.c */
/* Elements of an argument for each iteration of the kernel, if iteration i touches [i * each, (i
 * + 1) * each) and nothing else. 0: an iteration touches more, or a library call may touch more. */
int64_t kernel_each(const Kernel *k, int buffer);

/* ---- memory.c */

#endif
