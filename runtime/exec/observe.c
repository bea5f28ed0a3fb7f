/* Times each instruction, for the trace (one span each) and for the profile report (sums over a few steps). With an observer,
 * an event is recorded before and after each instruction on its stream, and the host waits for the end of each program to read
 * the events. Without an observer, only phases are timed. */
#include "runtime/exec/walk.h"

#include <string.h>

/* Writes the phases to the trace. A phase lasts from its first instruction to its last. */
static void
end_phase(Observer *o)
{
	if (o->phase > 0)
		trace_span(o->trace, &(TraceSpan){.track = TRACK_TRAINING,
		                                  .category = "phase",
		                                  .name = phase_names[o->phase],
		                                  .begin = o->phase_begin,
		                                  .end = o->last_end});
	o->phase = 0;
}

static const TraceTrack tracks[N_STREAMS] = {
	[STREAM_COMPUTE] = TRACK_TRAINING,
	[STREAM_COPY_IN] = TRACK_COPY_IN,
	[STREAM_COPY_OUT] = TRACK_COPY_OUT,
	[STREAM_COMMUNICATION] = TRACK_COMMUNICATION,
};

static void
begin_phase(Observer *o, const Instruction *n, double begin)
{
	if (n->phase == o->phase)
		return;
	end_phase(o);
	o->phase = n->phase;
	o->phase_begin = begin;
}

static void
trace_instruction(Observer *o, uint32_t index, double begin, double end)
{
	const Format *f = o->format;
	const Instruction *n = &f->instructions[index];
	const KernelRecord *k = n->kind == RUN_KERNEL ? &f->kernels[n->what] : NULL;
	bool sync = n->kind == RECORD || n->kind == WAIT;

	if (n->kind == COLLECTIVE) {
		if (o->sees_collectives)
			collective_trace(o->trace, &f->collectives[n->what], begin, end);
		return;
	}
	if (n->stream == STREAM_COMPUTE && !sync) {
		begin_phase(o, n, begin);
		o->last_end = end;
	}
	trace_span(o->trace,
	           &(TraceSpan){.track = tracks[n->stream],
	                        .category = sync ? "event" : "kernel",
	                        .name = sync ? instruction_names[n->kind] : o->titles[index],
	                        .kernel = k ? format_text(f, k->name) : instruction_names[n->kind],
	                        .begin = begin,
	                        .end = end,
	                        .origin = format_text(f, n->origin),
	                        .count_of = sync ? "event" : NULL,
	                        .count = n->what});
}

Status
observe_begin(Executor *x)
{
	x->observer->ran.n = 0;
	x->observer->base = seconds_now();
	return x->ops->record(x->device, STREAM_COMPUTE, OBSERVER_BASE);
}

static int
observed_event(int k)
{
	return FIRST_OBSERVED + 2 * k;
}

Status
observe_begins(Executor *x, int stream)
{
	int k = x->observer->ran.n;

	return k < x->most_observed ? x->ops->record(x->device, stream, observed_event(k)) : NULL;
}

Status
observe_ends(Executor *x, uint32_t at, int stream)
{
	int k = x->observer->ran.n;

	if (k == x->most_observed)
		return NULL;
	vec_push(x->arena, &x->observer->ran, at);
	return x->ops->record(x->device, stream, observed_event(k) + 1);
}

/* Reads the events of the k-th instruction that ran. */
static Status
observe_one(Executor *x, int k, uint32_t index)
{
	Observer *o = x->observer;
	double begin, took;
	int event = observed_event(k);

	RETURN_IF_ERROR(x->ops->elapsed(x->device, OBSERVER_BASE, event, &begin));
	RETURN_IF_ERROR(x->ops->elapsed(x->device, event, event + 1, &took));
	if (o->sampling) {
		o->profile.seconds[index] += took;
		o->profile.runs[index]++;
	}
	if (o->trace)
		trace_instruction(o, index, o->base + begin, o->base + begin + took);
	return NULL;
}

Status
observe_run(Executor *x, const ProgramRecord *p)
{
	Observer *o = x->observer;

	RETURN_IF_ERROR(executor_drain(x));
	for (int i = 0; i < o->ran.n; i++)
		RETURN_IF_ERROR(observe_one(x, i, p->first_instruction + o->ran.at[i]));
	if (o->trace)
		end_phase(o);
	return NULL;
}
