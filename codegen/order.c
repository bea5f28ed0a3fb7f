/* Where a list of instructions on several streams needs RECORD and WAIT: between each pair of different streams that
 * touches the same bytes, one of them writing, unless they are in order already. What a stream knows of another is the
 * last instruction there that it runs behind; a WAIT makes it know what the recording stream knew. */
#include "codegen/streams.h"

typedef struct {
	uint32_t space;
	int64_t begin, end;
	bool writes;
} Access;

/* From an instruction to a later one. */
typedef struct {
	int from, to;
} Edge;

typedef struct {
	int known
		[N_STREAMS]; /* of each stream: the last instruction that this one runs behind; -1: none */
} Clock;

typedef struct {
	Arena *arena;
	const FormatWriter *w;
	const Instructions *list;
	VEC(int) on[N_STREAMS]; /* indices, ascending */
	Clock now[N_STREAMS];
	const int *depth; /* of each instruction: loops around it */
	Clock *at;        /* of each instruction's stream, when it has run */
	Clock *events;    /* of the newest RECORD; by event */
	VEC(Edge) edges;  /* by their ends, ascending */
} Order;

static bool
argument_is_written(const Order *o, const Instruction *n, uint32_t i)
{
	const FormatWriter *w = o->w;

	if (n->kind != RUN_KERNEL)
		return n->kind == COLLECTIVE || i == 0;
	const KernelArgument *a =
		&w->kernel_arguments.at[w->kernels.at[n->what].first_argument + i];
	return (a->access & ACCESS_WRITE) != 0;
}

static Access
access_of(const Order *o, const Instruction *n, uint32_t i)
{
	const Argument *a = &o->w->arguments.at[n->args + i];
	const Slot *s = &o->w->slots.at[a->slot];

	bool writes = argument_is_written(o, n, i);

	if (s->space == SPACE_SHARD) /* a room of its own, wherever that is */
		return (Access){s->space, s->state, s->state + 1, writes};
	/* Where rooms end is not known here. */
	int64_t end = s->share > SLOT_PART ? INT64_MAX : s->offset + s->bytes;

	return (Access){s->space, s->offset, end, writes};
}

static bool
conflict(const Order *o, const Instruction *a, const Instruction *b)
{
	for (uint32_t i = 0; i < a->n_args; i++)
		for (uint32_t k = 0; k < b->n_args; k++) {
			Access x = access_of(o, a, i), y = access_of(o, b, k);
			if (x.space == y.space && x.begin < y.end && y.begin < x.end &&
			    (x.writes || y.writes))
				return true;
		}
	return false;
}

static void
learn(Clock *c, const Clock *from)
{
	for (int s = 0; s < N_STREAMS; s++)
		if (from->known[s] > c->known[s])
			c->known[s] = from->known[s];
}

/* The last one on that stream, behind what is known, that `at` has to wait for; -1: none. */
static int
last_conflict(const Order *o, int at, int stream)
{
	const Instruction *n = &o->list->at[at];

	for (int k = o->on[stream].n - 1; k >= 0; k--) {
		int i = o->on[stream].at[k];
		if (i <= o->now[n->stream].known[stream])
			return -1;
		if (conflict(o, &o->list->at[i], n))
			return i;
	}
	return -1;
}

/* In a loop that may have no iteration an event would not be recorded: the place of its outermost END, or LOOP. */
static int
outside(const Order *o, int at, InstructionKind side)
{
	while (o->depth[at] > 0)
		at += side == END ? 1 : -1;
	return at;
}

static int *
loop_depths(const Order *o)
{
	int *depth = NEW_ARRAY(o->arena, int, o->list->n + 1), d = 0;

	for (int i = 0; i < o->list->n; i++) { /* LOOP and END are outside */
		d -= o->list->at[i].kind == END;
		depth[i] = d;
		d += o->list->at[i].kind == LOOP;
	}
	return depth;
}

static void
order_one(Order *o, int at)
{
	const Instruction *n = &o->list->at[at];
	Clock *now = &o->now[n->stream];

	for (int s = 0; s < N_STREAMS; s++) {
		int from = s == n->stream ? -1 : last_conflict(o, at, s);
		if (from < 0)
			continue;
		vec_push(o->arena, &o->edges,
		         ((Edge){outside(o, from, END), outside(o, at, LOOP)}));
		learn(now, &o->at[from]);
	}
	if (n->kind == WAIT)
		learn(now, &o->events[n->what]);
	now->known[n->stream] = at;
	o->at[at] = *now;
	vec_push(o->arena, &o->on[n->stream], at);
	if (n->kind == RECORD)
		o->events[n->what] = *now;
}

static void
add(Order *o, Instructions *out, InstructionKind kind, const Instruction *on,
    const Instruction *end, uint32_t event)
{
	/* The collective behind a staged copy needs this, too, also in runs without staging. */
	uint32_t only = end->only & (ONLY_RANKS | ONLY_APART);
	/* What another instruction on its stream needs, too, which runs at another time. */
	RunWhen when = end->when == RUN_LAST ? RUN_LAST : RUN_ALWAYS;
	Instruction n = {.kind = kind,
	                 .stream = on->stream,
	                 .when = when,
	                 .only = only,
	                 .phase = on->phase,
	                 .what = event};

	vec_push(o->arena, out, n);
}

/* The end that runs less often: what is on the compute stream runs always. */
static const Instruction *
less_often(const Order *o, const Edge *e)
{
	const Instruction *from = &o->list->at[e->from], *to = &o->list->at[e->to];

	return from->stream == STREAM_COMPUTE ? to : from;
}

/* Of the edges from an instruction the last one; each has the one before it. -1: none. */
typedef struct {
	int *last, *before;
} EdgesFrom;

static EdgesFrom
edges_from(const Order *o)
{
	EdgesFrom b = {NEW_ARRAY(o->arena, int, o->list->n + 1),
	               NEW_ARRAY(o->arena, int, o->edges.n + 1)};

	for (int i = 0; i < o->list->n; i++)
		b.last[i] = -1;
	for (int k = 0; k < o->edges.n; k++) {
		b.before[k] = b.last[o->edges.at[k].from];
		b.last[o->edges.at[k].from] = k;
	}
	return b;
}

static Instructions
insert_edges(Order *o, uint32_t *n_events)
{
	Instructions out = {0};
	uint32_t *event = NEW_ARRAY(o->arena, uint32_t, o->edges.n + 1);
	EdgesFrom from = edges_from(o);
	int next = 0;

	for (int i = 0; i < o->list->n; i++) {
		for (; next < o->edges.n && o->edges.at[next].to == i; next++)
			add(o, &out, WAIT, &o->list->at[i], less_often(o, &o->edges.at[next]),
			    event[next]);
		vec_push(o->arena, &out, o->list->at[i]);
		for (int k = from.last[i]; k >= 0; k = from.before[k]) {
			event[k] = N_SHARED_EVENTS + (*n_events)++;
			add(o, &out, RECORD, &o->list->at[i], less_often(o, &o->edges.at[k]),
			    event[k]);
		}
	}
	return out;
}

Instructions
streams_order(Arena *arena, const FormatWriter *w, const Instructions *list, uint32_t *n_events)
{
	Order o = {.arena = arena, .w = w, .list = list};
	const Clock nothing = {{-1, -1, -1, -1}};

	o.depth = loop_depths(&o);
	o.at = NEW_ARRAY(arena, Clock, list->n + 1);
	o.events = NEW_ARRAY(arena, Clock, N_SHARED_EVENTS + *n_events + 1);
	for (int s = 0; s < N_STREAMS; s++)
		o.now[s] = nothing;
	for (uint32_t e = 0; e < N_SHARED_EVENTS + *n_events; e++)
		o.events[e] = nothing;
	for (int i = 0; i < list->n; i++)
		order_one(&o, i);
	return insert_edges(&o, n_events);
}
