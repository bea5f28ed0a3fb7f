/* Tries the engines that libraries offer for a call, and takes the fastest. An engine is not believed: it runs on operands of
 * known values, in scratch with a guard behind it, and with a limit of time. An engine that fails, writes beyond its scratch,
 * gives NaN or hangs is remembered as such. */
#include "base/numbers/numbers.h"
#include "runtime/library/library.h"

#include <math.h>
#include <string.h>

enum {
	MOST_OFFERED = 1 + MOST_LIBRARIES * MOST_ENGINES, /* a plan, too */
	RUNS = 4,        /* timed runs of an engine that may be the fastest */
	GUARD = 1 << 12, /* bytes behind the scratch that no engine may touch */
	SAMPLES = 16,    /* places of the result that are looked at, */
	SAMPLE = 1 << 10 /* bytes at each place */
};
/* Every byte of an operand. In f32 and bf16 the elements are then 6.4e-10, in f16 0.13: no sum of products overflows or
 * vanishes. */
enum { OPERAND_BYTE = 0x30, GUARD_BYTE = 0xA5, NAN_BYTE = 0xFF };
/* An engine whose second run takes this many times as long as the fastest engine is not timed any further. */
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

/* The text, which the caller frees. */
static char *
text_keep(Text *t)
{
	char *copy = memory_zeroed(t->n + 1, 1);

	memcpy(copy, t->at, t->n);
	text_free(t);
	return copy;
}

static char *
engine_name(const LibraryOps *ops, const PreparedCall *call)
{
	Text name = {0};

	text_printf(&name, "%s ", ops->name);
	ops->print_engine(call, &name);
	return text_keep(&name);
}

static void
add_offer(Offers *o, const LibraryOps *ops, PreparedCall *call)
{
	o->at[o->n].ops = ops;
	o->at[o->n].call = call;
	o->at[o->n++].name = engine_name(ops, call);
}

static void
add_offers(Offers *o, const OpenedLibrary *l, const LibraryCall *call, int64_t scratch_limit)
{
	PreparedCall *engines[MOST_ENGINES];
	int n = 0;

	if (!l->library || !l->ops->engines)
		return;
	status_free(l->ops->engines(l->library, call, scratch_limit, engines, &n));
	for (int i = 0; i < n; i++)
		add_offer(o, l->ops, engines[i]);
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

static Status
fill(const Trial *t, void *at, int byte, int64_t bytes)
{
	return t->device->fill(t->device->context, at, byte, bytes);
}

/* *ready is false if the device has too little memory. */
static Status
open_trial(Trial *t, bool *ready)
{
	*ready = false;
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		if (!library_has_operand(t->call, i))
			continue;
		int64_t bytes = library_reach(&t->call->operands[i]);
		t->buffers[i] = t->device->alloc(t->device->context, bytes);
		if (!t->buffers[i])
			return NULL;
		RETURN_IF_ERROR(fill(t, t->buffers[i], OPERAND_BYTE, bytes));
	}
	t->scratch = t->device->alloc(t->device->context, t->scratch_bytes + GUARD);
	*ready = t->scratch != NULL;
	return NULL;
}

static Status
read_back(const Trial *t, void *to, const void *from, int64_t bytes)
{
	return t->device->read(t->device->context, to, from, bytes);
}

/* The guard lies behind the scratch that the engine says it needs. */
static char *
guard_of(const Trial *t)
{
	return t->scratch + t->ops->scratch(t->engine);
}

static Status
check_guard(const Trial *t, const char **fault)
{
	unsigned char bytes[GUARD];

	RETURN_IF_ERROR(read_back(t, bytes, guard_of(t), GUARD));
	for (int i = 0; i < GUARD; i++)
		if (bytes[i] != GUARD_BYTE)
			*fault = "writes beyond its workspace";
	return NULL;
}

/* Are the sampled elements of the result finite? */
static Status
check_result(const Trial *t, const char **fault)
{
	const LibraryOperand *o = &t->call->operands[LIBRARY_RESULT];
	int64_t element = dtype_bytes((DType)o->dtype, 1), all = library_reach(o);
	int64_t bytes = all < SAMPLE ? all : SAMPLE;
	char sample[SAMPLE];

	for (int i = 0; i < SAMPLES; i++) {
		int64_t at = (all - bytes) / element * i / (SAMPLES - 1) * element;
		RETURN_IF_ERROR(
			read_back(t, sample, (const char *)t->buffers[LIBRARY_RESULT] + at, bytes));
		for (int64_t k = 0; k < bytes / element; k++)
			if (!isfinite(dtype_load_float((DType)o->dtype, sample, k)))
				*fault = "gives numbers that are not finite";
	}
	return NULL;
}

/* The result is NaN before the engine runs, if it has no gaps: an engine that leaves a part of it out is found. */
static Status
prepare_memory(const Trial *t)
{
	const LibraryOperand *z = &t->call->operands[LIBRARY_RESULT];

	if (library_is_dense(z) && !z->offset && !library_adds_in_place(t->call))
		RETURN_IF_ERROR(fill(t, t->buffers[LIBRARY_RESULT], NAN_BYTE, library_reach(z)));
	return fill(t, guard_of(t), GUARD_BYTE, GUARD);
}

/* Runs the engine `runs` times. *fault: if it fails. An error says that the device computes nothing any more. */
static Status
run_timed(const Trial *t, int runs, double *seconds, const char **fault)
{
	Status status = t->device->time(t->device->context, run_engine, (void *)t, runs, seconds);

	if (!status)
		return NULL;
	*fault = status->exit_code == EXIT_HANG ? "hangs" : "fails";
	if (status->exit_code == EXIT_HANG)
		return status;
	status_free(status);
	return NULL;
}

/* Runs the engine. The first run is not timed: a kernel's first launch may load code. *fault: why the engine must not be used;
 * NULL: it may be used, and *seconds is the time of a run. An error ends the run. */
static Status
try_engine(Trial *t, double best, double *seconds, const char **fault)
{
	*fault = NULL;
	RETURN_IF_ERROR(prepare_memory(t));
	RETURN_IF_ERROR(run_timed(t, 1, seconds, fault));
	if (!*fault)
		RETURN_IF_ERROR(check_guard(t, fault));
	if (!*fault)
		RETURN_IF_ERROR(check_result(t, fault));
	if (!*fault)
		RETURN_IF_ERROR(run_timed(t, 1, seconds, fault));
	if (!*fault && (best < 0 || *seconds < HOPELESS * best))
		RETURN_IF_ERROR(run_timed(t, RUNS, seconds, fault));
	return NULL;
}

/* ---- choosing */
/* A choice in the making. */
typedef struct {
	Tuner *t;
	const LibraryCall *call;
	char *key;
	double begin; /* when the choice began */
	Offers offers;
} Choice;

/* May trials go on? */
static bool
has_time(const Choice *c)
{
	const Tuner *t = c->t;
	double spent = t->tunings->seconds + seconds_now() - c->begin;

	return t->seconds > 0 && spent < fmax(t->seconds, t->steps * t->in_step);
}

static void
remember(const Tuner *t, const TunedEngine *e)
{
	const char *known = e->fault ? NULL : tunings_choice(t->tunings, e->key);

	if (known && strcmp(known, e->engine) == 0) {
		tunings_use(t->tunings, e->key, e->use);
		return;
	}
	if (known) {
		tunings_replace(t->tunings, e);
		return;
	}
	tunings_add(t->tunings, e);
	if (t->file &&
	    e->use != ENGINE_FIRST) /* if it cannot be written, the next run tries again */
		tune_file_add(t->file, e);
}

/* The run's error after an engine that hangs (fault is not NULL), or after which the device fails. */
static Status
device_fails(const Tuner *t, const char *engine, const char *fault, Status status)
{
	const char *hint = fault && t->file
	                           ? "The file of --tune says so now, and the next run leaves the "
	                             "engine out for this call"
	                           : "--tune=FILE remembers engines that hang, --tune=off tries "
	                             "nothing";
	Status full = status_error(status->exit_code, "a trial of an engine %s: %s: %s. %s",
	                           fault ? "did not end" : "broke the device", engine,
	                           status->message, hint);

	status_free(status);
	return full;
}

/* Tries offer i. *best: the time of the fastest one so far, -1 without one; *taken: its number. */
static Status
try_offer(const Choice *c, Trial *trial, int i, double *best, int *taken)
{
	const char *name = c->offers.at[i].name, *fault;
	double seconds = 0;

	trial->ops = c->offers.at[i].ops;
	trial->engine = c->offers.at[i].call;
	Status status = try_engine(trial, *best, &seconds, &fault);
	if (fault)
		remember(c->t, &(TunedEngine){c->key, (char *)name, (char *)fault, ENGINE_TRIED});
	if (status)
		return device_fails(c->t, name, fault, status);
	if (!fault && (*best < 0 || seconds < *best)) {
		*best = seconds;
		*taken = i;
	}
	return NULL;
}

/* Tries all offers that are not known to be faulty. *taken: the fastest; -1: none was tried. */
static Status
try_offers(const Choice *c, int64_t launches, int *taken)
{
	Trial trial = {.device = c->t->trials, .call = c->call};
	double best = -1;
	bool ready;

	*taken = -1;
	for (int i = 0; i < c->offers.n; i++) {
		int64_t bytes = c->offers.at[i].ops->scratch(c->offers.at[i].call);
		trial.scratch_bytes = bytes > trial.scratch_bytes ? bytes : trial.scratch_bytes;
	}
	Status status = open_trial(&trial, &ready);
	for (int i = 0; ready && !status && i < c->offers.n; i++) {
		if (tunings_fault(c->t->tunings, c->key, c->offers.at[i].name))
			continue;
		if (!has_time(c))
			break;
		status = try_offer(c, &trial, i, &best, taken);
	}
	close_trial(&trial);
	c->t->in_step += best > 0 ? best * (double)launches : 0;
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
	return text_keep(&key);
}

/* The first offer without a fault; -1: all have one. */
static int
first_sound(const Choice *c)
{
	for (int i = 0; i < c->offers.n; i++)
		if (!tunings_fault(c->t->tunings, c->key, c->offers.at[i].name))
			return i;
	return -1;
}

/* Chooses an offer: the choice of an earlier run, the fastest, or, if nothing can be tried and an engine is known to be faulty,
 * the first without a fault. *taken is -1 if none of these is there. */
static Status
choose(const Choice *c, int64_t launches, int *taken, EngineUse *use)
{
	const char *known = tunings_choice(c->t->tunings, c->key);

	*use = ENGINE_KNOWN;
	*taken = known ? find_offer(&c->offers, known) : -1;
	if (*taken < 0 && has_time(c)) {
		*use = ENGINE_TRIED;
		RETURN_IF_ERROR(try_offers(c, launches, taken));
	}
	if (*taken < 0 && tunings_knows(c->t->tunings, c->key)) {
		*use = ENGINE_FIRST;
		*taken = first_sound(c);
	}
	return NULL;
}

Status
tuner_pick(Tuner *t, const Libraries *libraries, const LibraryCall *call, int64_t launches,
           int64_t scratch_limit, TunedCall *out)
{
	int taken = -1, planned = out->call ? 0 : -1;
	EngineUse use;

	if (!libraries_versions(libraries))
		return NULL;
	Choice c = {.t = t,
	            .call = call,
	            .key = key_of(t, libraries, call, scratch_limit),
	            .begin = seconds_now()};
	bool asks = tunings_ask(t->tunings, c.key) || has_time(&c);
	if (asks && out->call)
		add_offer(&c.offers, out->ops, out->call);
	for (int i = 0; asks && i < libraries->n; i++)
		add_offers(&c.offers, &libraries->at[i], call, scratch_limit);
	Status status = c.offers.n > 0 ? choose(&c, launches, &taken, &use) : NULL;
	if (!status && c.offers.n > 0) {
		out->none = taken < 0 && tunings_knows(t->tunings, c.key);
		taken = taken < 0 && !out->none ? planned : taken;
	} else if (status) {
		taken = -1;
	}
	if (c.offers.n > 0) {
		out->ops = taken >= 0 ? c.offers.at[taken].ops : NULL;
		out->call = taken >= 0 ? c.offers.at[taken].call : NULL;
	}
	if (taken >= 0 && (taken != planned || use != ENGINE_FIRST))
		remember(t, &(TunedEngine){c.key, c.offers.at[taken].name, NULL, use});
	if (t->seconds > 0)
		t->tunings->seconds += seconds_now() - c.begin;
	release_offers(&c.offers, taken);
	memory_free(c.key);
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
		remember(t, &(TunedEngine){key, name, NULL, ENGINE_FIRST});
		memory_free(name);
	}
	memory_free(key);
}
