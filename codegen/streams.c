/* Puts a program on streams: inputs are copied in, kernels compute, buckets of gradients travel in the last micro-batch
 * as soon as they are complete, results are copied out. What one stream needs of another is ordered by RECORD and WAIT.
 *
 *	copy_in        WAIT io_free    COPY x, labels   RECORD io_filled
 *	compute        WAIT io_filled  run ... run      RECORD 0 ... run   RECORD io_free   WAIT 1
 *	communication                                   WAIT 0  all_reduce  RECORD 1
 *
 * Between programs there are only the shared events: a program leaves no other stream behind that touches what the next
 * one computes with. */
#include "codegen/streams.h"

#include "ir/loop.h"

typedef struct {
	FormatWriter *w;
	const StreamPlan *plan;
	ProgramRecord *program;
	Arena *arena;
	Instructions computed, list;
} Streams;

/* What programs of a role share with those before and behind them. */
typedef struct {
	Space space;
	SharedEvent filled, free;
} Exchange;
static const Exchange micro_batch = {SPACE_IO, EVENT_IO_FILLED, EVENT_IO_FREE};
static const Exchange step = {SPACE_STEP, EVENT_STEP_FILLED, EVENT_STEP_FREE};

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

/* The same place on the host's side. */
static uint32_t
twin(Streams *s, uint32_t slot)
{
	Slot t = s->w->slots.at[slot];

	t.space = space_table[t.space].twin;
	vec_push(s->w->arena, &s->w->slots, t);
	return (uint32_t)s->w->slots.n - 1;
}

static void
copy_in(Streams *s)
{
	const Exchange *x = exchange_of(s);

	if (s->plan->role !=
	    ROLE_UPDATE) /* before that the host has waited for the report of its turn */
		add_event(s, WAIT, STREAM_COPY_IN, ONLY_APART, x->free);
	for (int i = 0; i < s->plan->inputs.n; i++) {
		uint32_t slot = s->plan->inputs.at[i];
		add_copy(s, STREAM_COPY_IN, ONLY_APART, RUN_ALWAYS, slot, twin(s, slot));
	}
	add_event(s, RECORD, STREAM_COPY_IN, ONLY_APART, x->filled);
	add_event(s, WAIT, STREAM_COMPUTE, ONLY_APART, x->filled);
}

static void
copy_out(Streams *s)
{
	const Exchange *x = exchange_of(s);

	if (s->plan->role != ROLE_UPDATE)
		return;
	add_event(s, WAIT, STREAM_COPY_OUT, ONLY_ALWAYS, x->free);
	for (int i = 0; i < s->plan->results.n; i++) {
		uint32_t slot = s->plan->results.at[i];
		add_copy(s, STREAM_COPY_OUT, ONLY_APART, RUN_ALWAYS, twin(s, slot), slot);
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
bucket_slot(Streams *s, const Bucket *b, Space space, SlotShare share)
{
	Slot slot = {.space = space,
	             .dtype = b->dtype,
	             .offset = space == SPACE_STATE ? b->offset : 0,
	             .bytes = dtype_bytes(b->dtype, b->n),
	             .share = (uint16_t)share,
	             .block = share == SLOT_WHOLE ? 0 : SUM_BLOCK,
	             .name = format_string(s->w, b->name)};

	vec_push(s->w->arena, &s->w->slots, slot);
	return (uint32_t)s->w->slots.n - 1;
}

/* Where it lies, and what stands in for that where the communicator cannot read the device's memory. Buckets follow each other
 * on one stream, so they share what they need besides. */
typedef struct {
	const Bucket *b;
	uint32_t own, own_part, copy, copy_part;
} BucketSlots;

static void
add_travel(Streams *s, InstructionKind kind, uint32_t only, uint32_t what, int n,
           const uint32_t *slots)
{
	add(s, (Instruction){.kind = kind,
	                     .stream = STREAM_COMMUNICATION,
	                     .only = ONLY_RANKS | only,
	                     .when = RUN_LAST,
	                     .what = what,
	                     .args = add_arguments(s, n, slots),
	                     .n_args = (uint16_t)n});
}

static void
add_travel_copy(Streams *s, uint32_t only, uint32_t to, uint32_t from)
{
	add_travel(s, COPY, only, 0, 2, (const uint32_t[]){to, from});
}

static void
add_collective(Streams *s, const BucketSlots *t, CollectiveKind kind, uint32_t only,
               const uint32_t slots[4])
{
	CollectiveRecord c = {.kind = kind,
	                      .group = GROUP_DATA,
	                      .dtype = t->b->dtype,
	                      .reduction = COMM_SUM,
	                      .n = t->b->n,
	                      .block = SUM_BLOCK};

	vec_push(s->w->arena, &s->w->collectives, c);
	add_travel(s, COLLECTIVE, only, (uint32_t)s->w->collectives.n - 1, 4, slots);
}

static uint32_t
sum_kernel(const Streams *s, DType dtype)
{
	const Module *m = s->plan->m;
	int i = 0;

	while (!m->kernels.at[i]->sums || m->kernels.at[i]->buffers.at[0].type->dtype != dtype)
		i++;
	return (uint32_t)i;
}

/* Each rank gets everybody's version of its part and adds them, in the order of ranks; then everybody gets the parts. */
static void
sum_in_order(Streams *s, const BucketSlots *t)
{
	uint32_t rooms = bucket_slot(s, t->b, SPACE_GATHERED, SLOT_ROOMS);
	uint32_t first = bucket_slot(s, t->b, SPACE_GATHERED, SLOT_FIRST_ROOM);
	uint32_t second = bucket_slot(s, t->b, SPACE_GATHERED, SLOT_SECOND_ROOM);
	uint32_t later = bucket_slot(s, t->b, SPACE_GATHERED, SLOT_LATER_ROOM);
	uint32_t copies = bucket_slot(s, t->b, SPACE_PINNED, SLOT_ROOMS);

	s->w->slots.at[copies].offset = dtype_bytes(t->b->dtype,
	                                            t->b->n); /* behind the bucket's own copy */
	add_collective(s, t, COMM_ALL_TO_ALL, ONLY_ORDERED,
	               (const uint32_t[]){rooms, t->own, copies, t->copy});
	add_travel_copy(s, ONLY_ORDERED | ONLY_STAGED, rooms, copies);
	add_travel(s, RUN_KERNEL, ONLY_ORDERED, sum_kernel(s, t->b->dtype), 3,
	           (const uint32_t[]){first, second, t->own_part});
	add_travel(s, LOOP, ONLY_ORDERED, (uint32_t)LOOP_LATER_RANKS, 0, NULL);
	add_travel(s, RUN_KERNEL, ONLY_ORDERED, sum_kernel(s, t->b->dtype), 3,
	           (const uint32_t[]){t->own_part, later, t->own_part});
	s->w->arguments.at[s->w->arguments.n - 2].loop = 1;
	add_travel(s, END, ONLY_ORDERED, 0, 0, NULL);
	add_travel_copy(s, ONLY_ORDERED | ONLY_STAGED, t->copy_part, t->own_part);
	add_collective(s, t, COMM_ALL_GATHER, ONLY_ORDERED,
	               (const uint32_t[]){t->own, t->own_part, t->copy, t->copy_part});
}

static void
add_bucket(Streams *s, const Bucket *b)
{
	const BucketSlots t = {b, bucket_slot(s, b, SPACE_STATE, SLOT_WHOLE),
	                       bucket_slot(s, b, SPACE_STATE, SLOT_PART),
	                       bucket_slot(s, b, SPACE_PINNED, SLOT_WHOLE),
	                       bucket_slot(s, b, SPACE_PINNED, SLOT_PART)};
	bool in_order = rank_sum_has(b->dtype);

	add_travel_copy(s, ONLY_STAGED, t.copy, t.own);
	if (in_order)
		sum_in_order(s, &t);
	add_collective(s, &t, COMM_ALL_REDUCE, in_order ? ONLY_FAST : 0,
	               (const uint32_t[]){t.own, t.own, t.copy, t.copy});
	add_travel_copy(s, ONLY_STAGED, t.own, t.copy);
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
	add_event(s, RECORD, STREAM_COMPUTE, ONLY_ALWAYS, exchange_of(s)->free);
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
	copy_out(&s);
	Instructions all = streams_order(s.arena, w, &s.list, &program->n_events);
	for (int i = 0; i < all.n; i++)
		vec_push(w->arena, &w->instructions, all.at[i]);
	program->n_instructions = (uint32_t)w->instructions.n - program->first_instruction;
	Space space = exchange_of(&s)->space;
	program->bytes[space_table[space].twin] = program->bytes[space];
	arena_free(s.arena);
}
