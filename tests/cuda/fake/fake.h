/* A pretended GPU for tests: the functions of runtime/device/cuda/driver_symbols.def as a library libcuda.so.1. It detects
 * faults in schedules, copies and launches. The host cannot read device memory, each stream is a thread that pauses at
 * random, a graph is replayed in a random order that its edges allow, and calls that the real driver refuses are refused.
 * README.md lists the variables. */
#ifndef GRADC_TESTS_CUDA_FAKE_H
#define GRADC_TESTS_CUDA_FAKE_H

#include "runtime/device/cuda/driver.h"

#include <pthread.h>
#include <stdatomic.h>

#define CUDA_SYMBOL(name, symbol, parameters) \
	__attribute__((visibility("default"))) int fake_##name parameters __asm__(symbol);
#include "runtime/device/cuda/driver_symbols.def"
#undef CUDA_SYMBOL
enum {
#define CUDA_SYMBOL(name, symbol, parameters) CALL_##name,
#include "runtime/device/cuda/driver_symbols.def"
#undef CUDA_SYMBOL
	N_CALLS
};

/* Further values of CUresult, beside those in driver.h. */
enum {
	BAD_VALUE = 1,
	NOT_STARTED = 3,
	BAD_DEVICE = 101,
	BAD_IMAGE = 200,
	NO_CONTEXT = 201,
	OTHER_GPU = 209,
	BAD_PTX = 218,
	NEWER_PTX = 222,
	BAD_HANDLE = 400,
	BAD_STATE = 401,
	NOT_FOUND = 500,
	BAD_ADDRESS = 700,
	TOO_MANY_RESOURCES = 701,
	NOT_PERMITTED = 800,
	NOT_SUPPORTED = 801,
	CAPTURE_REFUSES = 900,
	CAPTURE_BROKEN = 901,
	CAPTURE_MERGE = 902,
	CAPTURE_UNMATCHED = 903,
	CAPTURE_UNJOINED = 904,
	CAPTURE_ISOLATION = 905,
	CAPTURED_EVENT = 907,
	CAPTURE_THREAD = 908,
};
enum { MOST_DEVICES = 16, SHARED_BYTES = 227 << 10, OWN_SHARED_BYTES = 48 << 10 };

/* ---- enter.c: the begin of every call */
typedef struct {
	int n_devices,
		device[MOST_DEVICES]; /* numbers of the visible devices in this library's numbering */
	int major, minor, version;
	size_t bytes; /* memory of each device */
	bool has_pools;
	unsigned char fill; /* value of the bytes of new memory */
	long pause;         /* longest pause in us */
	int slow; /* number of the slow stream, from 0 in the order of creation; -1: no slow stream */
	bool in_order; /* true: blocks run in order */
	uint64_t seed;
	const char *stuck, *kernels; /* NULL: not set */
} Settings;
const Settings *settings(void);
extern pthread_mutex_t fake_lock; /* guards streams, events and captures */
extern pthread_cond_t fake_changed;
extern _Thread_local int current_device; /* current device of the thread; -1: no context */
extern _Thread_local bool in_host_function;
/* The error code that the call must return; 0: the call may go on. */
int enter(int call);
#define ENTER(name)                             \
	do {                                    \
		int code_ = enter(CALL_##name); \
		if (code_)                      \
			return code_;           \
	} while (0)
/* Prints the reason to stderr; gives back the code. */
int complain(int code, const char *fmt, ...) PRINTF(2, 3);
/* Marks the device as failed: of the queued work, only events still complete. */
void spend(int code);
int spent(void);
/* The error code with which the work of the current call fails when the stream comes to it. Given once. */
int take_planned(void);
uint64_t random_next(uint64_t *state);

/* ---- objects: handles stay readable after their objects are destroyed */
typedef enum {
	OBJECT_CONTEXT = 0x46414b45,
	OBJECT_POOL,
	OBJECT_STREAM,
	OBJECT_EVENT,
	OBJECT_MODULE,
	OBJECT_FUNCTION,
	OBJECT_GRAPH,
	OBJECT_EXECUTABLE
} ObjectKind;
typedef struct Object Object;
struct Object {
	ObjectKind kind;
	atomic_bool dead;
	int device;
	Object *next;
};
void *object_new(ObjectKind kind, size_t bytes);
void *object_find(void *handle, ObjectKind kind); /* NULL after reporting an invalid handle */

/* ---- memory.c */
typedef enum { PLACE_HOST, PLACE_PINNED, PLACE_DEVICE, PLACE_BAD } Place;
Place memory_place(const void *at, size_t bytes);
/* The address from which a kernel counts; it may lie before the memory that the kernel touches. NULL: not an address of the
 * GPU. */
void *memory_argument(const void *address);
/* A stream thread's view of device memory; NULL: the memory was freed. */
void *memory_view(const void *at, size_t bytes);
/* Was something written behind the end of the memory at this address? */
bool memory_is_hurt(const void *at);
void memory_release(void *at);

/* ---- stream.c */
typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Graph Graph;
typedef struct Capture Capture;
typedef struct Launch Launch;
typedef enum {
	WORK_COPY,
	WORK_FILL,
	WORK_FREE,
	WORK_HOST,
	WORK_KERNEL,
	WORK_GRAPH,
	WORK_RECORD,
	WORK_WAIT
} WorkKind;
typedef struct Work Work;
struct Work {
	Work *next;
	WorkKind kind;
	int code; /* error code of the work; 0: it succeeds */
	char *to;
	const char *from;
	void *owned; /* memory to free with the work: bytes of a copy, or a launch */
	size_t bytes;
	unsigned char value;
	void (*function)(void *);
	void *argument;
	Event *event;
	uint64_t ticket;
	Graph *graph;
};
/* A list of node numbers; edges lead to higher numbers. */
typedef struct {
	int *at;
	int n, cap;
} Numbers;
struct Stream {
	Object object;
	int number;
	Work *first, **last;
	uint64_t issued, done; /* numbers of queued and of finished pieces of work */
	uint64_t random;
	pthread_t thread;
	Capture *capture;
	Numbers tips; /* nodes that the next node must wait for */
};
struct Event {
	Object object;
	unsigned flags;
	uint64_t issued, done; /* numbers of queued and of finished recordings */
	double seconds;
	Capture *capture; /* capture of the newest recording */
	Numbers tips;
};
Work *work_new(WorkKind kind);
void work_free(Work *work);
void work_run(Stream *stream, const Work *work); /* for work other than events */
/* Adds work to the stream, or to the stream's capture. wait: returns when the work is done. */
int submit(Stream *stream, Work *work, bool wait);
Stream *stream_find(void *handle); /* NULL: the device's default stream */
void device_wait(int device);      /* waits until all streams of the device are idle */

/* ---- capture.c; called with the lock held */
int capture_add(Stream *stream, Work *work);
int capture_record(Stream *stream, Event *event);
int capture_wait(Stream *stream, Event *event);
int capture_break(Capture *capture, int code, const char *why);
bool capture_is_on(const Capture *capture);
/* Is a capture going on whose mode refuses such a call? The call breaks the capture. */
bool capture_forbids(bool always);
int graph_run(Stream *stream, const Work *work);
void graph_free(Graph *graph); /* drops one reference */

/* ---- module.c, ptx.c: facts about kernels */
enum { MOST_PARAMETERS = 1024 };
typedef struct {
	uint32_t offset, bytes;
} Parameter;
typedef struct Harness Harness;
typedef struct Function Function;
struct Function {
	Object object;
	Function *next;
	void *module;
	char *name;
	int registers, most_threads; /* 0: unknown */
	uint32_t shared,
		dynamic; /* bytes of shared memory: declared by the kernel, and the most that a launch may add */
	int n_parameters;
	Parameter parameters[MOST_PARAMETERS];
	const Harness *harness;
};
typedef struct {
	Object object;
	Function *first;
} Module;
Function *module_add(Module *module, const char *name, size_t n);
int elf_read(Module *module, const char *image, char *log, size_t bytes);
int ptx_read(Module *module, const char *text, char *log, size_t bytes);

/* ---- kernel.c */
int kernel_run(Stream *stream, const Work *work);

#endif
