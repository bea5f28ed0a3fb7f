/* Helpers for a run (struct Gradc): find its programs, read and write its scalars, check that no step is half done. */
#include "runtime/run/run.h"

#include <math.h>

Status
fault_join(Diag *diag, Status first, Status second)
{
	if (!second)
		return first;
	if (first && diag)
		diag_status(diag, first);
	else
		status_free(first);
	return second;
}

const ProgramRecord *
program_find(const Gradc *run, Role role, int binding)
{
	const ProgramKey key = {
		.role = role, .binding = binding, .mode = run->mode, .target = gradc_target(run)};
	ProgramKey on_host = key;

	on_host.target = run->executor.host_target;
	const ProgramRecord *p = format_program_in(&run->format, &key);
	return p ? p : format_program(&run->format, &on_host);
}

const ProgramRecord *
program_any(const Gradc *run, Role role, int binding)
{
	const ProgramRecord *p = program_find(run, role, binding);

	for (int b = 0; b < run->format.n[SECTION_BINDINGS] && !p; b++)
		p = program_find(run, role, b);
	return p;
}

Status
read_scalar(Gradc *run, int state, double *out)
{
	const StateRecord *s = &run->format.states[state];
	char raw[16] = {0};
	Span from = executor_state(&run->executor, state);

	*out = NAN;
	from.bytes = dtype_bytes((DType)s->dtype, 1);
	RETURN_IF_ERROR(executor_read(&run->executor, raw, from));
	*out = dtype_is_float((DType)s->dtype) ? dtype_load_float((DType)s->dtype, raw, 0)
	                                       : (double)dtype_load_int((DType)s->dtype, raw, 0);
	return NULL;
}

Status
write_scalar(Gradc *run, int state, double value)
{
	DType dtype = (DType)run->format.states[state].dtype;
	char raw[16] = {0};
	Span to = executor_state(&run->executor, state);

	to.bytes = dtype_bytes(dtype, 1);
	dtype_store_float(dtype, raw, 0, value);
	return executor_write(&run->executor, to, raw);
}

Status
step_check_accumulated(const Gradc *run)
{
	return run->accumulated ? status_error(EXIT_USAGE, "gradients wait for gradc_update")
	                        : NULL;
}

Status
step_is_whole(const Gradc *run)
{
	RETURN_IF_ERROR(step_check_accumulated(run));
	return run->n_queued == 0
	               ? NULL
	               : status_error(EXIT_USAGE, "a step is queued: take its results first");
}

Status
pairs_check(const char *option, const GradcPairs *p)
{
	if (p->n < 0 || (p->n > 0 && !p->at))
		return status_error(EXIT_USAGE, "%s: %d pairs, but no array", option, p->n);
	for (int i = 0; i < p->n; i++)
		if (!p->at[i].name || !p->at[i].value)
			return status_error(EXIT_USAGE, "%s: pair %d has no %s", option, i,
			                    p->at[i].name ? "value" : "name");
	return NULL;
}

void
gradc_schedule_loss(Gradc *run, double loss)
{
	Hyper *h = &run->hyper;

	if (h->plateau.lr > 0 && run->step >= h->warmup)
		plateau_step(&h->plateau, h->lr_settings, h->min_lr, loss);
}
