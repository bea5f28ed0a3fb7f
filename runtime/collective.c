/* A collective as a task of the host's in its stream: started when the stream is there, tested until it is over. */
#include "runtime/runtime_impl.h"

typedef struct {
	Executor *x;
	const CollectiveRecord *record;
	void *to;
	const void *from;
	CommRequest *request; /* NULL: not yet started */
	double begin;
} Collective;
_Static_assert(sizeof(Collective) <= sizeof(((HostTask *)NULL)->state),
               "a collective fits into a task");

static void
trace_collective(const Collective *c)
{
	trace_span(c->x->trace,
	           &(TraceSpan){.track = TRACK_COMMUNICATION,
	                        .category = "communication",
	                        .name = collective_names[c->record->kind],
	                        .begin = c->begin,
	                        .end = seconds_now(),
	                        .count_of = "bytes",
	                        .count = dtype_bytes((DType)c->record->dtype, c->record->n)});
}

static Status
start(Collective *c)
{
	CommBuffers b = {.to = c->to,
	                 .from = c->from,
	                 .n = c->record->n,
	                 .dtype = (DType)c->record->dtype,
	                 .reduction = (CommReduction)c->record->reduction};

	c->begin = seconds_now();
	return c->x->comm_ops->all_reduce(c->x->comm, &b, &c->request);
}

static Status
poll(HostTask *task, bool *done)
{
	Collective *c = (Collective *)(void *)task->state;
	const CommOps *ops = c->x->comm_ops;

	*done = false;
	if (!c->request)
		RETURN_IF_ERROR(start(c));
	RETURN_IF_ERROR(ops->test(c->x->comm, c->request, done));
	if (!*done)
		return NULL;
	RETURN_IF_ERROR(ops->finish(c->x->comm, c->request));
	trace_collective(c);
	return NULL;
}

Status
collective_start(Executor *x, const Instruction *n, void *to, const void *from)
{
	HostTask task = {.poll = poll};

	*(Collective *)(void *)task.state = (Collective){
		.x = x, .record = &x->format->collectives[n->what], .to = to, .from = from};
	return x->ops->call(x->device, n->stream, &task);
}
