/* The pass `streams`: puts programs on streams (queues of instructions that run in parallel). One
 * stream copies inputs in, one runs kernels, one runs the travels (exchanges of data between
 * ranks), which become collectives here, and one copies results out. The pass `events` then orders
 * the streams; events that all programs share, such as io_free, and the waits at the beginning and
 * end of a program are written here:
 *
 *	copy_in        WAIT io_free    COPY x, labels   RECORD io_filled
 *	compute        WAIT io_filled  run ... run                        run   RECORD io_free   WAIT 0
 *	communication                                   all_reduce              RECORD 0
 *
 * At the end of a program, no other stream still touches data that the next program uses. */
#include "codegen/codegen.h"
#include "codegen/schedule/schedule.h"
#include "codegen/programs/travel.h"

typedef struct {
	/* by dtype: number of the kernel that sums in the order of ranks; -1: the module has none */
	const int *sum_kernels;
	Program *p;
	Instructions list; /* the program's new instructions */
	int next;          /* number of the next travel */
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
	return s->p->role == ROLE_UPDATE ? &step : &micro_batch;
}

static void
add(Streams *s, Instruction n)
{
	vec_push(s->p->arena, &s->list, n);
}

static void
add_event(Streams *s, InstructionKind kind, Stream stream, RunOnly only, uint32_t event)
{
	add(s, (Instruction){.kind = kind, .stream = stream, .only = only, .what = event});
}

static void
add_copy(Streams *s, Stream stream, RunOnly only, When when, uint32_t to, uint32_t from)
{
	add(s, (Instruction){.kind = COPY,
	                     .stream = stream,
	                     .only = only,
	                     .when = when,
	                     .args = program_arguments(s->p, 2, (const uint32_t[]){to, from}),
	                     .n_args = 2});
}

/* The number of the slot on the host's side that is copied to or from this slot. */
static uint32_t
twin(Streams *s, uint32_t slot)
{
	Slot t = s->p->slots.at[slot];

	t.space = space_table[t.space].twin;
	return program_slot(s->p, t);
}

static void
copy_to_device(Streams *s, uint32_t slot)
{
	add_copy(s, STREAM_COPY_IN, ONLY_APART, WHEN_ALWAYS, slot, twin(s, slot));
}

static void
copy_in(Streams *s)
{
	const Exchange *x = exchange_of(s);

	/* @update needs no WAIT: its inputs are free, because the host has waited for the report
	 * of the previous update */
	if (s->p->role != ROLE_UPDATE)
		add_event(s, WAIT, STREAM_COPY_IN, ONLY_APART, x->free);
	if (s->p->scalars)
		copy_to_device(s, s->p->scalars - 1);
	for (int i = 0; i < s->p->inputs.n; i++)
		copy_to_device(s, s->p->inputs.at[i].slot);
	add_event(s, RECORD, STREAM_COPY_IN, ONLY_APART, x->filled);
	add_event(s, WAIT, STREAM_COMPUTE, ONLY_APART, x->filled);
}

static void
copy_out(Streams *s)
{
	const Exchange *x = exchange_of(s);

	if (s->p->role != ROLE_UPDATE)
		return;
	add_event(s, WAIT, STREAM_COPY_OUT, ONLY_ALWAYS, x->free);
	for (int i = 0; i < s->p->outputs.n; i++) {
		uint32_t slot = s->p->outputs.at[i].slot;
		add_copy(s, STREAM_COPY_OUT, ONLY_APART, WHEN_ALWAYS, twin(s, slot), slot);
	}
	add_event(s, RECORD, STREAM_COPY_OUT, ONLY_ALWAYS, EVENT_REPORT);
}

/* ---- the compute stream, with the travels */
/* Writes the travels from number s->next on that start behind the instruction. */
static void
add_travels(Streams *s, int behind)
{
	const TravelWriter w = {s->p, s->sum_kernels, &s->list};
	const Travels *all = &s->p->travels;

	for (; s->next < all->n && all->at[s->next].behind <= behind; s->next++)
		travel_write(&w, &all->at[s->next]);
}

/* Makes stream `to` wait until stream `from` has come to this point. */
static void
meet(Streams *s, Stream from, Stream to, When when)
{
	uint32_t event = N_SHARED_EVENTS + s->p->n_events++;

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
	for (int k = 0; k < s->p->travels.n; k++)
		if (s->p->travels.at[k].when != WHEN_LAST)
			return WHEN_ALWAYS;
	return WHEN_LAST;
}

static bool
begins_with_travel(const Streams *s)
{
	return s->p->travels.n > 0 && s->p->travels.at[0].behind < 0;
}

static bool
copies_on(const Streams *s, Stream stream)
{
	for (int i = 0; i < s->p->instructions.n; i++)
		if (s->p->instructions.at[i].stream == stream)
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

	for (int i = 0; i < COUNT(copying); i++)
		if (copies_on(s, copying[i]))
			meet(s, STREAM_COMPUTE, copying[i], WHEN_ALWAYS);
	if (begins_with_travel(s))
		meet(s, STREAM_COMPUTE, STREAM_COMMUNICATION, WHEN_ALWAYS);
	add_travels(s, -1);
	for (int i = 0; i < s->p->instructions.n; i++) {
		add(s, s->p->instructions.at[i]);
		add_travels(s, i);
	}
	for (int i = 0; i < COUNT(copying); i++)
		if (copies_on(s, copying[i]))
			meet(s, copying[i], STREAM_COMPUTE, WHEN_ALWAYS);
	add_event(s, RECORD, STREAM_COMPUTE, ONLY_ALWAYS, exchange_of(s)->free);
	if (s->p->travels.n > 0) /* the next program reads the sums */
		meet(s, STREAM_COMMUNICATION, STREAM_COMPUTE, when_travels(s));
}

static void
put_on_streams(const int *sum_kernels, Program *p)
{
	Streams s = {.sum_kernels = sum_kernels, .p = p};
	Space space = exchange_of(&s)->space;

	copy_in(&s);
	compute(&s);
	copy_out(&s);
	p->instructions = s.list;
	p->travels.n = 0;
	p->bytes[space_table[space].twin] = p->bytes[space];
}

/* Has the module a kernel for each sum in the order of ranks? */
static bool
check_sums(Pass *pass, const int *sum_kernels, const Program *p)
{
	for (int i = 0; i < p->travels.n; i++) {
		const Travel *t = &p->travels.at[i];
		DType dtype = (DType)t->whole.dtype;
		bool sums = t->kind == TRAVEL_SUM || t->kind == TRAVEL_REDUCE;
		if (!sums || !rank_sum_has(dtype) || sum_kernels[dtype] >= 0)
			continue;
		diag_error(pass->diag, EXIT_INVALID,
		           "pass streams: no kernel of the module sums %s over ranks",
		           dtype_info[dtype].name);
		return false;
	}
	return true;
}

static bool
run_streams(Pass *pass, Module *m)
{
	int sum_kernels[N_DTYPES];

	for (DType d = 0; d < N_DTYPES; d++)
		sum_kernels[d] = rank_sum_kernel(m, d);
	for_each_program(m, p) {
		if (!check_sums(pass, sum_kernels, p))
			return false;
		put_on_streams(sum_kernels, p);
	}
	pass->changed = true;
	return true;
}

const PassRow pass_streams = {.name = "streams",
                              .help = "put copies, kernels and travels on streams",
                              .needed = true,
                              .takes = STAGE_SUMS,
                              .leaves = STAGE_STREAMS,
                              .run = run_streams};
