/* Private to cuda: turns CUDA C sources into machine code with NVRTC (NVIDIA's compiler
 * library), keeps the results in a cache, and shows machine code with nvdisasm. Sections are
 * named after the .c files. */
#ifndef GRADC_CODEGEN_CUDA_NVRTC_H
#define GRADC_CODEGEN_CUDA_NVRTC_H

#include "codegen/cuda/cuda.h"

/* ---- nvrtc.c: NVIDIA's compiler as a library, opened when it is needed */
enum { MOST_ARCHITECTURES = 64 };
typedef struct {
	void *library;
	const char *path;     /* path of its file */
	const char *version;  /* "13.0" */
	const char *identity; /* version and size of the file, which distinguish builds */
	/* architectures that this NVRTC knows, such as 80 and 90 */
	int architectures[MOST_ARCHITECTURES], n_architectures;
#define NVRTC_SYMBOL(name, type, parameters) type(*name) parameters;
#include "codegen/cuda/nvrtc_symbols.def"
#undef NVRTC_SYMBOL
} Nvrtc;
/* EXIT_SYSTEM if no NVRTC is found, with advice how to get it. The library stays open, because processes
 * forked later use it. */
Status nvrtc_open(Arena *arena, Nvrtc *out);
/* Does NVRTC know the architecture, such as "sm_90a"? Otherwise EXIT_SYSTEM with the list of the
 * architectures that NVRTC knows. */
Status nvrtc_check_architecture(const Nvrtc *n, const char *architecture);
/* The options for every source; the option for the architecture is added to these. */
extern const char *const nvrtc_options[];
enum { N_NVRTC_OPTIONS = 3 };
/* Compiles to a cubin for sm_*, and to PTX with a final NUL for compute_*. The log has the compiler's
 * messages, also for an accepted source: registers, spilled bytes and shared memory of each kernel. False:
 * the source is rejected; the log says why. */
bool nvrtc_compile(const Nvrtc *n, const char *source, const char *architecture, Text *code,
                   Text *log);

/* ---- cache.c: if the cache is missing or broken, kernels are compiled again, without an error */
typedef struct {
	uint64_t words[2];
} CacheKey;
/* The key of the source, the options and the compiler. */
CacheKey cuda_cache_key(const char *source, const char *architecture, const Nvrtc *compiler);
/* The result of compiling a source. */
typedef struct {
	const char *at; /* cubin or PTX; NULL: not compiled yet */
	int64_t n;
	const char *log;
} CudaCode;
bool cuda_cache_get(const CudaCache *c, Arena *arena, CacheKey key, CudaCode *out);
void cuda_cache_put(const CudaCache *c, CacheKey key, const char *architecture,
                    const char *compiler, const CudaCode *code);
/* Removes the entries that were unused for longest, until the rest has at most CUDA_CACHE_BYTES. */
void cuda_cache_trim(const CudaCache *c);

/* ---- compile.c */
typedef struct {
	const char *text;
	const char *architecture; /* "sm_90a" */
	const char *name;         /* name of its files in `keep`, such as "kernels0_sm_90a" */
	KernelPart kernels;
	CacheKey key;
	CudaCode code;
} CudaSource;
typedef VEC(CudaSource) CudaSources;
/* Prints all kernels that the target's programs launch, divided into sources that take about
 * equally long to compile, and appends these sources to *out. */
Status cuda_print_sources(Arena *arena, const Module *m, const Target *target,
                          const char *architecture, CudaSources *out);
/* prints all kernels as one source, for people to read */
Status cuda_print_all(Text *out, Arena *arena, const Module *m, const Target *target);
/* Fills in the code of all sources, from the cache or with NVRTC, in as many processes as there
 * are CPUs. n_compiled: sources that NVRTC compiled. folder: for temporary files. keep: a folder
 * for sources, code and logs; NULL: none. */
Status cuda_compile(Arena *arena, const CudaSources *sources, const char *folder, const char *keep,
                    int *n_compiled);

/* ---- sass.c */
/* Appends nvdisasm's output for a cubin. folder: for temporary files. */
Status cuda_disassemble(Arena *arena, const CudaCode *cubin, const char *folder, Text *out);

#endif
