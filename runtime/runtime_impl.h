/* What the files of the runtime share; users see gradc.h. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_IMPL_H
#define GRADC_RUNTIME_IMPL_H

#include "runtime/checksum.h"
#include "runtime/comm.h"
#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/gradc.h"

#include <jansson.h>
#include <pthread.h>

/* ---- variant.c */
typedef struct {
	const DeviceOps *ops;
	int ordinal;        /* of the devices of its kind; -1: not known yet */
	Status why_not_gpu; /* why code for GPUs is there and not run, where nobody asked for a device; NULL: it is run, or not there */
} DeviceChoice;
/* device: "cpu", "cuda", "cuda:1"; NULL: a GPU that runs some of the code (of the target that is asked for), else the CPU. Of
 * several GPUs each rank of a machine takes another one. */
Status device_choose(const CodeImage *all, const char *device, const char *target,
                     DeviceChoice *out);
/* Bit i: this device runs all[i]. asked: no other than that one, "cpu:x86-64-v3"; NULL: any. EXIT_SYSTEM, saying why, when
 * it runs none of them; EXIT_USAGE when there is none of that name. */
Status variant_list(const CodeImage *all, const char *asked, const DeviceChoice *device,
                    uint64_t *out);
/* That which may use most, of a set of them; NULL: of none. */
const CodeImage *variant_best(const CodeImage *all, uint64_t of);
/* Of those that this device runs. */
Status variant_pick(const CodeImage *all, const char *asked, const DeviceChoice *device,
                    const CodeImage **out);

/* ---- carrier.c: NCCL, or the launcher's communicator. All ranks call both. */
Status carrier_pick(Gradc *run, const CommOptions *options); /* all have the same status */
Status carrier_attach(Gradc *run); /* when all have opened their executors */
void carrier_describe(Text *out);  /* "NCCL 2.27.5", or why there is none here */

/* ---- trace.c: spans of time, in a file. */
typedef enum {
	TRACK_TRAINING,
	TRACK_READING,
	TRACK_SAVING,
	TRACK_COMMUNICATION,
	TRACK_COPY_IN,
	TRACK_COPY_OUT,
	N_TRACKS
} TraceTrack;
typedef struct {
	TraceTrack track;
	const char *category, *name;
	double begin, end;    /* of seconds_now() */
	const char *origin;   /* ONNX names; NULL: none */
	const char *kernel;   /* that ran; NULL: none */
	const char *count_of; /* what `count` counts; NULL: nothing */
	int64_t count;
} TraceSpan;
Status trace_open(Arena *arena, const char *path, Trace **out);
void trace_span(Trace *t, const TraceSpan *s); /* from any thread; NULL is allowed */
/* Completes the file, or says what went wrong since trace_open. NULL is allowed. */
Status trace_close(Trace *t);
void trace_abort(Trace *t); /* no file; NULL is allowed */

/* ---- observe.c: what each instruction took, for trace and profile. */
struct Observer {
	const Format *format;
	Trace *trace;        /* NULL: none */
	const char **titles; /* of the instructions, for the trace */
	GradcProfile profile;
	bool sampling;     /* this step adds to the profile */
	VEC(uint32_t) ran; /* instructions of the program's run, in order */
	double base;       /* when it began */
	int phase;
	double phase_begin, last_end;
	bool sees_collectives; /* they take their time on streams; else each has a span of its own (collective.c) */
};
Status observe_open(Gradc *run);
void observe_step(Gradc *run, int64_t step);
/* From `begin` until now; count < 0: none. */
void observe_span(Gradc *run, const char *name, double begin, int64_t count);

/* ---- gradient_check.c */
Status gradients_check(Gradc *run, const GradcCheckOptions *options);

/* ---- ranges.c */
GradcRange range_of_nothing(void);
bool range_is_finite(const GradcRange *r);
/* n more elements. Those that are not finite and have the bytes of `before` (NULL: none) are not counted. */
void range_add(GradcRange *r, DType t, const void *at, int64_t n, const void *before);

/* ---- find_nan.c: where a failed step's first number that is not finite comes from. */
/* From here on until finder_close runs are looked at. What it finds is the arena's. */
Status finder_open(Arena *arena, Executor *x);
void finder_close(Executor *x); /* also where opening it failed */
/* Findings, by number; -1: none of this rank's. */
typedef struct {
	int first; /* where the loss or the norm have their NaN or infinity from */
	int nan;   /* where the infinity of `first` became NaN */
} Cause;
Cause finder_result(const Executor *x, const ProgramRecord *update); /* after the step */
/* ---- find_nan_text.c */
const GradcNotFinite *finder_describe(const Gradc *run, const Cause *cause);
void finder_print(Text *out, const GradcNotFinite *found, int64_t micro_batches);

/* ---- poison.c: memory that holds no live value, made useless. */
Status poison_before(Executor *x, const ProgramRecord *p);
Status poison_after(Executor *x, const ProgramRecord *p, uint32_t instruction);

/* ---- philox.c */
double philox_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0, 1) */
double philox_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* ---- order.c: a permutation of [0, n) that needs no memory. */
typedef struct {
	int64_t n;
	bool shuffle;
	int half_bits;
	uint32_t keys[4];
} Order;
Order order_new(int64_t n, bool shuffle, uint64_t seed, int64_t epoch);
int64_t order_at(const Order *order, int64_t index);

/* ---- plateau.c: a learning rate that gets smaller when the loss of evaluations does not. */
enum { PLATEAU_FACTOR, PLATEAU_PATIENCE, PLATEAU_THRESHOLD, PLATEAU_COOLDOWN, PLATEAU_EPS };
typedef struct {
	double lr;        /* of steps behind the warm-up; 0: another schedule's */
	double first;     /* what it began as */
	double best;      /* loss; infinity: none yet */
	int64_t bad;      /* evaluations in a row that were not better */
	int64_t cooldown; /* evaluations to come that do not count */
} Plateau;
Plateau plateau_new(double lr);
/* One evaluation, as torch.optim.lr_scheduler.ReduceLROnPlateau.step. settings: by PLATEAU_... */
void plateau_step(Plateau *p, const double *settings, double least_lr, double loss);
/* Goes on as `saved` was, with this run's first learning rate where that is another one. */
void plateau_resume(Plateau *p, const Plateau *saved);

/* ---- inputs.c: the files that the options name; those that bound data are read from. */
void inputs_guard_named(Gradc *run);
void inputs_guard_bound(Gradc *run);

/* ---- check_options.c: EXIT_USAGE, naming the option, where a value makes no sense; or not with this model. */
Status options_check_values(const GradcOptions *o);
Status options_check_model(const Format *f, const GradcOptions *o);
Status pairs_check(const char *option, const GradcPairs *p);

/* ---- batch.c: settles how many micro-batches a step has, and checks what the caller takes for granted; after the data
 * is bound. */
Status batch_settle(Gradc *run);

/* ---- schedule.c: learning rates and the scalar block. */
enum { MOST_LR_SETTINGS = 5 };
typedef struct {
	const char *lr_schedule;              /* "step,size=10": with its settings */
	double lr_settings[MOST_LR_SETTINGS]; /* as lr_schedule_parse gives them */
	Plateau plateau;
	double values
		[N_SCALARS]; /* lr .. momentum, clip norm, loss scale, ranks: of the whole run */
	uint64_t seed;
	double min_lr;
	int64_t warmup, steps;
} Hyper;
/* Settings of a schedule, by its row's order; a fault of the text. */
Status lr_schedule_parse(const char *text, double *settings);
Status hyper_new(const Format *f, const GradcOptions *o, Hyper *out);
/* Learning rate of step s, from 0. */
double hyper_lr(const Hyper *h, int64_t s);
/* Of step s; `offset`: where in the step's rows the micro-batch begins. out NULL: nobody reads them. */
void hyper_scalars(const Hyper *h, int64_t s, int64_t offset, Scalar out[N_SCALARS]);
/* Of a schedule that ends with the training: its learning rates depend on how many steps there are, and on the least one. */
bool lr_schedule_has_end(const char *text);
bool lr_schedule_is(const char *text, const char *name);
extern const char *const lr_schedule_names[];
/* ---- schedule_deepspeed.c: its curves, as those of schedule.c's rows */
double lr_deepspeed_warmup(const Hyper *h, double at, double of);
double lr_deepspeed_decay(const Hyper *h, double at, double of);
double lr_deepspeed_cosine(const Hyper *h, double at, double of);
double lr_deepspeed_range(const Hyper *h, double at, double of);
double lr_deepspeed_cycle(const Hyper *h, double at, double of);

/* ---- source.c: rows of one input from files, tokens or constants. */
typedef struct {
	const char *path;
	int fd;
	NpyInfo info; /* of a token file: rank 1 */
	int64_t first_row, rows;
	char *kept; /* info.n_bytes; NULL: rows are read when they are wanted */
} DataFile;
typedef struct {
	DataFile *files;
	int n_files;
} FileSet;
typedef struct Source Source;
struct Source {
	const Format *format;
	const PortRecord *port;
	const char *name;
	Status (*read)(Source *s, int64_t row, int64_t n,
	               char *to); /* whole samples, port's dtype */
	int64_t rows;             /* -1: as many as anybody wants */
	int64_t elements;         /* of a sample; of the whole port when it has no samples */
	FileSet set;
	int64_t shift; /* tokens: labels are one further */
	char *raw;     /* rows as they are in the file; room for `chunk` of them */
	int64_t chunk;
	const char *constant;
	bool allow_nan;
	double scale, offset;
	const float *mean, *std; /* of each channel; NULL: none */
	int64_t channels, channel_stride;
	const void *bytes; /* [channels][256]: what a byte becomes; NULL: no table */
};
Status source_read_files(Source *s, int64_t row, int64_t n, char *to);
Status source_read_constant(Source *s, int64_t row, int64_t n, char *to);
/* Reads the source's files into memory where they are few, their rows are small, and together they are not more than
 * *left bytes, which it counts down. Rows of other sources may lie in the same files. */
Status source_keep(Arena *arena, Source *s, int64_t *left);
/* EXIT_DATA when a file that is kept is no longer as long as it was. */
Status source_check_kept(const Source *s);
bool source_is_sampled(const Source *s);

/* ---- decode.c: values of a file -> values of a port. */
/* n whole samples. */
void decode(const Source *s, DType from, const void *raw, int64_t n, void *to);
/* Makes s->bytes where the files hold bytes that are scaled. */
void decode_prepare(Arena *arena, Source *s, DType from);

/* ---- validate.c: values as the files hold them. */
Status validate_values(const Source *s, const DataFile *file, int64_t row, int64_t n,
                       const void *raw);
/* May a file of this type feed this port? */
bool validate_dtype(const PortRecord *port, DType file, bool scaled);

/* ---- files.c: opening what --data and its kin name. */
/* All files that `pairs` has for this name, in order. */
Status files_open(Arena *arena, const GradcPairs *pairs, const char *name, FileSet *out);
Status tokens_open(Arena *arena, const char *path, bool text, FileSet *out);
void files_close(FileSet *set);
const char *shape_text(Arena *arena, int rank, const int64_t *dims);

/* ---- data.c: all inputs of a program, bound to files. */
typedef struct {
	const GradcPairs *data, *fill, *scale, *mean_std;
	const char *tokens, *text;
	const char *option; /* "--data" or "--eval-data", for messages */
	bool whole;         /* one run on whole inputs: no epochs, NaN is a value like any other */
} DataOptions;
typedef struct {
	int binding;
	const ProgramRecord *program;
	Source *sources;
	int n_sources;
	int64_t rows, micro_rows;
	int64_t token_elements; /* of a row; 0: none */
	bool has_weight, shuffle;
	uint64_t seed;
	int64_t *picked; /* the rows of a micro-batch */
	char *sample;    /* some of them, before they are spread along the sample axis */
	bool at_hand; /* a micro-batch is small and in memory: waking another thread takes longer than reading it */
	FileSet *sets;
	int n_sets;
} Dataset;
/* Positions [first, end) of an epoch's order, at most a micro-batch; what is missing is padded. */
typedef struct {
	Dataset *dataset;
	int64_t epoch, first, end;
} MicroRows;
Status dataset_open(Gradc *run, Role role, const DataOptions *options, Dataset **out);
void dataset_close(Dataset *d);
/* Reads all inputs of a micro-batch to where they lie in the io region whose image this is. Not for
 * two threads at a time. */
Status dataset_read(const MicroRows *rows, char *image);
/* From an image of its own to where the host fills the program's inputs, of which no run is under way. */
void dataset_write(const Dataset *d, const Executor *x, const char *image);

/* ---- thread.c: EXIT_SYSTEM, saying what the thread was for, when there can be none. It gets no
 * signals; the caller joins it. */
Status thread_start(pthread_t *thread, const char *what_for, void *(*run)(void *), void *context);

/* ---- prefetch.c: the next micro-batch, read by a thread while this one is computed. */
typedef struct Prefetch Prefetch;
/* orphans: of what the thread's calls work on. */
Status prefetch_open(Arena *arena, Executor *x, Trace *trace, MemoryOrphans **orphans,
                     Prefetch **out);
void prefetch_close(Prefetch *p); /* waits for what is being read; NULL is allowed */
/* Returns at once, unless other rows are being read. */
void prefetch_ask(Prefetch *p, const MicroRows *rows);
typedef struct {
	bool waited; /* they were still being read */
	double begin,
		seconds; /* of the wait, without that for a device which has yet to read the rows before */
} DataWait;
/* The rows are in the io slots when it returns. */
Status prefetch_take(Prefetch *p, const MicroRows *rows, DataWait *out);
/* After prefetch_take gave a fault: fills the io slots with zeros in place of the rows. */
Status prefetch_take_zeros(Prefetch *p);

/* ---- unread_rows.c */
/* prefetch_take. Where there are several ranks, a fault is kept in *unread (the first fault; owned), the io slots are zero, and the rank
 * goes on. */
Status unread_take(Gradc *run, const MicroRows *rows, Status *unread, DataWait *wait);
/* Call it before a micro-batch of zeros runs: makes the step's count of targets NaN, and *micro a later micro-batch, which adds to the
 * count. */
Status unread_spoil_count(Gradc *run, MicroBatch *micro);
/* Every rank calls it with the count of targets over all ranks: ranks meet in it only where the count is NaN. Takes *unread. Gives the
 * fault on the first rank that has one, and the same exit code without a message on the other ranks; NULL if no rank has a fault. */
Status unread_share(Gradc *run, double count, Status *unread);

/* ---- bind.c: which source feeds which port of a binding. */
typedef struct {
	Gradc *run;
	const DataOptions *options;
	FileSet *data;  /* of options->data, same order; a name's first place has all its files */
	FileSet tokens; /* no files: not given */
} Files;
const FileSet *bind_set(const Files *files, const char *name); /* of --data; NULL: none */
/* ---- pick_binding.c: sets the program and its binding, for the role and the files. */
Status binding_pick(Gradc *run, Role role, const Files *files, Dataset *d);
/* Does the binding have the shapes of the files? */
bool bind_matches(const Files *files, const ProgramRecord *p);
Status bind_sources(const Files *files, Dataset *d);
const char *pairs_get(const GradcPairs *pairs, const char *name); /* the last one; NULL: none */
/* The input that the token stream feeds; NULL when there is none or more than one. */
const PortRecord *bind_token_port(const Files *files, const ProgramRecord *p);

/* ---- fill.c: inputs that need no data. */
Status fill_parse(Arena *arena, const Format *f, const PortRecord *port, const char *text,
                  char **constant);
const char *fill_default(const char *input); /* NULL: none */

/* ---- weights.c: initial values. */
Status weights_init(Gradc *run);
/* Makes the states that begin as copies of others anew: these have new contents. resumed: but for those that the
 * checkpoint had. */
/* Of a state that begins as data: these, in the arena. */
Status weights_first(Gradc *run, Arena *arena, int state, char **out);
Status weights_begin(Gradc *run, int state); /* one of zeros or random numbers, anew */
Status weights_copy(Gradc *run, bool resumed);
/* Before the first update: what is mapped of the executable and changes becomes memory of our own. */
Status weights_unmap(Gradc *run);
/* The bytes of the weights match their hash. */
Status weights_check(const GradcModel *model, const Format *f, const char *file, bool *same);

/* ---- load.c: other initial values by name, from a safetensors file. */
Status weights_load(Gradc *run, const char *path);

/* ---- checkpoint_manifest.c: what a checkpoint holds. */
/* The newest that is read. One is written without pieces as version 1. */
enum { CHECKPOINT_VERSION = 2 };
#define MANIFEST_FILE "manifest.json"
#define SHARD_PATTERN "shard-*.safetensors"
/* Elements [first, first + count) of a tensor, which lie in one shard. */
typedef struct {
	int shard; /* -1: of a constant, of which only the checksum is kept */
	int64_t first, count;
	uint64_t checksum; /* of their bytes */
} SavedPiece;
typedef struct {
	const char *name;
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK];
	SavedPiece
		*pieces; /* every element is in one of them, in order; one: the tensor is whole */
	int n_pieces;
} SavedTensor;
typedef struct {
	const char *file; /* name in the checkpoint's folder */
	int64_t bytes;
	uint64_t header; /* checksum of what lies before the first tensor */
} Shard;
typedef struct {
	int64_t version;
	uint64_t run;   /* a random number; resumed runs keep it */
	int64_t serial; /* counts the checkpoints of a folder: the newest has the highest */
	int64_t step, samples, world;
	double loss, eval_loss;    /* NaN: not known */
	Plateau plateau;           /* its lr is 0: of another schedule */
	uint64_t model, data;      /* fingerprints */
	int64_t rows;              /* of the data; 0: none were bound */
	const GradcPair *settings; /* values as JSON */
	SavedTensor *tensors, *constants;
	Shard *shards;
	int n_settings, n_tensors, n_constants, n_shards;
} Manifest;
/* The whole file, in the arena; path: for messages. */
Status manifest_text(Arena *arena, const char *path, const Manifest *m, FilePart *out);
/* All faults have EXIT_CHECKPOINT and name the path. */
Status manifest_read(Arena *arena, const char *path, Manifest *out);
Status manifest_parse(Arena *arena, const char *path, const char *text, size_t n, Manifest *out);
uint64_t manifest_constants(const Manifest *m); /* a hash of what never changes; 0: there is none */

/* ---- checkpoint_facts.c: what a checkpoint knows of the run that wrote it. */
uint64_t facts_model(const Format *f);
Status facts_data(const Dataset *d, uint64_t *out);
Status facts_file(const char *path, uint64_t *out); /* likewise, of a file of weights */
/* Reads the data's fingerprint once, before training: a data file may be removed while training runs. */
Status facts_read_data(Gradc *run);
/* Step, samples, fingerprints and settings; the tensors are the caller's. */
Status facts_collect(Gradc *run, Manifest *out);
const GradcPair *facts_settings(Gradc *run, int *n); /* as gradc_settings */
/* Warns of each setting that differs, naming both values. */
void facts_compare(Gradc *run, const char *path, const Manifest *old, const Manifest *now);

/* ---- checkpoint_folder.c: the checkpoints under one folder, one run at a time. */
enum { CHECKPOINT_DIGITS = 8 };
typedef struct {
	int64_t step, serial; /* serial -1: cannot be read */
	int digits; /* of the step in its name: CHECKPOINT_DIGITS, or more where the step has, or that was taken */
	bool stays; /* this run cannot go on from it: it is neither replaced nor removed */
	uint64_t run, model, constants;
	double eval_loss;
} CheckpointEntry;
typedef struct {
	Arena *arena;
	const char *path;
	int lock;   /* its descriptor; -1: not yet */
	bool alone; /* false: this file system has no locks */
	bool scanned, judged;
	int64_t n_temporaries; /* names that were given out */
	VEC(CheckpointEntry) entries;
} CheckpointFolder;
/* Makes it, locks it, removes what killed runs left, lists it; does nothing when that was done. */
Status folder_prepare(CheckpointFolder *folder);
/* EXIT_CHECKPOINT when another process has it. A folder that cannot be opened is no fault yet. */
Status folder_lock(CheckpointFolder *folder);
Status folder_list(CheckpointFolder *folder);
void folder_close(CheckpointFolder *folder);
char *folder_entry_path(Arena *arena, const CheckpointFolder *folder, const CheckpointEntry *entry);
/* "step-" and 8 digits or more. */
bool checkpoint_name_parse(const char *name, int64_t *step, int *digits);
/* Steps that a run is to save: the last, and every `every`-th (0: none) behind those that are done. */
typedef struct {
	int64_t done, last, every;
} SaveSteps;
/* Says of each checkpoint whether it stays, by what the run's own would have: its model and constants. */
void folder_judge(CheckpointFolder *folder, const Manifest *own);
/* EXIT_CHECKPOINT where something that is no checkpoint's, or a checkpoint that stays, has the name of one of them; *replaced:
 * how many others that another run saved. */
Status folder_check_names(const CheckpointFolder *folder, const SaveSteps *steps,
                          const Manifest *own, int *replaced);
int64_t folder_next_serial(const CheckpointFolder *folder);
/* The complete checkpoint at `temporary` appears under its name, replacing the one that has it; under one with more
 * digits, which *entry gets, where something else has that name, or a checkpoint that stays: then *beside. */
Status folder_add(CheckpointFolder *folder, const char *temporary, CheckpointEntry *entry,
                  bool *beside);
/* Leaves the newest `keep` of this run (0: all), and the one with the lowest evaluation loss. */
void folder_rotate(CheckpointFolder *folder, uint64_t run, int64_t keep, bool keep_best);
/* A name in it that nothing has or had: another rank may be removing what had the last one. */
char *folder_temporary(Arena *arena, CheckpointFolder *folder);
void folder_remove(const char *path); /* a checkpoint's files, then the folder if it is empty */

/* ---- checkpoint_layout.c: what each rank writes of a checkpoint, and in which shard. */
/* Elements [first, first + count) of a state; bytes [at, at + bytes) of the rank's snapshot. */
typedef struct {
	int state, shard; /* shard: among the rank's */
	int64_t first, count, at, bytes;
} SavedPlace;
typedef struct {
	SavedPlace *places; /* in the order of saved_states, and of shards */
	int n, n_shards;
	int64_t bytes; /* of the snapshot */
} SavedLayout;
/* Indices of the states that a checkpoint holds, *n of them. */
int *saved_states(Arena *arena, const Format *f, int *n);
int64_t saved_bytes(const Format *f, const StateRecord *s); /* without what pads them */
/* Without its pieces. */
SavedTensor saved_tensor(const Format *f, const StateRecord *s);
SavedPiece *saved_whole(Arena *arena, const SavedTensor *t, int shard, uint64_t checksum);
SavedLayout saved_layout(Arena *arena, const Format *f, const RunFacts *facts, int rank,
                         int64_t shard_bytes);
int64_t saved_alone_bytes(const Format *f,
                          int64_t shard_bytes); /* of the snapshot of one that holds all */
/* What a rank has written: its shards, and the checksum of each of its places. */
typedef struct {
	Shard *shards;
	uint64_t *checksums;
} RankShards;
char *shard_name(Arena *arena, int rank, int number);
/* The manifest's tensors and shards, of so many ranks. */
void shards_collect(Arena *arena, const Format *f, const SavedLayout *layouts,
                    const RankShards *ranks, int n_ranks, Manifest *out);

/* ---- checkpoint_snapshot.c: what this rank saves of a moment. */
typedef struct {
	HashedCopy *
		copies; /* of each place of the layout; their checksums are there after snapshot_hash */
	int n;
	bool hashed; /* the device did while it copied */
} Snapshot;
/* Copied when it returns, into the saver's region; the list is the arena's. */
Status snapshot_take(Arena *arena, Gradc *run, Snapshot *out);
void snapshot_hash(Snapshot *s);

/* ---- checkpoint_write.c: written by a thread, from a copy. */
typedef enum {
	SAVE_ALL,      /* shards, manifest, name: of a rank that saves alone */
	SAVE_SHARDS,   /* into the temporary folder that ranks share */
	SAVE_MANIFEST, /* and the name: all shards are there */
	SAVE_REMOVE    /* the temporary folder: a shard is not there, *why */
} SaveStage;
typedef struct {
	Arena *arena; /* its own */
	Trace *trace;
	const Format *format;
	int rank;
	const SavedLayout *layout; /* of this rank */
	Snapshot snapshot;
	SaveStage stage;
	const char *temporary; /* folder; NULL: it gets a name when it is made */
	CleanupSlot cleanup;   /* of the temporary folder */
	RankShards own;        /* after SAVE_SHARDS */
	Manifest manifest;     /* without what the files decide */
	CheckpointFolder *folder;
	Span window; /* through which files are written and read again */
	int64_t keep;
	bool keep_best;
	const char *beside; /* its path, where something else had its name; NULL */
	Status why;         /* of SAVE_REMOVE, which ends with it */
	Status status;      /* how it ended */
} SaveJob;
typedef struct CheckpointWriter CheckpointWriter;
/* Touches the snapshot's memory, then waits for jobs. */
Status checkpoint_writer_open(Arena *arena, Span snapshot, MemoryOrphans **orphans,
                              CheckpointWriter **out);
/* Has what it was given ended? Always, where the caller waits. Then the job is the caller's again. */
bool checkpoint_writer_idle(CheckpointWriter *w, bool wait);
void checkpoint_writer_give(CheckpointWriter *w, SaveJob *job); /* while it is idle */
void checkpoint_writer_close(CheckpointWriter *w);              /* NULL is allowed */
/* ---- checkpoint_files.c */
Status checkpoint_write(SaveJob *job); /* what its stage says */

/* ---- checkpoint_save.c: what is saved, and when. */
typedef struct {
	CheckpointFolder folder;
	bool together;        /* each rank writes what it holds; else rank 0 all */
	SavedLayout *layouts; /* of all ranks that write; NULL: this one does not */
	Span snapshot;        /* the copy of what this rank saves; no bytes: nothing */
	CheckpointWriter *writer;
	Span window;       /* through which files are written and read again */
	SaveJob *job;      /* being written; NULL: none */
	uint64_t run;      /* of the manifest */
	int64_t done_step; /* the newest that lies there complete; -1: none */
	double seconds;    /* of the caller, since the last step */
	int failures;      /* in a row */
	uint64_t model;    /* fingerprint of the model; 0: not yet known */
	uint64_t data;     /* and of the training data */
	bool has_data;
	SavedTensor *constants;    /* with their checksums; NULL: not yet known */
	const GradcPair *settings; /* NULL: not since the steps were counted */
	int n_constants, n_settings;
} Saver;
Status saver_open(Gradc *run);
void saver_wait(Gradc *run);  /* for the writer, whose faults are dropped */
void saver_close(Gradc *run); /* waits for the writer */
/* Before saving and resuming: by all ranks together, where they have parts. */
Status saver_constants(Gradc *run);
SaveJob *saver_job(Gradc *run); /* a new one, of this step */
/* What the manifest says of the run, and the folder: of the rank that writes them. */
Status saver_describe(Gradc *run, SaveJob *job, double eval_loss);
/* Warns of a checkpoint that was not written; EXIT_CHECKPOINT where it is the third in a row. Frees `why`. */
Status saver_count_failure(Gradc *run, int64_t step, Status why);
/* The saver's job is over, and freed. Frees `why`. */
Status saver_end_job(Gradc *run, Status why);

/* ---- checkpoint_together.c: ranks that hold parts of states save together; all of them call these. */
Status together_start(Gradc *run, double eval_loss);
Status together_poll(Gradc *run, bool wait);

/* ---- checkpoint_read.c: a checkpoint against the model's tables. */
typedef struct {
	int tensor, piece;
} PieceRef;
typedef struct {
	Arena *arena;
	const char *path; /* of the checkpoint's folder */
	Manifest manifest;
	int *states; /* of each tensor */
	/* The pieces of shard i are pieces[first_piece[i]] to pieces[first_piece[i + 1]]. */
	PieceRef *pieces;
	int *first_piece;
} Checkpoint;
/* The manifest, checked: exactly the model's saved states, with their types and shapes. */
Status checkpoint_open(Arena *arena, const Format *f, const char *path, Checkpoint *out);
typedef struct {
	void *context;
	/* Bytes [offset, offset + n) of a state. */
	Status (*take)(void *context, int state, int64_t offset, const void *bytes, int64_t n);
	/* Does it want some of these bytes? */
	bool (*wants)(void *context, int state, int64_t offset, int64_t n);
} CheckpointSink;
/* Reads every byte of every shard and compares the checksums. With a sink only the pieces that it wants some of; it is
 * given what is read, before the checksum of its piece is known. */
Status checkpoint_verify(const Checkpoint *c, const CheckpointSink *sink);

/* ---- named.c: files named after tensors, and the list of them. */
typedef struct {
	Arena *arena;
	const char *folder;
	StrMap *taken;
	json_t *json;
} NamedFiles;
Status named_open(Arena *arena, const char *folder, NamedFiles *out);
Status named_write(NamedFiles *n, const char *name, const char *prefix, const NpyInfo *type,
                   const void *data);
/* Writes names.json unless status is a fault, which it hands on. */
Status named_close(NamedFiles *n, Status status);

/* ---- outputs.c */
Status outputs_write_port(Gradc *run, NamedFiles *files, const PortRecord *port, double factor);
Status outputs_write_gradients(Gradc *run, NamedFiles *files, double loss, double factor);

/* ---- sharing.c: how ranks share, as options say; EXIT_USAGE where they cannot */
Status sharing_pick(Gradc *run);
/* ---- offload.c: EXIT_USAGE where --offload and --offload-dir ask for what is not compiled in */
Status offload_check(const Gradc *run);
/* EXIT_USAGE, naming `what`, where ranks hold parts. */
Status sharing_needs_whole(const Gradc *run, const char *what);
void sharing_mesh(void *context, int rank, int size,
                  int colors[N_GROUPS]); /* of CommOptions; context: the run */

/* ---- state_parts.c */
/* What this rank has of a state, in the device's memory: bytes from `first` on; at.at is NULL where it has none. */
typedef struct {
	Span at;
	int64_t first;
} StatePart;
StatePart state_part(const Executor *x, int state);
bool state_has_parts(const Executor *x, int state); /* ranks hold parts of it */
/* Of a state that ranks hold parts of: the bytes that this rank has. */
typedef struct {
	int64_t first, bytes;
} StateRange;
StateRange state_range(const Format *f, const RunFacts *facts, int state, int rank);
/* Bytes [offset, offset + bytes) of the state: of them what this rank has. */
Status state_write(Executor *x, int state, int64_t offset, const void *from, int64_t bytes);
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

/* ---- ranks_compare.c */
/* EXIT_COMM, naming both values, when a rank has another executable, other options, data or weights than rank 0. */
Status ranks_compare(Gradc *run);
/* Which parts ranks have: before anything reads those of others. */
Status ranks_compare_parts(Gradc *run);
/* Before weights get other values than they were compiled with: where ranks hold parts, they may read each other's for these. */
Status ranks_compare_weights(Gradc *run);
Status ranks_compare_option(Gradc *run, const char *name, int64_t value); /* as gradc_compare */

/* ---- what guard.c puts a guard around: the calls of gradc.h with the same arguments */
/* On a fault *out is what there is of the run, which the caller closes. */
/* What guard.c calls; *run has its arena already. */
Status trainer_open(const GradcModel *model, const GradcOptions *options, Diag *diag, Gradc *run);
Status trainer_finish(Gradc *run);
Status trainer_bind_data(Gradc *run);
Status step_accumulate(Gradc *run, GradcStep *out);
Status step_update(Gradc *run, GradcStep *out);
Status step_take(Gradc *run, GradcStep *out); /* all of one */
Status step_queue(Gradc *run);
Status step_is_whole(const Gradc *run); /* EXIT_USAGE: a step is queued, or half of one done */
Status step_check_accumulated(const Gradc *run); /* EXIT_USAGE: half of one is done */
Status step_forget_failure(Gradc *run);
void step_ask_first(Gradc *run); /* the next step's rows are read meanwhile */
double without_sign(double x);   /* a nan has a sign on some processors, which says nothing */
Status step_result(Gradc *run, bool wait, GradcStep *out, bool *got);
Status step_evaluate(Gradc *run, GradcEval *out);
Status resume_checkpoint(Gradc *run, GradcResume *out);
Status saver_save(Gradc *run, double eval_loss);
Status saver_check_names(Gradc *run, int64_t every);
Status saver_poll(Gradc *run, bool wait);
/* The state whose numbers are written as those of this one: its average, where options.export_weights asks for it. */
int export_state(const Gradc *run, int state);
/* Of numbers that are not finite: the last update may have made them so; the step after it would have said it. */
void export_warn(const Gradc *run, const char *option, const StateRecord *s, DType dtype,
                 const void *data, int64_t n);
Status export_trained(Gradc *run, const char *path);
Status export_merged(Gradc *run, const char *path);

/* ---- four_bit.c */
/* Of the states of a weight of 4 bits; nested, offset: NULL where absmax is f32. */
typedef struct {
	const void *codes, *absmax, *nested, *offset;
} FourBitBytes;
/* The weight's numbers, its axes in their own order, as its dtype. */
char *four_bit_weight(Arena *arena, const Format *f, const FourBitRecord *r,
                      const FourBitBytes *bytes);

/* ---- adapters.c */
Status adapters_check(Gradc *run, const char *option);              /* as gradc_check_adapters */
const AdapterRecord *adapter_of_weight(const Format *f, int state); /* NULL: it has none */
/* What is added up: the contents of the parts (magnitude NULL: there is none), and the weight's, of a type of its own. */
typedef struct {
	const void *a, *b, *magnitude;
	DType dtype;
	void *weight;
} AdapterValues;
/* weight += scale b a, and its outputs scaled to magnitude: in f64, rounded once. */
void adapter_merge(const Format *f, const AdapterRecord *r, const AdapterValues *v, Arena *arena);
/* A hash of the numbers that an adapter stands beside, as AdapterRecord.base; 0: not known. */
Status adapter_base(Gradc *run, const AdapterRecord *r, uint64_t *out);
/* Adds all adapters to their weights, and begins new ones; or subtracts them, for the weights hold the sum. */
Status adapters_merge(Gradc *run);
Status adapters_unmerge(Gradc *run);
/* magnitude / |weight + scale b a| of each output, [outputs]; the weight stays. */
const double *adapter_factors(const Format *f, const AdapterRecord *r, const AdapterValues *v,
                              Arena *arena);

/* ---- peft.c, peft_write.c, peft_load.c: see peft.h */
Status peft_write(Gradc *run, const char *folder);
Status peft_load(Gradc *run, const char *folder);
Status peft_load_kept(Gradc *run, const char *name); /* one that goes along */

/* ---- running_ranges.c */
typedef struct {
	float low, high, scale; /* scale: NaN where an end is not finite */
	int32_t zero_point;
} RunningRange;
/* Of a record EXPORT_RANGE_SCALE or EXPORT_RANGE_ZERO. shifted_by: the state that is added to what it writes; NO_SCALE: none. */
Status running_range(Gradc *run, Arena *arena, const ExportRecord *e, uint32_t shifted_by,
                     RunningRange *out);
Status running_ranges(Gradc *run, Arena *arena,
                      GradcRunningRanges *out);              /* as gradc_running_ranges */
Status export_check(const Format *f, const GradcOptions *o); /* of options.export_weights */
Status once_run(Gradc *run, const GradcPairs *inputs, bool backward, const char *folder);
Status once_dump_gradients(Gradc *run, const char *folder);

/* ---- step.c: what is known of a step before its results are */
enum { MAX_QUEUED = 2 };
typedef struct {
	GradcStep out;
	int turn;
	int64_t first; /* position of its first row */
	double begin;
	Status unread; /* why this rank could not read the step's rows; NULL: it could. Owned */
} QueuedStep;

/* ---- eval_rows.c */
int64_t eval_covered_rows(const Gradc *run);
void eval_warn_uneven(const Gradc *run);  /* a mean of means, which is not that of all targets */
Status eval_check_rows(const Gradc *run); /* EXIT_DATA: no row of the data can be evaluated */

/* ---- trainer.c */
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
	Saver saver;
};
DeviceOptions device_options(const Format *f, int target, int ordinal, const GradcOptions *o);
double info_double(const Format *f, const char *key, double otherwise);
bool info_is(const Format *f, const char *key, const char *value);
/* For this run's target; NULL: none. program_any takes that of another binding where this one has none. */
const ProgramRecord *program_find(const Gradc *run, Role role, int binding);
const ProgramRecord *program_any(const Gradc *run, Role role, int binding);
Status read_scalar(Gradc *run, int state, double *out);
Status write_scalar(Gradc *run, int state, double value); /* of a float type */
/* once.c: what turns the sums of gradient states into the mean over the targets that were counted. */
Status gradient_factor(Gradc *run, double *out);
/* Keeps the last fault as the result, reports the one before. */
Status fault_join(Diag *diag, Status first, Status second);
/* total_steps, from where the run is. */
void trainer_count_steps(Gradc *run);

#endif
