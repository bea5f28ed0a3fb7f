/* Tries the engines that libraries offer for a call, and takes the fastest. An engine is not believed: it runs on operands of
 * known values, in scratch with a guard behind it, and with a limit of time. An engine that fails, writes beyond its scratch,
 * gives NaN or hangs is remembered as such. */
#include "base/numbers/numbers.h"
#include "runtime/library/library.h"

#include <math.h>
#include <string.h>

enum {
	MOST_OFFERED = MOST_LIBRARIES * MOST_ENGINES,
	RUNS = 4,        /* timed runs of an engine, after one that is not timed */
	GUARD = 1 << 12, /* bytes behind the scratch that no engine may touch */
	SAMPLES = 16,    /* places of the result that are looked at, */
	SAMPLE = 1 << 10 /* bytes at each place */
};
/* Every byte of an operand. In f32 and bf16 the elements are then 6.4e-10, in f16 0.13: no sum of products overflows or
 * vanishes. */
enum { OPERAND_BYTE = 0x30, GUARD_BYTE = 0xA5 };
/* An engine whose first run takes this many times as long as the fastest one is not timed any further. */
#define HOPELESS 2

/* ---- what libraries offer */
typedef struct {
	int n;
	struct {
		const LibraryOps *ops;
		PreparedCall *call;
		char *name; /* the engine, as in Tunings */
	} at[MOST_OFFERED];
} Offers;

static char *
engine_name(const LibraryOps *ops, const PreparedCall *call)
{
	Text name = {0};

	text_printf(&name, "%s ", ops->name);
	ops->print_engine(call, &name);
	char *copy = memory_zeroed(name.n + 1, 1);
	memcpy(copy, name.at, name.n);
	text_free(&name);
	return copy;
}

static void
add_offers(Offers *o, const OpenedLibrary *l, const LibraryCall *call, int64_t scratch_limit)
{
	PreparedCall *engines[MOST_ENGINES];
	int n = 0;

	if (!l->library || !l->ops->engines)
		return;
	status_free(l->ops->engines(l->library, call, scratch_limit, engines, &n));
	for (int i = 0; i < n; i++) {
		o->at[o->n].ops = l->ops;
		o->at[o->n].call = engines[i];
		o->at[o->n++].name = engine_name(l->ops, engines[i]);
	}
}

/* Releases all offers but number `taken`. */
static void
release_offers(Offers *o, int taken)
{
	for (int i = 0; i < o->n; i++) {
		if (i != taken)
			o->at[i].ops->release(o->at[i].call);
		memory_free(o->at[i].name);
	}
	o->n = 0;
}

static int
find_offer(const Offers *o, const char *name)
{
	for (int i = 0; i < o->n; i++)
		if (strcmp(o->at[i].name, name) == 0)
			return i;
	return -1;
}

/* ---- a trial of one call */
typedef struct {
	const LibraryTrials *device;
	const LibraryCall *call;
	const LibraryOps *ops; /* the engine under trial */
	PreparedCall *engine;
	void *buffers[N_LIBRARY_OPERANDS];
	char *scratch;
	int64_t scratch_bytes; /* the largest of all engines, without a guard */
} Trial;

static Status
run_engine(void *trial, void *stream)
{
	Trial *t = trial;
	char *packed[2] = {NULL, NULL};

	return t->ops->run(t->engine, t->buffers, packed, t->scratch, stream);
}

static void
close_trial(Trial *t)
{
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		if (t->buffers[i])
			t->device->free(t->device->context, t->buffers[i],
			                library_reach(&t->call->operands[i]));
	if (t->scratch)
		t->device->free(t->device->context, t->scratch, t->scratch_bytes + GUARD);
}

static bool
fill(const Trial *t, void *at, int byte, int64_t bytes)
{
	Status status = at ? t->device->fill(t->device->context, at, byte, bytes) : NULL;
	bool ok = at && !status;

	status_free(status);
	return ok;
}

/* False if the device has too little memory. */
static bool
open_trial(Trial *t)
{
	bool ok = true;

	for (int i = 0; ok && i < N_LIBRARY_OPERANDS; i++) {
		if (!library_has_operand(t->call, i))
			continue;
		int64_t bytes = library_reach(&t->call->operands[i]);
		t->buffers[i] = t->device->alloc(t->device->context, bytes);
		ok = fill(t, t->buffers[i], OPERAND_BYTE, bytes);
	}
	if (!ok)
		return false;
	t->scratch = t->device->alloc(t->device->context, t->scratch_bytes + GUARD);
	return t->scratch != NULL;
}

static bool
reads(const Trial *t, void *to, const void *from, int64_t bytes)
{
	Status status = t->device->read(t->device->context, to, from, bytes);
	bool ok = !status;

	status_free(status);
	return ok;
}

/* The guard lies behind the scratch that the engine says it needs. */
static char *
guard_of(const Trial *t)
{
	return t->scratch + t->ops->scratch(t->engine);
}

static bool
guard_is_whole(const Trial *t)
{
	unsigned char bytes[GUARD];

	if (!reads(t, bytes, guard_of(t), GUARD))
		return false;
	for (int i = 0; i < GUARD; i++)
		if (bytes[i] != GUARD_BYTE)
			return false;
	return true;
}

/* Are the sampled elements of the result finite? */
static bool
result_is_finite(const Trial *t)
{
	const LibraryOperand *o = &t->call->operands[LIBRARY_RESULT];
	int64_t element = dtype_bytes((DType)o->dtype, 1), all = library_reach(o);
	int64_t bytes = all < SAMPLE ? all : SAMPLE;
	char sample[SAMPLE];

	for (int i = 0; i < SAMPLES; i++) {
		int64_t at = (all - bytes) / element * i / (SAMPLES - 1) * element;
		if (!reads(t, sample, (const char *)t->buffers[LIBRARY_RESULT] + at, bytes))
			return false;
		for (int64_t k = 0; k < bytes / element; k++)
			if (!isfinite(dtype_load_float((DType)o->dtype, sample, k)))
				return false;
	}
	return true;
}

/* Runs the engine. *fault: why it must not be used; NULL: it may be used, and *seconds is the time of a run. An error ends the
 * run. */
static Status
try_engine(Trial *t, double best, double *seconds, const char **fault)
{
	const LibraryTrials *d = t->device;
	Status status = NULL;

	*fault = NULL;
	if (fill(t, guard_of(t), GUARD_BYTE, GUARD))
		status = d->time(d->context, run_engine, t, 1, seconds);
	if (!status && !guard_is_whole(t))
		*fault = "writes beyond its workspace";
	else if (!status && !result_is_finite(t))
		*fault = "gives numbers that are not finite";
	else if (!status && (best < 0 || *seconds < HOPELESS * best))
		status = d->time(d->context, run_engine, t, RUNS, seconds);
	if (status)
		*fault = status->exit_code == EXIT_HANG ? "hangs" : "fails";
	if (status && status->exit_code == EXIT_HANG)
		return status;
	status_free(status);
	return NULL;
}

/* ---- choosing */
static void
remember(const Tuner *t, const TunedEngine *e)
{
	tunings_add(t->tunings, e);
	if (t->file) /* if it cannot be written, the next run makes the trial again */
		tune_file_add(t->file, e);
}

static Status
hangs(const Tuner *t, const char *engine, Status status)
{
	Status full = status_error(
		EXIT_HANG, "a trial of an engine did not end: %s: %s. %s", engine, status->message,
		t->file ? "The file of --tune says so now, and the next run leaves the engine out"
			: "--tune=FILE remembers it for the next run, --tune=off tries nothing");

	status_free(status);
	return full;
}

/* May trials go on, if those of the present call have taken `more` seconds? */
static bool
has_time(const Tuner *t, double more)
{
	return t->seconds > 0 &&
	       t->tunings->seconds + more < fmax(t->seconds, t->steps * t->in_step);
}

/* Tries all offers that are not known to be faulty. *taken: the fastest; -1: none was tried. */
static Status
try_offers(Tuner *t, const char *key, const Offers *o, const LibraryCall *call, int64_t launches,
           int *taken)
{
	Trial trial = {.device = t->trials, .call = call};
	double best = -1, begin = seconds_now();
	Status status = NULL;

	*taken = -1;
	for (int i = 0; i < o->n; i++) {
		int64_t bytes = o->at[i].ops->scratch(o->at[i].call);
		trial.scratch_bytes = bytes > trial.scratch_bytes ? bytes : trial.scratch_bytes;
	}
	bool ready = open_trial(&trial);
	for (int i = 0; ready && !status && i < o->n; i++) {
		const char *name = o->at[i].name, *fault;
		double seconds;
		if (tunings_fault(t->tunings, key, name))
			continue;
		if (best >= 0 && !has_time(t, seconds_now() - begin))
			break;
		trial.ops = o->at[i].ops;
		trial.engine = o->at[i].call;
		status = try_engine(&trial, best, &seconds, &fault);
		if (fault)
			remember(t, &(TunedEngine){.key = (char *)key,
			                           .engine = o->at[i].name,
			                           .fault = (char *)fault});
		if (status) {
			status = hangs(t, name, status);
		} else if (!fault && (best < 0 || seconds < best)) {
			best = seconds;
			*taken = i;
		}
	}
	close_trial(&trial);
	t->tunings->seconds += seconds_now() - begin;
	t->in_step += best > 0 ? best * (double)launches : 0;
	return status;
}

/* The key names operands by their numbers in the call, because the engine does not depend on the numbers of a kernel's
 * arguments. */
static char *
key_of(const Tuner *t, const Libraries *libraries, const LibraryCall *call, int64_t scratch_limit)
{
	LibraryCall c = *call;
	Text key = {0};

	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		c.operands[i].buffer = i;
	if (library_adds_in_place(call))
		c.operands[LIBRARY_ADDED].buffer = LIBRARY_RESULT;
	text_printf(&key, "%s, %s, %s, at most %lld bytes, ", t->machine,
	            libraries_versions(libraries), t->tf32 ? "tf32" : "f32",
	            (long long)scratch_limit);
	library_call_print(&key, &c, NULL, NULL);
	char *copy = memory_zeroed(key.n + 1, 1);
	memcpy(copy, key.at, key.n);
	text_free(&key);
	return copy;
}

/* The first offer without a fault; -1: all have one. */
static int
first_sound(const Tuner *t, const char *key, const Offers *o)
{
	for (int i = 0; i < o->n; i++)
		if (!tunings_fault(t->tunings, key, o->at[i].name))
			return i;
	return -1;
}

static Status
pick(Tuner *t, const char *key, const Offers *o, const LibraryCall *call, int64_t launches,
     int *taken)
{
	const char *choice = tunings_choice(t->tunings, key);

	*taken = choice ? find_offer(o, choice) : -1;
	tunings_use(t->tunings, key, *taken >= 0 ? ENGINE_KNOWN : ENGINE_LOST);
	if (*taken >= 0 || !has_time(t, 0) || o->n == 0)
		return NULL;
	RETURN_IF_ERROR(try_offers(t, key, o, call, launches, taken));
	if (*taken >= 0 && !choice)
		remember(t, &(TunedEngine){.key = (char *)key,
		                           .engine = o->at[*taken].name,
		                           .use = ENGINE_TRIED});
	return NULL;
}

Status
tuner_pick(Tuner *t, const Libraries *libraries, const LibraryCall *call, int64_t launches,
           int64_t scratch_limit, TunedCall *out)
{
	Offers offers = {0};
	int taken = -1;

	*out = (TunedCall){0};
	if (!libraries_versions(libraries))
		return NULL;
	char *key = key_of(t, libraries, call, scratch_limit);
	if (has_time(t, 0) || tunings_knows(t->tunings, key))
		for (int i = 0; i < libraries->n; i++)
			add_offers(&offers, &libraries->at[i], call, scratch_limit);
	Status status = pick(t, key, &offers, call, launches, &taken);
	if (!status && taken < 0 && offers.n > 0 && tunings_knows(t->tunings, key)) {
		taken = first_sound(t, key, &offers);
		out->none = taken < 0;
	}
	if (status)
		taken = -1;
	if (taken >= 0) {
		out->ops = offers.at[taken].ops;
		out->call = offers.at[taken].call;
	}
	release_offers(&offers, taken);
	memory_free(key);
	return status;
}

void
tuner_note(Tuner *t, const Libraries *libraries, const LibraryCall *call, int64_t scratch_limit,
           const LibraryOps *ops, const PreparedCall *prepared)
{
	if (!ops->print_engine || !libraries_versions(libraries))
		return;
	char *key = key_of(t, libraries, call, scratch_limit);
	if (!tunings_choice(t->tunings, key)) {
		char *name = engine_name(ops, prepared);
		tunings_add(t->tunings,
		            &(TunedEngine){.key = key, .engine = name, .use = ENGINE_FIRST});
		memory_free(name);
	}
	memory_free(key);
}
