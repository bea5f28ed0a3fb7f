/* Puts a program on streams: inputs are copied in, kernels compute, buckets of gradients travel in the last micro-batch
 * as soon as they are complete, results are copied out. What one stream needs of another is ordered by RECORD and WAIT.
 *
 *	copy_in        WAIT io_free    COPY x, labels   RECORD io_filled
 *	compute        WAIT io_filled  run ... run      RECORD 0 ... run   WAIT 1   RECORD io_free
 *	communication                                   WAIT 0  all_reduce  RECORD 1
 *
 * Between programs there are only the shared events: a program leaves no other stream behind that touches what the next
 * one computes with. */
#include "codegen/streams.h"

typedef struct {
	FormatWriter *w;
	const StreamPlan *plan;
	ProgramRecord *program;
	Arena *arena;
	Instructions computed, list;
	int64_t pinned;
} Streams;

/* What programs of a role share with those before and behind them. */
typedef struct {
	Space space, host;
	SharedEvent filled, free;
} Exchange;
static const Exchange micro_batch = {SPACE_IO, SPACE_IO_HOST, EVENT_IO_FILLED, EVENT_IO_FREE};
static const Exchange step = {SPACE_STEP, SPACE_STEP_HOST, EVENT_STEP_FILLED, EVENT_STEP_FREE};

static const Exchange *
exchange_of(const Streams *s)
{
	return s->plan->role == ROLE_UPDATE ? &step : &micro_batch;
}

static void
add(Streams *s, Instruction n)
{
	vec_push(s->arena, &s->list, n);
}

static void
add_event(Streams *s, InstructionKind kind, Stream stream, RunOnly only, uint32_t event)
{
	add(s, (Instruction){.kind = kind, .stream = stream, .only = only, .what = event});
}

static uint32_t
add_arguments(Streams *s, int n, const uint32_t *slots)
{
	uint32_t first = (uint32_t)s->w->arguments.n;

	for (int i = 0; i < n; i++)
		vec_push(s->w->arena, &s->w->arguments, ((Argument){.slot = slots[i]}));
	return first;
}

static void
add_copy(Streams *s, Stream stream, RunOnly only, RunWhen when, uint32_t to, uint32_t from)
{
	add(s, (Instruction){.kind = COPY,
	                     .stream = stream,
	                     .only = only,
	                     .when = when,
	                     .args = add_arguments(s, 2, (const uint32_t[]){to, from}),
	                     .n_args = 2});
}

/* The same place in another region. */
static uint32_t
twin(Streams *s, uint32_t slot, Space space)
{
	Slot t = s->w->slots.at[slot];

	t.space = space;
	vec_push(s->w->arena, &s->w->slots, t);
	return (uint32_t)s->w->slots.n - 1;
}

static void
copy_in(Streams *s)
{
	const Exchange *x = exchange_of(s);

	add_event(s, WAIT, STREAM_COPY_IN, ONLY_APART, x->free);
	for (int i = 0; i < s->plan->inputs.n; i++) {
		uint32_t slot = s->plan->inputs.at[i];
		add_copy(s, STREAM_COPY_IN, ONLY_APART, RUN_ALWAYS, slot, twin(s, slot, x->host));
	}
	add_event(s, RECORD, STREAM_COPY_IN, ONLY_APART, x->filled);
	add_event(s, WAIT, STREAM_COMPUTE, ONLY_APART, x->filled);
}

/* The report of two steps ago has been read: the host waits for it before it queues this one. */
static void
copy_out(Streams *s)
{
	const Exchange *x = exchange_of(s);

	if (s->plan->role != ROLE_UPDATE)
		return;
	add_event(s, WAIT, STREAM_COPY_OUT, ONLY_ALWAYS, x->free);
	for (int i = 0; i < s->plan->results.n; i++) {
		uint32_t slot = s->plan->results.at[i];
		add_copy(s, STREAM_COPY_OUT, ONLY_APART, RUN_ALWAYS, twin(s, slot, x->host), slot);
	}
	add_event(s, RECORD, STREAM_COPY_OUT, ONLY_ALWAYS, EVENT_REPORT);
}

/* ---- buckets */
static bool
touches(const Streams *s, const Instruction *n, const Bucket *b)
{
	int64_t end = b->offset + dtype_bytes(b->dtype, b->n);

	for (uint32_t i = 0; i < n->n_args; i++) {
		const Slot *slot = &s->w->slots.at[s->w->arguments.at[n->args + i].slot];
		if (slot->space == SPACE_STATE && slot->offset < end &&
		    slot->offset + slot->bytes > b->offset)
			return true;
	}
	return false;
}

/* The kernel behind which nothing touches it any more; -1: none does. A loop is over at the END of the outermost LOOP
 * around. */
static int
last_touch(const Streams *s, const Bucket *b)
{
	bool inside = false;
	int last = -1, depth = 0;

	for (int i = 0; i < s->computed.n; i++) {
		const Instruction *n = &s->computed.at[i];

		depth += (n->kind == LOOP) - (n->kind == END);
		inside = touches(s, n, b) || (inside && (depth > 0 || n->kind == END));
		if (inside)
			last = i;
	}
	return last;
}

static uint32_t
bucket_slot(Streams *s, const Bucket *b, Space space, int64_t offset)
{
	Slot slot = {.space = space,
	             .dtype = b->dtype,
	             .offset = offset,
	             .bytes = dtype_bytes(b->dtype, b->n),
	             .name = b->name};

	vec_push(s->w->arena, &s->w->slots, slot);
	return (uint32_t)s->w->slots.n - 1;
}

enum { ALIGNMENT = 64 };

/* Where the communicator cannot read the device's memory it sums a copy in the host's. */
static void
add_bucket(Streams *s, const Bucket *b)
{
	CollectiveRecord c = {.kind = COMM_ALL_REDUCE,
	                      .group = GROUP_DATA,
	                      .dtype = b->dtype,
	                      .reduction = COMM_SUM,
	                      .n = b->n};
	uint32_t own = bucket_slot(s, b, SPACE_STATE, b->offset);
	uint32_t copy = bucket_slot(s, b, SPACE_PINNED, s->pinned);

	s->pinned += (dtype_bytes(b->dtype, b->n) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	vec_push(s->w->arena, &s->w->collectives, c);
	add_copy(s, STREAM_COMMUNICATION, ONLY_STAGED, RUN_LAST, copy, own);
	add(s, (Instruction){.kind = COLLECTIVE,
	                     .stream = STREAM_COMMUNICATION,
	                     .only = ONLY_RANKS,
	                     .when = RUN_LAST,
	                     .what = (uint32_t)s->w->collectives.n - 1,
	                     .args = add_arguments(s, 4, (const uint32_t[]){own, own, copy, copy}),
	                     .n_args = 4});
	add_copy(s, STREAM_COMMUNICATION, ONLY_STAGED, RUN_LAST, own, copy);
}

static void
compute(Streams *s)
{
	const Buckets *all = s->plan->buckets;
	int n = all ? all->n : 0;
	int *ready = NEW_ARRAY(s->arena, int, n + 1);

	for (int k = 0; k < n; k++)
		ready[k] = last_touch(s, &all->at[k]);
	for (int i = 0; i < s->computed.n; i++) {
		add(s, s->computed.at[i]);
		for (int k = 0; k < n; k++)
			if (ready[k] == i)
				add_bucket(s, &all->at[k]);
	}
	for (int k = 0; k < n; k++) /* zeros on all ranks, or what another program made */
		if (ready[k] < 0)
			add_bucket(s, &all->at[k]);
	if (n == 0)
		return;
	/* What comes next computes with the sums. */
	uint32_t event = N_SHARED_EVENTS + s->program->n_events++;
	for (int wait = 0; wait < 2; wait++)
		add(s, (Instruction){.kind = wait ? WAIT : RECORD,
		                     .stream = wait ? STREAM_COMPUTE : STREAM_COMMUNICATION,
		                     .only = ONLY_RANKS,
		                     .when = RUN_LAST,
		                     .what = event});
}

void
streams_write(FormatWriter *w, const StreamPlan *plan, ProgramRecord *program)
{
	Streams s = {.w = w, .plan = plan, .program = program, .arena = arena_new()};

	for (int i = (int)program->first_instruction; i < w->instructions.n; i++)
		vec_push(s.arena, &s.computed, w->instructions.at[i]);
	w->instructions.n = (int)program->first_instruction;
	copy_in(&s);
	compute(&s);
	add_event(&s, RECORD, STREAM_COMPUTE, ONLY_ALWAYS, exchange_of(&s)->free);
	copy_out(&s);
	Instructions all = streams_order(s.arena, w, &s.list, &program->n_events);
	for (int i = 0; i < all.n; i++)
		vec_push(w->arena, &w->instructions, all.at[i]);
	program->n_instructions = (uint32_t)w->instructions.n - program->first_instruction;
	program->bytes[SPACE_PINNED] = s.pinned;
	program->bytes[exchange_of(&s)->host] = program->bytes[exchange_of(&s)->space];
	arena_free(s.arena);
}
