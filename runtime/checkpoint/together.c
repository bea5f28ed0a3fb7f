/* Saving by several ranks together, if each rank holds only parts of the states: each rank writes its own shards, and rank 0
 * writes the manifest.
 *
 * gradc_save        rank 0 names a temporary folder; each rank copies its parts, and its thread writes them there
 * gradc_save_poll   when all threads are done, ranks exchange their checksums; rank 0's thread then
 *                   writes the manifest and gives the folder its name, or removes the folder
 * gradc_save_poll   when rank 0's thread is done, rank 0 tells the other ranks the result
 *
 * The writing threads send no messages. Ranks exchange messages only in these calls, which all ranks make. */
#include "runtime/checkpoint/parts.h"
#include "runtime/checkpoint/write.h"

#include <limits.h>
#include <string.h>

/* ---- a rank's report about its shards, as a message */
enum { MOST_WHY = 1016 };
typedef struct {
	int64_t failed;
	char why[MOST_WHY]; /* why the rank failed, truncated to MOST_WHY bytes */
	/* Bytes and header checksum of each shard, then the checksum of each place. */
	uint64_t numbers[];
} Report;

/* Size of a report: the same for all ranks, large enough for the rank with most shards and places. */
static int64_t
report_bytes(const Gradc *run)
{
	int64_t most = 0;

	for (int r = 0; r < gradc_ranks(run); r++) {
		const SavedLayout *l = &run->saver->layouts[r];
		int64_t n = 2 * (int64_t)l->n_shards + l->n;
		most = n > most ? n : most;
	}
	return (int64_t)sizeof(Report) + most * (int64_t)sizeof(uint64_t);
}

static void
report_fill(const SaveJob *job, Report *out)
{
	uint64_t *next = out->numbers;

	out->failed = job->status != NULL;
	if (job->status) {
		snprintf(out->why, sizeof(out->why), "%s", job->status->message);
		return;
	}
	for (int i = 0; i < job->layout->n_shards; i++) {
		*next++ = (uint64_t)job->own.shards[i].bytes;
		*next++ = job->own.shards[i].header;
	}
	for (int i = 0; i < job->layout->n; i++)
		*next++ = job->own.checksums[i];
}

static RankShards
report_read(Arena *arena, Report *report, const SavedLayout *layout, int rank)
{
	RankShards out = {NEW_ARRAY(arena, Shard, layout->n_shards),
	                  report->numbers + 2 * layout->n_shards};

	for (int i = 0; i < layout->n_shards; i++)
		out.shards[i] = (Shard){shard_name(arena, rank, i), (int64_t)report->numbers[2 * i],
		                        report->numbers[2 * i + 1]};
	return out;
}

/* ---- beginning */
/* Sends the name of the temporary folder from rank 0 to all ranks; "" if rank 0 failed. */
static Status
share_name(Gradc *run, SaveJob *job, char name[PATH_MAX])
{
	const Comm *comm = &run->comm;

	RETURN_IF_ERROR(comm->control_ops->broadcast(comm->control, name, PATH_MAX, 0));
	name[PATH_MAX - 1] = '\0';
	job->temporary = arena_strdup(job->arena, name);
	return NULL;
}

static Status
describe(Gradc *run, SaveJob *job, const SaveFacts *facts, char name[PATH_MAX])
{
	RETURN_IF_ERROR(saver_describe(run, job, facts));
	const char *path = folder_temporary(job->arena, job->folder);
	if (strlen(path) >= PATH_MAX)
		return status_error(EXIT_SYSTEM, "%s: the name is too long", path);
	memcpy(name, path, strlen(path) + 1);
	return NULL;
}

Status
together_start(Gradc *run, const SaveFacts *facts)
{
	Saver *saver = run->saver;
	char name[PATH_MAX] = "";

	RETURN_IF_ERROR(saver_constants(run));
	SaveJob *job = saver->job = saver_job(run);
	Status why = gradc_rank(run) == 0 ? describe(run, job, facts, name) : NULL;
	Status status = share_name(run, job, name);

	if (status) {
		status_free(why);
		return status;
	}
	if (!*job->temporary)
		return saver_end_job(run,
		                     why ? why : status_error(EXIT_CHECKPOINT, "%s", "of rank 0"));
	/* the writer may still be touching the snapshot */
	checkpoint_writer_idle(saver->writer, true);
	job->status = snapshot_take(job->arena, run, &job->snapshot);
	if (!job->status)
		checkpoint_writer_give(saver->writer, job);
	return NULL;
}

/* ---- after all shards are written, or one failed */
static Status
first_failure(Report *const *reports, int n_ranks)
{
	for (int r = 0; r < n_ranks; r++)
		if (reports[r]->failed)
			return status_error(EXIT_CHECKPOINT, "rank %d: %.*s", r, MOST_WHY,
			                    reports[r]->why);
	return NULL;
}

/* Rank 0's thread completes the checkpoint, or removes the temporary folder. */
static void
go_on(Gradc *run, Report *const *reports)
{
	Saver *saver = run->saver;
	SaveJob *job = saver->job;
	int n = gradc_ranks(run);
	RankShards *written = NEW_ARRAY(job->arena, RankShards, n);

	job->why = first_failure(reports, n);
	job->stage = job->why ? SAVE_REMOVE : SAVE_MANIFEST;
	for (int r = 0; r < n && !job->why; r++)
		written[r] = report_read(job->arena, reports[r], &saver->layouts[r], r);
	if (!job->why)
		shards_collect(job->arena, &run->format, saver->layouts, written, n,
		               &job->manifest);
	checkpoint_writer_give(saver->writer, job);
}

static Status
end_shards(Gradc *run)
{
	const Comm *comm = &run->comm;
	SaveJob *job = run->saver->job;
	int64_t bytes = report_bytes(run);
	Report *own = arena_alloc(job->arena, (size_t)bytes);
	char *all = arena_alloc(job->arena, (size_t)(bytes * comm->size));
	Report **reports = NEW_ARRAY(job->arena, Report *, comm->size);

	memset(own, 0, (size_t)bytes);
	report_fill(job, own);
	RETURN_IF_ERROR(comm->control_ops->all_gather(comm->control, own, all, bytes));
	for (int r = 0; r < comm->size; r++)
		reports[r] = (Report *)(void *)(all + r * bytes);
	status_free(job->status);
	job->status = NULL;
	job->stage = SAVE_MANIFEST;
	if (comm->rank == 0)
		go_on(run, reports);
	return NULL;
}

/* ---- after the checkpoint has its name, or failed */
static Status
end_manifest(Gradc *run)
{
	const Comm *comm = &run->comm;
	SaveJob *job = run->saver->job;
	int64_t failed = job->status != NULL;

	RETURN_IF_ERROR(comm->control_ops->broadcast(comm->control, &failed, sizeof(failed), 0));
	Status why = job->status;
	job->status = NULL;
	if (failed && !why) {
		why = status_error(EXIT_CHECKPOINT, "%s", "of rank 0");
		/* rank 0 has removed the folder on its own disk; this rank may have a folder on another disk */
		folder_remove(job->temporary);
	}
	return saver_end_job(run, why);
}

/* Are the threads of all ranks idle? */
static Status
all_idle(Gradc *run, bool wait, bool *out)
{
	int64_t busy = !checkpoint_writer_idle(run->saver->writer, wait);

	RETURN_IF_ERROR(comm_reduce(&run->comm, &busy, 1, S64, COMM_MAX));
	*out = busy == 0;
	return NULL;
}

Status
together_poll(Gradc *run, bool wait)
{
	const Saver *saver = run->saver;
	bool idle;

	while (saver->job) {
		RETURN_IF_ERROR(all_idle(run, wait, &idle));
		if (!idle)
			return NULL;
		RETURN_IF_ERROR(saver->job->stage == SAVE_SHARDS ? end_shards(run)
		                                                 : end_manifest(run));
	}
	return NULL;
}
