/* CommControl over TCP, for ranks that torchrun or srun started, or that meet by a file. MPI is not needed. All messages go to
 * rank 0, and from there to all ranks (tcp.h). Large messages are split. */
#include "runtime/comm/comm.h"
#include "runtime/comm/tcp/link.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	MOST_BYTES = 1 << 24
}; /* of a message; bounds the memory that rank 0 needs to hold a message of every rank */

/* ---- opening and ending */
static void
init_locks(CommControl *c)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&c->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_mutex_init(&c->lock, NULL);
	pthread_mutex_init(&c->calls, NULL);
}

static void
free_all(CommControl *c)
{
	tcp_link_close(c);
	status_free(c->fault);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->calls);
	memory_free(c->peers);
	memory_free(c);
}

static CommControl *
new_control(const CommOptions *options, const TcpPlace *place)
{
	CommControl *c = memory_zeroed(1, sizeof(*c));

	c->options = *options;
	c->rank = place->rank;
	c->size = place->size ? place->size : 1;
	c->wake[0] = c->wake[1] = -1;
	c->peers = memory_zeroed((size_t)c->size, sizeof(TcpPeer));
	for (int r = 0; r < c->size; r++)
		c->peers[r].fd = -1;
	init_locks(c);
	return c;
}

static Status
tcp_open(const CommOptions *options, CommControl **out)
{
	TcpPlace place;

	*out = NULL;
	RETURN_IF_ERROR(tcp_place(&place));
	CommControl *c = new_control(options, &place);
	Status status = comm_patience(&c->patience);
	if (!status && c->size > 1)
		status = tcp_start(c, &place);
	if (!status && c->size > 1)
		status = tcp_link_open(c);
	if (status)
		free_all(c);
	else
		*out = c;
	return status;
}

static void
send_to_all(CommControl *c, const FrameHead *head)
{
	for (int r = 0; r < c->size; r++)
		tcp_send(c, r, head, NULL);
}

static void
tcp_close(CommControl *c)
{
	enum { SECONDS = 2 };

	if (!c)
		return;
	tcp_lock(c);
	send_to_all(c, &(FrameHead){.kind = FRAME_BYE});
	tcp_flush(c, SECONDS);
	tcp_unlock(c);
	free_all(c);
}

/* Ends all ranks. Like MPI_Abort, it does not return. If another rank is already ending all ranks, nothing is sent. */
static void
tcp_abort(CommControl *c, int exit_code)
{
	enum { SECONDS = 1 };

	if (c->size == 1)
		return;
	tcp_lock(c);
	if (c->must_end == 0) {
		send_to_all(c, &(FrameHead){.kind = FRAME_ABORT, .number = exit_code});
		tcp_flush(c, SECONDS);
	}
	cleanup_now();
	_exit(exit_code);
}

static int
tcp_rank(const CommControl *c)
{
	return c->rank;
}

static int
tcp_size(const CommControl *c)
{
	return c->size;
}

static void
tcp_doing(CommControl *c, const char *what)
{
	atomic_store(&c->doing, what);
}

/* ---- calls */
typedef enum { CALL_GATHER, CALL_BROADCAST } CallKind;
static const char *const call_names[] = {"all_gather", "broadcast"};
typedef struct {
	CallKind kind;
	int64_t number;
	int *ranks; /* array for the awaited ranks */
	TcpWait wait;
} Call;

static FrameHead
head_of(const Call *call, FrameKind kind, int64_t bytes)
{
	return (FrameHead){kind, call->kind, call->number, bytes};
}

static void
sleep_a_little(CommControl *c)
{
	double pause = c->patience / 16 < 0.25 ? c->patience / 16 : 0.25;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	int64_t ns = until.tv_nsec + (int64_t)(pause * 1e9);
	until.tv_sec += ns / 1000000000;
	until.tv_nsec = ns % 1000000000;
	pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

/* Checks that the frame belongs to the call that this rank is in. */
static Status
check_frame(const CommControl *c, const Call *call, int rank, const Frame *f, int64_t bytes)
{
	const FrameHead *h = &f->head;

	if (h->call == call->kind && h->number == call->number && h->bytes == bytes)
		return NULL;
	return status_error(EXIT_COMM,
	                    "rank %d is in %s %lld of the control connections with %lld bytes, "
	                    "rank %d in %s %lld with %lld: they no longer do the same",
	                    c->rank, call_names[call->kind], (long long)call->number,
	                    (long long)bytes, rank,
	                    h->call < COUNT(call_names) ? call_names[h->call] : "call",
	                    (long long)h->number, (long long)h->bytes);
}

/* Lists the ranks whose parts rank 0 does not have yet, starting with rank `from`. */
static void
list_missing(const CommControl *c, Call *call, int from)
{
	int n = 0;

	for (int r = from; r < c->size; r++)
		if (!c->peers[r].in.first)
			call->ranks[n++] = r;
	call->wait.n = n;
}

/* Waits for the awaited ranks' frames. Called with the lock held. A frame that has arrived counts even if its sender has ended
 * since. */
static Status
look(CommControl *c, Call *call, int rank, Frame **out, Text *line)
{
	*out = tcp_take(&c->peers[rank]);
	if (*out)
		return NULL;
	if (c->fault)
		return status_copy(c->fault);
	if (c->peers[rank].ended)
		return status_error(EXIT_COMM,
		                    "rank %d: rank %d has ended, and %s %lld of the control "
		                    "connections waits for it",
		                    c->rank, rank, call_names[call->kind], (long long)call->number);
	if (c->rank == 0 && call->kind == CALL_GATHER)
		list_missing(c, call, rank);
	RETURN_IF_ERROR(tcp_beat(c, &call->wait, line));
	if (!line->n)
		sleep_a_little(c);
	return NULL;
}

/* Called with the lock held; waiting releases the lock. */
static Status
await(CommControl *c, Call *call, int rank, Frame **out)
{
	Status status = NULL;

	*out = NULL;
	c->n_waiting++;
	while (!*out && !status) {
		Text line = {0};

		status = look(c, call, rank, out, &line);
		if (line.n) {
			tcp_unlock(c);
			tcp_report(c, &line);
			tcp_lock(c);
		}
	}
	c->n_waiting--;
	return status;
}

/* Receives the bytes that the rank sends in this call. */
static Status
receive(CommControl *c, Call *call, int rank, void *to, int64_t bytes)
{
	Frame *f;

	RETURN_IF_ERROR(await(c, call, rank, &f));
	Status status = check_frame(c, call, rank, f, bytes);
	if (!status && bytes)
		memcpy(to, f->at, (size_t)bytes);
	tcp_frame_drop(f);
	return status;
}

static void
send_whole(CommControl *c, const Call *call, const void *at, int64_t bytes, int but)
{
	FrameHead head = head_of(call, FRAME_WHOLE, bytes);
	Frame *f = tcp_frame_new(&head, at);

	for (int r = 1; r < c->size; r++)
		if (r != but)
			tcp_send_frame(c, r, f);
	tcp_frame_drop(f);
}

/* Gathers on rank 0. all: the parts of all ranks, one after another. */
static Status
gather_here(CommControl *c, Call *call, char *all, int64_t bytes)
{
	for (int r = 1; r < c->size; r++)
		RETURN_IF_ERROR(receive(c, call, r, all + r * bytes, bytes));
	send_whole(c, call, all, bytes * c->size, 0);
	return NULL;
}

static Status
gather_there(CommControl *c, Call *call, char *all, int64_t bytes)
{
	FrameHead head = head_of(call, FRAME_PART, bytes);

	call->ranks[0] = 0;
	tcp_send(c, 0, &head, all + c->rank * bytes);
	return receive(c, call, 0, all, bytes * c->size);
}

static Status
broadcast_from(CommControl *c, Call *call, char *at, int64_t bytes, int root)
{
	FrameHead head = head_of(call, FRAME_PART, bytes);

	call->ranks[0] = c->rank == 0 ? root : 0;
	if (c->rank == root && root > 0)
		tcp_send(c, 0, &head, at);
	else if (c->rank != root)
		RETURN_IF_ERROR(receive(c, call, call->ranks[0], at, bytes));
	if (c->rank == 0)
		send_whole(c, call, at, bytes, root);
	return NULL;
}

static void
unlock(void *lock)
{
	pthread_mutex_unlock(lock);
}

/* Begins a call; only one runs at a time. Returns an earlier fault. */
static Status
begin(CommControl *c, Call *call, CallKind kind, int *ranks)
{
	pthread_mutex_lock(&c->calls);
	memory_hold(unlock, &c->calls);
	tcp_lock(c);
	*call = (Call){.kind = kind, .number = c->n_calls++, .ranks = ranks};
	call->wait = (TcpWait){call_names[kind], call->number, ranks, 1, seconds_now(), 0};
	return status_copy(c->fault);
}

static Status
end(CommControl *c, Status status)
{
	if (status)
		tcp_fail(c, status_copy(status));
	tcp_unlock(c);
	memory_let_go();
	pthread_mutex_unlock(&c->calls);
	return status;
}

/* Gathers parts that together fit into one message. */
static Status
gather(CommControl *c, char *all, int64_t bytes)
{
	int *ranks = memory_get(sizeof(int) * (size_t)c->size);
	Call call;

	Status status = begin(c, &call, CALL_GATHER, ranks);
	if (!status && c->rank == 0)
		status = gather_here(c, &call, all, bytes);
	else if (!status)
		status = gather_there(c, &call, all, bytes);
	status = end(c, status);
	memory_free(ranks);
	return status;
}

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static Status
tcp_all_gather(CommControl *c, const void *from, void *to, int64_t bytes)
{
	int64_t most = least(bytes, MOST_BYTES / c->size), done = 0;
	char *all = memory_get((size_t)(most * c->size) + 1);
	Status status = NULL;

	do {
		int64_t n = least(bytes - done, most);

		memcpy(all + c->rank * n, (const char *)from + done, (size_t)n);
		if (c->size > 1)
			status = gather(c, all, n);
		for (int r = 0; r < c->size && !status; r++)
			memcpy((char *)to + r * bytes + done, all + r * n, (size_t)n);
		done += n;
	} while (done < bytes && !status);
	memory_free(all);
	return status;
}

static Status
broadcast(CommControl *c, char *at, int64_t bytes, int root)
{
	int ranks[1];
	Call call;

	Status status = begin(c, &call, CALL_BROADCAST, ranks);
	if (!status)
		status = broadcast_from(c, &call, at, bytes, root);
	return end(c, status);
}

static Status
tcp_broadcast(CommControl *c, void *at, int64_t bytes, int root)
{
	if (root < 0 || root >= c->size)
		return status_error(EXIT_COMM,
		                    "broadcast from rank %d, which is not one of the "
		                    "%d ranks",
		                    root, c->size);
	for (int64_t done = 0; done < bytes && c->size > 1; done += MOST_BYTES)
		RETURN_IF_ERROR(
			broadcast(c, (char *)at + done, least(bytes - done, MOST_BYTES), root));
	return NULL;
}

const CommControlOps comm_control_tcp = {
	.name = "tcp",
	.open = tcp_open,
	.close = tcp_close,
	.abort = tcp_abort,
	.rank = tcp_rank,
	.size = tcp_size,
	.all_gather = tcp_all_gather,
	.broadcast = tcp_broadcast,
	.doing = tcp_doing,
	.started = tcp_started,
	.watch = tcp_watch_collective,
};
