/* Runs collectives when a stream comes to them. All their transfers run side by side; transfers between two ranks keep the
 * order of the calls. Then the sums are made. */
#include "tests/cuda/programs/fake_library.h"
#include "tests/cuda/programs/fake_nccl.h"

#include "runtime/comm/comm.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const op_names[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter",
                                "ncclBroadcast", "ncclReduce",    "a message"};

/* ---- types */
static const struct {
	size_t bytes;
	DType sums; /* type in which sums are made */
	bool has_sums;
} types[] = {
	[0] = {.bytes = 1},          [NCCL_U8] = {.bytes = 1},
	[NCCL_S32] = {4, S32, true}, [3] = {.bytes = 4},
	[NCCL_S64] = {8, S64, true}, [5] = {.bytes = 8},
	[NCCL_F16] = {2, F16, true}, [NCCL_F32] = {4, F32, true},
	[NCCL_F64] = {8, F64, true}, [NCCL_BF16] = {2, BF16, true},
};

size_t
type_bytes(int type)
{
	return type >= 0 && type < COUNT(types) ? types[type].bytes : 0;
}

bool
type_has_sums(int type)
{
	return type >= 0 && type < COUNT(types) && types[type].has_sums;
}

/* ---- transfers */
typedef struct {
	const Op *op;
	bool receives, over;
	int peer;
	char *at;
	size_t bytes, done;
} Transfer;
typedef struct {
	Handle *comm;
	Transfer *at;
	int n;
} Transfers;

static void
add(Transfers *t, const Op *op, bool receives, int peer, const void *at, size_t bytes)
{
	t->at = realloc(t->at, sizeof(*t->at) * (size_t)(t->n + 1));
	if (!t->at)
		abort();
	t->at[t->n++] = (Transfer){op, receives, false, peer, (char *)(uintptr_t)at, bytes, 0};
}

static void
check_tag(const Transfer *t, Handle *c, const Tag *other)
{
	const Tag *own = &t->op->tag;

	if (memcmp(own, other, sizeof(*own)) == 0)
		return;
	atomic_store(&c->shared->failed, NCCL_INVALID_USAGE);
	complain(NCCL_INVALID_USAGE,
	         "rank %d calls %s %lld of %lld elements, type %d, operation %d, root %d; rank %d "
	         "%s %lld of %lld, %d, %d, %d",
	         c->rank, op_names[own->kind], (long long)own->number, (long long)own->n, own->type,
	         own->operation, own->root, t->peer, op_names[other->kind],
	         (long long)other->number, (long long)other->n, other->type, other->operation,
	         other->root);
}

static bool
move_out(Handle *c, Transfer *t)
{
	Mailbox *m = &c->shared->from_to[c->rank][t->peer];
	uint64_t written = atomic_load(&m->written);

	if (atomic_load(&m->read) != written)
		return false;
	size_t n = t->bytes - t->done < CHUNK ? t->bytes - t->done : CHUNK;
	m->tag = t->op->tag;
	memcpy(m->data, t->at + t->done, n);
	t->done += n;
	t->over = t->done == t->bytes;
	atomic_store(&m->written, written + 1);
	return true;
}

static bool
move_in(Handle *c, Transfer *t)
{
	Mailbox *m = &c->shared->from_to[t->peer][c->rank];
	uint64_t read = atomic_load(&m->read);

	if (atomic_load(&m->written) == read)
		return false;
	check_tag(t, c, &m->tag);
	size_t n = t->bytes - t->done < CHUNK ? t->bytes - t->done : CHUNK;
	memcpy(t->at + t->done, m->data, n);
	t->done += n;
	t->over = t->done == t->bytes;
	atomic_store(&m->read, read + 1);
	return true;
}

static bool
has_ended(const Handle *c)
{
	return atomic_load(&c->aborted) || atomic_load(&c->shared->failed) != NCCL_OK;
}

/* Moves all transfers. Among transfers between two ranks in one direction, only the first unfinished one moves. */
static bool
move_all(Transfers *t, bool *over)
{
	bool busy[2][MOST_RANKS] = {{false}}, moved = false;

	*over = true;
	for (int i = 0; i < t->n; i++) {
		Transfer *x = &t->at[i];

		if (x->over || busy[x->receives][x->peer])
			continue;
		moved |= x->receives ? move_in(t->comm, x) : move_out(t->comm, x);
		busy[x->receives][x->peer] = true;
		*over = false;
	}
	return moved;
}

static void
pause_for(long us)
{
	if (us > 0)
		nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static bool
run_transfers(Transfers *t)
{
	enum { YIELDS = 100, PAUSE_US = 50 };
	bool over = false;

	for (int idle = 0; !over && !has_ended(t->comm);) {
		idle = move_all(t, &over) ? 0 : idle + 1;
		if (idle > YIELDS)
			pause_for(PAUSE_US);
		else if (idle)
			sched_yield();
	}
	return over && !has_ended(t->comm);
}

/* ---- operations: the data that they send, and the use of the data that they receive */
typedef struct {
	const char *from;
	char *to, *terms; /* terms: every rank's part of a sum */
	size_t bytes;     /* bytes of n elements */
} Place;

static void
exchange(Transfers *t, const Op *o, const Place *p, size_t stride, bool to_all)
{
	for (int r = 0; r < o->comm->size; r++) {
		if (r == o->comm->rank)
			continue;
		if (to_all || r == o->peer)
			add(t, o, false, r, p->from + stride * (size_t)r, p->bytes);
		if (to_all || o->comm->rank == o->peer)
			add(t, o, true, r, p->terms + p->bytes * (size_t)r, p->bytes);
	}
	memcpy(p->terms + p->bytes * (size_t)o->comm->rank,
	       p->from + stride * (size_t)o->comm->rank, p->bytes);
}

static void
begin_gather(Transfers *t, const Op *o, const Place *p)
{
	char *own = p->to + p->bytes * (size_t)o->comm->rank;

	for (int r = 0; r < o->comm->size; r++)
		if (r != o->comm->rank) {
			add(t, o, false, r, p->from, p->bytes);
			add(t, o, true, r, p->to + p->bytes * (size_t)r, p->bytes);
		}
	if (own != p->from)
		memmove(own, p->from, p->bytes);
}

static void
begin_broadcast(Transfers *t, const Op *o, const Place *p)
{
	if (o->comm->rank != o->peer) {
		add(t, o, true, o->peer, p->to, p->bytes);
		return;
	}
	for (int r = 0; r < o->comm->size; r++)
		if (r != o->peer)
			add(t, o, false, r, p->from, p->bytes);
	if (p->to != p->from)
		memmove(p->to, p->from, p->bytes);
}

static void
begin(Transfers *t, const Op *o, const Place *p)
{
	switch (o->kind) {
	case OP_ALL_REDUCE: exchange(t, o, p, 0, true); break;
	case OP_REDUCE_SCATTER: exchange(t, o, p, p->bytes, true); break;
	case OP_REDUCE: exchange(t, o, p, 0, false); break;
	case OP_ALL_GATHER: begin_gather(t, o, p); break;
	case OP_BROADCAST: begin_broadcast(t, o, p); break;
	case OP_MESSAGE:
		if (o->peer != o->comm->rank)
			add(t, o, o->receives, o->peer, o->receives ? p->to : p->from, p->bytes);
		break;
	}
}

static void
finish(const Op *o, const Place *p)
{
	bool reduces = o->kind == OP_ALL_REDUCE || o->kind == OP_REDUCE_SCATTER ||
	               (o->kind == OP_REDUCE && o->comm->rank == o->peer);

	if (reduces)
		comm_sum(&(CommSum){.dtype = types[o->type].sums,
		                    .reduction = o->operation == NCCL_MAX ? COMM_MAX : COMM_SUM,
		                    .to = p->to,
		                    .terms = p->terms,
		                    .n = (int64_t)o->n,
		                    .stride = (int64_t)o->n,
		                    .n_terms = o->comm->size});
}

/* A rank receives its messages to itself in the order in which it sent them. */
static void
deliver_own(const OpList *list, const Place *places)
{
	int receiver = 0;

	for (int i = 0; i < list->n; i++) {
		const Op *o = &list->ops[i];

		if (o->kind != OP_MESSAGE || o->receives || o->peer != o->comm->rank)
			continue;
		while (receiver < list->n &&
		       !(list->ops[receiver].receives && list->ops[receiver].peer == o->peer))
			receiver++;
		if (receiver == list->n || places[receiver].bytes != places[i].bytes) {
			atomic_store(&o->comm->shared->failed, NCCL_INVALID_USAGE);
			complain(NCCL_INVALID_USAGE,
			         "rank %d sends itself what it does not receive", o->peer);
			return;
		}
		memmove(places[receiver++].to, places[i].from, places[i].bytes);
	}
}

static Place
place_of(const Op *o)
{
	Place p = {.bytes = o->n * type_bytes(o->type)};
	bool adds = o->kind == OP_ALL_REDUCE || o->kind == OP_REDUCE_SCATTER ||
	            o->kind == OP_REDUCE;

	if (o->from)
		p.from = fake_readable(o->from);
	if (o->to)
		p.to = fake_readable(o->to);
	p.terms = adds ? malloc(p.bytes * (size_t)o->comm->size + 1) : NULL;
	if (adds && !p.terms)
		abort();
	return p;
}

/* As in NCCL, a fault shows in the communicator's state, and the kernel ends when the communicator is aborted. */
static bool
fails(const OpList *list)
{
	Handle *c = list->ops[0].comm;
	int code = 0;

	for (int i = 0; i < list->n; i++)
		code = code ? code : list->ops[i].fails;
	if (!code)
		return false;
	atomic_store(&c->state, complain(code, "planned, of %s", op_names[list->ops[0].kind]));
	while (!atomic_load(&c->aborted))
		pause_for(100);
	return true;
}

static long
longest_pause(void)
{
	const char *text = getenv("FAKE_NCCL_DELAY");

	return text ? atol(text) : 300;
}

void
run_ops(void *argument)
{
	const OpList *list = argument;
	Transfers t = {.comm = list->ops[0].comm};
	Place *places = calloc((size_t)list->n, sizeof(*places));

	if (!places)
		abort();
	pause_for((long)(random_next(&t.comm->random) % (uint64_t)(longest_pause() + 1)));
	if (!fails(list)) {
		for (int i = 0; i < list->n; i++) {
			places[i] = place_of(&list->ops[i]);
			begin(&t, &list->ops[i], &places[i]);
		}
		bool done = run_transfers(&t);
		for (int i = 0; i < list->n && done; i++)
			finish(&list->ops[i], &places[i]);
		if (done)
			deliver_own(list, places);
	}
	for (int i = 0; i < list->n; i++)
		free(places[i].terms);
	free(places);
	free(t.at);
}
