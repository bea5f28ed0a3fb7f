/* A build in progress: shared by the printers, which turn kernels into machine code, and by the
 * linker. Each section is named after its .c file or list. */
#ifndef GRADC_CODEGEN_BUILD_BUILD_H
#define GRADC_CODEGEN_BUILD_BUILD_H

#include "codegen/target/target.h"
#include "format/format.h"

#include <sys/types.h>

/* ---- printer_list.def: printers that make machine code of kernels. Each printer is one file and one line
 * in the list. */
typedef struct Build Build;
typedef struct {
	/* "native", or a name of base/cpu_level_list.def; "sm_90a" for the cuda printer */
	const char *cpu;
	/* features that kernels for this CPU may use: words of base/cpu_feature_list.def */
	const char *features;
	/* target whose programs this CPU runs; NULL: the CPU gets the kernels of all targets */
	const Target *target;
} CpuTarget;
typedef struct {
	const char *name; /* name for --printer */
	/* languages that the printer can show, named as for --stage; the list ends with NULL */
	const char *const *languages;
	/* Appends all kernels in a language, for people to read. */
	Status (*print)(Text *out, const Module *m, const CpuTarget *target, const char *language);
	/* Adds to b->objects the kernels for every CPU, and a GradcModel that points to the
	 * kernels, the tables (blob) and b->images. build_model_symbol names its symbol. NULL: the
	 * printer is a view, which can only show kernels. */
	Status (*build)(Build *b, const Module *m, const void *blob, int64_t bytes);
} KernelPrinter;
#define PRINTER(name) extern const KernelPrinter printer_##name;
#define VIEW(name) PRINTER(name)
#include "codegen/build/printer_list.def"
#undef VIEW
#undef PRINTER
extern const KernelPrinter *const kernel_printers[]; /* the first is the default; ends with NULL */
extern const KernelPrinter *const kernel_views[];    /* printers without `build`; ends with NULL */
/* NULL: no printer has this language */
const KernelPrinter *printer_of_language(const char *language);
/* language i of all printers and views, in order; NULL: no more */
const char *printer_language(int i);

/* ---- kernel_record.c */
/* Fills in the record of a kernel, except its name and references to other records. arguments: one for each
 * buffer. */
void kernel_record(const Kernel *k, KernelRecord *r, KernelArgument *arguments);
uint64_t kernel_code_facts(Arena *arena, const Kernel *k); /* KernelCode.facts */

/* ---- options of a link */
typedef struct CudaArchitecture CudaArchitecture; /* codegen/cuda/cuda.h */
/* Report on GPUs. n_sources: sources of kernels; n_compiled: sources that were not in the cache.
 * n_convolutions: convolutions on each GPU; n_plans: how many of these the library has planned. */
typedef struct {
	int n_sources, n_compiled;
	int n_convolutions, n_plans;
	char planner[32]; /* the library, such as "cuDNN 9.28.1"; "": not installed */
} GpuReport;
typedef struct {
	const KernelPrinter *printer;
	/* the executable has kernels for each of these CPUs, and picks one at start */
	const CpuTarget *targets;
	int n_targets;
	const CudaArchitecture *const *gpus; /* GPUs that the executable has kernels for */
	int n_gpus;
	GpuReport *gpu_report; /* NULL: no report */
	bool tf32;             /* may libraries round f32 operands to tf32? */
	const char *cc;        /* C compiler and linker; NULL: $CC or cc */
	const char *runtime;   /* libgradc_rt.a */
	const char *output;
	const char *keep_sources; /* folder for the generated C; NULL: a temporary one */
	const char *weights_file; /* NULL: weights are embedded */
	/* for a shared library, the name of its model; NULL: an executable */
	const char *library;
} LinkOptions;

/* ---- build.c */
/* A CodeImage of kind IMAGE_BYTES. */
typedef struct {
	const char *name;
	int target; /* index into the tables' targets */
	Text bytes;
} ByteImage;
struct Build {
	Arena *arena;
	const LinkOptions *options;
	TemporaryFolder folder;
	VEC(const char *) objects; /* objects to link */
	VEC(ByteImage)
	images; /* the model's code images besides the functions that the printer makes */
};
const char *build_file(Build *b, const char *name); /* path in the temporary folder */
/* Writes an object file and adds it to the objects to link. */
Status build_object(Build *b, const char *name, const Text *object);
typedef struct {
	const char *name, *log; /* log: file with the program's messages */
	pid_t pid;
	CleanupSlot cleanup;
} Process;
/* Starts argv[0]. Its messages go to a log file, and its temporary files to the build's folder. */
Status build_start(Build *b, char *const *argv, const char *log, Process *out);
/* Waits for the program; an error holds the first lines of its log. */
Status build_finish(Build *b, Process *p);
const char *build_compiler(const Build *b); /* the C compiler, which also links */
/* The symbol of the GradcModel. */
const char *build_model_symbol(Build *b);
/* An array by kernel index: the kernel if a program for the target launches it, otherwise NULL.
 * If `target` is NULL, it has all kernels. */
Kernel **build_kernels(Arena *arena, const Module *m, const Target *target);
/* the kernels of build_kernels as a list without NULLs */
KernelPart build_list(Arena *arena, const Module *m, const Target *target);
/* The target's number in the tables. */
int build_target(Arena *arena, const Module *m, const Target *target);
/* The most parts into which a target's kernels are divided; parts are compiled at the same time.
 * There is one for each core, if there are enough kernels. */
enum { MAX_PARTS = 8 };
/* Divides the kernels of `all` into n parts with about the same number of statements, and writes
 * them to `parts`, which has room for n. Sorts `all`. */
void build_divide(Arena *arena, const KernelPart *all, int n, KernelPart *parts);
int build_parts(Arena *arena, const Module *m, const Target *target, KernelPart parts[MAX_PARTS]);

#endif
