/* Tasks of the host in a stream. A task is a function that the GPU's stream waits for, such as a collective over MPI. The
 * driver runs tasks in its own thread, where calls of CUDA are not allowed. */
#include "runtime/device/cuda/cuda.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

struct CudaTask {
	Device *device;
	HostTask task;
	_Atomic bool queued;
};

/* After a fault tasks are no longer polled. */
static void
run_task(void *argument)
{
	CudaTask *t = argument;
	bool done = false;

	atomic_fetch_add(&t->device->n_polled, 1);
	while (!done && !atomic_load(&t->device->fault)) {
		cuda_keep_fault(t->device, t->task.poll(&t->task, &done));
		if (!done)
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
	}
	atomic_fetch_sub(&t->device->n_polled, 1);
	atomic_store(&t->queued, false);
}

/* Finds a task that is not queued, or makes a new one. */
static CudaTask *
take_task(Device *d)
{
	for (int i = 0; i < d->n_tasks; i++)
		if (!atomic_load(&d->tasks[i]->queued))
			return d->tasks[i];
	d->tasks = memory_resize(d->tasks, sizeof(*d->tasks) * (size_t)(d->n_tasks + 1));
	d->tasks[d->n_tasks] = memory_zeroed(1, sizeof(**d->tasks));
	return d->tasks[d->n_tasks++];
}

Status
cuda_task(Device *d, int stream, const HostTask *task)
{
	void *at;

	/* A recording would run the task again at each launch, so runtime/exec/recorded.c does not record programs with
	 * tasks. */
	assert(!d->capture.into);
	RETURN_IF_ERROR(cuda_stream(d, stream, &at));
	CudaTask *t = take_task(d);
	t->device = d;
	t->task = *task;
	atomic_store(&t->queued, true);
	return cuda_check(d, d->driver.LaunchHostFunc(at, run_task, t), "a task of the host");
}

void
cuda_tasks_free(Device *d)
{
	for (int i = 0; i < d->n_tasks; i++)
		memory_free(d->tasks[i]);
	memory_free(d->tasks);
}
