/* Evaluates with the moving averages of --ema: the averages take the weights' places for the evaluation. */
#include "runtime/model/model.h"
#include "runtime/train/steps.h"

bool
gradc_has_averages(const Gradc *run)
{
	return format_state_of_kind(&run->format, STATE_AVERAGE) >= 0;
}

/* The weight of an average; -1 if the state is no average. */
static int
weight_of(const Format *f, int state)
{
	const StateRecord *s = &f->states[state];

	return s->kind == STATE_AVERAGE && s->of ? (int)s->of - 1 : -1;
}

/* This rank's bytes of a state. */
static Span
own_bytes(const Executor *x, int state)
{
	return state_has_parts(x, state) ? state_part(x, state).at : executor_state(x, state);
}

/* Copies this rank's bytes of each averaged weight to the arena. kept: by state. */
static Status
keep_weights(Gradc *run, Arena *arena, char **kept)
{
	const Format *f = &run->format;

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		int weight = weight_of(f, i);
		if (weight < 0)
			continue;
		Span own = own_bytes(&run->executor, weight);
		kept[weight] = arena_alloc(arena, (size_t)own.bytes + 1);
		if (own.bytes > 0)
			RETURN_IF_ERROR(executor_read(&run->executor, kept[weight], own));
	}
	return NULL;
}

static Status
bring_back(Gradc *run, char **kept)
{
	const Format *f = &run->format;

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		Span own = kept[i] ? own_bytes(&run->executor, i) : (Span){0};
		if (own.bytes > 0)
			RETURN_IF_ERROR(executor_write(&run->executor, own, kept[i]));
	}
	return weights_copy(run, true);
}

/* All ranks call it: an average may be divided among them. */
static Status
take_averages(Gradc *run)
{
	const Format *f = &run->format;

	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (weight_of(f, i) >= 0)
			RETURN_IF_ERROR(weights_copy_state(run, weight_of(f, i), i));
	return weights_copy(run, true);
}

Status
averages_evaluate(Gradc *run, GradcEval *out)
{
	if (!gradc_has_averages(run))
		return status_error(EXIT_USAGE, "this executable keeps no averages: compile with "
		                                "--ema=0.999");
	RETURN_IF_ERROR(weights_unmap(run));
	Arena *arena = arena_new();
	char **kept = NEW_ARRAY(arena, char *, run->format.n[SECTION_STATES]);
	Status status = keep_weights(run, arena, kept);
	if (!status) {
		status = take_averages(run);
		if (!status)
			status = step_evaluate(run, out);
		status = status_first(status, bring_back(run, kept));
	}
	arena_free(arena);
	return status;
}
