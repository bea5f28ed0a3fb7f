/* Translates collectives into calls of NCCL. NCCL's own collectives need parts of equal size for all members. If sizes differ
 * (comm_part), each part is a call of its own:
 *
 * all_reduce      AllReduce
 * all_gather      AllGather; for unequal parts a Broadcast of each part
 * reduce_scatter  ReduceScatter; for unequal parts a Reduce of each part
 * all_to_all      Send and Recv of each part
 * broadcast, send, recv
 *
 * Collectives that only move data move it as bytes. */
#include "runtime/comm/nccl/nccl.h"

typedef struct {
	const NcclLibrary *nccl;
	const Collective *c;
	NcclComm comm;
	void *stream;
	int rank, size; /* in the group */
	int64_t room;   /* elements of the largest part */
} Call;

/* ---- sizes */
static int64_t
bytes_of(const Call *k, int64_t n)
{
	return dtype_bytes(k->c->dtype, n);
}

static CommPart
part_of(const Call *k, int rank)
{
	return comm_part(k->c->n, k->size, rank, k->c->block ? k->c->block : 1);
}

static const char *
from_at(const Call *k, int64_t element)
{
	return (const char *)k->c->from + bytes_of(k, element);
}

static char *
to_at(const Call *k, int64_t element)
{
	return (char *)k->c->to + bytes_of(k, element);
}

static bool
is_even(const Call *k)
{
	return k->c->n == k->room * k->size;
}

/* ---- types that can be added, as in comm_sum_has */
static const int types[N_DTYPES] = {[F64] = NCCL_F64,   [F32] = NCCL_F32, [F16] = NCCL_F16,
                                    [BF16] = NCCL_BF16, [S64] = NCCL_S64, [S32] = NCCL_S32};
static const int operations[N_COMM_REDUCTIONS] = {[COMM_SUM] = NCCL_SUM, [COMM_MAX] = NCCL_MAX};

static int
type_of(const Call *k)
{
	return types[k->c->dtype];
}

static int
operation_of(const Call *k)
{
	return operations[k->c->reduction];
}

/* ---- calls */
/* Makes the calls for all parts between ncclGroupStart and ncclGroupEnd. After a failure the group is still ended. */
static int
each_part(const Call *k, int (*call)(const Call *k, int rank))
{
	int code = k->nccl->GroupStart();

	if (code != NCCL_OK)
		return code;
	for (int r = 0; r < k->size && code == NCCL_OK; r++)
		code = call(k, r);
	int end = k->nccl->GroupEnd();
	return code != NCCL_OK ? code : end;
}

static int
all_reduce(const Call *k)
{
	return k->nccl->AllReduce(k->c->from, k->c->to, (size_t)k->c->n, type_of(k),
	                          operation_of(k), k->comm, k->stream);
}

static int
broadcast_part(const Call *k, int rank)
{
	CommPart part = part_of(k, rank);
	char *to = to_at(k, part.first);

	if (part.n == 0)
		return NCCL_OK;
	return k->nccl->Broadcast(rank == k->rank ? k->c->from : to, to,
	                          (size_t)bytes_of(k, part.n), NCCL_U8, rank, k->comm, k->stream);
}

static int
all_gather(const Call *k)
{
	return is_even(k) ? k->nccl->AllGather(k->c->from, k->c->to, (size_t)bytes_of(k, k->room),
	                                       NCCL_U8, k->comm, k->stream)
	                  : each_part(k, broadcast_part);
}

static int
reduce_part(const Call *k, int rank)
{
	CommPart part = part_of(k, rank);

	if (part.n == 0)
		return NCCL_OK;
	return k->nccl->Reduce(from_at(k, part.first), k->c->to, (size_t)part.n, type_of(k),
	                       operation_of(k), rank, k->comm, k->stream);
}

static int
reduce_scatter(const Call *k)
{
	return is_even(k) ? k->nccl->ReduceScatter(k->c->from, k->c->to, (size_t)k->room,
	                                           type_of(k), operation_of(k), k->comm, k->stream)
	                  : each_part(k, reduce_part);
}

static int
exchange_part(const Call *k, int rank)
{
	CommPart part = part_of(k, rank), own = part_of(k, k->rank);
	int code = NCCL_OK;

	if (part.n > 0)
		code = k->nccl->Send(from_at(k, part.first), (size_t)bytes_of(k, part.n), NCCL_U8,
		                     rank, k->comm, k->stream);
	if (code == NCCL_OK && own.n > 0)
		code = k->nccl->Recv(to_at(k, k->room * rank), (size_t)bytes_of(k, own.n), NCCL_U8,
		                     rank, k->comm, k->stream);
	return code;
}

static int
all_to_all(const Call *k)
{
	return each_part(k, exchange_part);
}

static int
broadcast(const Call *k)
{
	return k->nccl->Broadcast(k->c->from, k->c->to, (size_t)bytes_of(k, k->c->n), NCCL_U8,
	                          k->c->peer, k->comm, k->stream);
}

static int
send(const Call *k)
{
	return k->nccl->Send(k->c->from, (size_t)bytes_of(k, k->c->n), NCCL_U8, k->c->peer, k->comm,
	                     k->stream);
}

static int
recv(const Call *k)
{
	return k->nccl->Recv(k->c->to, (size_t)bytes_of(k, k->c->n), NCCL_U8, k->c->peer, k->comm,
	                     k->stream);
}

static int (*const calls[N_COLLECTIVES])(const Call *k) = {
	[COMM_ALL_REDUCE] = all_reduce,
	[COMM_ALL_GATHER] = all_gather,
	[COMM_REDUCE_SCATTER] = reduce_scatter,
	[COMM_ALL_TO_ALL] = all_to_all,
	[COMM_BROADCAST] = broadcast,
	[COMM_SEND] = send,
	[COMM_RECV] = recv,
};

/* Bytes that this rank sends if NCCL sends around a ring of the members; a broadcast's root sends everything once. */
static int64_t
sent_bytes(const Call *k)
{
	const Collective *c = k->c;
	int64_t share = bytes_of(k, c->n) / k->size * (k->size - 1);
	const int64_t sent[N_COLLECTIVES] = {
		[COMM_ALL_REDUCE] = 2 * share,
		[COMM_ALL_GATHER] = share,
		[COMM_REDUCE_SCATTER] = share,
		[COMM_ALL_TO_ALL] = bytes_of(k, c->n - part_of(k, k->rank).n),
		[COMM_BROADCAST] = c->peer == k->rank ? bytes_of(k, c->n) : 0,
		[COMM_SEND] = bytes_of(k, c->n),
	};

	return sent[c->kind];
}

int
nccl_call(const CommData *d, const Collective *c, void *stream, int64_t *bytes)
{
	const CommMembers *group = &d->groups[c->group];
	const Call call = {.nccl = &d->nccl,
	                   .c = c,
	                   .comm = nccl_comm(d, c->group),
	                   .stream = stream,
	                   .rank = group->rank,
	                   .size = group->size,
	                   .room = comm_part_room(c->n, group->size, c->block ? c->block : 1)};

	*bytes = sent_bytes(&call);
	return c->n > 0 ? calls[c->kind](&call) : NCCL_OK;
}

/* Refuses sums whose order NCCL would change. For f32 and f64 the schedule itself adds in the order of the ranks. Integer sums
 * are exact in any order. NCCL rounds f16 and bf16 after each addition, which gives the right sum only for two ranks. */
Status
nccl_check(const CommData *d, const Collective *c)
{
	const CommMembers *group = &d->groups[c->group];
	bool reduces = c->kind == COMM_ALL_REDUCE || c->kind == COMM_REDUCE_SCATTER;

	RETURN_IF_ERROR(comm_check_collective(c, group->rank, group->size));
	if (!reduces || !c->ordered || c->reduction != COMM_SUM || group->size <= 2 ||
	    (c->dtype != F16 && c->dtype != BF16))
		return NULL;
	return status_error(EXIT_COMM,
	                    "NCCL does not add %s of %d ranks in the order of the ranks: use "
	                    "--reduce=fast, which needs no order, or --collectives=host",
	                    dtype_info[c->dtype].name, group->size);
}
