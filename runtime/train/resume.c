/* Continues training from a checkpoint: picks the checkpoint, loads its states into the executor, and finds the place in the
 * data. The run does not change before the whole checkpoint is verified. Each rank verifies the checkpoint. But if the states
 * are divided among ranks, only rank 0 verifies all of it, and each other rank checks the bytes that it reads. */
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/model/model.h"
#include "runtime/train/steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- one checkpoint */

static Status
take_bytes(void *context, int state, int64_t offset, const void *bytes, int64_t n)
{
	Gradc *run = context;

	return state_write(&run->executor, state, offset, bytes, n);
}

static bool
wants_bytes(void *context, int state, int64_t offset, int64_t n)
{
	const Gradc *run = context;
	StatePart part = state_part(&run->executor, state);

	return !state_has_parts(&run->executor, state) ||
	       (part.first < offset + n && offset < part.first + part.at.bytes);
}

/* Constants are not in the checkpoint: they must have the values that the checkpoint was trained with. */
static Status
check_constants(Gradc *run, const Checkpoint *c)
{
	const Manifest *m = &c->manifest;

	RETURN_IF_ERROR(saver_constants(run));
	for (int i = 0; i < m->n_constants; i++)
		for (int k = 0; k < run->saver->n_constants; k++) {
			const SavedTensor *t = &run->saver->constants[k];

			if (strcmp(t->name, m->constants[i].name) == 0 &&
			    t->pieces->checksum != m->constants[i].pieces->checksum)
				return status_error(EXIT_CHECKPOINT,
				                    "%s: frozen tensor \"%s\" has other values "
				                    "than those it was trained with: give the same "
				                    "--load, --weights or --merge",
				                    c->path, t->name);
		}
	return NULL;
}

static Status
open_checked(Arena *arena, Gradc *run, const char *path, Checkpoint *c)
{
	RETURN_IF_ERROR(checkpoint_open(arena, &run->format, path, c));
	return check_constants(run, c);
}

static Status
open_verified(Arena *arena, Gradc *run, const char *path, Checkpoint *c)
{
	RETURN_IF_ERROR(open_checked(arena, run, path, c));
	return checkpoint_verify(c, NULL);
}

/* ---- which checkpoint */

/* Sort order: unreadable checkpoints first, then the newest first. */
static int
by_age(const void *a, const void *b)
{
	const CheckpointEntry *x = a, *y = b;

	if (x->serial < 0 && y->serial < 0)
		return (x->step < y->step) - (x->step > y->step);
	if (x->serial < 0 || y->serial < 0)
		return x->serial < 0 ? -1 : 1;
	return (x->serial < y->serial) - (x->serial > y->serial);
}

static void
sort_entries(CheckpointFolder *folder)
{
	if (folder->entries.n > 0)
		qsort(folder->entries.at, (size_t)folder->entries.n, sizeof(CheckpointEntry),
		      by_age);
}

static void
warn_left_out(Gradc *run, Status why)
{
	if (run->diag)
		diag_warning(run->diag, "%s: left out", why->message);
	status_free(why);
}

/* Picks the newest checkpoint that passes the verification. The files of the other checkpoints are not touched. It is an error
 * if the folder has undamaged checkpoints but all belong to another training: starting anew would hide that options were
 * forgotten. */
static Status
pick_auto(Gradc *run, Checkpoint *c)
{
	CheckpointFolder *folder = &run->saver->folder;
	Status status = folder_prepare(folder);
	bool whole = false;

	c->path = NULL;
	if (status) {
		status->exit_code = EXIT_CHECKPOINT;
		return status;
	}
	sort_entries(folder);
	for (int i = 0; i < folder->entries.n; i++) {
		CheckpointEntry *e = &folder->entries.at[i];
		const char *path = folder_entry_path(run->arena, folder, e);
		Status fault = open_checked(run->arena, run, path, c);

		whole |= fault && c->manifest.version > 0; /* the manifest is not damaged */
		if (!fault)
			fault = checkpoint_verify(c, NULL);
		if (!fault)
			return NULL;
		e->stays = true;
		warn_left_out(run, fault);
		c->path = NULL;
	}
	if (!whole)
		return NULL;
	return status_error(EXIT_CHECKPOINT,
	                    "--resume=auto: %s has checkpoints, and none that this run can go on "
	                    "from: give it the options of the run before, or another --save",
	                    folder->path);
}

/* Picks the newest readable checkpoint of a folder. But if an unreadable checkpoint has more steps, picks the unreadable one,
 * because it may be newer; opening it then reports the fault. */
static Status
pick_newest(Gradc *run, const char *path, const char **out)
{
	CheckpointFolder folder = {.arena = run->arena, .path = path, .lock = -1};
	int first = 0;

	RETURN_IF_ERROR(folder_list(&folder));
	if (folder.entries.n == 0)
		return status_error(EXIT_CHECKPOINT, "%s: there is no checkpoint", path);
	sort_entries(&folder);
	const CheckpointEntry *e = folder.entries.at;
	while (first < folder.entries.n && e[first].serial < 0)
		first++;
	bool doubtful = first > 0 && (first == folder.entries.n || e[0].step > e[first].step);
	*out = folder_entry_path(run->arena, &folder, &e[doubtful ? 0 : first]);
	return NULL;
}

static Status
pick_named(Gradc *run, const char *path, Checkpoint *c)
{
	if (access(path_join(run->arena, path, MANIFEST_FILE), F_OK) != 0)
		RETURN_IF_ERROR(pick_newest(run, path, &path));
	return open_verified(run->arena, run, path, c);
}

/* ---- engines of libraries */
static Status
read_engines(Gradc *run, const char *path, Tunings *out)
{
	Manifest m;

	RETURN_IF_ERROR(manifest_read(run->arena, path_join(run->arena, path, MANIFEST_FILE), &m));
	for (int i = 0; i < m.n_engines; i++)
		tunings_parse(out, m.engines[i], strlen(m.engines[i]));
	return NULL;
}

/* Of the newest checkpoint with a manifest that is not damaged. */
static Status
read_newest_engines(Gradc *run, const char *path, Tunings *out)
{
	CheckpointFolder folder = {.arena = run->arena, .path = path, .lock = -1};

	RETURN_IF_ERROR(folder_list(&folder));
	sort_entries(&folder);
	for (int i = 0; i < folder.entries.n; i++) {
		const char *entry = folder_entry_path(run->arena, &folder, &folder.entries.at[i]);
		Status status = read_engines(run, entry, out);
		if (!status)
			break;
		status_free(status);
	}
	return NULL;
}

/* Faults are reported when the checkpoint is read as a whole. */
void
resume_engines(Gradc *run, Tunings *out)
{
	const GradcOptions *o = &run->options;
	bool automatic = o->resume && strcmp(o->resume, "auto") == 0;
	const char *path = automatic ? o->save : o->resume;

	if (path && access(path_join(run->arena, path, MANIFEST_FILE), F_OK) == 0)
		status_free(read_engines(run, path, out));
	else if (path)
		status_free(read_newest_engines(run, path, out));
}

/* ---- place in the data */

/* If the batch size has changed since the checkpoint, the epoch's remaining rows may be fewer than a step needs. They are
 * dropped, as at the end of every epoch. */
static void
finish_epoch(Gradc *run)
{
	int64_t rows = run->train->rows, left = rows - run->samples % rows;

	if (!run->options.keep_last &&
	    left < run->train->micro_rows * run->options.accumulate * gradc_ranks(run))
		run->samples += left;
}

static bool
is_in_save_folder(const Gradc *run, const char *path)
{
	Arena *arena = arena_new();
	char *parent = realpath(path_join(arena, path, ".."), NULL);
	char *save = run->options.save ? realpath(run->options.save, NULL) : NULL;
	bool same = parent && save && strcmp(parent, save) == 0;

	free(parent);
	free(save);
	arena_free(arena);
	return same;
}

/* ---- the best step */
static Status
find_in_folder(Gradc *run, const char *path, const char **out)
{
	CheckpointFolder folder = {.arena = run->arena, .path = path, .lock = -1};

	RETURN_IF_ERROR(folder_list(&folder));
	const CheckpointEntry *e = folder_find(&folder, run->saver->run, run->best.step);
	*out = e ? folder_entry_path(run->arena, &folder, e) : NULL;
	return NULL;
}

/* The path of the best step's checkpoint: in the folder of --save, or else beside the resumed checkpoint. NULL if there is none. */
static Status
find_best(Gradc *run, const char **out)
{
	*out = NULL;
	if (run->options.save)
		RETURN_IF_ERROR(find_in_folder(run, run->options.save, out));
	if (*out || !run->resumed_from)
		return NULL;
	return find_in_folder(run, path_join(run->arena, run->resumed_from, ".."), out);
}

/* If the resumed training kept no checkpoint of its best step, the best of the steps from now on is kept. */
static Status
forget_lost_best(Gradc *run)
{
	const char *path = NULL;
	int lost = 0;
	Status status = NULL;

	if (!run->options.keep_best || run->best.step < 0)
		return NULL;
	if (gradc_rank(run) == 0)
		status = find_best(run, &path);
	RETURN_IF_ERROR(ranks_share(run, status));
	RETURN_IF_ERROR(ranks_agree(run, gradc_rank(run) == 0 && !path, &lost));
	if (!lost)
		return NULL;
	if (run->diag && gradc_rank(run) == 0)
		diag_warning(
			run->diag,
			"the best step so far, %lld, has no checkpoint: the best of the steps from "
			"now on counts",
			(long long)run->best.step);
	run->best.step = -1;
	run->best.value = NAN;
	return NULL;
}

static Status
open_best(Gradc *run, Checkpoint *c)
{
	bool first = gradc_rank(run) == 0;

	Status status = first ? find_best(run, &c->path) : NULL;
	if (first && !status && !c->path)
		status = status_error(
			EXIT_CHECKPOINT,
			"the checkpoint of the best step, %lld, is missing: --keep-best "
			"keeps it in the folder of --save",
			(long long)run->best.step);
	RETURN_IF_ERROR(ranks_share(run, status));
	RETURN_IF_ERROR(ranks_broadcast_text(run, &c->path));
	return ranks_share(run, first || run->mode == MODE_DDP
	                                ? open_verified(run->arena, run, c->path, c)
	                                : open_checked(run->arena, run, c->path, c));
}

Status
resume_best(Gradc *run)
{
	CheckpointSink sink = {run, take_bytes, wants_bytes};
	Checkpoint c = {0};

	if (run->best.step < 0)
		return status_error(EXIT_USAGE,
		                    "there is no best step: no evaluation after a step had a %s",
		                    run->best.metric);
	if (run->best.step == run->step)
		return NULL;
	RETURN_IF_ERROR(open_best(run, &c));
	run->torn = true; /* until all states are those of the best step */
	RETURN_IF_ERROR(ranks_share(run, checkpoint_verify(&c, &sink)));
	RETURN_IF_ERROR(ranks_share(run, weights_copy(run, true)));
	run->torn = false;
	return NULL;
}

/* Sets the run's step and place in the data to the checkpoint's, after the states are loaded. */
static Status
continue_from(Gradc *run, const Checkpoint *c, bool automatic)
{
	const Manifest *m = &c->manifest;
	Manifest now;

	RETURN_IF_ERROR(step_forget_failure(run));
	RETURN_IF_ERROR(weights_copy(run, true));
	run->step = m->step;
	run->samples = m->samples;
	run->loss = m->loss;
	plateau_resume(&run->hyper.plateau, &m->plateau);
	run->saver->run = m->run;
	run->resumed_from = c->path;
	RETURN_IF_ERROR(best_resume(run, &m->best));
	RETURN_IF_ERROR(forget_lost_best(run));
	if (is_in_save_folder(run, c->path))
		run->saver->done_step = m->step;
	/* The run that wrote the checkpoint may have been killed before it removed old ones. If the user named a checkpoint,
	 * nothing is removed, because the newer checkpoints were not verified. */
	if (automatic)
		folder_rotate(&run->saver->folder, m->run, run->options.keep,
		              run->options.keep_best ? run->best.step : -1);
	if (!run->train)
		return NULL;
	finish_epoch(run);
	trainer_count_steps(run);
	RETURN_IF_ERROR(facts_collect(run, &now));
	RETURN_IF_ERROR(facts_check_split(run, c->path, m, &now));
	facts_compare(run, c->path, m, &now);
	return NULL;
}

/* Rank 0 picks and verifies a checkpoint; the other ranks open the same one. */
static Status
pick(Gradc *run, bool automatic, Checkpoint *c)
{
	bool first = gradc_rank(run) == 0;
	Status status = NULL;

	if (first)
		status = automatic ? pick_auto(run, c) : pick_named(run, run->options.resume, c);
	RETURN_IF_ERROR(ranks_share(run, status));
	RETURN_IF_ERROR(ranks_broadcast_text(run, &c->path));
	if (first || !c->path)
		return NULL;
	return run->mode == MODE_DDP ? open_verified(run->arena, run, c->path, c)
	                             : open_checked(run->arena, run, c->path, c);
}

/* Locks the folder before training, so that a second run in the same folder fails immediately and not at its first save. */
static Status
take_folder(Gradc *run)
{
	bool first = gradc_rank(run) == 0;

	return ranks_share(run, first ? folder_prepare(&run->saver->folder) : NULL);
}

/* How long ago the checkpoint was saved, by the time of its manifest, which is written last. */
static double
age_of(Arena *arena, const char *path)
{
	struct timespec now;
	struct stat st;

	clock_gettime(CLOCK_REALTIME, &now);
	if (stat(path_join(arena, path, MANIFEST_FILE), &st) != 0)
		return NAN;
	return fmax(0, (double)(now.tv_sec - st.st_mtim.tv_sec) +
	                       1e-9 * (double)(now.tv_nsec - st.st_mtim.tv_nsec));
}

Status
resume_checkpoint(Gradc *run, GradcResume *out)
{
	const GradcOptions *o = &run->options;
	bool automatic = o->resume && strcmp(o->resume, "auto") == 0;
	CheckpointSink sink = {run, take_bytes, wants_bytes};
	Checkpoint c = {0};

	*out = (GradcResume){.loss = NAN, .eval_loss = NAN, .age = NAN};
	RETURN_IF_ERROR(step_is_whole(run));
	if (o->save)
		RETURN_IF_ERROR(take_folder(run));
	if (!o->resume)
		return NULL;
	if (automatic && !o->save)
		return status_error(EXIT_USAGE, "--resume=auto: needs --save DIR");
	if (run->saver->together)
		RETURN_IF_ERROR(ranks_share(run, saver_constants(run)));
	RETURN_IF_ERROR(ranks_share(run, pick(run, automatic, &c)));
	if (!c.path)
		return NULL;
	/* Verifies and loads on all ranks first: continue_from may exchange parts of states. */
	RETURN_IF_ERROR(ranks_share(run, checkpoint_verify(&c, &sink)));
	RETURN_IF_ERROR(ranks_share(run, continue_from(run, &c, automatic)));
	run->torn = false;
	*out = (GradcResume){c.path,
	                     run->step,
	                     run->samples,
	                     run->loss,
	                     c.manifest.eval_loss,
	                     age_of(run->arena, c.path)};
	return NULL;
}
