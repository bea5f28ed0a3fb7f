/* A run is one training, from opening a model to closing it: struct Gradc holds all its state. Also declares how the run's
 * ranks agree with each other. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_RUN_RUN_H
#define GRADC_RUNTIME_RUN_RUN_H

#include "base/files/files.h"
#include "runtime/exec/exec.h"
#include "base/calls/library_call.h"
#include "runtime/hyper/hyper.h"

#include <jansson.h>

/* A step that is queued and whose results are not known yet. */
enum { MAX_QUEUED = IN_FLIGHT };
typedef struct {
	GradcStep out;
	int turn;
	int64_t first; /* position of the step's first row */
	double begin;
	Status unread; /* why this rank could not read the step's rows; NULL if it could. Owned */
} QueuedStep;

typedef struct Dataset Dataset;         /* runtime/data/data.h */
typedef struct Prefetch Prefetch;       /* runtime/data/data.h */
typedef struct Saver Saver;             /* runtime/checkpoint/checkpoint.h */
typedef struct Predictor Predictor;     /* runtime/train/predict.c */
typedef struct EvalMetrics EvalMetrics; /* runtime/train/eval_metrics.c */

/* ---- the run */
struct Gradc {
	Arena *arena;
	MemoryOrphans *orphans; /* arenas of calls that ran out of memory */
	GradcOptions options;
	GradcModel model;
	Diag *diag; /* borrowed, may be NULL */
	Format format;
	DeviceChoice device;
	/* code for the best target that the devices of all ranks can run; part of `model` */
	const CodeImage *variant;
	/* name of the CPU, stored because in a virtual machine cpuid takes 7 us */
	const char *processor;
	Tunings tunings; /* which engines a GPU's libraries take; empty on a CPU */
	Executor executor;
	/* regions that are mapped from the executable's file of weights, until the first update */
	VEC(Span) mapped;
	Comm comm;
	const char *carrier; /* name of the library that carries collectives, for users */
	bool reduce_ordered; /* sums over ranks are made in the order of the ranks */
	int mode;            /* how ranks share states: a mode of format.h */
	/* true while rank 0 reads states and the other ranks send their parts to rank 0 */
	bool is_served;
	Hyper hyper;
	Dataset *train, *eval;     /* NULL: not bound */
	Predictor *predictor;      /* NULL before gradc_bind_predict_data */
	EvalMetrics *eval_metrics; /* NULL before the evaluation data are bound */
	Prefetch *prefetch;
	/* all ranks know the fault that ended the last call (step, evaluation or other) */
	bool fault_is_shared;
	/* text of the last fault in ranks_share, as "rank 1: ..."; NULL if there was no fault */
	const char *shared_fault;
	Observer observer;
	QueuedStep queued[MAX_QUEUED]; /* oldest first */
	int n_queued;
	PathGuard *guards[2]; /* files that the options name; files of the bound data */
	/* gradc_bind_data has succeeded; it or gradc_bind_eval_data has; gradc_finish has */
	bool is_bound, is_eval_bound, is_finished;
	_Atomic bool is_called; /* a thread is inside a call; a second thread's call is refused */
	bool accumulated;       /* gradc_accumulate has run, gradc_update has not */
	bool torn;              /* an update was queued only in part */
	double last_result;     /* time when the last result arrived */
	/* the step whose loss or norm was not finite; 0 if there was no such step. Later steps change nothing */
	int64_t failed;
	/* steps between two estimates of the optimizer; 0 if it makes no estimates */
	int64_t every;
	/* steps of this run without an update, because gradients were not finite */
	int64_t overflows;
	uint8_t step_turn;                  /* turn of the next step to queue */
	int64_t step, samples, total_steps; /* counts that include queued steps */
	/* numbers of states; -1 if the model has no such state */
	int loss_sum, loss_count, metric_correct;
	double loss, count; /* of the newest step with known results */
	GradcBest best;
	/* of early stopping: evaluations in a row, and the least improvement; patience 0: off */
	int64_t patience;
	double min_delta;
	uint64_t
		eval_data; /* fingerprint of the rows that are evaluated; 0 before they are bound */
	GradcPeak peak;
	const char *
		resumed_from; /* path of the checkpoint with which the run began; NULL without a checkpoint */
	Saver *saver;
};

/* ---- run.c */
/* The program of that role for this run's target and mode; NULL if there is no such program. binding: the compiled choice of
 * free dimensions (such as batch=32). program_any also tries all other bindings. */
const ProgramRecord *program_find(const Gradc *run, Role role, int binding);
const ProgramRecord *program_any(const Gradc *run, Role role, int binding);
Status read_scalar(Gradc *run, int state, double *out);
Status write_scalar(Gradc *run, int state, double value); /* the state has a float type */
/* If both are faults, reports `first` to `diag` and returns `second`. Otherwise returns the one fault, or NULL. */
Status fault_join(Diag *diag, Status first, Status second);
Status step_is_whole(const Gradc *run);          /* EXIT_USAGE if a step is queued or half done */
Status step_check_accumulated(const Gradc *run); /* EXIT_USAGE if a step is half done */
Status pairs_check(const char *option, const GradcPairs *p);

/* ---- observation.c */
Status observe_open(Gradc *run);
void observe_step(Gradc *run, int64_t step);
/* Adds a span to the trace, from `begin` until now. count: how many rows, bytes or the like the span handled; negative: not
 * shown. */
void observe_span(Gradc *run, const char *name, double begin, int64_t count);

/* ---- carrier.c: picks NCCL or the launcher's communicator. All ranks call carrier_pick and carrier_attach. */
Status carrier_pick(Gradc *run, const CommOptions *options); /* same status on all ranks */
Status carrier_attach(Gradc *run); /* after all ranks have opened their executors */
void carrier_describe(Text *out);  /* "NCCL 2.27.5", or why NCCL cannot be used here */

/* ---- sharing.c: how ranks share states and sums, from the options; EXIT_USAGE if the options do not fit the run */
Status sharing_pick(Gradc *run);
/* EXIT_USAGE if --offload or --offload-dir needs something for which the executable was not compiled. */
Status offload_check(const Gradc *run);
/* EXIT_USAGE, naming `what`, if ranks hold only parts of the states. */
Status sharing_needs_whole(const Gradc *run, const char *what);
/* For CommOptions; the context is the run. */
void sharing_mesh(void *context, int rank, int size, int colors[N_GROUPS]);

/* ---- state_read.c */
/* Copies a whole state to the host's memory. If each rank holds only a part of the state, either all ranks call state_read for
 * the same states, or rank 0 calls it alone between states_begin and states_end. */
Status state_read(Gradc *run, int state, void *to);
/* Every rank calls states_begin and states_end. On other ranks than rank 0, states_begin sends the rank's parts and does not
 * return until rank 0 calls states_end. */
Status states_begin(Gradc *run);
Status states_end(Gradc *run);

/* ---- ranks.c */
/* Makes one rank's fault the fault of all ranks. The first rank with a fault keeps the fault; the other ranks get a fault with
 * the same exit code and an empty message. */
Status ranks_share(Gradc *run, Status own);
/* Gathers n numbers of each rank. *all, in the run's arena, has the n numbers of rank 0, then those of rank 1, and so on. */
Status ranks_gather(Gradc *run, const int64_t *own, int n, int64_t **all);
/* Takes the best variant that the CPUs of all ranks can run, so that all ranks run the same kernels. own: bit set of the
 * variants that this rank can run. */
Status ranks_pick_variant(Gradc *run, uint64_t own);
Status ranks_agree(Gradc *run, int own, int *most); /* same as gradc_agree */
/* Sends rank 0's text, which may be NULL, to all ranks. */
Status ranks_broadcast_text(Gradc *run, const char **text);

/* ---- ranks_devices.c */
/* EXIT_USAGE on all ranks, with the reason, if two ranks share a device that only one rank may use. */
Status ranks_check_devices(Gradc *run);

/* ---- rank_bytes.c: the bytes that a rank holds if ranks hold parts of states */
typedef struct {
	int64_t whole; /* states that every rank holds whole */
	int64_t parts; /* divided states, all ranks together */
	int64_t shard; /* this rank's parts: parts / ranks + padding */
	int64_t padding;
	int64_t host; /* the part of `shard` that is in the host's memory */
	/* weights and gradients that are gathered for a while, and parts received from other ranks */
	int64_t gathered;
	int64_t all; /* all regions of the device */
} RankBytes;
RankBytes rank_bytes(const Format *f, const RunFacts *facts);
void rank_bytes_text(Text *out, const RankBytes *b, int ranks);
/* For each compiled mode and number of ranks: rank_bytes_print writes a line of text, rank_bytes_json adds an object to the
 * array that it returns. */
void rank_bytes_print(FILE *out, const Format *f);
json_t *rank_bytes_json(const Format *f);

#endif
