/* Records the run of a program, on devices that can (a CUDA graph), so that later runs need a single launch. The first run
 * queues each instruction, so that everything the program needs is loaded; the second run is recorded; later runs launch the
 * recording.
 *
 * A recording holds addresses and events, so each turn has recordings of its own. The first and the last micro-batch of a step
 * also have their own, because they run other instructions. All micro-batches between share recordings: for example, steps of
 * 100 micro-batches need eight with two turns, four for each turn of steps. A program never has more than RUNS_PER_PROGRAM. Only the timers
 * differ between these micro-batches, so a launch says which timers of the step it records.
 *
 * Programs with tasks of the host are not recorded: collectives of a communicator without streams, and programs on the host's
 * processors. Programs for which the host reads a flag are not recorded either. Collectives on streams must be recorded by all
 * ranks in the same run. All ranks find the same runs, because they run the same programs and agree in executor_attach. */
#include "runtime/exec/walk.h"

#include <string.h>

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

/* The entry for a run of the program: there is one for each (is first, is last micro-batch, turn of micro-batches, turn of
 * steps). */
static RecordedRun *
find_run(const Executor *x, const ProgramRecord *p, const MicroBatch *micro)
{
	int64_t at = p - x->format->programs;

	at = at * 2 + (micro->index == 0);
	at = at * 2 + (micro->index == micro->n - 1);
	at = at * IN_FLIGHT + x->turns[TURN_MICRO];
	at = at * IN_FLIGHT + x->turns[TURN_STEP];
	return &x->recorded[at];
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
/* Records a run. The recording has the turn's first timers; `launch` says which timers it records instead. */
static Status
record_run(Executor *x, RecordedRun *r, const ProgramRecord *p, const MicroBatch *micro)
{
	StepTimers *t = &x->timers[x->turns[TURN_STEP]];
	const StepTimers step = *t;
	CommCount before[N_GROUPS];
	int64_t copied_in = x->copied_in, copied_out = x->copied_out;

	*t = (StepTimers){0};
	count(x, before);
	Status status = x->ops->capture_begin(x->device);
	if (!status) {
		status = executor_walk(x, p, micro);
		status = status_first(status, x->ops->capture_end(x->device, &r->recorded));
	}
	count_since(x, before, r->counts);
	r->copied_in = x->copied_in - copied_in;
	r->copied_out = x->copied_out - copied_out;
	r->n_timers = t->n;
	r->full = t->full;
	r->phases = arena_copy(x->arena, t->phase, (size_t)t->n);
	*t = step;
	return status;
}

/* Launches a recording, which records the next timers of the step. A step with too many changes of phase has no phase times, so
 * there any timers will do. */
static Status
launch(Executor *x, const RecordedRun *r)
{
	int turn = x->turns[TURN_STEP];
	StepTimers *t = &x->timers[turn];
	int n = r->n_timers;

	t->full |= r->full || t->n + n > MAX_TIMERS;
	const EventShift timers = {timer_event(turn, 0), n, t->full ? 0 : t->n};
	if (!t->full) {
		memcpy(t->phase + t->n, r->phases, (size_t)n);
		t->n += n;
	}
	return x->ops->launch(x->device, r->recorded, &timers);
}

Status
executor_run(Executor *x, const ProgramRecord *p, const MicroBatch *micro)
{
	RecordedRun *r = is_recordable(x, p) ? find_run(x, p, micro) : NULL;

	if (!r || !r->seen) {
		if (r)
			r->seen = true;
		return executor_walk(x, p, micro);
	}
	if (!r->recorded)
		RETURN_IF_ERROR(record_run(x, r, p, micro)); /* counts its own traffic */
	else {
		if (comm_enqueues(x->comm))
			x->comm->data_ops->repeat(x->comm->data, r->counts);
		x->copied_in += r->copied_in;
		x->copied_out += r->copied_out;
	}
	return launch(x, r);
}

void
recorded_free(Executor *x)
{
	for (int i = 0; x->recorded && i < x->format->n[SECTION_PROGRAMS] * RUNS_PER_PROGRAM; i++) {
		if (x->recorded[i].recorded)
			x->ops->forget(x->device, x->recorded[i].recorded);
		x->recorded[i] = (RecordedRun){0};
	}
}
