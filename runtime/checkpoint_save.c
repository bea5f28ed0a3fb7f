/* Saving: the states are copied into the snapshot region, and a thread is given the copy to write (checkpoint_write.c).
 * One is written at a time. */
#include "runtime/runtime_impl.h"

#include <string.h>
#include <sys/random.h>

#define MAX_FAILURES 3
/* In large pages: what is read again is asked for, and waited for, a window at a time. */
#define SAVE_WINDOW (1 << 22)

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
	return checkpoint_writer_open(run->arena, s->snapshot, &run->orphans, &s->writer);
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
	checkpoint_writer_idle(s->writer, true);
	job_free(s->job);
	s->job = NULL;
}

void
saver_close(Gradc *run)
{
	const Executor *x = &run->executor;
	Saver *s = &run->saver;

	saver_wait(run);
	checkpoint_writer_close(s->writer);
	s->writer = NULL;
	if (s->window.at)
		x->ops->free(x->device, MEMORY_PINNED, s->window);
	if (s->snapshot.at)
		x->ops->free(x->device, MEMORY_PINNED, s->snapshot);
	s->window = s->snapshot = (Span){0};
	folder_close(&s->folder);
}

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
	RETURN_IF_ERROR(facts_collect(run, &job->manifest));
	job->manifest.serial = folder_next_serial(&saver->folder);
	job->manifest.eval_loss = eval_loss;
	job->manifest.constants = saver->constants;
	job->manifest.n_constants = saver->n_constants;
	checkpoint_writer_idle(saver->writer, true); /* it may be touching the snapshot still */
	RETURN_IF_ERROR(snapshot_take(job->arena, run, &job->snapshot));
	job->manifest.tensors = job->snapshot.tensors;
	job->manifest.n_tensors = job->snapshot.n;
	return NULL;
}

/* A device that is spent is no fault of the checkpoint's: nothing is tried again. */
static Status
count_failure(Gradc *run, int64_t step, Status why)
{
	Saver *saver = &run->saver;
	Status status = run->executor.ops->fault(run->executor.device);

	if (status) {
		status_free(why);
		return status;
	}

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
saver_poll(Gradc *run, bool wait)
{
	Saver *saver = &run->saver;
	SaveJob *job = saver->job;

	if (!job || !checkpoint_writer_idle(saver->writer, wait))
		return NULL;
	int64_t step = job->manifest.step;
	Status status = job->status;
	job->status = NULL;
	saver->job = NULL;
	if (job->beside && run->diag)
		diag_warning(run->diag,
		             "the checkpoint of step %lld is %s: something that is no checkpoint's "
		             "has its usual name",
		             (long long)step, job->beside);
	job_free(job);
	if (status)
		return count_failure(run, step, status);
	saver->failures = 0;
	saver->done_step = step;
	return NULL;
}

/* Copies the state, and gives the copy to the writer. */
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
	if (status) {
		job_free(job);
		return count_failure(run, run->step, status);
	}
	run->saver.job = job;
	checkpoint_writer_give(run->saver.writer, job);
	return NULL;
}

Status
saver_save(Gradc *run, double eval_loss)
{
	double begin = seconds_now();
	bool waited = run->saver.job && !checkpoint_writer_idle(run->saver.writer, false);

	if (!run->options.save)
		return status_error(EXIT_USAGE, "there is no folder to save to");
	RETURN_IF_ERROR(step_is_whole(run));
	if (gradc_rank(run) > 0) /* whether it fails is rank 0's to say */
		run->saver.done_step = run->step;
	RETURN_IF_ERROR(states_begin(run));
	if (gradc_rank(run) > 0)
		return NULL;
	Status status = saver_poll(run, true);
	if (!status)
		status = start_job(run, eval_loss);
	status = status_first(status, states_end(run));
	observe_span(run, waited ? "save (waited)" : "save", begin, -1);
	run->saver.seconds += seconds_now() - begin;
	return status;
}

static Status
check_names(Gradc *run, int64_t every)
{
	const SaveSteps steps = {run->step, run->total_steps, every};
	int replaced;

	RETURN_IF_ERROR(folder_check_names(&run->saver.folder, &steps, run->saver.run,
	                                   facts_model(&run->format), &replaced));
	if (replaced && run->diag)
		diag_warning(
			run->diag,
			"%s: %d checkpoint%s of another training of this model will be replaced "
			"at the same steps; --resume goes on from there",
			run->saver.folder.path, replaced, replaced == 1 ? "" : "s");
	return NULL;
}

Status
saver_check_names(Gradc *run, int64_t every)
{
	bool saves = run->options.save && gradc_rank(run) == 0;

	return ranks_share(run, saves ? check_names(run, every) : NULL);
}

int64_t
gradc_saved_step(const Gradc *run)
{
	return run->saver.done_step;
}
