/* One rank alone: every collective is a copy, done when it is started. */
#include "runtime/comm.h"

#include <string.h>

struct Comm {
	int size;
};
struct CommRequest {
	bool done;
};

static Comm self = {.size = 1};
static CommRequest finished = {.done = true};

static Status
self_open(Comm **out)
{
	*out = &self;
	return NULL;
}

static void
self_close(Comm *comm)
{
	(void)comm;
}

static void
self_abort(Comm *comm, int exit_code)
{
	(void)comm;
	(void)exit_code;
}

static int
self_rank(const Comm *comm)
{
	(void)comm;
	return 0;
}

static int
self_size(const Comm *comm)
{
	return comm->size;
}

static Status
self_copy(Comm *comm, const CommBuffers *b, CommRequest **out)
{
	(void)comm;
	if (b->to != b->from)
		memmove(b->to, b->from, (size_t)dtype_bytes(b->dtype, b->n));
	*out = &finished;
	return NULL;
}

static Status
self_broadcast(Comm *comm, const CommBuffers *b, int root, CommRequest **out)
{
	*out = NULL;
	if (root != 0)
		return status_error(EXIT_SYSTEM, "broadcast from rank %d of 1", root);
	return self_copy(comm, b, out);
}

static Status
self_test(Comm *comm, CommRequest *request, bool *done)
{
	(void)comm;
	*done = request->done;
	return NULL;
}

static Status
self_finish(Comm *comm, CommRequest *request)
{
	(void)comm;
	(void)request;
	return NULL;
}

static int64_t
self_traffic(const Comm *comm)
{
	(void)comm;
	return 0;
}

const CommOps comm_self = {
	.name = "self",
	.open = self_open,
	.close = self_close,
	.abort = self_abort,
	.rank = self_rank,
	.size = self_size,
	.all_reduce = self_copy,
	.all_gather = self_copy,
	.reduce_scatter = self_copy,
	.broadcast = self_broadcast,
	.test = self_test,
	.finish = self_finish,
	.traffic = self_traffic,
};
