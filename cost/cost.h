/* Describes machines (GPUs) as tables of numbers, and predicts the time of a training step on
 * such a machine from an executable's list of instructions. docs/cost-model.md derives the
 * formulas. */
#ifndef GRADC_COST_COST_H
#define GRADC_COST_COST_H

#include "format/format.h"

/* The type in which operands are multiplied; a machine has separate arithmetic units, with a
 * rate of their own, for each type. */
typedef enum {
	MATH_F32, /* also the type of kernels made of loops, unless they compute in f64 */
	MATH_F64,
	MATH_TF32, /* f32, rounded to 10 bits of mantissa */
	MATH_16_BITS,
	MATH_8_BITS,
	N_MATHS,
} Math;

extern const char *const math_names[]; /* "f32", "f64", "tf32", "16", "8" */

/* How fast a library's products are. */
typedef struct {
	double peak;    /* FLOP/s */
	double reached; /* fraction of the peak that the main loop of a library's kernels reaches */
	/* cost of starting and finishing a tile, in elements of k */
	double begin_k;
	double transposed; /* factor of the speed where the first operand's rows are the sum's axis */
	/* bytes: factor of the speed where operands are less aligned */
	int64_t alignment;
	double unaligned;
} ProductRate;

/* Numbers of the formulas in predict.c that no datasheet has: fitted to measured launches by bench/gpu/fit.py, but for
 * cached_bytes, which was found by hand. */
typedef struct {
	double cached_bytes;  /* launches that move less find their bytes in the cache */
	double start_seconds; /* of a kernel of loops */
	double overlap; /* of memory, instructions and steps: 1: their times add up; large: the longest counts */
	double step_seconds;     /* of a step of a part */
	double cached_step;      /* fraction of step_seconds, where the bytes are in the cache */
	double alone_slowdown;   /* of instructions, where a processor holds a single block */
	double tile_reached;     /* fraction of the peak, of matrix products in generated loops */
	double call_seconds;     /* of a library's product */
	double call_overlap;     /* as overlap, of a product's memory traffic and arithmetic */
	double split_seconds;    /* to add up the parts of a sum that the library cuts */
	double unaligned_memory; /* fraction of the memory's rate, where operands are not aligned */
} CostFit;

/* Rates are in bytes/s or FLOP/s, times in seconds. */
typedef struct {
	/* number of multiprocessors, and how many blocks and threads one multiprocessor holds at
	 * the same time */
	int processors;
	int most_blocks, most_threads;
	/* how many threads a multiprocessor needs to reach the memory's full rate */
	int busy_threads;
	/* how many threads it needs to reach the arithmetic units' full rate, if each thread
	 * computes several sums */
	int sum_threads;
	/* shared_bytes: shared memory of a multiprocessor; block_shared_bytes: what a block takes
	 * of it in addition to its arrays */
	int64_t shared_bytes, block_shared_bytes;
	double cache_rate;         /* of the last-level cache, which all multiprocessors share */
	double loop_rate[N_MATHS]; /* rate of generated code, for f32 and f64 */
	double sync_reached; /* fraction of a product's peak that instructions of one warp reach (mma.sync) */
	ProductRate products[N_MATHS];
	const CostFit *fit;
	bool measured; /* launches of such a chip were measured: `fit` is its own */
} Chip;

typedef struct {
	const char *name;  /* name for --machine */
	const char *title; /* the vendor's name */
	/* how CUDA's names of such a GPU begin, as "NVIDIA H200" */
	const char *device;
	/* name of the target (a row of codegen/target/) for which this machine's programs are
	 * compiled */
	const char *target;
	const Chip *chip;
	double memory_rate;
	double memory_reached; /* fraction of this rate that kernels reach */
	double launch;         /* from the end of a kernel to the start of the next */
	/* rate and latency of a copy between host and device, in one direction */
	double host_rate, host_latency;
	int joined;                /* number of devices that the fast link joins */
	double link_rate;          /* one-way rate of the fast link that collectives reach */
	double collective_latency; /* latency of a collective, in addition to its hops */
	/* latency of a hop over the fast link, and of a hop over a network */
	double link_hop, network_hop;
} Machine;

/* Seconds from the end of a kernel to the start of the next, where a graph launches them: 0.4 to 1.2 us on an H200, in nine steps
 * that did not wait for rows (launch_gap in bench/results/gpu-bench*.json). */
#define CUDA_LAUNCH 0.9e-6

/* ---- machines.c: ends with NULL */
extern const Machine *const machine_table[];
const Machine *machine_find(const char *name); /* NULL: unknown */
/* The machine of a GPU, by the name that CUDA gives it; NULL: unknown. */
const Machine *machine_of_device(const char *name);

/* What to predict for: a machine, and a number of ranks. */
typedef struct Outlook {
	const Machine *machine;
	int ranks;
	/* bytes/s, one way, between any two ranks; 0: the machine's own link */
	double network_rate;
	int mode;                /* how ranks share states */
	const int64_t *shard_at; /* as in RunFacts; NULL: no state is divided */
} Outlook;

/* ---- work.c: what an instruction asks of a machine; the same for all machines */
typedef enum {
	WORK_NONE, /* takes no time */
	WORK_LOOPS,
	WORK_ATTENTION,   /* loops whose matrix units multiply tiles that the kernel has computed */
	WORK_PRODUCT,     /* of a library */
	WORK_CONVOLUTION, /* of a library, or an adjoint */
	WORK_COPY,        /* within the device */
	WORK_FILL,
	WORK_HOST_COPY, /* between host and device */
	WORK_COLLECTIVE,
	N_WORK_CLASSES,
} WorkClass;
extern const char *const work_class_names[];

/* A product of m x k and k x n elements, `batch` of them in a launch of the library, in `runs` launches. */
typedef struct {
	int64_t m, n, k, batch, runs;
	int64_t alignment; /* bytes that divide all distances between rows of operands, at most 16 */
	int64_t transposed; /* 1: the elements of the first operand are adjacent along m */
} ProductSizes;

typedef struct {
	WorkClass class;
	Math math;
	double bytes, flops;
	/* Of loops (KernelRecord has the units); `steps` of one part. */
	double instructions, matrix_flops;
	int64_t steps, parts, blocks, block_threads, shared_bytes;
	ProductSizes product; /* of WORK_PRODUCT */
} Work;
Work work_of_instruction(const Format *f, const Instruction *in, const Outlook *o);

/* The numbers of Work by name, for printers and readers; ends with a row without a name. */
typedef struct {
	const char *name;
	size_t offset;
	bool whole; /* int64_t, otherwise double */
} WorkField;
extern const WorkField work_fields[];

/* ---- predict.c */
/* Which resource of the machine limits a launch. latency: steps that wait for each other. */
typedef enum {
	BOUND_COMPUTE,
	BOUND_MEMORY,
	BOUND_CACHE,
	BOUND_LATENCY,
	BOUND_HOST,
	BOUND_LINK,
	N_BOUNDS,
} Bound;
extern const char *const bound_names[];

/* The prediction for one run of an instruction, where seconds = launch + start + busy. The resource named by `bound` limits
 * the run. */
typedef struct {
	Work work;
	/* the first of several equal instructions that were merged */
	const Instruction *instruction;
	int64_t times; /* runs in a step of one micro-batch */
	Bound bound;
	double launch; /* from the end of the launch before */
	double start;  /* fixed time of such a kernel */
	double busy;   /* time for its bytes, operations and steps */
	/* time for the launch's bytes or FLOPs at the peak rate of the machine */
	double roofline;
	/* fraction of the machine that the launch's parts can use: less than 1 if there are too few
	 * parts */
	double utilization;
	double seconds;
} Prediction;
/* The time of work on a machine; instruction and times are left 0. Of collectives: predict_instruction. */
Prediction predict_work(const Work *w, const Machine *m);
/* The fraction of the chip that `blocks` blocks keep busy; each block has `threads` threads and
 * takes some shared memory. */
double predict_utilization(const Chip *c, int busy_threads, int64_t blocks, int64_t threads,
                           int64_t shared_bytes);
/* Seconds are 0 for an instruction that takes no time on this machine. */
Prediction predict_instruction(const Format *f, const Instruction *in, const Outlook *o);
/* How often each instruction runs in a step of one micro-batch; by the instruction's number in the program. */
void predict_times(const Format *f, const ProgramRecord *p, const Outlook *o, int64_t *times);
RunFacts predict_facts(const Outlook *o);

/* ---- predict_step.c: the launches of all programs of a step; equal launches are merged; the
 * longest is first */
typedef struct {
	const ProgramRecord *programs[2]; /* accumulate and update; or forward and NULL */
	VEC(Prediction) launches;
	double total;              /* seconds of all launches */
	double streams[N_STREAMS]; /* seconds of the launches on each stream */
	/* least: seconds of the step if computation and communication overlap fully; most:
	 * seconds if they never overlap. */
	double least, most;
	int64_t rows, tokens; /* of all ranks; tokens 0: not a language model */
} PredictedStep;
typedef VEC(PredictedStep) PredictedSteps;
/* Predicts a step for each binding of the dimensions, from the programs for the machine's target, or else
 * for the first target. */
PredictedSteps predict_steps(Arena *arena, const Format *f, const Outlook *o);

/* ---- predict.c */
double prediction_total(const Prediction *p); /* seconds of all runs of the instruction in a step */
/* fraction of the roofline; 1: nothing is lost except the launch and start times */
double prediction_of_roofline(const Prediction *p);
/* Were such launches measured, on this chip? Not of convolutions: the engine that a library takes for them changes their time
 * up to 80 times. */
bool prediction_is_measured(const Prediction *p, const Machine *m);

/* ---- timeline.c: when each launch of a step would run */
typedef struct {
	const Instruction *instruction;
	double begin, end; /* seconds */
	double exposed;    /* for communication: seconds during which nothing is computed */
} Bar;
typedef struct {
	VEC(Bar) bars[N_STREAMS];
	double seconds; /* of the step */
	double exposed; /* of all communication */
} Timeline;
Timeline predict_timeline(Arena *arena, const Format *f, const PredictedStep *s, const Outlook *o);

/* ---- print_predictions.c */
void format_print_predictions(Text *out, const Format *f, const Outlook *o);

/* ---- print_json.c: {"programs": [{"role", "binding", "stage", "mode", "target", "instructions": [{"op",
 * "stream", "when", "origin", "kernel", "parts", "block_threads", "flops", "bytes"}]}]}. parts: independent
 * iterations of a launch. If `where` is given (NULL: no prediction), instructions also have "predicted_us" and how it comes about
 * (docs/cost-model.md), and there are "machine" and "steps", whose launches have the numbers of Work, too. */
void format_print_json(Text *out, const Format *f, const Outlook *where);

#endif
