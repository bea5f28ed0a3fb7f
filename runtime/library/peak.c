/* Measures how fast a library computes at most on this machine: with a square product that is large enough for the threads and
 * small enough for the caches. */
#include "runtime/library/library.h"

#include <math.h>
#include <string.h>

enum { PEAK_SIZE = 1024, PEAK_ALIGNMENT = 64, PEAK_RUNS = 4 };

/* z = x y, each [PEAK_SIZE,PEAK_SIZE], with the element types of the call. */
static LibraryCall
square_product(const LibraryCall *like)
{
	LibraryCall c;

	library_call_begin(&c, LIBRARY_DOT);
	for (int i = LIBRARY_FIRST; i <= LIBRARY_RESULT; i++) {
		c.operands[i] = (LibraryOperand){.dtype = like->operands[i].dtype,
		                                 .rank = 2,
		                                 .buffer = i,
		                                 .dims = {PEAK_SIZE, PEAK_SIZE}};
		library_dense(&c.operands[i]);
	}
	return c;
}

static char *
aligned(Arena *arena, int64_t bytes)
{
	char *at = arena_alloc(arena, (size_t)bytes + PEAK_ALIGNMENT);

	return at + (PEAK_ALIGNMENT - (uintptr_t)at % PEAK_ALIGNMENT) % PEAK_ALIGNMENT;
}

/* Seconds of the fastest of some runs; infinity after a fault. */
static double
fastest_run(const LibraryOps *ops, PreparedCall *prepared, const LibraryCall *c, Arena *arena)
{
	void *buffers[N_LIBRARY_OPERANDS] = {0};
	char *scratch = aligned(arena, ops->scratch(prepared) + 1), *packed[2] = {0};
	double best = INFINITY;

	for (int i = LIBRARY_FIRST; i <= LIBRARY_RESULT; i++) {
		int64_t bytes = library_reach(&c->operands[i]);
		buffers[i] = aligned(arena, bytes);
		memset(buffers[i], 0, (size_t)bytes);
	}
	for (int i = 0; i < 2; i++) {
		int64_t bytes = ops->packed_bytes ? ops->packed_bytes(prepared, i) : 0;
		if (!bytes)
			continue;
		packed[i] = aligned(arena, bytes);
		Status fault = ops->pack(prepared, i, buffers[i], packed[i]);
		if (fault) {
			status_free(fault);
			return INFINITY;
		}
	}
	for (int i = 0; i < PEAK_RUNS; i++) {
		double begin = seconds_now();
		Status fault = ops->run(prepared, buffers, packed, scratch, NULL);
		if (fault) {
			status_free(fault);
			return INFINITY;
		}
		best = fmin(best, seconds_now() - begin);
	}
	return best;
}

double
libraries_peak(const Libraries *libraries, const LibraryCall *like)
{
	LibraryCall c = square_product(like);
	double peak = 0;

	for (int i = 0; i < libraries->n && peak == 0; i++) {
		const OpenedLibrary *l = &libraries->at[i];
		PreparedCall *prepared = NULL;
		if (!l->library)
			continue;
		Status fault = l->ops->prepare(l->library, &c, 0, INT64_MAX, &prepared);
		if (!fault && prepared) {
			Arena *arena = arena_new();
			peak = library_flops(&c) / fastest_run(l->ops, prepared, &c, arena);
			arena_free(arena);
		}
		l->ops->release(prepared);
		status_free(fault);
	}
	return peak;
}
