/* driver_probe NAME [ARGUMENT...]: exercises one feature of the pretended GPU (tests/cuda/fake), through the runtime's own
 * table of driver functions. Prints what is wrong and fails. */
#include "base/files/files.h"
#include "runtime/device/cuda/driver.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static CudaDriver d;
static Gpu gpu;
static void *pool, *streams[2], *events[4];

#define EXPECT(code, call)                                                                       \
	do {                                                                                     \
		int is_ = (call);                                                                \
		if (is_ != (code)) {                                                             \
			fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, is_); \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)
#define CHECK(x)                                                                        \
	do {                                                                            \
		if (!(x)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

static void
stop_at(Status status)
{
	if (!status)
		return;
	fprintf(stderr, "%s\n", status->message);
	exit(1);
}

static void
nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Waits for the stream; 0, or the error code. */
static int
finish(void *stream)
{
	int code;

	while ((code = d.StreamQuery(stream)) == CUDA_NOT_READY)
		nap();
	return code;
}

static void
start(void)
{
	CudaPoolProperties properties = {.allocation = CUDA_ALLOCATION_PINNED,
	                                 .location = {CUDA_LOCATION_DEVICE, 0}};
	void *context;

	stop_at(cuda_driver_open(&d));
	stop_at(gpu_find(&d, 0, &gpu));
	properties.location.id = gpu.device;
	EXPECT(0, d.DevicePrimaryCtxRetain(&context, gpu.device));
	EXPECT(0, d.CtxSetCurrent(context));
	EXPECT(0, d.MemPoolCreate(&pool, &properties));
	for (int i = 0; i < COUNT(streams); i++)
		EXPECT(0, d.StreamCreate(&streams[i], CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; i < COUNT(events); i++)
		EXPECT(0, d.EventCreate(&events[i], 0));
}

static void *
device_memory(size_t bytes)
{
	void *at;

	EXPECT(0, d.MemAllocFromPoolAsync(&at, bytes, pool, streams[0]));
	return at;
}

static void *
pinned_memory(size_t bytes)
{
	void *at;

	EXPECT(0, d.MemHostAlloc(&at, bytes, CUDA_HOST_PORTABLE));
	return at;
}

/* ---- kernels */
static void *
load(const char *path)
{
	char log[1000] = "";
	int options[] = {CUDA_JIT_LOG, CUDA_JIT_LOG_BYTES};
	void *values[] = {log, (void *)sizeof(log)}, *module, *image;
	int64_t n;
	Arena *arena = arena_new();

	stop_at(file_read(arena, path, 1 << 28, &image, &n));
	EXPECT(0, d.ModuleLoadDataEx(&module, image, 2, options, values));
	arena_free(arena);
	return module;
}

enum { PARTS = 10000, THREADS = 128 };

typedef struct {
	void *function;
	double *x, *y, *scalars, *numbers; /* `numbers` is in the host's memory */
} AddOne;

/* The kernel of tiny.cu: y = x + scalars[0], which is 0.5. */
static AddOne
add_one(const char *module)
{
	size_t bytes = PARTS * sizeof(double);
	AddOne k = {.x = device_memory(bytes),
	            .y = device_memory(bytes),
	            .scalars = device_memory(64),
	            .numbers = pinned_memory(bytes)};

	EXPECT(0, d.ModuleGetFunction(&k.function, load(module), "gradc_k_add_one"));
	for (int i = 0; i < PARTS; i++)
		k.numbers[i] = i ? i : 0.5;
	EXPECT(0, d.MemcpyAsync(k.x, k.numbers, bytes, streams[0]));
	EXPECT(0, d.MemcpyAsync(k.scalars, k.numbers, sizeof(double), streams[0]));
	return k;
}

static int
launch(AddOne *k, unsigned blocks, unsigned threads, unsigned shared)
{
	int64_t begin = 0, end = PARTS;
	void *parameters[] = {&k->x, &k->y, &k->scalars, &begin, &end};

	return d.LaunchKernel(k->function, blocks, 1, 1, threads, 1, 1, shared, streams[0],
	                      parameters, NULL);
}

/* Argument: MODULE. */
static void
probe_kernel(char **arguments)
{
	AddOne k = add_one(arguments[0]);

	EXPECT(0, launch(&k, (PARTS + THREADS - 1) / THREADS, THREADS, 0));
	EXPECT(0, finish(streams[0]));
	EXPECT(0, d.MemcpyAsync(k.numbers, k.y, PARTS * sizeof(double), streams[0]));
	EXPECT(0, finish(streams[0]));
	for (int i = 0; i < PARTS; i++)
		CHECK(k.numbers[i] == (i ? i : 0.5) + 0.5);
}

/* Argument: MODULE, compiled for at most 128 threads per block. */
static void
probe_limits(char **arguments)
{
	AddOne k = add_one(arguments[0]);
	enum { KIB = 1024 };

	EXPECT(1, launch(&k, 1, THREADS + 1, 0));
	EXPECT(1, launch(&k, 1, 0, 0));
	EXPECT(1, launch(&k, 0, THREADS, 0));
	EXPECT(1, launch(&k, 1, THREADS, 49 * KIB));
	EXPECT(0, d.FuncSetAttribute(k.function, CUDA_FUNCTION_DYNAMIC_SHARED, 200 * KIB));
	EXPECT(0, launch(&k, 1, THREADS, 200 * KIB));
	EXPECT(1, launch(&k, 1, THREADS, 228 * KIB));
	EXPECT(0, finish(streams[0]));
}

/* Argument: MODULE. The result's memory is too small. */
static void
probe_behind(char **arguments)
{
	AddOne k = add_one(arguments[0]);

	k.y = device_memory(8);
	EXPECT(0, launch(&k, 2, THREADS, 0));
	EXPECT(700, finish(streams[0]));
	EXPECT(700, d.MemsetD8Async(k.x, 0, 8, streams[1]));
}

/* Argument: MODULE. One parameter is an address of the host. */
static void
probe_parameter(char **arguments)
{
	AddOne k = add_one(arguments[0]);
	static double on_the_host[PARTS];

	k.x = on_the_host;
	EXPECT(0, launch(&k, 1, THREADS, 0));
	EXPECT(700, finish(streams[0]));
}

/* Arguments: MODULE, which is damaged or for another GPU; the expected code. */
static void
probe_module(char **arguments)
{
	void *module, *image;
	int64_t n;
	Arena *arena = arena_new();

	stop_at(file_read(arena, arguments[0], 1 << 28, &image, &n));
	EXPECT(atoi(arguments[1]), d.ModuleLoadDataEx(&module, image, 0, NULL, NULL));
	arena_free(arena);
}

/* ---- memory */
static void
probe_unreadable(char **arguments)
{
	(void)arguments;
	volatile char *at = device_memory(1000);
	pid_t child = fork();
	int status;

	if (child == 0) {
		signal(SIGSEGV, SIG_DFL);
		_exit(at[7]);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* ---- contexts */
static void
probe_context(char **arguments)
{
	(void)arguments;
	void *stream;

	EXPECT(0, d.CtxSetCurrent(NULL));
	EXPECT(201, d.StreamCreate(&stream, CUDA_STREAM_NON_BLOCKING));
	EXPECT(201, d.MemsetD8Async(stream, 0, 1, streams[0]));
}

/* ---- order */
enum { N = 4096 };

/* Stream 0 fills memory that stream 1 copies to the host. With a wait between them the host must see the fill. ARGUMENT:
 * the result without the wait. */
static void
probe_order(char **arguments)
{
	char *to = device_memory(N);
	unsigned char *seen = pinned_memory(N);
	bool waits = !arguments[0];

	EXPECT(0, d.MemsetD8Async(to, 1, N, streams[0]));
	EXPECT(0, finish(streams[0]));
	EXPECT(0, d.MemsetD8Async(to, 2, N, streams[0]));
	EXPECT(0, d.EventRecord(events[0], streams[0]));
	if (waits)
		EXPECT(0, d.StreamWaitEvent(streams[1], events[0], 0));
	EXPECT(0, d.MemcpyAsync(seen, to, N, streams[1]));
	EXPECT(0, finish(streams[1]));
	CHECK(seen[0] == (waits ? 2 : atoi(arguments[0])));
	EXPECT(0, finish(streams[0]));
}

/* ---- captures */

/* Captures in stream 0: a fill, then each half in a stream of its own, then both copied to the host. */
static void
fork_and_join(char *to, unsigned char *seen, bool edge)
{
	EXPECT(0, d.MemsetD8Async(to, 1, N, streams[0]));
	EXPECT(0, d.EventRecord(events[0], streams[0]));
	EXPECT(0, d.StreamWaitEvent(streams[1], events[0], 0));
	EXPECT(0, d.MemsetD8Async(to + N / 2, 2, N / 2, streams[1]));
	EXPECT(0, d.EventRecord(events[1], streams[1]));
	if (edge)
		EXPECT(0, d.StreamWaitEvent(streams[0], events[1], 0));
	EXPECT(0, d.MemcpyAsync(seen, to, N, streams[0]));
}

static void
probe_capture(char **arguments)
{
	(void)arguments;
	char *to = device_memory(N);
	unsigned char *seen = pinned_memory(N);
	void *graph, *executable;

	EXPECT(0, d.StreamBeginCapture(streams[0], CUDA_CAPTURE_RELAXED));
	fork_and_join(to, seen, true);
	EXPECT(0, d.StreamEndCapture(streams[0], &graph));
	EXPECT(0, d.GraphInstantiate(&executable, graph, 0));
	EXPECT(0, d.GraphDestroy(graph));
	for (int i = 0; i < 5; i++) {
		memset(seen, 0, N);
		EXPECT(0, d.GraphLaunch(executable, streams[0]));
		EXPECT(0, finish(streams[0]));
		CHECK(seen[0] == 1 && seen[N - 1] == 2);
	}
	EXPECT(0, d.GraphExecDestroy(executable));
	EXPECT(0, d.StreamBeginCapture(streams[0], CUDA_CAPTURE_RELAXED));
	fork_and_join(to, seen, false);
	EXPECT(904, d.StreamEndCapture(streams[0], &graph));
}

/* Calls that are forbidden during a capture and break it. */
static void
probe_forbidden(char **arguments)
{
	(void)arguments;
	enum { GLOBAL = 0 }; /* the capture mode that also watches other streams */
	static const int modes[] = {CUDA_CAPTURE_RELAXED, CUDA_CAPTURE_RELAXED, GLOBAL, GLOBAL};
	char *to = device_memory(N);
	void *graph, *at;

	for (int i = 0; i < COUNT(modes); i++) {
		EXPECT(0, finish(streams[0]));
		EXPECT(0, d.StreamBeginCapture(streams[0], modes[i]));
		EXPECT(0, d.MemsetD8Async(to, 1, N, streams[0]));
		if (i == 0)
			EXPECT(900, d.StreamQuery(streams[0]));
		else if (i == 1)
			EXPECT(0, d.StreamQuery(streams[1]));
		else if (i == 2)
			EXPECT(900, d.StreamQuery(streams[1]));
		else
			EXPECT(900, d.MemAlloc(&at, N));
		EXPECT(i == 1 ? 0 : 901, d.StreamEndCapture(streams[0], &graph));
	}
}

static const struct {
	const char *name;
	void (*run)(char **arguments);
} probes[] = {
	{"kernel", probe_kernel},       {"limits", probe_limits}, {"behind", probe_behind},
	{"parameter", probe_parameter}, {"module", probe_module}, {"unreadable", probe_unreadable},
	{"context", probe_context},     {"order", probe_order},   {"capture", probe_capture},
	{"forbidden", probe_forbidden},
};

int
main(int argc, char **argv)
{
	for (int i = 0; i < COUNT(probes) && argc > 1; i++)
		if (strcmp(probes[i].name, argv[1]) == 0) {
			start();
			probes[i].run(argv + 2);
			return 0;
		}
	fprintf(stderr, "which probe?\n");
	return 2;
}
