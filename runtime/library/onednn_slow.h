/* Private to runtime/library: in which cases oneDNN is slower than gradc's generated loops. */
#ifndef GRADC_RUNTIME_LIBRARY_ONEDNN_SLOW_H
#define GRADC_RUNTIME_LIBRARY_ONEDNN_SLOW_H

#include "base/calls/library_call.h"

/* A case: a call, the implementation that oneDNN uses for the call, and the CPU. */
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
