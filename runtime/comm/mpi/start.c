/* Starts MPI. MPI_Init_thread returns only after all ranks have called it. While a rank is missing, because it is stopped or
 * its node is slow, a thread tells the user once every `patience` seconds. Which rank is missing cannot be found out before MPI
 * has started. */
#include "runtime/comm/comm.h"
#include "runtime/comm/mpi/mpi.h"
#include "runtime/host/host.h"

#include <pthread.h>
#include <time.h>

typedef struct {
	const CommControl *c;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool started;
} Watch;

static void
tell(const CommControl *c, double seconds)
{
	Text line = {0};

	text_printf(&line, "has waited %.0f s in MPI_Init for the other ranks to start", seconds);
	mpi_report(c, &line);
}

static void *
watch(void *context)
{
	Watch *w = context;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	pthread_mutex_lock(&w->lock);
	for (double waited = w->c->patience; !w->started; waited += w->c->patience) {
		int64_t ns = until.tv_nsec + (int64_t)(w->c->patience * 1e9);
		until.tv_sec += ns / 1000000000;
		until.tv_nsec = ns % 1000000000;
		int error = 0;
		while (!w->started && !error)
			error = pthread_cond_timedwait(&w->changed, &w->lock, &until);
		if (!w->started)
			tell(w->c, waited);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

Status
mpi_start(CommControl *c, int required, int *provided, int *code)
{
	Watch w = {.c = c};

	pthread_mutex_init(&w.lock, NULL);
	pthread_cond_init(&w.changed, NULL);
	Status status = thread_start(&w.thread, "to watch the start of other ranks", watch, &w);
	if (!status) {
		*code = c->mpi.Init_thread(NULL, NULL, required, provided);
		pthread_mutex_lock(&w.lock);
		w.started = true;
		pthread_cond_signal(&w.changed);
		pthread_mutex_unlock(&w.lock);
		pthread_join(w.thread, NULL);
	}
	pthread_cond_destroy(&w.changed);
	pthread_mutex_destroy(&w.lock);
	return status;
}
