/* Checkpoints: their contents, and how runs save and read them. A checkpoint is a folder with a manifest (JSON: what was saved)
 * and shards (safetensors files with the states). If ranks hold only parts of a state, the state is saved in pieces, one for
 * each rank. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_CHECKPOINT_CHECKPOINT_H
#define GRADC_RUNTIME_CHECKPOINT_CHECKPOINT_H

#include "base/files/files.h"
#include "runtime/data/data.h"

/* ---- manifest.c: the contents of a checkpoint */
#define MANIFEST_FILE "manifest.json"
#define SHARD_PATTERN "shard-*.safetensors"
/* A piece: elements [first, first + count) of a tensor, all in one shard. */
typedef struct {
	int shard; /* -1 for a constant: only its checksum is kept */
	int64_t first, count;
	uint64_t checksum; /* of the piece's bytes */
} SavedPiece;
typedef struct {
	const char *name;
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK];
	/* In order of their elements; together they cover each element once. A whole tensor has one piece. */
	SavedPiece *pieces;
	int n_pieces;
} SavedTensor;
typedef struct {
	const char *file; /* name in the checkpoint's folder */
	int64_t bytes;
	uint64_t header; /* checksum of the bytes before the first tensor */
} Shard;
typedef struct {
	int64_t version;
	/* random number that identifies the training; a resumed run keeps the number */
	uint64_t run;
	int64_t serial; /* number of the checkpoint in its folder; the newest has the highest */
	int64_t step, samples, world;
	double loss, eval_loss;    /* NaN if unknown */
	Plateau plateau;           /* lr is 0 with any other schedule */
	GradcBest best;            /* metric NULL: unknown */
	bool only_best;            /* saved only because its evaluation was the best */
	uint64_t model, data;      /* fingerprints of model and data */
	int64_t rows;              /* rows of the data; 0 if no data were bound */
	const GradcPair *settings; /* names, with values as JSON */
	const char *
		*engines; /* of a GPU's libraries: lines of Tunings (base/calls/library_call.h) */
	SavedTensor *tensors, *constants;
	Shard *shards;
	int n_settings, n_engines, n_tensors, n_constants, n_shards;
} Manifest;
/* The text of the whole manifest, in the arena. path: for messages. */
Status manifest_text(Arena *arena, const char *path, const Manifest *m, FilePart *out);
/* Reads a manifest. All faults have EXIT_CHECKPOINT and name the path. */
Status manifest_read(Arena *arena, const char *path, Manifest *out);
Status manifest_parse(Arena *arena, const char *path, const char *text, size_t n, Manifest *out);

/* ---- facts.c: what a checkpoint records about the run that wrote it */
uint64_t facts_model(const Format *f);
Status facts_data(const Dataset *d, uint64_t *out);
Status facts_file(const char *path, uint64_t *out); /* fingerprint of a file of weights */
/* Fills in step, samples, fingerprints and settings. The caller fills in the tensors. */
Status facts_collect(Gradc *run, Manifest *out);
const GradcPair *facts_settings(Gradc *run, int *n); /* same as gradc_settings */
/* EXIT_USAGE if the old run held rows out by another --split than this run. */
Status facts_check_split(const Gradc *run, const char *path, const Manifest *old,
                         const Manifest *now);
/* Warns about each setting that differs between the two manifests, naming both values. */
void facts_compare(Gradc *run, const char *path, const Manifest *old, const Manifest *now);

/* ---- folder.c: the checkpoints in a folder, which one run at a time may write */
typedef struct {
	int64_t step, serial; /* serial -1: the checkpoint cannot be read */
	/* digits of the step in the name: CHECKPOINT_DIGITS, or more if the step needs more or that name was taken */
	int digits;
	/* this run cannot continue from the checkpoint; so it neither replaces nor removes the checkpoint */
	bool stays;
	uint64_t run, model, constants;
	bool only_best;
} CheckpointEntry;
typedef struct {
	Arena *arena;
	const char *path;
	int lock;   /* descriptor of the lock; -1 before locking */
	bool alone; /* false if the file system has no locks */
	bool scanned, judged;
	int64_t n_temporaries; /* number of temporary names given out so far */
	VEC(CheckpointEntry) entries;
} CheckpointFolder;
/* Makes the folder, locks it, removes leftovers of killed runs, and lists it. A second call does nothing. */
Status folder_prepare(CheckpointFolder *folder);
Status folder_list(CheckpointFolder *folder);
void folder_close(CheckpointFolder *folder);
char *folder_entry_path(Arena *arena, const CheckpointFolder *folder, const CheckpointEntry *entry);
/* The name is "step-" and at least 8 digits. */
bool checkpoint_name_parse(const char *name, int64_t *step, int *digits);
/* Moves the complete checkpoint at `temporary` to its name, replacing an older checkpoint there. If that name belongs to
 * something that is not a checkpoint, or to a checkpoint that stays, the new name gets more digits (entry->digits), and *beside
 * is set. */
Status folder_add(CheckpointFolder *folder, const char *temporary, CheckpointEntry *entry,
                  bool *beside);
/* Keeps this run's newest `keep` checkpoints (0: all) and the one of step `best`. Removes others that were saved only because
 * they were the best, but never the newest. best -1: no checkpoint is kept or removed for being the best. */
void folder_rotate(CheckpointFolder *folder, uint64_t run, int64_t keep, int64_t best);
/* The run's checkpoint of that step; NULL without such a checkpoint. */
const CheckpointEntry *folder_find(const CheckpointFolder *folder, uint64_t run, int64_t step);
/* A name for a temporary folder that was never used before: another rank may still be removing the previous temporary
 * folder. */
char *folder_temporary(Arena *arena, CheckpointFolder *folder);
/* removes a checkpoint's files, then the folder if it is empty */
void folder_remove(const char *path);

/* ---- layout.c: which parts of a checkpoint each rank writes, and into which shard */
/* A place: elements [first, first + count) of a state that a rank saves, and where they are in the rank's snapshot (its copy of
 * the states to save): bytes [at, at + bytes). */
typedef struct {
	int state, shard; /* shard: index among the rank's shards */
	int64_t first, count, at, bytes;
} SavedPlace;
typedef struct {
	SavedPlace *places; /* sorted by state and by shard */
	int n, n_shards;
	int64_t bytes; /* bytes of the snapshot */
} SavedLayout;
SavedPiece *saved_whole(Arena *arena, const SavedTensor *t, int shard, uint64_t checksum);
/* Bytes of the snapshot if a single rank saves all states. */
int64_t saved_alone_bytes(const Format *f, int64_t shard_bytes);

/* ---- read.c: reads a checkpoint and checks it against the model's tables */
typedef struct {
	int tensor, piece;
} PieceRef;
typedef struct {
	Arena *arena;
	const char *path; /* folder of the checkpoint */
	Manifest manifest;
	int *states; /* index of each tensor's state */
	/* Pieces sorted by shard: shard i has pieces[first_piece[i]] up to, not including, pieces[first_piece[i + 1]]. */
	PieceRef *pieces;
	int *first_piece;
} Checkpoint;
/* Reads the manifest and checks that its tensors are exactly the model's saved states, with their types and shapes. */
Status checkpoint_open(Arena *arena, const Format *f, const char *path, Checkpoint *out);
typedef struct {
	void *context;
	/* Called with bytes [offset, offset + n) of a state, as they are read. */
	Status (*take)(void *context, int state, int64_t offset, const void *bytes, int64_t n);
	/* Does the sink want any of these bytes? */
	bool (*wants)(void *context, int state, int64_t offset, int64_t n);
} CheckpointSink;
/* Reads every byte of every shard and compares checksums. With a sink, reads only the pieces of which the sink wants some
 * bytes. The sink receives the bytes of a piece before the piece's checksum has been compared. */
Status checkpoint_verify(const Checkpoint *c, const CheckpointSink *sink);

/* ---- save.c: what is saved, and when */
typedef struct CheckpointWriter CheckpointWriter;
typedef struct SaveJob SaveJob;
struct Saver {
	CheckpointFolder folder;
	/* true: each rank writes its own parts; false: rank 0 writes everything */
	bool together;
	/* layouts of all ranks that write; NULL if this rank does not write */
	SavedLayout *layouts;
	Span snapshot; /* copy of the states that this rank saves; may be empty */
	CheckpointWriter *writer;
	Span window;       /* buffer for writing files and reading them back */
	SaveJob *job;      /* the job being written; may be NULL */
	uint64_t run;      /* random number of the run, for the manifest */
	int64_t done_step; /* newest step with a complete checkpoint; -1 before the first */
	double seconds;    /* time that saving took from the caller since the last step */
	int failures;      /* failed checkpoints in a row */
	uint64_t model;    /* fingerprint of the model; 0 if not yet computed */
	uint64_t data;     /* fingerprint of the training data */
	bool has_data;
	SavedTensor *constants;    /* constants with checksums; NULL if not yet computed */
	const GradcPair *settings; /* NULL: to be collected (anew) */
	const char **engines;      /* NULL: to be collected */
	int n_constants, n_settings, n_engines;
};
/* makes an empty saver, for which saver_close may already be called */
Saver *saver_new(Arena *arena);
Status saver_open(Gradc *run);
void saver_wait(Gradc *run);  /* waits for the writing thread and ignores its faults */
void saver_close(Gradc *run); /* waits for the writing thread */
/* Hashes the constants, before saving and before resuming. All ranks call it together if ranks hold parts. */
Status saver_constants(Gradc *run);
/* What the caller knows of a checkpoint. */
typedef struct {
	double eval_loss; /* NaN if unknown */
	bool only_best;   /* the checkpoint is only wanted as the best one */
} SaveFacts;
Status saver_save(Gradc *run, double eval_loss);
Status saver_save_best(Gradc *run, double eval_loss); /* same as gradc_save_best */
Status saver_check_names(Gradc *run, int64_t every);
Status saver_poll(Gradc *run, bool wait);

#endif
