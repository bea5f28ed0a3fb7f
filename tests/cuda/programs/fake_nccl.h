/* A pretended libnccl.so.2 for ranks of one machine. A communicator is shared memory with a mailbox from each rank to each
 * other rank. In a collective the ranks send each other their data, and sums are made in the order of the ranks. A rank
 * whose call is wrong, or differs from the other ranks' calls, gets an error. The others wait for a lost rank for ever,
 * until the communicator is aborted. README.md lists the variables. */
#ifndef GRADC_TESTS_FAKE_NCCL_H
#define GRADC_TESTS_FAKE_NCCL_H

#include "runtime/comm/nccl/nccl_library.h"

#include <pthread.h>
#include <stdatomic.h>

#define EXPORT __attribute__((visibility("default")))
enum { MOST_RANKS = 8, CHUNK = 1 << 16 /* bytes */ };

/* Further values of ncclResult_t, beside those in nccl_library.h. */
enum { NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5 };

/* ---- fake_nccl_shared.c */
typedef enum {
	OP_ALL_REDUCE,
	OP_ALL_GATHER,
	OP_REDUCE_SCATTER,
	OP_BROADCAST,
	OP_REDUCE,
	OP_MESSAGE
} OpKind;
extern const char *const op_names[];
/* The header of a transfer, in which both sides must agree. */
typedef struct {
	int kind, type, operation, root;
	int64_t n,
		number; /* elements; of the communicator's collectives, or of the messages between two ranks */
} Tag;
typedef struct {
	_Atomic uint64_t written, read; /* numbers of chunks; equal: the mailbox is empty */
	Tag tag;
	char data[CHUNK];
} Mailbox;
typedef struct {
	atomic_int joined, finalized;
	atomic_int failed; /* error code that all ranks get from then on; 0: no error */
	Mailbox from_to[MOST_RANKS][MOST_RANKS];
} Shared;
bool shared_create(NcclId *id);        /* the id tells other ranks where the memory is */
Shared *shared_open(const NcclId *id); /* NULL: no such memory */

/* ---- fake_nccl.c */
typedef struct NcclHandle Handle;
struct NcclHandle {
	/* next in the list of all handles, which live on because queued work may point to them */
	struct NcclHandle *next;
	Shared *shared;
	int rank, size;
	bool blocks;
	pthread_t thread;
	atomic_bool joined, aborted, finalized, gone;
	atomic_int state; /* error code; NCCL_IN_PROGRESS: no calls are allowed */
	atomic_int looks; /* looks until a nonblocking call is over */
	int64_t collectives, sent[MOST_RANKS], received[MOST_RANKS];
	uint64_t random;
};
typedef struct {
	Handle *comm;
	void *stream;
	OpKind kind;
	bool receives; /* true: a message to receive */
	const void *from;
	void *to;
	size_t n;
	int type, operation, peer; /* the root, or the other rank */
	int fails;                 /* error code of the work; 0: it succeeds */
	Tag tag;
} Op;
/* Prints the reason to stderr; gives back the code. */
int complain(int code, const char *fmt, ...) PRINTF(2, 3);
uint64_t random_next(uint64_t *state);

/* ---- fake_nccl_run.c */
size_t type_bytes(int type); /* 0: unknown */
bool type_has_sums(int type);
/* Operations of one communicator that run together when their stream comes to them. */
typedef struct {
	int n;
	Op *ops;
} OpList;
void run_ops(void *list);

#endif
