/* Private to this room: which code of the library is slower than the loops. */
#ifndef GRADC_RUNTIME_LIBRARY_ONEDNN_SLOW_H
#define GRADC_RUNTIME_LIBRARY_ONEDNN_SLOW_H

#include "base/calls/library_call.h"

/* A piece of work, the library's implementation for it, and the CPU. */
typedef struct {
	const char *name;     /* name of the implementation: "gemm:jit" */
	bool avx512;          /* the library may use AVX-512 */
	bool intel;           /* the CPU is from Intel */
	int64_t second_cache; /* bytes per core; 0 if unknown */
	const LibraryCall *call;
	int axis; /* axis of the tiles */
	int64_t step, tiles;
	int enough; /* number of tiles below which CPUs would be idle */
} LibraryUse;
bool onednn_is_slow(const LibraryUse *u);

#endif
