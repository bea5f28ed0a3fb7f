/* What the tuner of libraries (runtime/library/tuner.c) needs of a GPU: memory, and the time of runs by the GPU's own clock. */
#include "runtime/device/cuda/cuda.h"

/* Seconds after which an engine of a library counts as hanging: its runs take milliseconds. */
#define TRIAL_PATIENCE 10

static void *
trial_alloc(void *device, int64_t bytes)
{
	Span span;
	Status status = device_cuda.alloc(device, MEMORY_DEVICE, bytes, &span);

	if (!status)
		return span.at;
	status_free(status);
	return NULL;
}

static void
trial_free(void *device, void *at, int64_t bytes)
{
	device_cuda.free(device, MEMORY_DEVICE, (Span){at, bytes});
}

static Status
trial_fill(void *device, void *at, int byte, int64_t bytes)
{
	Device *d = device;
	void *stream;

	RETURN_IF_ERROR(cuda_stream(d, STREAM_COMPUTE, &stream));
	RETURN_IF_ERROR(cuda_check(
		d, d->driver.MemsetD8Async(at, (unsigned char)byte, (size_t)bytes, stream),
		"a trial"));
	return cuda_wait_streams(d);
}

static Status
trial_read(void *device, void *to, const void *from, int64_t bytes)
{
	Device *d = device;

	RETURN_IF_ERROR(device_cuda.copy(d, STREAM_COMPUTE, (Span){to, bytes}, from));
	return cuda_wait_streams(d);
}

static Status
run_between(Device *d, void *const events[2], Status (*run)(void *call, void *stream), void *call,
            int runs)
{
	void *stream;

	RETURN_IF_ERROR(cuda_stream(d, STREAM_COMPUTE, &stream));
	RETURN_IF_ERROR(cuda_check(d, d->driver.EventRecord(events[0], stream), "a trial"));
	for (int i = 0; i < runs; i++)
		RETURN_IF_ERROR(run(call, stream));
	return cuda_check(d, d->driver.EventRecord(events[1], stream), "a trial");
}

/* Waits for the streams even after a fault, because the call's memory is freed next. */
static Status
time_between(Device *d, void *const events[2], Status (*run)(void *call, void *stream), void *call,
             int runs, double *seconds)
{
	const double patience = d->patience;
	float ms = 0;

	d->patience = patience < TRIAL_PATIENCE ? patience : TRIAL_PATIENCE;
	Status status = run_between(d, events, run, call, runs);
	Status wait = cuda_wait_streams(d);
	d->patience = patience;
	if (status) {
		status_free(wait);
		return status;
	}
	RETURN_IF_ERROR(wait);
	RETURN_IF_ERROR(
		cuda_check(d, d->driver.EventElapsedTime(&ms, events[0], events[1]), "a trial"));
	*seconds = (double)ms / 1e3 / runs;
	return NULL;
}

static Status
trial_time(void *device, Status (*run)(void *call, void *stream), void *call, int runs,
           double *seconds)
{
	Device *d = device;
	void *events[2] = {NULL, NULL};
	Status status = NULL;

	for (int i = 0; i < 2 && !status; i++)
		status = cuda_check(d, d->driver.EventCreate(&events[i], 0), "a trial");
	if (!status)
		status = time_between(d, events, run, call, runs, seconds);
	for (int i = 0; i < 2; i++)
		if (events[i])
			d->driver.EventDestroy(events[i]);
	return status;
}

LibraryTrials
cuda_trials(Device *d)
{
	return (LibraryTrials){.alloc = trial_alloc,
	                       .free = trial_free,
	                       .fill = trial_fill,
	                       .read = trial_read,
	                       .time = trial_time,
	                       .context = d};
}

Status
cuda_trials_end(Device *d)
{
	uint64_t none = 0;

	if (!d->pool || !d->tuner.tunings || d->tuner.tunings->seconds == 0)
		return NULL;
	RETURN_IF_ERROR(cuda_wait_streams(d));
	RETURN_IF_ERROR(cuda_check(d, d->driver.MemPoolTrimTo(d->pool, 0), "a trial"));
	return cuda_check(d, d->driver.MemPoolSetAttribute(d->pool, CUDA_POOL_RESERVED_HIGH, &none),
	                  "a trial");
}
