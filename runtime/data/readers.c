/* Threads that help to read a micro-batch. A GPU's step takes tens of milliseconds, and one thread copies 2 GB in a second: 77 MB of
 * images take it 38 ms. So the rows are divided into tasks, which the caller and its helpers take one after the other.
 *
 * Helpers read only while the caller waits in readers_run. If several tasks fail, the fault of the first of them is returned, as
 * if they had run in order. */
#include "runtime/data/sources.h"
#include "runtime/host/host.h"

#include <pthread.h>

struct Readers {
	MemoryOrphans **orphans;
	pthread_t threads[MOST_READERS];
	int n_threads;
	pthread_mutex_t lock; /* guards all fields below */
	pthread_cond_t changed;
	ReadTask *task; /* of the call of readers_run under way */
	void *context;
	int next, end; /* tasks that nobody has taken yet */
	int running;   /* tasks that helpers run */
	int n_helpers; /* helpers that have a number */
	Status fault;  /* of task number `end`; NULL: none has failed */
	bool closing;
};

int
readers_wanted(const Executor *x)
{
	CpuShare cpus;

	if (!executor_is_apart(x))
		return 1;
	cpu_share(&cpus);
	return cpus.n < 1 ? 1 : cpus.n < MOST_READERS ? cpus.n : MOST_READERS;
}

/* A task, with the number of the thread that runs it. */
typedef struct {
	const Readers *readers;
	int reader, number;
} Call;

static Status
run_task(void *call)
{
	const Call *c = call;

	return c->readers->task(c->readers->context, c->reader, c->number);
}

/* Called with the lock held: keeps the fault of the first task that failed. Tasks behind that one are not begun. */
static void
finish(Readers *r, int number, Status fault)
{
	if (fault && number < r->end) {
		status_free(r->fault);
		r->fault = fault;
		r->end = number;
	} else {
		status_free(fault); /* NULL, or an earlier task has failed */
	}
}

static void *
help(void *readers)
{
	Readers *r = readers;

	pthread_mutex_lock(&r->lock);
	int reader = ++r->n_helpers; /* number 0 is the caller */
	while (!r->closing) {
		if (r->next >= r->end) {
			pthread_cond_wait(&r->changed, &r->lock);
			continue;
		}
		Call call = {r, reader, r->next++};
		r->running++;
		pthread_mutex_unlock(&r->lock);
		Status fault = memory_guard(run_task, &call, r->orphans);
		pthread_mutex_lock(&r->lock);
		finish(r, call.number, fault);
		if (--r->running == 0)
			pthread_cond_broadcast(&r->changed);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

Status
readers_open(Arena *arena, int n, MemoryOrphans **orphans, Readers **out)
{
	Readers *r = *out = NEW(arena, Readers);

	r->orphans = orphans;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->changed, NULL);
	for (int i = 0; i < n - 1; i++) {
		RETURN_IF_ERROR(thread_start(&r->threads[i], "to read data", help, r));
		r->n_threads++;
	}
	return NULL;
}

void
readers_close(Readers *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	r->closing = true;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
	for (int i = 0; i < r->n_threads; i++)
		pthread_join(r->threads[i], NULL);
	pthread_cond_destroy(&r->changed);
	pthread_mutex_destroy(&r->lock);
}

/* Begins no more tasks, and waits for the helpers' running tasks, because running tasks use the caller's memory. */
static void
settle(void *readers)
{
	Readers *r = readers;

	pthread_mutex_lock(&r->lock);
	r->next = r->end = 0;
	while (r->running)
		pthread_cond_wait(&r->changed, &r->lock);
	status_free(r->fault);
	r->fault = NULL;
	pthread_mutex_unlock(&r->lock);
}

/* The caller runs tasks until none is left, then waits for its helpers. */
static Status
run_all(Readers *r)
{
	pthread_mutex_lock(&r->lock);
	while (r->next < r->end || r->running) {
		if (r->next >= r->end) {
			pthread_cond_wait(&r->changed, &r->lock);
			continue;
		}
		Call call = {r, 0, r->next++};
		pthread_mutex_unlock(&r->lock);
		Status fault = run_task(&call);
		pthread_mutex_lock(&r->lock);
		finish(r, call.number, fault);
	}
	Status fault = r->fault;
	r->fault = NULL;
	r->next = r->end = 0;
	pthread_mutex_unlock(&r->lock);
	return fault;
}

Status
readers_run(Readers *r, int n, ReadTask *task, void *context)
{
	for (int i = 0; !r && i < n; i++)
		RETURN_IF_ERROR(task(context, 0, i));
	if (!r)
		return NULL;
	memory_hold(settle, r); /* the caller's own task may run out of memory */
	pthread_mutex_lock(&r->lock);
	r->task = task;
	r->context = context;
	r->next = 0;
	r->end = n;
	pthread_cond_broadcast(&r->changed);
	pthread_mutex_unlock(&r->lock);
	Status fault = run_all(r);
	memory_let_go();
	return fault;
}
