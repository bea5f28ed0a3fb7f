/* Private to runtime/checkpoint: writing a checkpoint, from the snapshot (the copy of the states) to the files. Sections are
 * named after the .c files. */
#ifndef GRADC_RUNTIME_CHECKPOINT_WRITE_H
#define GRADC_RUNTIME_CHECKPOINT_WRITE_H

#include "runtime/checkpoint/parts.h"

/* ---- snapshot.c: the copy of the states that this rank saves */
typedef struct {
	/* One for each place of the layout; checksums are valid after snapshot_hash. */
	HashedCopy *copies;
	int n;
	bool hashed; /* the device computed the checksums while it copied */
} Snapshot;
/* Copies into the saver's snapshot and waits for the copy. The list of copies is in the arena. */
Status snapshot_take(Arena *arena, Gradc *run, Snapshot *out);
void snapshot_hash(Snapshot *s);

/* ---- write.c: the thread that writes */
typedef enum {
	SAVE_ALL,      /* a rank that saves alone: shards, manifest, name */
	SAVE_SHARDS,   /* shards into the temporary folder that all ranks share */
	SAVE_MANIFEST, /* manifest and name, after all shards are written */
	SAVE_REMOVE    /* removes the temporary folder, because a shard is missing */
} SaveStage;
struct SaveJob {
	Arena *arena; /* the job's own arena */
	Trace *trace;
	const Format *format;
	int rank;
	const SavedLayout *layout; /* layout of this rank */
	Snapshot snapshot;
	SaveStage stage;
	/* temporary folder; NULL: the folder gets its name when it is made */
	const char *temporary;
	CleanupSlot cleanup; /* removes the temporary folder if the process ends */
	RankShards own;      /* valid after SAVE_SHARDS */
	Manifest manifest;   /* tensors and shards are filled in after writing */
	CheckpointFolder *folder;
	Span window; /* buffer for writing files and reading them back */
	int64_t keep;
	int64_t best; /* step of the best evaluation, whose checkpoint stays; -1: none stays for that reason */
	const char *beside; /* the checkpoint's path if its usual name was taken; otherwise NULL */
	Status why;         /* why SAVE_REMOVE removes the folder; becomes the job's status */
	Status status;      /* result of the job */
};
/* Starts the thread, which touches the snapshot's memory and then waits for jobs. */
Status checkpoint_writer_open(Arena *arena, Span snapshot, MemoryOrphans **orphans,
                              CheckpointWriter **out);
/* Has the last job ended? With `wait`, waits until it has ended. If true, the job belongs to the caller again. */
bool checkpoint_writer_idle(CheckpointWriter *w, bool wait);
void checkpoint_writer_give(CheckpointWriter *w, SaveJob *job); /* the writer must be idle */
void checkpoint_writer_close(CheckpointWriter *w);              /* w may be NULL */
/* ---- files.c */
Status checkpoint_write(SaveJob *job); /* runs the job's stage, such as SAVE_SHARDS */

/* ---- together.c: saving by ranks that hold parts of states; all ranks call these */
Status together_start(Gradc *run, const SaveFacts *facts);
Status together_poll(Gradc *run, bool wait);

#endif
