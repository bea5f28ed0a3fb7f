/* Writing checkpoints. The saved states are copied into the snapshot region; a thread writes the
 * copy to a temporary folder, reads it back, and renames it. The thread owns its job, the snapshot
 * and the list of checkpoints until it is joined; nothing else is shared. */
#include "runtime/runtime_impl.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FAILURES 3
/* In large pages: what is read again is asked for, and waited for, a window at a time. */
#define SAVE_WINDOW (1 << 22)

struct SaveJob {
	Arena *arena;
	Trace *trace;
	Manifest manifest;
	Snapshot snapshot;
	CheckpointFolder *folder;
	Span window; /* through which files are written and read again */
	int64_t keep;
	bool keep_best;
	pthread_t thread;
	atomic_bool ended;
	Status status;
};

/* Compute comes first where there are fewer cores than threads: of a core that it shares the writer gets a tenth. With
 * much less it would not end before the next save is due. */
enum { WRITER_NICE = 10 };

static void
step_back(void)
{
	setpriority(PRIO_PROCESS, (id_t)gettid(), WRITER_NICE);
}

/* What memory costs when it is touched first is more than a copy: the first save need not wait for
 * that. Nothing but time depends on it. */
static void *
touch_snapshot(void *context)
{
	const Saver *s = context;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)s->snapshot.at;
	uintptr_t first = (at + page - 1) / page * page;
	uintptr_t last = (at + (uintptr_t)s->snapshot.bytes) / page * page;

	step_back();
	if (last > first)
		madvise((void *)first, last - first, MADV_POPULATE_WRITE);
	return NULL;
}

/* The snapshot is the caller's from then on. */
static void
await_touched(Saver *s)
{
	if (s->touching)
		pthread_join(s->toucher, NULL);
	s->touching = false;
}

Status
saver_open(Gradc *run)
{
	const Executor *x = &run->executor;
	Saver *s = &run->saver;

	s->done_step = -1;
	if (getrandom(&s->run, sizeof(s->run), GRND_NONBLOCK) != sizeof(s->run))
		s->run = (uint64_t)(1e9 * seconds_now());
	if (!run->options.save || gradc_rank(run) > 0)
		return NULL; /* rank 0 saves: all ranks hold the same states */
	s->folder.arena = arena_new();
	s->folder.path = run->options.save;
	RETURN_IF_ERROR(folder_lock(&s->folder));
	RETURN_IF_ERROR(x->ops->alloc(x->device, MEMORY_PINNED, SAVE_WINDOW, &s->window));
	RETURN_IF_ERROR(x->ops->alloc(x->device, MEMORY_PINNED,
	                              snapshot_bytes(&run->format, run->options.shard_bytes),
	                              &s->snapshot));
	RETURN_IF_ERROR(thread_start(&s->toucher, "to write checkpoints", touch_snapshot, s));
	s->touching = true;
	return NULL;
}

static void
job_free(SaveJob *job)
{
	status_free(job->status);
	arena_free(job->arena);
}

void
saver_wait(Gradc *run)
{
	Saver *s = &run->saver;

	if (!s->job)
		return;
	pthread_join(s->job->thread, NULL);
	job_free(s->job);
	s->job = NULL;
}

void
saver_close(Gradc *run)
{
	const Executor *x = &run->executor;
	Saver *s = &run->saver;

	saver_wait(run);
	await_touched(s);
	if (s->window.at)
		x->ops->free(x->device, MEMORY_PINNED, s->window);
	if (s->snapshot.at)
		x->ops->free(x->device, MEMORY_PINNED, s->snapshot);
	s->window = s->snapshot = (Span){0};
	folder_close(&s->folder);
}

/* ---- in the background */

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

/* The parts of a file have the checksums of what was to be written. */
static Status
read_again(const SaveJob *job, const char *path, const FilePart *parts, int n,
           const uint64_t *checksums)
{
	PartChecksums again = {.checksums = NEW_ARRAY(job->arena, uint64_t, n)};
	FileSink sink = {&again, hash_part};
	int64_t at = 0;

	checksum_begin(&again.checksum);
	RETURN_IF_ERROR(file_read_parts(path, parts, n, job->window.at, job->window.bytes, &sink));
	hash_part(&again, n, NULL, 0);
	for (int i = 0; i < n; at += parts[i++].n)
		if (checksums[i] != again.checksums[i])
			return status_error(EXIT_SYSTEM,
			                    "%s: bytes %lld to %lld are not what was written: the "
			                    "disk is damaged",
			                    path, (long long)at, (long long)(at + parts[i].n));
	return NULL;
}

/* Written, synced, read again: a checkpoint has its name only after that, and older ones go only after it has. */
static Status
write_file(const SaveJob *job, const char *path, const FilePart *parts, int n,
           const uint64_t *checksums)
{
	FileWriter *w;

	RETURN_IF_ERROR(file_writer_open_part(path, job->window.at, job->window.bytes, &w));
	RETURN_IF_ERROR(file_writer_end(w, file_writer_add_parts(w, parts, n)));
	return read_again(job, path, parts, n, checksums);
}

/* Tensors [first, first + n) of the list. */
static Status
write_shard(SaveJob *job, const char *folder, int first, int n, Shard *shard)
{
	const Snapshot *s = &job->snapshot;
	SafeTensor *tensors = snapshot_files(job->arena, s, first, n);
	FilePart *parts = NEW_ARRAY(job->arena, FilePart, n + 1);
	uint64_t *checksums = NEW_ARRAY(job->arena, uint64_t, n + 1);
	int *order = NEW_ARRAY(job->arena, int, n);
	const char *path = path_join(job->arena, folder, shard->file);

	RETURN_IF_ERROR(safetensors_parts(job->arena, path, tensors, n, parts, order));
	checksums[0] = shard->header = checksum_bytes(parts[0].at, parts[0].n);
	for (int i = 0; i < n; i++)
		checksums[i + 1] = s->tensors[first + order[i]].checksum;
	for (int i = 0; i <= n; i++)
		shard->bytes += parts[i].n;
	return write_file(job, path, parts, n + 1, checksums);
}

static Status
write_shards(SaveJob *job, const char *folder)
{
	Manifest *m = &job->manifest;

	m->shards = NEW_ARRAY(job->arena, Shard, m->n_tensors);
	for (int first = 0, n; first < m->n_tensors; first += n) {
		Shard *shard = &m->shards[m->n_shards];

		for (n = 1; first + n < m->n_tensors; n++)
			if (m->tensors[first + n].shard != m->n_shards)
				break;
		shard->file = arena_printf(job->arena, "shard-%05d-%05d.safetensors", 0,
		                           m->n_shards++);
		RETURN_IF_ERROR(write_shard(job, folder, first, n, shard));
	}
	return NULL;
}

static Status
write_checkpoint(SaveJob *job, const char *folder)
{
	const Manifest *m = &job->manifest;
	CheckpointEntry entry = {m->step, m->serial, m->run, m->eval_loss};
	const char *path = path_join(job->arena, folder, MANIFEST_FILE);
	FilePart manifest;

	if (mkdir(folder, 0777) != 0)
		return status_error(EXIT_SYSTEM, "%s: %s", folder, strerror(errno));
	snapshot_hash(&job->snapshot);
	RETURN_IF_ERROR(write_shards(job, folder));
	RETURN_IF_ERROR(manifest_text(job->arena, path, m, &manifest));
	uint64_t checksum = checksum_bytes(manifest.at, manifest.n);
	RETURN_IF_ERROR(write_file(job, path, &manifest, 1, &checksum));
	RETURN_IF_ERROR(folder_sync(folder));
	RETURN_IF_ERROR(folder_add(job->folder, folder, entry));
	folder_rotate(job->folder, m->run, job->keep, job->keep_best);
	return NULL;
}

static void *
job_run(void *context)
{
	SaveJob *job = context;
	double begin = seconds_now();
	step_back();
	const char *folder = folder_temporary(job->arena, job->folder);

	job->status = write_checkpoint(job, folder);
	if (job->status)
		folder_remove(folder);
	trace_span(job->trace, &(TraceSpan){.track = TRACK_SAVING,
	                                    .category = "saver",
	                                    .name = "checkpoint",
	                                    .begin = begin,
	                                    .end = seconds_now(),
	                                    .count_of = "step",
	                                    .count = job->manifest.step});
	atomic_store(&job->ended, true);
	return NULL;
}

/* ---- in the caller's thread */

/* They never change: hashed once. */
Status
saver_constants(Gradc *run)
{
	const Format *f = &run->format;
	Saver *saver = &run->saver;

	if (saver->constants)
		return NULL;
	SavedTensor *list = NEW_ARRAY(run->arena, SavedTensor, f->n[SECTION_STATES]);
	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		Arena *arena = arena_new();
		Span from = executor_state(&run->executor, i);
		Status status = NULL;

		from.bytes = saved_bytes(f, &f->states[i]);
		if (f->states[i].lifetime == LASTS_CONSTANT) {
			void *bytes = arena_alloc(arena, (size_t)from.bytes);
			SavedTensor *t = &list[saver->n_constants++];

			*t = saved_tensor(f, &f->states[i], -1);
			status = executor_read(&run->executor, bytes, from);
			t->checksum = checksum_bytes(bytes, from.bytes);
		}
		arena_free(arena);
		RETURN_IF_ERROR(status);
	}
	saver->constants = list;
	return NULL;
}

static Status
fill_job(Gradc *run, SaveJob *job, double eval_loss)
{
	Saver *saver = &run->saver;

	RETURN_IF_ERROR(folder_prepare(&saver->folder));
	RETURN_IF_ERROR(saver_constants(run));
	RETURN_IF_ERROR(facts_collect(job->arena, run, &job->manifest));
	job->manifest.serial = folder_next_serial(&saver->folder);
	job->manifest.eval_loss = eval_loss;
	job->manifest.constants = saver->constants;
	job->manifest.n_constants = saver->n_constants;
	await_touched(saver);
	RETURN_IF_ERROR(snapshot_take(job->arena, run, &job->snapshot));
	job->manifest.tensors = job->snapshot.tensors;
	job->manifest.n_tensors = job->snapshot.n;
	return NULL;
}

static Status
count_failure(Gradc *run, int64_t step, Status why)
{
	Saver *saver = &run->saver;
	Status status = NULL;

	saver->failures++;
	if (saver->failures >= MAX_FAILURES)
		status = status_error(EXIT_CHECKPOINT,
		                      "%d checkpoints in a row could not be written, the last one "
		                      "of step %lld: %s",
		                      saver->failures, (long long)step, why->message);
	else if (run->diag)
		diag_warning(run->diag,
		             "the checkpoint of step %lld could not be written (%d of %d before "
		             "training stops): %s",
		             (long long)step, saver->failures, MAX_FAILURES, why->message);
	status_free(why);
	return status;
}

Status
gradc_save_poll(Gradc *run, bool wait)
{
	Saver *saver = &run->saver;
	SaveJob *job = saver->job;

	if (!job || (!wait && !atomic_load(&job->ended)))
		return NULL;
	pthread_join(job->thread, NULL);
	int64_t step = job->manifest.step;
	Status status = job->status;
	job->status = NULL;
	saver->job = NULL;
	job_free(job);
	if (status)
		return count_failure(run, step, status);
	saver->failures = 0;
	saver->done_step = step;
	return NULL;
}

/* Copies the state, and starts the thread that writes the copy. */
static Status
start_job(Gradc *run, double eval_loss)
{
	const GradcOptions *o = &run->options;
	Arena *arena = arena_new();
	SaveJob *job = NEW(arena, SaveJob);
	job->arena = arena;
	job->trace = run->observer.trace;
	job->folder = &run->saver.folder;
	job->window = run->saver.window;
	job->keep = o->keep;
	job->keep_best = o->keep_best;
	Status status = fill_job(run, job, eval_loss);
	if (!status)
		status = thread_start(&job->thread, "to write it", job_run, job);
	if (status) {
		job_free(job);
		return count_failure(run, run->step, status);
	}
	run->saver.job = job;
	return NULL;
}

Status
saver_save(Gradc *run, double eval_loss)
{
	double begin = seconds_now();
	bool waited = run->saver.job && !atomic_load(&run->saver.job->ended);

	if (!run->options.save)
		return status_error(EXIT_USAGE, "there is no folder to save to");
	if (gradc_rank(run) > 0) { /* whether it fails is rank 0's to say */
		run->saver.done_step = run->step;
		return NULL;
	}
	Status status = gradc_save_poll(run, true);
	if (!status)
		status = start_job(run, eval_loss);
	observe_span(run, waited ? "save (waited)" : "save", begin, -1);
	run->saver.seconds += seconds_now() - begin;
	return status;
}

int64_t
gradc_saved_step(const Gradc *run)
{
	return run->saver.done_step;
}
