/* Checkpoints: what they hold, and how runs save them and read them. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_CHECKPOINT_CHECKPOINT_H
#define GRADC_RUNTIME_CHECKPOINT_CHECKPOINT_H

#include "base/files/files.h"
#include "runtime/data/data.h"

/* ---- manifest.c: what a checkpoint holds. */
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

/* ---- facts.c: what a checkpoint knows of the run that wrote it. */
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

/* ---- folder.c: the checkpoints under one folder, one run at a time. */
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

/* ---- layout.c: what each rank writes of a checkpoint, and in which shard. */
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

/* ---- read.c: a checkpoint against the model's tables. */
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

/* ---- save.c: what is saved, and when. */
typedef struct CheckpointWriter CheckpointWriter;
typedef struct SaveJob SaveJob;
struct Saver {
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
};
Saver *saver_new(Arena *arena); /* nothing is open yet: saver_close may be called */
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
Status saver_save(Gradc *run, double eval_loss);
Status saver_check_names(Gradc *run, int64_t every);
Status saver_poll(Gradc *run, bool wait);

#endif
