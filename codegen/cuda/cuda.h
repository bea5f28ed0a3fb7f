/* Kernels for NVIDIA's GPUs: how they are printed, compiled and cached. Each section is named
 * after its .c file. A part is a list of kernels that are compiled together. */
#ifndef GRADC_CODEGEN_CUDA_CUDA_H
#define GRADC_CODEGEN_CUDA_CUDA_H

#include "codegen/build/build.h"

/* ---- print.c: kernels as CUDA C; a part becomes a source for NVRTC */
void cuda_print_part(Text *out, const Target *target, const KernelPart *part);
/* Why the kernel cannot be printed; NULL: it can. */
const char *cuda_refusal(const Kernel *k, const Target *target);
/* threads of a block */
int cuda_threads(const Kernel *k);

/* ---- memory.c */
int64_t cuda_dynamic_bytes(const Kernel *k); /* bytes of shared memory that a launch must request */

/* ---- print.c */
/* how many blocks run these iterations */
int64_t cuda_blocks(const Kernel *k, int64_t begin, int64_t end);

/* ---- architectures.c: the names after --target=cuda:, from architecture_list.def */
struct CudaArchitecture {
	const char *name;     /* "sm_90a": compiled to a cubin; "compute_100": to PTX */
	const Target *target; /* target whose programs the architecture runs */
	bool by_default;      /* is it part of --target=cuda? */
};
extern const CudaArchitecture cuda_architectures[]; /* ends with a zero row */
extern const char *const cuda_shown; /* the architecture that --stage=cuda shows by default */
const CudaArchitecture *cuda_architecture_find(const char *name); /* NULL: unknown */

/* ---- cache.c: compiled kernels on disk, in $XDG_CACHE_HOME/gradc or ~/.cache/gradc */
/* The most bytes of the cache. The kernels of gpt2_124m take 1 MB for each architecture, so there
 * is room for some hundred models. A CUDA toolkit takes more. */
#define CUDA_CACHE_BYTES (512ll << 20)
typedef struct {
	const char *folder; /* NULL: no cache */
} CudaCache;
CudaCache cuda_cache_open(Arena *arena);
typedef struct {
	const char *key;
	/* "sm_90a", NVRTC's version; NULL: the entry is damaged */
	const char *architecture, *compiler;
	int64_t bytes, used; /* used: time of the last use, in seconds since 1970 */
} CudaCacheEntry;
typedef VEC(CudaCacheEntry) CudaCacheEntries;
/* The most recently used entries first. */
Status cuda_cache_list(const CudaCache *c, Arena *arena, CudaCacheEntries *out);
/* Removes all entries, and reports how many files and bytes these were. */
Status cuda_cache_clear(const CudaCache *c, Arena *arena, int *files, int64_t *bytes);

/* ---- plans.c: how cuDNN runs convolutions */
/* If cuDNN is found, adds its plans to w: for each GPU of the options, and each convolution that
 * its programs launch. */
void cuda_plan_convolutions(Build *b, const Module *m, FormatWriter *w);

/* ---- images.c: the compiled kernels that an executable contains */
/* Compiles the kernels for every GPU of the options, and adds an image for each GPU. */
Status cuda_build_images(Build *b, const Module *m);

#endif
