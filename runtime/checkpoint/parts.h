/* What a checkpoint is made of: manifest, folder, shards. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_CHECKPOINT_PARTS_H
#define GRADC_RUNTIME_CHECKPOINT_PARTS_H

#include "runtime/checkpoint/checkpoint.h"

/* ---- manifest.c: the contents of a checkpoint */
/* The newest version that can be read. A checkpoint whose tensors are all whole is written as version 1. */
enum { CHECKPOINT_VERSION = 2 };
/* hash of the constants' checksums; 0 if there are no constants */
uint64_t manifest_constants(const Manifest *m);

/* ---- facts.c: what a checkpoint records about the run that wrote it */
/* Reads the data's fingerprint once, before training, because a data file may be removed while training runs. */
Status facts_read_data(Gradc *run);

/* ---- folder.c: the checkpoints in a folder, which one run at a time may write */
enum { CHECKPOINT_DIGITS = 8 };
/* EXIT_CHECKPOINT if another process holds the lock. A folder that cannot be opened is no error here: the first save reports
 * the error. */
Status folder_lock(CheckpointFolder *folder);
/* Steps at which a run will save: the last step, and after step `done` every multiple of `every` (0: only the last step). */
typedef struct {
	int64_t done, last, every;
} SaveSteps;
/* Marks the checkpoints that this run cannot continue from. own: the model and constants of this run. */
void folder_judge(CheckpointFolder *folder, const Manifest *own);
/* Checks the names of the checkpoints that the run will save. EXIT_CHECKPOINT if a name is taken by something that is not a
 * checkpoint, or by a checkpoint that stays. *replaced: how many checkpoints of other runs will be replaced. */
Status folder_check_names(const CheckpointFolder *folder, const SaveSteps *steps,
                          const Manifest *own, int *replaced);
int64_t folder_next_serial(const CheckpointFolder *folder);

/* ---- layout.c: which parts of a checkpoint each rank writes, and into which shard */
/* The indices of the states that a checkpoint holds, *n of them. */
int *saved_states(Arena *arena, const Format *f, int *n);
int64_t saved_bytes(const Format *f, const StateRecord *s); /* without padding */
/* the tensor's name, type and shape; its pieces are left empty */
SavedTensor saved_tensor(const Format *f, const StateRecord *s);
SavedLayout saved_layout(Arena *arena, const Format *f, const RunFacts *facts, int rank,
                         int64_t shard_bytes);
/* What a rank has written: its shards, and a checksum per place. */
typedef struct {
	Shard *shards;
	uint64_t *checksums;
} RankShards;
char *shard_name(Arena *arena, int rank, int number);
/* Fills in the manifest's tensors and shards from the shards of all ranks. */
void shards_collect(Arena *arena, const Format *f, const SavedLayout *layouts,
                    const RankShards *ranks, int n_ranks, Manifest *out);

/* ---- save.c: what is saved, and when */
SaveJob *saver_job(Gradc *run); /* a new job for the present step */
/* Fills in what the manifest says about the run and its folder; called on the rank that writes the manifest. */
Status saver_describe(Gradc *run, SaveJob *job, const SaveFacts *facts);
/* Warns about a checkpoint that could not be written. EXIT_CHECKPOINT if it is the third in a row. Frees `why`. */
Status saver_count_failure(Gradc *run, int64_t step, Status why);
/* Ends and frees the saver's job. Frees `why`. */
Status saver_end_job(Gradc *run, Status why);

#endif
