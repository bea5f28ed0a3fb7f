/* Asks the pretended GPU (tests/cuda/fake) for one thing after the other, through the runtime's own table of the driver's functions:
 * driver_probe NAME [ARGUMENT...]. Says what is wrong and fails. */
#include "runtime/cuda/driver.h"

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

/* 0 or what has failed. */
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
	EXPECT(201, d.StreamCreate(&context, CUDA_STREAM_NON_BLOCKING));
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

/* MODULE: with gradc_sum_f32, y = x0 + x1 in steps of 256. */
static void
probe_kernel(char **arguments)
{
	enum { STEPS = 300, N = STEPS * 256, THREADS = 128 };
	void *x[2], *y = device_memory(4 * N), *scalars = NULL, *function;
	int64_t begin = 0, end = STEPS;
	float *numbers = pinned_memory(4 * N);

	EXPECT(0, d.ModuleGetFunction(&function, load(arguments[0]), "gradc_sum_f32"));
	for (int i = 0; i < 2; i++) {
		x[i] = device_memory(4 * N);
		for (int j = 0; j < N; j++)
			numbers[j] = i ? (float)j : 0.5f;
		EXPECT(0, d.MemcpyAsync(x[i], numbers, 4 * N, streams[0]));
		EXPECT(0, finish(streams[0]));
	}
	void *parameters[] = {&x[0], &x[1], &y, &scalars, &begin, &end};
	EXPECT(0, d.LaunchKernel(function, (STEPS + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0,
	                         streams[0], parameters, NULL));
	EXPECT(0, d.MemcpyAsync(numbers, y, 4 * N, streams[0]));
	EXPECT(0, finish(streams[0]));
	for (int j = 0; j < N; j++)
		CHECK(numbers[j] == (float)j + 0.5f);
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

/* ---- captures */
enum { N = 4096 };

/* Of stream 0: a fill, then each half by a stream of its own, then both to the host. */
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

static const struct {
	const char *name;
	void (*run)(char **arguments);
} probes[] = {
	{"kernel", probe_kernel},
	{"unreadable", probe_unreadable},
	{"capture", probe_capture},
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
