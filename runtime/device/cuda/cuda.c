/* An NVIDIA GPU, used through its driver alone (driver_symbols.def). Work is queued on streams. The host waits only in
 * functions whose purpose is waiting (waits.c). There it polls, so that it never blocks inside the driver. */
#include "runtime/device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

enum { PATIENCE = 600 }; /* seconds; longer than any program's launch takes */

void
cuda_keep_fault(Device *d, Status status)
{
	Status none = NULL;

	if (status && !atomic_compare_exchange_strong(&d->fault, &none, status))
		status_free(status);
}

Status
cuda_check(Device *d, int code, const char *what)
{
	Status status = cuda_status(&d->driver, code, what);

	if (status)
		cuda_keep_fault(d, status_copy(status));
	return status;
}

/* ---- opening */
static Status
read_patience(double *out)
{
	const char *text = getenv("GRADC_DEVICE_TIMEOUT");

	*out = PATIENCE;
	if (text && (!parse_double(text, out) || !(*out > 0)))
		return status_error(EXIT_USAGE, "GRADC_DEVICE_TIMEOUT=%s: need seconds above 0",
		                    text);
	return NULL;
}

/* Makes the memory pool. Memory stays with the pool until it is closed. */
static Status
open_pool(Device *d)
{
	CudaPoolProperties p = {.allocation = CUDA_ALLOCATION_PINNED,
	                        .location = {CUDA_LOCATION_DEVICE, d->gpu.device}};
	uint64_t kept = UINT64_MAX;

	if (!d->gpu.has_pools)
		return NULL;
	RETURN_IF_ERROR(cuda_check(d, d->driver.MemPoolCreate(&d->pool, &p), "making a pool"));
	return cuda_check(d, d->driver.MemPoolSetAttribute(d->pool, CUDA_POOL_KEPT, &kept),
	                  "making a pool");
}

static const LibraryOps *const known[] = {&library_cublaslt, &library_cudnn};

static Status
start(Device *d, const DeviceOptions *options)
{
	RETURN_IF_ERROR(read_patience(&d->patience));
	RETURN_IF_ERROR(cuda_driver_open(&d->driver));
	RETURN_IF_ERROR(gpu_find(&d->driver, options->ordinal, &d->gpu));
	RETURN_IF_ERROR(cuda_check(d, d->driver.DevicePrimaryCtxRetain(&d->context, d->gpu.device),
	                           d->gpu.name));
	cuda_enter(d);
	RETURN_IF_ERROR(open_pool(d));
	d->watch = options->watch;
	d->trials = cuda_trials(d);
	d->tuner = (Tuner){.tunings = options->tunings,
	                   .file = options->tune_file,
	                   .seconds = options->tune_seconds,
	                   .steps = options->tune_steps,
	                   .trials = &d->trials,
	                   .machine = d->gpu.name,
	                   .tf32 = options->tf32};
	if (!options->no_libraries)
		libraries_open(&d->libraries,
		               &(LibraryHome){.machine = d->gpu.name,
		                              .capability = 10 * d->gpu.major + d->gpu.minor,
		                              .processors = d->gpu.processors,
		                              .tf32 = options->tf32},
		               COUNT(known), known);
	return NULL;
}

/* Keeps the struct Device in a list until the process ends, and does not free it, because the driver may still touch it. */
static void
leave(Device *d)
{
	static _Atomic(Device *) left;

	d->next_left = atomic_exchange(&left, d);
}

static void
close_context(Device *d)
{
	libraries_close(&d->libraries);
	for (int i = 0; i < d->n_events; i++)
		if (d->events[i])
			d->driver.EventDestroy(d->events[i]);
	for (int i = 0; i < MAX_STREAMS; i++)
		if (d->streams[i])
			d->driver.StreamDestroy(d->streams[i]);
	if (d->pool)
		d->driver.MemPoolDestroy(d->pool);
	d->driver.CtxSetCurrent(NULL);
	d->driver.DevicePrimaryCtxRelease(d->gpu.device);
}

static void
cuda_close(Device *d)
{
	if (!d)
		return;
	if (d->context && !cuda_drain(d)) {
		leave(d);
		return;
	}
	if (d->context)
		close_context(d);
	cuda_tasks_free(d);
	status_free(atomic_load(&d->fault));
	memory_free(d);
}

static void
close_device(void *device)
{
	cuda_close(device);
}

static Status
cuda_open(const DeviceOptions *options, Device **out)
{
	int n = options->n_events ? options->n_events : N_DEVICE_EVENTS;
	Device *d = memory_zeroed(1, sizeof(*d) + sizeof(d->events[0]) * (size_t)n);

	*out = NULL;
	d->n_events = n;
	pthread_mutex_init(&d->asking, NULL);
	memory_hold(close_device, d);
	Status status = start(d, options);
	memory_let_go();
	if (status)
		cuda_close(d);
	else
		*out = d;
	return status;
}

/* ---- questions before a device is opened */
static int
cuda_count(void)
{
	CudaDriver driver;
	int n = 0;
	Status status = cuda_driver_open(&driver);

	if (!status)
		driver.DeviceGetCount(&n);
	status_free(status);
	return n;
}

static Status
cuda_identity(int ordinal, uint64_t out[2])
{
	CudaDriver driver;
	Gpu gpu;

	RETURN_IF_ERROR(cuda_driver_open(&driver));
	RETURN_IF_ERROR(gpu_find(&driver, ordinal, &gpu));
	memcpy(out, gpu.uuid, sizeof(gpu.uuid));
	return NULL;
}

static Status
cuda_runs(int ordinal, const CodeImage *image)
{
	CudaDriver driver;
	Gpu gpu;

	RETURN_IF_ERROR(cuda_driver_open(&driver));
	RETURN_IF_ERROR(gpu_find(&driver, ordinal, &gpu));
	if (gpu_runs(&gpu, image->name))
		return NULL;
	return status_error(
		EXIT_SYSTEM,
		"cuda:%d: %s has compute capability %d.%d, and does not run the code for "
		"%s: --target=cuda makes code for all GPUs from 8.0 on",
		ordinal, gpu.name, gpu.major, gpu.minor, image->name);
}

/* ---- memory */
static Status
alloc_device(Device *d, size_t bytes, void **out)
{
	void *stream;

	RETURN_IF_ERROR(cuda_stream(d, STREAM_COMPUTE, &stream));
	int code = d->pool ? d->driver.MemAllocFromPoolAsync(out, bytes, d->pool, stream)
	                   : d->driver.MemAlloc(out, bytes);
	if (code == CUDA_OUT_OF_MEMORY) /* the device can still be used */
		return status_error(EXIT_SYSTEM,
		                    "cuda:%d (%s) does not have enough memory for %zu bytes",
		                    d->gpu.ordinal, d->gpu.name, bytes);
	RETURN_IF_ERROR(cuda_check(d, code, "memory"));
	RETURN_IF_ERROR(cuda_check(d, d->driver.MemsetD8Async(*out, 0, bytes, stream), "memory"));
	return cuda_wait_streams(d);
}

static Status
alloc_pinned(Device *d, size_t bytes, void **out)
{
	int code = d->driver.MemHostAlloc(out, bytes, CUDA_HOST_PORTABLE);

	if (code == CUDA_OUT_OF_MEMORY)
		return status_error(EXIT_SYSTEM,
		                    "the host has no %zu bytes of memory that stays in place",
		                    bytes);
	RETURN_IF_ERROR(cuda_check(d, code, "pinned memory"));
	memset(*out, 0, bytes);
	return NULL;
}

static Status
cuda_alloc(Device *d, MemoryKind kind, int64_t bytes, Span *out)
{
	void *at = NULL;

	cuda_enter(d);
	*out = (Span){NULL, bytes};
	size_t size = bytes ? (size_t)bytes : 1;
	RETURN_IF_ERROR(kind == MEMORY_DEVICE ? alloc_device(d, size, &at)
	                                      : alloc_pinned(d, size, &at));
	out->at = at;
	d->own_bytes += kind == MEMORY_DEVICE ? bytes : 0;
	return NULL;
}

/* May memory be freed? After a fault, queued work may still use the memory, so this function waits for the work to end. False
 * if the GPU is stuck or lost: freeing would wait without end. */
static bool
may_free(Device *d)
{
	return !atomic_load(&d->fault) || cuda_drain(d);
}

static void
cuda_free(Device *d, MemoryKind kind, Span span)
{
	cuda_enter(d);
	if (!span.at || !may_free(d))
		return;
	d->own_bytes -= kind == MEMORY_DEVICE ? span.bytes : 0;
	if (kind == MEMORY_PINNED)
		d->driver.MemFreeHost(span.at);
	else if (d->pool)
		d->driver.MemFreeAsync(span.at, d->streams[STREAM_COMPUTE]);
	else
		d->driver.MemFree(span.at);
}

/* ---- work */
static Status
cuda_copy(Device *d, int stream, Span to, const void *from)
{
	void *at;

	RETURN_IF_ERROR(cuda_stream(d, stream, &at));
	return to.bytes ? cuda_check(d, d->driver.MemcpyAsync(to.at, from, (size_t)to.bytes, at),
	                             "copy")
	                : NULL;
}

static Status
cuda_fill_zero(Device *d, int stream, Span to)
{
	void *at;

	RETURN_IF_ERROR(cuda_stream(d, stream, &at));
	return to.bytes ? cuda_check(d, d->driver.MemsetD8Async(to.at, 0, (size_t)to.bytes, at),
	                             "zeros")
	                : NULL;
}

static Status
cuda_look_up(Device *d, int stream, const Code *code, const LookUp *l)
{
	void *at;

	RETURN_IF_ERROR(cuda_stream(d, stream, &at));
	return cuda_launch_look_up(d, at, code, l);
}

/* Runs a library's kernel. If that fails because the GPU is lost, the library's error says little, so the driver is asked for
 * its code. */
static Status
run_library(Device *d, const Code *code, const Launch *launch, void *stream)
{
	Status status = library_calls_run(code->calls, launch->kernel, launch->buffers, stream);

	if (!status)
		return NULL;
	int code_of_stream = d->capture.into ? CUDA_OK : d->driver.StreamQuery(stream);
	if (code_of_stream == CUDA_NOT_READY || code_of_stream == CUDA_OK) {
		cuda_keep_fault(d, status);
		return status_copy(atomic_load(&d->fault));
	}
	status_free(status);
	return cuda_check(d, code_of_stream, "a library's call");
}

static Status
cuda_run(Device *d, int stream, const Code *code, const Launch *launch)
{
	void *at;

	RETURN_IF_ERROR(cuda_stream(d, stream, &at));
	if (library_calls_implementation(code->calls, launch->kernel))
		return run_library(d, code, launch, at);
	if (library_calls_cover(code->calls, launch->kernel))
		return NULL;
	return cuda_launch(d, at, code, launch);
}

/* ---- code */
static void
cuda_unload(Device *d, Code *code)
{
	cuda_enter(d);
	library_calls_close(code->calls);
	cuda_modules_unload(code);
	memory_free(code);
}

static void
unload_code(void *code)
{
	cuda_unload(((Code *)code)->device, code);
}

static Status
cuda_load(Device *d, const CodeSource *source, Code **out)
{
	const CodeImage *image = source->images, *end = image + source->n_images;

	*out = NULL;
	while (image < end && (image->kind != IMAGE_BYTES || !gpu_runs(&d->gpu, image->name)))
		image++;
	if (image == end || !source->tables)
		return device_no_code(source, "cuda", "GPUs of its kind", "cuda");
	cuda_enter(d);
	Code *code = memory_zeroed(1, sizeof(*code));
	code->device = d;
	memory_hold(unload_code, code);
	Status status = cuda_modules_load(d, image, source->tables, code);
	if (!status)
		status = library_calls_open(&d->libraries, source,
		                            d->tuner.tunings ? &d->tuner : NULL, &code->calls);
	if (!status)
		status = cuda_trials_end(d);
	memory_let_go();
	if (status)
		cuda_unload(d, code);
	else
		*out = code;
	return status;
}

/* ---- events */
/* Makes the event when it is first recorded. */
static Status
event_of(Device *d, int event, void **out)
{
	*out = atomic_load(&d->events[event]);
	if (*out)
		return NULL;
	RETURN_IF_ERROR(cuda_check(d, d->driver.EventCreate(out, 0), "making an event"));
	atomic_store(&d->events[event], *out);
	return NULL;
}

Status
cuda_record(Device *d, int stream, int event)
{
	bool noted;
	void *at, *e;

	if (atomic_load(&d->fault)) /* after a fault all events count as done */
		return NULL;
	RETURN_IF_ERROR(cuda_note_event(d, stream, event, true, &noted));
	if (noted)
		return NULL;
	RETURN_IF_ERROR(cuda_stream(d, stream, &at));
	RETURN_IF_ERROR(event_of(d, event, &e));
	return cuda_check(d, d->driver.EventRecord(e, at), "an event");
}

Status
cuda_wait(Device *d, int stream, int event)
{
	void *at, *e = atomic_load(&d->events[event]);
	bool noted;

	RETURN_IF_ERROR(cuda_note_event(d, stream, event, false, &noted));
	if (noted || !e)
		return NULL;
	RETURN_IF_ERROR(cuda_stream(d, stream, &at));
	return cuda_check(d, d->driver.StreamWaitEvent(at, e, 0), "an event");
}

static Status
cuda_fault(Device *d)
{
	return status_copy(atomic_load(&d->fault));
}

static bool
cuda_is_done(Device *d, int event)
{
	void *e = atomic_load(&d->events[event]);

	if (!e || atomic_load(&d->fault))
		return true;
	cuda_enter(d);
	return d->driver.EventQuery(e) != CUDA_NOT_READY;
}

static Status
cuda_elapsed(Device *d, int from_event, int to_event, double *seconds)
{
	void *from = atomic_load(&d->events[from_event]), *to = atomic_load(&d->events[to_event]);
	float ms = 0;

	*seconds = 0;
	cuda_enter(d);
	if (from && to)
		RETURN_IF_ERROR(cuda_check(d, d->driver.EventElapsedTime(&ms, from, to),
		                           "time between events"));
	*seconds = ms * 1e-3;
	return NULL;
}

/* ---- for people */
static bool
cuda_memory(const Device *d, DeviceMemory *out)
{
	size_t available = 0, total = 0;

	d->driver.CtxSetCurrent(d->context);
	if (d->driver.MemGetInfo(&available, &total) != CUDA_OK)
		return false;
	*out = (DeviceMemory){d->own_bytes, (int64_t)available, (int64_t)total};
	return true;
}

static DeviceFacts
cuda_facts(const Device *d)
{
	return (DeviceFacts){.library = libraries_versions(&d->libraries),
	                     .gpu = d->gpu.name,
	                     .driver = d->driver.version};
}

static void
cuda_describe(const Device *d, Text *out)
{
	const Gpu *g = &d->gpu;
	int version = d->driver.version;

	text_printf(out, "%s (compute capability %d.%d, %d processors, %.1f GiB, bus %s), ",
	            g->name, g->major, g->minor, g->processors, (double)g->bytes / (1 << 30),
	            g->bus);
	text_printf(out, "driver for CUDA %d.%d, %s", version / 1000, version % 1000 / 10,
	            libraries_text(&d->libraries));
}

static const char *
cuda_implementation(const Code *code, int kernel)
{
	return library_calls_describe(code->calls, (uint32_t)kernel);
}

static const char *
cuda_remark(const Code *code, int kernel)
{
	return library_calls_remark(code->calls, (uint32_t)kernel);
}

static int64_t
cuda_library_bytes(const Code *code)
{
	return library_calls_bytes(code->calls);
}

static void
cuda_place_library(Code *code, char *memory)
{
	library_calls_place(code->calls, memory);
}

const DeviceOps device_cuda = {
	.name = "cuda",
	.image_kind = IMAGE_BYTES,
	.count = cuda_count,
	.identity = cuda_identity,
	.runs = cuda_runs,
	.open = cuda_open,
	.close = cuda_close,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.copy = cuda_copy,
	.fill_zero = cuda_fill_zero,
	.look_up = cuda_look_up,
	.has_look_up = cuda_has_look_up,
	.load = cuda_load,
	.unload = cuda_unload,
	.run = cuda_run,
	.call = cuda_task,
	.record = cuda_record,
	.wait = cuda_wait,
	.host_wait = cuda_wait_event,
	.fault = cuda_fault,
	.is_done = cuda_is_done,
	.elapsed = cuda_elapsed,
	.sync = cuda_wait_streams,
	.native_stream = cuda_stream,
	.capture_begin = cuda_capture_begin,
	.capture_end = cuda_capture_end,
	.launch = cuda_replay,
	.forget = cuda_forget,
	.memory = cuda_memory,
	.describe = cuda_describe,
	.facts = cuda_facts,
	.implementation = cuda_implementation,
	.remark = cuda_remark,
	.library_bytes = cuda_library_bytes,
	.place_library = cuda_place_library,
};
