/* The async device, for tests: the CPU as a device that guarantees no more than device.h promises. Each stream has a thread,
 * which pauses at random before every copy, fill and kernel, and only these threads can read the device's memory. A schedule
 * that misses a WAIT gives wrong results here, and a host that reads the device's memory crashes.
 *
 * $GRADC_ASYNC_SLOW=N makes stream number N slow: a pause of 20 ms before each piece of work. */
#include "runtime/device/async_memory.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAUSE = 300000, SLOW_PAUSE = 20000000 }; /* longest pause, in ns */

typedef struct Job Job;
struct Job {
	Job *next;
	/* NULL if the job records an event or waits for one */
	Status (*work)(Device *device, Job *job, bool *done);
	Span to;
	const void *from;
	KernelFn kernel;
	int64_t begin, end;
	const void *scalars;
	HostTask task;
	LookUp look_up;
	int stream;
	int event; /* the event that the job records or waits for */
	bool records;
	uint64_t ticket; /* number of the event's recording, known when the job is queued */
	uint32_t n_buffers;
	void *buffers[];
};

typedef struct {
	Device *device;
	pthread_t thread;
	Job *first, **last;
	bool busy, started;
	uint64_t random;
	long pause;
} Lane; /* a stream and its thread */

typedef struct {
	uint64_t issued, done; /* numbers of the newest queued and the newest finished recording */
	double seconds;
} Event;

struct Recorded {
	Job *first, **last;
};
struct Device {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* signalled when any field below changes */
	Lane streams[MAX_STREAMS];
	AsyncMemory *memory;
	Recorded *capture; /* NULL: jobs are run */
	Status fault;      /* the first fault; afterwards only events are handled */
	bool closing;
	int n_events;
	Event events[];
};
struct Code {
	const KernelCode *kernels;
};

static void
pause_randomly(Lane *s)
{
	s->random = hash_mix(s->random, 0x9e3779b97f4a7c15ull);
	long ns = s->pause == SLOW_PAUSE ? SLOW_PAUSE : (long)(s->random % (uint64_t)s->pause);
	nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static Job *
next_job(Device *d, Lane *s)
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

static void
keep_fault(Device *d, Status status)
{
	if (!status)
		return;
	pthread_mutex_lock(&d->lock);
	if (d->fault)
		status_free(status);
	else
		d->fault = status;
	pthread_mutex_unlock(&d->lock);
}

static bool
is_spent(Device *d)
{
	pthread_mutex_lock(&d->lock);
	bool spent = d->fault != NULL;
	pthread_mutex_unlock(&d->lock);
	return spent;
}

static void
record_or_wait(Device *d, const Job *job)
{
	Event *e = &d->events[job->event];
	double now = seconds_now();

	pthread_mutex_lock(&d->lock);
	if (job->records) {
		e->done = job->ticket;
		e->seconds = now;
		pthread_cond_broadcast(&d->changed);
	}
	while (!job->records && e->done < job->ticket && !d->closing)
		pthread_cond_wait(&d->changed, &d->lock);
	pthread_mutex_unlock(&d->lock);
}

static void
do_job(Device *d, Lane *s, Job *job)
{
	Status status = NULL;
	bool done = false;

	if (!job->work) {
		record_or_wait(d, job);
		return;
	}
	pause_randomly(s);
	while (!done && !status && !is_spent(d)) {
		status = job->work(d, job, &done);
		if (!done)
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
	}
	keep_fault(d, status);
}

static void *
stream_main(void *arg)
{
	Lane *s = arg;

	for (Job *job; (job = next_job(s->device, s));) {
		do_job(s->device, s, job);
		free(job);
	}
	return NULL;
}

static void
free_jobs(Job *job)
{
	for (Job *next; job; job = next) {
		next = job->next;
		free(job);
	}
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
	async_memory_close(d->memory);
	status_free(d->fault);
	free(d);
}

static Status
async_open(const DeviceOptions *options, Device **out)
{
	int n_events = options->n_events ? options->n_events : N_DEVICE_EVENTS;
	const char *slow = getenv("GRADC_ASYNC_SLOW");
	Device *d = calloc(1, sizeof(*d) + sizeof(Event) * (size_t)n_events);

	*out = NULL;
	if (!d)
		return status_error(EXIT_SYSTEM, "no memory for the device");
	d->n_events = n_events;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->changed, NULL);
	Status status = async_memory_open(&d->memory);
	for (int i = 0; i < MAX_STREAMS && !status; i++) {
		Lane *s = &d->streams[i];

		*s = (Lane){.device = d,
		            .last = &s->first,
		            .busy = true,
		            .pause = slow && atoi(slow) == i ? SLOW_PAUSE : PAUSE,
		            .random = hash_mix((uint64_t)i + 1, (uint64_t)options->ordinal)};
		s->started = pthread_create(&s->thread, NULL, stream_main, s) == 0;
		if (!s->started)
			status = status_error(EXIT_SYSTEM, "no thread for stream %d", i);
	}
	if (status)
		async_close(d);
	else
		*out = d;
	return status;
}

static Status
async_alloc(Device *device, MemoryKind kind, int64_t bytes, Span *out)
{
	return kind == MEMORY_DEVICE ? async_memory_alloc(device->memory, bytes, out)
	                             : device_cpu.alloc(NULL, kind, bytes, out);
}

static void
async_free(Device *device, MemoryKind kind, Span span)
{
	if (kind == MEMORY_DEVICE)
		async_memory_free(device->memory, span);
	else
		device_cpu.free(NULL, kind, span);
}

static Job *
job_new(int stream, Status (*work)(Device *, Job *, bool *), uint32_t n_buffers)
{
	Job *job = calloc(1, sizeof(*job) + sizeof(void *) * n_buffers);

	if (job) {
		job->work = work;
		job->stream = stream;
		job->n_buffers = n_buffers;
	}
	return job;
}

/* Called with the lock held. The queue then owns the job. */
static void
append(Job ***last, Job *job)
{
	**last = job;
	*last = &job->next;
}

/* Called with the lock held. The recording of an event gets its number when it is queued. */
static void
queue(Device *d, Job *job)
{
	if (!job->work) {
		d->events[job->event].issued += job->records;
		job->ticket = d->events[job->event].issued;
	}
	append(&d->streams[job->stream].last, job);
}

static Status
submit(Device *d, Job *job)
{
	if (!job)
		return status_error(EXIT_SYSTEM, "no memory for a job");
	pthread_mutex_lock(&d->lock);
	if (d->capture)
		append(&d->capture->last, job);
	else
		queue(d, job);
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* ---- work */
static Status
do_copy(Device *d, Job *job, bool *done)
{
	memmove(async_memory_at(d->memory, job->to.at), async_memory_at(d->memory, job->from),
	        (size_t)job->to.bytes);
	*done = true;
	return NULL;
}

static Status
async_copy(Device *d, int stream, Span to, const void *from)
{
	Job *job = job_new(stream, do_copy, 0);

	if (job) {
		job->to = to;
		job->from = from;
	}
	return submit(d, job);
}

static Status
do_fill(Device *d, Job *job, bool *done)
{
	memset(async_memory_at(d->memory, job->to.at), 0, (size_t)job->to.bytes);
	*done = true;
	return NULL;
}

static Status
async_fill_zero(Device *d, int stream, Span to)
{
	Job *job = job_new(stream, do_fill, 0);

	if (job)
		job->to = to;
	return submit(d, job);
}

static Status
do_look_up(Device *d, Job *job, bool *done)
{
	LookUp l = job->look_up;

	l.to = async_memory_at(d->memory, l.to);
	l.tables = async_memory_at(d->memory, l.tables);
	look_up_on_host(&l);
	*done = true;
	return NULL;
}

static Status
async_look_up(Device *d, int stream, const Code *code, const LookUp *l)
{
	Job *job = job_new(stream, do_look_up, 0);

	(void)code;
	if (job)
		job->look_up = *l;
	return submit(d, job);
}

static bool
async_has_look_up(const Code *code, const LookUp *l)
{
	(void)code;
	(void)l;
	return true;
}

static Status
async_load(Device *device, const CodeSource *source, Code **out)
{
	const KernelCode *kernels;

	(void)device;
	*out = NULL;
	RETURN_IF_ERROR(code_functions(source, device_async.name, &kernels));
	*out = malloc(sizeof(**out));
	if (!*out)
		return status_error(EXIT_SYSTEM, "no memory for code");
	(*out)->kernels = kernels;
	return NULL;
}

static void
async_unload(Device *device, Code *code)
{
	(void)device;
	free(code);
}

static Status
do_run(Device *d, Job *job, bool *done)
{
	job->kernel(job->buffers, async_memory_at(d->memory, job->scalars), job->begin, job->end);
	*done = true;
	return NULL;
}

/* The address of an argument for the kernel. If only a part of the argument exists in memory: the address at which the whole
 * would begin. */
static void *
async_buffer(Device *d, const Launch *launch, uint32_t i)
{
	uintptr_t before = launch->before ? (uintptr_t)launch->before[i] : 0;
	void *part = (void *)((uintptr_t)launch->buffers[i] + before);

	return (void *)((uintptr_t)async_memory_at(d->memory, part) - before);
}

static Status
async_run(Device *d, int stream, const Code *code, const Launch *launch)
{
	Job *job = job_new(stream, do_run, launch->n_buffers);

	if (job) {
		job->kernel = code->kernels[launch->kernel].run;
		job->begin = launch->begin;
		job->end = launch->end;
		job->scalars = launch->scalars;
		for (uint32_t i = 0; i < launch->n_buffers; i++)
			job->buffers[i] = async_buffer(d, launch, i);
	}
	return submit(d, job);
}

static Status
do_task(Device *d, Job *job, bool *done)
{
	(void)d;
	return job->task.poll(&job->task, done);
}

static Status
async_call(Device *d, int stream, const HostTask *task)
{
	Job *job = job_new(stream, do_task, 0);

	if (job)
		job->task = *task;
	return submit(d, job);
}

/* ---- events */
static Status
async_event(Device *d, int stream, int event, bool records)
{
	Job *job = job_new(stream, NULL, 0);

	if (job) {
		job->event = event;
		job->records = records;
	}
	return submit(d, job);
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

static Status
async_host_wait(Device *d, int event)
{
	pthread_mutex_lock(&d->lock);
	const Event *e = &d->events[event];
	for (uint64_t ticket = e->issued; e->done < ticket;)
		pthread_cond_wait(&d->changed, &d->lock);
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

static Status
async_fault(Device *d)
{
	pthread_mutex_lock(&d->lock);
	Status fault = status_copy(d->fault);
	pthread_mutex_unlock(&d->lock);
	return fault;
}

static bool
async_is_done(Device *d, int event)
{
	pthread_mutex_lock(&d->lock);
	bool done = d->events[event].done >= d->events[event].issued;
	pthread_mutex_unlock(&d->lock);
	return done;
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
	Status fault = status_copy(d->fault);
	pthread_mutex_unlock(&d->lock);
	return fault;
}

static Status
async_elapsed(Device *d, int from_event, int to_event, double *seconds)
{
	pthread_mutex_lock(&d->lock);
	*seconds = d->events[to_event].seconds - d->events[from_event].seconds;
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* ---- recorded jobs */
static Status
async_capture_begin(Device *d)
{
	Recorded *r = calloc(1, sizeof(*r));

	if (!r)
		return status_error(EXIT_SYSTEM, "no memory to record a program");
	r->last = &r->first;
	d->capture = r;
	return NULL;
}

static Status
async_capture_end(Device *d, Recorded **out)
{
	*out = d->capture;
	d->capture = NULL;
	return NULL;
}

static Status
async_launch(Device *d, const Recorded *recorded, const EventShift *shift)
{
	for (const Job *from = recorded->first; from; from = from->next) {
		Job *job = job_new(from->stream, from->work, from->n_buffers);

		if (job) {
			memcpy(job, from, sizeof(*job) + sizeof(void *) * from->n_buffers);
			job->next = NULL;
			job->event = event_shifted(shift, job->event);
		}
		RETURN_IF_ERROR(submit(d, job));
	}
	return NULL;
}

static void
async_forget(Device *d, Recorded *recorded)
{
	(void)d;
	if (recorded)
		free_jobs(recorded->first);
	free(recorded);
}

const DeviceOps device_async = {
	.name = "async",
	.for_tests = true,
	.image_kind = IMAGE_FUNCTIONS,
	.runs = functions_run,
	.open = async_open,
	.close = async_close,
	.alloc = async_alloc,
	.free = async_free,
	.copy = async_copy,
	.fill_zero = async_fill_zero,
	.look_up = async_look_up,
	.has_look_up = async_has_look_up,
	.load = async_load,
	.unload = async_unload,
	.run = async_run,
	.call = async_call,
	.record = async_record,
	.wait = async_wait,
	.host_wait = async_host_wait,
	.fault = async_fault,
	.is_done = async_is_done,
	.elapsed = async_elapsed,
	.sync = async_sync,
	.capture_begin = async_capture_begin,
	.capture_end = async_capture_end,
	.launch = async_launch,
	.forget = async_forget,
};
