/* Private to this room: what the files over NCCL share. */
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
	/* Kinds of groups that divide the ranks alike share a communicator, stored at the first of them. Since all collectives
	 * run on one stream, they come in the same order. NULL if the group has one member or is not made yet. */
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
/* Queues a collective that the group can make. Returns NCCL's code, which may be NCCL_IN_PROGRESS. *bytes: bytes that this rank
 * sends. */
int nccl_call(const CommData *d, const Collective *c, void *stream, int64_t *bytes);
/* EXIT_COMM if NCCL cannot make this sum. */
Status nccl_check(const CommData *d, const Collective *c);

#endif
