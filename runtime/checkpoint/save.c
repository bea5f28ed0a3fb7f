/* Saves checkpoints: copies the states into the snapshot (memory on the host), and gives the snapshot to a thread that writes
 * it (write.c) while training continues. Only one checkpoint is written at a time. If all ranks hold the same states, rank 0
 * writes everything; otherwise together.c is used. */
#include "runtime/checkpoint/parts.h"
#include "runtime/checkpoint/write.h"
#include "runtime/host/host.h"

#include <string.h>
#include <sys/random.h>

#define MAX_FAILURES 3
/* Bytes of the buffer through which files are read back: a multiple of a large page. */
#define SAVE_WINDOW (1 << 22)

static void
lay_out(Gradc *run, int n_ranks)
{
	Saver *s = run->saver;

	s->layouts = NEW_ARRAY(run->arena, SavedLayout, n_ranks);
	for (int r = 0; r < n_ranks; r++)
		s->layouts[r] = saved_layout(run->arena, &run->format, &run->executor.facts, r,
		                             run->options.shard_bytes);
}

Saver *
saver_new(Arena *arena)
{
	Saver *s = NEW(arena, Saver);

	s->folder.lock = -1;
	return s;
}

Status
saver_open(Gradc *run)
{
	const Executor *x = &run->executor;
	Saver *s = run->saver;
	int rank = gradc_rank(run);

	s->done_step = -1;
	s->together = run->mode != MODE_DDP && gradc_ranks(run) > 1;
	if (getrandom(&s->run, sizeof(s->run), GRND_NONBLOCK) != sizeof(s->run))
		s->run = (uint64_t)(1e9 * seconds_now());
	if (!run->options.save || (rank > 0 && !s->together))
		return NULL;
	s->folder.arena = arena_new();
	s->folder.path = run->options.save;
	if (rank == 0)
		RETURN_IF_ERROR(folder_lock(&s->folder));
	lay_out(run, s->together ? gradc_ranks(run) : 1);
	RETURN_IF_ERROR(x->ops->alloc(x->device, MEMORY_PINNED, SAVE_WINDOW, &s->window));
	if (s->layouts[rank].bytes > 0)
		RETURN_IF_ERROR(offload_alloc(x, s->layouts[rank].bytes, &s->snapshot));
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
	Saver *s = run->saver;

	if (!s->job)
		return;
	checkpoint_writer_idle(s->writer, true);
	if (s->job->stage == SAVE_SHARDS && s->job->temporary && gradc_rank(run) == 0) {
		/* without the other ranks' reports it is not known which shards the folder contains */
		folder_remove(s->job->temporary);
		cleanup_forget(s->job->cleanup);
	}
	job_free(s->job);
	s->job = NULL;
}

void
saver_close(Gradc *run)
{
	const Executor *x = &run->executor;
	Saver *s = run->saver;

	saver_wait(run);
	checkpoint_writer_close(s->writer);
	s->writer = NULL;
	if (s->window.at)
		x->ops->free(x->device, MEMORY_PINNED, s->window);
	if (s->snapshot.at)
		offload_free(x, s->snapshot);
	s->window = s->snapshot = (Span){0};
	folder_close(&s->folder);
}

/* Constants never change, so they are hashed once. */
Status
saver_constants(Gradc *run)
{
	const Format *f = &run->format;
	Saver *saver = run->saver;

	int count = 0;
	Status fault = NULL;

	if (saver->constants)
		return NULL;
	SavedTensor *list = NEW_ARRAY(run->arena, SavedTensor, f->n[SECTION_STATES]);
	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		Arena *arena = arena_new();
		const StateRecord *s = &f->states[i];
		Status status = NULL;

		if (s->lifetime == LIFE_CONSTANT) {
			void *bytes = arena_alloc(arena, (size_t)s->bytes + 1);
			SavedTensor *t = &list[count++];

			*t = saved_tensor(f, s);
			status = state_read(run, i, bytes);
			t->pieces = saved_whole(run->arena, t, -1,
			                        checksum_bytes(bytes, saved_bytes(f, s)));
			t->n_pieces = 1;
		}
		arena_free(arena);
		/* no return here: the other ranks continue with the next state and wait for this rank */
		fault = status_first(fault, status);
	}
	RETURN_IF_ERROR(fault);
	saver->constants = list;
	saver->n_constants = count;
	return NULL;
}

/* ---- one checkpoint */
SaveJob *
saver_job(Gradc *run)
{
	const Saver *saver = run->saver;
	Arena *arena = arena_new();
	SaveJob *job = NEW(arena, SaveJob);

	*job = (SaveJob){.arena = arena,
	                 .trace = run->observer.trace,
	                 .format = &run->format,
	                 .rank = gradc_rank(run),
	                 .layout = &saver->layouts[gradc_rank(run)],
	                 .stage = saver->together ? SAVE_SHARDS : SAVE_ALL,
	                 .cleanup = -1,
	                 .manifest.step = run->step,
	                 .folder = &run->saver->folder,
	                 .window = saver->window,
	                 .keep = run->options.keep,
	                 .best = run->options.keep_best ? run->best.step : -1};
	return job;
}

/* Collects the facts that decide whether this run could continue from a checkpoint in the folder. Constants are hashed only if
 * the folder has checkpoints. */
static Status
describe_own(Gradc *run, Manifest *out)
{
	Saver *saver = run->saver;

	if (saver->folder.entries.n > 0)
		RETURN_IF_ERROR(saver_constants(run));
	if (!saver->model)
		saver->model = facts_model(&run->format);
	*out = (Manifest){.step = run->step,
	                  .run = saver->run,
	                  .model = saver->model,
	                  .constants = saver->constants,
	                  .n_constants = saver->n_constants};
	if (!saver->folder.judged)
		folder_judge(&saver->folder, out);
	return NULL;
}

Status
saver_describe(Gradc *run, SaveJob *job, const SaveFacts *facts)
{
	Saver *saver = run->saver;

	RETURN_IF_ERROR(folder_prepare(&saver->folder));
	RETURN_IF_ERROR(describe_own(run, &job->manifest));
	RETURN_IF_ERROR(saver_constants(run));
	RETURN_IF_ERROR(facts_collect(run, &job->manifest));
	job->manifest.serial = folder_next_serial(&saver->folder);
	job->manifest.eval_loss = facts->eval_loss;
	job->manifest.only_best = facts->only_best;
	job->manifest.constants = saver->constants;
	job->manifest.n_constants = saver->n_constants;
	return NULL;
}

/* If the device has failed, returns the device's fault and does not count the checkpoint as failed. If ranks save together, all
 * ranks count the failure, and rank 0 reports it. */
Status
saver_count_failure(Gradc *run, int64_t step, Status why)
{
	Saver *saver = run->saver;
	Status status = run->executor.ops->fault(run->executor.device);

	if (status) {
		status_free(why);
		return status;
	}

	saver->failures++;
	bool last = saver->failures >= MAX_FAILURES, is_told = gradc_rank(run) > 0;
	if (last && saver->together)
		run->fault_is_shared = true;
	if (last && is_told)
		status = status_error(EXIT_CHECKPOINT, "%s", "");
	else if (last)
		status = status_error(EXIT_CHECKPOINT,
		                      "%d checkpoints in a row could not be written, the last one "
		                      "of step %lld: %s",
		                      saver->failures, (long long)step, why->message);
	else if (run->diag && !is_told)
		diag_warning(run->diag,
		             "the checkpoint of step %lld could not be written (%d of %d before "
		             "training stops): %s",
		             (long long)step, saver->failures, MAX_FAILURES, why->message);
	status_free(why);
	return status;
}

Status
saver_end_job(Gradc *run, Status why)
{
	Saver *saver = run->saver;
	SaveJob *job = saver->job;
	int64_t step = job->manifest.step;

	saver->job = NULL;
	if (job->beside && run->diag)
		diag_warning(run->diag,
		             "the checkpoint of step %lld was saved as %s: its usual name is taken "
		             "by something that is not a checkpoint, or by a checkpoint that this "
		             "run cannot continue from",
		             (long long)step, job->beside);
	job_free(job);
	if (why)
		return saver_count_failure(run, step, why);
	saver->failures = 0;
	saver->done_step = step;
	return NULL;
}

Status
saver_poll(Gradc *run, bool wait)
{
	SaveJob *job = run->saver->job;

	if (run->saver->together)
		return together_poll(run, wait);
	if (!job || !checkpoint_writer_idle(run->saver->writer, wait))
		return NULL;
	Status why = job->status;
	job->status = NULL;
	return saver_end_job(run, why);
}

/* Copies the states and gives the copy to the writer. */
static Status
start_alone(Gradc *run, const SaveFacts *facts)
{
	Saver *saver = run->saver;
	SaveJob *job = saver->job = saver_job(run);
	Status status = saver_describe(run, job, facts);

	/* the writer may still be touching the snapshot */
	checkpoint_writer_idle(saver->writer, true);
	if (!status)
		status = snapshot_take(job->arena, run, &job->snapshot);
	if (status)
		return saver_end_job(run, status);
	checkpoint_writer_give(saver->writer, job);
	return NULL;
}

static Status
save(Gradc *run, const SaveFacts *facts)
{
	Saver *saver = run->saver;
	double begin = seconds_now();

	if (!run->options.save)
		return status_error(EXIT_USAGE, "there is no folder to save to");
	RETURN_IF_ERROR(step_is_whole(run));
	if (!saver->writer) { /* a rank that does not write: rank 0 writes, and reports failures */
		saver->done_step = run->step;
		return NULL;
	}
	bool waited = saver->job && !checkpoint_writer_idle(saver->writer, false);
	Status status = saver_poll(run, true);
	if (!status)
		status = saver->together ? together_start(run, facts) : start_alone(run, facts);
	observe_span(run, waited ? "save (waited)" : "save", begin, -1);
	saver->seconds += seconds_now() - begin;
	return status;
}

Status
saver_save(Gradc *run, double eval_loss)
{
	return save(run, &(SaveFacts){eval_loss, false});
}

Status
saver_save_best(Gradc *run, double eval_loss)
{
	return save(run, &(SaveFacts){eval_loss, true});
}

static Status
check_names(Gradc *run, int64_t every)
{
	const SaveSteps steps = {run->step, run->total_steps, every};
	Manifest own;
	int replaced;

	RETURN_IF_ERROR(facts_read_data(run));
	RETURN_IF_ERROR(describe_own(run, &own));
	RETURN_IF_ERROR(folder_check_names(&run->saver->folder, &steps, &own, &replaced));
	if (replaced && run->diag)
		diag_warning(
			run->diag,
			"%s: %d checkpoint%s of another training of this model will be replaced "
			"when this run saves the same steps; to continue from a checkpoint "
			"instead, use --resume",
			run->saver->folder.path, replaced, replaced == 1 ? "" : "s");
	return NULL;
}

Status
saver_check_names(Gradc *run, int64_t every)
{
	bool saves = run->options.save && gradc_rank(run) == 0;

	if (run->saver->together) /* ranks hold parts of constants, too */
		RETURN_IF_ERROR(ranks_share(run, saver_constants(run)));
	return ranks_share(run, saves ? check_names(run, every) : NULL);
}

bool
gradc_saves_together(const Gradc *run)
{
	return run->saver->together;
}

int64_t
gradc_saved_step(const Gradc *run)
{
	return run->saver->done_step;
}
