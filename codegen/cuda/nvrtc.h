/* From kernels to machine code of GPUs: NVRTC, the cache of what it made, and who asks for it; and what libraries do in their place. Sections are named after the .c
 * files. */
#ifndef GRADC_CODEGEN_NVRTC_H
#define GRADC_CODEGEN_NVRTC_H

#include "codegen/cuda/cuda.h"

/* ---- nvrtc.c: NVIDIA's compiler as a library, opened when it is needed. */
enum { MOST_ARCHITECTURES = 64 };
typedef struct {
	void *library;
	const char *path;     /* its file */
	const char *version;  /* "13.0" */
	const char *identity; /* that, and what tells builds of one version apart */
	int architectures[MOST_ARCHITECTURES], n_architectures; /* 80, 90: that it knows */
#define NVRTC_SYMBOL(name, type, parameters) type(*name) parameters;
#include "codegen/cuda/nvrtc_symbols.def"
#undef NVRTC_SYMBOL
} Nvrtc;
/* EXIT_SYSTEM where none is found, and how to get it. It stays open: other processes of this one go on with it. */
Status nvrtc_open(Arena *arena, Nvrtc *out);
/* Does it know "sm_90a"? Else EXIT_SYSTEM with those that it knows. */
Status nvrtc_check_architecture(const Nvrtc *n, const char *architecture);
/* The options that every source is compiled with, but for its architecture. */
extern const char *const nvrtc_options[];
enum { N_NVRTC_OPTIONS = 3 };
/* A cubin for sm_*, PTX ended by NUL for compute_*. The log is what the compiler says of a source that it takes, too: of each
 * kernel registers, spilled bytes and shared memory. False: it does not take the source, and the log says why. */
bool nvrtc_compile(const Nvrtc *n, const char *source, const char *architecture, Text *code,
                   Text *log);

/* ---- cache.c: no cache is no fault, and what is not in it is compiled. */
typedef struct {
	uint64_t words[2];
} CacheKey;
/* Of the source, the options and the compiler. */
CacheKey cuda_cache_key(const char *source, const char *architecture, const Nvrtc *compiler);
/* What a compiler made of a source. */
typedef struct {
	const char *at; /* cubin or PTX; NULL: nothing yet */
	int64_t n;
	const char *log;
} CudaCode;
bool cuda_cache_get(const CudaCache *c, Arena *arena, CacheKey key, CudaCode *out);
void cuda_cache_put(const CudaCache *c, CacheKey key, const char *architecture,
                    const char *compiler, const CudaCode *code);
/* Removes those that were not used for longest until the others have at most CUDA_CACHE_BYTES. */
void cuda_cache_trim(const CudaCache *c);

/* ---- compile.c */
typedef struct {
	const char *text;
	const char *architecture; /* "sm_90a" */
	const char *name;         /* "kernels0_sm_90a": of its files where they are kept */
	KernelPart kernels;
	CacheKey key;
	CudaCode code;
} CudaSource;
typedef VEC(CudaSource) CudaSources;
/* Appends the kernels that programs for the target launch, in sources of about equal work. */
Status cuda_print_sources(Arena *arena, const Module *m, const Target *target,
                          const char *architecture, CudaSources *out);
Status cuda_print_all(Text *out, Arena *arena, const Module *m,
                      const Target *target); /* in one, for people */
/* Fills the code of each from the cache, or with NVRTC in as many processes as there are CPUs; n_compiled: of how many it was NVRTC.
 * folder: for files meanwhile. keep: a folder for sources, code and logs; NULL: none. */
Status cuda_compile(Arena *arena, const CudaSources *sources, const char *folder, const char *keep,
                    int *n_compiled);

/* ---- sass.c */
/* Appends what nvdisasm says of a cubin. folder: for files meanwhile. */
Status cuda_disassemble(Arena *arena, const CudaCode *cubin, const char *folder, Text *out);

#endif
