/* Collectives over MPI as rounds of transfers. A transfer is a message to or from another rank, or a call of the library's own
 * collective. A round begins when all transfers of the previous round are over. Each rank owns a part of the result: rank c
 * owns part c.
 *
 * all_reduce, ordered      ROUND_PARTS: rank c receives part c of every rank and adds them in the order of the ranks;
 *                          ROUND_GATHER: every rank receives the sums. W ranks give the bits of W accumulation steps
 * reduce_scatter, ordered  ROUND_PARTS
 * all_to_all               ROUND_PARTS
 * all_gather               ROUND_GATHER
 * other reductions         ROUND_LIBRARY: the library's collective, which adds in any order
 * broadcast                ROUND_LIBRARY
 * send, recv               ROUND_MESSAGE
 *
 * A transfer has at most most_bytes. */
#include "runtime/comm/mpi/mpi.h"

#include <string.h>

/* ---- sizes */
int64_t
request_bytes(const CommRequest *r, int64_t n)
{
	return dtype_bytes(r->c.dtype, n);
}

CommPart
request_part(const CommRequest *r, int rank)
{
	return comm_part(r->c.n, r->channel->size, rank, r->c.block);
}

static bool
reduces(const CommRequest *r)
{
	return r->c.kind == COMM_ALL_REDUCE || r->c.kind == COMM_REDUCE_SCATTER;
}

static bool
is_narrow(const CommRequest *r)
{
	return r->c.dtype == F16 || r->c.dtype == BF16;
}

/* The type of the elements in a call of the library, which adds f16 and bf16 in f32. */
static DType
library_dtype(const CommRequest *r)
{
	return reduces(r) && is_narrow(r) ? F32 : r->c.dtype;
}

static MpiHandle
library_type(const CommData *d, const CommRequest *r)
{
	const MpiHandle types[N_DTYPES] = {[F64] = d->control->mpi.f64,
	                                   [F32] = d->control->mpi.f32,
	                                   [S64] = d->control->mpi.s64,
	                                   [S32] = d->control->mpi.s32};

	return types[library_dtype(r)];
}

/* Can one call of the library's reduce_scatter take all parts? The library allows no further call. */
static bool
fits_one_call(const CommData *d, const CommRequest *r)
{
	return dtype_bytes(library_dtype(r), r->c.n) <= d->most_bytes;
}

static Round
first_round(const CommData *d, const CommRequest *r)
{
	switch (r->c.kind) {
	case COMM_ALL_REDUCE: return r->c.ordered ? ROUND_PARTS : ROUND_LIBRARY;
	case COMM_REDUCE_SCATTER: /* ROUND_PARTS sends as many bytes as the library, and has no limit */
		return r->c.ordered || !fits_one_call(d, r) ? ROUND_PARTS : ROUND_LIBRARY;
	case COMM_ALL_TO_ALL: return ROUND_PARTS;
	case COMM_ALL_GATHER: return ROUND_GATHER;
	case COMM_BROADCAST: return ROUND_LIBRARY;
	default: return ROUND_MESSAGE;
	}
}

/* ---- before the first round */
/* Upper limit for the number of transfers in a round of this request. */
static int64_t
most_transfers(const CommData *d, const CommRequest *r)
{
	bool whole = r->round == ROUND_LIBRARY || r->round == ROUND_MESSAGE;
	int64_t n = whole ? r->c.n : r->room, peers = whole ? 1 : 2 * r->channel->size;
	int64_t size = dtype_bytes(library_dtype(r), 1);
	int64_t most = d->most_bytes / size; /* elements in a call of the library */

	return (n / most + 1) * peers;
}

/* Does a reduction by the library need a copy of its operand? Yes if the library cannot add values of this type, or if this
 * rank's part lies inside the whole. */
static bool
needs_scratch(const CommRequest *r)
{
	CommPart own = request_part(r, r->channel->rank);
	const char *place = (const char *)r->c.from + request_bytes(r, own.first);

	return is_narrow(r) || (r->c.kind == COMM_REDUCE_SCATTER && place == r->c.to);
}

/* Prepares the operand of the library's collective. */
static void
prepare_library(CommRequest *r)
{
	int size = r->channel->size;

	if (needs_scratch(r)) {
		r->scratch = memory_get((size_t)dtype_bytes(library_dtype(r), r->c.n));
		dtype_convert(library_dtype(r), r->scratch, r->c.dtype, r->c.from, r->c.n);
	}
	if (r->c.kind != COMM_REDUCE_SCATTER)
		return;
	r->counts = memory_get(sizeof(int) * (size_t)size);
	for (int rank = 0; rank < size; rank++)
		r->counts[rank] = (int)request_part(r, rank).n;
}

void
round_prepare(const CommData *d, CommRequest *r)
{
	int size = r->channel->size;

	r->room = comm_part_room(r->c.n, size, r->c.block);
	r->round = first_round(d, r);
	r->transfers = memory_zeroed((size_t)most_transfers(d, r), sizeof(Transfer));
	if (r->round == ROUND_PARTS && reduces(r))
		r->scratch = memory_get((size_t)(request_bytes(r, r->room) * size));
	else if (r->round == ROUND_LIBRARY && reduces(r))
		prepare_library(r);
}

/* ---- transfers; called with the lock held */
static Status
start_message(CommData *d, CommRequest *r, Transfer t, char *at, int64_t bytes)
{
	const MpiLibrary *mpi = &d->control->mpi;

	for (int64_t done = 0, n; done < bytes; done += n) {
		Transfer *next = &r->transfers[r->n_transfers];

		n = bytes - done < d->most_bytes ? bytes - done : d->most_bytes;
		*next = t;
		int code = t.receives ? mpi->Irecv(at + done, (int)n, mpi->byte, t.peer, r->tag,
		                                   r->channel->comm, &next->handle)
		                      : mpi->Isend(at + done, (int)n, mpi->byte, t.peer, r->tag,
		                                   r->channel->comm, &next->handle);
		if (code)
			return mpi_fault(d->control, code,
			                 t.receives ? "receiving from" : "sending to",
			                 r->channel->members[t.peer]);
		r->n_transfers++;
		r->channel->traffic += t.receives ? 0 : n;
	}
	return NULL;
}

/* Sends part c of each rank to rank c, which stores it in the scratch memory at the sender's place. */
static Status
start_parts(CommData *d, CommRequest *r)
{
	const Channel *ch = r->channel;
	char *to = reduces(r) ? r->scratch : r->c.to, *from = (char *)(uintptr_t)r->c.from;
	int64_t own = request_bytes(r, request_part(r, ch->rank).n),
		room = request_bytes(r, r->room);

	for (int peer = 0; peer < ch->size; peer++) {
		CommPart part = request_part(r, peer);
		char *its = from + request_bytes(r, part.first);

		if (peer == ch->rank) {
			memcpy(to + room * peer, its, (size_t)own);
			continue;
		}
		RETURN_IF_ERROR(start_message(d, r, (Transfer){.peer = peer, .receives = true},
		                              to + room * peer, own));
		RETURN_IF_ERROR(start_message(d, r, (Transfer){.peer = peer}, its,
		                              request_bytes(r, part.n)));
	}
	return NULL;
}

/* Sends rank c's part of `to` to every rank. */
static Status
start_gather(CommData *d, CommRequest *r)
{
	const Channel *ch = r->channel;
	CommPart own = request_part(r, ch->rank);
	char *to = r->c.to, *mine = to + request_bytes(r, own.first);

	for (int peer = 0; peer < ch->size; peer++) {
		CommPart part = request_part(r, peer);

		if (peer == ch->rank)
			continue;
		RETURN_IF_ERROR(start_message(d, r, (Transfer){.peer = peer, .receives = true},
		                              to + request_bytes(r, part.first),
		                              request_bytes(r, part.n)));
		RETURN_IF_ERROR(start_message(d, r, (Transfer){.peer = peer}, mine,
		                              request_bytes(r, own.n)));
	}
	return NULL;
}

/* Starts the library's own collective on n elements, from element `at` on. n is limited by the size of a message. */
static int
start_call(CommData *d, CommRequest *r, int64_t at, int n, MpiHandle *out)
{
	const MpiLibrary *mpi = &d->control->mpi;
	MpiHandle comm = r->channel->comm, type = library_type(d, r);
	MpiHandle op = r->c.reduction == COMM_MAX ? mpi->max : mpi->sum;
	int64_t offset = dtype_bytes(library_dtype(r), at);
	const char *from = r->scratch || r->c.from == r->c.to ? mpi->in_place
	                                                      : (const char *)r->c.from + offset;
	char *to = r->scratch ? r->scratch : r->c.to;

	if (r->c.kind == COMM_BROADCAST)
		return mpi->Ibcast(to + at, n, mpi->byte, r->c.peer, comm, out);
	if (r->c.kind == COMM_REDUCE_SCATTER)
		return mpi->Ireduce_scatter(from, to, r->counts, type, op, comm, out);
	return mpi->Iallreduce(from, to + offset, n, type, op, comm, out);
}

static Status
start_library(CommData *d, CommRequest *r)
{
	bool broadcasts = r->c.kind == COMM_BROADCAST;
	int64_t size = broadcasts ? 1 : dtype_bytes(library_dtype(r), 1);
	int64_t n = broadcasts ? request_bytes(r, r->c.n) : r->c.n, most = d->most_bytes / size;

	for (int64_t at = 0; at < n; at += most) {
		Transfer *next = &r->transfers[r->n_transfers];

		*next = (Transfer){.peer = -1, .receives = true};
		int code = start_call(d, r, at, (int)(n - at < most ? n - at : most),
		                      &next->handle);
		if (code)
			return mpi_fault(d->control, code, collective_names[r->c.kind], -1);
		r->n_transfers++;
	}
	int64_t parts = r->channel->size, share = n * size / parts * (parts - 1);
	r->channel->traffic += r->c.kind == COMM_ALL_REDUCE    ? 2 * share
	                       : !broadcasts                   ? share
	                       : r->c.peer == r->channel->rank ? n
	                                                       : 0;
	return NULL;
}

Status
round_start(CommData *d, CommRequest *r)
{
	r->n_transfers = 0;
	switch (r->round) {
	case ROUND_PARTS: return start_parts(d, r);
	case ROUND_GATHER: return start_gather(d, r);
	case ROUND_LIBRARY: return start_library(d, r);
	default:
		return start_message(
			d, r, (Transfer){.peer = r->c.peer, .receives = r->c.kind == COMM_RECV},
			r->c.kind == COMM_RECV ? r->c.to : (char *)(uintptr_t)r->c.from,
			request_bytes(r, r->c.n));
	}
}

/* ---- between rounds */
static void
sum_parts(const CommRequest *r)
{
	CommPart own = request_part(r, r->channel->rank);
	int64_t at = r->c.kind == COMM_ALL_REDUCE ? own.first : 0;

	comm_sum(&(CommSum){.dtype = r->c.dtype,
	                    .reduction = r->c.reduction,
	                    .to = (char *)r->c.to + request_bytes(r, at),
	                    .terms = r->scratch,
	                    .n = own.n,
	                    .stride = r->room,
	                    .n_terms = r->channel->size});
}

/* Converts the library's result in the scratch memory to the type of the request, in `to`. */
static void
take_result(const CommRequest *r)
{
	int64_t n = r->c.kind == COMM_REDUCE_SCATTER ? request_part(r, r->channel->rank).n : r->c.n;

	if (r->scratch)
		dtype_convert(r->c.dtype, r->c.to, library_dtype(r), r->scratch, n);
}

Status
round_end(CommData *d, CommRequest *r)
{
	Round ended = r->round;

	r->round = ROUND_OVER;
	if (ended == ROUND_PARTS && reduces(r))
		sum_parts(r);
	if (ended == ROUND_LIBRARY)
		take_result(r);
	if (ended != ROUND_PARTS || r->c.kind != COMM_ALL_REDUCE)
		return NULL;
	r->round = ROUND_GATHER;
	return round_start(d, r);
}
