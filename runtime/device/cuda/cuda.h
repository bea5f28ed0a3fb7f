/* Private to runtime/device/cuda: types and functions that its files share. Every call of the driver is made with the device's
 * context current in the thread. */
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
	Recorded *into;            /* the recording in progress; NULL: calls run immediately */
	bool is_open[MAX_STREAMS]; /* streams whose work the driver is recording */
} Capture;

struct Device {
	CudaDriver driver;
	Gpu gpu;
	Libraries libraries;
	LibraryTrials trials;
	Tuner tuner; /* without `tunings`: libraries take their first choices */
	void *context;
	void *pool;        /* NULL if the GPU has no pools; then the driver allocates */
	int64_t own_bytes; /* bytes of GPU memory given out by alloc */
	_Atomic(void *) streams[MAX_STREAMS];
	/* The first fault. Afterwards nothing is queued, and events count as done. */
	_Atomic(Status) fault;
	atomic_bool stuck; /* nothing finishes any more, and waiting would never end */
	Capture capture;
	pthread_mutex_t asking; /* guards `records` and queries of streams */
	bool records;           /* a stream is being recorded, so streams must not be queried */
	CudaTask **tasks;       /* all tasks; a task is reused after it is done */
	int n_tasks;
	/* Number of tasks of the host that run now. The GPU waits for these tasks, and the tasks wait for the host or for other
	 * ranks. */
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
	CudaKernel *kernels; /* indexed like the kernels of the tables */
	int n_kernels;
	void **modules;
	int n_modules;
	void **parameters; /* array for the parameters of one launch */
	void *look_up;     /* the kernel of the compiler's look_up.cuh; NULL: the code lacks it */
	LibraryCalls *calls;
};

/* ---- cuda.c */
/* Turns the result code of a driver call into a Status. A fault is kept as the device's fault. what: see cuda_status. */
Status cuda_check(Device *d, int code, const char *what);
void cuda_keep_fault(Device *d, Status status); /* takes the status */
/* Makes the device's context current in this thread. */
static inline void
cuda_enter(Device *d)
{
	d->driver.CtxSetCurrent(d->context);
}

/* ---- trials.c */
LibraryTrials cuda_trials(Device *d);
/* After all trials: gives their memory back, and lets the peak of memory begin anew. */
Status cuda_trials_end(Device *d);

/* ---- modules.c: loads the kernels of a bundle */
Status cuda_modules_load(Device *d, const CodeImage *image, const Format *tables, Code *out);
void cuda_modules_unload(Code *code);
Status cuda_launch(Device *d, void *stream, const Code *code, const Launch *launch);
bool cuda_has_look_up(const Code *code, const LookUp *l);
Status cuda_launch_look_up(Device *d, void *stream, const Code *code, const LookUp *l);

/* ---- waits.c: the host waits for the GPU, and notices if the GPU makes no progress */
Status cuda_wait_event(Device *d, int event);
Status cuda_wait_streams(Device *d);
/* Waits for everything that is queued, even after a fault. Returns true if all work is over, no task of the host is running,
 * and the driver still takes calls. */
bool cuda_drain(Device *d);

/* ---- tasks.c */
Status cuda_task(Device *d, int stream, const HostTask *task);
void cuda_tasks_free(Device *d);

/* ---- graphs.c: the driver's handle of a stream. During a recording, work that is queued in the stream goes into a graph */
Status cuda_stream(Device *d, int stream, void **out);
/* During a recording, adds the recording of the event (or the wait for it) to the recorded work and sets *noted. */
Status cuda_note_event(Device *d, int stream, int event, bool records, bool *noted);
Status cuda_capture_begin(Device *d);
Status cuda_capture_end(Device *d, Recorded **out);
Status cuda_replay(Device *d, const Recorded *recorded, const EventShift *shift);
void cuda_forget(Device *d, Recorded *recorded);

/* ---- cuda.c */
/* Record an event on a stream, or make a stream wait for one. */
Status cuda_record(Device *d, int stream, int event);
Status cuda_wait(Device *d, int stream, int event);

#endif
