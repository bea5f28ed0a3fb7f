/* The thread that writes checkpoints. It owns a job, the snapshot and the list of checkpoints from when the job is
 * given until it is known to have ended; nothing else is shared, and semaphores hand it over. */
#include "runtime/runtime_impl.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct CheckpointWriter {
	pthread_t thread;
	sem_t given, ended;
	Span snapshot;
	MemoryOrphans **orphans;
	SaveJob *job; /* given; NULL: there will be none any more */
	bool busy;    /* the caller's: it does not yet know that it ended */
};

enum { WRITER_NICE = 10 };

/* Compute comes first where there are fewer cores than threads: of a core that it shares the writer gets a tenth, when
 * its turn comes and not whenever the disk has answered, or each answer would hold up all threads. With much less it
 * would not end before the next save is due. Nothing but time depends on it. */
static void
step_back(void)
{
	sched_setscheduler(gettid(), SCHED_BATCH, &(struct sched_param){0});
	setpriority(PRIO_PROCESS, (id_t)gettid(), WRITER_NICE);
}

/* What memory costs when it is touched first is more than a copy: the first save need not wait for
 * that. Nothing but time depends on it. */
static void
touch(Span memory)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)memory.at;
	uintptr_t first = (at + page - 1) / page * page;
	uintptr_t last = (at + (uintptr_t)memory.bytes) / page * page;

	if (last > first)
		madvise((void *)first, last - first, MADV_POPULATE_WRITE);
}

/* ---- a checkpoint */

/* Checksums of a file's parts, as it is read. */
typedef struct {
	Checksum checksum; /* of part `next` so far */
	uint64_t *checksums;
	int next;
} PartChecksums;

static void
hash_part(void *context, int part, const void *bytes, int64_t n)
{
	PartChecksums *c = context;

	while (c->next < part)
		c->checksums[c->next++] = checksum_end(&c->checksum);
	checksum_add(&c->checksum, bytes, n);
}

/* What a file is to hold: parts, and their checksums. */
typedef struct {
	const char *path;
	FilePart *parts;
	uint64_t *checksums;
	int n;
} PartFile;

static Status
file_begin(const SaveJob *job, const PartFile *file)
{
	FileWriter *w;

	RETURN_IF_ERROR(file_writer_open_part(file->path, job->window.at, job->window.bytes, &w));
	return file_writer_end(w, file_writer_add_parts(w, file->parts, file->n));
}

/* On the disk, and its parts have the checksums of what was to be written. */
static Status
file_complete(const SaveJob *job, const PartFile *file)
{
	PartChecksums again = {.checksums = NEW_ARRAY(job->arena, uint64_t, file->n)};
	FileSink sink = {&again, hash_part};
	int64_t at = 0;

	checksum_begin(&again.checksum);
	RETURN_IF_ERROR(file_sync_parts(file->path, file->parts, file->n, job->window.at,
	                                job->window.bytes, &sink));
	hash_part(&again, file->n, NULL, 0);
	for (int i = 0; i < file->n; at += file->parts[i++].n)
		if (file->checksums[i] != again.checksums[i])
			return status_error(EXIT_SYSTEM,
			                    "%s: bytes %lld to %lld are not what was written: the "
			                    "disk is damaged",
			                    file->path, (long long)at,
			                    (long long)(at + file->parts[i].n));
	return NULL;
}

/* Tensors [first, first + n) of the list. */
static Status
shard_file(SaveJob *job, const char *folder, int first, int n, Shard *shard, PartFile *out)
{
	const Snapshot *s = &job->snapshot;
	SafeTensor *tensors = snapshot_files(job->arena, s, first, n);
	int *order = NEW_ARRAY(job->arena, int, n);

	*out = (PartFile){path_join(job->arena, folder, shard->file),
	                  NEW_ARRAY(job->arena, FilePart, n + 1),
	                  NEW_ARRAY(job->arena, uint64_t, n + 1), n + 1};
	RETURN_IF_ERROR(safetensors_parts(job->arena, out->path, tensors, n, out->parts, order));
	out->checksums[0] = shard->header = checksum_bytes(out->parts[0].at, out->parts[0].n);
	for (int i = 0; i < n; i++)
		out->checksums[i + 1] = s->tensors[first + order[i]].checksum;
	for (int i = 0; i <= n; i++)
		shard->bytes += out->parts[i].n;
	return NULL;
}

/* Files of the manifest's shards, one after the other; the manifest knows them then. */
static Status
begin_shards(SaveJob *job, const char *folder, PartFile *files)
{
	Manifest *m = &job->manifest;

	m->shards = NEW_ARRAY(job->arena, Shard, m->n_tensors);
	for (int first = 0, n; first < m->n_tensors; first += n) {
		int i = m->n_shards++;

		for (n = 1; first + n < m->n_tensors; n++)
			if (m->tensors[first + n].shard != i)
				break;
		m->shards[i].file = arena_printf(job->arena, "shard-%05d-%05d.safetensors", 0, i);
		RETURN_IF_ERROR(shard_file(job, folder, first, n, &m->shards[i], &files[i]));
		RETURN_IF_ERROR(file_begin(job, &files[i]));
	}
	return NULL;
}

static Status
begin_manifest(SaveJob *job, const char *folder, PartFile *out)
{
	*out = (PartFile){path_join(job->arena, folder, MANIFEST_FILE), NEW(job->arena, FilePart),
	                  NEW(job->arena, uint64_t), 1};
	RETURN_IF_ERROR(manifest_text(job->arena, out->path, &job->manifest, out->parts));
	*out->checksums = checksum_bytes(out->parts->at, out->parts->n);
	return file_begin(job, out);
}

/* All files written, then all synced and read again: a checkpoint has its name only after that, and older ones go only
 * after it has. */
static Status
write_files(SaveJob *job, const char *folder)
{
	const Manifest *m = &job->manifest;
	PartFile *files = NEW_ARRAY(job->arena, PartFile, m->n_tensors + 1);

	RETURN_IF_ERROR(begin_shards(job, folder, files));
	RETURN_IF_ERROR(begin_manifest(job, folder, &files[m->n_shards]));
	for (int i = 0; i <= m->n_shards; i++)
		RETURN_IF_ERROR(file_complete(job, &files[i]));
	return folder_sync(folder);
}

typedef struct {
	const char *folder; /* temporary */
	CleanupSlot cleanup;
} Unfinished;

static void
remove_unfinished(void *unfinished)
{
	Unfinished *u = unfinished;

	folder_remove(u->folder);
	cleanup_forget(u->cleanup);
}

static void
end_making(void *unused)
{
	(void)unused;
	cleanup_end_making();
}

/* Its files may be gone when the process ends: then it gets no name. */
static Status
give_name(SaveJob *job, const char *folder, CheckpointEntry *entry, bool *beside)
{
	if (!cleanup_begin_making())
		return status_error(EXIT_SYSTEM, "%s: the process is ending", folder);
	memory_hold(end_making, NULL);
	Status status = folder_add(job->folder, folder, entry, beside);
	memory_let_go();
	cleanup_end_making();
	return status;
}

static Status
write_checkpoint(SaveJob *job)
{
	const Manifest *m = &job->manifest;
	CheckpointEntry entry = {m->step, m->serial, .run = m->run, .eval_loss = m->eval_loss};
	const char *folder = folder_temporary(job->arena, job->folder);
	bool beside = false;                                  /* of its usual name */
	Unfinished *unfinished = NEW(job->arena, Unfinished); /* outlives this call's frame */

	unfinished->folder = folder;
	if (!cleanup_begin_making())
		return status_error(EXIT_SYSTEM, "%s: the process is ending", folder);
	int made = mkdir(folder, 0777), error = errno;
	unfinished->cleanup = made == 0 ? cleanup_add_path(folder) : -1;
	cleanup_end_making();
	if (made != 0)
		return status_error(EXIT_SYSTEM, "%s: %s", folder, strerror(error));
	memory_hold(remove_unfinished, unfinished);
	snapshot_hash(&job->snapshot);
	Status status = write_files(job, folder);
	if (!status)
		status = give_name(job, folder, &entry, &beside);
	memory_let_go();
	if (status)
		folder_remove(folder);
	else if (beside)
		job->beside = folder_entry_path(job->arena, job->folder, &entry);
	cleanup_forget(unfinished->cleanup);
	if (!status)
		folder_rotate(job->folder, m->run, job->keep, job->keep_best);
	return status;
}

/* ---- the thread */

static Status
run_job(void *save_job)
{
	SaveJob *job = save_job;
	double begin = seconds_now();
	Status status = write_checkpoint(job);

	trace_span(job->trace, &(TraceSpan){.track = TRACK_SAVING,
	                                    .category = "saver",
	                                    .name = "checkpoint",
	                                    .begin = begin,
	                                    .end = seconds_now(),
	                                    .count_of = "step",
	                                    .count = job->manifest.step});
	return status;
}

/* A signal's handler may end a wait. */
static void
await(sem_t *semaphore)
{
	while (sem_wait(semaphore) != 0 && errno == EINTR)
		;
}

static void *
serve(void *context)
{
	CheckpointWriter *w = context;

	step_back();
	touch(w->snapshot);
	for (;;) {
		sem_post(&w->ended);
		await(&w->given);
		if (!w->job)
			return NULL;
		w->job->status = memory_guard(run_job, w->job, w->orphans);
	}
}

Status
checkpoint_writer_open(Arena *arena, Span snapshot, MemoryOrphans **orphans, CheckpointWriter **out)
{
	CheckpointWriter *w = NEW(arena, CheckpointWriter);

	*out = NULL;
	*w = (CheckpointWriter){.snapshot = snapshot, .orphans = orphans, .busy = true};
	sem_init(&w->given, 0, 0);
	sem_init(&w->ended, 0, 0);
	RETURN_IF_ERROR(thread_start(&w->thread, "to write checkpoints", serve, w));
	*out = w;
	return NULL;
}

bool
checkpoint_writer_idle(CheckpointWriter *w, bool wait)
{
	if (w->busy && wait)
		await(&w->ended);
	else if (w->busy && sem_trywait(&w->ended) != 0)
		return false;
	w->busy = false;
	return true;
}

void
checkpoint_writer_give(CheckpointWriter *w, SaveJob *job)
{
	w->job = job;
	w->busy = true;
	sem_post(&w->given);
}

void
checkpoint_writer_close(CheckpointWriter *w)
{
	if (!w)
		return;
	checkpoint_writer_idle(w, true);
	checkpoint_writer_give(w, NULL);
	pthread_join(w->thread, NULL);
	sem_destroy(&w->given);
	sem_destroy(&w->ended);
}
