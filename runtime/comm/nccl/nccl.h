/* What the files over NCCL share. */
#ifndef GRADC_COMM_NCCL_H
#define GRADC_COMM_NCCL_H

#include "runtime/comm/comm.h"
#include "runtime/comm/nccl/nccl_library.h"

#include <pthread.h>

/* A part of the device's memory that a communicator of NCCL's knows. */
typedef struct {
	NcclComm comm;
	void *handle;
} Lent;
struct CommData {
	NcclLibrary nccl;
	const CommControlOps *control_ops;
	CommControl *control;
	int rank;             /* in the world */
	pthread_mutex_t lock; /* of all below: one thread calls NCCL at a time */
	CommMembers groups[N_GROUPS];
	/* Groups that divide the ranks alike have one in common, at the first of them: with a stream for all collectives they
	 * come in one order. NULL: the group has one member, or is not made yet. */
	NcclComm comms[N_GROUPS];
	CommCount counts[N_GROUPS];
	CommWatch watches[N_GROUPS];
	Lent *lent;
	int n_lent;
	Status fault; /* the first; nothing is started behind it */
};
static inline NcclComm
nccl_comm(const CommData *d, CommGroup group)
{
	return d->comms[d->groups[group].same];
}

/* ---- comm/nccl/calls.c */
/* Queues a collective that the group can make; the code of NCCL, which may be NCCL_IN_PROGRESS. *bytes: that this rank sends. */
int nccl_call(const CommData *d, const Collective *c, void *stream, int64_t *bytes);
/* EXIT_COMM: NCCL has no such sum. */
Status nccl_check(const CommData *d, const Collective *c);

#endif
