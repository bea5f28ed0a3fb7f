/* The CPU: every call is done when it returns, so streams need no ordering. Kernels run on the threads of the
 * pool. */
#include "runtime/device.h"
#include "runtime/parallel.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct Device {
	Pool *pool;
	double events[MAX_EVENTS + MAX_TIMERS]; /* seconds at the last recording */
};
struct Code {
	const KernelFn *kernels;
	int n;
};

static Status
cpu_open(const DeviceOptions *options, Device **out)
{
	*out = NULL;
	if (options->ordinal != 0)
		return status_error(EXIT_SYSTEM, "cpu:%d: there is only cpu:0", options->ordinal);
	Device *device = calloc(1, sizeof(*device));
	if (!device)
		return status_error(EXIT_SYSTEM, "no memory for the device");
	Status status = pool_open(THREADS_BEST, options->threads, &device->pool);
	if (status)
		free(device);
	else
		*out = device;
	return status;
}

static void
cpu_close(Device *device)
{
	if (!device)
		return;
	pool_close(device->pool);
	free(device);
}

static Status
cpu_alloc(Device *device, MemoryKind kind, int64_t bytes, Span *out)
{
	size_t size = ((size_t)bytes + 63) / 64 * 64 + 64; /* never 0 */

	(void)device;
	(void)kind;
	*out = (Span){aligned_alloc(64, size), bytes};
	if (!out->at)
		return status_error(EXIT_SYSTEM, "no memory for a region of %lld bytes",
		                    (long long)bytes);
	memset(out->at, 0, size);
	return NULL;
}

static void
cpu_free(Device *device, MemoryKind kind, Span span)
{
	(void)device;
	(void)kind;
	free(span.at);
}

static Status
cpu_copy(Device *device, int stream, Span to, const void *from)
{
	(void)device;
	(void)stream;
	memmove(to.at, from, (size_t)to.bytes);
	return NULL;
}

static Status
cpu_fill_zero(Device *device, int stream, Span to)
{
	(void)device;
	(void)stream;
	memset(to.at, 0, (size_t)to.bytes);
	return NULL;
}

static Status
cpu_load(Device *device, const KernelFn *kernels, int n, Code **out)
{
	(void)device;
	*out = malloc(sizeof(**out));
	if (!*out)
		return status_error(EXIT_SYSTEM, "no memory for %d kernels", n);
	**out = (Code){kernels, n};
	return NULL;
}

static void
cpu_unload(Device *device, Code *code)
{
	(void)device;
	free(code);
}

typedef struct {
	KernelFn kernel;
	const Launch *launch;
} KernelPart;

static void
run_part(void *ctx, int64_t begin, int64_t end)
{
	const KernelPart *p = ctx;
	const Launch *l = p->launch;

	p->kernel(l->buffers, l->scalars, l->begin + begin, l->begin + end);
}

static Status
cpu_run(Device *device, int stream, const Code *code, const Launch *launch)
{
	KernelPart part = {code->kernels[launch->kernel], launch};

	(void)stream;
	parallel_for(device->pool, launch->end - launch->begin, launch->grain, run_part, &part);
	return NULL;
}

static Status
cpu_record(Device *device, int stream, int event)
{
	struct timespec now;

	(void)stream;
	clock_gettime(CLOCK_MONOTONIC, &now);
	device->events[event] = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
	return NULL;
}

static Status
cpu_wait(Device *device, int stream, int event)
{
	(void)device;
	(void)stream;
	(void)event;
	return NULL;
}

static Status
cpu_elapsed(Device *device, int from_event, int to_event, double *seconds)
{
	*seconds = device->events[to_event] - device->events[from_event];
	return NULL;
}

static Status
cpu_sync(Device *device)
{
	(void)device;
	return NULL;
}

const DeviceOps device_cpu = {
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.copy = cpu_copy,
	.fill_zero = cpu_fill_zero,
	.load = cpu_load,
	.unload = cpu_unload,
	.run = cpu_run,
	.record = cpu_record,
	.wait = cpu_wait,
	.elapsed = cpu_elapsed,
	.sync = cpu_sync,
};
