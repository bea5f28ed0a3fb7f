/* Streams and events of the pretended driver. Each stream is a thread that pauses before every piece of work. */
#include "tests/cuda/fake/fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOW_PAUSE = 20000 /* us */, NO_TIMING = 2 /* of cuEventCreate */ };

static Stream *own[MOST_DEVICES]; /* default streams, for a NULL handle */
static Stream **streams;
static int n_streams, n_created;
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER; /* only one host function at a time */

/* ---- pieces of work */
Work *
work_new(WorkKind kind)
{
	Work *w = calloc(1, sizeof(*w));

	if (!w)
		abort();
	w->kind = kind;
	w->code = take_planned();
	return w;
}

void
work_free(Work *w)
{
	if (w->kind == WORK_GRAPH)
		graph_free(w->graph);
	free(w->owned);
	free(w);
}

static int
run_copy(Stream *s, const Work *w)
{
	void *to = memory_view(w->to, w->bytes);
	const void *from = w->owned ? w->owned : memory_view(w->from, w->bytes);

	(void)s;
	if (!to || !from)
		return complain(BAD_ADDRESS, "a copy %s memory that was freed, at %p",
		                to ? "from" : "to", to ? (const void *)w->from : w->to);
	memmove(to, from, w->bytes);
	return 0;
}

static int
run_fill(Stream *s, const Work *w)
{
	void *to = memory_view(w->to, w->bytes);

	(void)s;
	if (!to)
		return complain(BAD_ADDRESS, "memory that was freed is filled, at %p",
		                (void *)w->to);
	memset(to, w->value, w->bytes);
	return 0;
}

static int
run_free(Stream *s, const Work *w)
{
	(void)s;
	memory_release(w->to);
	return 0;
}

static int
run_host(Stream *s, const Work *w)
{
	(void)s;
	pthread_mutex_lock(&host_lock);
	in_host_function = true;
	w->function(w->argument);
	in_host_function = false;
	pthread_mutex_unlock(&host_lock);
	return 0;
}

static int (*const run_table[])(Stream *stream, const Work *work) = {
	[WORK_COPY] = run_copy, [WORK_FILL] = run_fill,     [WORK_FREE] = run_free,
	[WORK_HOST] = run_host, [WORK_KERNEL] = kernel_run, [WORK_GRAPH] = graph_run,
};

static void
pause_randomly(Stream *s)
{
	long us = settings()->pause;

	if (s->number == settings()->slow)
		us = SLOW_PAUSE;
	else if (us)
		us = (long)(random_next(&s->random) % (uint64_t)(us + 1));
	if (us)
		nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

void
work_run(Stream *s, const Work *w)
{
	pause_randomly(s);
	if (spent())
		return;
	int code = w->code ? complain(w->code, "planned") : run_table[w->kind](s, w);
	if (code)
		spend(code);
}

/* ---- the thread */
static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For the pretended libraries: work that takes seconds by the GPU's clock, and no time. */
static double skipped;
__attribute__((visibility("default"))) void fake_cuda_skip(double seconds);
void
fake_cuda_skip(double seconds)
{
	pthread_mutex_lock(&fake_lock);
	skipped += seconds;
	pthread_mutex_unlock(&fake_lock);
}

static void
record_or_wait(const Work *w)
{
	Event *e = w->event;

	pthread_mutex_lock(&fake_lock);
	if (w->kind == WORK_RECORD && e->done < w->ticket) {
		e->done = w->ticket;
		e->seconds = now() + skipped;
	}
	while (w->kind == WORK_WAIT && e->done < w->ticket && !spent())
		pthread_cond_wait(&fake_changed, &fake_lock);
	pthread_mutex_unlock(&fake_lock);
}

static Work *
next_work(Stream *s)
{
	pthread_mutex_lock(&fake_lock);
	pthread_cond_broadcast(&fake_changed);
	while (!s->first && !s->object.dead)
		pthread_cond_wait(&fake_changed, &fake_lock);
	Work *w = s->first;
	if (w) {
		s->first = w->next;
		if (!s->first)
			s->last = &s->first;
	}
	pthread_mutex_unlock(&fake_lock);
	return w;
}

static void *
stream_main(void *argument)
{
	Stream *s = argument;

	for (Work *w; (w = next_work(s));) {
		if (w->kind == WORK_RECORD || w->kind == WORK_WAIT)
			record_or_wait(w);
		else
			work_run(s, w);
		work_free(w);
		pthread_mutex_lock(&fake_lock);
		s->done++;
		pthread_mutex_unlock(&fake_lock);
	}
	return NULL;
}

/* ---- streams */
/* created: by cuStreamCreate, and counted; else the device's default stream. */
static Stream *
stream_new(bool created)
{
	Stream *s = object_new(OBJECT_STREAM, sizeof(*s));

	pthread_mutex_lock(&fake_lock);
	s->number = created ? n_created++ : -2;
	s->random = settings()->seed * 1000003 + (uint64_t)s->number;
	s->last = &s->first;
	streams = realloc(streams, sizeof(Stream *) * (size_t)(n_streams + 1));
	if (!streams || pthread_create(&s->thread, NULL, stream_main, s) != 0)
		abort();
	pthread_detach(s->thread);
	streams[n_streams++] = s;
	pthread_mutex_unlock(&fake_lock);
	return s;
}

Stream *
stream_find(void *handle)
{
	if (handle)
		return object_find(handle, OBJECT_STREAM);
	pthread_mutex_lock(&own_lock);
	if (!own[current_device])
		own[current_device] = stream_new(false);
	Stream *s = own[current_device];
	pthread_mutex_unlock(&own_lock);
	return s;
}

/* To be called with the lock held. */
static void
wait_for(const Stream *s, uint64_t ticket)
{
	while (s->done < ticket)
		pthread_cond_wait(&fake_changed, &fake_lock);
}

void
device_wait(int device)
{
	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < n_streams; i++)
		if (streams[i]->object.device == device)
			wait_for(streams[i], streams[i]->issued);
	pthread_mutex_unlock(&fake_lock);
}

static void
queue(Stream *s, Work *w)
{
	*s->last = w;
	s->last = &w->next;
	s->issued++;
	pthread_cond_broadcast(&fake_changed);
}

int
submit(Stream *s, Work *w, bool wait)
{
	int code = 0;

	pthread_mutex_lock(&fake_lock);
	if (s->capture) {
		code = capture_add(s, w);
	} else {
		queue(s, w);
		if (wait)
			wait_for(s, s->issued);
	}
	pthread_mutex_unlock(&fake_lock);
	return code ? code : wait ? spent() : 0;
}

int
fake_StreamCreate(void **stream, unsigned flags)
{
	ENTER(StreamCreate);
	if (flags & ~(unsigned)CUDA_STREAM_NON_BLOCKING)
		return BAD_VALUE;
	*stream = stream_new(true);
	return 0;
}

int
fake_StreamDestroy(void *stream)
{
	ENTER(StreamDestroy);
	Stream *s = stream ? object_find(stream, OBJECT_STREAM) : NULL;
	int code = 0;

	if (!s)
		return BAD_HANDLE;
	pthread_mutex_lock(&fake_lock);
	if (s->capture)
		code = capture_break(s->capture, CAPTURE_REFUSES,
		                     "a capturing stream is destroyed");
	else
		s->object.dead = true; /* queued work is still done */
	pthread_cond_broadcast(&fake_changed);
	pthread_mutex_unlock(&fake_lock);
	return code;
}

int
fake_StreamQuery(void *stream)
{
	ENTER(StreamQuery);
	Stream *s = stream_find(stream);
	int code = 0;

	if (!s)
		return BAD_HANDLE;
	pthread_mutex_lock(&fake_lock);
	if (s->capture)
		code = capture_break(s->capture, CAPTURE_REFUSES, "a capturing stream is queried");
	else if (s->done < s->issued)
		code = CUDA_NOT_READY;
	pthread_mutex_unlock(&fake_lock);
	return code;
}

int
fake_LaunchHostFunc(void *stream, void (*function)(void *), void *argument)
{
	ENTER(LaunchHostFunc);
	Stream *s = stream_find(stream);
	if (!s || !function)
		return s ? BAD_VALUE : BAD_HANDLE;
	Work *w = work_new(WORK_HOST);
	w->function = function;
	w->argument = argument;
	return submit(s, w, false);
}

/* ---- copies */
static int
refuse_pageable(Stream *s)
{
	pthread_mutex_lock(&fake_lock);
	int code = s->capture ? capture_break(s->capture, CAPTURE_REFUSES,
	                                      "a copy from or to memory that is not pinned")
	                      : 0;
	pthread_mutex_unlock(&fake_lock);
	return code;
}

int
fake_MemcpyAsync(void *to, const void *from, size_t bytes, void *stream)
{
	ENTER(MemcpyAsync);
	Stream *s = stream_find(stream);
	Place there = memory_place(to, bytes), here = memory_place(from, bytes);

	if (!s)
		return BAD_HANDLE;
	if (there == PLACE_BAD || here == PLACE_BAD) {
		spend(BAD_ADDRESS);
		return complain(BAD_ADDRESS,
		                "a copy of %zu bytes %s %p, which are not of one allocation", bytes,
		                there == PLACE_BAD ? "to" : "from", there == PLACE_BAD ? to : from);
	}
	int code = there == PLACE_HOST || here == PLACE_HOST ? refuse_pageable(s) : 0;
	if (code || bytes == 0)
		return code;
	Work *w = work_new(WORK_COPY);
	w->to = to;
	w->from = from;
	w->bytes = bytes;
	if (here == PLACE_HOST && there != PLACE_HOST) {
		w->owned = malloc(bytes);
		if (!w->owned)
			abort();
		memcpy(w->owned, from, bytes);
	}
	return submit(s, w, there == PLACE_HOST);
}

int
fake_MemsetD8Async(void *to, unsigned char value, size_t n, void *stream)
{
	ENTER(MemsetD8Async);
	Stream *s = stream_find(stream);
	Place place = memory_place(to, n);

	if (!s)
		return BAD_HANDLE;
	if (place != PLACE_DEVICE && place != PLACE_PINNED) {
		spend(BAD_ADDRESS);
		return complain(BAD_ADDRESS,
		                "%zu bytes at %p are filled, which are not of one allocation", n,
		                to);
	}
	if (n == 0)
		return 0;
	Work *w = work_new(WORK_FILL);
	w->to = to;
	w->bytes = n;
	w->value = value;
	return submit(s, w, false);
}

/* ---- events */
int
fake_EventCreate(void **event, unsigned flags)
{
	ENTER(EventCreate);
	Event *e = object_new(OBJECT_EVENT, sizeof(*e));
	e->flags = flags;
	*event = e;
	return 0;
}

int
fake_EventDestroy(void *event)
{
	ENTER(EventDestroy);
	Event *e = object_find(event, OBJECT_EVENT);
	if (!e)
		return BAD_HANDLE;
	e->object.dead = true;
	return 0;
}

static Work *
event_work(WorkKind kind, Event *e)
{
	Work *w = work_new(kind);

	w->event = e;
	w->ticket = e->issued;
	return w;
}

int
fake_EventRecord(void *event, void *stream)
{
	ENTER(EventRecord);
	Event *e = object_find(event, OBJECT_EVENT);
	Stream *s = stream_find(stream);
	int code = 0;

	if (!e || !s)
		return BAD_HANDLE;
	if (e->object.device != s->object.device)
		return complain(BAD_HANDLE, "an event is recorded on another device's stream");
	pthread_mutex_lock(&fake_lock);
	if (s->capture) {
		code = capture_record(s, e);
	} else {
		e->capture = NULL;
		e->issued++;
		queue(s, event_work(WORK_RECORD, e));
	}
	pthread_mutex_unlock(&fake_lock);
	return code;
}

int
fake_StreamWaitEvent(void *stream, void *event, unsigned flags)
{
	ENTER(StreamWaitEvent);
	Event *e = object_find(event, OBJECT_EVENT);
	Stream *s = stream_find(stream);
	int code = 0;

	if (!e || !s || flags)
		return flags ? BAD_VALUE : BAD_HANDLE;
	pthread_mutex_lock(&fake_lock);
	if (s->capture || e->capture)
		code = capture_wait(s, e);
	else if (e->issued)
		queue(s, event_work(WORK_WAIT, e));
	pthread_mutex_unlock(&fake_lock);
	return code;
}

/* To be called with the lock held. */
static int
event_state(const Event *e)
{
	if (e->capture)
		return capture_break(e->capture, CAPTURED_EVENT, "a captured event is queried");
	return e->done < e->issued ? CUDA_NOT_READY : 0;
}

int
fake_EventQuery(void *event)
{
	ENTER(EventQuery);
	Event *e = object_find(event, OBJECT_EVENT);
	if (!e)
		return BAD_HANDLE;
	pthread_mutex_lock(&fake_lock);
	int code = event_state(e);
	pthread_mutex_unlock(&fake_lock);
	return code;
}

int
fake_EventElapsedTime(float *milliseconds, void *from, void *to)
{
	ENTER(EventElapsedTime);
	Event *first = object_find(from, OBJECT_EVENT), *last = object_find(to, OBJECT_EVENT);

	if (!first || !last || ((first->flags | last->flags) & NO_TIMING))
		return BAD_HANDLE;
	pthread_mutex_lock(&fake_lock);
	int code = event_state(first);
	if (!code)
		code = event_state(last);
	if (!code && (!first->issued || !last->issued))
		code = complain(BAD_HANDLE, "the time of an event that was never recorded");
	if (!code)
		*milliseconds = (float)((last->seconds - first->seconds) * 1e3);
	pthread_mutex_unlock(&fake_lock);
	return code;
}
