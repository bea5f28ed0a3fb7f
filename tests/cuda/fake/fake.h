/* A pretended GPU for tests: the functions of runtime/device/cuda/driver_symbols.def as a library libcuda.so.1, which finds what a schedule,
 * a copy or a launch does wrong. Device memory is unreadable to the host, each stream is a thread that pauses at random, a graph is
 * replayed in a random order of its edges, and what the real driver refuses is refused. README.md lists the variables. */
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

/* Of CUresult, beside those of driver.h. */
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

/* ---- enter.c: what every call begins with */
typedef struct {
	int n_devices,
		device[MOST_DEVICES]; /* those that are visible, as this library numbers them */
	int major, minor, version;
	size_t bytes; /* of memory, of each */
	bool has_pools;
	unsigned char fill; /* of new memory */
	long pause;         /* us, at most */
	int slow;           /* the stream that is, from 0 on in the order of creation; -1: none */
	bool in_order;      /* blocks */
	uint64_t seed;
	const char *stuck, *kernels; /* NULL: none */
} Settings;
const Settings *settings(void);
extern pthread_mutex_t fake_lock; /* of streams, events and captures */
extern pthread_cond_t fake_changed;
extern _Thread_local int current_device; /* -1: no context */
extern _Thread_local bool in_host_function;
/* A code that the call returns; 0: it goes on. */
int enter(int call);
#define ENTER(name)                             \
	do {                                    \
		int code_ = enter(CALL_##name); \
		if (code_)                      \
			return code_;           \
	} while (0)
/* Says why to stderr; the code. */
int complain(int code, const char *fmt, ...) PRINTF(2, 3);
/* The device is spent: of what is queued only events are done. */
void spend(int code);
int spent(void);
/* The code with which the work of this call fails in its turn; once. */
int take_planned(void);
uint64_t random_next(uint64_t *state);

/* ---- objects: handles stay readable when they are dead */
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
void *object_find(void *handle, ObjectKind kind); /* NULL after saying so */

/* ---- memory.c */
typedef enum { PLACE_HOST, PLACE_PINNED, PLACE_DEVICE, PLACE_BAD } Place;
Place memory_place(const void *at, size_t bytes);
/* Where a stream's thread finds it; NULL: it is not there any more. */
/* Where a kernel counts from: the address may lie in front of the memory that it touches. NULL: it is none of the GPU's. */
void *memory_argument(const void *address);
void *memory_view(const void *at, size_t bytes);
/* Has something written behind the memory that the address is of? */
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
	int code; /* it fails with */
	char *to;
	const char *from;
	void *owned; /* freed with it: bytes of a copy, a launch */
	size_t bytes;
	unsigned char value;
	void (*function)(void *);
	void *argument;
	Event *event;
	uint64_t ticket;
	Graph *graph;
};
/* Nodes by number: edges lead to higher ones. */
typedef struct {
	int *at;
	int n, cap;
} Numbers;
struct Stream {
	Object object;
	int number;
	Work *first, **last;
	uint64_t issued, done; /* pieces of work */
	uint64_t random;
	pthread_t thread;
	Capture *capture;
	Numbers tips; /* nodes behind which the next comes */
};
struct Event {
	Object object;
	unsigned flags;
	uint64_t issued, done; /* recordings */
	double seconds;
	Capture *capture; /* of the newest recording */
	Numbers tips;
};
Work *work_new(WorkKind kind);
void work_free(Work *work);
void work_run(Stream *stream, const Work *work); /* not one that is about an event */
/* Into the stream, or the capture that it is in. wait: until it is done. */
int submit(Stream *stream, Work *work, bool wait);
Stream *stream_find(void *handle); /* NULL: the device's own */
void device_wait(int device);      /* until its streams are idle */

/* ---- capture.c; with the lock */
int capture_add(Stream *stream, Work *work);
int capture_record(Stream *stream, Event *event);
int capture_wait(Stream *stream, Event *event);
int capture_break(Capture *capture, int code, const char *why);
bool capture_is_on(const Capture *capture);
/* One is going on, of the mode in which such calls are refused; it is broken by them. */
bool capture_forbids(bool always);
int graph_run(Stream *stream, const Work *work);
void graph_free(Graph *graph); /* one reference */

/* ---- module.c, ptx.c: what is known of kernels */
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
	uint32_t shared, dynamic;    /* bytes: its own, and those that it may ask for */
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
