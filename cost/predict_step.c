/* Predicts a whole training step: lists the launches of the step's programs for one binding
 * (choice of the open dimensions); equal launches are merged; the longest is first. */
#include "cost/cost.h"

#include <stdlib.h>
#include <string.h>

/* ---- which programs */
static uint32_t
chosen_target(const Format *f, const Machine *m)
{
	for (int i = 0; i < f->n[SECTION_TARGETS]; i++)
		if (strcmp(format_text(f, f->targets[i].name), m->target) == 0)
			return (uint32_t)i;
	return 0;
}

/* The update program that follows p: the update for the binding of p, or the update for all
 * bindings. */
static const ProgramRecord *
update_of(const Format *f, const ProgramRecord *p)
{
	const ProgramRecord *found = NULL;

	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *q = &f->programs[i];
		bool fits = q->role == ROLE_UPDATE && q->stage == p->stage && q->mode == p->mode &&
		            q->target == p->target;
		if (fits && (!found || q->binding == p->binding))
			found = q;
	}
	return found;
}

/* The number of tokens of a language model; 0: not a language model. It is the number of elements
 * of the first input that indexes a table: such an input is bounded, has an axis of samples and
 * rank 2 or more. Other inputs of this kind are assumed to have the same shape. */
static int64_t
tokens_of(const Format *f, const ProgramRecord *p)
{
	for (uint32_t i = 0; i < p->n_inputs; i++) {
		const PortRecord *port = &f->ports[p->first_input + i];
		if (port->kind == PORT_INPUT && port->bounded && port->rank >= 2 &&
		    port->sample_axis >= 0)
			return format_elements(f, port->first_dim, port->rank);
	}
	return 0;
}

/* ---- equal launches */
static int
compare_numbers(double a, double b)
{
	return (a > b) - (a < b);
}

/* Launches of equal work are merged: launches of the same kernel with equally many parts; or
 * copies, fills and collectives of equally many bytes. */
static int
compare_work(const Prediction *a, const Prediction *b)
{
	const Instruction *x = a->instruction, *y = b->instruction;
	const int kinds = compare_numbers(x->kind, y->kind);
	const int streams = compare_numbers(x->stream, y->stream);
	const int what = compare_numbers(x->kind == COPY || x->kind == FILL_ZERO ? 0 : x->what,
	                                 y->kind == COPY || y->kind == FILL_ZERO ? 0 : y->what);
	const int parts = compare_numbers((double)a->work.parts, (double)b->work.parts);
	const int seconds = compare_numbers(a->seconds, b->seconds);

	return kinds     ? kinds
	       : streams ? streams
	       : what    ? what
	       : parts   ? parts
	       : seconds ? seconds
	                 : compare_numbers(a->work.bytes, b->work.bytes);
}

/* Orders launches by work, then by position. */
static int
by_work(const void *a, const void *b)
{
	const Prediction *x = a, *y = b;
	int work = compare_work(x, y);

	return work ? work : (x->instruction > y->instruction) - (x->instruction < y->instruction);
}

static int
by_time(const void *a, const void *b)
{
	const Prediction *x = a, *y = b;
	int time = compare_numbers(prediction_total(y), prediction_total(x));

	return time ? time : (x->instruction > y->instruction) - (x->instruction < y->instruction);
}

static void
merge(PredictedStep *s)
{
	int n = 0;

	qsort(s->launches.at, (size_t)s->launches.n, sizeof(*s->launches.at), by_work);
	for (int i = 0; i < s->launches.n; i++) {
		Prediction *p = &s->launches.at[i];
		Prediction *last = n ? &s->launches.at[n - 1] : NULL;
		if (!last || compare_work(last, p) != 0)
			s->launches.at[n++] = *p;
		else if (!size_add(last->times, p->times, &last->times))
			last->times = INT64_MAX;
	}
	s->launches.n = n;
	qsort(s->launches.at, (size_t)n, sizeof(*s->launches.at), by_time);
}

/* ---- a step */
static void
add_program(Arena *arena, PredictedStep *s, const Format *f, const ProgramRecord *p,
            const Outlook *o)
{
	int64_t *times = NEW_ARRAY(arena, int64_t, p->n_instructions);

	predict_times(f, p, o, times);
	for (uint32_t i = 0; i < p->n_instructions; i++) {
		Prediction launch = predict_instruction(
			f, &f->instructions[p->first_instruction + i], o);
		launch.times = times[i];
		if (prediction_total(&launch) <= 0)
			continue;
		vec_push(arena, &s->launches, launch);
		s->streams[launch.instruction->stream] += prediction_total(&launch);
		s->total += prediction_total(&launch);
	}
}

static PredictedStep
predict_step(Arena *arena, const Format *f, const ProgramRecord *first, const Outlook *o)
{
	PredictedStep s = {.programs = {first}};

	if (first->role == ROLE_ACCUMULATE)
		s.programs[1] = update_of(f, first);
	for (int i = 0; i < COUNT(s.programs); i++)
		if (s.programs[i])
			add_program(arena, &s, f, s.programs[i], o);
	merge(&s);
	double computing = s.streams[STREAM_COMPUTE];
	double communicating = s.streams[STREAM_COMMUNICATION];
	s.least = computing > communicating ? computing : communicating;
	s.most = computing + communicating;
	s.rows = o->ranks * f->bindings[first->binding].rows;
	s.tokens = o->ranks * tokens_of(f, first);
	return s;
}

/* Predicts training steps if the tables can train, and forward programs otherwise. */
PredictedSteps
predict_steps(Arena *arena, const Format *f, const Outlook *o)
{
	uint32_t target = chosen_target(f, o->machine);
	PredictedSteps steps = {0};
	Role role = ROLE_FORWARD;

	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		if (f->programs[i].role == ROLE_ACCUMULATE)
			role = ROLE_ACCUMULATE;
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *p = &f->programs[i];
		if (p->role == (uint32_t)role && p->target == target &&
		    p->mode == (uint32_t)o->mode)
			vec_push(arena, &steps, predict_step(arena, f, p, o));
	}
	return steps;
}
