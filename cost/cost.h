/* Machines that need not be here, as numbers, and what a schedule would cost there. docs/cost-model.md has the formulas. */
#ifndef GRADC_COST_COST_H
#define GRADC_COST_COST_H

#include "format/format.h"

/* What operands are multiplied as; each has units and a rate of its own. */
typedef enum {
	MATH_F32, /* also what loops compute, unless it is f64 */
	MATH_F64,
	MATH_TF32, /* f32, rounded to 10 bits of mantissa */
	MATH_16_BITS,
	MATH_8_BITS,
	N_MATHS,
} Math;

typedef struct {
	double peak;    /* FLOP/s */
	double reached; /* the part of it that a library's large products have */
} ProductRate;

/* Rates are bytes a second, or FLOP/s; times are seconds. */
typedef struct {
	/* Multiprocessors, and what one of them holds at once. */
	int processors;
	int most_blocks, most_threads;
	int busy_threads; /* of them, that reach the memory's full rate */
	int sum_threads;  /* and the cores' full rate, where each has several sums in registers */
	int64_t shared_bytes,
		block_shared_bytes; /* for arrays of blocks; that a block takes besides */
	int64_t cache_bytes;        /* the last cache, which all share */
	double cache_rate;
	double loop_rate[N_MATHS]; /* of generated code: f32 and f64 */
	ProductRate products[N_MATHS];
} Chip;

typedef struct {
	const char *name;   /* as in --machine */
	const char *title;  /* the vendor's name */
	const char *target; /* what programs are lowered for: a row of codegen/target/ */
	const Chip *chip;
	double memory_rate;
	double launch;                  /* from the end of a kernel to the start of the next */
	double host_rate, host_latency; /* a copy between host and device, one way */
	int joined;                     /* devices that the fast link joins */
	double link_rate;               /* of it, one way, that collectives reach */
	double collective_latency;      /* of a collective, beside its hops */
	double link_hop, network_hop;   /* of a hop over that link, and over a network */
} Machine;

/* From the end of a kernel to the start of the next, on NVIDIA's GPUs, in seconds. PyTorch's issue 161104: a kernel that adds 1024
 * numbers takes 1.1 to 1.3 us. */
#define CUDA_LAUNCH 1.3e-6

/* ---- machines.c: ends with NULL */
extern const Machine *const machine_table[];
const Machine *machine_find(const char *name); /* NULL: unknown */

/* ---- predict.c */
/* Where, among how many ranks. */
typedef struct Outlook {
	const Machine *machine;
	int ranks;
	double network_rate; /* bytes a second, one way, between any two ranks; 0: the machine's own link */
	int mode;            /* how ranks share states */
	const int64_t *shard_at; /* as of RunFacts; NULL: nothing is divided */
} Outlook;

/* What limits a launch, were nothing lost. */
typedef enum { BOUND_COMPUTE, BOUND_MEMORY, BOUND_CACHE, BOUND_HOST, BOUND_LINK, N_BOUNDS } Bound;
extern const char *const bound_names[];

/* One run of an instruction. seconds = launch + roofline / utilization / reached */
typedef struct {
	const Instruction *instruction; /* the first of those that a list has merged */
	int64_t times;                  /* in the step, with one micro-batch; 0: not at all */
	int64_t parts;
	double flops, bytes;
	Bound bound;
	double launch;      /* what it takes however little it does */
	double roofline;    /* what its bytes or FLOPs take at the peak of what limits it */
	double utilization; /* of that peak, with so many parts */
	double reached;     /* of that peak, by a library */
	double seconds;
} Prediction;
/* Of `blocks` of so many threads and so much shared memory: the part of the chip that they keep busy. */
double predict_utilization(const Chip *c, int busy_threads, int64_t blocks, int64_t threads,
                           int64_t shared_bytes);
/* An instruction that takes no time, or none on this machine, has 0 seconds. */
Prediction predict_instruction(const Format *f, const Instruction *in, const Outlook *o);
/* How often an instruction runs in a step of one micro-batch in that world, by the program's numbers of instructions. */
void predict_times(const Format *f, const ProgramRecord *p, const Outlook *o, int64_t *times);
RunFacts predict_facts(const Outlook *o);

/* ---- predict_step.c: the launches of all programs of a step, equal ones merged, what takes longest first. */
typedef struct {
	const ProgramRecord *programs[2]; /* accumulate and update; or forward, NULL */
	VEC(Prediction) launches;
	double total;              /* of all launches */
	double streams[N_STREAMS]; /* of those on each */
	/* When computing and communicating overlap as well as they can; and when they never do. */
	double least, most;
	int64_t rows, tokens; /* of all ranks; tokens 0: no language model */
} PredictedStep;
typedef VEC(PredictedStep) PredictedSteps;
/* One for each binding of the dimensions, of the programs for the machine's target, else of the first target. */
PredictedSteps predict_steps(Arena *arena, const Format *f, const Outlook *o);
double prediction_total(const Prediction *p);       /* of all its times */
double prediction_of_roofline(const Prediction *p); /* 1: nothing is lost but the launch */

/* ---- timeline.c: when each launch of a step would run */
typedef struct {
	const Instruction *instruction;
	double begin, end; /* seconds */
	double exposed;    /* of communication: while nothing is computed */
} Bar;
typedef struct {
	VEC(Bar) bars[N_STREAMS];
	double seconds; /* of the step */
	double exposed; /* of all communication */
} Timeline;
Timeline predict_timeline(Arena *arena, const Format *f, const PredictedStep *s, const Outlook *o);

/* ---- print_predictions.c */
void format_print_predictions(Text *out, const Format *f, const Outlook *o);

/* ---- print_json.c: {"programs": [{"role", "binding", "stage", "mode", "target", "instructions": [{"op", "stream", "when", "origin",
 * "kernel", "parts", "block_threads", "flops", "bytes"}]}]}; parts: independent iterations of a launch. With a place to predict for (NULL:
 * none), instructions have "predicted_us", too, and there are "machine" and "steps". */
void format_print_json(Text *out, const Format *f, const Outlook *where);

#endif
