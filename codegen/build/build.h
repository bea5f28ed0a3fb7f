/* A build in progress: what the printers of kernels and the linker share. Sections are named after the
 * .c files. */
#ifndef GRADC_CODEGEN_BUILD_BUILD_H
#define GRADC_CODEGEN_BUILD_BUILD_H

#include "codegen/target/target.h"
#include "format/format.h"

#include <sys/types.h>

/* ---- printer_list.def: what makes machine code of kernels, one file with this row and one line each. */
typedef struct Build Build;
typedef struct {
	const char
		*cpu; /* "native", or of base/cpu_level_list.def; for the cuda printer "sm_90a" */
	const char *features; /* that its kernels may use: words of base/cpu_feature_list.def */
	const Target *target; /* whose programs it runs, and so needs the kernels of; NULL: all */
} CpuTarget;
typedef struct {
	const char *name;             /* as --printer names it */
	const char *const *languages; /* that it can show, as --stage names them; ends with NULL */
	/* Appends all kernels in a language, for people. */
	Status (*print)(Text *out, const Module *m, const CpuTarget *target, const char *language);
	/* Adds the objects with the kernels of every CPU, and build_model_symbol with them, the tables and b->images. NULL: of
	 * a view. */
	Status (*build)(Build *b, const Module *m, const void *blob, int64_t bytes);
} KernelPrinter;
#define PRINTER(name) extern const KernelPrinter printer_##name;
#define VIEW(name) PRINTER(name)
#include "codegen/build/printer_list.def"
#undef VIEW
#undef PRINTER
extern const KernelPrinter *const kernel_printers[]; /* the first is the default; ends with NULL */
extern const KernelPrinter *const kernel_views[];    /* without `build`; ends with NULL */
const KernelPrinter *printer_of_language(const char *language); /* NULL: none */
const char *printer_language(int i); /* of all that they can show, in order; NULL ends */

/* ---- kernel_record.c */
/* The record of a kernel but for its name and what other records it refers to; arguments: one for each buffer. */
void kernel_record(const Kernel *k, KernelRecord *r, KernelArgument *arguments);
uint64_t kernel_code_facts(Arena *arena, const Kernel *k); /* KernelCode.facts */

/* ---- what a link is asked for */
typedef struct CudaArchitecture CudaArchitecture; /* codegen/cuda/cuda.h */
/* Sources of kernels for GPUs, and how many of them were compiled: the cache had the others. Convolutions on each of the GPUs, and
 * how many of them a library has planned. */
typedef struct {
	int n_sources, n_compiled;
	int n_convolutions, n_plans;
	char planner[32]; /* the library: "cuDNN 9.28.1"; "": it is not here */
} GpuReport;
typedef struct {
	const KernelPrinter *printer;
	const CpuTarget *targets; /* the executable has kernels for each, and picks at start */
	int n_targets;
	const CudaArchitecture *const *gpus; /* and these */
	int n_gpus;
	GpuReport *gpu_report; /* NULL: nobody asks */
	bool tf32;             /* libraries may round operands of f32 to it */
	const char *cc;        /* C compiler, also links; NULL: $CC or cc */
	const char *runtime;   /* libgradc_rt.a */
	const char *output;
	const char *keep_sources; /* folder of the generated C; NULL: temporary */
	const char *weights_file; /* NULL: embedded */
	const char *library;      /* name of its model, for a shared library; NULL: an executable */
} LinkOptions;

/* ---- build.c */
/* A CodeImage of kind IMAGE_BYTES. */
typedef struct {
	const char *name;
	int target; /* of the tables' targets */
	Text bytes;
} ByteImage;
struct Build {
	Arena *arena;
	const LinkOptions *options;
	TemporaryFolder folder;
	VEC(const char *) objects; /* what will be linked */
	VEC(ByteImage) images;     /* what the model has beside the printer's functions */
};
const char *build_file(Build *b, const char *name); /* its path in the temporary folder */
/* Writes an object file that will be linked. */
Status build_object(Build *b, const char *name, const Text *object);
typedef struct {
	const char *name, *log; /* log: the file of its messages */
	pid_t pid;
	CleanupSlot cleanup;
} Program;
/* Starts argv[0] with its messages in a log file, and its own temporary files in the build's folder. */
Status build_start(Build *b, char *const *argv, const char *log, Program *out);
/* Waits for it; an error holds the first lines of its log. */
Status build_finish(Build *b, Program *p);
const char *build_compiler(const Build *b); /* of C; also links */
/* The symbol of the GradcModel. */
const char *build_model_symbol(Build *b);
/* The kernels that programs for a target launch, NULL: all; and where one is not among them a NULL. */
Kernel **build_kernels(Arena *arena, const Module *m, const Target *target);
KernelPart build_list(Arena *arena, const Module *m, const Target *target); /* without the gaps */
/* Which of the module's targets that is, as the tables number them. */
int build_target(Arena *arena, const Module *m, const Target *target);
/* These kernels in parts that are compiled at once, with about as many statements in each; returns how many: one a core,
 * where there is enough for each. */
enum { MAX_PARTS = 8 };
/* In so many parts, into a list that has room for them; `all` is sorted meanwhile. */
void build_divide(Arena *arena, const KernelPart *all, int n, KernelPart *parts);
int build_parts(Arena *arena, const Module *m, const Target *target, KernelPart parts[MAX_PARTS]);

#endif
