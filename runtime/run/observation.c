/* Decides which steps of a run are timed for the report and written to the trace. */
#include "runtime/run/run.h"

enum { SAMPLES = 8 };

/* Is the step timed? The second step is timed, and some later steps, evenly spaced. The first step only warms up. With fewer
 * than three steps, all are timed. */
static bool
is_sampled(int64_t step, int64_t total)
{
	return step == 2 || total < 3 || (step > 1 && step % (total / SAMPLES + 1) == 0);
}

Status
observe_open(Gradc *run)
{
	const GradcOptions *o = &run->options;
	size_t n = (size_t)run->format.n[SECTION_INSTRUCTIONS];

	run->observer = (Observer){.format = &run->format,
	                           .sees_collectives = comm_enqueues(&run->comm)};
	if (o->profile)
		run->observer.profile = (GradcProfile){.seconds = NEW_ARRAY(run->arena, double, n),
		                                       .runs = NEW_ARRAY(run->arena, int64_t, n)};
	if (!o->trace || gradc_rank(run) != 0)
		return NULL;
	run->observer.titles = NEW_ARRAY(run->arena, const char *, n);
	for (size_t i = 0; i < n; i++)
		run->observer.titles[i] = origin_title(run->arena, &run->format,
		                                       &run->format.instructions[i]);
	RETURN_IF_ERROR(trace_open(run->arena, o->trace, &run->observer.trace));
	run->executor.trace = run->observer.trace;
	return NULL;
}

void
observe_step(Gradc *run, int64_t step)
{
	Observer *o = &run->observer;
	GradcProfile *p = &o->profile;

	o->sampling = p->seconds && p->n_steps < COUNT(p->steps) &&
	              is_sampled(step, run->total_steps);
	if (o->sampling)
		p->steps[p->n_steps++] = step;
	run->executor.observer = o->sampling || o->trace ? o : NULL;
}

void
observe_span(Gradc *run, const char *name, double begin, int64_t count)
{
	trace_span(run->observer.trace, &(TraceSpan){.track = TRACK_TRAINING,
	                                             .category = "trainer",
	                                             .name = name,
	                                             .begin = begin,
	                                             .end = seconds_now(),
	                                             .count_of = count >= 0 ? "number" : NULL,
	                                             .count = count});
}
