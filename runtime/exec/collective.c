/* Runs a collective in its stream. If the communicator works on streams of the device, it queues the collective there.
 * Otherwise a task on the host starts the collective when the stream reaches the task, and polls until the collective is
 * over. */
#include "runtime/exec/walk.h"

typedef struct {
	Executor *x;
	const CollectiveRecord *record;
	void *to;
	const void *from;
	CommRequest *request; /* NULL before the collective has started */
	double begin;
} Task;
_Static_assert(sizeof(Task) <= sizeof(((HostTask *)NULL)->state), "a collective fits into a task");

void
collective_trace(Trace *trace, const CollectiveRecord *record, double begin, double end)
{
	trace_span(trace, &(TraceSpan){.track = TRACK_COMMUNICATION,
	                               .category = "communication",
	                               .name = collective_names[record->kind],
	                               .begin = begin,
	                               .end = end,
	                               .count_of = "bytes",
	                               .count = dtype_bytes((DType)record->dtype, record->n)});
}

static Collective
collective_of(const Executor *x, const CollectiveRecord *r, void *to, const void *from)
{
	return (Collective){.kind = (CollectiveKind)r->kind,
	                    .group = (CommGroup)r->group,
	                    .dtype = (DType)r->dtype,
	                    .reduction = (CommReduction)r->reduction,
	                    .ordered = (x->facts.holds & ONLY_ORDERED) != 0,
	                    .from = from,
	                    .to = to,
	                    .n = format_collective_elements(r, &x->facts),
	                    .peer = (int)r->peer,
	                    .block = r->block};
}

static Status
start(Task *t)
{
	const Comm *comm = t->x->comm;
	const Collective c = collective_of(t->x, t->record, t->to, t->from);

	t->begin = seconds_now();
	return comm->data_ops->start(comm->data, &c, &t->request);
}

static Status
poll(HostTask *task, bool *done)
{
	Task *t = (Task *)(void *)task->state;
	const Comm *comm = t->x->comm;

	*done = false;
	if (!t->request)
		RETURN_IF_ERROR(start(t));
	RETURN_IF_ERROR(comm->data_ops->test(comm->data, t->request, done));
	if (!*done)
		return NULL;
	RETURN_IF_ERROR(comm->data_ops->finish(comm->data, t->request));
	collective_trace(t->x->trace, t->record, t->begin, seconds_now());
	return NULL;
}

/* ---- on the device's own streams */
/* A collective in a group of one rank is a copy. */
static Status
copy_alone(Executor *x, int stream, Collective c)
{
	Span to = {c.to, dtype_bytes(c.dtype, c.n)};
	const void *from = c.from;

	/* with from == to, comm_alone copies nothing and only checks the arguments */
	c.from = c.to;
	RETURN_IF_ERROR(comm_alone(&c));
	return to.at == from ? NULL : x->ops->copy(x->device, stream, to, from);
}

static Status
enqueue(Executor *x, int stream, const Collective *c)
{
	const Comm *comm = x->comm;
	void *native;

	if (comm->data_ops->group_size(comm->data, c->group) == 1)
		return copy_alone(x, stream, *c);
	RETURN_IF_ERROR(x->ops->native_stream(x->device, stream, &native));
	return comm->data_ops->enqueue(comm->data, c, native);
}

Status
collective_start(Executor *x, const Instruction *n, void *to, const void *from)
{
	const CollectiveRecord *record = &x->format->collectives[n->what];
	HostTask task = {.poll = poll};

	if (x->facts.ranks == 1) /* a collective of one rank is a copy */
		return to == from ? NULL
		                  : x->ops->copy(x->device, n->stream,
		                                 (Span){to, dtype_bytes((DType)record->dtype,
		                                                        record->n)},
		                                 from);
	if (comm_enqueues(x->comm)) {
		const Collective c = collective_of(x, record, to, from);
		return enqueue(x, n->stream, &c);
	}
	*(Task *)(void *)task.state = (Task){.x = x, .record = record, .to = to, .from = from};
	return x->ops->call(x->device, n->stream, &task);
}
