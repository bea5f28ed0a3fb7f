/* A pretended libnccl.so.2 for ranks of one machine. A communicator is a piece of shared memory with a mailbox from each rank to each
 * other; a collective is what its ranks send each other, and sums in the order of the ranks. Who calls it wrong, or otherwise than
 * the others, is told so. A rank that is gone is waited for without end, until the communicator is aborted. README.md lists the
 * variables. */
#ifndef GRADC_TESTS_FAKE_NCCL_H
#define GRADC_TESTS_FAKE_NCCL_H

#include "runtime/comm/nccl/nccl_library.h"

#include <pthread.h>
#include <stdatomic.h>

#define EXPORT __attribute__((visibility("default")))
enum { MOST_RANKS = 8, CHUNK = 1 << 16 /* bytes */ };

/* Of ncclResult_t, beside those of nccl_library.h. */
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
/* What both sides of a transfer must say alike. */
typedef struct {
	int kind, type, operation, root;
	int64_t n,
		number; /* elements; of the communicator's collectives, or of the messages between two ranks */
} Tag;
typedef struct {
	_Atomic uint64_t written, read; /* chunks; alike: it is empty */
	Tag tag;
	char data[CHUNK];
} Mailbox;
typedef struct {
	atomic_int joined, finalized;
	atomic_int failed; /* a code that all ranks have from then on */
	Mailbox from_to[MOST_RANKS][MOST_RANKS];
} Shared;
bool shared_create(NcclId *id);        /* the id says where it is */
Shared *shared_open(const NcclId *id); /* NULL: there is none */

/* ---- fake_nccl.c */
typedef struct NcclHandle Handle;
struct NcclHandle {
	struct NcclHandle *next; /* all that ever were: work in a stream may still point there */
	Shared *shared;
	int rank, size;
	bool blocks;
	pthread_t thread;
	atomic_bool joined, aborted, finalized, gone;
	atomic_int state; /* a code; NCCL_IN_PROGRESS: calls are not allowed */
	atomic_int looks; /* until a call that does not block is over */
	int64_t collectives, sent[MOST_RANKS], received[MOST_RANKS];
	uint64_t random;
};
typedef struct {
	Handle *comm;
	void *stream;
	OpKind kind;
	bool receives; /* a message */
	const void *from;
	void *to;
	size_t n;
	int type, operation, peer; /* peer: the root, or the other */
	int fails;                 /* with this code, in its turn; 0: it does not */
	Tag tag;
} Op;
/* Says why to stderr; the code. */
int complain(int code, const char *fmt, ...) PRINTF(2, 3);
uint64_t random_next(uint64_t *state);

/* ---- fake_nccl_run.c */
size_t type_bytes(int type); /* 0: unknown */
bool type_has_sums(int type);
/* Of one communicator, at once, when their stream comes to them. */
typedef struct {
	int n;
	Op *ops;
} OpList;
void run_ops(void *list);

#endif
