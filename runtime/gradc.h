/* The runtime as a library: open a compiled model, train it, evaluate it, write it back.
 * No exit, no signal handlers. Every call that can fail returns a Status whose exit code is the one of the command line
 * page; without memory that is EXIT_SYSTEM, and the session can still be closed. Calls may come in any order: where one does not
 * fit what was called before, an argument is NULL that may not be, or an option has no sense, it is EXIT_USAGE and has done
 * nothing. The others, which only tell something, need a session that gradc_open gave.
 *
 * A session is a Gradc: its states, threads, files and settings are its own. One session belongs to one thread at a time: a
 * call while another thread's is under way is EXIT_USAGE, and so is one from a callback. gradc_close comes when all others are over.
 * Calls on different sessions may run at the same time, gradc_open included, also of the same model. Two sessions must not
 * save to one folder (the second is EXIT_CHECKPOINT) or write one file.
 *
 * Of the process there are, and locks or atomics guard them where sessions share them:
 *
 *	the list of temporary files (base/cleanup.c), and that of memory that failed calls left until their session closes
 *	jansson's allocation functions: the first gradc_open sets them, unless the host has set its own
 *	oneDNN and libgomp, which stay loaded, and oneDNN's cache of primitives. libgomp makes a team of threads for each
 *	thread that calls it; their CPUs are set by the session that uses them
 *	$GOMP_SPINCOUNT, which the first gradc_open sets where nobody has: as with every setenv, no other thread may read the
 *	environment meanwhile. Set it, or OMP_WAIT_POLICY, before there are threads, and it is left alone
 *	MPI, with communicator "auto" under a launcher: one session, since MPI ends with it
 *
 * While a file or folder is made, signals of the calling thread wait.
 *
 *	gradc_open -> gradc_bind_data -> gradc_resume -> gradc_step, gradc_save ... -> gradc_evaluate,
 *	gradc_export -> gradc_close
 *
 * Besides those that compute, a Gradc has a thread that reads data and one, while there is one to write, for a checkpoint:
 * that touches nothing but a copy of the state. Where there are other ranks one answers them. None of them handles
 * signals. */
#ifndef GRADC_H
#define GRADC_H

#include "format/format.h"

typedef struct Gradc Gradc;

/* Declares the model of a library that `gradc compile --emit=library -o libNAME.so` wrote. */
#define GRADC_MODEL(name) extern const GradcModel gradc_model_##name

/* NAME=VALUE of an option. */
typedef struct {
	const char *name, *value;
} GradcPair;
typedef VEC(GradcPair) GradcPairs;

/* More than any training has, of steps; of epochs, micro-batches of a step, rows and ranks. */
#define GRADC_MOST_STEPS (1ll << 53)
#define GRADC_MOST_PARTS (1ll << 31)

/* What it points to lives as long as the run. */
typedef struct {
	GradcPairs data, eval_data, fill, scale, mean_std;
	const char *tokens, *text, *eval_tokens, *eval_text;
	int64_t steps, epochs; /* -1: not given; neither: one epoch */
	int64_t accumulate, warmup;
	/* Rows of a step over all ranks, and of a micro-batch, as the caller takes them to be; 0: whatever they are. Others are
	 * EXIT_USAGE. With `accumulate` 0 the first says how many micro-batches a step has. */
	int64_t global_batch, micro_batch;
	const char *global_batch_origin,
		*micro_batch_origin; /* for messages, as "FILE: "; NULL: "" */
	uint64_t seed;
	bool shuffle, keep_last;
	const char *lr_schedule; /* NULL: constant */
	/* NaN: the optimizer's default */
	double lr, min_lr, weight_decay, beta1, beta2, eps, momentum, clip_norm, clip_value;
	const char *load, *load_adapter, *weights;
	const char *adapter; /* of those that go along in the executable; NULL: none */
	/* Adapters that are loaded so are added to their weights, and new ones begin; or subtracted, for the weights hold the sum. */
	bool merge, unmerge;
	const char
		*export_weights; /* that gradc_export writes: "trained" or "ema"; NULL: trained */
	const char *
		device; /* "cpu", "cuda", "cuda:1"; NULL: a GPU that runs what is compiled in, else the CPU */
	const char *
		target; /* "cpu:x86-64-v3", "cuda:sm_90a", of those compiled in; NULL: the best of the devices of all ranks */
	const char *communicator; /* "self" or NULL, or "auto": the ranks that a launcher started */
	/* Sums over ranks: "ordered", in the order of the ranks, so that W ranks give the bits of W accumulation steps; "fast",
	 * as the library adds; NULL: ordered up to 8 ranks. */
	const char *reduce;
	const char *
		data_parallel; /* "ddp", "zero1", "zero2" or "zero3", of those compiled in; NULL: the first of them */
	const char *
		offload; /* what lies in the host's memory, as it was compiled: "optimizer,params"; NULL: the same */
	const char *offload_folder; /* where it lies in a file without a name; NULL: in memory */
	int64_t shard_size; /* ranks that hold all parts together; several such groups hold copies; 0: all ranks */
	/* What carries collectives of GPUs: "nccl"; "host", the launcher's library; "auto" or NULL: NCCL where each rank has a GPU of its
	 * own, else the host. */
	const char *collectives;
	bool alone; /* nothing is trained: gradc_once or gradc_check_gradients, by one rank with whole states */
	const char *trace; /* a file for what happens when; NULL: none */
	bool profile;      /* measure the instructions of a few steps */
	const char
		*save; /* folder of the checkpoints; NULL: none, and no memory planned for them */
	const char *resume; /* a checkpoint, a folder of them, or "auto": the newest under `save` */
	int64_t keep;       /* how many of the newest checkpoints stay; 0: all */
	bool keep_best;     /* and the one with the lowest evaluation loss */
	int64_t shard_bytes; /* a checkpoint's files hold about as much */
	int64_t threads; /* that compute; 0: one for each CPU that the process may use, one for short steps */
	const char *
		autotune; /* file of which of a library's ways to compute a product are fastest on the GPU; those that it
	                       * lacks are tried, and added, where there is one rank, without `deterministic`; NULL: none */
	bool deterministic; /* the same bits with any number of them */
	bool libraries;     /* where these are faster than generated code */
	/* Bytes: files of data in rows of less than 16 KiB are read once and kept, as long as they are not more. */
	int64_t keep_data;
	/* Asked by the thread that evaluates, between micro-batches: where it is true on any rank, gradc_evaluate ends with EXIT_PREEMPTED
	 * on all. NULL: nobody asks. */
	bool (*interrupted)(void *context);
	void *interrupted_context;
	bool find_nan; /* a step with EXIT_NON_FINITE is run once more, to find where it began */
	bool poison;   /* for tests: freed memory holds NaN */
} GradcOptions;
GradcOptions gradc_default_options(void);

/* Numbers that are not finite, and what is said of them. */
typedef enum { GRADC_NAN, GRADC_PLUS_INFINITY, GRADC_MINUS_INFINITY, GRADC_N_UNFIT } GradcUnfit;
typedef struct {
	int64_t elements;
	int64_t n[GRADC_N_UNFIT]; /* how many are not finite, by GradcUnfit */
	double least, most;       /* of the others; least > most: there are none */
} GradcRange;
typedef struct {
	const char *name;  /* in the model, or of the ONNX node that it comes from */
	const char *kind;  /* "parameter", "input", "gradient" ...; "": what a node makes */
	const char *dtype; /* "f32" */
	const char *shape; /* "[8,16]"; NULL: the tables have only the number of elements */
	GradcRange range;
	bool is_result; /* of the kernel; else one of its operands */
	const char *
		since; /* of an operand that is not finite: whose result, or since when; NULL: not known */
} GradcTensor;
/* Where a failed step had its first number that is not finite. */
typedef struct {
	StringList nodes;     /* ONNX nodes; several, where one kernel computes them */
	StringList gradients; /* those through which the kernel takes a gradient */
	const char
		*phase; /* "forward", "backward", "update"; "": a tensor held it before the step */
	int64_t micro_batch;        /* of this rank, from 1 */
	const GradcTensor *tensors; /* results that are not finite, then operands */
	int n_tensors;
	const char *
		nan; /* of an infinity: what made NaN of it, as text; NULL: nothing, or it is NaN itself */
} GradcNotFinite;

typedef struct {
	int64_t step; /* completed ones, this included */
	double loss;  /* mean over the valid targets of the step */
	double lr, grad_norm;
	double count; /* valid targets; 0: there was no update */
	/* What the loss was multiplied by; NaN where that never changes. With `overflow` the gradients were not finite, and there was no
	 * update: the next step has a smaller one. */
	double loss_scale;
	bool overflow;
	int64_t overflows; /* of this run's steps so far */
	int64_t samples;   /* positions of the data order so far */
	int64_t rows;      /* of this step */
	double seconds;
	double phase_seconds[N_PHASES];
	double data_seconds; /* of `seconds`: until the rows were in place */
	int64_t data_waits;  /* micro-batches that were still being read when their turn came */
	int64_t offload_in_bytes,
		offload_out_bytes; /* copied to the device, and from there, for --offload */
	/* Not of `seconds`: since the step before, until checkpoints were copied, and the ones before them written. */
	double save_seconds;
	/* With options.find_nan, of a step that ends with EXIT_NON_FINITE: where it began. It lives as long as the run. NULL: it is not
	 * known, or another rank knows. */
	const GradcNotFinite *not_finite;
} GradcStep;

typedef struct {
	double loss, count;
	double accuracy, perplexity; /* NaN where the model has none */
	int64_t rows;                /* that it covers */
	int64_t all_rows;            /* of the files */
	double seconds;
} GradcEval;

/* State is allocated and has its initial values. diag takes warnings and all faults but the last;
 * it may be NULL. */
Status gradc_open(const GradcModel *model, const GradcOptions *options, Diag *diag, Gradc **out);
void gradc_close(Gradc *run); /* NULL is allowed */
/* Opens the training data, and the evaluation data where the options name some. */
Status gradc_bind_data(Gradc *run);
bool gradc_has_eval(const Gradc *run);
int64_t gradc_total_steps(const Gradc *run);  /* of the whole training; after gradc_bind_data */
int64_t gradc_accumulation(const Gradc *run); /* micro-batches of a step; likewise */
const Format *gradc_tables(const Gradc *run);
int gradc_binding(const Gradc *run); /* the one that the data picked */
int gradc_target(const Gradc *run);  /* whose programs run: of the tables' targets */
/* What it runs on, as --info says it. */
void gradc_describe_device(const Gradc *run, Text *out);
bool gradc_holds_parts(const Gradc *run); /* ranks have parts of states */
/* What a rank holds of states that ranks have parts of, and what is whole; false: all is. */
bool gradc_describe_parts(const Gradc *run, Text *out);
/* Products and convolutions of 16 bits that a library could run, and how many of them loops run here, as where the CPU has no
 * instructions for them. */
int gradc_narrow_products(const Gradc *run, int *by_loops);
int64_t
gradc_step_flops(const Gradc *run); /* of one step of this rank: its micro-batches and the update */
int64_t gradc_tokens_per_row(const Gradc *run); /* 0: rows are not token sequences */

/* A name of space_table, "snapshot" (what checkpoints are written from) or "library" (its scratch). */
typedef struct {
	const char *name;
	int64_t bytes;
	bool on_host; /* also of a training on a GPU */
	bool in_file; /* of --offload-dir: the system keeps in memory what there is room for */
} GradcRegion;
enum { GRADC_MAX_REGIONS = N_SPACES + 2 };
/* The memory of a training: those regions that have any, and how many these are. */
int gradc_regions(const Gradc *run, GradcRegion out[GRADC_MAX_REGIONS]);
int64_t gradc_peak_bytes(const Gradc *run); /* of all regions that are no files */
/* Of those that are in a GPU's memory; 0: it computes on the CPU. */
int64_t gradc_gpu_bytes(const Gradc *run);
/* Bytes of a GPU's memory: taken by whomever, and all; false: it computes on the CPU. */
bool gradc_gpu_memory(const Gradc *run, int64_t *taken, int64_t *total);

/* Ranks that train together; 0 of 1 without a launcher. */
int gradc_rank(const Gradc *run);
int gradc_ranks(const Gradc *run);
const char *gradc_reduce(const Gradc *run); /* "ordered" or "fast" */
const char *gradc_collectives(
	const Gradc *run); /* "NCCL 2.27.5", or "mpi ..." with the reason; of one rank, "self" */
/* The largest of what the ranks say; every rank must ask. */
Status gradc_agree(Gradc *run, int own, int *most);
/* EXIT_COMM where a rank has another value of an option than rank 0; the message has both. Every rank must ask. */
Status gradc_compare(Gradc *run, const char *option, int64_t value);
/* Makes a fault of one rank the fault of all ranks, also after gradc_finish. Every rank calls it with its own fault or NULL, which it takes. Gives the fault on the
 * first rank that has one, the same exit code with an empty message on the other ranks, and NULL if no rank has a fault. */
Status gradc_share(Gradc *run, Status own);
/* All ranks know of the fault that ended the last call, and ended the same call with it: they may save and export together. */
bool gradc_is_shared(const Gradc *run);
/* "rank 1: labels.npy: ...", on every rank, of a fault that gradc_share made one of all ranks; "" without such a fault. Lives as long as
 * run. */
const char *gradc_shared_fault(const Gradc *run);
/* This rank cannot go on: ends all of them with that exit code, where there are others that do not know yet. */
void gradc_abort(Gradc *run, int exit_code);

/* One step. With EXIT_NON_FINITE the parameters are those before the step and *out is filled. Rows that one rank
 * cannot read are a fault of all ranks, as gradc_share makes it; the states are those before the step. */
Status gradc_step(Gradc *run, GradcStep *out);
/* The same without waiting: a step is queued while the device computes the one before. At most two are queued. Their
 * results are taken before gradc_step, its halves, gradc_save and gradc_resume, which else are EXIT_USAGE. */
Status gradc_queue_step(Gradc *run);
/* Of the oldest step that is queued; *got: they are there. With `wait` they are, if there is one; EXIT_NON_FINITE as
 * above, and steps that are queued behind it have done nothing. Where there are several ranks, rows that one rank cannot read are
 * a fault here; afterwards no step is queued. */
Status gradc_step_result(Gradc *run, bool wait, GradcStep *out, bool *got);
int gradc_steps_queued(const Gradc *run);
bool gradc_computes_at_once(const Gradc *run); /* on the host: a step is over when it is queued */
/* Its two halves, each waited for, for those who want to see the gradients in between; other calls that compute or save
 * are EXIT_USAGE there. */
Status gradc_accumulate(Gradc *run, GradcStep *out);
Status gradc_update(Gradc *run, GradcStep *out);
Status gradc_evaluate(Gradc *run, GradcEval *out);
/* The states are those of a whole step: after a fault they may still be saved and exported. */
bool gradc_is_whole(const Gradc *run);
/* The loss of an evaluation, by which lr_schedule "plateau" goes; others take no notice. While no step is queued, and on all
 * ranks the same. */
void gradc_schedule_loss(Gradc *run, double loss);

typedef struct {
	const char *path; /* of the checkpoint; NULL: there was none, training starts fresh */
	int64_t step, samples;
	double loss, eval_loss; /* of its step; NaN: not known */
	double age;             /* seconds since it was written, by the file system's clock */
} GradcResume;
int64_t gradc_steps_done(const Gradc *run); /* queued ones included */
/* Continues from the checkpoint that options.resume names: state, step and place in the data are
 * those of the run that wrote it. After gradc_bind_data, or without it to use the weights only.
 * Settings and data that differ are warned of; a damaged, foreign or newer checkpoint is
 * EXIT_CHECKPOINT, and only "auto" falls back to the one before, with a warning. *out lives as long
 * as run. */
Status gradc_resume(Gradc *run, GradcResume *out);
/* Copies the state and writes the copy as a checkpoint of this step in the background, once the one
 * before is written. eval_loss: of this step, NaN when not known. A checkpoint that could not be
 * written is a warning, of this or a later call, and leaves those before alone; the third in a row is
 * EXIT_CHECKPOINT. */
Status gradc_save(Gradc *run, double eval_loss);
/* Before training: EXIT_CHECKPOINT where something that is no checkpoint's lies where the last step, or every `every`-th
 * (0: only the last), is to be saved. What comes there later is left alone, too, and the step is saved beside it. All
 * ranks call it, after gradc_resume. */
Status gradc_check_saves(Gradc *run, int64_t every);
/* Reports what the background has finished; with `wait`, after it has. */
Status gradc_save_poll(Gradc *run, bool wait);
/* Do ranks write their parts of a checkpoint each? Then all of them call gradc_save and gradc_save_poll, in the same order as
 * their other calls; none does after a fault that the others do not have. What gradc_save began is complete when
 * gradc_save_poll has waited for it: closing drops it. */
bool gradc_saves_together(const Gradc *run);
int64_t gradc_saved_step(const Gradc *run); /* of the newest complete checkpoint; -1: none yet */

/* What changes what training computes, and what its last bits may depend on (processor, kernels, threads, library), as
 * a checkpoint's manifest has it: *n names, values as JSON. They live as long as run. NULL and none without memory. */
const GradcPair *gradc_settings(Gradc *run, int *n);

/* grad.NAME.npy for every trainable parameter, loss.npy and names.json; after accumulate. */
Status gradc_dump_gradients(Gradc *run, const char *folder);
/* One run on whole inputs (.npy of the shapes of the ports): the graph's outputs, or with
 * `backward` the loss and the gradients, as NAME.npy and names.json in a folder. */
Status gradc_once(Gradc *run, const GradcPairs *inputs, bool backward, const char *folder);
/* The worst entry of a parameter so far, by error = |difference - gradient| / max(|difference|, |gradient|, 1e-4). Entries where
 * the loss has a kink, as at the 0 of a ReLU, have no slope to compare with; the worst is of them only where all are. */
typedef struct {
	const char *name; /* of the parameter */
	double error, gradient, difference;
	int64_t at;              /* in the parameter, row-major */
	int64_t checked, kinks;  /* entries of the parameter so far; of them at a kink */
	int64_t done, n_entries; /* of all parameters */
	bool complete;           /* the parameter's entries are done */
} GradcCheck;
typedef struct {
	const GradcPairs *inputs; /* as of gradc_once */
	int64_t entries;          /* of each parameter, at random; all of one that has no more */
	void (*report)(void *context, const GradcCheck *check); /* after each entry */
	void *context;
} GradcCheckOptions;
/* Gradients of one micro-batch against central differences, of a model compiled with --eval-mode=as-exported. */
Status gradc_check_gradients(Gradc *run, const GradcCheckOptions *options);
/* The trained model: with adapters beside their weights, as they were trained. */
/* Around rank 0's exports; every rank calls both, and in the first the others lend rank 0 their parts of states until it calls the
 * second. */
Status gradc_begin_exports(Gradc *run);
Status gradc_end_exports(Gradc *run);
Status gradc_export(Gradc *run, const char *path);
/* The model as it was compiled, its weights with their adapters' products added. */
Status gradc_export_merged(Gradc *run, const char *path);
/* The adapters alone, and what else was trained: a folder as PEFT reads it. */
Status gradc_export_adapter(Gradc *run, const char *folder);
/* Whether that option could be followed. "--export-merged", "--export-adapter", "--load-adapter": EXIT_USAGE where there are no
 * adapters, or the names of their modules are not known; "--export": EXIT_UNSUPPORTED where a node can have no branch. */
Status gradc_check_adapters(Gradc *run, const char *option);

/* What the codes of an activation are made with, where --quantize gave it a running range: x has the code
 * round(x / scale) + zero_point. */
typedef struct {
	const char *name; /* of the ONNX value */
	double low, high, scale;
	int zero_point;
} GradcRunningRange;
typedef struct {
	const GradcRunningRange *at;
	int n;
} GradcRunningRanges;
/* Are they to be read after this step? At most 66 times a training: first, last, evenly between; never where there is none. */
bool gradc_ranges_due(const Gradc *run, int64_t step);
/* As they stand; no step may be under way. In an arena. */
Status gradc_running_ranges(Gradc *run, Arena *arena, GradcRunningRanges *out);

/* What the instructions took in the steps that were measured, in the order of the tables. */
typedef struct {
	double *seconds; /* NULL: options.profile was off */
	int64_t *runs;
	int64_t steps[12]; /* numbers of those steps */
	int n_steps;
} GradcProfile;
const GradcProfile *gradc_profile(const Gradc *run);
/* Completes the trace, as gradc_close does, which cannot say what went wrong. Nothing but it may be
 * called afterwards. */
Status gradc_finish(Gradc *run);

#endif
