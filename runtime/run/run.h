/* A run: what all of training works on, and what its ranks tell each other. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_RUN_RUN_H
#define GRADC_RUNTIME_RUN_RUN_H

#include "base/files/files.h"
#include "runtime/exec/exec.h"
#include "runtime/hyper/hyper.h"

#include <jansson.h>

/* A step before its results are known. */
enum { MAX_QUEUED = 2 };
typedef struct {
	GradcStep out;
	int turn;
	int64_t first; /* position of its first row */
	double begin;
	Status unread; /* why this rank could not read the step's rows; NULL: it could. Owned */
} QueuedStep;

typedef struct Dataset Dataset;   /* runtime/data/data.h */
typedef struct Prefetch Prefetch; /* runtime/data/data.h */
typedef struct Saver Saver;       /* runtime/checkpoint/checkpoint.h */

/* ---- the run */
struct Gradc {
	Arena *arena;
	MemoryOrphans *orphans; /* of calls that ran out of memory */
	GradcOptions options;
	GradcModel model;
	Diag *diag; /* borrowed, may be NULL */
	Format format;
	DeviceChoice device;
	const CodeImage *variant; /* of the model: the best that the devices of all ranks run */
	const char *processor; /* its name, asked for once: in a virtual machine cpuid takes 7 us */
	Executor executor;
	VEC(Span) mapped; /* of the executable's weights, until the first update */
	Comm comm;
	const char *carrier; /* of collectives, for people */
	bool reduce_ordered; /* sums over ranks are made in their order */
	int mode;            /* how they share states: of format.h's modes */
	bool is_served;      /* rank 0 reads states, and the others lend it their parts */
	Hyper hyper;
	Dataset *train, *eval;
	Prefetch *prefetch;
	bool fault_is_shared; /* all ranks know of the fault that ended the last step, evaluation or other call */
	const char *shared_fault; /* "rank 1: ...", of the last fault of ranks_share; NULL: none */
	Observer observer;
	QueuedStep queued[MAX_QUEUED]; /* the oldest first */
	int n_queued;
	PathGuard *guards[2]; /* of what the options name, and of the data that are bound */
	bool is_bound,
		is_finished; /* gradc_bind_data, gradc_finish have been called, and gave no fault */
	_Atomic bool is_called; /* by a thread; of two at once the second is refused */
	bool accumulated;       /* gradc_accumulate ran, and gradc_update has not yet */
	bool torn;              /* an update began, and could not be queued whole */
	double last_result;     /* when it was there */
	int64_t failed; /* the step whose loss or norm was not finite: later ones change nothing; 0: none */
	int64_t every; /* steps from one estimate of the optimizer to the next; 0: it makes none */
	int64_t overflows; /* steps without an update since the start of this run, for gradients that were not finite */
	uint8_t step_turn;                        /* of the next step that is queued */
	int64_t step, samples, total_steps;       /* queued ones included */
	int loss_sum, loss_count, metric_correct; /* states; -1: none */
	double loss, count;                       /* of the newest step whose results are known */
	Saver *saver;
};

/* ---- run.c */
/* For this run's target; NULL: none. program_any takes that of another binding where this one has none. */
const ProgramRecord *program_find(const Gradc *run, Role role, int binding);
const ProgramRecord *program_any(const Gradc *run, Role role, int binding);
Status read_scalar(Gradc *run, int state, double *out);
Status write_scalar(Gradc *run, int state, double value); /* of a float type */
/* Keeps the last fault as the result, reports the one before. */
Status fault_join(Diag *diag, Status first, Status second);
Status step_is_whole(const Gradc *run); /* EXIT_USAGE: a step is queued, or half of one done */
Status step_check_accumulated(const Gradc *run); /* EXIT_USAGE: half of one is done */
Status pairs_check(const char *option, const GradcPairs *p);

/* ---- observation.c */
Status observe_open(Gradc *run);
void observe_step(Gradc *run, int64_t step);
/* From `begin` until now; count < 0: none. */
void observe_span(Gradc *run, const char *name, double begin, int64_t count);

/* ---- carrier.c: NCCL, or the launcher's communicator. All ranks call both. */
Status carrier_pick(Gradc *run, const CommOptions *options); /* all have the same status */
Status carrier_attach(Gradc *run); /* when all have opened their executors */
void carrier_describe(Text *out);  /* "NCCL 2.27.5", or why there is none here */

/* ---- sharing.c: how ranks share, as options say; EXIT_USAGE where they cannot */
Status sharing_pick(Gradc *run);
/* EXIT_USAGE where --offload and --offload-dir ask for what is not compiled in */
Status offload_check(const Gradc *run);
/* EXIT_USAGE, naming `what`, where ranks hold parts. */
Status sharing_needs_whole(const Gradc *run, const char *what);
void sharing_mesh(void *context, int rank, int size,
                  int colors[N_GROUPS]); /* of CommOptions; context: the run */

/* ---- state_read.c */
/* All of it, to the host's memory. Where ranks hold parts all of them call it, for the same states; or rank 0 alone, in a call of
 * states_begin. */
Status state_read(Gradc *run, int state, void *to);
/* Every rank calls both. In the first all but rank 0 lend it their parts, until it calls the second. */
Status states_begin(Gradc *run);
Status states_end(Gradc *run);

/* ---- ranks.c */
/* A fault of one rank is everybody's: the first rank that has one keeps it, the others get its exit code
 * and no message. */
Status ranks_share(Gradc *run, Status own);
/* Everybody's n numbers, one rank's behind the other's, in the run's arena. */
Status ranks_gather(Gradc *run, const int64_t *own, int n, int64_t **all);
/* Takes the best variant that the CPUs of all ranks run: they compute with the same kernels. own: bits of those that this one
 * runs. */
Status ranks_pick_variant(Gradc *run, uint64_t own);
Status ranks_agree(Gradc *run, int own, int *most); /* as gradc_agree */
/* Rank 0's text becomes everybody's; NULL is one too. */
Status ranks_broadcast_text(Gradc *run, const char **text);

/* ---- ranks_devices.c */
/* EXIT_USAGE on all ranks, saying why: two have one device, of a kind of which each belongs to one rank. */
Status ranks_check_devices(Gradc *run);

/* ---- rank_bytes.c: what a rank holds where ranks have parts of states */
typedef struct {
	int64_t whole; /* bytes of states that every rank has */
	int64_t parts; /* of those that are divided, on all ranks together */
	int64_t shard; /* of a rank's parts: parts / ranks + padding */
	int64_t padding;
	int64_t host; /* of shard: in the host's memory */
	int64_t gathered; /* of units and gradients while they are whole, and of what other ranks sent */
	int64_t all;      /* of all regions of the device */
} RankBytes;
RankBytes rank_bytes(const Format *f, const RunFacts *facts);
void rank_bytes_text(Text *out, const RankBytes *b, int ranks);
/* A line, or an object, for each mode that is compiled in and for each of some numbers of ranks. */
void rank_bytes_print(FILE *out, const Format *f);
json_t *rank_bytes_json(const Format *f);

#endif
