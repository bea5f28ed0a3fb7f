/* The thread that writes checkpoints. From the time the thread gets a job until the caller knows that the job has ended, the
 * thread owns the job, the snapshot and the list of checkpoints. The thread shares nothing else with the caller. Semaphores
 * hand the job over. */
#include "runtime/checkpoint/write.h"
#include "runtime/host/host.h"

#include <pthread.h>
#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

struct CheckpointWriter {
	pthread_t thread;
	sem_t given, ended;
	Span snapshot;
	MemoryOrphans **orphans;
	SaveJob *job; /* the given job; NULL ends the thread */
	/* read and written only by the caller, which does not yet know that the job has ended */
	bool busy;
};

enum { WRITER_NICE = 10 };

/* Lowers the priority of this thread (the writer). On a core that it shares with a computing thread, the writer gets about a
 * tenth of the time. With SCHED_BATCH the writer does not interrupt computing threads each time the disk answers, which would
 * delay them all. With a much smaller share of time the writer would not finish before the next save. Errors are ignored,
 * because only speed depends on the priority. */
static void
step_back(void)
{
	sched_setscheduler(gettid(), SCHED_BATCH, &(struct sched_param){0});
	setpriority(PRIO_PROCESS, (id_t)gettid(), WRITER_NICE);
}

/* Touches the snapshot's memory before the first save, so that the first save need not wait for the page faults, which cost
 * more than the copy. Errors are ignored, because only speed depends on it. */
static void
touch(Span memory)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)memory.at;
	uintptr_t first = (at + page - 1) / page * page;
	uintptr_t last = (at + (uintptr_t)memory.bytes) / page * page;

	if (last > first)
		madvise((void *)first, last - first, MADV_POPULATE_WRITE);
}

static Status
run_job(void *save_job)
{
	static const char *const names[] = {[SAVE_ALL] = "checkpoint",
	                                    [SAVE_SHARDS] = "shards of a checkpoint",
	                                    [SAVE_MANIFEST] = "manifest of a checkpoint",
	                                    [SAVE_REMOVE] = "a checkpoint that failed"};
	SaveJob *job = save_job;
	double begin = seconds_now();
	Status status = checkpoint_write(job);

	trace_span(job->trace, &(TraceSpan){.track = TRACK_SAVING,
	                                    .category = "saver",
	                                    .name = names[job->stage],
	                                    .begin = begin,
	                                    .end = seconds_now(),
	                                    .count_of = "step",
	                                    .count = job->manifest.step});
	return status;
}

/* Waits for a semaphore, and waits again if a signal handler has interrupted the wait. */
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
