/* Writing a checkpoint: the copy that this rank saves, the thread that writes it. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_CHECKPOINT_WRITE_H
#define GRADC_RUNTIME_CHECKPOINT_WRITE_H

#include "runtime/checkpoint/checkpoint.h"

/* ---- snapshot.c: what this rank saves of a moment. */
typedef struct {
	HashedCopy *
		copies; /* of each place of the layout; their checksums are there after snapshot_hash */
	int n;
	bool hashed; /* the device did while it copied */
} Snapshot;
/* Copied when it returns, into the saver's region; the list is the arena's. */
Status snapshot_take(Arena *arena, Gradc *run, Snapshot *out);
void snapshot_hash(Snapshot *s);

/* ---- write.c: written by a thread, from a copy. */
typedef enum {
	SAVE_ALL,      /* shards, manifest, name: of a rank that saves alone */
	SAVE_SHARDS,   /* into the temporary folder that ranks share */
	SAVE_MANIFEST, /* and the name: all shards are there */
	SAVE_REMOVE    /* the temporary folder: a shard is not there, *why */
} SaveStage;
struct SaveJob {
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
};
/* Touches the snapshot's memory, then waits for jobs. */
Status checkpoint_writer_open(Arena *arena, Span snapshot, MemoryOrphans **orphans,
                              CheckpointWriter **out);
/* Has what it was given ended? Always, where the caller waits. Then the job is the caller's again. */
bool checkpoint_writer_idle(CheckpointWriter *w, bool wait);
void checkpoint_writer_give(CheckpointWriter *w, SaveJob *job); /* while it is idle */
void checkpoint_writer_close(CheckpointWriter *w);              /* NULL is allowed */
/* ---- files.c */
Status checkpoint_write(SaveJob *job); /* what its stage says */

/* ---- together.c: ranks that hold parts of states save together; all of them call these. */
Status together_start(Gradc *run, double eval_loss);
Status together_poll(Gradc *run, bool wait);

#endif
