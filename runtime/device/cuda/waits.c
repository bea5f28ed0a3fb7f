/* Waits for the GPU by polling, so that a kernel that never ends is noticed. */
#include "runtime/device/cuda/cuda.h"

#include <sched.h>
#include <time.h>

/* Short waits poll without sleeping; long waits leave the core free. */
static void
pause_after(double waited)
{
	enum { SPIN_US = 50, LEAST_US = 20, MOST_US = 500 };
	double us = waited * 1e6;

	if (us < SPIN_US) {
		sched_yield();
		return;
	}
	us = us / 16 < LEAST_US ? LEAST_US : us / 16 > MOST_US ? MOST_US : us / 16;
	nanosleep(&(struct timespec){.tv_nsec = (long)(us * 1e3)}, NULL);
}

/* A hash of the work done so far: it changes whenever an event or a stream finishes. A stream must not be queried while another
 * thread records it. Then events alone are hashed, which is enough, since each piece of a recording has events. */
static uint64_t
progress_of(Device *d)
{
	uint64_t hash = 0;

	for (int i = 0; i < d->n_events; i++) {
		void *event = atomic_load(&d->events[i]);
		if (event)
			hash = hash_mix(hash,
			                (uint64_t)i * 2 + (d->driver.EventQuery(event) == CUDA_OK));
	}
	pthread_mutex_lock(&d->asking);
	for (int i = 0; i < MAX_STREAMS && !d->records; i++)
		if (d->streams[i])
			hash = hash_mix(hash, d->driver.StreamQuery(d->streams[i]) == CUDA_OK);
	pthread_mutex_unlock(&d->asking);
	return hash;
}

typedef struct {
	double begin, looked;
	double moved; /* time of the last progress */
	double fine;  /* last time at which the device was surely not stuck */
	uint64_t progress;
} Wait;

static Wait
wait_begin(void)
{
	double now = seconds_now();

	return (Wait){.begin = now, .looked = now, .moved = now, .fine = now};
}

static Status
stuck(const Device *d)
{
	return status_error(
		EXIT_HANG,
		"cuda:%d (%s) has finished nothing for %g seconds: a kernel is stuck, or "
		"the GPU hangs; `nvidia-smi` shows whether it still computes. "
		"GRADC_DEVICE_TIMEOUT=SECONDS waits longer",
		d->gpu.ordinal, d->gpu.name, d->patience);
}

/* Seconds between two looks at the GPU's progress: a tenth of `patience`, or less if other ranks are watched. */
static double
interval(const Device *d)
{
	const double others = 0.25;

	return d->watch.look && d->patience / 10 > others ? others : d->patience / 10;
}

/* Asks whether other ranks are alive. A fault is stored before `end` ends the collectives, because afterwards the streams go on
 * with data that were never computed. */
static void
look_after_others(Device *d, const Wait *w, bool *waits)
{
	if (!d->watch.look)
		return;
	Status status = d->watch.look(d->watch.context, w->moved, waits);
	if (!status)
		return;
	cuda_keep_fault(d, status);
	d->watch.end(d->watch.context);
}

/* Checks whether the GPU is stuck. If this check itself comes much too late, this process was suspended, and perhaps the ranks
 * that the GPU waits for were suspended too. Then the GPU does not count as stuck. */
static Status
wait_more(Device *d, Wait *w)
{
	double now = seconds_now();
	bool waits = atomic_load(&d->n_polled) > 0;

	pause_after(now - w->begin);
	if (now - w->looked < interval(d))
		return NULL;
	uint64_t progress = progress_of(d);
	if (progress != w->progress)
		w->moved = now;
	look_after_others(d, w, &waits);
	if (w->moved == now || waits || now - w->looked > d->patience / 2)
		w->fine = now;
	w->progress = progress;
	w->looked = now;
	return now - w->fine > d->patience ? stuck(d) : NULL;
}

static bool
is_over(Device *d)
{
	return atomic_load(&d->fault) != NULL;
}

/* Polls until the driver answers that the work is done. Returns the last answer: CUDA_NOT_READY if waiting was given up. */
static int
wait_until(Device *d, int (*ask)(void *), void *what, bool behind_fault)
{
	Wait w = wait_begin();
	int code = CUDA_NOT_READY;

	while (!atomic_load(&d->stuck) && (behind_fault || !is_over(d)) &&
	       (code = ask(what)) == CUDA_NOT_READY) {
		Status status = wait_more(d, &w);
		if (status)
			atomic_store(&d->stuck, true);
		cuda_keep_fault(d, status);
	}
	return code;
}

static void
keep_code(Device *d, int code)
{
	if (code != CUDA_NOT_READY)
		status_free(cuda_check(d, code, NULL));
}

Status
cuda_wait_event(Device *d, int event)
{
	void *at = atomic_load(&d->events[event]);

	cuda_enter(d);
	if (at)
		keep_code(d, wait_until(d, d->driver.EventQuery, at, false));
	return NULL;
}

Status
cuda_wait_streams(Device *d)
{
	cuda_enter(d);
	for (int i = 0; i < MAX_STREAMS; i++)
		if (d->streams[i])
			keep_code(d, wait_until(d, d->driver.StreamQuery, d->streams[i], false));
	return status_copy(atomic_load(&d->fault));
}

bool
cuda_drain(Device *d)
{
	bool over = true;

	cuda_enter(d);
	for (int i = 0; i < MAX_STREAMS; i++)
		if (d->streams[i])
			over &= wait_until(d, d->driver.StreamQuery, d->streams[i], true) ==
			        CUDA_OK;
	return over;
}
