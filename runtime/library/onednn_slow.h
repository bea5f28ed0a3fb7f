/* Which of the library's code is slower than the loops. */
#ifndef GRADC_ONEDNN_SLOW_H
#define GRADC_ONEDNN_SLOW_H

#include "base/calls/library_call.h"

/* A piece of work, the library's code for it, and the CPU. */
typedef struct {
	const char *name;     /* of the implementation: "gemm:jit" */
	bool avx512;          /* may the library use it? */
	bool intel;           /* the CPU's vendor */
	int64_t second_cache; /* bytes that a core has; 0: unknown */
	const LibraryCall *call;
	int axis; /* of the tiles that it is cut into */
	int64_t step, tiles;
	int enough; /* tiles: with fewer, CPUs would be idle */
} LibraryUse;
bool onednn_is_slow(const LibraryUse *u);

#endif
