/* Records the run of a program, on devices that can (a CUDA graph), so that later runs need a single launch. The first run
 * queues each instruction, so that everything the program needs is loaded; the second run is recorded; later runs launch the
 * recording. A recording holds addresses and events, so there is one for each turn and each micro-batch of a step.
 *
 * Programs with tasks of the host are not recorded: collectives of a communicator without streams, and programs on the host's
 * processors. Programs for which the host reads a flag are not recorded either. Collectives on streams must be recorded by all
 * ranks in the same run. All ranks find the same runs, because they run the same programs and agree in executor_attach. */
#include "runtime/exec/walk.h"

#include <string.h>

enum { MOST = 64 }; /* most recordings; any further run is not recorded */

static bool
has_host_tasks(const Executor *x)
{
	return x->facts.ranks > 1 && !(comm_enqueues(x->comm) && x->records_ranks);
}

static bool
is_recordable(const Executor *x, const ProgramRecord *p)
{
	return !x->asks[p - x->format->programs] && x->ops->capture_begin && x->timed &&
	       !x->observer && !x->poison && !has_host_tasks(x) && p->target == (uint32_t)x->target;
}

static bool
is_same(const RecordedRun *r, const RecordedRun *key)
{
	return r->program == key->program && r->index == key->index && r->last == key->last &&
	       memcmp(r->turns, key->turns, sizeof(r->turns)) == 0;
}

/* Finds or makes the entry for a run; NULL if there are MOST recordings already. */
static RecordedRun *
find_run(Executor *x, const ProgramRecord *p, const MicroBatch *micro)
{
	RecordedRun key = {
		.program = p, .index = micro->index, .last = micro->index == micro->n - 1};

	memcpy(key.turns, x->turns, sizeof(key.turns));
	for (int i = 0; i < x->recorded.n; i++)
		if (is_same(&x->recorded.at[i], &key))
			return &x->recorded.at[i];
	if (x->recorded.n == MOST)
		return NULL;
	vec_push(x->arena, &x->recorded, key);
	return &x->recorded.at[x->recorded.n - 1];
}

/* ---- collectives that the communicator has started */
static void
count(const Executor *x, CommCount out[N_GROUPS])
{
	memset(out, 0, sizeof(*out) * N_GROUPS);
	if (comm_enqueues(x->comm))
		x->comm->data_ops->counts(x->comm->data, out);
}

static void
count_since(const Executor *x, const CommCount before[N_GROUPS], CommCount out[N_GROUPS])
{
	count(x, out);
	for (int g = 0; g < N_GROUPS; g++) {
		out[g].started -= before[g].started;
		out[g].bytes -= before[g].bytes;
	}
}

/* ---- recording */
static Status
record_run(Executor *x, RecordedRun *r, const MicroBatch *micro)
{
	StepTimers *t = &x->timers[x->turns[TURN_STEP]];

	CommCount before[N_GROUPS];

	count(x, before);
	int64_t copied_in = x->copied_in, copied_out = x->copied_out;

	r->first_timer = t->n;
	RETURN_IF_ERROR(x->ops->capture_begin(x->device));
	Status status = executor_walk(x, r->program, micro);
	Status ended = x->ops->capture_end(x->device, &r->recorded);
	count_since(x, before, r->counts);
	r->copied_in = x->copied_in - copied_in;
	r->copied_out = x->copied_out - copied_out;
	r->n_timers = t->n - r->first_timer;
	r->full = t->full;
	r->phases = arena_copy(x->arena, t->phase + r->first_timer, (size_t)r->n_timers);
	return status_first(status, ended);
}

Status
executor_run(Executor *x, const ProgramRecord *p, const MicroBatch *micro)
{
	RecordedRun *r = is_recordable(x, p) ? find_run(x, p, micro) : NULL;
	StepTimers *t = &x->timers[x->turns[TURN_STEP]];

	if (!r || !r->seen) {
		if (r)
			r->seen = true;
		return executor_walk(x, p, micro);
	}
	if (!r->recorded)
		RETURN_IF_ERROR(record_run(x, r, micro));
	/* the recorded timers belong to another place in the step */
	else if (t->n != r->first_timer)
		return executor_walk(x, p, micro);
	else {
		memcpy(t->phase + t->n, r->phases, (size_t)r->n_timers);
		t->n += r->n_timers;
		t->full |= r->full;
		if (comm_enqueues(x->comm))
			x->comm->data_ops->repeat(x->comm->data, r->counts);
		x->copied_in += r->copied_in;
		x->copied_out += r->copied_out;
	}
	return x->ops->launch(x->device, r->recorded);
}

void
recorded_free(Executor *x)
{
	for (int i = 0; i < x->recorded.n; i++)
		if (x->recorded.at[i].recorded)
			x->ops->forget(x->device, x->recorded.at[i].recorded);
	x->recorded.n = 0;
}
