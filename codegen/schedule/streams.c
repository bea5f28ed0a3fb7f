/* Puts a program on streams (queues of instructions that run in parallel): one stream copies
 * inputs in, one runs kernels, one sums buckets of gradients over ranks as soon as they are
 * complete in the last micro-batch, and one copies results out. RECORD and WAIT order the
 * streams where needed.
 *
 *	copy_in        WAIT io_free    COPY x, labels   RECORD io_filled
 *	compute        WAIT io_filled  run ... run      RECORD 0 ... run   RECORD io_free   WAIT 1
 *	communication                                   WAIT 0  all_reduce  RECORD 1
 *
 * Each program has events of its own; only the events of type SharedEvent, such as io_free, are
 * common to all programs. At the end of a program, no other stream still touches data that the
 * next program uses. */
#include "codegen/schedule/order.h"
#include "codegen/schedule/travel.h"

#include "ir/loop/loop.h"

typedef struct {
	FormatWriter *w;
	const StreamPlan *plan;
	ProgramRecord *program;
	Arena *arena;
	Instructions computed, list;
	Travels travels;
} Streams;

/* The space and events through which programs of a role exchange data with the host. */
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
add_copy(Streams *s, Stream stream, RunOnly only, When when, uint32_t to, uint32_t from)
{
	add(s, (Instruction){.kind = COPY,
	                     .stream = stream,
	                     .only = only,
	                     .when = when,
	                     .args = add_arguments(s, 2, (const uint32_t[]){to, from}),
	                     .n_args = 2});
}

/* The number of the slot on the host's side that is copied to or from this slot. */
static uint32_t
twin(Streams *s, uint32_t slot)
{
	Slot t = s->w->slots.at[slot];

	t.space = space_table[t.space].twin;
	return format_slot(s->w, t);
}

static void
copy_in(Streams *s)
{
	const Exchange *x = exchange_of(s);

	/* @update needs no WAIT: its inputs are free, because the host has waited for the report
	 * of the previous update */
	if (s->plan->role != ROLE_UPDATE)
		add_event(s, WAIT, STREAM_COPY_IN, ONLY_APART, x->free);
	for (int i = 0; i < s->plan->inputs.n; i++) {
		uint32_t slot = s->plan->inputs.at[i];
		add_copy(s, STREAM_COPY_IN, ONLY_APART, WHEN_ALWAYS, slot, twin(s, slot));
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
		add_copy(s, STREAM_COPY_OUT, ONLY_APART, WHEN_ALWAYS, twin(s, slot), slot);
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

/* The last instruction that touches the bucket, or the end of the loop or branch around it; -1: no
 * instruction touches it. */
static int
last_touch(const Streams *s, const OuterBlocks *blocks, const Bucket *b)
{
	int last = -1;

	for (int i = 0; i < s->computed.n; i++)
		if (touches(s, &s->computed.at[i], b))
			last = blocks->last[i];
	return last;
}

/* If a kernel makes a value that all ranks must add up, adds a travel (an exchange between
 * ranks) after the kernel. Later kernels read the sum. */
static void
add_sums(Streams *s)
{
	for (int i = 0; i < s->computed.n; i++) {
		const Instruction *n = &s->computed.at[i];
		if (n->kind != RUN_KERNEL || !s->plan->m->kernels.at[n->what]->all_reduces)
			continue;
		Slot whole = s->w->slots.at[s->w->arguments.at[n->args + n->n_args - 1u].slot];
		Slot part = whole;
		part.share = SLOT_PART;
		part.group = GROUP_DATA;
		part.block = SUM_BLOCK;
		Travel t = {.kind = TRAVEL_FILL,
		            .behind = i,
		            .when = (When)n->when,
		            .whole = whole,
		            .part = part};
		if (whole.bytes > 0)
			vec_push(s->arena, &s->travels, t);
	}
}

/* Buckets are summed in place in the last micro-batch. A bucket that no instruction touches
 * holds zeros on all ranks, or values that another program sums. */
static void
add_buckets(Streams *s)
{
	const Buckets *all = s->plan->buckets;
	OuterBlocks blocks = outermost_blocks(s->arena, s->computed.n, s->computed.at);

	for (int k = 0; all && k < all->n; k++) {
		const Bucket *b = &all->at[k];
		Slot whole = {.space = SPACE_STATE,
		              .dtype = b->dtype,
		              .offset = b->offset,
		              .bytes = dtype_bytes(b->dtype, b->n),
		              .name = format_string(s->w, b->name)};
		Slot part = whole;
		part.share = SLOT_PART;
		part.group = GROUP_DATA;
		part.block = SUM_BLOCK;
		int last = last_touch(s, &blocks, b);
		Travel t = {.kind = TRAVEL_SUM,
		            .behind = last < 0 ? s->computed.n - 1 : last,
		            .when = WHEN_LAST,
		            .whole = whole,
		            .part = part};
		vec_push(s->arena, &s->travels, t);
	}
}

static void
add_travels(Streams *s, int behind)
{
	const TravelWriter w = {s->w, s->plan->m, s->arena, s->plan->rooms_at, &s->list};

	for (int k = 0; k < s->travels.n; k++)
		if (s->travels.at[k].behind == behind)
			travel_write(&w, &s->travels.at[k]);
}

/* Makes stream `to` wait until stream `from` has come to this point. */
static void
meet(Streams *s, Stream from, Stream to, When when)
{
	uint32_t event = N_SHARED_EVENTS + s->program->n_events++;

	for (int wait = 0; wait < 2; wait++)
		add(s, (Instruction){.kind = wait ? WAIT : RECORD,
		                     .stream = wait ? to : from,
		                     .only = ONLY_RANKS,
		                     .when = when,
		                     .what = event});
}

/* WHEN_LAST if all travels run in the last micro-batch only. */
static When
when_travels(const Streams *s)
{
	for (int k = 0; k < s->travels.n; k++)
		if (s->travels.at[k].when != WHEN_LAST)
			return WHEN_ALWAYS;
	return WHEN_LAST;
}

static bool
begins_with_travel(const Streams *s)
{
	for (int k = 0; k < s->travels.n; k++)
		if (s->travels.at[k].behind < 0)
			return true;
	return false;
}

static bool
copies_on(const Streams *s, Stream stream)
{
	for (int i = 0; i < s->computed.n; i++)
		if (s->computed.at[i].stream == stream)
			return true;
	return false;
}

/* Writes the compute stream with all travels. First, other streams wait for the compute stream: a
 * gather may overwrite data that the previous program still reads, and the copies to the host
 * need that program's results. */
static void
compute(Streams *s)
{
	static const Stream copying[] = {STREAM_COPY_IN, STREAM_COPY_OUT};

	add_buckets(s);
	add_sums(s);
	for (int i = 0; i < COUNT(copying); i++)
		if (copies_on(s, copying[i]))
			meet(s, STREAM_COMPUTE, copying[i], WHEN_ALWAYS);
	if (begins_with_travel(s))
		meet(s, STREAM_COMPUTE, STREAM_COMMUNICATION, WHEN_ALWAYS);
	add_travels(s, -1);
	for (int i = 0; i < s->computed.n; i++) {
		add(s, s->computed.at[i]);
		add_travels(s, i);
	}
	for (int i = 0; i < COUNT(copying); i++)
		if (copies_on(s, copying[i]))
			meet(s, copying[i], STREAM_COMPUTE, WHEN_ALWAYS);
	add_event(s, RECORD, STREAM_COMPUTE, ONLY_ALWAYS, exchange_of(s)->free);
	if (s->travels.n > 0) /* the next program reads the sums */
		meet(s, STREAM_COMMUNICATION, STREAM_COMPUTE, when_travels(s));
}

void
streams_write(FormatWriter *w, const StreamPlan *plan, ProgramRecord *program)
{
	Streams s = {.w = w, .plan = plan, .program = program, .arena = arena_new()};

	for (int i = (int)program->first_instruction; i < w->instructions.n; i++)
		vec_push(s.arena, &s.computed, w->instructions.at[i]);
	w->instructions.n = (int)program->first_instruction;
	for (int i = 0; plan->travels && i < plan->travels->n; i++)
		vec_push(s.arena, &s.travels, plan->travels->at[i]);
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
