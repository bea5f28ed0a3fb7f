/* Times trial runs of library calls with the GPU's own clock, so that the fastest way to run a call can be chosen. */
#include "runtime/device/cuda/cuda.h"

enum { RUNS = 5 }; /* timed runs, after one that is not timed */

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
run_between(Device *d, void *const events[2], Status (*run)(void *call, void *stream), void *call)
{
	void *stream;

	RETURN_IF_ERROR(cuda_stream(d, STREAM_COMPUTE, &stream));
	RETURN_IF_ERROR(run(call, stream));
	RETURN_IF_ERROR(cuda_check(d, d->driver.EventRecord(events[0], stream), "a trial"));
	for (int i = 0; i < RUNS; i++)
		RETURN_IF_ERROR(run(call, stream));
	RETURN_IF_ERROR(cuda_check(d, d->driver.EventRecord(events[1], stream), "a trial"));
	return cuda_wait_streams(d);
}

static double
trial_time(void *device, Status (*run)(void *call, void *stream), void *call)
{
	Device *d = device;
	void *events[2] = {NULL, NULL};
	float ms = -1;
	Status status = NULL;

	for (int i = 0; i < 2 && !status; i++)
		status = cuda_check(d, d->driver.EventCreate(&events[i], 0), "a trial");
	if (!status)
		status = run_between(d, events, run, call);
	if (status) /* wait even after a fault, because the call's memory is freed next */
		status_free(cuda_wait_streams(d));
	if (!status)
		status = cuda_check(d, d->driver.EventElapsedTime(&ms, events[0], events[1]),
		                    "a trial");
	for (int i = 0; i < 2; i++)
		if (events[i])
			d->driver.EventDestroy(events[i]);
	bool ok = !status;
	status_free(status);
	return ok ? (double)ms / 1e3 / RUNS : -1;
}

LibraryTrials
cuda_trials(Device *d, const DeviceOptions *options)
{
	return (LibraryTrials){.file = options->autotune,
	                       .times = options->autotune_times,
	                       .alloc = trial_alloc,
	                       .free = trial_free,
	                       .time = trial_time,
	                       .context = d};
}
