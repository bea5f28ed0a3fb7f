/* The event file (--tensorboard) and the report (--report) together: passes every step to both. */
#include "runtime/cli/cli.h"

Status
views_open(Arena *arena, const CliOptions *o, Views *out)
{
	*out = (Views){.report = report_open(arena, o)};
	return tensorboard_open(o->tensorboard, &out->events);
}

Status
views_eval_before(const Views *v, int64_t step, const GradcEval *eval)
{
	report_eval(v->report, step, eval);
	return tensorboard_eval_before(v->events, eval, step);
}

Status
views_step(const Views *v, const Gradc *run, const GradcStep *s, const StepEval *eval,
           const GradcRunningRanges *ranges)
{
	report_step(v->report, s, eval, ranges);
	return tensorboard_step(v->events, run, s, eval);
}

void
views_drop_events(Views *v)
{
	status_free(tensorboard_close(v->events));
	v->events = NULL;
}

Status
views_close(Views *v, const Gradc *run, const char *fault)
{
	Status status = tensorboard_close(v->events);

	status = status_first(status, report_close(v->report, run, fault));
	*v = (Views){0};
	return status;
}
