/* The tables inside a training executable: what the compiler decided, as data. One flat blob:
 * a header, sections of fixed-size records, and a pool of strings. The writer is used by codegen,
 * the validating reader by the runtime and by `gradc dump EXE`. Little endian, no pointers. */
#ifndef GRADC_FORMAT_H
#define GRADC_FORMAT_H

#include "base/calls/library_call.h"
#include "base/numbers/numbers.h"

#define FORMAT_MAGIC 0x3158434441524721ull /* "!GRADCX1" */
#define FORMAT_VERSION 21
#define GRADC_ABI 14
#define GRADC_ABI_NAME "gradc_abi_14" /* a symbol of the runtime; a mismatch fails at link */
/* The hint about a model in training form, which gradc and its executables print. */
#define TRAINING_FORM_HINT                                                                                \
	"batch norms take the statistics of their batch and dropout is active: what evaluation computes " \
	"is the inference form"
#define GRADC_MODEL_NAME "gradc_model"

typedef uint32_t StrRef; /* offset in the string pool; 0 is "" */

/* What a program is for. */
typedef enum {
	ROLE_FORWARD, /* inputs -> graph outputs; what `run` and --once call */
	ROLE_EVAL, /* inputs, labels, weights -> adds to @loss.sum, @loss.count, @metric.correct */
	ROLE_ACCUMULATE, /* one micro-batch: adds to gradients and the loss states */
	ROLE_UPDATE,     /* optimizer step */
	ROLE_ESTIMATE,   /* as accumulate, with targets that are drawn from the model */
	ROLE_REFRESH,    /* what the optimizer makes of the gradients of an estimate */
	N_ROLES,
} Role;
extern const char *const role_names[];
enum {
	MODE_REPLICATED,
	FIRST_SHARDED, /* in which ranks have parts of what the optimizer keeps */
	N_MODES = 4
}; /* data-parallel modes, in the IR's order: ddp, zero1, zero2, zero3 */
extern const char *const mode_names[];
/* What of a rank's parts lies in the host's memory. */
typedef enum {
	OFFLOAD_OPTIMIZER,   /* what the optimizer keeps and reads: moments, masters, gradients */
	OFFLOAD_PARAMS,      /* weights, of ZeRO-3 */
	OFFLOAD_ACTIVATIONS, /* and in any mode, what the forward pass makes for the backward pass */
	N_OFFLOADS,
} Offload;
extern const char *const offload_names[];

/* An entry of the program table is told by all of these. */
typedef struct {
	Role role;
	int binding; /* of the open dimensions */
	int stage;   /* of the pipeline */
	int mode;    /* how ranks share states */
	int target;  /* who runs it */
} ProgramKey;
enum { MAX_TARGETS = 32, EVERY_TARGET = -1 };

/* Of some regions there are two, used by turns: while the device computes on one, the host fills the other. */
typedef enum {
	TURN_NONE,
	TURN_MICRO, /* changes with each micro-batch */
	TURN_STEP,  /* with each step */
	N_TURNS,
} Turn;
/* In which runs an instruction or a region has a meaning: bits, all of which must hold. Found once, at start. */
typedef enum {
	ONLY_ALWAYS = 0,
	ONLY_APART = 1,     /* the device's memory is not the host's */
	ONLY_RANKS = 2,     /* there are several */
	ONLY_STAGED = 4,    /* several ranks whose communicator cannot read the device's memory */
	ONLY_ORDERED = 8,   /* several ranks; the schedule adds up, in their order */
	ONLY_FAST = 16,     /* several ranks; their communicator adds up */
	ONLY_REPLICAS = 32, /* several groups of ranks have all parts of the states each */
	ONLY_PEERS = 64,    /* other ranks have parts, too */
	ONLY_ALONE = 128,   /* one rank has all parts */
	ONLY_DIRECT = 256,  /* several ranks whose communicator reads the device's memory; or one */
	N_ONLY = 512,
} RunOnly;
extern const char *const only_names[]; /* of the bits */
/* What decides that, and how what is shared is divided. */
typedef struct {
	uint32_t holds; /* RunOnly */
	int ranks, rank;
	int shard_ranks, shard_rank; /* of those that have all parts together; 0: all ranks do */
	int mode; /* how ranks share states; but for MODE_REPLICATED a run of one rank has ONLY_RANKS, too */
	const int64_t *
		shard_at; /* by state: where this rank's part lies in state_space; NULL: nothing is divided */
} RunFacts;
static inline bool
only_applies(uint32_t only, const RunFacts *facts)
{
	return (only & ~facts->holds) == 0;
}
extern const RunFacts run_alone; /* one process, on the host's processors */

/* Regions of memory. The twins of io and step are the host's side of them; where the device's memory is the host's,
 * they are io and step themselves. */
typedef enum {
	SPACE_STATE,     /* what outlives programs, at offsets fixed by name */
	SPACE_WORKSPACE, /* the values of a run, by liveness */
	SPACE_IO,        /* of a micro-batch: scalars, inputs, outputs */
	SPACE_STEP,      /* of an update: scalars, results */
	SPACE_IO_HOST,
	SPACE_STEP_HOST,
	SPACE_PINNED,    /* what travels, for communicators that cannot read the device's memory */
	SPACE_GATHERED,  /* what other ranks have sent */
	SPACE_SHARD,     /* this rank's rooms of what ranks share */
	SPACE_OFFLOAD,   /* and of that what lies in the host's memory: StateRecord.offloaded */
	SPACE_OPTIMIZER, /* and of that what only programs of the host touch */
	SPACE_HOST,      /* what lies in the host's memory and not in the device's */
	N_SPACES,
} Space;
typedef struct {
	const char *name;
	Turn turn;
	RunOnly only; /* which runs have such a region */
	bool on_host; /* in memory that the host reads and writes */
	bool by_slots; /* as large as its slots need, for so many ranks; else planned for each program */
	Space twin; /* the host's side of it, where the memory is apart; itself: it has none */
} SpaceRow;
extern const SpaceRow space_table[N_SPACES];

typedef enum {
	RUN_KERNEL,
	COPY,
	FILL_ZERO,
	COLLECTIVE,
	RECORD,
	WAIT,
	LOOP,   /* `what` times what stands before its END */
	BRANCH, /* what stands before its END, where its argument, a bool, is `what` */
	LEAVE,  /* goes behind the END of the LOOP around where its argument, a bool, is false */
	END,
	N_INSTRUCTIONS
} InstructionKind;
extern const char *const instruction_names[];
/* Does an END close it? Such blocks are the levels that Argument.loop counts. */
static inline bool
instruction_opens(InstructionKind kind)
{
	return kind == LOOP || kind == BRANCH;
}
/* The host waits for the number that decides. */
static inline bool
instruction_asks(InstructionKind kind)
{
	return kind == BRANCH || kind == LEAVE;
}

/* Instructions on one stream run in order; on two, only RECORD and WAIT order them. Data come in while results of
 * the step before go out: hence two streams of copies. */
typedef enum {
	STREAM_COMPUTE,
	STREAM_COPY_IN,
	STREAM_COPY_OUT,
	STREAM_COMMUNICATION,
	N_STREAMS,
} Stream;
extern const char *const stream_names[];

/* Events that outlive a program's run; of each there is one for each turn. A program's own are numbered behind them. */
typedef enum {
	EVENT_IO_FILLED,   /* copy in: the micro-batch's scalars and inputs are on the device */
	EVENT_IO_FREE,     /* compute: they have been read, and outputs are complete */
	EVENT_STEP_FILLED, /* copy in: the update's scalars are on the device */
	EVENT_STEP_FREE,   /* compute: the update is done */
	EVENT_REPORT,      /* copy out: its results are in the host's memory */
	N_SHARED_EVENTS,
} SharedEvent;
typedef struct {
	const char *name;
	Turn turn;
	Stream stream; /* that records it */
} EventRow;
extern const EventRow event_table[N_SHARED_EVENTS];

/* DESIGN section 3: first stores gradients, later adds, last sees the whole step. */
typedef enum { RUN_ALWAYS, RUN_FIRST, RUN_LATER, RUN_LAST, N_WHEN } RunWhen;
extern const char *const when_names[];
enum { N_PHASES = 4 };
extern const char *const phase_names[];

/* What a schedule may ask of a device. */
enum { MAX_STAGES = 1 << 20 };
enum { MAX_STREAMS = 8, MAX_EVENTS = 1 << 16, MAX_LOOPS = 8, MAX_ITERATIONS = 1 << 20 };

/* A kernel over parts [begin, end) of the product of its parallel loops. */
typedef void (*KernelFn)(void *const *buffers, const Scalar *scalars, int64_t begin, int64_t end);
/* What the code of a kernel is, and what it was printed from: kernel_facts of its record. Tables that say something else of
 * the kernel are not those of this code. */
typedef struct {
	KernelFn run; /* NULL: no program for the image's target launches it */
	uint64_t facts;
} KernelCode;
/* All kernels of the tables as one compiler run made them, for the machines that have those features. */
typedef enum {
	IMAGE_FUNCTIONS, /* data: KernelCode of this process, `size` of them, by the tables' numbers */
	IMAGE_BYTES, /* data: `size` bytes for a device to load; for a GPU a bundle (bundle.c), 8-byte aligned */
	N_IMAGE_KINDS,
} ImageKind;
typedef struct {
	const char *name;     /* "native", "x86-64-v3"; NULL ends a list */
	const char *features; /* what it must have, as words (base/cpu_feature_list.def) */
	int64_t kind;         /* ImageKind */
	const void *data;
	int64_t size;
	int64_t target; /* whose programs it runs: of the tables' targets */
} CodeImage;
/* What the compiler made of a model: gradc_model in an executable, gradc_model_NAME in a library. */
typedef struct {
	int64_t abi;      /* GRADC_ABI of the compiler */
	const void *blob; /* the tables, 16-byte aligned */
	int64_t bytes;
	const CodeImage *images; /* the best that this CPU can run is used */
	const char *file;        /* with the weights behind it; NULL: the one that holds the blob */
} GradcModel;

/* What ranks do together. n counts elements; of W members rank c has part c of them (collective.c). */
typedef enum {
	COMM_ALL_REDUCE,     /* everybody's n, reduced, to everybody */
	COMM_ALL_GATHER,     /* everybody's own part, to everybody: n */
	COMM_REDUCE_SCATTER, /* everybody's n, reduced, to each its part */
	COMM_ALL_TO_ALL, /* part c of everybody's n to rank c, which has room for W whole parts */
	COMM_BROADCAST,  /* n of one rank, to everybody */
	COMM_SEND,       /* n to one rank */
	COMM_RECV,
	N_COLLECTIVES
} CollectiveKind;
extern const char *const collective_names[];
typedef enum { COMM_SUM, COMM_MAX, N_COMM_REDUCTIONS } CommReduction;
extern const char *const comm_reduction_names[];
/* Which ranks: those that differ in their place along some axes of the mesh and agree in all others. */
typedef enum {
	GROUP_WORLD, /* all */
	GROUP_DATA,  /* other rows, the same model: shard times replicate */
	GROUP_SHARD,
	GROUP_REPLICATE,
	GROUP_TENSOR,
	GROUP_PIPELINE,
	N_GROUPS
} CommGroup;
extern const char *const comm_group_names[];

/* ---- records */
typedef struct {
	uint16_t kind;  /* InstructionKind */
	uint8_t stream; /* Stream */
	uint8_t when;   /* RunWhen */
	uint32_t what;  /* kernel, collective, event, loop count */
	uint32_t args;  /* first in the argument table */
	uint16_t n_args;
	uint16_t phase; /* 0 none, 1 forward, 2 backward, 3 update */
	StrRef origin; /* where it comes from: fused("/a", grad("/b")); of a shared kernel, this run's */
	uint32_t only; /* RunOnly */
} Instruction;

typedef struct {
	uint32_t slot;
	uint32_t loop;  /* 0: none; else the level of the LOOP that advances it */
	int64_t stride; /* bytes an iteration; below 0: towards the beginning */
} Argument;

/* What of a slot's elements is meant. Ranks divide them as comm_part does, in whole blocks; a room holds the largest
 * part. The numbers of a slot are of the whole; how much memory it takes is known when the world is. */
typedef enum {
	SLOT_WHOLE,
	SLOT_PART,         /* this rank's, where it lies in the whole */
	SLOT_ROOMS,        /* one room for each rank's version of this rank's part */
	SLOT_FIRST_ROOM,   /* that of rank 0 */
	SLOT_SECOND_ROOM,  /* that of rank 1 */
	SLOT_LATER_ROOM,   /* that of rank 2 + the loop's counter */
	SLOT_BEHIND_ROOMS, /* this rank's part, alone, behind the rooms of all ranks */
	N_SLOT_SHARES,
} SlotShare;
extern const char *const share_names[];
/* A place in memory. */
typedef struct {
	uint32_t space; /* Space */
	uint32_t dtype;
	int64_t offset, bytes; /* in a state_space offset is 0: RunFacts.shard_at has the place */
	/* Of a part that a kernel takes: bytes of the kernel's argument in front of the whole that this is a part of. The launch
	 * runs the iterations that take the part. */
	int64_t before;
	StrRef name;    /* of the value or its ONNX origin */
	uint32_t share; /* SlotShare */
	uint32_t block; /* elements that parts are multiples of; 0: of a whole */
	uint32_t group; /* CommGroup: which ranks share it */
	uint32_t state; /* in a state_space: 1 + the state whose part it is; else 0 */
	uint32_t mode;  /* of its program */
	uint32_t only;  /* RunOnly: which runs touch it */
} Slot;

/* What a kernel, or the library in its place, does with one of its arguments. */
enum { ACCESS_READ = 1, ACCESS_WRITE = 2 };
typedef struct {
	int64_t bytes; /* from its first on, and no others, it may touch */
	uint32_t dtype;
	uint32_t access; /* 0: none, another kernel has read it */
	int64_t each; /* iteration i touches bytes [i * each, (i + 1) * each) alone; 0: it may touch more */
} KernelArgument;

typedef struct {
	StrRef name;      /* "k12", also its symbol */
	uint32_t targets; /* bit t: programs for target t launch it, whose images have its code */
	uint32_t first_argument; /* in the table of kernels' arguments */
	uint32_t n_arguments;    /* a launch has as many */
	int64_t iterations;      /* of the parallel loops, their product */
	int64_t grain;           /* smallest useful part of it */
	int64_t elements; /* that the iterations divide evenly; a launch runs as many as its last argument's part has. 0: all */
	int64_t flops, bytes; /* of one run */
	int64_t shared_bytes; /* of the arrays of one team */
	uint32_t team;        /* members; 1: no team */
	uint32_t library;     /* 1 + what a library can do instead; 0: nothing */
	uint32_t
		serves; /* 1 + the kernel that reads what this one makes: where a library runs that, this is left
	                       * out; 0: none */
	uint32_t reads_scalars; /* 1: its program has a block of them */
} KernelRecord;
/* Threads of a block whose kernel has no team: each of them runs a part. */
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

/* Shared memory of a GPU's block: up to so much is the kernel's own, more is asked for by the launch, and then all of it. */
enum { MOST_OWN_SHARED = 48 << 10 };
static inline int64_t
launch_shared_bytes(int64_t shared_bytes)
{
	return shared_bytes > MOST_OWN_SHARED ? shared_bytes : 0;
}

/* What a library may do in place of a kernel's loops, on its arguments. */
typedef struct {
	LibraryCall call;
	int64_t scratch_limit; /* bytes; where the library wants more, the loops run */
} LibraryRecord;

/* How a library runs a call on a GPU of that kind, found when the model was compiled. Another version of the library, another GPU: it
 * looks for a way itself, when training starts. */
typedef struct {
	uint32_t library;                /* whose call: which record */
	StrRef gpu;                      /* what it was made for: "NVIDIA H100 80GB HBM3" */
	uint32_t capability, processors; /* of that GPU: 90 is compute capability 9.0 */
	StrRef version;                  /* of the library: "cuDNN 9.28.1" */
	StrRef text;     /* in the library's words, which mean something to it alone */
	int64_t scratch; /* bytes */
	uint64_t facts;  /* plan_facts: the library would believe other words */
} PlanRecord;

/* A collective. Arguments: to, from; they may be one slot. Then what stands in for each in the host's memory, where the
 * communicator cannot read the device's. */
typedef struct {
	uint32_t kind;  /* CollectiveKind */
	uint32_t group; /* CommGroup */
	uint32_t dtype;
	uint32_t reduction; /* CommReduction */
	int64_t n;          /* elements of the whole */
	uint32_t peer;  /* of broadcast, send, recv: the other rank, as the group counts; else 0 */
	uint32_t block; /* elements that parts are multiples of */
	uint32_t
		of_part; /* 1: of n it takes this rank's part, among those that have all parts of a state */
	uint32_t reserved;
} CollectiveRecord;
/* `what` of a LOOP: once for each rank but the first two; of those that have all parts of a state. */
enum { LOOP_LATER_RANKS = -1, LOOP_LATER_SHARDS = -2 };

/* Who runs programs: what their kernels were lowered for, "cpu-512". */
typedef struct {
	StrRef name;
} TargetRecord;

typedef struct {
	uint32_t role, binding, stage, mode, target; /* as in ProgramKey */
	uint32_t
		on_host; /* 1: beside a device with programs of another target the host's processors run it */
	uint32_t first_instruction, n_instructions;
	uint32_t first_input, n_inputs; /* in the port table */
	uint32_t first_output, n_outputs;
	uint32_t
		scalars; /* 1 + the slot of the block that its kernels read, SCALARS_BYTES; 0: none reads one */
	uint32_t n_events;       /* of its own */
	int64_t bytes[N_SPACES]; /* of each region; of the states', 0 */
	int64_t flops;
} ProgramRecord;
enum { SCALARS_BYTES = N_SCALARS * sizeof(Scalar) };

typedef enum {
	PORT_INPUT,  /* a graph input, fed from --data, --tokens, --fill */
	PORT_LABELS, /* the target of the loss */
	PORT_WEIGHT, /* f32 or f64 [rows]: 1 for a real row, 0 for padding; hidden from users */
	PORT_OUTPUT,
	PORT_GRADIENT, /* of the input of this name: an output of accumulate */
	PORT_LOSS_SUM, /* of update: what it decided by */
	PORT_LOSS_COUNT,
	PORT_NORM, /* of update: of all gradients */
	/* Of update with a loss scale that changes: the one that this step had; 1 where parameters were updated; 1 where they never will be
	 * again. Numbers of f64. */
	PORT_LOSS_SCALE,
	PORT_MADE,
	PORT_FAILED,
	N_PORT_KINDS,
} PortKind;
extern const char *const port_kind_names[];
/* An input or output of a program. */
typedef struct {
	StrRef name;
	uint32_t kind; /* PortKind */
	uint32_t dtype, rank;
	uint32_t first_dim; /* in the dims table */
	uint32_t slot;
	uint32_t file_dtype; /* as the ONNX file declares it (f32 in an f64 program) */
	int32_t sample_axis; /* axis of the rows; -1: not per sample */
	/* Values outside [min, max] or other than `ignore` are exit 6: labels and token ids. */
	int64_t min, max, ignore;
	uint32_t bounded; /* 1: min..max applies; 2: and ignore is allowed besides */
	uint32_t reserved;
} PortRecord;

/* Values of StateRecord.kind, lifetime and init: the IR's enums in the same order, under names of
 * their own because codegen sees both. */
enum {
	SAVE_PARAMETER,
	SAVE_STATISTIC,
	SAVE_MOMENT,
	SAVE_GRADIENT,
	SAVE_LOSS_SUM,
	SAVE_LOSS_COUNT,
	SAVE_CORRECT,
	SAVE_UNIT,
	SAVE_CONSTANT,
	SAVE_PENDING,
	SAVE_UPDATES,
	SAVE_FAILED,
	SAVE_LOSS_SCALE,
	SAVE_GOOD_STEPS,
	SAVE_HYSTERESIS,
	SAVE_NUMBER,
	SAVE_WORKING,
	SAVE_AVERAGE,
	N_SAVE_KINDS
};
enum { LASTS_SAVED, LASTS_STEP, LASTS_DERIVED, LASTS_CONSTANT, N_LASTS };
enum { FROM_ZEROS, FROM_ONES, FROM_DATA, FROM_NORMAL, FROM_UNIFORM, FROM_COPY, N_FROM };
typedef struct {
	StrRef name;
	StrRef why; /* for the table */
	uint32_t dtype, rank, first_dim;
	uint32_t kind;     /* SAVE_PARAMETER ... */
	uint32_t lifetime; /* saved, step, derived, constant */
	uint32_t trainable, decay;
	uint32_t init; /* zeros, ones, data, normal, uniform, copy: of the state `of`, converted */
	uint32_t of;   /* state index + 1 of the parameter or unit; 0: none */
	uint32_t unit; /* state index + 1 of the unit it lies in; 0: none */
	double lr_scale, init_a, init_b;
	int64_t offset, bytes; /* in the state region */
	/* Of its initial data in the weights (tail or file), where they lie as in the region, up to whole pages; -1:
	 * none. */
	int64_t data_offset;
	uint32_t file_dtype; /* dtype in the ONNX file */
	uint32_t number;     /* of a moment: which of the optimizer's */
	StrRef path;         /* another name, of the module that reads it; "": none */
	StrRef parameter; /* what it is of the module that was exported: "lm_head.weight"; "": not known */
	uint32_t transposed; /* a matrix, the transpose of that one */
	uint32_t
		sharded; /* the first mode in which ranks hold parts of it; MODE_REPLICATED: none */
	uint32_t
		block; /* elements that its parts are multiples of; 0: it is divided with its unit, or as its units are */
	uint32_t offloaded; /* 1: its parts lie in the host's memory */
} StateRecord;
extern const char *const state_kind_names[];
extern const char *const lifetime_names[];
extern const char *const init_names[];

/* One binding of the open dimensions: "batch=8 seq=64". */
typedef struct {
	StrRef text;
	uint32_t reserved;
	int64_t rows; /* samples in a micro-batch */
} BindingRecord;

/* A line of `--info`: name and value as text. */
typedef struct {
	StrRef key, value;
} InfoRecord;

/* The exported model is literal bytes with holes. */
typedef enum {
	EXPORT_LITERAL, /* bytes [offset, offset+bytes) of the literal section */
	EXPORT_TENSOR, /* state `state` as dtype, its axes permuted: out axis i = state axis perm[i]; each
	                  `block` of its elements, then `times` times again */
	EXPORT_CODES, /* state `state`, its axes permuted, as codes of dtype: base.h's dtype_quantize, by a scale for
	                 each group of group[i] places along the permuted axes */
	EXPORT_SCALES, /* the scales of such codes, f32, which have no state of scales */
	EXPORT_RANGE_SCALE, /* f32: the scale of codes of dtype for the range from state `state` to state `high` */
	EXPORT_RANGE_ZERO, /* their zero point, as dtype */
	EXPORT_FACTORS, /* of the adapter of state `state`, a weight: magnitude / norm for each output, as dtype */
	EXPORT_NAME,   /* file name of the external data: basename of FILE + ".data" */
	EXPORT_LENGTH, /* 5-byte padded varint of base + times * length of that name */
	EXPORT_ALIGN,  /* zeros up to a multiple of `bytes` */
	N_EXPORT_KINDS,
} ExportKind;
#define NO_SCALE UINT32_MAX
typedef struct {
	uint32_t kind;         /* ExportKind */
	uint32_t file;         /* 0: FILE.onnx, 1: FILE.onnx.data */
	int64_t offset, bytes; /* literal; length: offset = base */
	uint32_t state, dtype, times, rank;
	int64_t block; /* elements; divides the state's */
	uint8_t perm[MAX_RANK];
	uint32_t
		scale; /* codes: a state of as many elements as there are groups; NO_SCALE: by base.h's
	                   quantization_of_groups of the very numbers. Ranges: a state that is added to their
	                   scale or zero point; NO_SCALE: none */
	uint32_t high; /* ranges */
	int64_t zero;  /* codes: offset of as many s32 in the literal section; -1: all are 0 */
	int64_t group[MAX_RANK]; /* codes */
	double least; /* a scale below counts as that, here and where it is written; 0: none does. Of ranges, too */
	uint32_t of; /* ExportedModel: whose part it is */
	uint32_t reserved;
} ExportRecord;
/* The models that can be written: with adapters as branches, and merged into their weights. Without adapters there is the
 * first alone. */
typedef enum { EXPORTED_TRAINED, EXPORTED_MERGED, N_EXPORTED } ExportedModel;

/* Values of AdapterRecord.readers: the IR's AdapterReaders in the same order. */
enum { READ_BY_PRODUCTS, READ_BY_TABLES, READ_BY_BOTH, N_READ_BY };
/* A low-rank product beside a weight, as ir.h's Adapter has it: states weight[.., outputs along axis, ..], a of its shape with the
 * rank along axis, b [outputs, rank]. */
typedef struct {
	uint32_t weight, a, b, axis;
	uint32_t readers; /* READ_BY_... */
	uint32_t rslora;
	uint32_t
		magnitude; /* state index + 1, [outputs]: rows of the sum are scaled to it; 0: they are not */
	uint32_t pissa; /* the weight lacks what a and b began as */
	double alpha;
	/* The modules that read the weight, as PEFT calls them: of products, and of a table; "": there is none, or it is not known. */
	StrRef product, table;
	int64_t base; /* a hash of the weight's numbers in the file; 0: not known */
} AdapterRecord;

/* A weight kept as numbers of 4 bits, as ir.h's FourBitWeight has it. */
typedef struct {
	uint32_t codes, absmax;          /* states */
	uint32_t nested, offset;         /* state index + 1; 0: absmax is f32 */
	uint32_t kind;                   /* FourBit */
	uint32_t dtype, rank, first_dim; /* the weight's */
	uint32_t axis, reserved;
} FourBitRecord;

/* The two files of an adapter that goes along under a name, as PEFT writes them: bytes of SECTION_KEPT. */
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
	SECTION_PLANS, /* left out where there are none */
	N_SECTIONS,
} Section;

typedef struct {
	uint64_t magic;
	uint32_t version, n_sections;
	int64_t bytes;         /* of the whole blob */
	int64_t state_bytes;   /* of the state region */
	int64_t weights_bytes; /* of the tail or the --weights file */
	uint64_t weights_hash; /* hash_bytes over them, seed 0 */
	struct {
		int64_t offset, count;
	} sections[N_SECTIONS];
} FormatHeader;

/* ---- write.c: the sections are filled as vectors, then laid out. */
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
FormatWriter *
format_writer_new(Arena *arena);          /* format_finish frees what it holds outside the arena, */
void format_writer_free(FormatWriter *w); /* and so does this, of one that is not finished */
StrRef format_string(FormatWriter *w, const char *text); /* equal texts share a reference */
uint32_t format_dims(FormatWriter *w, int rank, const int64_t *dims);
uint32_t format_slot(FormatWriter *w, Slot slot); /* its number */
void format_info(FormatWriter *w, const char *key, const char *fmt, ...) PRINTF(3, 4);
/* The blob, allocated in the writer's arena. EXIT_UNSUPPORTED where a section has more records than a reference can
 * number: so no reference was cut. */
Status format_finish(FormatWriter *w, void **blob, int64_t *bytes);

/* ---- read.c: checks every length, index, enum and range before its first use. */
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
/* blob must be 16-byte aligned and outlive *out. exit code EXIT_SYSTEM on any fault. */
Status format_read(const void *blob, int64_t bytes, Format *out);
const char *format_text(const Format *f, StrRef s);
const ProgramRecord *format_program(const Format *f, const ProgramKey *key); /* NULL: none */
const char *format_info_get(const Format *f, const char *key);               /* NULL: not there */
/* A number; `otherwise` where the key is not there, or its value is no number. */
double format_info_double(const Format *f, const char *key, double otherwise);
bool format_info_is(const Format *f, const char *key,
                    const char *value); /* false: not there, too */
/* Of a list of words, "optimizer,params": bits by Offload; that of the executable. */
uint32_t offload_set(const char *list);
bool format_offloads(const Format *f, Offload what);
const FourBitRecord *format_four_bit(const Format *f,
                                     int state); /* whose codes it holds; NULL: numbers */
/* What a state holds, or its codes stand for: dims are f->dims + first_dim. */
typedef struct {
	DType dtype;
	uint32_t rank, first_dim;
} FormatType;
FormatType format_weight_type(const Format *f, int state);
double format_adapter_scale(const Format *f, const AdapterRecord *a); /* that the product has */
int format_state(const Format *f, const char *name);                  /* index; -1: none */
int format_state_of_kind(const Format *f, uint32_t kind);             /* the first; -1: none */
static inline bool
port_is_input(uint32_t kind)
{
	return kind == PORT_INPUT || kind == PORT_LABELS || kind == PORT_WEIGHT;
}
/* The most scratch of any plan for that GPU, as memory is aligned; NULL: for any GPU. 0: there are no plans. */
int64_t format_plan_bytes(const Format *f, const char *gpu);
/* The maximum over the programs for a target, or EVERY_TARGET; where there are two for the turns, of one. */
int64_t format_space_bytes(const Format *f, Space space, int target);
/* What a run takes for it: twice that where it is used by turns, nothing where a run of that kind has no use for it. */
int64_t format_region_bytes(const Format *f, Space space, int target, const RunFacts *facts);
/* ---- share.c: a slot's place and bytes in a world; `iteration` of the loop that its argument counts. False: more bytes
 * than there can be. */
typedef struct {
	int64_t offset, bytes;
	int64_t first; /* bytes of a kernel's argument in front of it; of what is no part 0 */
} SlotPlace;
bool format_place(const Slot *s, const RunFacts *facts, int64_t iteration, SlotPlace *out);
/* How often a LOOP runs, of its `what`. */
int64_t format_loop_count(uint32_t what, const RunFacts *facts);
/* How many iterations a launch has whose last argument has so many bytes. False: they cannot be cut so. */
bool format_launch_end(const Format *f, const KernelRecord *k, int64_t bytes, int64_t *end);
/* The ranks of a group, and which of them this one is. */
typedef struct {
	int n, own;
} RunGroup;
RunGroup run_group(const RunFacts *facts, uint32_t group);
/* What holds (RunOnly) of a run that shares by these facts: of several ranks, or of one in a mode in which ranks have parts. */
uint32_t run_holds(const RunFacts *facts, bool ordered, bool staged);
/* Elements that a collective takes. */
int64_t format_collective_elements(const CollectiveRecord *c, const RunFacts *facts);
/* What all its slots need of a region. INT64_MAX: too much. */
int64_t format_slots_bytes(const Format *f, Space space, const RunFacts *facts);
/* Do ranks hold parts of it in that mode? */
static inline bool
state_is_sharded(const StateRecord *s, int mode)
{
	return s->sharded != MODE_REPLICATED && s->sharded <= (uint32_t)mode;
}
/* Where a rank's parts of it lie. */
static inline Space
state_space(const StateRecord *s)
{
	if (!s->offloaded)
		return SPACE_SHARD;
	return s->sharded == FIRST_SHARDED ? SPACE_OPTIMIZER : SPACE_OFFLOAD;
}
static inline bool
space_has_parts(uint32_t space)
{
	return space == SPACE_SHARD || space == SPACE_OFFLOAD || space == SPACE_OPTIMIZER;
}
/* Does it stand in for the device's memory? */
static inline bool
space_is_offload(uint32_t space)
{
	return space == SPACE_OFFLOAD || space == SPACE_OPTIMIZER || space == SPACE_HOST;
}
/* Where the rooms for parts lie, each in its state_space, by state; -1: it has none. NULL: nobody asks. The bytes of those in
 * `space`. INT64_MAX: too much. */
int64_t format_shard_places(const Format *f, const RunFacts *facts, Space space, int64_t *at);
int64_t format_state_bytes(const Format *f,
                           int mode);            /* of the region: what is whole comes first */
bool format_has_mode(const Format *f, int mode); /* some program is for it */
/* The program that a run in that mode takes: where nothing is divided, that of MODE_REPLICATED. NULL: there is none, or the
 * host runs one for another target. */
const ProgramRecord *format_program_in(const Format *f, const ProgramKey *key);
/* Every access of every program of a run in this world lies in its region. format_read has checked worlds of three. */
Status format_check_world(const Format *f, const RunFacts *facts);
/* As a device numbers it, in a run of that turn. */
uint32_t format_event(uint32_t event, const uint8_t turns[N_TURNS]);
enum { N_DEVICE_EVENTS = 2 * N_SHARED_EVENTS + MAX_EVENTS };
/* Elements of dims [first, first+rank); the reader has checked that they do not overflow. */
int64_t format_elements(const Format *f, uint32_t first_dim, uint32_t rank);
/* Of an EXPORT_CODES or EXPORT_SCALES; dims: where its permuted dimensions are put. */
Groups format_groups(const Format *f, const ExportRecord *e, int64_t dims[MAX_RANK]);

/* ---- estimate.c: nanoseconds that a core takes for one run; in the caches of a large one several times less. */
double kernel_estimate(const KernelRecord *k);
double program_estimate(const Format *f, const ProgramRecord *p);

/* ---- facts.c */
/* A hash of what the code relies on: iterations, arguments, team. It tells damage and mixed-up files, not malice: who can
 * forge tables can forge code. */
uint64_t kernel_facts(const KernelRecord *k, const KernelArgument *arguments);
/* Likewise of a plan: its call, its limit and all that it says, in texts of that pool. */
uint64_t plan_facts(const LibraryRecord *library, const PlanRecord *p, const char *strings);

/* The tail behind the ELF image: weights, padded to 4096, then this, at the end of the file. */
typedef struct {
	uint64_t magic;        /* FORMAT_MAGIC */
	int64_t offset, bytes; /* of the weights in the file */
	int64_t blob_offset,
		blob_bytes; /* a copy of the tables, so that `gradc dump EXE` needs no linker */
} FormatTail;

/* ---- collective.c: how n elements are divided among ranks: the compiler's formulas, the executor's slots and the
 * communicators have it from here. */
typedef struct {
	int64_t first, n;
} CommPart;
/* Room for any part: n / world, rounded up to whole blocks of elements. */
int64_t comm_part_room(int64_t n, int world, int64_t block);
/* Part c begins at c rooms. The last parts may be shorter, or empty. */
CommPart comm_part(int64_t n, int world, int rank, int64_t block);

/* ---- origin.c */
/* The names of the ONNX nodes that it computes; where there are none, what it is. At least one. */
StringList origin_names(Arena *arena, const Format *f, const Instruction *n);
/* The same, apart: nodes whose results it computes, and nodes through which it takes a gradient. Both may be empty. */
typedef struct {
	StringList forward, gradients;
} OriginNodes;
OriginNodes origin_nodes(Arena *arena, const Format *f, const Instruction *n);
/* The first of them, and how many more there are: "/fc/MatMul + 2". */
const char *origin_title(Arena *arena, const Format *f, const Instruction *n);

/* ---- print.c: the schedule and the memory plan for people. stage: "schedule" or "memory". */
void format_print(Text *out, const Format *f, const char *stage);
/* "dot {x = f32[8,64] at 0, ...}", with numbers of arguments. */
void format_print_library(Text *out, const Format *f, uint32_t record);
/* " for cpu-512" where programs are for several targets, else nothing. */
void format_print_target(Text *out, const Format *f, const ProgramRecord *p);

#endif
