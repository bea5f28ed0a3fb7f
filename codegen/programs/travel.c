/* Writes the instructions of a travel, which is one exchange of data between ranks, such as a
 * gather of weights.
 *
 * A part in the host's memory (offloaded) is copied to the device before a gather, and back after
 * a reduction. If the communicator cannot read the device's memory, the exchange is staged: the
 * whole and the part are first copied to host memory. All travels use the same host memory for
 * this, because they run one after the other on one stream.
 *
 * A sum in the order of ranks is an all_to_all: each rank receives every rank's version of its
 * own part, each version in a place of its own (a room). A kernel then adds the rooms in the
 * order of ranks. */
#include "codegen/programs/travel.h"
#include "codegen/schedule/schedule.h"

/* A travel and its slots. whole, part: in the device's memory. copy, copy_part: what the
 * collective uses instead if the exchange is staged. */
typedef struct {
	const TravelWriter *w;
	const Travel *t;
	uint32_t whole, part, copy, copy_part;
	/* the part's slot in the host's memory, if it is offloaded; otherwise the part */
	uint32_t home;
	uint32_t only; /* condition for all instructions that are written */
} Writing;

static void
add(const Writing *x, InstructionKind kind, When when, uint32_t only, uint32_t what, int n,
    const uint32_t *slots)
{
	Program *p = x->w->p;
	Instruction in = {.kind = kind,
	                  .stream = STREAM_COMMUNICATION,
	                  .only = ONLY_RANKS | x->only | only,
	                  .when = when,
	                  .what = what,
	                  .args = program_arguments(p, n, slots),
	                  .n_args = (uint16_t)n};

	vec_push(p->arena, x->w->list, in);
}

static bool
is_offloaded(const Writing *x)
{
	return x->home != x->part;
}

static void
add_copy(const Writing *x, uint32_t only, uint32_t to, uint32_t from)
{
	add(x, COPY, x->t->when, ONLY_STAGED | only, 0, 2, (const uint32_t[]){to, from});
}

static void
add_collective(const Writing *x, CollectiveKind kind, When when, uint32_t only,
               const uint32_t slots[4])
{
	Program *p = x->w->p;
	const Slot *whole = &x->t->whole;
	CollectiveRecord c = {.kind = kind,
	                      .group = x->t->part.group,
	                      .dtype = whole->dtype,
	                      .reduction = COMM_SUM,
	                      .n = whole->bytes * 8 / dtype_info[whole->dtype].bits,
	                      .block = x->t->part.block};

	vec_push(p->arena, &p->collectives, c);
	add(x, COLLECTIVE, when, only, (uint32_t)p->collectives.n - 1, 4, slots);
}

/* A place for other ranks' versions of the part. */
static uint32_t
room(const Writing *x, Space space, SlotShare share)
{
	Slot s = x->t->whole;

	s.space = space;
	s.share = share;
	s.block = x->t->part.block;
	s.group = x->t->part.group;
	s.offset = space == SPACE_GATHERED ? x->w->p->gathered
	                                   : x->t->whole.bytes; /* after the copy of the whole */
	s.only = ONLY_RANKS | (share == SLOT_FIRST_ROOM ? 0 : ONLY_ORDERED) |
	         (space == SPACE_PINNED ? ONLY_STAGED : 0);
	return program_slot(x->w->p, s);
}

/* ---- sums in order */
static uint32_t
sum_kernel(const Writing *x)
{
	return (uint32_t)x->w->sum_kernels[x->t->whole.dtype];
}

static void
add_sum(const Writing *x, When when, uint32_t only, uint32_t sum, uint32_t term, bool looped)
{
	add(x, RUN_KERNEL, when, only, sum_kernel(x), 3, (const uint32_t[]){sum, term, x->part});
	if (looped)
		x->w->p->arguments.at[x->w->p->arguments.n - 2].loop = 1;
}

static void
sum_later_ranks(const Writing *x)
{
	uint32_t later = room(x, SPACE_GATHERED, SLOT_LATER_ROOM);

	bool shards = x->t->part.group == GROUP_SHARD;

	add(x, LOOP, x->t->when, ONLY_ORDERED,
	    (uint32_t)(shards ? LOOP_LATER_SHARDS : LOOP_LATER_RANKS), 0, NULL);
	add_sum(x, x->t->when, ONLY_ORDERED, x->part, later, true);
	add(x, END, x->t->when, ONLY_ORDERED, 0, 0, NULL);
}

/* Writes the part as the sum of all ranks' versions, in the order of ranks. With t->adds, later
 * micro-batches add this sum to the part's old content. */
static void
sum_in_order(const Writing *x)
{
	uint32_t rooms = room(x, SPACE_GATHERED, SLOT_ROOMS);
	uint32_t first = room(x, SPACE_GATHERED, SLOT_FIRST_ROOM);
	uint32_t second = room(x, SPACE_GATHERED, SLOT_SECOND_ROOM);
	uint32_t copies = room(x, SPACE_PINNED, SLOT_ROOMS);

	x->w->p->slots.at[first].only |= ONLY_ORDERED;
	add_collective(x, COMM_ALL_TO_ALL, x->t->when, ONLY_ORDERED,
	               (const uint32_t[]){rooms, x->whole, copies, x->copy});
	add_copy(x, ONLY_ORDERED, rooms, copies);
	add_sum(x, x->t->adds ? WHEN_FIRST : x->t->when, ONLY_ORDERED, first, second, false);
	if (x->t->adds) {
		add_sum(x, WHEN_LATER, ONLY_ORDERED, x->part, first, false);
		add_sum(x, WHEN_LATER, ONLY_ORDERED, x->part, second, false);
	}
	sum_later_ranks(x);
}

/* ---- sums by the communicator */
/* Reduces by the communicator's own sum. If the part sums over micro-batches, the result goes to
 * a room, and a kernel adds the room to the part. */
static void
reduce_fast(const Writing *x, bool in_order)
{
	uint32_t only = in_order ? ONLY_FAST : 0;

	add_collective(x, COMM_REDUCE_SCATTER, x->t->adds ? WHEN_FIRST : x->t->when, only,
	               (const uint32_t[]){x->part, x->whole, x->copy_part, x->copy});
	if (x->t->adds && in_order) {
		uint32_t own = room(x, SPACE_GATHERED, SLOT_FIRST_ROOM);
		uint32_t copy = room(x, SPACE_PINNED, SLOT_FIRST_ROOM);
		x->w->p->slots.at[own].only |= ONLY_FAST;
		add_collective(x, COMM_REDUCE_SCATTER, WHEN_LATER, only,
		               (const uint32_t[]){own, x->whole, copy, x->copy});
		add(x, COPY, WHEN_FIRST, only | ONLY_STAGED, 0, 2,
		    (const uint32_t[]){x->part, x->copy_part});
		add(x, COPY, WHEN_LATER, only | ONLY_STAGED, 0, 2, (const uint32_t[]){own, copy});
		add_sum(x, WHEN_LATER, only, x->part, own, false);
	} else {
		add_copy(x, only, x->part, x->copy_part);
	}
}

static void
write_gather(const Writing *x, uint32_t only)
{
	if (is_offloaded(x))
		add(x, COPY, x->t->when, only | ONLY_DIRECT, 0, 2,
		    (const uint32_t[]){x->part, x->home});
	add_copy(x, only, x->copy_part, x->home);
	add_collective(x, COMM_ALL_GATHER, x->t->when, only,
	               (const uint32_t[]){x->whole, x->part, x->copy, x->copy_part});
}

static void
write_sum(const Writing *x)
{
	bool in_order = rank_sum_has(x->t->whole.dtype);

	add_copy(x, 0, x->copy, x->whole);
	if (in_order) {
		sum_in_order(x);
		write_gather(x, ONLY_ORDERED);
	}
	add_collective(x, COMM_ALL_REDUCE, x->t->when, in_order ? ONLY_FAST : 0,
	               (const uint32_t[]){x->whole, x->whole, x->copy, x->copy});
	add_copy(x, 0, x->whole, x->copy);
}

/* In the last micro-batch: sums this rank's part over the ranks of other groups that hold the
 * same part (replicas). */
static void
sum_replicas(const Writing *x)
{
	Program *p = x->w->p;
	CollectiveRecord c = {.kind = COMM_ALL_REDUCE,
	                      .group = GROUP_REPLICATE,
	                      .dtype = x->t->whole.dtype,
	                      .reduction = COMM_SUM,
	                      .n = x->t->whole.bytes * 8 / dtype_info[x->t->whole.dtype].bits,
	                      .block = x->t->part.block,
	                      .of_part = 1};

	vec_push(p->arena, &p->collectives, c);
	add(x, COPY, WHEN_LAST, ONLY_REPLICAS | ONLY_STAGED, 0, 2,
	    (const uint32_t[]){x->copy_part, x->part});
	add(x, COLLECTIVE, WHEN_LAST, ONLY_REPLICAS, (uint32_t)p->collectives.n - 1, 4,
	    (const uint32_t[]){x->part, x->part, x->copy_part, x->copy_part});
	add(x, COPY, WHEN_LAST, ONLY_REPLICAS | ONLY_STAGED, 0, 2,
	    (const uint32_t[]){x->part, x->copy_part});
}

/* With one rank there is nothing to sum: copies the part to the host's memory. In later
 * micro-batches, the content there is added to the part first. */
static void
offload_alone(const Writing *x)
{
	Slot s = x->t->whole;

	s.share = SLOT_PART;
	s.block = x->t->part.block;
	s.group = x->t->part.group;
	s.only = ONLY_RANKS | ONLY_ALONE;
	uint32_t own = program_slot(x->w->p, s);
	s.space = SPACE_GATHERED;
	s.offset = x->w->p->gathered;
	uint32_t before = program_slot(x->w->p, s);
	if (x->t->adds && rank_sum_has(x->t->whole.dtype)) {
		add(x, COPY, WHEN_LATER, 0, 0, 2, (const uint32_t[]){before, x->home});
		add(x, RUN_KERNEL, WHEN_LATER, 0, sum_kernel(x), 3,
		    (const uint32_t[]){before, own, own});
	}
	add(x, COPY, x->t->when, 0, 0, 2, (const uint32_t[]){x->home, own});
}

static void
write_reduce(const Writing *x)
{
	bool in_order = rank_sum_has(x->t->whole.dtype);

	if (is_offloaded(x) && x->t->adds)
		add(x, COPY, WHEN_LATER, 0, 0, 2, (const uint32_t[]){x->part, x->home});
	add_copy(x, 0, x->copy, x->whole);
	if (in_order)
		sum_in_order(x);
	reduce_fast(x, in_order);
	sum_replicas(x);
	if (is_offloaded(x))
		add(x, COPY, x->t->when, 0, 0, 2, (const uint32_t[]){x->home, x->part});
}

/* The part's slot on the device while it travels. A gathered part lies in the whole; a reduced
 * part lies after the rooms of all ranks. */
static Slot
part_on_device(const TravelWriter *w, const Travel *t)
{
	Slot s = t->whole;

	if (t->part.space != SPACE_OFFLOAD)
		return t->part;
	s.share = t->kind == TRAVEL_GATHER ? SLOT_PART : SLOT_BEHIND_ROOMS;
	s.block = t->part.block;
	s.group = t->part.group;
	if (t->kind == TRAVEL_REDUCE) {
		s.offset = w->p->gathered;
		s.only = ONLY_RANKS | ONLY_PEERS;
	}
	return s;
}

void
travel_write(const TravelWriter *w, const Travel *t)
{
	Slot copy = t->whole, copy_part = t->whole;

	copy.space = copy_part.space = SPACE_PINNED;
	copy.offset = copy_part.offset = 0;
	copy.only = copy_part.only = ONLY_RANKS | ONLY_STAGED;
	copy_part.share = SLOT_PART;
	copy_part.block = t->part.block;
	copy_part.group = t->part.group;
	Writing x = {w,
	             t,
	             program_slot(w->p, t->whole),
	             program_slot(w->p, part_on_device(w, t)),
	             program_slot(w->p, copy),
	             program_slot(w->p, copy_part),
	             0,
	             0};
	x.home = t->part.space == SPACE_OFFLOAD ? program_slot(w->p, t->part) : x.part;
	switch (t->kind) {
	case TRAVEL_SUM: write_sum(&x); break;
	case TRAVEL_REDUCE:
		if (is_offloaded(&x)) {
			x.only = ONLY_ALONE;
			offload_alone(&x);
			x.only = ONLY_PEERS;
		}
		write_reduce(&x);
		break;
	case TRAVEL_FILL: /* the sum may be in any order (see TravelKind) */
		add_copy(&x, 0, x.copy, x.whole);
		add_collective(&x, COMM_ALL_REDUCE, t->when, 0,
		               (const uint32_t[]){x.whole, x.whole, x.copy, x.copy});
		add_copy(&x, 0, x.whole, x.copy);
		break;
	case TRAVEL_GATHER:
		write_gather(&x, 0);
		add_copy(&x, 0, x.whole, x.copy);
		break;
	}
}
