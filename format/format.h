/* The tables inside a training executable: what the compiler decided, as data, for example which kernels run in which
 * order, and where each state lies in memory. The tables are one flat blob: a header, sections of fixed-size records,
 * and a pool of strings; little endian, no pointers. codegen uses the writer; the runtime and `gradc dump EXE` use the
 * validating reader. */
#ifndef GRADC_FORMAT_H
#define GRADC_FORMAT_H

#include "base/calls/library_call.h"
#include "base/program/program.h"
#include "base/schedule/schedule.h"

#define FORMAT_MAGIC 0x3158434441524721ull /* "!GRADCX1" */
#define FORMAT_VERSION 26
#define GRADC_ABI 17
#define GRADC_ABI_NAME "gradc_abi_17" /* a symbol of the runtime; a mismatch fails at link time */
/* A hint about models in training form, printed by gradc and its executables. */
#define TRAINING_FORM_HINT                                                                                \
	"batch norms take the statistics of their batch and dropout is active: what evaluation computes " \
	"is the inference form"
#define GRADC_MODEL_NAME "gradc_model"

/* Kinds of data that may be offloaded to the host's memory. */
typedef enum {
	OFFLOAD_OPTIMIZER,   /* this rank's parts of moments, master weights, gradients */
	OFFLOAD_PARAMS,      /* this rank's parts of weights, in ZeRO-3 */
	OFFLOAD_ACTIVATIONS, /* values of the forward pass for the backward pass, in any mode */
	N_OFFLOADS,
} Offload;
extern const char *const offload_names[];

/* The key of an entry in the program table. */
typedef struct {
	Role role;
	int binding; /* binding of the open dimensions */
	int stage;   /* stage of the pipeline */
	int mode;    /* data-parallel mode */
	int target;  /* target that runs the program */
} ProgramKey;
enum { MAX_TARGETS = 32, EVERY_TARGET = -1 };

/* Facts about a run: the conditions (RunOnly) that hold, and how its ranks (processes) divide shared states. */
typedef struct {
	uint32_t holds; /* RunOnly bits that hold */
	int ranks, rank;
	/* The group of ranks that together hold all parts of the states: its size, and this rank's number in it; size
	 * 0: the group is all ranks. */
	int shard_ranks, shard_rank;
	/* Data-parallel mode. In modes other than MODE_DDP a run of one rank has ONLY_RANKS, too. */
	int mode;
	/* Offset of this rank's part in state_space, by state; NULL: no state is divided. */
	const int64_t *shard_at;
} RunFacts;
static inline bool
only_applies(uint32_t only, const RunFacts *facts)
{
	return (only & ~facts->holds) == 0;
}
extern const RunFacts run_alone; /* one process, on the host's processors */

/* Limits on the stages, streams, events and loops of a schedule. */
enum { MAX_STAGES = 1 << 20 };
enum { MAX_STREAMS = 8, MAX_EVENTS = 1 << 16, MAX_LOOPS = 8, MAX_ITERATIONS = 1 << 20 };

/* Runs iterations [begin, end) of a kernel. All parallel loops together are numbered as one loop. */
typedef void (*KernelFn)(void *const *buffers, const Scalar *scalars, int64_t begin, int64_t end);
/* The code of a kernel, and kernel_facts of the record from which the code was printed. Tables with other facts for this kernel
 * do not belong to this code. */
typedef struct {
	KernelFn run;   /* NULL: no program for the image's target launches the kernel */
	uint64_t facts; /* kernel_facts */
} KernelCode;
/* An image holds the code of all kernels of the tables, from one compiler run, for machines with certain features. */
typedef enum {
	IMAGE_FUNCTIONS, /* data: `size` KernelCodes of this process, by kernel number */
	IMAGE_BYTES, /* data: `size` bytes for a device to load; for a GPU an 8-byte aligned bundle (bundle.c) */
	N_IMAGE_KINDS,
} ImageKind;
typedef struct {
	const char *name;     /* "native", "x86-64-v3"; NULL ends a list */
	const char *features; /* required CPU features, as words of base/cpu_feature_list.def */
	int64_t kind;         /* ImageKind */
	const void *data;
	int64_t size;
	int64_t target; /* number of the target whose programs launch the code */
} CodeImage;
/* A compiled model: gradc_model in an executable, gradc_model_NAME in a library. */
typedef struct {
	int64_t abi;      /* GRADC_ABI of the compiler */
	const void *blob; /* the tables, 16-byte aligned */
	int64_t bytes;
	const CodeImage
		*images;  /* images, of which the runtime uses the best that this CPU can run */
	const char *file; /* file with the weights at its end; NULL: the file that holds the blob */
} GradcModel;

/* ---- records */

/* How a kernel, or the library in its place, accesses one argument. */
typedef struct {
	int64_t bytes; /* number of bytes that the kernel may touch, from the argument's start */
	uint32_t dtype;
	/* ACCESS_... bits of loops and library; 0: no access, because another kernel has read the argument */
	uint32_t access;
	int64_t each; /* bytes per iteration: iteration i touches [i * each, (i + 1) * each) only; 0: iterations may touch more */
} KernelArgument;

typedef struct {
	StrRef name; /* "k12", also the symbol's name */
	/* bit i: programs of target i launch the kernel, and the images of target i have its code */
	uint32_t targets;
	uint32_t first_argument; /* index in the table of kernel arguments */
	uint32_t n_arguments;    /* number of arguments of a launch */
	/* 1: matrix units multiply tiles that the kernel has computed, as in attention (KernelWork) */
	uint32_t chained;
	int64_t iterations; /* product of the parallel loops */
	int64_t grain;      /* smallest useful number of iterations for a thread */
	/* Number of elements that the iterations divide evenly. A launch runs only the iterations that its last argument's part has
	 * elements for. 0: every launch runs all iterations. */
	int64_t elements;
	int64_t flops, bytes; /* operations and memory traffic of one run */
	/* Estimates of one run for cost models (KernelWork): instructions of scalar code, of all threads; operations of matrix
	 * units; team loops that one part runs one after the other. */
	int64_t instructions, matrix_flops, steps;
	int64_t shared_bytes; /* bytes of one team's shared arrays */
	uint32_t team;        /* number of members; 1: no team */
	/* 1 + the library record that can replace the loops; 0: no library call */
	uint32_t library;
	/* 1 + the kernel that reads this kernel's result. If a library runs that reader, this kernel is skipped. 0: always runs. */
	uint32_t serves;
	uint32_t reads_scalars; /* 1: the kernel reads its program's scalar block */
} KernelRecord;
/* Threads of a GPU block for a kernel without a team: each thread runs its own part. */
enum { LONE_THREADS = 128 };
static inline uint32_t
kernel_block_threads(const KernelRecord *k)
{
	return k->team > 1 ? k->team : LONE_THREADS;
}
static inline uint32_t
kernel_block_parts(const KernelRecord *k)
{
	return k->team > 1 ? 1 : LONE_THREADS;
}

/* A kernel's own declaration covers up to this much shared memory of a GPU block. If the kernel needs more, the launch requests
 * all of it. */
enum { MOST_OWN_SHARED = 48 << 10 };
static inline int64_t
launch_shared_bytes(int64_t shared_bytes)
{
	return shared_bytes > MOST_OWN_SHARED ? shared_bytes : 0;
}

/* A library call that may replace a kernel's loops, on the kernel's arguments. */
typedef struct {
	LibraryCall call;
	int64_t scratch_limit; /* bytes of scratch; if the library needs more, the loops run */
} LibraryRecord;

/* A plan: how a library runs a call on one kind of GPU, found when the model was compiled. With another GPU or another version
 * of the library, the library makes its own plan when training starts. */
typedef struct {
	uint32_t library; /* number of the library record */
	StrRef gpu;       /* name of the GPU: "NVIDIA H100 80GB HBM3" */
	uint32_t capability,
		processors; /* the GPU's compute capability (90 is 9.0) and number of multiprocessors */
	StrRef version;     /* the library's version: "cuDNN 9.28.1" */
	StrRef text;        /* the plan in the library's own opaque format */
	int64_t scratch; /* bytes of scratch */
	/* plan_facts, a hash against changed plans, which the library would execute unchecked */
	uint64_t facts;
} PlanRecord;

/* A target: the kind of device for which kernels were lowered, "cpu-512". */
typedef struct {
	StrRef name;
} TargetRecord;

typedef struct {
	uint32_t role, binding, stage, mode, target; /* ProgramKey */
	/* 1: the host's processors run the program while a device runs programs of another target */
	uint32_t on_host;
	uint32_t first_instruction, n_instructions;
	uint32_t first_input, n_inputs; /* range in the port table */
	uint32_t first_output, n_outputs;
	/* 1 + the slot of the scalar block (SCALARS_BYTES); 0: no kernel reads scalars */
	uint32_t scalars;
	uint32_t n_events;       /* number of the program's own events */
	int64_t bytes[N_SPACES]; /* size of each region; 0 for the state region */
	int64_t flops;
} ProgramRecord;
enum { SCALARS_BYTES = N_SCALARS * sizeof(Scalar) };

/* An input or output of a program. */
typedef struct {
	StrRef name;
	uint32_t kind; /* PortKind */
	uint32_t dtype, rank;
	uint32_t first_dim; /* index in the dims table */
	uint32_t slot;
	uint32_t file_dtype; /* type in the ONNX file (f32 in an f64 program) */
	int32_t sample_axis; /* axis of the samples; -1: no such axis */
	/* Limits of labels and token ids: values outside [min, max], except `ignore`, end the run with exit code 6. */
	int64_t min, max, ignore;
	/* 0: no limits; 1: min and max apply; 2: min and max apply, `ignore` is allowed */
	uint32_t bounded;
	/* Outputs: the axis that, cut into equal blocks, gives the rows of the micro-batch `repeats` times. Unlike sample_axis, the
	 * axis may hold several elements per row. repeats 0: no such axis, or an input. */
	uint32_t row_axis, repeats;
	uint32_t mixes_rows; /* outputs: 1: an element may depend on several rows */
	uint32_t compared; /* Compared: outputs: how the loss compares the output with the labels */
	uint32_t class_axis; /* compared with classes: the axis that the labels lack */
} PortRecord;
/* How the loss compares an output of the program of role forward with the labels. */
typedef enum {
	COMPARED_NOT,    /* the loss takes another output, or the model computes the loss */
	COMPARED_LOGITS, /* logits of classes */
	COMPARED_LOG_PROBABILITIES,
	COMPARED_BINARY_LOGITS, /* a logit for each label, which is 0 or 1 */
	COMPARED_NUMBERS,
	N_COMPARED
} Compared;
/* How rows lie in an output: row r of [before, rows, after]. */
typedef struct {
	int64_t before, after;
} PortRows;

typedef struct {
	StrRef name;
	StrRef why; /* reason for the state's kind, for tables: "read by MatMul", "--freeze" */
	uint32_t dtype, rank, first_dim;
	uint32_t kind;     /* StateKind */
	uint32_t lifetime; /* saved, step, derived, constant */
	uint32_t trainable, decay;
	/* zeros, ones, data, normal, uniform, or a converted copy of the state `of` */
	uint32_t init;
	/* state index + 1 of the parameter or unit that the state belongs to; 0: no such state */
	uint32_t of;
	uint32_t unit; /* state index + 1 of the unit that contains the state; 0: no unit */
	double lr_scale, init_a, init_b;
	int64_t offset, bytes; /* place in the state region */
	/* Offset of the initial data in the weights (tail or file), which are laid out like the region except for padding to
	 * whole pages; -1: no initial data. */
	int64_t data_offset;
	uint32_t file_dtype; /* type in the ONNX file */
	uint32_t number;     /* moment: its number among the optimizer's moments */
	StrRef path; /* second name, after the module that reads the state; "": no second name */
	StrRef parameter; /* name of the exported module's parameter: "lm_head.weight"; "": unknown */
	uint32_t transposed; /* 1: the state is the transpose of the matrix `parameter` */
	/* first mode that divides the state among ranks; MODE_DDP: never divided */
	uint32_t sharded;
	/* number of elements of which parts are multiples; 0: divided with its unit, or as its units are */
	uint32_t block;
	uint32_t offloaded; /* 1: parts lie in the host's memory */
} StateRecord;

/* One binding of the open dimensions: "batch=8 seq=64". */
typedef struct {
	StrRef text;
	uint32_t reserved;
	int64_t rows; /* number of samples in a micro-batch */
} BindingRecord;

/* A line of `--info`: name and value as text. */
typedef struct {
	StrRef key, value;
} InfoRecord;

/* The exported model consists of literal bytes with holes. A record of any kind but EXPORT_LITERAL fills a hole. */
typedef enum {
	EXPORT_LITERAL, /* bytes [offset, offset+bytes) of the literal section */
	/* State `state` as dtype, its axes permuted: out axis i = state axis perm[i]. Each `block` of elements is written 1 + `times`
	 * times. */
	EXPORT_TENSOR,
	/* State `state`, its axes permuted, as codes of dtype (numbers.h's dtype_quantize), with one scale per group of group[i]
	 * elements along permuted axis i. */
	EXPORT_CODES,
	EXPORT_SCALES, /* f32 scales of codes whose scales are not in a state */
	EXPORT_RANGE_SCALE, /* f32 scale of codes of dtype for the range from state `state` to state `high` */
	EXPORT_RANGE_ZERO, /* zero point of the same codes, as dtype */
	EXPORT_FACTORS, /* magnitude / norm for each output of weight `state`, from its adapter, as dtype */
	EXPORT_NAME, /* file name of the external data: basename of FILE + ".data" */
	EXPORT_LENGTH, /* 5-byte padded varint of base + times * length of the external data's file name */
	EXPORT_ALIGN, /* zeros up to a multiple of `bytes` */
	/* --export-preprocessing: a byte, the ONNX type of input `input`: byte d of the literal bytes for type d of the data
	 * files; without preprocessing, `dtype` stands for d. The first record of an input; `name` is the input's name. */
	EXPORT_INPUT_TYPE,
	EXPORT_MUL,  /* f64 factor of --scale for input `input` */
	EXPORT_ADD,  /* f64 term of --scale */
	EXPORT_MEAN, /* f64 means of --mean-std for `block` channels */
	EXPORT_STD,  /* f64 deviations of --mean-std */
	N_EXPORT_KINDS,
} ExportKind;
#define NO_SCALE UINT32_MAX
typedef struct {
	uint32_t kind;         /* ExportKind */
	uint32_t file;         /* 0: FILE.onnx, 1: FILE.onnx.data */
	int64_t offset, bytes; /* literal: its place; length: offset is the base */
	uint32_t state, dtype, times, rank;
	int64_t block; /* number of elements of a block; divides the state's number of elements */
	uint8_t perm[MAX_RANK];
	/* Codes: state with one scale per group; NO_SCALE: quantization_of_groups computes the scales from the numbers.
	 * Ranges: state that is added to the scale or zero point; NO_SCALE: nothing is added. */
	uint32_t scale;
	uint32_t high; /* ranges: state with the upper end */
	int64_t zero; /* codes: offset of the zero points in the literal section, one s32 per group; -1: all are 0 */
	int64_t group[MAX_RANK]; /* codes: number of elements per group along each axis */
	double least; /* lower bound for scales: the written scales, and the scales that codes are computed with; 0: no bound */
	uint32_t of;  /* ExportedModel that the record belongs to */
	uint32_t form; /* ExportForm that the record belongs to */
	/* --export-preprocessing: number of the input, from 1, and the set of its preprocessings under which the record is
	 * written, as bits of export_preprocessing; input 0: always written. The length of the graph has input 1 and `when` 0: it
	 * counts the bytes that are written under the chosen preprocessings. */
	uint32_t input, when;
	StrRef name;
	uint32_t reserved;
} ExportRecord;
/* The preprocessings of an input: what --scale gives, and which axis of a sample has the channels of --mean-std. */
typedef enum { SCALE_NONE, SCALE_MUL, SCALE_MUL_ADD, N_SCALES } ExportScale;
typedef enum { MEAN_NONE, MEAN_FIRST, MEAN_LAST, N_MEANS } ExportMean;
enum { ALL_PREPROCESSINGS = (1 << N_SCALES * N_MEANS) - 1, NO_PREPROCESSING = 1 << 0 };
static inline uint32_t
export_preprocessing(ExportScale scale, ExportMean mean)
{
	return 1u << (scale * N_MEANS + mean);
}
/* What batch norms and Dropout of the exported model do: what evaluation computes, or what the file says. If the two do not
 * differ, all records are of the inference form. */
typedef enum { FORM_INFERENCE, FORM_AS_IMPORTED, N_FORMS } ExportForm;
/* The models that can be exported: with adapters as branches (TRAINED), or with adapters merged into their weights
 * (MERGED). A model without adapters has only TRAINED. */
typedef enum { EXPORTED_TRAINED, EXPORTED_MERGED, N_EXPORTED } ExportedModel;

/* Values of AdapterRecord.readers: the IR's AdapterReaders in the same order. */
enum { READ_BY_PRODUCTS, READ_BY_TABLES, READ_BY_BOTH, N_READ_BY };
/* A low-rank adapter (LoRA) of a weight, as Adapter in ir.h. Its states: the weight [.., outputs along `axis`, ..]; a,
 * with the weight's shape but the adapter's rank along `axis`; b [outputs, rank]. */
typedef struct {
	uint32_t weight, a, b, axis;
	uint32_t readers; /* READ_BY_... */
	uint32_t rslora;
	/* state index + 1 of the norms [outputs] to which the rows of weight + product are scaled (DoRA); 0: no scaling */
	uint32_t magnitude;
	uint32_t pissa; /* 1: the initial product of a and b was subtracted from the weight */
	double alpha;
	/* PEFT's names of the modules that read the weight by products, and as a table; "": no such module, or unknown */
	StrRef product, table;
	int64_t base; /* hash of the weight's numbers in the file; 0: unknown */
} AdapterRecord;

/* A weight stored as 4-bit numbers, as FourBitWeight in ir.h. */
typedef struct {
	uint32_t codes, absmax;          /* state indices */
	uint32_t nested, offset;         /* state indices + 1; 0: absmax is f32 */
	uint32_t kind;                   /* FourBit */
	uint32_t dtype, rank, first_dim; /* type and shape of the weight */
	uint32_t axis, reserved;
} FourBitRecord;

/* The two files of a further named adapter that the executable carries, as PEFT writes them. The numbers are places in
 * SECTION_KEPT. */
typedef struct {
	StrRef name;
	uint32_t reserved;
	int64_t config, config_bytes, tensors, tensors_bytes;
} KeptAdapterRecord;

typedef enum {
	SECTION_INFO,
	SECTION_DIMS /* int64 */,
	SECTION_STATES,
	SECTION_SLOTS,
	SECTION_ARGUMENTS,
	SECTION_INSTRUCTIONS,
	SECTION_KERNELS,
	SECTION_KERNEL_ARGUMENTS,
	SECTION_LIBRARY,
	SECTION_COLLECTIVES,
	SECTION_BINDINGS,
	SECTION_TARGETS,
	SECTION_PORTS,
	SECTION_PROGRAMS,
	SECTION_EXPORT,
	SECTION_LITERAL /* bytes */,
	SECTION_STRINGS /* bytes, starts with NUL */,
	SECTION_ADAPTERS,
	SECTION_FOUR_BIT,
	SECTION_KEPT_ADAPTERS,
	SECTION_KEPT /* bytes */,
	SECTION_PLANS, /* missing if there are no plans */
	N_SECTIONS,
} Section;

typedef struct {
	uint64_t magic;
	uint32_t version, n_sections;
	int64_t bytes;         /* size of the whole blob */
	int64_t state_bytes;   /* size of the state region */
	int64_t weights_bytes; /* size of the weights in the tail or the --weights file */
	uint64_t weights_hash; /* hash_bytes over the weights, seed 0 */
	struct {
		int64_t offset, count;
	} sections[N_SECTIONS];
} FormatHeader;

/* ---- write.c: the caller fills the sections as vectors, then format_finish lays them out. */
typedef struct {
	Arena *arena;
	VEC(InfoRecord) info;
	VEC(int64_t) dims;
	VEC(StateRecord) states;
	VEC(Slot) slots;
	VEC(Argument) arguments;
	VEC(Instruction) instructions;
	VEC(KernelRecord) kernels;
	VEC(KernelArgument) kernel_arguments;
	VEC(LibraryRecord) library;
	VEC(CollectiveRecord) collectives;
	VEC(BindingRecord) bindings;
	VEC(TargetRecord) targets;
	VEC(PortRecord) ports;
	VEC(ProgramRecord) programs;
	VEC(ExportRecord) exports;
	VEC(AdapterRecord) adapters;
	VEC(FourBitRecord) four_bit;
	VEC(KeptAdapterRecord) kept_adapters;
	VEC(PlanRecord) plans;
	Text literal, strings, kept;
	StrMap *interned;
	int64_t state_bytes, weights_bytes;
	uint64_t weights_hash;
} FormatWriter;
FormatWriter *format_writer_new(Arena *arena);
/* Frees the memory outside the arena of a writer that will not be finished. format_finish does the same. */
void format_writer_free(FormatWriter *w);
StrRef format_string(FormatWriter *w, const char *text); /* equal texts share a reference */
uint32_t format_dims(FormatWriter *w, int rank, const int64_t *dims);
uint32_t format_slot(FormatWriter *w, Slot slot); /* adds a slot; its number */
void format_info(FormatWriter *w, const char *key, const char *fmt, ...) PRINTF(3, 4);
/* Makes the blob, in the writer's arena, and sets *blob and *bytes. EXIT_UNSUPPORTED if a section has more records than a
 * reference can number; so no reference is ever truncated. */
Status format_finish(FormatWriter *w, void **blob, int64_t *bytes);

/* ---- read.c: checks every length, index, enum and range before first use. */
typedef struct {
	const FormatHeader *header;
	const InfoRecord *info;
	const int64_t *dims;
	const StateRecord *states;
	const Slot *slots;
	const Argument *arguments;
	const Instruction *instructions;
	const KernelRecord *kernels;
	const KernelArgument *kernel_arguments;
	const LibraryRecord *library;
	const CollectiveRecord *collectives;
	const BindingRecord *bindings;
	const TargetRecord *targets;
	const PortRecord *ports;
	const ProgramRecord *programs;
	const ExportRecord *exports;
	const uint8_t *literal;
	const char *strings;
	const AdapterRecord *adapters;
	const FourBitRecord *four_bit;
	const KeptAdapterRecord *kept_adapters;
	const uint8_t *kept;
	int n[N_SECTIONS];
	const PlanRecord *plans;
} Format;
/* blob must be 16-byte aligned and outlive *out. Exit code EXIT_SYSTEM on any fault. */
Status format_read(const void *blob, int64_t bytes, Format *out);
const char *format_text(const Format *f, StrRef s);
const ProgramRecord *format_program(const Format *f,
                                    const ProgramKey *key);    /* NULL: no such program */
const char *format_info_get(const Format *f, const char *key); /* NULL: no such key */
/* The key's value as a number; `otherwise` if the key is missing or its value is not a number. */
double format_info_double(const Format *f, const char *key, double otherwise);
/* false: the key is missing or has another value. */
bool format_info_is(const Format *f, const char *key, const char *value);
/* The bits, by Offload, of a list of words such as "optimizer,params". */
uint32_t offload_set(const char *list);
bool format_offloads(const Format *f,
                     Offload what); /* does the executable offload this kind of data? */
/* The weight whose codes the state holds; NULL: the state holds plain numbers. */
const FourBitRecord *format_four_bit(const Format *f, int state);
/* Type and shape of a state, or of the weight that its codes stand for. The dims are f->dims + first_dim. */
typedef struct {
	DType dtype;
	uint32_t rank, first_dim;
} FormatType;
FormatType format_weight_type(const Format *f, int state);
double format_adapter_scale(const Format *f,
                            const AdapterRecord *a); /* factor of the low-rank product */
int format_state(const Format *f, const char *name); /* index; -1: no such state */
int format_state_of_kind(const Format *f,
                         uint32_t kind); /* index of the first; -1: no such state */
/* false: the port has no axis with that many rows */
bool format_port_rows(const Format *f, const PortRecord *p, int64_t rows, PortRows *out);
static inline bool
port_is_input(uint32_t kind)
{
	return kind == PORT_INPUT || kind == PORT_LABELS || kind == PORT_WEIGHT;
}
/* The largest scratch of the plans for a GPU (NULL: for any GPU), aligned like device memory. 0: there are no plans. */
int64_t format_plan_bytes(const Format *f, const char *gpu);
/* The largest size that the region has in any program that training runs, for a target; target may be EVERY_TARGET. A region used in
 * turns counts once. Forward programs count only if there is no training: the regions grow when such a program is
 * run first. */
int64_t format_space_bytes(const Format *f, Space space, int target);
/* The memory that a run allocates for the region: the sum of all copies if the region is used in turns, 0 if the run
 * does not use the region. */
int64_t format_region_bytes(const Format *f, Space space, int target, const RunFacts *facts);
/* ---- share.c: the place of a slot's share in a run with these facts. `iteration` is the counter of the argument's loop.
 * false: a size overflows. */
typedef struct {
	int64_t offset, bytes;
	int64_t first; /* part: its offset in the kernel's argument, in bytes; else 0 */
} SlotPlace;
bool format_place(const Slot *s, const RunFacts *facts, int64_t iteration, SlotPlace *out);
/* The number of iterations of a LOOP, from its `what`. */
int64_t format_loop_count(uint32_t what, const RunFacts *facts);
/* The number of iterations of a launch whose last argument has this many bytes. false: the bytes end inside an iteration. */
bool format_launch_end(const Format *f, const KernelRecord *k, int64_t bytes, int64_t *end);
/* The number of ranks of a group, and this rank's number in it. */
typedef struct {
	int n, own;
} RunGroup;
RunGroup run_group(const RunFacts *facts, uint32_t group);
/* The RunOnly bits that hold for a run with these facts. The run has several ranks, or one rank in a sharded mode. */
uint32_t run_holds(const RunFacts *facts, bool ordered, bool staged);
/* The number of elements that a collective takes. */
int64_t format_collective_elements(const CollectiveRecord *c, const RunFacts *facts);
/* The bytes of a region that all slots in it need. INT64_MAX: too many. */
int64_t format_slots_bytes(const Format *f, Space space, const RunFacts *facts);
/* Is the state divided among ranks in this mode? */
static inline bool
state_is_sharded(const StateRecord *s, int mode)
{
	return s->sharded != MODE_DDP && s->sharded <= (uint32_t)mode;
}
/* The region that holds a rank's part of the state. */
static inline Space
state_space(const StateRecord *s)
{
	if (!s->offloaded)
		return SPACE_SHARD;
	return s->sharded == MODE_ZERO1 ? SPACE_OPTIMIZER : SPACE_OFFLOAD;
}
/* Returns the bytes of all rooms for parts in `space`; INT64_MAX: too many. at, unless NULL: an array by state, which is filled
 * with the offset of the state's room in its state_space, or -1 if the state is not divided. */
int64_t format_shard_places(const Format *f, const RunFacts *facts, Space space, int64_t *at);
/* The bytes of the state region in this mode. States that are not divided come first in the region. */
int64_t format_state_bytes(const Format *f, int mode);
bool format_has_mode(const Format *f, int mode); /* is there a program for the mode? */
/* The program that a run in the key's mode uses: the program of this mode, or if there is none, the program of MODE_DDP, which the
 * mode then does not change. NULL: there is no program, or the host runs its program for another target instead. */
const ProgramRecord *format_program_in(const Format *f, const ProgramKey *key);
/* Checks that every access of every program lies in its region, in a run with these facts. format_read has checked runs of
 * three ranks. */
Status format_check_world(const Format *f, const RunFacts *facts);

/* ---- read.c */
/* The device's number for an event, in the given turns. */
uint32_t format_event(uint32_t event, const uint8_t turns[N_TURNS]);
enum { N_DEVICE_EVENTS = IN_FLIGHT * N_SHARED_EVENTS + MAX_EVENTS };
/* The number of elements of dims [first_dim, first_dim + rank); the reader has checked the product for overflow. */
int64_t format_elements(const Format *f, uint32_t first_dim, uint32_t rank);
/* The groups of an EXPORT_CODES or EXPORT_SCALES; dims gets the permuted dimensions. */
Groups format_groups(const Format *f, const ExportRecord *e, int64_t dims[MAX_RANK]);

/* ---- estimate.c: nanoseconds that one core takes for one run. If the data fit a large CPU's caches, the time is several times
 * shorter. */
double kernel_estimate(const KernelRecord *k);
double program_estimate(const Format *f, const ProgramRecord *p);
/* The sum of `of` over the kernels that a run of one process launches. */
double program_sum(const Format *f, const ProgramRecord *p,
                   double (*of)(const KernelRecord *k, const void *context), const void *context);

/* ---- facts.c */
/* A hash of the facts that the code relies on: iterations, arguments, team. The hash detects damaged and mixed-up
 * files. It does not protect against attacks: an attacker who can forge the tables can forge the code, too. */
uint64_t kernel_facts(const KernelRecord *k, const KernelArgument *arguments);
/* The same for a plan: a hash of its call, the call's scratch limit and the plan's fields. strings: the string pool. */
uint64_t plan_facts(const LibraryRecord *library, const PlanRecord *p, const char *strings);

/* The last bytes of an executable. After the ELF image come the weights, padded to 4096 bytes, then this record. */
typedef struct {
	uint64_t magic;        /* FORMAT_MAGIC */
	int64_t offset, bytes; /* place of the weights in the file */
	int64_t blob_offset,
		blob_bytes; /* place of a copy of the tables, which `gradc dump EXE` reads without a linker */
} FormatTail;

/* ---- collective.c: the division of n elements among ranks, for the compiler's formulas, the executor's slots and the
 * communicators. */
typedef struct {
	int64_t first, n;
} CommPart;
/* The elements of a room, which holds any part: n / world, rounded up to whole blocks. */
int64_t comm_part_room(int64_t n, int world, int64_t block);
/* The part of a rank. Part c begins at c rooms. The last parts may be shorter, or empty. */
CommPart comm_part(int64_t n, int world, int rank, int64_t block);

/* ---- origin.c */
/* The names of the ONNX nodes that an instruction computes. Without such nodes, its origin's text or the kind of instruction. */
StringList origin_names(Arena *arena, const Format *f, const Instruction *n);
/* The ONNX nodes in two lists: nodes whose results the instruction computes, and nodes whose gradients it computes. Both lists
 * may be empty. */
typedef struct {
	StringList forward, gradients;
} OriginNodes;
OriginNodes origin_nodes(Arena *arena, const Format *f, const Instruction *n);
/* The first origin name, and the number of further names: "/fc/MatMul + 2". */
const char *origin_title(Arena *arena, const Format *f, const Instruction *n);

/* ---- print.c: the schedule and the memory plan as text for people. stage: "schedule" or "memory". */
void format_print(Text *out, const Format *f, const char *stage);
/* Prints "dot {x = f32[8,64] at 0, ...}", with the numbers of the arguments. */
void format_print_library(Text *out, const Format *f, uint32_t record);
/* Prints " for cpu-512" if there are several targets, else nothing. */
void format_print_target(Text *out, const Format *f, const ProgramRecord *p);

#endif
