/* The CPU as a device. Work is done when the call returns, unless a collective on the same stream is not over yet
 * (cpu_streams.c). Kernels run on the threads of the pool. */
#include "runtime/device/cpu_streams.h"
#include "runtime/device/library_calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct Device {
	Pool *pool;
	Libraries libraries;
	CpuStreams *streams;
};
struct Code {
	const KernelCode *kernels;
	LibraryCalls *calls;
};

static void
cpu_close(Device *device)
{
	if (!device)
		return;
	libraries_close(&device->libraries);
	cpu_streams_close(device->streams);
	pool_close(device->pool);
	memory_free(device);
}

static void
close_device(void *device)
{
	cpu_close(device);
}

static const LibraryOps *const known[] = {&library_onednn};

static Status
cpu_open(const DeviceOptions *options, Device **out)
{
	*out = NULL;
	if (options->ordinal != 0)
		return status_error(EXIT_SYSTEM, "cpu:%d: there is only cpu:0", options->ordinal);
	Device *device = memory_zeroed(1, sizeof(*device));
	Status status = pool_open(THREADS_BEST, options->threads, &device->pool);
	if (status) {
		memory_free(device);
		return status;
	}
	memory_hold(close_device, device);
	device->streams = cpu_streams_open(options->n_events ? options->n_events : N_DEVICE_EVENTS);
	if (!options->no_libraries)
		libraries_open(
			&device->libraries,
			&(LibraryHome){.pool = device->pool, .tiled = options->deterministic},
			COUNT(known), known);
	memory_let_go();
	*out = device;
	return NULL;
}

/* calloc's zeros cost nothing until they are touched, but are not aligned. So alloc asks for more bytes, returns an aligned
 * address inside the allocation, and stores the allocation's beginning just before that address. Large regions are aligned to
 * pages, so that files can be mapped, and larger ones to huge pages, which need fewer page faults and give the disk larger
 * requests. */
enum { ALIGNMENT = 64, PAGE = 4096, PAGES = 1 << 20, HUGE_PAGE = 1 << 21, HUGE_PAGES = 1 << 22 };
enum { COPY_GRAIN = 1 << 18, HASH_STEP = 1 << 15 };
enum { UNMAP_STEP = 1 << 25 /* bytes that are replaced at a time, and so the extra memory */ };

static Status
cpu_alloc(Device *device, MemoryKind kind, int64_t bytes, Span *out)
{
	size_t alignment = bytes < PAGES ? ALIGNMENT : bytes < HUGE_PAGES ? PAGE : HUGE_PAGE;
	char *start = calloc(1, (size_t)bytes + alignment);

	(void)device;
	(void)kind;
	*out = (Span){NULL, bytes};
	if (!start)
		return status_error(EXIT_SYSTEM, "no memory for a region of %lld bytes",
		                    (long long)bytes);
	/* since malloc aligns to 16, there are at least 16 bytes before `at` for the pointer */
	out->at = start + alignment - (uintptr_t)start % alignment;
	memcpy(out->at - sizeof(start), &start, sizeof(start));
	if (alignment == HUGE_PAGE) /* errors are ignored: only speed depends on huge pages */
		madvise(out->at, (size_t)(bytes - bytes % PAGE), MADV_HUGEPAGE);
	return NULL;
}

static void
cpu_free(Device *device, MemoryKind kind, Span span)
{
	char *start = NULL;

	(void)device;
	(void)kind;
	if (span.at)
		memcpy(&start, span.at - sizeof(start), sizeof(start));
	free(start);
}

typedef struct {
	char *to;
	const char *from;
} CopyPart;

static void
copy_part(void *ctx, int64_t begin, int64_t end)
{
	const CopyPart *p = ctx;

	memmove(p->to + begin, p->from + begin, (size_t)(end - begin));
}

typedef struct {
	Span to;
	const void *from;
} Copy;

static Status
copy_now(void *device, void *payload, bool *done)
{
	const Copy *c = payload;
	CopyPart part = {c->to.at, c->from};

	parallel_for(((Device *)device)->pool, c->to.bytes, COPY_GRAIN, copy_part, &part);
	*done = true;
	return NULL;
}

static Status
cpu_copy(Device *device, int stream, Span to, const void *from)
{
	Copy copy = {to, from};
	bool done;

	if (cpu_streams_is_free(device->streams, stream))
		return copy_now(device, &copy, &done);
	return cpu_streams_do(device->streams, stream, copy_now, device, &copy, sizeof(copy));
}

typedef struct {
	HashedCopy *copies;
	int n;
} HashedCopies;

/* Hashes and copies in steps, so that the bytes are still in the core's cache when they are copied. */
static void
copy_one_hashed(HashedCopy *c)
{
	Checksum checksum;

	checksum_begin(&checksum);
	for (int64_t at = 0, part; at < c->to.bytes; at += part) {
		const char *from = (const char *)c->from + at;

		part = c->to.bytes - at < HASH_STEP ? c->to.bytes - at : HASH_STEP;
		checksum_add(&checksum, from, part);
		memcpy(c->to.at + at, from, (size_t)part);
	}
	c->checksum = checksum_end(&checksum);
}

/* Makes the copies whose targets begin in bytes [begin, end), counted from the first copy's target. So one thread makes a whole
 * copy, with its checksum. */
static void
copy_part_hashed(void *ctx, int64_t begin, int64_t end)
{
	const HashedCopies *list = ctx;

	for (int i = 0; i < list->n; i++) {
		int64_t at = list->copies[i].to.at - list->copies[0].to.at;
		if (at >= begin && at < end)
			copy_one_hashed(&list->copies[i]);
	}
}

static Status
cpu_copy_hashed(Device *device, HashedCopy *copies, int n)
{
	HashedCopies list = {copies, n};
	const Span *last = n ? &copies[n - 1].to : NULL;

	if (n)
		parallel_for(device->pool, last->at - copies[0].to.at + 1, COPY_GRAIN,
		             copy_part_hashed, &list);
	return NULL;
}

static Status
cpu_map(Device *device, Span to, int fd, int64_t offset)
{
	(void)device;
	void *at = mmap(to.at, (size_t)to.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
	                fd, offset);
	return at == MAP_FAILED ? status_error(EXIT_SYSTEM, "%lld bytes cannot be mapped: %s",
	                                       (long long)to.bytes, strerror(errno))
	                        : NULL;
}

/* Replaces a part of mapped memory by new memory with the same bytes. The new memory has the same offset within a huge page, so
 * that it can use huge pages. */
static Status
unmap_part(char *at, size_t bytes)
{
	char *room = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
	                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (room == MAP_FAILED)
		return status_error(EXIT_SYSTEM, "no memory for %zu bytes", bytes);
	size_t before = ((uintptr_t)at - (uintptr_t)room) % HUGE_PAGE;
	char *from = room + before;
	madvise(from, bytes, MADV_HUGEPAGE);
	memcpy(from, at, bytes);
	bool moved = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED;
	if (before)
		munmap(room, before);
	munmap(moved ? from + bytes : from, HUGE_PAGE - before + (moved ? 0 : bytes));
	return moved ? NULL : status_error(EXIT_SYSTEM, "%zu bytes cannot be moved", bytes);
}

static Status
cpu_unmap(Device *device, Span span)
{
	(void)device;
	for (int64_t at = 0, part; at < span.bytes; at += part) {
		int64_t left = span.bytes - at;
		part = UNMAP_STEP - (int64_t)((uintptr_t)(span.at + at) % HUGE_PAGE);
		part = part < left ? part : left;
		RETURN_IF_ERROR(unmap_part(span.at + at, (size_t)part));
	}
	return NULL;
}

static Status
fill_now(void *device, void *payload, bool *done)
{
	const Span *to = payload;

	(void)device;
	memset(to->at, 0, (size_t)to->bytes);
	*done = true;
	return NULL;
}

static Status
cpu_fill_zero(Device *device, int stream, Span to)
{
	bool done;

	if (cpu_streams_is_free(device->streams, stream))
		return fill_now(device, &to, &done);
	return cpu_streams_do(device->streams, stream, fill_now, device, &to, sizeof(to));
}

static void
cpu_unload(Device *device, Code *code)
{
	library_calls_close(code->calls);
	memory_free(code);
}

static void
unload_code(void *code)
{
	cpu_unload(NULL, code);
}

static Status
cpu_load(Device *device, const CodeSource *source, Code **out)
{
	Code *code = memory_zeroed(1, sizeof(*code));

	*out = NULL;
	memory_hold(unload_code, code);
	Status status = code_functions(source, device_cpu.name, &code->kernels);
	if (!status)
		status = library_calls_open(&device->libraries, source, NULL, &code->calls);
	memory_let_go();
	if (status) {
		cpu_unload(device, code);
		return status;
	}
	*out = code;
	return NULL;
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
run_now(Device *device, const Code *code, const Launch *launch)
{
	KernelPart part = {code->kernels[launch->kernel].run, launch};

	if (library_calls_implementation(code->calls, launch->kernel))
		return library_calls_run(code->calls, launch->kernel, launch->buffers, NULL);
	if (library_calls_cover(code->calls, launch->kernel))
		return NULL;
	parallel_for(device->pool, launch->end - launch->begin, launch->grain, run_part, &part);
	return NULL;
}

/* A queued launch, with its own list of buffers. */
typedef struct {
	const Code *code;
	Launch launch;
	void *buffers[];
} KeptLaunch;

static Status
run_kept(void *device, void *payload, bool *done)
{
	KeptLaunch *kept = payload;

	kept->launch.buffers = kept->buffers;
	*done = true;
	return run_now(device, kept->code, &kept->launch);
}

static Status
keep_launch(Device *device, int stream, const Code *code, const Launch *launch)
{
	size_t bytes = sizeof(KeptLaunch) + sizeof(void *) * launch->n_buffers;
	KeptLaunch *kept = memory_get(bytes);

	kept->code = code;
	kept->launch = *launch;
	memcpy(kept->buffers, launch->buffers, sizeof(void *) * launch->n_buffers);
	Status status = cpu_streams_do(device->streams, stream, run_kept, device, kept, bytes);
	memory_free(kept);
	return status;
}

static Status
cpu_run(Device *device, int stream, const Code *code, const Launch *launch)
{
	if (!cpu_streams_is_free(device->streams, stream))
		return keep_launch(device, stream, code, launch);
	RETURN_IF_ERROR(run_now(device, code, launch));
	cpu_streams_progress(device->streams);
	return NULL;
}

static Status
poll_task(void *device, void *payload, bool *done)
{
	HostTask *task = payload;

	(void)device;
	return task->poll(task, done);
}

static Status
cpu_call(Device *device, int stream, const HostTask *task)
{
	return cpu_streams_do(device->streams, stream, poll_task, device, task, sizeof(*task));
}

static void
cpu_describe(const Device *device, Text *out)
{
	text_printf(out, "%d thread%s (%s), %s", pool_threads(device->pool),
	            pool_threads(device->pool) == 1 ? "" : "s", pool_name(device->pool),
	            libraries_text(&device->libraries));
}

static DeviceFacts
cpu_facts(const Device *device)
{
	return (DeviceFacts){pool_threads(device->pool), cpu_count(),
	                     libraries_versions(&device->libraries)};
}

static const char *
cpu_implementation(const Code *code, int kernel)
{
	return library_calls_describe(code->calls, (uint32_t)kernel);
}

static const char *
cpu_remark(const Code *code, int kernel)
{
	return library_calls_remark(code->calls, (uint32_t)kernel);
}

static double
cpu_peak(Device *device, const LibraryCall *like)
{
	return libraries_peak(&device->libraries, like);
}

static int64_t
cpu_library_bytes(const Code *code)
{
	return library_calls_bytes(code->calls);
}

static void
cpu_place_library(Code *code, char *memory)
{
	library_calls_place(code->calls, memory);
}

static Status
cpu_record(Device *device, int stream, int event)
{
	return cpu_streams_record(device->streams, stream, event);
}

/* The caller's thread does queued work itself while it waits. */
static Status
cpu_wait(Device *device, int stream, int event)
{
	(void)stream;
	return cpu_streams_wait(device->streams, event);
}

/* The thread that reads data calls this function as well. Kernels are done when they are queued, so that thread has nothing to
 * wait for. */
static Status
cpu_host_wait(Device *device, int event)
{
	cpu_streams_reach(device->streams, event);
	return NULL;
}

static Status
cpu_fault(Device *device)
{
	return cpu_streams_fault(device->streams);
}

static bool
cpu_is_done(Device *device, int event)
{
	return cpu_streams_is_done(device->streams, event);
}

static Status
cpu_elapsed(Device *device, int from_event, int to_event, double *seconds)
{
	*seconds = cpu_streams_seconds(device->streams, to_event) -
	           cpu_streams_seconds(device->streams, from_event);
	return NULL;
}

static Status
cpu_sync(Device *device)
{
	return cpu_streams_sync(device->streams);
}

const DeviceOps device_cpu = {
	.name = "cpu",
	.host_memory = true,
	.image_kind = IMAGE_FUNCTIONS,
	.runs = functions_run,
	.open = cpu_open,
	.close = cpu_close,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.copy = cpu_copy,
	.copy_hashed = cpu_copy_hashed,
	.fill_zero = cpu_fill_zero,
	.map = cpu_map,
	.unmap = cpu_unmap,
	.load = cpu_load,
	.unload = cpu_unload,
	.run = cpu_run,
	.call = cpu_call,
	.record = cpu_record,
	.wait = cpu_wait,
	.host_wait = cpu_host_wait,
	.fault = cpu_fault,
	.is_done = cpu_is_done,
	.elapsed = cpu_elapsed,
	.sync = cpu_sync,
	.describe = cpu_describe,
	.facts = cpu_facts,
	.implementation = cpu_implementation,
	.remark = cpu_remark,
	.peak = cpu_peak,
	.library_bytes = cpu_library_bytes,
	.place_library = cpu_place_library,
};
