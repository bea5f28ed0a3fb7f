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

typedef struct {
	double peak;    /* FLOP/s */
	double reached; /* fraction of the peak that a library's large products reach */
} ProductRate;

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
	int64_t cache_bytes; /* the last-level cache, which all multiprocessors share */
	double cache_rate;
	double loop_rate[N_MATHS]; /* rate of generated code, for f32 and f64 */
	ProductRate products[N_MATHS];
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
	double launch; /* from the end of a kernel to the start of the next */
	/* rate and latency of a copy between host and device, in one direction */
	double host_rate, host_latency;
	int joined;                /* number of devices that the fast link joins */
	double link_rate;          /* one-way rate of the fast link that collectives reach */
	double collective_latency; /* latency of a collective, in addition to its hops */
	/* latency of a hop over the fast link, and of a hop over a network */
	double link_hop, network_hop;
} Machine;

/* Seconds from the end of a kernel to the start of the next, on NVIDIA's GPUs. PyTorch's issue 161104: a
 * kernel that adds 1024 numbers takes 1.1 to 1.3 us. */
#define CUDA_LAUNCH 1.3e-6

/* ---- machines.c: ends with NULL */
extern const Machine *const machine_table[];
const Machine *machine_find(const char *name); /* NULL: unknown */

/* ---- predict.c */
/* What to predict for: a machine, and a number of ranks. */
typedef struct Outlook {
	const Machine *machine;
	int ranks;
	/* bytes/s, one way, between any two ranks; 0: the machine's own link */
	double network_rate;
	int mode;                /* how ranks share states */
	const int64_t *shard_at; /* as in RunFacts; NULL: no state is divided */
} Outlook;

/* Which resource of the machine limits a launch. */
typedef enum { BOUND_COMPUTE, BOUND_MEMORY, BOUND_CACHE, BOUND_HOST, BOUND_LINK, N_BOUNDS } Bound;
extern const char *const bound_names[];

/* The prediction for one run of an instruction, where seconds = launch + roofline / utilization /
 * reached. The resource named by `bound` limits the run. */
typedef struct {
	/* the first of several equal instructions that were merged */
	const Instruction *instruction;
	int64_t times; /* runs in a step of one micro-batch */
	int64_t parts;
	double flops, bytes;
	Bound bound;
	double launch; /* fixed time of a launch */
	/* time for the launch's bytes or FLOPs at the peak rate of the resource that limits it */
	double roofline;
	/* fraction of this peak that the launch's parts can use: less than 1 if there are too few
	 * parts */
	double utilization;
	double reached; /* fraction of this peak that a library reaches */
	double seconds;
} Prediction;
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
/* fraction of the roofline; 1: nothing is lost except the launch time */
double prediction_of_roofline(const Prediction *p);

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
 * iterations of a launch. If `where` is given (NULL: no prediction), instructions also have "predicted_us",
 * and there are "machine" and "steps". */
void format_print_json(Text *out, const Format *f, const Outlook *where);

#endif
