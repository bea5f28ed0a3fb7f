/* Private to this room: what the files of the CUDA device share. Every call of the driver is made with the device's context
 * current in the thread. */
#ifndef GRADC_RUNTIME_DEVICE_CUDA_CUDA_H
#define GRADC_RUNTIME_DEVICE_CUDA_CUDA_H

#include "runtime/device/cuda/driver.h"
#include "runtime/device/library_calls.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- tasks.c: tasks of the host in a stream */
typedef struct CudaTask CudaTask;

/* ---- graphs.c */
typedef struct {
	Recorded *into;            /* NULL: calls run at once */
	bool is_open[MAX_STREAMS]; /* streams whose work the driver is recording */
} Capture;

struct Device {
	CudaDriver driver;
	Gpu gpu;
	Libraries libraries;
	LibraryTrials trials;
	void *context;
	void *pool;        /* NULL if the GPU has no pools; then the driver allocates */
	int64_t own_bytes; /* bytes of GPU memory given out by alloc */
	_Atomic(void *) streams[MAX_STREAMS];
	/* The first fault. After it nothing is queued, and events count as done. */
	_Atomic(Status) fault;
	atomic_bool stuck; /* nothing finishes any more, and waiting would never end */
	Capture capture;
	pthread_mutex_t asking; /* guards `records` and queries of streams */
	bool records;           /* a stream is being recorded, so streams must not be queried */
	CudaTask **tasks;       /* tasks, each used again after it is done */
	int n_tasks;
	/* Tasks that are running. The GPU waits for them, and they wait for the host or other ranks. */
	atomic_int n_polled;
	Device *next_left;
	DeviceWatch watch;
	double patience; /* seconds without progress after which the device counts as stuck */
	int n_events;
	_Atomic(void *) events[]; /* NULL for an event that was never recorded */
};

typedef struct {
	void *function;
	uint32_t threads, parts; /* threads and iterations per block */
	uint32_t shared;         /* dynamic shared memory per block, in bytes */
} CudaKernel;
struct Code {
	Device *device;
	CudaKernel *kernels; /* indexed by the tables' numbers of kernels */
	int n_kernels;
	void **modules;
	int n_modules;
	void **parameters; /* room for the parameters of one launch */
	LibraryCalls *calls;
};

/* Returns the status of a driver call. A fault becomes the device's fault. what: see cuda_status. */
Status cuda_check(Device *d, int code, const char *what);
void cuda_keep_fault(Device *d, Status status); /* takes the status */
/* Makes the device's context current in this thread. */
static inline void
cuda_enter(Device *d)
{
	d->driver.CtxSetCurrent(d->context);
}

/* ---- trials.c */
LibraryTrials cuda_trials(Device *d, const DeviceOptions *options);

/* ---- modules.c: loads the kernels of a bundle */
Status cuda_modules_load(Device *d, const CodeImage *image, const Format *tables, Code *out);
void cuda_modules_unload(Code *code);
Status cuda_launch(Device *d, void *stream, const Code *code, const Launch *launch);

/* ---- waits.c: the host waits, and notices if nothing moves */
Status cuda_wait_event(Device *d, int event);
Status cuda_wait_streams(Device *d);
/* Waits for everything that is queued, even after a fault. True: all is over, no task of the host is running, and the driver
 * takes calls. */
bool cuda_drain(Device *d);

/* ---- tasks.c */
Status cuda_task(Device *d, int stream, const HostTask *task);
void cuda_tasks_free(Device *d);

/* ---- graphs.c: the stream, ready to take work; while something is recorded, the work goes into a graph */
Status cuda_stream(Device *d, int stream, void **out);
/* During a recording, notes the event there and sets *noted. */
Status cuda_note_event(Device *d, int stream, int event, bool records, bool *noted);
Status cuda_capture_begin(Device *d);
Status cuda_capture_end(Device *d, Recorded **out);
Status cuda_replay(Device *d, const Recorded *recorded);
void cuda_forget(Device *d, Recorded *recorded);
/* Record an event on a stream, or make a stream wait for one. */
Status cuda_record(Device *d, int stream, int event);
Status cuda_wait(Device *d, int stream, int event);

#endif
