/* From tensor IR to an object: the passes fuse, lower, schedule, memory, and what makes an executable
 * of their result. Sections are named after the .c files. */
#ifndef GRADC_CODEGEN_H
#define GRADC_CODEGEN_H

#include "codegen/target.h"
#include "format/format.h"
#include "ir/ir.h"
#include "ir/loop.h"

/* ---- fuse.c, lower.c, schedule.c, memory.c: see pass_list.def */
#define PASS(name) extern const PassRow pass_##name;
#include "codegen/pass_list.def"
#undef PASS

/* Loops are cut for so many cores, wherever they run. */
enum { DEFAULT_CORES = 64, MAX_CORES = 4096 };

/* ---- targets/targets.c: of rematerialize, legalize, fuse and lower: who runs the loops. */
typedef struct {
	const char *
		target; /* of targets/target_list.def; NULL: as each function says, the first where it does not */
	int64_t cores; /* that loops are cut for */
} TargetOptions;
extern const PassOption target_options[];
extern const TargetOptions target_defaults;
/* Names what a row lacks, and a table of its own where its kind has one; of all rows. True when there is nothing. */
bool target_row_check(const Target *t, Diag *diag);
bool target_table_check(Diag *diag);
/* NULL after reporting that there is none of that name. */
const Target *pass_find_target(const Pass *p, const char *name);
/* Who runs the loops of f. */
const Target *pass_target(const Pass *p, const Function *f);
/* False after reporting that the pass's option makes no sense. */
bool pass_check_cores(const Pass *p);

/* ---- multiversion.c: options of the pass */
typedef struct {
	const char *targets; /* of targets/target_list.def, with `+` between them */
} MultiversionOptions;

/* ---- memory.c: options of the pass */
typedef struct {
	const char *modes;   /* data-parallel modes, with `+` between them */
	const char *offload; /* what lies in the host's memory, likewise */
} MemoryOptions;

/* ---- by_iteration.c */
/* Elements of an argument that an iteration touches, where iteration i touches [i * each, (i + 1) * each) and no others; 0: it
 * touches more, or a library does. */
int64_t kernel_each(const Kernel *k, int buffer);

/* ---- versions.c */
/* For which targets the programs of a module are. A program that names none is for all of them, and so is a kernel that
 * nobody launches. */
typedef struct {
	StringList names; /* in the order of their first programs; one "" where none is named */
	bool **needs; /* by target, by the kernel's index: a program for it launches the kernel */
} Versions;
Versions module_versions(Arena *arena, const Module *m);
int version_index(const Versions *v, const char *target); /* among the names; -1: not there */

/* ---- kernels/strategies.c: names every opaque op without a strategy, and every column that a strategy lacks. True when
 * there are none. */
bool strategy_table_check(Diag *diag);

/* ---- split_reduce.c */
/* Rewrites the large reductions of f that would have less than so many parts. */
void reduces_split(Function *f, const Target *t, int64_t parts, Arena *scratch);

/* ---- split_sort.c */
enum { LONGEST_SPLIT = 1 << 30 };
/* Rewrites the sorts of f over long lines, up to that. */
/* ---- beside_readers.c */
void compute_beside_readers(Function *f, Arena *arena);
void sorts_split(Function *f);

/* ---- sort_scatter.c */
/* Sorts the indices of f's scatters where the target does that in many parts. */
void scatters_sort(Function *f, const Target *t);

/* ---- fill.c: does the kernel write nothing but zeros? */
bool kernel_fills_zero(const Kernel *k);

/* ---- in_place.c */
/* May the kernel's result, buffer `output`, lie where its operand, buffer `input`, does? They have equal sizes. */
bool kernel_may_overwrite(const Kernel *k, int input, int output);

/* Kernels that are compiled together: some of a module's, so that several compilers may run at once. */
typedef VEC(Kernel *) KernelPart;

/* ---- c/print.c: kernels as C: a part is a translation unit, its symbols have that suffix. */
void c_print_part(Text *out, const KernelPart *part, const char *suffix);
void c_print_table_types(Text *out); /* once, before the tables */
void c_print_table(Text *out, Kernel *const *kernels, int n,
                   const char *suffix); /* gradc_kernels[] of KernelCode, zeros for a NULL */

/* ---- cuda/print.c: kernels as CUDA C. A part is a source for NVRTC. */
void cuda_print_part(Text *out, const Target *target, const KernelPart *part);
/* Why it cannot be printed; NULL: it can. */
const char *cuda_refusal(const Kernel *k, const Target *target);
int cuda_threads(const Kernel *k);           /* of a block */
int64_t cuda_dynamic_bytes(const Kernel *k); /* of shared memory that a launch must ask for */
int64_t cuda_blocks(const Kernel *k, int64_t begin,
                    int64_t end); /* that run these of its iterations */

/* ---- cuda/architectures.c: what kernels are compiled for with --target=cuda:NAME, of cuda/architecture_list.def. */
typedef struct {
	const char *name;     /* "sm_90a": a cubin; "compute_100": PTX */
	const Target *target; /* whose programs it runs */
	bool by_default;      /* --target=cuda has it */
} CudaArchitecture;
extern const CudaArchitecture cuda_architectures[]; /* ends with a zero row */
extern const char *const cuda_shown; /* that --stage=cuda shows where none is asked for */
const CudaArchitecture *cuda_architecture_find(const char *name); /* NULL: unknown */

/* ---- cuda/cache.c: compiled kernels on disk, in $XDG_CACHE_HOME/gradc or ~/.cache/gradc. */
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

/* ---- storage.c: states that share storage: a unit and its members */
/* Calls visit for the value in f of every such state, s itself included, until it returns true; did it? */
bool storage_any_value(const Function *f, const State *s,
                       bool (*visit)(void *ctx, const Value *old), void *ctx);

/* ---- kernel_record.c */
/* The record of a kernel but for its name and what other records it refers to; arguments: one for each buffer. */
void kernel_record(const Kernel *k, KernelRecord *r, KernelArgument *arguments);
uint64_t kernel_code_facts(Arena *arena, const Kernel *k); /* KernelCode.facts */
/* What a team has in memory of its own: its arrays, partials that members of more than one warp combine, and tiles that are
 * operands, each at a multiple of SHARED_ALIGNMENT. */
enum { SHARED_ALIGNMENT = 128, TEAM_OF_REGISTERS = 32 };
int64_t kernel_shared_bytes(const Kernel *k);
int64_t kernel_partials(const Kernel *k, DType type); /* numbers of a type; 0: none */
int64_t kernel_staged(const Kernel *k, DType type);

/* ---- tables.c: the module after `memory` as executable tables. */
/* What types don't say of a port. */
typedef struct {
	DType file_dtype;
	int sample_axis;
	bool bounded, has_ignore;
	int64_t min, max, ignore;
} PortInfo;
typedef struct {
	const char *text; /* "batch=8 seq=128" */
	int64_t rows;     /* of a micro-batch */
} BindingInfo;
typedef struct {
	const Module *m;
	const PortInfo *inputs; /* by the numbers of PARAM_INPUT */
	int n_inputs;
	const PortInfo *outputs; /* by the forward function's results */
	int n_outputs;
	PortInfo labels;
	const BindingInfo *bindings;
	int n_bindings;
	const StateSource *sources; /* by state id; later states are in no file */
	int n_sources;
	const AdapterModules *adapters; /* by adapter of m; NULL: nothing is known */
} Tables;
/* Fills the sections of w that come from the module; info and export are the caller's. False after reporting what has no
 * room in a record. */
bool tables_write(FormatWriter *w, const Tables *t, Diag *diag);

/* ---- printer_list.def: what makes machine code of kernels, one file with this row and one line each. */
typedef struct Build Build; /* build.h */
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
#include "codegen/printer_list.def"
#undef VIEW
#undef PRINTER
extern const KernelPrinter *const kernel_printers[]; /* the first is the default; ends with NULL */
extern const KernelPrinter *const kernel_views[];    /* without `build`; ends with NULL */
const KernelPrinter *printer_of_language(const char *language); /* NULL: none */
const char *printer_language(int i); /* of all that they can show, in order; NULL ends */

/* ---- link.c */
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
/* Compiles the kernels, links them with the runtime, appends the weights and the blob, and renames the
 * result to its place. */
Status link_executable(const Module *m, FormatWriter *w, const LinkOptions *options);

#endif
