/* The communicator of a run with a single rank: every collective is a copy, done when it is started. */
#include "runtime/comm/comm.h"

#include <string.h>

struct CommControl {
	int size;
};
struct CommData {
	int size;
};
struct CommRequest {
	bool done;
};

static CommControl control = {.size = 1};
static CommData data = {.size = 1};
static CommRequest finished = {.done = true};

static Status
self_open(const CommOptions *options, CommControl **out)
{
	(void)options;
	*out = &control;
	return NULL;
}

static void
self_close(CommControl *c)
{
	(void)c;
}

static void
self_abort(CommControl *c, int exit_code)
{
	(void)c;
	(void)exit_code;
}

static int
self_rank(const CommControl *c)
{
	(void)c;
	return 0;
}

static int
self_size(const CommControl *c)
{
	return c->size;
}

static Status
self_all_gather(CommControl *c, const void *from, void *to, int64_t bytes)
{
	(void)c;
	memmove(to, from, (size_t)bytes);
	return NULL;
}

static Status
self_broadcast(CommControl *c, void *at, int64_t bytes, int root)
{
	(void)c;
	(void)at;
	(void)bytes;
	return root == 0 ? NULL
	                 : status_error(EXIT_COMM,
	                                "broadcast from rank %d, but there is "
	                                "only rank 0",
	                                root);
}

static void
self_doing(CommControl *c, const char *what)
{
	(void)c;
	(void)what;
}

const CommControlOps comm_control_self = {
	.name = "self",
	.open = self_open,
	.close = self_close,
	.abort = self_abort,
	.rank = self_rank,
	.size = self_size,
	.all_gather = self_all_gather,
	.broadcast = self_broadcast,
	.doing = self_doing,
};

/* ---- data */
static Status
data_open(const CommControlOps *ops, CommControl *c, const CommOptions *options, CommData **out)
{
	(void)ops;
	(void)c;
	(void)options;
	*out = &data;
	return NULL;
}

static bool
data_close(CommData *d)
{
	(void)d;
	return true;
}

static int
data_group_rank(const CommData *d, CommGroup group)
{
	(void)d;
	(void)group;
	return 0;
}

static int
data_group_size(const CommData *d, CommGroup group)
{
	(void)group;
	return d->size;
}

static Status
data_start(CommData *d, const Collective *c, CommRequest **out)
{
	(void)d;
	*out = NULL;
	RETURN_IF_ERROR(comm_alone(c));
	*out = &finished;
	return NULL;
}

static Status
data_test(CommData *d, CommRequest *request, bool *done)
{
	(void)d;
	*done = request->done;
	return NULL;
}

static Status
data_finish(CommData *d, CommRequest *request)
{
	(void)d;
	(void)request;
	return NULL;
}

static void
data_progress(CommData *d)
{
	(void)d;
}

static int64_t
data_traffic(const CommData *d, CommGroup group)
{
	(void)d;
	(void)group;
	return 0;
}

const CommDataOps comm_data_self = {
	.name = "self",
	.open = data_open,
	.close = data_close,
	.group_rank = data_group_rank,
	.group_size = data_group_size,
	.start = data_start,
	.test = data_test,
	.finish = data_finish,
	.progress = data_progress,
	.traffic = data_traffic,
};
