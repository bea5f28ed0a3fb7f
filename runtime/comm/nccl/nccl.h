/* Private to runtime/comm/nccl: types and functions that its files share. */
#ifndef GRADC_RUNTIME_COMM_NCCL_NCCL_H
#define GRADC_RUNTIME_COMM_NCCL_NCCL_H

#include "runtime/comm/comm.h"
#include "runtime/comm/nccl/nccl_library.h"

#include <pthread.h>

/* Device memory that is registered with a communicator of NCCL. */
typedef struct {
	NcclComm comm;
	void *handle;
} Lent;
struct CommData {
	NcclLibrary nccl;
	const CommControlOps *control_ops;
	CommControl *control;
	int rank;             /* in the world */
	pthread_mutex_t lock; /* guards all fields below; one thread at a time calls NCCL */
	CommMembers groups[N_GROUPS];
	/* NCCL's communicator for each kind of group. Kinds that divide the ranks in the same way share a communicator, stored
	 * at the first of these kinds. All collectives run on one stream, so their order is the same on all members. NULL if
	 * the group has one member or is not made yet. */
	NcclComm comms[N_GROUPS];
	CommCount counts[N_GROUPS];
	CommWatch watches[N_GROUPS];
	Lent *lent;
	int n_lent;
	Status fault; /* the first fault; nothing is started afterwards */
};
static inline NcclComm
nccl_comm(const CommData *d, CommGroup group)
{
	return d->comms[d->groups[group].same];
}

/* ---- calls.c */
/* Queues a collective on a stream. Returns NCCL's code, which may be NCCL_IN_PROGRESS. *bytes: bytes that this rank sends. */
int nccl_call(const CommData *d, const Collective *c, void *stream, int64_t *bytes);
/* EXIT_COMM if NCCL cannot compute this sum. */
Status nccl_check(const CommData *d, const Collective *c);

#endif
