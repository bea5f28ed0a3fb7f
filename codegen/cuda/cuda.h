/* Kernels for NVIDIA's GPUs: how they are printed, compiled and kept. Sections are named after the .c file. */
#ifndef GRADC_CODEGEN_CUDA_CUDA_H
#define GRADC_CODEGEN_CUDA_CUDA_H

#include "codegen/build/build.h"

/* ---- print.c: kernels as CUDA C. A part is a source for NVRTC. */
void cuda_print_part(Text *out, const Target *target, const KernelPart *part);
/* Why it cannot be printed; NULL: it can. */
const char *cuda_refusal(const Kernel *k, const Target *target);
int cuda_threads(const Kernel *k);           /* of a block */
int64_t cuda_dynamic_bytes(const Kernel *k); /* of shared memory that a launch must ask for */
int64_t cuda_blocks(const Kernel *k, int64_t begin,
                    int64_t end); /* that run these of its iterations */

/* ---- architectures.c: what kernels are compiled for with --target=cuda:NAME, of architecture_list.def. */
struct CudaArchitecture {
	const char *name;     /* "sm_90a": a cubin; "compute_100": PTX */
	const Target *target; /* whose programs it runs */
	bool by_default;      /* --target=cuda has it */
};
extern const CudaArchitecture cuda_architectures[]; /* ends with a zero row */
extern const char *const cuda_shown; /* that --stage=cuda shows where none is asked for */
const CudaArchitecture *cuda_architecture_find(const char *name); /* NULL: unknown */

/* ---- cache.c: compiled kernels on disk, in $XDG_CACHE_HOME/gradc or ~/.cache/gradc. */
/* Of gpt2_124m's training step an architecture takes 1 MB: room for some hundred models, and little beside a toolkit. */
#define CUDA_CACHE_BYTES (512ll << 20)
typedef struct {
	const char *folder; /* NULL: none */
} CudaCache;
CudaCache cuda_cache_open(Arena *arena);
typedef struct {
	const char *key;
	const char *architecture, *compiler; /* "sm_90a", NVRTC's version; NULL: it is damaged */
	int64_t bytes, used;                 /* used: when, in seconds since 1970 */
} CudaCacheEntry;
typedef VEC(CudaCacheEntry) CudaCacheEntries;
/* The latest used first. */
Status cuda_cache_list(const CudaCache *c, Arena *arena, CudaCacheEntries *out);
/* Removes all, and says how much that was. */
Status cuda_cache_clear(const CudaCache *c, Arena *arena, int *files, int64_t *bytes);

/* ---- plans.c: how a library runs convolutions */
/* Adds what cuDNN, where it is found, says of those that programs for the options' GPUs launch. */
void cuda_plan_convolutions(Build *b, const Module *m, FormatWriter *w);

/* ---- images.c: what executables carry. */
/* Compiles the kernels of every GPU that the options name, and adds an image for each. */
Status cuda_build_images(Build *b, const Module *m);

#endif
