#include "runtime/device/cpu_streams.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Job Job;
struct Job {
	Job *next;
	CpuWork work;
	void *context;
	max_align_t payload[];
};
typedef struct {
	Job *first, **last;
} Queue;
/* The numbers of two recordings of an event: the newest, and the newest that is done. */
typedef struct {
	_Atomic uint64_t issued, done;
	double seconds;
} Event;
struct CpuStreams {
	Queue streams[MAX_STREAMS];
	int n_waiting;         /* waiting jobs */
	_Atomic(Status) fault; /* the first fault; afterwards only recordings of events are done */
	int n_events;
	Event events[];
};

CpuStreams *
cpu_streams_open(int n_events)
{
	CpuStreams *s = memory_zeroed(1, sizeof(*s) + sizeof(Event) * (size_t)n_events);

	s->n_events = n_events;
	for (int i = 0; i < MAX_STREAMS; i++)
		s->streams[i].last = &s->streams[i].first;
	return s;
}

static void
drop_first(CpuStreams *s, Queue *q)
{
	Job *job = q->first;

	q->first = job->next;
	if (!q->first)
		q->last = &q->first;
	s->n_waiting--;
	memory_free(job);
}

void
cpu_streams_close(CpuStreams *s)
{
	if (!s)
		return;
	for (int i = 0; i < MAX_STREAMS; i++)
		while (s->streams[i].first)
			drop_first(s, &s->streams[i]);
	status_free(s->fault);
	memory_free(s);
}

bool
cpu_streams_is_free(const CpuStreams *s, int stream)
{
	return !s->streams[stream].first && !atomic_load_explicit(&s->fault, memory_order_relaxed);
}

Status
cpu_streams_fault(const CpuStreams *s)
{
	return status_copy(atomic_load(&s->fault));
}

static void
keep_fault(CpuStreams *s, Status status)
{
	Status none = NULL;

	if (status && !atomic_compare_exchange_strong(&s->fault, &none, status))
		status_free(status);
}

static void
append(CpuStreams *s, Queue *q, CpuWork work, void *context, const void *payload, size_t bytes)
{
	Job *job = memory_get(sizeof(*job) + bytes);

	*job = (Job){.work = work, .context = context};
	if (bytes)
		memcpy(job->payload, payload, bytes);
	*q->last = job;
	q->last = &job->next;
	s->n_waiting++;
}

/* ---- events */
typedef struct {
	Event *event;
	uint64_t ticket;
} Recording;

static Status
record(void *context, void *payload, bool *done)
{
	const Recording *r = payload;

	(void)context;
	r->event->seconds = seconds_now();
	atomic_store(&r->event->done, r->ticket);
	*done = true;
	return NULL;
}

Status
cpu_streams_record(CpuStreams *s, int stream, int event)
{
	Event *e = &s->events[event];
	Queue *q = &s->streams[stream];
	Recording r = {e, atomic_fetch_add(&e->issued, 1) + 1};
	bool done;

	if (!q->first)
		return record(NULL, &r, &done);
	append(s, q, record, NULL, &r, sizeof(r));
	return NULL;
}

/* ---- work */
/* Does the jobs of a queue in order. After a fault the rest of the queue is dropped. */
static void
try_stream(CpuStreams *s, Queue *q)
{
	while (q->first) {
		Job *job = q->first;
		bool done = false;

		if (job->work == record || !atomic_load(&s->fault))
			keep_fault(s, job->work(job->context, job->payload, &done));
		if (!done && !atomic_load(&s->fault))
			return;
		drop_first(s, q);
	}
}

Status
cpu_streams_do(CpuStreams *s, int stream, CpuWork work, void *context, const void *payload,
               size_t bytes)
{
	Queue *q = &s->streams[stream];

	if (!atomic_load(&s->fault)) {
		append(s, q, work, context, payload, bytes);
		if (q->first->next == NULL)
			try_stream(s, q);
	}
	return cpu_streams_fault(s);
}

void
cpu_streams_progress(CpuStreams *s)
{
	for (int i = 0; i < MAX_STREAMS && s->n_waiting > 0; i++)
		try_stream(s, &s->streams[i]);
}

/* Yields at first, then sleeps: ranks may share cores. */
static void
pause_after(int64_t tries)
{
	enum { SPINS = 2000 };

	if (tries > SPINS)
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	else
		sched_yield();
}

bool
cpu_streams_is_done(const CpuStreams *s, int event)
{
	const Event *e = &s->events[event];

	return atomic_load(&e->done) >= atomic_load(&e->issued);
}

double
cpu_streams_seconds(const CpuStreams *s, int event)
{
	return s->events[event].seconds;
}

void
cpu_streams_reach(CpuStreams *s, int event)
{
	for (int64_t i = 0; !cpu_streams_is_done(s, event); i++) {
		cpu_streams_progress(s);
		if (!cpu_streams_is_done(s, event))
			pause_after(i);
	}
}

Status
cpu_streams_wait(CpuStreams *s, int event)
{
	cpu_streams_reach(s, event);
	return cpu_streams_fault(s);
}

Status
cpu_streams_sync(CpuStreams *s)
{
	for (int64_t i = 0; s->n_waiting > 0; i++) {
		cpu_streams_progress(s);
		if (s->n_waiting > 0)
			pause_after(i);
	}
	return cpu_streams_fault(s);
}
