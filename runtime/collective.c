/* A collective as a task of the host's in its stream: started when the stream is there, tested until it is over. */
#include "runtime/runtime_impl.h"

typedef struct {
	Executor *x;
	const CollectiveRecord *record;
	void *to;
	const void *from;
	CommRequest *request; /* NULL: not yet started */
	double begin;
} Task;
_Static_assert(sizeof(Task) <= sizeof(((HostTask *)NULL)->state), "a collective fits into a task");

static void
trace_collective(const Task *c)
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
start(Task *t)
{
	const CollectiveRecord *r = t->record;
	const Comm *comm = t->x->comm;
	const Collective c = {.kind = (CollectiveKind)r->kind,
	                      .group = (CommGroup)r->group,
	                      .dtype = (DType)r->dtype,
	                      .reduction = (CommReduction)r->reduction,
	                      .ordered = (t->x->facts.holds & ONLY_ORDERED) != 0,
	                      .from = t->from,
	                      .to = t->to,
	                      .n = format_collective_elements(r, &t->x->facts),
	                      .peer = (int)r->peer,
	                      .block = r->block};

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
	trace_collective(t);
	return NULL;
}

Status
collective_start(Executor *x, const Instruction *n, void *to, const void *from)
{
	const CollectiveRecord *r = &x->format->collectives[n->what];
	HostTask task = {.poll = poll};

	if (x->facts.ranks == 1) /* it is a copy */
		return to == from
		               ? NULL
		               : x->ops->copy(x->device, n->stream,
		                              (Span){to, dtype_bytes((DType)r->dtype, r->n)}, from);

	*(Task *)(void *)task.state = (Task){.x = x, .record = r, .to = to, .from = from};
	return x->ops->call(x->device, n->stream, &task);
}
