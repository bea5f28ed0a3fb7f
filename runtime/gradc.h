/* The runtime as a library: open a compiled model, train it, evaluate it, write it back.
 *
 * No call exits the process or installs signal handlers. Every call that can fail returns a Status, with the exit codes of the
 * command line. If memory runs out, the exit code is EXIT_SYSTEM, and the session can still be closed. Calls may come in any
 * order. A call returns EXIT_USAGE and does nothing if it does not fit the earlier calls, if an argument must not be NULL but
 * is, or if an option makes no sense. Calls that only return information need a session that gradc_open has made.
 *
 * A session is a Gradc: it owns its states, threads, files and settings. A session belongs to one thread at a time: a call
 * during another thread's call returns EXIT_USAGE, and so does a call from a callback. gradc_close must come after all other
 * calls. Calls on different sessions may run at the same time, gradc_open included, even for the same model. Two sessions must
 * not save to the same folder (the second gets EXIT_CHECKPOINT) or write the same file.
 *
 * The following belongs to the process. Locks or atomics guard what sessions share:
 *
 * - the list of temporary files (base/cleanup.c), and the list of memory that failed calls left until their session closes
 * - jansson's allocation functions: the first gradc_open sets them, unless the host has set its own
 * - oneDNN and libgomp, which stay loaded, and oneDNN's cache of primitives. libgomp makes a team of threads for each thread
 *   that calls it; the session that uses a team sets its CPUs
 * - $GOMP_SPINCOUNT: the first gradc_open sets it, unless it or $OMP_WAIT_POLICY is set already. As with every setenv, no other
 *   thread may read the environment meanwhile
 * - MPI, if the communicator is "auto" and a launcher started the process: a single session per process, because MPI ends with
 *   the session
 *
 * While a call makes a file or folder, signals are blocked in the calling thread.
 *
 * gradc_open -> gradc_bind_data -> gradc_resume -> gradc_step, gradc_save ... -> gradc_evaluate,
 * gradc_export -> gradc_close
 *
 * Beside the computing threads, a Gradc has a thread that reads data, and with `save` a thread that writes checkpoints from a
 * copy of the states. With other ranks there is a thread that answers them. These threads handle no signals. */
#ifndef GRADC_RUNTIME_GRADC_H
#define GRADC_RUNTIME_GRADC_H

#include "format/format.h"

typedef struct Gradc Gradc;

/* Declares the model of a library that `gradc compile --emit=library -o libNAME.so` has written. */
#define GRADC_MODEL(name) extern const GradcModel gradc_model_##name

/* An option's NAME=VALUE. */
typedef struct {
	const char *name, *value;
} GradcPair;
typedef VEC(GradcPair) GradcPairs;

/* Upper limits. GRADC_MOST_STEPS: number of steps. GRADC_MOST_PARTS: numbers of epochs, micro-batches in a step, rows and
 * ranks. */
#define GRADC_MOST_STEPS (1ll << 53)
#define GRADC_MOST_PARTS (1ll << 31)

/* Options of gradc_open. Everything that they point to must live as long as the run. */
typedef struct {
	GradcPairs data, eval_data, fill, scale, mean_std;
	const char *tokens, *text, *eval_tokens, *eval_text;
	/* "X" or "X,SEED": holds this share of the training rows out for evaluation, by class if labels are classes. NULL:
	 * trains on all rows. */
	const char *split;
	int64_t steps, epochs; /* -1: not given; without both, one epoch */
	int64_t accumulate, warmup;
	/* Expected rows of a step over all ranks, and of a micro-batch; 0: any number. A different number is EXIT_USAGE. With
	 * `accumulate` 0, global_batch determines the number of micro-batches in a step. */
	int64_t global_batch, micro_batch;
	/* Where the two numbers come from, as "FILE: ", for messages; NULL: "". */
	const char *global_batch_origin, *micro_batch_origin;
	uint64_t seed;
	bool shuffle, keep_last;
	const char *lr_schedule; /* NULL: constant */
				 /* Hyperparameters: lr, beta1 ... NaN: the optimizer's default */
#define HYPER(index, name, option, below, help) double name;
#include "base/numbers/optimizer_list.def"
	double min_lr, clip_norm, clip_value; /* NaN: 0, no limit, no limit */
	const char *load, *load_adapter, *weights;
	const char *adapter; /* name of an adapter that is kept in the executable; NULL: none */
	/* merge: adds the loaded adapters to their weights and starts new adapters. unmerge: subtracts the loaded adapters from
	 * weights that hold the sums. */
	bool merge, unmerge;
	/* What gradc_export writes: "last", the weights as they are; "ema", their moving averages; "best", the weights of the
	 * best step, which gradc_load_best brings back. NULL: "last". */
	const char *export_weights;
	/* The form of batch norms and Dropout that gradc_export writes. "inference": as evaluation computes them; "as-imported":
	 * as in the compiled file. NULL: "inference". */
	const char *export_form;
	/* gradc_export writes the numbers of `scale` and `mean_std` into the model, whose input then takes the integers of the
	 * data files. */
	bool export_preprocessing;
	/* "cpu", "cuda" or "cuda:1"; NULL: a GPU that runs the compiled code, otherwise the CPU. */
	const char *device;
	/* One of the compiled targets, such as "cpu:x86-64-v3" or "cuda:sm_90a"; NULL: the best that the devices of all ranks
	 * run. */
	const char *target;
	/* "self" or NULL: one rank; "auto": the ranks that a launcher started */
	const char *communicator;
	/* Sums over ranks. "ordered": in the order of the ranks, so that W ranks give the bits of W accumulation steps. "fast":
	 * in any order. NULL: ordered up to 8 ranks. */
	const char *reduce;
	/* One of the compiled modes: "ddp", "zero1", "zero2" or "zero3"; NULL: the first of them. */
	const char *data_parallel;
	/* States in the host's memory, such as "optimizer,params"; must be the states that were compiled so. NULL: as
	 * compiled. */
	const char *offload;
	/* folder for a nameless file that holds these states; NULL: memory */
	const char *offload_folder;
	/* ranks in a group that holds all parts; further groups hold copies; 0: all ranks */
	int64_t shard_size;
	/* What carries collectives of GPUs: "nccl"; "host": the launcher's library; "auto" or NULL: NCCL if each rank has a GPU
	 * of its own, otherwise the host. */
	const char *collectives;
	/* for gradc_once and gradc_check_gradients: trains nothing, uses one rank and whole states */
	bool alone;
	const char *trace; /* file for spans of time; NULL: no trace */
	bool profile;      /* measure the instructions of a few steps */
	/* Folder of checkpoints; NULL: no checkpoints, and no memory for them. */
	const char *save;
	/* a checkpoint, a folder of checkpoints, or "auto": the newest in `save` */
	const char *resume;
	int64_t keep;   /* number of newest checkpoints to keep; 0: all */
	bool keep_best; /* also keep the checkpoint of the best evaluation so far */
	/* Decides which evaluation is the best: "loss", "accuracy", "top5" or another metric (docs/evaluation.md). EXIT_USAGE if it
	 * has no meaning for the model's loss. NULL: what the resumed training had, otherwise "loss". */
	const char *metric;
	/* evaluations compute every metric that has a meaning, and the results by class */
	bool every_metric;
	/* "N" or "N,min-delta=X": gradc_best says that training should end after N evaluations in a row that are not better
	 * by more than X. NULL: never. */
	const char *early_stop;
	int64_t shard_bytes; /* approximate size of a checkpoint's files */
	/* computing threads; 0: one per CPU that the process may use, or a single one if steps are short */
	int64_t threads;
	/* Engines (algorithms) of libraries on a GPU. NULL: they are tried at the start, unless `deterministic`, and kept in
	 * checkpoints. "off": nothing is tried. Otherwise a file, in which choices are kept, too. */
	const char *tune;
	bool deterministic; /* same bits with any number of threads */
	bool libraries;     /* use libraries if they are faster than generated code */
	/* In bytes. Data files with rows below 16 KiB are read once and kept in memory, up to this size. */
	int64_t keep_data;
	/* gradc_evaluate calls it between micro-batches. If it returns true on any rank, gradc_evaluate returns EXIT_PREEMPTED
	 * on all ranks. NULL: evaluations are never interrupted. */
	bool (*interrupted)(void *context);
	void *interrupted_context;
	/* after EXIT_NON_FINITE the step is run again, to find where the first NaN or infinity began */
	bool find_nan;
	bool poison; /* for tests: freed memory holds NaN */
} GradcOptions;
GradcOptions gradc_default_options(void);

/* Kinds of numbers that are not finite, and a description of an array's numbers. */
typedef enum { GRADC_NAN, GRADC_PLUS_INFINITY, GRADC_MINUS_INFINITY, GRADC_N_UNFIT } GradcUnfit;
typedef struct {
	int64_t elements;
	int64_t n[GRADC_N_UNFIT]; /* count per GradcUnfit */
	double least, most;       /* range of the finite numbers; if there are none, least > most */
} GradcRange;
typedef struct {
	const char *name;  /* in the model, or of the ONNX node that makes it */
	const char *kind;  /* "parameter", "input", "gradient" ...; "" for a node's result */
	const char *dtype; /* such as "f32" */
	const char *shape; /* such as "[8,16]"; NULL if only the number of elements is known */
	GradcRange range;
	bool is_result; /* result of the kernel; false: an operand */
	/* For an operand that is not finite: where its NaN or infinity came from, as text, such as: from "/a". NULL if
	 * unknown. */
	const char *since;
} GradcTensor;
/* The origin of a failed step's first number that is not finite. */
typedef struct {
	StringList nodes;     /* ONNX nodes; several if one kernel computes them */
	StringList gradients; /* ONNX nodes whose gradient the kernel computes */
	/* "forward", "backward" or "update"; "" if a tensor held the number before the step. */
	const char *phase;
	int64_t micro_batch;        /* of this rank, counted from 1 */
	const GradcTensor *tensors; /* results that are not finite, then operands */
	int n_tensors;
	/* The ONNX nodes that turned the infinity into NaN, as text. NULL if no node did, or if the first number is a NaN
	 * already. */
	const char *nan;
} GradcNotFinite;

typedef struct {
	int64_t step; /* number of completed steps, with this one */
	double loss;  /* mean over the step's valid targets */
	double lr, grad_norm;
	double count; /* valid targets; with 0 there was no update */
	/* The loss was multiplied by this number; NaN if the loss scale never changes. With `overflow` the gradients were not
	 * finite and there was no update; the next step has a smaller loss scale. */
	double loss_scale;
	bool overflow;
	int64_t overflows; /* steps of this run that overflowed */
	int64_t samples;   /* positions of the data order so far */
	int64_t rows;      /* rows of this step */
	double seconds;
	double phase_seconds[N_PHASES];
	double data_seconds; /* part of `seconds` until the rows were in place */
	/* micro-batches whose rows were still being read when they were needed */
	int64_t data_waits;
	/* Bytes copied to the device and back, for --offload. */
	int64_t offload_in_bytes, offload_out_bytes;
	/* Time since the previous step that was spent copying states for checkpoints and waiting for earlier checkpoints. Not
	 * part of `seconds`. */
	double save_seconds;
	/* With options.find_nan, after EXIT_NON_FINITE: the origin. It lives as long as the run. NULL if it is unknown, or
	 * known to another rank. */
	const GradcNotFinite *not_finite;
} GradcStep;

/* A metric of an evaluation. */
typedef struct {
	const char *name; /* as in options.metric; lives as long as the run */
	double value; /* NaN if the rows do not determine it, for example the AUC of rows of a single class */
	bool higher_is_better;
	bool is_field; /* GradcEval has a field of this name */
} GradcMetric;
enum { GRADC_MAX_METRICS = 16 };
/* Results by class. Lives until the next evaluation. */
typedef struct {
	int64_t classes;
	const double *precision, *recall, *f1; /* by class */
	const int64_t *support;                /* by class: targets with this label */
	/* [classes][classes]: how many targets of class i (row) were predicted as class j; NULL with more than 1024 classes, and if
	 * a row has several labels that are 0 or 1 */
	const int64_t *confusion;
} GradcByClass;
typedef struct {
	double loss, count;
	double accuracy, perplexity; /* NaN if the model does not have it */
	int64_t rows;                /* evaluated rows */
	int64_t all_rows;            /* rows in the files */
	const char *left_out;        /* why rows < all_rows; NULL: every row was evaluated */
	double seconds;
	GradcMetric metric; /* the one of gradc_best */
	/* all metrics that were computed, in the order of the documentation; with every_metric all that have a meaning */
	GradcMetric metrics[GRADC_MAX_METRICS];
	int n_metrics;
	const GradcByClass *by_class; /* NULL without every_metric, or without classes */
} GradcEval;

/* Allocates states and sets their initial values. diag receives warnings, and all faults but the returned one; it may be NULL. */
Status gradc_open(const GradcModel *model, const GradcOptions *options, Diag *diag, Gradc **out);
void gradc_close(Gradc *run); /* run may be NULL */
/* Opens the training data, and the evaluation data if the options name any. */
Status gradc_bind_data(Gradc *run);
/* Opens only the evaluation data, in place of gradc_bind_data: for evaluations without training data. */
Status gradc_bind_eval_data(Gradc *run);
bool gradc_has_eval(const Gradc *run);
int64_t gradc_total_steps(const Gradc *run); /* of the whole training; after gradc_bind_data */
/* Rows of the data; after gradc_bind_data. */
typedef struct {
	int64_t train,
		eval;  /* of training and of evaluation; eval 0: there are no evaluation data */
	bool held_out; /* options.split holds the rows for evaluation out */
	int64_t step;  /* rows of a step over all ranks */
	int64_t steps_per_epoch;
} GradcRows;
GradcRows gradc_rows(const Gradc *run);
int64_t gradc_accumulation(const Gradc *run); /* micro-batches in a step; after gradc_bind_data */
const Format *gradc_tables(const Gradc *run);
int gradc_binding(const Gradc *run); /* the binding that fits the data */
int gradc_target(const Gradc *run);  /* the target whose programs run; a number in the tables */
/* Describes the device, as --info does. */
void gradc_describe_device(const Gradc *run, Text *out);
bool gradc_holds_parts(const Gradc *run); /* ranks hold parts of states */
/* Describes the states that a rank holds in parts, and those that it holds whole; false if all are whole. */
bool gradc_describe_parts(const Gradc *run, Text *out);
/* Number of 16-bit products and convolutions that a library could run. *by_loops: how many of these run as generated loops
 * here, for example because the CPU lacks the instructions that the library needs. */
int gradc_narrow_products(const Gradc *run, int *by_loops);
/* Says whether the device has instructions for the model's precision, and what computes the products. */
void gradc_describe_precision(const Gradc *run, Text *out);
/* Why this device was chosen, such as "the executable has no code for GPUs". */
const char *gradc_why_device(const Gradc *run);
/* FLOPs of a step on this rank: its micro-batches and the update. */
int64_t gradc_step_flops(const Gradc *run);
double gradc_step_bytes(const Gradc *run); /* memory traffic of a step's kernels */
/* Seconds that a step should take on this device: a rough prediction, from the FLOPs and bytes of its kernels. */
double gradc_predict_step(const Gradc *run);
/* The most FLOP/s of the device, in the types of the model's largest product. */
typedef struct {
	double flops;       /* 0: unknown */
	const char *source; /* where the number comes from, or why the peak is unknown */
} GradcPeak;
/* After gradc_bind_data. On a CPU the peak is measured when the data are bound, if the training has 1e12 FLOPs or more. */
const GradcPeak *gradc_peak(const Gradc *run);
/* Model FLOPs utilization of a step that took so many seconds: FLOPs of the step / (seconds x peak). NaN if the peak is
 * unknown. */
double gradc_mfu(const Gradc *run, double seconds);
int64_t gradc_tokens_per_row(const Gradc *run); /* 0 if rows are not token sequences */

/* A region of memory. Its name is from space_table, or "snapshot" (the copy that checkpoints are written from), or "library"
 * (scratch of libraries). */
typedef struct {
	const char *name;
	int64_t bytes;
	bool on_host; /* in the host's memory, even if a GPU trains */
	/* in the file of --offload-dir; the system caches as much of it as fits into memory */
	bool in_file;
} GradcRegion;
enum { GRADC_MAX_REGIONS = N_SPACES + 3 };
/* Lists the non-empty regions of a training; returns their number. */
int gradc_regions(const Gradc *run, GradcRegion out[GRADC_MAX_REGIONS]);
int64_t gradc_peak_bytes(const Gradc *run); /* bytes of all regions that are not in files */
/* Bytes of the regions in a GPU's memory; 0 on the CPU. */
int64_t gradc_gpu_bytes(const Gradc *run);
/* Bytes of the GPU's memory: taken by all processes, and in total. false on the CPU. */
bool gradc_gpu_memory(const Gradc *run, int64_t *taken, int64_t *total);

/* This rank and the number of ranks that train together; 0 of 1 without a launcher. */
int gradc_rank(const Gradc *run);
int gradc_ranks(const Gradc *run);
const char *gradc_reduce(const Gradc *run); /* "ordered" or "fast" */
/* What carries collectives: "NCCL 2.27.5"; "mpi ...", with the reason why NCCL cannot be used; or "self" with one rank. */
const char *gradc_collectives(const Gradc *run);
/* The largest of all ranks' values. Every rank must call it. */
Status gradc_agree(Gradc *run, int own, int *most);
/* EXIT_COMM, naming both values, if a rank's option differs from rank 0's. Every rank must call it. */
Status gradc_compare(Gradc *run, const char *option, int64_t value);
/* Compares an output's option with rank 0's, which alone is followed; path NULL: not given. EXIT_COMM if another rank has the
 * option and rank 0 does not; a warning on a rank that has another path. Every rank must call it. */
Status gradc_compare_output(Gradc *run, const char *option, const char *path);
/* Makes a fault of one rank the fault of all ranks; allowed even after gradc_finish. Every rank passes its own fault, or NULL;
 * gradc_share then owns this fault. If ranks have faults, the first of these ranks gets its own fault back, and all other ranks
 * get a fault with the same exit code and an empty message. NULL if no rank has a fault. */
Status gradc_share(Gradc *run, Status own);
/* All ranks know the fault that ended the last call, and ended the same call with it. So they may save and export together. */
bool gradc_is_shared(const Gradc *run);
/* The text of the last fault that gradc_share has shared, the same on every rank, such as "rank 1: labels.npy: ..."; "" without
 * such a fault. Lives as long as the run. */
const char *gradc_shared_fault(const Gradc *run);
/* Ends all ranks with this exit code, because this rank cannot continue. Does nothing if the other ranks know the fault
 * already. */
void gradc_abort(Gradc *run, int exit_code);

/* Makes one step. After EXIT_NON_FINITE the parameters are those before the step, and *out is filled. If one rank cannot read
 * its rows, all ranks get the fault, as with gradc_share, and the states are those before the step. */
Status gradc_step(Gradc *run, GradcStep *out);
/* Queues a step without waiting, while the device computes the one before. At most two steps may be queued. Their results must
 * be taken before gradc_step, its two halves, gradc_save and gradc_resume; otherwise these return EXIT_USAGE. */
Status gradc_queue_step(Gradc *run);
/* Takes the result of the oldest queued step. *got: a result was taken. With `wait`, waits for the result if a step is queued.
 * After EXIT_NON_FINITE, what gradc_step says holds, and steps that were queued after the failed step have changed nothing.
 * With several ranks, rows that a rank could not read are a fault here; afterwards no step is queued. */
Status gradc_step_result(Gradc *run, bool wait, GradcStep *out, bool *got);
int gradc_steps_queued(const Gradc *run);
/* the host computes, so a step is done when it is queued */
bool gradc_computes_at_once(const Gradc *run);
/* The two halves of a step, for looking at the gradients between them. Both wait. Between them, other calls that compute or
 * save return EXIT_USAGE. */
Status gradc_accumulate(Gradc *run, GradcStep *out);
Status gradc_update(Gradc *run, GradcStep *out);
Status gradc_evaluate(Gradc *run, GradcEval *out);
/* Evaluates with the moving averages of the weights (compiled with --ema) in place of the weights. EXIT_USAGE without
 * averages. */
Status gradc_evaluate_averages(Gradc *run, GradcEval *out);
bool gradc_has_averages(const Gradc *run);
/* The best evaluation so far. Part of checkpoints. */
typedef struct {
	const char *metric; /* from options.metric */
	bool higher_is_better;
	int64_t step;  /* after which the evaluation was made; -1 before the first evaluation */
	double value;  /* of the metric; NaN before the first evaluation */
	uint64_t data; /* fingerprint of the evaluated rows; 0: unknown */
	/* Early stopping: the value that an evaluation must beat, and the number of evaluations in a row that did not. */
	double mark;
	int64_t since;
	bool improved; /* the evaluation that was judged last is the best one */
	bool stops;    /* options.early_stop ends the training here */
} GradcBest;
/* Judges an evaluation of the present step by options.metric. counts: early stopping counts this evaluation; which
 * evaluations count must not depend on where a run was interrupted. All ranks must pass the same evaluation. */
void gradc_judge(Gradc *run, const GradcEval *eval, bool counts);
const GradcBest *gradc_best(const Gradc *run);
/* Loads the states of the best step from its checkpoint in options.save, or beside the resumed one. The place in the data does
 * not change, so training must not go on. EXIT_CHECKPOINT if there is no such checkpoint, EXIT_USAGE without an evaluation. */
Status gradc_load_best(Gradc *run);

/* ---- predictions: the model's outputs for any number of rows */
enum { GRADC_MAX_OUTPUTS = 256 };
typedef struct {
	const char *name; /* in the model; lives as long as the run */
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK]; /* shape of one row's output */
	int64_t elements;       /* of one row's output */
	bool is_compared;       /* the loss compares this output with the labels */
} GradcOutput;
typedef struct {
	const GradcOutput *
		outputs; /* the first GRADC_MAX_OUTPUTS outputs that have rows; live as long as the run */
	int n_outputs;
	int64_t rows; /* rows in the files */
} GradcPredictions;
/* Opens options.data, in place of gradc_bind_data. Labels among the data are ignored. EXIT_DATA if the rows do not fill whole
 * batches and a row's output depends on other rows. */
Status gradc_bind_predict_data(Gradc *run, GradcPredictions *out);
typedef struct {
	int only; /* number of the only output to compute; -1: all outputs */
	/* Called on rank 0 with the next `rows` rows, in order. outputs: of each wanted output its rows, one after the other; valid
	 * during the call. A fault ends the predictions. */
	Status (*take)(void *context, int64_t rows, const void *const *outputs);
	void *context;
} GradcPredict;
/* Computes the outputs of all rows; ranks share the work. EXIT_PREEMPTED if options.interrupted returned true on any rank. */
Status gradc_predict(Gradc *run, const GradcPredict *options);

/* The states are those of a whole step, so they may be saved and exported even after a fault. */
bool gradc_is_whole(const Gradc *run);
/* The loss of an evaluation, for lr_schedule "plateau"; other schedules ignore it. No step may be queued, and all ranks must
 * pass the same loss. */
void gradc_schedule_loss(Gradc *run, double loss);

typedef struct {
	/* path of the checkpoint; NULL: there was no checkpoint, and training starts fresh */
	const char *path;
	int64_t step, samples;
	double loss, eval_loss; /* of the checkpoint's step; NaN if unknown */
	double age;             /* seconds since it was written, by the file system's clock */
} GradcResume;
int64_t gradc_steps_done(const Gradc *run); /* queued steps included */
/* Continues from the checkpoint that options.resume names: states, step and place in the data become those of the checkpoint.
 * Called after gradc_bind_data, or without data to use only the weights. Warns about settings and data that differ. A damaged,
 * foreign or newer checkpoint is EXIT_CHECKPOINT; only "auto" falls back to an earlier checkpoint, with a warning. *out lives
 * as long as the run. */
Status gradc_resume(Gradc *run, GradcResume *out);
/* Copies the states, and writes the copy as a checkpoint of this step in the background, after the checkpoint before is
 * written. eval_loss: of this step; NaN if unknown. A checkpoint that could not be written is a warning of this or a later
 * call, and leaves earlier checkpoints alone. The third failure in a row is EXIT_CHECKPOINT. */
Status gradc_save(Gradc *run, double eval_loss);
/* The same for a checkpoint that is only wanted because its evaluation is the best so far (options.keep_best): the checkpoint
 * of a better one replaces it. */
Status gradc_save_best(Gradc *run, double eval_loss);
/* Checks before training that the names of the coming checkpoints are free: of the last step, and of every `every`-th step (0:
 * only the last). EXIT_CHECKPOINT if something that is not a checkpoint, or a readable checkpoint that this run cannot continue
 * from, has such a name. If such a thing appears only later, it is left alone, and the checkpoint gets another name. All ranks
 * call it, after gradc_resume. */
Status gradc_check_saves(Gradc *run, int64_t every);
/* Reports finished checkpoints; with `wait`, waits for the one that is being written. */
Status gradc_save_poll(Gradc *run, bool wait);
/* Does each rank write its parts of a checkpoint? Then all ranks must call gradc_save and gradc_save_poll, in the same order as
 * their other calls; after a fault that other ranks do not have, a rank calls neither. A checkpoint is complete when
 * gradc_save_poll has waited for it; closing drops an incomplete one. */
bool gradc_saves_together(const Gradc *run);
/* step of the newest complete checkpoint; -1 without one */
int64_t gradc_saved_step(const Gradc *run);

/* The settings that change what training computes, and the facts on which the last bits of results may depend (processor,
 * kernels, threads, library), as in a checkpoint's manifest: *n names, with values as JSON. They live as long as the run. NULL
 * and 0 if memory runs out. */
const GradcPair *gradc_settings(Gradc *run, int *n);

/* Fingerprints as in a checkpoint's manifest: of the model, and of the training data (0 if they cannot be read). */
typedef struct {
	uint64_t model, data;
} GradcFingerprints;
GradcFingerprints gradc_fingerprints(Gradc *run);

/* How the engines (algorithms) of a GPU's libraries were chosen: numbers of different calls. */
typedef struct {
	int tried;  /* the fastest in trials at the start of this run */
	int known;  /* chosen by an earlier run */
	int first;  /* the library's own first choice */
	int faulty; /* engines of these calls that failed in trials, of this run or earlier runs */
	double seconds; /* that this run's trials took */
} GradcEngines;
GradcEngines gradc_engines(const Gradc *run);

/* Writes grad.NAME.npy for every trainable parameter, loss.npy and names.json; after gradc_accumulate. */
Status gradc_dump_gradients(Gradc *run, const char *folder);
/* Runs a program once on whole inputs (.npy with the shapes of the ports). Writes the graph's outputs, or with `backward` the
 * loss and the gradients, as NAME.npy and names.json to a folder. */
Status gradc_once(Gradc *run, const GradcPairs *inputs, bool backward, const char *folder);
/* The worst entry of a parameter so far, by error = |difference - gradient| / max(|difference|, |gradient|, 1e-4). At a kink of
 * the loss, as at the 0 of a ReLU, there is no slope to compare with; such an entry is the worst only if all entries are at
 * kinks. */
typedef struct {
	const char *name; /* of the parameter */
	double error, gradient, difference;
	int64_t at; /* index in the parameter, row-major */
	/* checked entries of the parameter; how many of them are at a kink */
	int64_t checked, kinks;
	int64_t done, n_entries; /* entries of all parameters: checked; in total */
	bool complete;           /* all entries of the parameter are checked */
} GradcCheck;
typedef struct {
	const GradcPairs *inputs; /* as in gradc_once */
	int64_t entries;          /* per parameter, at random; all entries of a smaller parameter */
	void (*report)(void *context, const GradcCheck *check); /* called after each entry */
	void *context;
} GradcCheckOptions;
/* Compares the gradients of one micro-batch with central differences. The model must be compiled with --eval-mode=as-exported. */
Status gradc_check_gradients(Gradc *run, const GradcCheckOptions *options);
/* Called by every rank around rank 0's exports. In gradc_begin_exports the other ranks send rank 0 their parts of states, until
 * rank 0 calls gradc_end_exports. */
Status gradc_begin_exports(Gradc *run);
Status gradc_end_exports(Gradc *run);
/* Writes the trained model, with adapters beside their weights, as they were trained. If the path ends in .safetensors: the weights
 * alone, under the names of the module from which the ONNX file was exported. */
Status gradc_export(Gradc *run, const char *path);
/* The form that gradc_export writes, such as "inference form: 2 batch norms by running statistics"; valid until the run is
 * closed. */
const char *gradc_export_form(const Gradc *run);
/* The same for the model as it was compiled, with the adapters' products added to its weights. */
Status gradc_export_merged(Gradc *run, const char *path);
/* Writes the adapters, and the other trained parameters, as a folder that PEFT reads. */
Status gradc_export_adapter(Gradc *run, const char *folder);
/* Checks whether an option can be followed. "--export-merged", "--export-adapter", "--load-adapter": EXIT_USAGE if there are no
 * adapters, or if the names of their modules are unknown. "--export": EXIT_UNSUPPORTED if a node reads an adapted weight, but
 * cannot have a branch for the adapter. */
Status gradc_check_adapters(Gradc *run, const char *option);

/* Scale and zero point of an activation to which --quantize gave a running range: x has the code round(x / scale) + zero_point. */
typedef struct {
	const char *name; /* of the ONNX value */
	double low, high, scale;
	int zero_point;
} GradcRunningRange;
typedef struct {
	const GradcRunningRange *at;
	int n;
} GradcRunningRanges;
/* Should ranges be read after this step? True at most 66 times in a training: first, last, and evenly between; never without
 * ranges. */
bool gradc_ranges_due(const Gradc *run, int64_t step);
/* The present ranges, in the arena. No step may be under way. */
Status gradc_running_ranges(Gradc *run, Arena *arena, GradcRunningRanges *out);

/* Times of instructions in the measured steps, in the order of the tables. */
typedef struct {
	double *seconds; /* NULL without options.profile */
	int64_t *runs;
	int64_t steps[12]; /* numbers of the measured steps */
	int n_steps;
} GradcProfile;
const GradcProfile *gradc_profile(const Gradc *run);
/* Completes the trace. gradc_close does it, too, but cannot return the fault. Afterwards only gradc_share and gradc_close may
 * be called. */
Status gradc_finish(Gradc *run);

#endif
