/* Ranks that a launcher started, over MPI. Messages only: sums are made here, in the order of the
 * ranks, so that W ranks give the bits of W accumulation steps. An all-reduce is two rounds: rank c
 * gets everybody's part c and adds them; then everybody gets the sums.
 *
 * A request moves when it is tested, so that transfers go on between kernels without a thread. A wait longer than
 * `patience` reports the rank that it waits for. */
#include "runtime/comm.h"
#include "runtime/mpi_library.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MPI_THREAD_SERIALIZED_LEVEL = 2, TAGS = 32768, SPINS = 2000 };

struct Comm {
	MpiLibrary mpi;
	int rank, size;
	int sequence; /* of requests: every rank makes the same ones in the same order */
	int64_t traffic;
	double patience; /* seconds */
};

typedef struct {
	MpiHandle handle;
	int peer;
	bool receives, done;
} Transfer;
/* Rounds that a request still has to go through. */
typedef enum { ROUND_PARTS, ROUND_SUMS, ROUND_OVER } Round;
struct CommRequest {
	CommBuffers b;
	Round round, last; /* the one it is in; the last it has */
	int tag, n_transfers;
	Transfer *transfers; /* two for each rank */
	char *parts;         /* everybody's part of this rank, one behind the other */
	double since;        /* seconds at the last progress */
};

static Status
mpi_fault(const Comm *c, int code, const char *what, int peer)
{
	char text[1024] = "";
	int n = 0;

	c->mpi.Error_string(code, text, &n);
	return status_error(EXIT_COMM, "rank %d: %s rank %d: %s", c->rank, what, peer, text);
}

static Status
mpi_open(Comm **out)
{
	Comm *c = memory_zeroed(1, sizeof(*c));
	const char *patience = getenv("GRADC_COMM_TIMEOUT");
	int provided = 0, started = 0;

	*out = NULL;
	c->patience = 20;
	Status status = mpi_library_open(&c->mpi);
	if (!status && patience && (!parse_double(patience, &c->patience) || !(c->patience > 0)))
		status = status_error(EXIT_USAGE, "GRADC_COMM_TIMEOUT=%s: need seconds above 0",
		                      patience);
	if (status) {
		memory_free(c);
		return status;
	}
	c->mpi.Initialized(&started);
	if (!started)
		c->mpi.Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED_LEVEL, &provided);
	c->mpi.Comm_set_errhandler(c->mpi.world, c->mpi.errors_return);
	c->mpi.Comm_rank(c->mpi.world, &c->rank);
	c->mpi.Comm_size(c->mpi.world, &c->size);
	*out = c;
	return NULL;
}

static void
mpi_close(Comm *c)
{
	if (!c)
		return;
	c->mpi.Finalize();
	memory_free(c);
}

/* Launchers drop what was just printed when a rank aborts: it is given time to pass. */
static void
mpi_abort(Comm *c, int exit_code)
{
	nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
	c->mpi.Abort(c->mpi.world, exit_code);
}

static int
mpi_rank(const Comm *c)
{
	return c->rank;
}

static int
mpi_size(const Comm *c)
{
	return c->size;
}

/* ---- parts: rank c has elements [part_first(c), part_first(c + 1)) of n */
static int64_t
part_first(const Comm *c, int64_t n, int rank)
{
	int64_t each = (n + c->size - 1) / c->size, first = each * rank;

	return first < n ? first : n;
}

static int64_t
part_length(const Comm *c, int64_t n, int rank)
{
	return part_first(c, n, rank + 1) - part_first(c, n, rank);
}

/* ---- transfers */
static Status
start_transfer(Comm *c, CommRequest *r, bool receives, int peer, void *at, int64_t bytes)
{
	Transfer *t = &r->transfers[r->n_transfers];

	if (bytes == 0)
		return NULL;
	if (bytes > INT32_MAX)
		return status_error(EXIT_COMM, "a message of %lld bytes is too large",
		                    (long long)bytes);
	*t = (Transfer){.peer = peer, .receives = receives};
	int code = receives ? c->mpi.Irecv(at, (int)bytes, c->mpi.byte, peer, r->tag, c->mpi.world,
	                                   &t->handle)
	                    : c->mpi.Isend(at, (int)bytes, c->mpi.byte, peer, r->tag, c->mpi.world,
	                                   &t->handle);
	if (code)
		return mpi_fault(c, code, receives ? "receiving from" : "sending to", peer);
	c->traffic += receives ? 0 : bytes;
	r->n_transfers++;
	return NULL;
}

/* Everybody's part c goes to rank c. */
static Status
start_parts(Comm *c, CommRequest *r)
{
	int64_t own = dtype_bytes(r->b.dtype, part_length(c, r->b.n, c->rank));

	for (int peer = 0; peer < c->size; peer++) {
		int64_t first = dtype_bytes(r->b.dtype, part_first(c, r->b.n, peer));
		int64_t bytes = dtype_bytes(r->b.dtype, part_length(c, r->b.n, peer));
		char *from = (char *)(uintptr_t)r->b.from + first;

		if (peer == c->rank) {
			memcpy(r->parts + own * peer, from, (size_t)own);
			continue;
		}
		RETURN_IF_ERROR(start_transfer(c, r, true, peer, r->parts + own * peer, own));
		RETURN_IF_ERROR(start_transfer(c, r, false, peer, from, bytes));
	}
	return NULL;
}

/* Rank c's part of `to` goes to everybody. */
static Status
start_sums(Comm *c, CommRequest *r, int64_t n)
{
	char *to = r->b.to;
	int64_t own_first = dtype_bytes(r->b.dtype, part_first(c, n, c->rank));
	int64_t own = dtype_bytes(r->b.dtype, part_length(c, n, c->rank));

	for (int peer = 0; peer < c->size; peer++) {
		int64_t first = dtype_bytes(r->b.dtype, part_first(c, n, peer));
		int64_t bytes = dtype_bytes(r->b.dtype, part_length(c, n, peer));

		if (peer == c->rank)
			continue;
		RETURN_IF_ERROR(start_transfer(c, r, true, peer, to + first, bytes));
		RETURN_IF_ERROR(start_transfer(c, r, false, peer, to + own_first, own));
	}
	return NULL;
}

/* ---- sums: in the order of the ranks, rounded at each */
#define REDUCE(name, T)                                                               \
	static void name(void *to, const void *parts, int64_t n, int ranks, bool max) \
	{                                                                             \
		const T *x = parts;                                                   \
		T *sum = to;                                                          \
                                                                                      \
		memcpy(sum, x, sizeof(T) * (size_t)n);                                \
		for (int r = 1; r < ranks; r++)                                       \
			for (int64_t i = 0; i < n; i++) {                             \
				T y = x[r * n + i];                                   \
				sum[i] = !max ? sum[i] + y : y > sum[i] ? y : sum[i]; \
			}                                                             \
	}
REDUCE(reduce_f64, double)
REDUCE(reduce_f32, float)
REDUCE(reduce_s64, int64_t)
REDUCE(reduce_s32, int32_t)
#undef REDUCE
typedef void (*Reduce)(void *to, const void *parts, int64_t n, int ranks, bool max);
static const Reduce reductions[N_DTYPES] = {
	[F64] = reduce_f64, [F32] = reduce_f32, [S64] = reduce_s64, [S32] = reduce_s32};

/* ---- requests */
static void
free_request(CommRequest *r)
{
	if (!r)
		return;
	memory_free(r->transfers);
	memory_free(r->parts);
	memory_free(r);
}

static Status
new_request(Comm *c, const CommBuffers *b, int64_t part_bytes, CommRequest **out)
{
	CommRequest *r = memory_zeroed(1, sizeof(*r));

	*out = NULL;
	r->b = *b;
	r->tag = c->sequence++ % TAGS;
	r->transfers = memory_zeroed((size_t)c->size * 2, sizeof(Transfer));
	r->parts = part_bytes ? memory_get((size_t)(part_bytes * c->size)) : NULL;
	r->since = seconds_now();
	*out = r;
	return NULL;
}

/* A request that did not start is gone. */
static Status
started(CommRequest **out, Status status)
{
	if (status) {
		free_request(*out);
		*out = NULL;
	}
	return status;
}

static Status
start_reduction(Comm *c, const CommBuffers *b, Round last, CommRequest **out)
{
	*out = NULL;
	if (!reductions[b->dtype])
		return status_error(EXIT_COMM, "no sums of %s over ranks",
		                    dtype_info[b->dtype].name);
	RETURN_IF_ERROR(
		new_request(c, b, dtype_bytes(b->dtype, part_length(c, b->n, c->rank)), out));
	(*out)->round = ROUND_PARTS;
	(*out)->last = last;
	return started(out, start_parts(c, *out));
}

static Status
mpi_all_reduce(Comm *c, const CommBuffers *b, CommRequest **out)
{
	return start_reduction(c, b, ROUND_SUMS, out);
}

/* b->n is the length of this rank's part. */
static Status
mpi_reduce_scatter(Comm *c, const CommBuffers *b, CommRequest **out)
{
	CommBuffers whole = *b;

	whole.n = b->n * c->size;
	return start_reduction(c, &whole, ROUND_PARTS, out);
}

static Status
mpi_all_gather(Comm *c, const CommBuffers *b, CommRequest **out)
{
	int64_t bytes = dtype_bytes(b->dtype, b->n);

	RETURN_IF_ERROR(new_request(c, b, 0, out));
	memmove((char *)b->to + bytes * c->rank, b->from, (size_t)bytes);
	(*out)->round = (*out)->last = ROUND_SUMS;
	return started(out, start_sums(c, *out, b->n * c->size));
}

static Status
mpi_broadcast(Comm *c, const CommBuffers *b, int root, CommRequest **out)
{
	int64_t bytes = dtype_bytes(b->dtype, b->n);
	Status status = NULL;

	*out = NULL;
	if (root < 0 || root >= c->size)
		return status_error(EXIT_COMM, "broadcast from rank %d of %d", root, c->size);
	RETURN_IF_ERROR(new_request(c, b, 0, out));
	(*out)->round = (*out)->last = ROUND_SUMS;
	if (c->rank != root)
		return started(out, start_transfer(c, *out, true, root, b->to, bytes));
	if (b->to != b->from)
		memmove(b->to, b->from, (size_t)bytes);
	for (int peer = 0; peer < c->size && !status; peer++)
		if (peer != root)
			status = start_transfer(c, *out, false, peer, b->to, bytes);
	return started(out, status);
}

static void
add_peers(Text *out, const CommRequest *r, bool receives)
{
	for (int i = 0; i < r->n_transfers; i++)
		if (!r->transfers[i].done && r->transfers[i].receives == receives)
			text_printf(out, "%s%d", out->n ? ", " : "", r->transfers[i].peer);
}

/* Names the ranks whose messages are still to come, else those that do not take ours. */
static Status
lost_patience(const Comm *c, const CommRequest *r)
{
	Text ranks = {0};

	add_peers(&ranks, r, true);
	const char *verb = ranks.n ? "for" : "to send to";
	if (!ranks.n)
		add_peers(&ranks, r, false);
	Status status = status_error(
		EXIT_HANG, "rank %d: waited %.0f s %s rank %s in collective %d: stopped or hanging",
		c->rank, c->patience, verb, ranks.at, r->tag);
	text_free(&ranks);
	return status;
}

/* All transfers of the round: are they done? */
static Status
test_transfers(Comm *c, CommRequest *r, bool *done)
{
	*done = true;
	for (int i = 0; i < r->n_transfers; i++) {
		Transfer *t = &r->transfers[i];
		int flag = 0;

		if (t->done)
			continue;
		int code = c->mpi.Test(&t->handle, &flag, c->mpi.status_ignore);
		if (code)
			return mpi_fault(c, code, t->receives ? "receiving from" : "sending to",
			                 t->peer);
		t->done = flag != 0;
		*done &= t->done;
		if (t->done)
			r->since = seconds_now();
	}
	return NULL;
}

static void
sum_parts(const Comm *c, const CommRequest *r)
{
	int64_t n = part_length(c, r->b.n, c->rank);
	bool whole = r->last == ROUND_SUMS;
	int64_t first = whole ? part_first(c, r->b.n, c->rank) : 0;

	reductions[r->b.dtype]((char *)r->b.to + dtype_bytes(r->b.dtype, first), r->parts, n,
	                       c->size, r->b.reduction == COMM_MAX);
}

static Status
mpi_test(Comm *c, CommRequest *r, bool *done)
{
	*done = r->round == ROUND_OVER;
	while (r->round != ROUND_OVER) {
		bool over;

		RETURN_IF_ERROR(test_transfers(c, r, &over));
		if (!over)
			return seconds_now() - r->since > c->patience ? lost_patience(c, r) : NULL;
		r->n_transfers = 0;
		if (r->round == ROUND_PARTS)
			sum_parts(c, r);
		if (r->round == r->last) {
			r->round = ROUND_OVER;
		} else {
			r->round = ROUND_SUMS;
			RETURN_IF_ERROR(start_sums(c, r, r->b.n));
		}
	}
	*done = true;
	return NULL;
}

/* Spins a little, then lets others run: ranks may share cores. */
static Status
mpi_finish(Comm *c, CommRequest *r)
{
	Status status = NULL;
	bool done = false;

	for (int64_t i = 0; !done && !status; i++) {
		status = mpi_test(c, r, &done);
		if (i > SPINS)
			nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
		else if (!done)
			sched_yield();
	}
	free_request(r);
	return status;
}

static int64_t
mpi_traffic(const Comm *c)
{
	return c->traffic;
}

const CommOps comm_mpi = {
	.name = "mpi",
	.open = mpi_open,
	.close = mpi_close,
	.abort = mpi_abort,
	.rank = mpi_rank,
	.size = mpi_size,
	.all_reduce = mpi_all_reduce,
	.all_gather = mpi_all_gather,
	.reduce_scatter = mpi_reduce_scatter,
	.broadcast = mpi_broadcast,
	.test = mpi_test,
	.finish = mpi_finish,
	.traffic = mpi_traffic,
};
