/* Walks a program: each instruction's kind picks a function, each argument's slot an address.
 * Timers are recorded where the phase changes, so that a report needs no clock in between. */
#include "runtime/runtime_impl.h"

Status
executor_open(Arena *arena, const Format *f, const ExecutorOptions *options, Executor *out)
{
	const DeviceOps *ops = options->ops;
	const KernelVariant *v = options->variant;
	CodeSource source = {v->kernels, f->n[SECTION_KERNELS], f, (int)v->target};
	uint32_t most = 1;

	*out = (Executor){.format = f, .target = (int)v->target, .ops = ops};
	for (int i = 0; i < f->n[SECTION_INSTRUCTIONS]; i++)
		if (f->instructions[i].n_args > most)
			most = f->instructions[i].n_args;
	out->buffers = NEW_ARRAY(arena, void *, most);
	Status status = ops->open(&options->device, &out->device);
	if (!status)
		status = ops->load(out->device, &source, &out->code);
	for (int s = 0; s < N_SPACES && !status; s++)
		status = ops->alloc(out->device, MEMORY_DEVICE,
		                    format_space_bytes(f, (Space)s, out->target), &out->regions[s]);
	return status;
}

void
executor_close(Executor *x)
{
	if (!x->device)
		return;
	for (int s = 0; s < N_SPACES; s++)
		if (x->regions[s].at)
			x->ops->free(x->device, MEMORY_DEVICE, x->regions[s]);
	if (x->code)
		x->ops->unload(x->device, x->code);
	x->ops->close(x->device);
	x->device = NULL;
}

Span
executor_slot(const Executor *x, uint32_t slot)
{
	const Slot *s = &x->format->slots[slot];

	return (Span){x->regions[s->space].at + s->offset, s->bytes};
}

Span
executor_state(const Executor *x, int state)
{
	const StateRecord *s = &x->format->states[state];

	return (Span){x->regions[SPACE_STATE].at + s->offset, s->bytes};
}

Status
executor_write(Executor *x, Span to, const void *from)
{
	RETURN_IF_ERROR(x->ops->copy(x->device, 0, to, from));
	return x->ops->sync(x->device);
}

Status
executor_read(Executor *x, void *to, Span from)
{
	return executor_write(x, (Span){to, from.bytes}, from.at);
}

typedef struct {
	Executor *x;
	const ProgramRecord *program;
	const MicroBatch *micro;
	uint32_t pc; /* within the program */
	int depth;
	struct {
		uint32_t start, count, done;
	} loops[MAX_LOOPS];
	int phase, n_timers;
	int timed[MAX_TIMERS]; /* phase that each timer begins */
} Walk;

static Span
argument_span(const Walk *w, const Instruction *n, uint32_t i)
{
	const Argument *a = &w->x->format->arguments[n->args + i];
	Span span = executor_slot(w->x, a->slot);

	if (a->loop)
		span.at += a->stride * w->loops[a->loop - 1].done;
	return span;
}

static Status
run_kernel(Walk *w, const Instruction *n)
{
	Executor *x = w->x;
	const KernelRecord *k = &x->format->kernels[n->what];
	Launch launch = {
		.kernel = n->what,
		.n_buffers = n->n_args,
		.buffers = x->buffers,
		.scalars = w->micro->scalars,
		.end = k->iterations,
		.grain = k->grain,
	};

	for (uint32_t i = 0; i < n->n_args; i++)
		x->buffers[i] = argument_span(w, n, i).at;
	return x->ops->run(x->device, n->stream, x->code, &launch);
}

static Status
run_copy(Walk *w, const Instruction *n)
{
	return w->x->ops->copy(w->x->device, n->stream, argument_span(w, n, 0),
	                       argument_span(w, n, 1).at);
}

static Status
run_fill_zero(Walk *w, const Instruction *n)
{
	return w->x->ops->fill_zero(w->x->device, n->stream, argument_span(w, n, 0));
}

static Status
run_record(Walk *w, const Instruction *n)
{
	return w->x->ops->record(w->x->device, n->stream, (int)n->what);
}

static Status
run_wait(Walk *w, const Instruction *n)
{
	return w->x->ops->wait(w->x->device, n->stream, (int)n->what);
}

/* Moves to the END of the LOOP at pc. */
static void
skip_loop(Walk *w)
{
	const Instruction *at = w->x->format->instructions + w->program->first_instruction;

	for (int depth = 1; depth > 0;) {
		w->pc++;
		depth += (at[w->pc].kind == LOOP) - (at[w->pc].kind == END);
	}
}

static Status
run_loop(Walk *w, const Instruction *n)
{
	if (n->what == 0) {
		skip_loop(w);
		return NULL;
	}
	w->loops[w->depth].start = w->pc;
	w->loops[w->depth].count = n->what;
	w->loops[w->depth].done = 0;
	w->depth++;
	return NULL;
}

static Status
run_end(Walk *w, const Instruction *n)
{
	(void)n;
	if (++w->loops[w->depth - 1].done < w->loops[w->depth - 1].count)
		w->pc = w->loops[w->depth - 1].start;
	else
		w->depth--;
	return NULL;
}

static Status (*const execute[N_INSTRUCTIONS])(Walk *, const Instruction *) = {
	[RUN_KERNEL] = run_kernel, [COPY] = run_copy, [FILL_ZERO] = run_fill_zero,
	[RECORD] = run_record,     [WAIT] = run_wait, [LOOP] = run_loop,
	[END] = run_end,
};

static bool
is_due(const Walk *w, const Instruction *n)
{
	const bool due[N_WHEN] = {
		[RUN_ALWAYS] = true,
		[RUN_FIRST] = w->micro->index == 0,
		[RUN_LATER] = w->micro->index > 0,
		[RUN_LAST] = w->micro->index == w->micro->n - 1,
	};

	return due[n->when] || n->kind == END; /* a skipped LOOP skips its END */
}

/* A timer where the phase changes; programs with more changes than timers give less detail. */
static Status
time_phase(Walk *w, int phase)
{
	if (phase == w->phase || w->n_timers == MAX_TIMERS - 1)
		return NULL;
	w->phase = phase;
	w->timed[w->n_timers] = phase;
	return w->x->ops->record(w->x->device, 0, MAX_EVENTS + w->n_timers++);
}

static Status
add_times(const Walk *w)
{
	for (int i = 0; i < w->n_timers; i++) {
		double seconds;

		RETURN_IF_ERROR(w->x->ops->elapsed(w->x->device, MAX_EVENTS + i, MAX_EVENTS + i + 1,
		                                   &seconds));
		w->x->phase_seconds[w->timed[i]] += seconds;
	}
	return NULL;
}

static Status
observe(const Walk *w, uint32_t at, double begin)
{
	const ProgramRecord *p = w->program;

	RETURN_IF_ERROR(w->x->ops->sync(w->x->device));
	observe_instruction(w->x->observer, p->first_instruction + at, begin, seconds_now());
	return NULL;
}

static Status
run_one(Walk *w)
{
	const Instruction *n = &w->x->format->instructions[w->program->first_instruction + w->pc];

	if (!is_due(w, n)) {
		if (n->kind == LOOP)
			skip_loop(w);
		return NULL;
	}
	RETURN_IF_ERROR(time_phase(w, n->phase));
	uint32_t at = w->pc;
	double begin = w->x->observer ? seconds_now() : 0;
	RETURN_IF_ERROR(execute[n->kind](w, n));
	if (w->x->observer)
		RETURN_IF_ERROR(observe(w, at, begin));
	if (w->micro->reduction && w->depth == 0)
		RETURN_IF_ERROR(reduction_after(w->micro->reduction, at));
	return w->x->poison && w->depth == 0 ? poison_after(w->x, w->program, at) : NULL;
}

Status
executor_run(Executor *x, const ProgramRecord *p, const MicroBatch *micro)
{
	Walk w = {.x = x, .program = p, .micro = micro, .phase = -1};

	if (x->poison)
		RETURN_IF_ERROR(poison_before(x, p));
	for (; w.pc < p->n_instructions; w.pc++)
		RETURN_IF_ERROR(run_one(&w));
	RETURN_IF_ERROR(x->ops->record(x->device, 0, MAX_EVENTS + w.n_timers));
	RETURN_IF_ERROR(x->ops->sync(x->device));
	if (x->observer)
		observe_program_end(x->observer);
	return add_times(&w);
}
