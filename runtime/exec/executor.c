/* Runs a program by walking its instructions: an instruction's kind picks the function that queues it, and each argument's
 * slot (a place in a space of memory) gives an address. All work is queued on the device's streams. The host waits only for
 * a BRANCH or LEAVE, which reads a flag. Timers are recorded where the phase changes, so the report of a step needs no clock
 * in between. */
#include "runtime/exec/walk.h"

#include <math.h>

static RunFacts
run_facts(const ExecutorOptions *o)
{
	bool apart = !o->ops->host_memory;
	RunFacts facts = run_alone;

	facts.holds = apart ? ONLY_APART : 0;
	facts.mode = o->mode;
	if (!o->comm || (o->comm->size == 1 && o->mode == MODE_DDP))
		return facts;
	facts.ranks = o->comm->size;
	facts.rank = o->comm->rank;
	facts.shard_ranks = o->shard_ranks;
	facts.shard_rank = o->shard_ranks ? facts.rank % o->shard_ranks : 0;
	bool staged = apart && facts.ranks > 1 && !o->comm->data_ops->reads_device_memory;
	facts.holds |= run_holds(&facts, o->ordered, staged);
	return facts;
}

bool
executor_is_apart(const Executor *x)
{
	return (x->facts.holds & ONLY_APART) != 0;
}

/* Number of instructions that a run of the program executes, loop iterations included. */
static int64_t
observed_of(const Executor *x, const ProgramRecord *p)
{
	int64_t times[MAX_LOOPS + 1] = {1}, n = 0;
	int depth = 0;

	for (uint32_t i = 0; i < p->n_instructions && n < MAX_OBSERVED; i++) {
		const Instruction *in = &x->format->instructions[p->first_instruction + i];

		n += times[depth];
		if (instruction_opens(in->kind)) {
			int64_t count = in->kind == BRANCH ? 1
			                                   : format_loop_count(in->what, &x->facts);
			times[depth + 1] = times[depth] * count;
			depth++;
		} else if (in->kind == END)
			depth--;
	}
	return n < MAX_OBSERVED ? n : MAX_OBSERVED;
}

static int
most_observed(const Executor *x)
{
	int64_t most = 0;

	for (int i = 0; i < x->format->n[SECTION_PROGRAMS]; i++) {
		int64_t n = observed_of(x, &x->format->programs[i]);
		most = n > most ? n : most;
	}
	return (int)most;
}

static bool
program_asks(const Executor *x, const ProgramRecord *p)
{
	for (uint32_t i = 0; i < p->n_instructions; i++)
		if (instruction_asks(x->format->instructions[p->first_instruction + i].kind))
			return true;
	return false;
}

/* Called while the host waits for the device, which may wait for collectives: asks whether the other ranks are alive. */
static Status
look_after_ranks(void *context, double moved, bool *waits)
{
	const Executor *x = context;
	bool late = false;

	if (!comm_enqueues(x->comm))
		return NULL;
	Status status = x->comm->data_ops->watch(x->comm->data, moved, &late);
	*waits |= late;
	return status;
}

static void
leave_ranks(void *context)
{
	const Executor *x = context;

	if (comm_enqueues(x->comm))
		x->comm->data_ops->abort(x->comm->data);
}

Status
executor_attach(Executor *x, bool records)
{
	const Comm *comm = x->comm;
	void *stream;

	if (!comm_enqueues(comm))
		return NULL;
	x->records_ranks = records;
	RETURN_IF_ERROR(x->ops->native_stream(x->device, STREAM_COMMUNICATION, &stream));
	RETURN_IF_ERROR(comm->data_ops->attach(comm->data));
	for (int s = 0; s < N_SPACES; s++)
		for (int turn = 0; turn < IN_FLIGHT && !space_table[s].on_host; turn++)
			if (x->regions[s][turn].at)
				comm->data_ops->lend(comm->data, x->regions[s][turn].at,
				                     x->regions[s][turn].bytes);
	return NULL;
}

Status
executor_open(Arena *arena, const Format *f, const ExecutorOptions *options, Executor *out)
{
	const DeviceOps *ops = options->ops;
	const CodeImage *image = options->variant;
	CodeSource source = {image, 1, f, (int)image->target, options->mode};
	DeviceOptions device = options->device;
	uint32_t most = 1;

	*out = (Executor){.arena = arena,
	                  .format = f,
	                  .target = (int)image->target,
	                  .host_target = (int)image->target,
	                  .ops = ops,
	                  .comm = options->comm,
	                  .offload_folder = options->offload_folder,
	                  .facts = run_facts(options)};
	for (int i = 0; i < f->n[SECTION_INSTRUCTIONS]; i++)
		if (f->instructions[i].n_args > most)
			most = f->instructions[i].n_args;
	out->shard_at = NEW_ARRAY(arena, int64_t, f->n[SECTION_STATES] + 1);
	if (format_shard_places(f, &out->facts, SPACE_SHARD, out->shard_at) == INT64_MAX)
		return status_error(EXIT_SYSTEM, "parts of states are too large");
	out->facts.shard_at = out->shard_at;
	out->recorded = NEW_ARRAY(arena, RecordedRun,
	                          f->n[SECTION_PROGRAMS] * RUNS_PER_PROGRAM + 1);
	out->asks = NEW_ARRAY(arena, bool, f->n[SECTION_PROGRAMS] + 1);
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		out->asks[i] = program_asks(out, &f->programs[i]);
	out->most_arguments = most;
	out->buffers = NEW_ARRAY(arena, void *, most);
	out->before = NEW_ARRAY(arena, int64_t, most);
	RETURN_IF_ERROR(format_check_world(f, &out->facts));
	out->most_observed = options->observed ? most_observed(out) : 0;
	device.watch = (DeviceWatch){look_after_ranks, leave_ranks, out};
	device.n_events = FIRST_OBSERVED + out->most_observed * 2;
	Status status = ops->open(&device, &out->device);
	if (!status)
		status = ops->load(out->device, &source, &out->code);
	if (!status && options->host)
		status = host_open(out, options->host, &options->device);
	return status ? status : regions_alloc(out);
}

void
executor_stop(Executor *x)
{
	if (!x->device)
		return;
	Status status = x->ops->sync(x->device);
	if (status)
		leave_ranks(x);
	status_free(status);
	recorded_free(x);
}

void
executor_close(Executor *x)
{
	if (!x->device)
		return;
	executor_stop(x);
	regions_free(x);
	raw_inputs_free(x);
	host_close(x);
	if (x->code)
		x->ops->unload(x->device, x->code);
	library_free(x->ops, x->device, &x->library);
	x->ops->close(x->device);
	x->device = NULL;
}

static char *
place(const Executor *x, Space space, int64_t offset)
{
	return x->regions[space][x->turns[space_table[space].turn]].at + offset;
}

Span
executor_slot(const Executor *x, uint32_t slot)
{
	const Slot *s = &x->format->slots[slot];

	return (Span){place(x, (Space)s->space, s->offset), s->bytes};
}

/* If the host cannot read the device's memory: the space of the host's copy. Otherwise the space itself. */
static Space
host_side(const Executor *x, Space space)
{
	return executor_is_apart(x) ? space_table[space].twin : space;
}

char *
executor_host(const Executor *x, uint32_t slot)
{
	const Slot *s = &x->format->slots[slot];

	return place(x, host_side(x, (Space)s->space), s->offset);
}

char *
executor_image(const Executor *x, int turn)
{
	return x->regions[host_side(x, SPACE_IO)][turn].at;
}

int64_t
executor_image_bytes(const Executor *x)
{
	return x->regions[host_side(x, SPACE_IO)][0].bytes;
}

void
executor_take_image(Executor *x, int turn, const RawInputs *raw)
{
	x->turns[TURN_MICRO] = (uint8_t)turn;
	x->raw = raw;
}

Scalar *
executor_scalars(const Executor *x, const ProgramRecord *p)
{
	return p->scalars ? (Scalar *)(void *)executor_host(x, p->scalars - 1) : NULL;
}

Span
executor_state(const Executor *x, int state)
{
	const StateRecord *s = &x->format->states[state];

	if (state_is_sharded(s, x->facts.mode))
		return (Span){NULL, 0}; /* see state_part */
	return (Span){place(x, SPACE_STATE, s->offset), s->bytes};
}

Span
executor_region(const Executor *x, Space space)
{
	return x->regions[space][x->turns[space_table[space].turn]];
}

Status
executor_write(Executor *x, Span to, const void *from)
{
	RETURN_IF_ERROR(x->ops->copy(x->device, STREAM_COMPUTE, to, from));
	return executor_drain(x);
}

/* Waits for all earlier work first. Otherwise the driver would wait for it inside the copy, because `to` is not pinned, and
 * nobody would notice a stuck device. */
Status
executor_read(Executor *x, void *to, Span from)
{
	RETURN_IF_ERROR(executor_drain(x));
	return executor_write(x, (Span){to, from.bytes}, from.at);
}

/* ---- waiting */
Status
executor_drain(Executor *x)
{
	x->host_waits++;
	return x->ops->sync(x->device);
}

static int
event_of(SharedEvent event, int turn)
{
	const uint8_t turns[N_TURNS] = {0, (uint8_t)turn, (uint8_t)turn};

	return (int)format_event(event, turns);
}

/* The event after which the host may fill the image (the inputs) again: copies, and programs on the host's processors, have
 * read it. */
static int
image_event(const Executor *x, int turn)
{
	return event_of(executor_is_apart(x) && !x->host_reads_io ? EVENT_IO_FILLED : EVENT_IO_FREE,
	                turn);
}

bool
executor_image_is_free(const Executor *x, int turn)
{
	return x->ops->is_done(x->device, image_event(x, turn));
}

Status
executor_wait_image(const Executor *x, int turn)
{
	return x->ops->host_wait(x->device, image_event(x, turn));
}

bool
executor_has_report(const Executor *x, int turn)
{
	return x->ops->is_done(x->device, event_of(EVENT_REPORT, turn));
}

Status
executor_wait_report(Executor *x, int turn)
{
	x->host_waits++;
	RETURN_IF_ERROR(x->ops->host_wait(x->device, event_of(EVENT_REPORT, turn)));
	return x->ops->fault(x->device);
}

/* ---- running the instructions of a program */
typedef struct {
	Executor *x;
	const ProgramRecord *program;
	const MicroBatch *micro;
	uint32_t pc; /* index of the current instruction in the program */
	int depth;
	struct {
		uint32_t start, count, done;
	} loops[MAX_LOOPS];
	int phase;
	const Scalar *scalars; /* in the device's memory */
} Walk;

/* ---- times of phases, on the compute stream */
static Status
set_timer(Walk *w, int phase)
{
	Executor *x = w->x;
	StepTimers *t = &x->timers[x->turns[TURN_STEP]];

	w->phase = phase;
	t->full |= x->timed && t->n == MAX_TIMERS;
	if (!x->timed || t->full)
		return NULL;
	t->phase[t->n] = (int8_t)phase;
	return x->ops->record(x->device, STREAM_COMPUTE, timer_event(x->turns[TURN_STEP], t->n++));
}

static bool
is_hosts(const Walk *w)
{
	return w->program->target != (uint32_t)w->x->target;
}

static Span
argument_part(const Walk *w, const Instruction *n, uint32_t i, int64_t *first)
{
	const Argument *a = &w->x->format->arguments[n->args + i];
	const Slot *s = &w->x->format->slots[a->slot];
	int64_t done = a->loop ? w->loops[a->loop - 1].done : 0;
	SlotPlace at = {s->offset, s->bytes, 0};

	/* cannot fail: format_check_world has checked the group */
	if (s->share != SLOT_WHOLE)
		format_place(s, &w->x->facts, done, &at);
	else
		at.offset += a->stride * done;
	*first = at.first;
	Space space = is_hosts(w) ? host_side(w->x, (Space)s->space) : (Space)s->space;
	return (Span){place(w->x, space, at.offset), at.bytes};
}

static Span
argument_span(const Walk *w, const Instruction *n, uint32_t i)
{
	int64_t first;

	return argument_part(w, n, i, &first);
}

/* The address of a kernel's argument, as if the whole tensor existed. If the rank holds only a part of the tensor, the launch
 * runs only the iterations of that part. */
static void *
whole_argument(const Walk *w, const Instruction *n, uint32_t i, Launch *launch)
{
	const Format *f = w->x->format;
	const KernelRecord *k = &f->kernels[n->what];
	const KernelArgument *a = &f->kernel_arguments[k->first_argument + i];
	int64_t first;
	Span part = argument_part(w, n, i, &first);

	if (k->elements == 0 && f->slots[f->arguments[n->args + i].slot].share == SLOT_PART) {
		launch->begin = first / a->each;
		launch->end = (first + part.bytes) / a->each;
		launch->before = w->x->before;
	} else
		first = 0;
	w->x->before[i] = first;
	return (void *)((uintptr_t)part.at - (uintptr_t)first);
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
		.scalars = w->scalars,
		.end = k->iterations,
		.grain = k->grain,
	};

	for (uint32_t i = 0; i < n->n_args; i++)
		x->buffers[i] = whole_argument(w, n, i, &launch);
	if (k->elements)
		format_launch_end(x->format, k, argument_span(w, n, n->n_args - 1u).bytes,
		                  &launch.end);
	if (launch.begin == launch.end)
		return NULL;
	return is_hosts(w) ? host_launch(x, n->stream, &launch)
	                   : x->ops->run(x->device, n->stream, x->code, &launch);
}

/* Counts bytes that move between the device's memory and offloaded states in the host's memory. */
static void
count_copy(Executor *x, const Instruction *n, int64_t bytes)
{
	const Format *f = x->format;
	bool to = space_is_offload(f->slots[f->arguments[n->args].slot].space);
	bool from = space_is_offload(f->slots[f->arguments[n->args + 1u].slot].space);

	x->copied_out += to && !from ? bytes : 0;
	x->copied_in += from && !to ? bytes : 0;
}

static Status
run_copy(Walk *w, const Instruction *n)
{
	Span to = argument_span(w, n, 0), from = argument_span(w, n, 1);

	if (to.at == from.at)
		return NULL;
	const Format *f = w->x->format;
	const Slot *slot = &f->slots[f->arguments[n->args + 1u].slot];
	const RawInput *raw = raw_input_find(w->x, slot, to.bytes);
	count_copy(w->x, n, raw ? raw->look_up.n : to.bytes);
	if (raw)
		return raw_input_copy(w->x, n->stream, raw, to, from.at);
	return w->x->ops->copy(w->x->device, n->stream, to, from.at);
}

static Status
run_fill_zero(Walk *w, const Instruction *n)
{
	return w->x->ops->fill_zero(w->x->device, n->stream, argument_span(w, n, 0));
}

/* Queues a RECORD. If other streams or the host wait for the event, the current phase ends first, so that the program's last
 * timer is recorded before the event. */
static Status
run_record(Walk *w, const Instruction *n)
{
	if (n->stream == STREAM_COMPUTE && n->what < N_SHARED_EVENTS && w->phase >= 0)
		RETURN_IF_ERROR(set_timer(w, -1));
	return w->x->ops->record(w->x->device, n->stream, (int)format_event(n->what, w->x->turns));
}

static Status
run_wait(Walk *w, const Instruction *n)
{
	return w->x->ops->wait(w->x->device, n->stream, (int)format_event(n->what, w->x->turns));
}

/* Queues a collective. If the communicator cannot read the device's memory, the last two arguments are copies in memory that it
 * can read. */
static Status
run_collective(Walk *w, const Instruction *n)
{
	uint32_t first = w->x->facts.holds & ONLY_STAGED ? n->n_args - 2u : 0;

	return collective_start(w->x, n, argument_span(w, n, first).at,
	                        argument_span(w, n, first + 1).at);
}

/* Skips to the END that closes the innermost LOOP or BRANCH around pc. */
static void
skip_block(Walk *w)
{
	const Instruction *at = w->x->format->instructions + w->program->first_instruction;

	for (int depth = 1; depth > 0;) {
		w->pc++;
		depth += instruction_opens(at[w->pc].kind) - (at[w->pc].kind == END);
	}
}

static Status
open_block(Walk *w, uint32_t count)
{
	if (count == 0) {
		skip_block(w);
		return NULL;
	}
	w->loops[w->depth].start = w->pc;
	w->loops[w->depth].count = count;
	w->loops[w->depth].done = 0;
	w->depth++;
	return NULL;
}

static Status
run_loop(Walk *w, const Instruction *n)
{
	return open_block(w, (uint32_t)format_loop_count(n->what, &w->x->facts));
}

/* Reads a flag. The host waits for everything queued, because the next instruction depends on the flag. */
static Status
ask(Walk *w, const Instruction *n, bool *answer)
{
	uint8_t byte = 0;
	Span flag = argument_span(w, n, 0);

	RETURN_IF_ERROR(executor_read(w->x, &byte, (Span){flag.at, 1}));
	*answer = byte != 0;
	return NULL;
}

static Status
run_branch(Walk *w, const Instruction *n)
{
	bool holds;

	RETURN_IF_ERROR(ask(w, n, &holds));
	return open_block(w, holds == (n->what != 0));
}

static Status
run_leave(Walk *w, const Instruction *n)
{
	bool goes_on;

	RETURN_IF_ERROR(ask(w, n, &goes_on));
	if (!goes_on) {
		w->depth--;
		skip_block(w);
	}
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
	[RUN_KERNEL] = run_kernel,   [COPY] = run_copy,
	[FILL_ZERO] = run_fill_zero, [COLLECTIVE] = run_collective,
	[RECORD] = run_record,       [WAIT] = run_wait,
	[LOOP] = run_loop,           [BRANCH] = run_branch,
	[LEAVE] = run_leave,         [END] = run_end,
};

/* Runs one instruction alone: the finder reads its operands before and its results after. */
static Status
run_and_look(Walk *w, const Instruction *n)
{
	Executor *x = w->x;
	FinderCall call = {w->program, w->micro, n, x->spans};

	for (uint32_t i = 0; i < n->n_args; i++)
		x->spans[i] = argument_span(w, n, i);
	RETURN_IF_ERROR(finder_before(x, &call));
	RETURN_IF_ERROR(execute[n->kind](w, n));
	return finder_after(x, &call);
}

static bool
is_due(const Walk *w, const Instruction *n)
{
	const uint32_t ranks = ONLY_RANKS | ONLY_STAGED | ONLY_ORDERED | ONLY_FAST | ONLY_REPLICAS;
	const bool due[N_WHEN] = {
		[WHEN_ALWAYS] = true,
		[WHEN_FIRST] = w->micro->index == 0,
		[WHEN_LATER] = w->micro->index > 0,
		[WHEN_LAST] = w->micro->index == w->micro->n - 1,
	};

	return (due[n->when] && only_applies(n->only, &w->x->facts) &&
	        !(w->micro->alone && (n->only & ranks))) ||
	       n->kind == END; /* a skipped LOOP skips its END as well */
}

static Status
time_phase(Walk *w, const Instruction *n)
{
	return n->stream != STREAM_COMPUTE || n->kind != RUN_KERNEL || n->phase == w->phase
	               ? NULL
	               : set_timer(w, n->phase);
}

Status
executor_step_times(const Executor *x, int turn, double seconds[N_PHASES])
{
	const StepTimers *t = &x->timers[turn];

	/* if timers ran out, the phases that were timed would add up to too little time */
	for (int p = 0; p < N_PHASES; p++)
		seconds[p] = t->full ? NAN : 0;
	if (t->full)
		return NULL;
	for (int i = 0; i + 1 < t->n; i++) {
		double took;

		if (t->phase[i] < 0) /* between two programs */
			continue;
		RETURN_IF_ERROR(x->ops->elapsed(x->device, timer_event(turn, i),
		                                timer_event(turn, i + 1), &took));
		seconds[t->phase[i]] += took;
	}
	return NULL;
}

static Status
run_one(Walk *w)
{
	const Instruction *n = &w->x->format->instructions[w->program->first_instruction + w->pc];

	if (!is_due(w, n)) {
		if (n->kind == LOOP)
			skip_block(w);
		return NULL;
	}
	RETURN_IF_ERROR(time_phase(w, n));
	uint32_t at = w->pc;
	if (w->x->observer)
		RETURN_IF_ERROR(observe_begins(w->x, n->stream));
	RETURN_IF_ERROR(w->x->finder ? run_and_look(w, n) : execute[n->kind](w, n));
	if (w->x->observer)
		RETURN_IF_ERROR(observe_ends(w->x, at, n->stream));
	return w->x->poison && w->depth == 0 ? poison_after(w->x, w->program, at) : NULL;
}

Status
executor_walk(Executor *x, const ProgramRecord *p, const MicroBatch *micro)
{
	Walk w = {.x = x, .program = p, .micro = micro, .phase = -1};

	if (p->scalars && p->target == (uint32_t)x->target)
		w.scalars = (const Scalar *)(const void *)executor_slot(x, p->scalars - 1).at;
	else if (p->scalars)
		w.scalars = executor_scalars(x, p);
	if (x->poison)
		RETURN_IF_ERROR(poison_before(x, p));
	if (x->observer)
		RETURN_IF_ERROR(observe_begin(x));
	for (; w.pc < p->n_instructions; w.pc++)
		RETURN_IF_ERROR(run_one(&w));
	if (w.phase >= 0)
		RETURN_IF_ERROR(set_timer(&w, -1));
	return x->observer ? observe_run(x, p) : NULL;
}
