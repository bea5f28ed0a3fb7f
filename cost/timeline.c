/* Computes when each instruction of a step would begin and end on the machine's streams (queues
 * of instructions that run in parallel). An instruction begins when the previous one on its
 * stream ends; a WAIT also waits for the time of its RECORD. Communication costs the time during
 * which nothing is computed. */
#include "cost/cost.h"

typedef struct {
	Arena *arena;
	const Format *f;
	const Outlook *o;
	Timeline *out;
	double now[N_STREAMS];
	double *events; /* by number: time of the newest RECORD */
} Running;

static void
run_program(Running *r, const ProgramRecord *p)
{
	int64_t *times = NEW_ARRAY(r->arena, int64_t, p->n_instructions + 1);

	predict_times(r->f, p, r->o, times);
	r->events = NEW_ARRAY(r->arena, double, N_SHARED_EVENTS + p->n_events);
	for (uint32_t i = 0; i < p->n_instructions; i++) {
		const Instruction *in = &r->f->instructions[p->first_instruction + i];
		double *now = &r->now[in->stream];
		if (times[i] == 0)
			continue;
		if (in->kind == RECORD)
			r->events[in->what] = *now;
		if (in->kind == WAIT && r->events[in->what] > *now)
			*now = r->events[in->what];
		Prediction one = predict_instruction(r->f, in, r->o);
		if (one.seconds <= 0)
			continue;
		Bar bar = {.instruction = in, .begin = *now};
		*now = bar.end = *now + (double)times[i] * one.seconds;
		vec_push(r->arena, &r->out->bars[in->stream], bar);
	}
	double end = 0;
	for (int s = 0; s < N_STREAMS; s++)
		end = r->now[s] > end ? r->now[s] : end;
	/* the next program begins when all streams have ended */
	for (int s = 0; s < N_STREAMS; s++)
		r->now[s] = end;
}

/* Sets `exposed` of all communication: compares its bars with the bars of the compute stream, both
 * in the order of time. */
static void
find_exposed(Timeline *t)
{
	int first = 0;

	for (int i = 0; i < t->bars[STREAM_COMMUNICATION].n; i++) {
		Bar *b = &t->bars[STREAM_COMMUNICATION].at[i];
		b->exposed = b->end - b->begin;
		while (first < t->bars[STREAM_COMPUTE].n &&
		       t->bars[STREAM_COMPUTE].at[first].end <= b->begin)
			first++;
		for (int k = first; k < t->bars[STREAM_COMPUTE].n; k++) {
			const Bar *c = &t->bars[STREAM_COMPUTE].at[k];
			double begin = c->begin > b->begin ? c->begin : b->begin;
			double end = c->end < b->end ? c->end : b->end;
			if (c->begin >= b->end)
				break;
			b->exposed -= end > begin ? end - begin : 0;
		}
		t->exposed += b->exposed;
	}
}

Timeline
predict_timeline(Arena *arena, const Format *f, const PredictedStep *s, const Outlook *o)
{
	Timeline out = {0};
	Running r = {.arena = arena, .f = f, .o = o, .out = &out};

	for (int i = 0; i < COUNT(s->programs); i++)
		if (s->programs[i])
			run_program(&r, s->programs[i]);
	find_exposed(&out);
	out.seconds = r.now[STREAM_COMPUTE];
	return out;
}
