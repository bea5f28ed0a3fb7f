/* The CPU as a device that keeps no more than it promises: a thread for each stream, and before
 * every copy, fill and kernel a random pause. A schedule that misses a WAIT gives wrong results
 * here. For tests. */
#include "runtime/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Job Job;
struct Job {
	Job *next;
	void (*work)(Device *device, Job *job);
	Span to;
	const void *from;
	KernelFn kernel;
	int64_t begin, end;
	int event;       /* -1: work, not an event */
	uint64_t ticket; /* of the event: which recording */
	Scalar scalars[N_SCALARS];
	void *buffers[];
};

typedef struct {
	Device *device;
	pthread_t thread;
	Job *first, **last;
	bool busy, started;
	uint64_t random;
} Stream;

typedef struct {
	uint64_t issued, done; /* recordings */
	double seconds;
} Event;

struct Device {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* anything below */
	Stream streams[MAX_STREAMS];
	Event events[MAX_EVENTS + MAX_TIMERS];
	bool closing;
};
struct Code {
	const KernelFn *kernels;
};

static void
pause_randomly(Stream *s)
{
	s->random = hash_mix(s->random, 0x9e3779b97f4a7c15ull);
	struct timespec t = {.tv_nsec = (long)(s->random % 300000)};
	nanosleep(&t, NULL);
}

static Job *
next_job(Device *d, Stream *s)
{
	pthread_mutex_lock(&d->lock);
	s->busy = false;
	pthread_cond_broadcast(&d->changed);
	while (!s->first && !d->closing)
		pthread_cond_wait(&d->changed, &d->lock);
	Job *job = s->first;
	if (job) {
		s->first = job->next;
		if (!s->first)
			s->last = &s->first;
		s->busy = true;
	}
	pthread_mutex_unlock(&d->lock);
	return job;
}

static void *
stream_main(void *arg)
{
	Stream *s = arg;

	for (Job *job; (job = next_job(s->device, s));) {
		if (job->event < 0)
			pause_randomly(s);
		job->work(s->device, job);
		free(job);
	}
	return NULL;
}

static void
async_close(Device *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	d->closing = true;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->lock);
	for (int i = 0; i < MAX_STREAMS; i++)
		if (d->streams[i].started)
			pthread_join(d->streams[i].thread, NULL);
	pthread_cond_destroy(&d->changed);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static Status
async_open(const DeviceOptions *options, Device **out)
{
	*out = NULL;
	Device *d = calloc(1, sizeof(*d));

	if (!d)
		return status_error(EXIT_SYSTEM, "no memory for the device");
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->changed, NULL);
	for (int i = 0; i < MAX_STREAMS; i++) {
		Stream *s = &d->streams[i];

		*s = (Stream){.device = d,
		              .last = &s->first,
		              .busy = true,
		              .random = hash_mix((uint64_t)i + 1, (uint64_t)options->ordinal)};
		s->started = pthread_create(&s->thread, NULL, stream_main, s) == 0;
		if (!s->started) {
			async_close(d);
			return status_error(EXIT_SYSTEM, "no thread for stream %d", i);
		}
	}
	*out = d;
	return NULL;
}

static Status
async_alloc(Device *device, MemoryKind kind, int64_t bytes, Span *out)
{
	(void)device;
	return device_cpu.alloc(NULL, kind, bytes, out);
}

static void
async_free(Device *device, MemoryKind kind, Span span)
{
	(void)device;
	device_cpu.free(NULL, kind, span);
}

static Job *
job_new(void (*work)(Device *, Job *), uint32_t n_buffers)
{
	Job *job = calloc(1, sizeof(*job) + sizeof(void *) * n_buffers);

	if (job) {
		job->work = work;
		job->event = -1;
	}
	return job;
}

static Status
submit(Device *d, int stream, Job *job)
{
	if (!job)
		return status_error(EXIT_SYSTEM, "no memory for a job");
	pthread_mutex_lock(&d->lock);
	*d->streams[stream].last = job;
	d->streams[stream].last = &job->next;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

static void
do_copy(Device *d, Job *job)
{
	(void)d;
	memmove(job->to.at, job->from, (size_t)job->to.bytes);
}

static Status
async_copy(Device *d, int stream, Span to, const void *from)
{
	Job *job = job_new(do_copy, 0);

	if (job) {
		job->to = to;
		job->from = from;
	}
	return submit(d, stream, job);
}

static void
do_fill(Device *d, Job *job)
{
	(void)d;
	memset(job->to.at, 0, (size_t)job->to.bytes);
}

static Status
async_fill_zero(Device *d, int stream, Span to)
{
	Job *job = job_new(do_fill, 0);

	if (job)
		job->to = to;
	return submit(d, stream, job);
}

static Status
async_load(Device *device, const CodeSource *source, Code **out)
{
	(void)device;
	*out = malloc(sizeof(**out));
	if (!*out)
		return status_error(EXIT_SYSTEM, "no memory for %d kernels", source->n);
	(*out)->kernels = source->kernels;
	return NULL;
}

static void
async_unload(Device *device, Code *code)
{
	(void)device;
	free(code);
}

static void
do_run(Device *d, Job *job)
{
	(void)d;
	job->kernel(job->buffers, job->scalars, job->begin, job->end);
}

static Status
async_run(Device *d, int stream, const Code *code, const Launch *launch)
{
	Job *job = job_new(do_run, launch->n_buffers);

	if (job) {
		job->kernel = code->kernels[launch->kernel];
		job->begin = launch->begin;
		job->end = launch->end;
		if (launch->n_buffers)
			memcpy(job->buffers, launch->buffers, sizeof(void *) * launch->n_buffers);
		if (launch->scalars)
			memcpy(job->scalars, launch->scalars, sizeof(job->scalars));
	}
	return submit(d, stream, job);
}

static void
do_record(Device *d, Job *job)
{
	double now = seconds_now();

	pthread_mutex_lock(&d->lock);
	d->events[job->event].done = job->ticket;
	d->events[job->event].seconds = now;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->lock);
}

static void
do_wait(Device *d, Job *job)
{
	pthread_mutex_lock(&d->lock);
	while (d->events[job->event].done < job->ticket)
		pthread_cond_wait(&d->changed, &d->lock);
	pthread_mutex_unlock(&d->lock);
}

static Status
async_event(Device *d, int stream, int event, bool record)
{
	Job *job = job_new(record ? do_record : do_wait, 0);

	if (job) {
		pthread_mutex_lock(&d->lock);
		d->events[event].issued += record;
		job->event = event;
		job->ticket = d->events[event].issued;
		pthread_mutex_unlock(&d->lock);
	}
	return submit(d, stream, job);
}

static Status
async_record(Device *d, int stream, int event)
{
	return async_event(d, stream, event, true);
}

static Status
async_wait(Device *d, int stream, int event)
{
	return async_event(d, stream, event, false);
}

static bool
is_idle(const Device *d)
{
	for (int i = 0; i < MAX_STREAMS; i++)
		if (d->streams[i].first || d->streams[i].busy)
			return false;
	return true;
}

static Status
async_sync(Device *d)
{
	pthread_mutex_lock(&d->lock);
	while (!is_idle(d))
		pthread_cond_wait(&d->changed, &d->lock);
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

static Status
async_elapsed(Device *d, int from_event, int to_event, double *seconds)
{
	pthread_mutex_lock(&d->lock);
	*seconds = d->events[to_event].seconds - d->events[from_event].seconds;
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

const DeviceOps device_async = {
	.name = "async",
	.open = async_open,
	.close = async_close,
	.alloc = async_alloc,
	.free = async_free,
	.copy = async_copy,
	.fill_zero = async_fill_zero,
	.load = async_load,
	.unload = async_unload,
	.run = async_run,
	.record = async_record,
	.wait = async_wait,
	.elapsed = async_elapsed,
	.sync = async_sync,
};
