/* The pass `events`: adds the instructions RECORD and WAIT to programs on several streams: stream B
 * waits for an event that stream A has recorded. Two instructions on different streams need an
 * order if they touch the same bytes and one of them writes, unless other events already order
 * them:
 *
 *	run @k (%0, %1)                           run @k (%0, %1)
 *	copy (%2, %1) on copy_out                 record 0
 *	                                          wait 0 on copy_out
 *	                                          copy (%2, %1) on copy_out
 *
 * Each stream A has a clock. For every other stream B, the clock holds the last instruction of B
 * that is known to end before A continues. After a WAIT, the waiting stream knows all that the
 * recording stream knew at its RECORD. Some WAITs, such as the one before a sum of gradients, run
 * only in the last micro-batch, so each stream has one clock for the last micro-batch and one for
 * all. */
#include "codegen/codegen.h"
#include "codegen/programs/blocks.h"
#include "format/format.h"

typedef struct {
	uint32_t space;
	int64_t begin, end;
	bool writes;
} Access;

/* A required order: instruction `to` must wait for the earlier instruction `from`. */
typedef struct {
	int from, to;
	When when; /* WHEN_LAST or WHEN_ALWAYS */
} Edge;

typedef struct {
	/* by other stream: the last instruction there that this stream knows to have ended; -1:
	 * none */
	int known[N_STREAMS];
} Clock;

/* In which micro-batches an order holds: in each, or at least in the last. */
typedef enum { IN_EACH, IN_LAST, N_WHERE } Where;

typedef struct {
	Clock in[N_WHERE];
} Clocks;

typedef struct {
	Arena *arena;
	const AccessTable *accesses;
	const Program *p;
	const Instructions *list;
	VEC(int) on[N_STREAMS]; /* indices of the instructions on a stream, ascending */
	Clocks now[N_STREAMS];
	OuterBlocks blocks; /* loops and branches; an event inside one might never be recorded */
	Clocks *at;         /* by instruction: its stream's clocks after it has run */
	Clocks *events;     /* by event: the clocks of the newest RECORD */
	VEC(Edge) edges;    /* sorted by `to` */
} Order;

static Access
access_of(const Order *o, const Instruction *n, uint32_t i)
{
	const Argument *a = &o->p->arguments.at[n->args + i];
	const Slot *s = &o->p->slots.at[a->slot];
	bool writes = (instruction_access(o->accesses, n, i) & ACCESS_WRITE) != 0;

	/* In spaces of divided states, each state has its own memory at an offset that is not
	 * known here, so the state's number stands for its bytes. */
	if (space_has_parts(s->space))
		return (Access){s->space, s->state, s->state + 1, writes};
	/* The end is unknown for rooms (places for other ranks' versions of a part), and for an
	 * argument that advances with a loop. */
	int64_t end = s->share > SLOT_PART || a->stride ? INT64_MAX : s->offset + s->bytes;
	int64_t from = a->stride < 0 ? 0 : s->offset;

	return (Access){s->space, from, end, writes};
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

/* Adds to c what `from` knows. An instruction that runs only in the last micro-batch says
 * nothing about the other micro-batches. */
static void
learn(Clocks *c, const Clocks *from, When when)
{
	for (int where = when == WHEN_LAST ? IN_LAST : IN_EACH; where < N_WHERE; where++)
		for (int s = 0; s < N_STREAMS; s++)
			if (from->in[where].known[s] > c->in[where].known[s])
				c->in[where].known[s] = from->in[where].known[s];
}

/* Of an order's two instructions, the one that runs in fewer micro-batches. On the compute
 * stream every instruction runs in all micro-batches. */
static const Instruction *
less_often(const Order *o, int from, int to)
{
	const Instruction *first = &o->list->at[from];

	return first->stream == STREAM_COMPUTE ? &o->list->at[to] : first;
}

/* WHEN_LAST if the end that runs less often runs only in the last micro-batch; otherwise
 * WHEN_ALWAYS. With WHEN_ALWAYS, later instructions of the waiting stream can rely on the same
 * event in every micro-batch. */
static When
edge_when(const Order *o, int from, int to)
{
	return less_often(o, from, to)->when == WHEN_LAST ? WHEN_LAST : WHEN_ALWAYS;
}

/* The last instruction on a stream, after those already known, that `at` must wait for; -1: none. */
static int
last_conflict(const Order *o, int at, int stream, Where where)
{
	const Instruction *n = &o->list->at[at];

	for (int k = o->on[stream].n - 1; k >= 0; k--) {
		int i = o->on[stream].at[k];
		if (i <= o->now[n->stream].in[where].known[stream])
			return -1;
		if (where == IN_EACH && edge_when(o, i, at) == WHEN_LAST)
			continue;
		if (conflict(o, &o->list->at[i], n))
			return i;
	}
	return -1;
}

static void
order_behind(Order *o, int at, int stream, Where where)
{
	Clocks *now = &o->now[o->list->at[at].stream];
	int from = last_conflict(o, at, stream, where);

	if (from < 0)
		return;
	When when = edge_when(o, from, at);
	vec_push(o->arena, &o->edges, ((Edge){o->blocks.last[from], o->blocks.first[at], when}));
	learn(now, &o->at[from], when);
}

static void
order_one(Order *o, int at)
{
	const Instruction *n = &o->list->at[at];
	Clocks *now = &o->now[n->stream];

	for (int s = 0; s < N_STREAMS; s++)
		for (int where = 0; where < N_WHERE && s != (int)n->stream; where++)
			order_behind(o, at, s, (Where)where);
	if (n->kind == WAIT)
		learn(now, &o->events[n->what], n->when);
	for (int where = 0; where < N_WHERE; where++)
		now->in[where].known[n->stream] = at;
	o->at[at] = *now;
	vec_push(o->arena, &o->on[n->stream], at);
	if (n->kind == RECORD)
		for (int where = n->when == WHEN_LAST ? IN_LAST : IN_EACH; where < N_WHERE; where++)
			o->events[n->what].in[where] = now->in[where];
}

static void
add(Order *o, Instructions *out, InstructionKind kind, int on, const Edge *e, uint32_t event)
{
	const Instruction *here = &o->list->at[on];
	/* Keeps only these two conditions. The condition on staging (copies through the host's
	 * memory) is dropped: the collective after such a copy needs the event in runs without
	 * staging, too. */
	uint32_t only = less_often(o, e->from, e->to)->only & (ONLY_RANKS | ONLY_APART);
	Instruction n = {.kind = kind,
	                 .stream = here->stream,
	                 .when = e->when,
	                 .only = only,
	                 .phase = here->phase,
	                 .what = event};

	vec_push(o->p->arena, out, n);
}

/* The last edge from each instruction, and for each edge the previous one from the same instruction; -1:
 * none. */
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
insert_edges(Order *o, Program *p)
{
	Instructions out = {0};
	uint32_t *event = NEW_ARRAY(o->arena, uint32_t, o->edges.n + 1);
	EdgesFrom from = edges_from(o);
	int next = 0;

	for (int i = 0; i < o->list->n; i++) {
		for (; next < o->edges.n && o->edges.at[next].to == i; next++)
			add(o, &out, WAIT, i, &o->edges.at[next], event[next]);
		vec_push(p->arena, &out, o->list->at[i]);
		for (int k = from.last[i]; k >= 0; k = from.before[k]) {
			event[k] = N_SHARED_EVENTS + p->n_events++;
			add(o, &out, RECORD, i, &o->edges.at[k], event[k]);
		}
	}
	return out;
}

static void
order_program(const AccessTable *accesses, Program *p, Arena *arena)
{
	Order o = {.arena = arena, .accesses = accesses, .p = p, .list = &p->instructions};
	const Clocks nothing = {{{{-1, -1, -1, -1}}, {{-1, -1, -1, -1}}}};

	o.blocks = outermost_blocks(arena, o.list->n, o.list->at);
	o.at = NEW_ARRAY(arena, Clocks, o.list->n + 1);
	o.events = NEW_ARRAY(arena, Clocks, N_SHARED_EVENTS + p->n_events + 1);
	for (int s = 0; s < N_STREAMS; s++)
		o.now[s] = nothing;
	for (uint32_t e = 0; e < N_SHARED_EVENTS + p->n_events; e++)
		o.events[e] = nothing;
	for (int i = 0; i < o.list->n; i++)
		order_one(&o, i);
	p->instructions = insert_edges(&o, p);
}

static bool
check_events(Pass *pass, const Program *p)
{
	if (p->n_events <= MAX_EVENTS)
		return true;
	diag_error(pass->diag, EXIT_UNSUPPORTED,
	           "%s: its streams wait for each other %u times, at most %d have room in the "
	           "executable's tables",
	           role_names[p->role], p->n_events, MAX_EVENTS);
	return false;
}

static bool
run_events(Pass *pass, Module *m)
{
	AccessTable accesses = access_table_new(pass->scratch, m);
	bool ok = true;

	for_each_program(m, p) {
		Arena *arena = arena_new();
		order_program(&accesses, p, arena);
		arena_free(arena);
		ok &= check_events(pass, p);
	}
	pass->changed = true;
	return ok;
}

const PassRow pass_events = {.name = "events",
                             .help = "order the streams by events",
                             .needed = true,
                             .takes = STAGE_STREAMS,
                             .leaves = STAGE_EVENTS,
                             .run = run_events};
