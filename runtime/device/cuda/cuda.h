/* What the files of the CUDA device share. Every call of the driver is made with the device's context current in the thread. */
#ifndef GRADC_RUNTIME_CUDA_CUDA_IMPL_H
#define GRADC_RUNTIME_CUDA_CUDA_IMPL_H

#include "runtime/device/cuda/driver.h"
#include "runtime/device/library_calls.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- tasks.c: something of the host's in a stream */
typedef struct CudaTask CudaTask;

/* ---- graphs.c */
typedef struct {
	Recorded *into;            /* NULL: calls run */
	bool is_open[MAX_STREAMS]; /* the driver records this stream's work */
} Capture;

struct Device {
	CudaDriver driver;
	Gpu gpu;
	Libraries libraries;
	LibraryTrials trials;
	void *context;
	void *pool;        /* NULL: the GPU has none, memory is the driver's */
	int64_t own_bytes; /* of the GPU's memory that alloc gave out */
	_Atomic(void *) streams[MAX_STREAMS];
	_Atomic(Status)
		fault;     /* the first; behind it nothing is queued, and events count as done */
	atomic_bool stuck; /* whoever waits for it waits without end */
	Capture capture;
	pthread_mutex_t asking; /* whether streams may be asked: */
	bool records;           /* not while any is recorded */
	CudaTask **tasks;       /* each is used again when it is done */
	int n_tasks;
	atomic_int
		n_polled; /* tasks that have their turn: they wait for the host or for other ranks, the GPU for them */
	Device *next_left;
	DeviceWatch watch;
	double patience; /* seconds without anything being done, after which it is stuck */
	int n_events;
	_Atomic(void *) events[]; /* NULL: never recorded */
};

typedef struct {
	void *function;
	uint32_t threads, parts; /* of a block */
	uint32_t shared;         /* bytes that a launch asks for */
} CudaKernel;
struct Code {
	Device *device;
	CudaKernel *kernels; /* by the tables' numbers */
	int n_kernels;
	void **modules;
	int n_modules;
	void **parameters; /* room for those of a launch */
	LibraryCalls *calls;
};

/* The status of a call; a fault is the device's from then on, too. what: as of cuda_status. */
Status cuda_check(Device *d, int code, const char *what);
void cuda_keep_fault(Device *d, Status status); /* takes it */
/* Makes the context the thread's. */
static inline void
cuda_enter(Device *d)
{
	d->driver.CtxSetCurrent(d->context);
}

/* ---- trials.c */
LibraryTrials cuda_trials(Device *d, const DeviceOptions *options);

/* ---- modules.c: kernels of a bundle */
Status cuda_modules_load(Device *d, const CodeImage *image, const Format *tables, Code *out);
void cuda_modules_unload(Code *code);
Status cuda_launch(Device *d, void *stream, const Code *code, const Launch *launch);

/* ---- waits.c: the host waits, and notices that nothing moves */
Status cuda_wait_event(Device *d, int event);
Status cuda_wait_streams(Device *d);
/* Whether all that was queued is over, also behind a fault, and the driver takes calls: no task of the host has its turn any more. */
bool cuda_drain(Device *d);

/* ---- tasks.c */
Status cuda_task(Device *d, int stream, const HostTask *task);
void cuda_tasks_free(Device *d);

/* ---- graphs.c: the stream, ready to take work: into a graph while something is recorded. */
Status cuda_stream(Device *d, int stream, void **out);
/* Is it part of a recording? Then it has been noted there. */
Status cuda_note_event(Device *d, int stream, int event, bool records, bool *noted);
Status cuda_capture_begin(Device *d);
Status cuda_capture_end(Device *d, Recorded **out);
Status cuda_replay(Device *d, const Recorded *recorded);
void cuda_forget(Device *d, Recorded *recorded);
/* On streams themselves. */
Status cuda_record(Device *d, int stream, int event);
Status cuda_wait(Device *d, int stream, int event);

#endif
