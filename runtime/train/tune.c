/* Which engines a GPU's libraries take (base/calls/library_call.h): what earlier runs chose, then what trials at the start of
 * this run find. All ranks take the choices of rank 0, so they compute alike. */
#include "runtime/library/library.h"
#include "runtime/train/steps.h"

#include <stdlib.h>
#include <string.h>

/* Seconds that trials may take; if training is slow, trials may take a part of its first steps. */
enum { LEAST_SECONDS = 2, FIRST_STEPS = 100 };
#define PART_OF_STEPS 0.03

/* GRADC_TUNE_SECONDS: other seconds than LEAST_SECONDS. */
static Status
least_seconds(double *out)
{
	const char *text = getenv("GRADC_TUNE_SECONDS");

	*out = LEAST_SECONDS;
	if (text && (!parse_double(text, out) || !(*out > 0)))
		return status_error(EXIT_USAGE, "GRADC_TUNE_SECONDS=%s: need seconds above 0",
		                    text);
	return NULL;
}

static bool
has_engines(const Gradc *run)
{
	return !run->device.ops->host_memory && run->options.libraries;
}

/* The file of --tune; NULL: none. */
static const char *
file_of(const GradcOptions *o)
{
	return o->tune && strcmp(o->tune, "off") != 0 ? o->tune : NULL;
}

/* A run that takes no step does not wait for trials. */
static bool
may_try(const GradcOptions *o)
{
	return !o->deterministic && !(o->tune && !file_of(o)) && o->steps != 0;
}

Status
tune_file_read(const GradcOptions *o, Tunings *out, bool *missing)
{
	const char *path = file_of(o);

	*missing = false;
	return path ? tune_file_open(path, false, out, missing) : NULL;
}

/* What earlier runs chose. The checkpoint comes first: a resumed run computes the bits of the run before it. */
static Status
read_known(Gradc *run)
{
	const GradcOptions *o = &run->options;
	const char *path = file_of(o);
	bool missing = false;

	if (!has_engines(run)) {
		if (path && run->diag)
			diag_warning(run->diag, "--tune is only for libraries on a GPU");
		return NULL;
	}
	resume_engines(run, &run->tunings);
	if (path)
		RETURN_IF_ERROR(tune_file_open(path, may_try(o), &run->tunings, &missing));
	if (missing && run->diag)
		diag_warning(run->diag,
		             "--tune: %s does not exist: a run without --deterministic writes it",
		             path);
	return NULL;
}

Status
tune_device(Gradc *run, DeviceOptions *device)
{
	const GradcOptions *o = &run->options;

	if (!has_engines(run))
		return NULL;
	device->tunings = &run->tunings;
	if (gradc_rank(run) > 0 || !may_try(o))
		return NULL;
	device->tune_file = file_of(o);
	RETURN_IF_ERROR(least_seconds(&device->tune_seconds));
	device->tune_steps = PART_OF_STEPS * FIRST_STEPS * (double)o->accumulate;
	return NULL;
}

/* Gives the choices of rank 0 to the other ranks. */
static Status
share_choices(Gradc *run)
{
	Text lines = {0};

	for (int i = 0; gradc_rank(run) == 0 && i < run->tunings.n; i++) {
		tunings_print(&run->tunings.at[i], &lines);
		text_add(&lines, "\n");
	}
	const char *text = lines.n ? lines.at : NULL;
	Status status = ranks_broadcast_text(run, &text);
	if (!status && text && gradc_rank(run) > 0)
		tunings_parse(&run->tunings, text, strlen(text));
	text_free(&lines);
	return status;
}

static Status
warn_of_lost(Gradc *run)
{
	int lost = 0;

	RETURN_IF_ERROR(ranks_agree(run, run->tunings.n_lost > 0, &lost));
	if (lost && run->diag && gradc_rank(run) == 0)
		diag_warning(
			run->diag,
			"an engine that an earlier run or another rank chose is not offered by "
			"the library: the last bits of results may differ from theirs");
	return NULL;
}

Status
tune_ranks(Gradc *run, Status (*open)(Gradc *run))
{
	bool first = gradc_rank(run) == 0;

	RETURN_IF_ERROR(ranks_share(run, first ? read_known(run) : NULL));
	if (gradc_ranks(run) == 1 || !has_engines(run)) {
		RETURN_IF_ERROR(ranks_share(run, open(run)));
	} else {
		RETURN_IF_ERROR(ranks_share(run, first ? open(run) : NULL));
		RETURN_IF_ERROR(share_choices(run));
		RETURN_IF_ERROR(ranks_share(run, first ? NULL : open(run)));
	}
	return warn_of_lost(run);
}

GradcEngines
gradc_engines(const Gradc *run)
{
	GradcEngines e = {.seconds = run->tunings.seconds};

	for (int i = 0; i < run->tunings.n; i++) {
		const TunedEngine *at = &run->tunings.at[i];
		e.tried += !at->fault && at->use == ENGINE_TRIED;
		e.known += !at->fault && at->use == ENGINE_KNOWN;
		e.first += at->use == ENGINE_FIRST;
		e.faulty += at->fault && at->use != ENGINE_IDLE;
	}
	return e;
}
