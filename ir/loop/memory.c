/* Buffers and arrays while the interpreter runs a kernel, and a check for races. A race: two
 * members (threads) of a team touch the same element, at least one of the two writes it, and no
 * barrier lies in between.
 *
 * Members run one after the other. A barrier of the whole team begins a new epoch. A team may be
 * divided: an outer member is then a team of inner members. A barrier inside an outer member's
 * iteration begins an inner epoch of this outer member, which orders only its own inner members.
 * An element remembers its last writer and two readers of the current epoch, if possible from
 * different outer members. Two are enough: a later writer differs from at least one of them, so a
 * race is found.
 *
 * A copy arrives at a WAIT statement. Until then no member may touch the copy's destination.
 * After the wait, the copy counts as a write of the member that started it. */
#include "ir/loop/interp.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
	Member member;
	int64_t epoch, inner_epoch; /* epoch 0: no touch */
} Touch;

/* The touches of an element, or of a byte with several elements: the last writer, and two
 * readers of one epoch. If there is a second reader, it is another member than the first. */
typedef struct {
	Touch writer, readers[2];
} Element;

typedef struct {
	void *data;
	bool *written; /* by element: was it written? NULL: a parameter */
	int64_t size;  /* elements of a member's share */
	/* declared in an outer member's iteration: each outer member has its own array */
	bool of_outer;
	Element *elements; /* NULL: no check for races */
	bool *in_flight;   /* by element: is a copy to it running? NULL: no copy writes the array */
} Array;

/* A copy that has started and has not arrived: */
typedef struct {
	const LoopStatement *s;
	Member member;
	int64_t to, from, group; /* number of its group among the groups of its outer member */
	bool inside;
} Copy;
typedef struct {
	VEC(Copy) copies;
	int64_t groups; /* number of groups committed */
} Copies;

struct LoopMemory {
	const Kernel *k;
	Array *arrays; /* by buffer */
	Member member;
	KernelCounts *counts; /* NULL: no counting */
	IntMap *touched;      /* elements of arguments that this part has touched */
	int64_t epoch;
	int64_t *inner_epochs; /* by outer member */
	int64_t last_inner;    /* number of the last inner epoch */
	/* how many members whose number is not known (owners of a tile's elements) have run so far
	 * */
	int64_t someone;
	Arena *arena;
	Copies *copies; /* by outer member */
	int n_copies;
};

/* Members whose number is not known get numbers from SOMEONE on, which are larger than all known
 * numbers. */
enum { SOMEONE = 1 << 20 };

/* The number of members on all levels together. */
static int64_t
team_size(const Kernel *k)
{
	int64_t n = 1;

	for (int i = 0; i < k->n_team; i++)
		n *= k->team[i];
	return n;
}

static int
per_byte(DType d)
{
	return dtype_info[d].bits < 8 ? 8 / dtype_info[d].bits : 1;
}

static void
find_owners(LoopMemory *m)
{
	int depth = 0;

	for (int i = 0; i < m->k->body.n; i++) {
		const LoopStatement *s = &m->k->body.at[i];
		if (s->kind == LOOP_STATEMENT_LOCAL)
			m->arrays[s->buffer].of_outer = depth > 0;
		if (s->kind == LOOP_STATEMENT_COPY && !m->arrays[s->buffer].in_flight)
			m->arrays[s->buffer].in_flight = NEW_ARRAY(
				m->arena, bool, m->k->buffers.at[s->buffer].type->n);
		if (s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_TEAM)
			depth++;
		if (s->kind == LOOP_STATEMENT_END && m->k->body.at[s->match].mode == LOOP_TEAM)
			depth--;
	}
}

LoopMemory *
loop_memory_new(Arena *arena, const Kernel *k, void *const *params, KernelCounts *counts)
{
	LoopMemory *m = NEW(arena, LoopMemory);

	m->k = k;
	m->counts = counts;
	m->member = (Member){-1, -1};
	m->arrays = NEW_ARRAY(arena, Array, k->buffers.n);
	m->inner_epochs = NEW_ARRAY(arena, int64_t, k->n_team ? k->team[0] : 0);
	m->arena = arena;
	m->n_copies = k->n_team ? k->team[0] : 1;
	m->copies = NEW_ARRAY(arena, Copies, m->n_copies);
	find_owners(m);
	for (int i = 0; i < k->buffers.n; i++) {
		const LoopBuffer *b = &k->buffers.at[i];
		int64_t members = b->kind == BUFFER_PRIVATE ? team_size(k) : 1;
		Array *a = &m->arrays[i];
		a->size = b->type->n;
		if (buffer_is_param(b)) {
			a->data = params[i];
		} else {
			a->data = arena_alloc(
				arena, (size_t)(dtype_bytes(b->type->dtype, a->size * members)));
			a->written = NEW_ARRAY(arena, bool, a->size *members);
		}
		bool races = !counts ||
		             /* no check for arguments if work is counted, because such kernels
		              * are large */
		             !buffer_is_param(b);
		if (races && k->n_team && b->kind != BUFFER_PRIVATE && b->kind != BUFFER_TILE)
			a->elements = NEW_ARRAY(arena, Element,
			                        (a->size + 1) * (a->of_outer ? k->team[0] : 1));
	}
	loop_memory_part(m);
	return m;
}

void
loop_memory_member(LoopMemory *m, int level, int64_t member)
{
	*(level ? &m->member.inner : &m->member.outer) = member;
}

void
loop_memory_barrier(LoopMemory *m)
{
	if (m->member.outer < 0)
		m->epoch++;
	else
		m->inner_epochs[m->member.outer] = ++m->last_inner;
}

/* The first element of the member's share of an array; *n: number of elements in the share. Only
 * a private array has shares; of other arrays, the share is the whole array. */
static int64_t
share(const LoopMemory *m, int buffer, int64_t *n)
{
	int64_t inner = m->k->n_team > 1 ? m->k->team[1] : 1;
	int64_t outer = m->k->n_team ? m->k->team[0] : 1;

	*n = m->arrays[buffer].size;
	if (m->k->buffers.at[buffer].kind != BUFFER_PRIVATE)
		return 0;
	if (m->member.outer < 0) {
		*n *= outer * inner;
		return 0;
	}
	if (m->member.inner >= 0 || inner == 1)
		return m->arrays[buffer].size *
		       (m->member.outer * inner + (m->member.inner < 0 ? 0 : m->member.inner));
	*n *= inner;
	return m->arrays[buffer].size * m->member.outer * inner;
}

void
loop_memory_declare(LoopMemory *m, int buffer)
{
	int64_t n, first = share(m, buffer, &n);

	memset(m->arrays[buffer].written + first, 0, (size_t)n * sizeof(bool));
}

static void
print_member(Text *out, Member member)
{
	if (member.outer >= SOMEONE || member.inner >= SOMEONE)
		text_add(out, "some member");
	else if (member.outer < 0)
		text_add(out, "the team");
	else if (member.inner < 0)
		text_printf(out, "member %lld", (long long)member.outer);
	else
		text_printf(out, "member %lldx%lld", (long long)member.outer,
		            (long long)member.inner);
}

static _Noreturn void
fail(const LoopMemory *m, int buffer, int64_t place, const char *what)
{
	fprintf(stderr, "gradc: internal error: kernel %s: place %lld of %s %s\n", m->k->name,
	        (long long)place, m->k->buffers.at[buffer].name, what);
	abort();
}

static bool
is_ordered(const Touch *before, const Touch *now)
{
	if (before->epoch != now->epoch)
		return true;
	if (before->member.outer != now->member.outer)
		return false;
	return before->member.inner == now->member.inner || before->inner_epoch != now->inner_epoch;
}

static void
check_order(const LoopMemory *m, int buffer, int64_t place, const Touch *before, const Touch *now,
            const char *how)
{
	Text text = {0};

	if (is_ordered(before, now))
		return;
	text_add(&text, "races: ");
	print_member(&text, now->member);
	text_add(&text, how);
	print_member(&text, before->member);
	text_add(&text, " did, without a barrier between");
	fail(m, buffer, place, text.at);
}

static bool
is_same(Member a, Member b)
{
	return a.outer == b.outer && a.inner == b.inner;
}

/* Records a reader. Keeps two readers: from different outer members if possible, otherwise from
 * different inner members since the last barrier. */
static void
add_reader(Touch *readers, const Touch *now)
{
	bool stale = readers[0].epoch != now->epoch;
	bool apart = readers[1].epoch == now->epoch &&
	             readers[0].member.outer != readers[1].member.outer;

	if (!stale && (apart || is_same(readers[0].member, now->member))) {
		if (!apart)
			readers[0] = *now;
		return;
	}
	if (stale || (readers[0].member.outer == now->member.outer &&
	              readers[0].inner_epoch != now->inner_epoch)) {
		readers[0] = *now;
		readers[1] = (Touch){0};
		return;
	}
	readers[1] = *now;
}

static void
count_touched(LoopMemory *m, int buffer, int64_t place)
{
	const LoopBuffer *b = &m->k->buffers.at[buffer];
	uint64_t key = (uint64_t)buffer << 48 | (uint64_t)place;

	if (!buffer_is_param(b) || intmap_get(m->touched, key, NULL))
		return;
	intmap_put(m->touched, key, 1);
	m->counts->touched_bits += dtype_info[b->type->dtype].bits;
}

static void
touch(LoopMemory *m, int buffer, int64_t place, bool write)
{
	DType d = m->k->buffers.at[buffer].type->dtype;
	const Array *a = &m->arrays[buffer];
	int64_t first = a->of_outer ? m->member.outer * (a->size + 1) : 0;
	Element *e = &a->elements[first + place / per_byte(d)];
	int64_t outer = m->member.outer;
	Touch now = {m->member, m->epoch,
	             outer < 0 || outer >= SOMEONE ? 0 : m->inner_epochs[outer]};

	check_order(m, buffer, place, &e->writer, &now, write ? " writes what " : " reads what ");
	if (!write) {
		add_reader(e->readers, &now);
		return;
	}
	for (int i = 0; i < 2; i++)
		check_order(m, buffer, place, &e->readers[i], &now, " writes what ");
	e->writer = now;
}

void *
loop_memory_reach(LoopMemory *m, int buffer, int64_t *place, bool write)
{
	Array *a = &m->arrays[buffer];
	int64_t n, first = share(m, buffer, &n);

	if (*place < 0 || *place >= a->size)
		fail(m, buffer, *place, "lies outside");
	if (a->in_flight && a->in_flight[*place])
		fail(m, buffer, *place, "is touched while a copy of it is in flight");
	if (a->elements)
		touch(m, buffer, *place, write);
	if (m->counts)
		count_touched(m, buffer, *place);
	*place += first;
	if (a->written && !write && !a->written[*place])
		fail(m, buffer, *place - first, "is read before it is written");
	if (a->written && write)
		a->written[*place] = true;
	return a->data;
}

/* ---- members whose number is not known */
void
loop_memory_someone(LoopMemory *m, bool begins)
{
	int64_t *level = m->member.outer < 0 || m->member.outer >= SOMEONE ? &m->member.outer
	                                                                   : &m->member.inner;

	if (m->k->n_team == 0)
		return;
	*level = begins ? SOMEONE + m->someone++ : -1;
}

/* ---- copies */
void
loop_memory_copy(LoopMemory *m, const LoopStatement *s, int64_t to, int64_t from, bool inside)
{
	Copies *c = &m->copies[m->member.outer < 0 ? 0 : m->member.outer];
	Copy copy = {s, m->member, to, from, c->groups, inside};

	for (int64_t i = 0; i < s->extent; i++) {
		int64_t at = to + i, source = from + i;
		loop_memory_reach(m, s->buffer, &at, true);
		if (inside)
			loop_memory_reach(m, s->windows->buffer, &source, false);
		m->arrays[s->buffer].in_flight[to + i] = true;
	}
	vec_push(m->arena, &c->copies, copy);
}

/* Lets a copy arrive, as a write of its member. */
static void
arrive(LoopMemory *m, const Copy *copy)
{
	const LoopStatement *s = copy->s;
	size_t bytes = (size_t)dtype_bytes(m->k->buffers.at[s->buffer].type->dtype, 1);
	Member waiting = m->member;

	m->member = copy->member;
	for (int64_t i = 0; i < s->extent; i++) {
		int64_t at = copy->to + i, source = copy->from + i;
		m->arrays[s->buffer].in_flight[at] = false;
		char *to = loop_memory_reach(m, s->buffer, &at, true);
		memset(to + (size_t)at * bytes, 0, bytes);
		if (!copy->inside)
			continue;
		const char *from = loop_memory_reach(m, s->windows->buffer, &source, false);
		memcpy(to + (size_t)at * bytes, from + (size_t)source * bytes, bytes);
	}
	m->member = waiting;
}

/* Does the current COMMIT or WAIT apply to the copies of this outer member? Outside of the team's
 * loops, it applies to the copies of all outer members. */
static bool
is_meant(const LoopMemory *m, int outer)
{
	return m->member.outer < 0 || m->member.outer == outer;
}

void
loop_memory_commit(LoopMemory *m)
{
	for (int i = 0; i < m->n_copies; i++)
		m->copies[i].groups += is_meant(m, i);
}

void
loop_memory_wait(LoopMemory *m, int64_t outstanding)
{
	for (int i = 0; i < m->n_copies; i++) {
		Copies *c = &m->copies[i];
		int n = 0;

		for (int j = 0; j < c->copies.n; j++) {
			const Copy *copy = &c->copies.at[j];
			if (is_meant(m, i) && copy->group < c->groups - outstanding)
				arrive(m, copy);
			else
				c->copies.at[n++] = *copy;
		}
		c->copies.n = n;
	}
}

void
loop_memory_part(LoopMemory *m)
{
	for (int i = 0; i < m->n_copies; i++)
		if (m->copies[i].copies.n)
			fail(m, m->copies[i].copies.at[0].s->buffer, m->copies[i].copies.at[0].to,
			     "is in flight where the part ends");
	m->epoch++;
	if (m->counts)
		m->touched = intmap_new(m->arena);
}
