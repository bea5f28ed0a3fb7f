/* The thread pool, which runs a loop on all threads (parallel_for). Each thread takes the next part of the loop's range from a
 * counter, so a thread that loses its CPU to another process takes fewer parts. Kernels give the same bits however the range is
 * divided. */
#include "base/base.h"
#include "runtime/host/host.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#ifdef __SANITIZE_THREAD__
enum { HAS_GOMP = 0 };
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
enum { HAS_GOMP = 0 };
#else
enum { HAS_GOMP = 1 };
#endif
#else
enum { HAS_GOMP = 1 };
#endif

enum { PARTS_A_THREAD = 4 };

typedef struct {
	Pool *pool;
	ParallelFn fn;
	void *ctx;
	int64_t n, part;
	_Atomic int64_t next;
} Job;

typedef struct {
	const char *name;
	Status (*open)(Pool *pool);
	void (*close)(Pool *pool);
	void (*run)(Pool *pool, Job *job); /* runs job_work on every thread */
} PoolOps;

typedef struct {
	Pool *pool;
	pthread_t thread;
	int index;
} Worker;

struct Pool {
	const PoolOps *ops;
	int threads;
	bool bound;
	CpuShare share;
	char name[32];
	/* ---- used only with libgomp */
	void *library;
	void (*parallel)(void (*fn)(void *), void *data, unsigned threads, unsigned flags);
	int (*thread_index)(void);
	/* ---- used only with the pool's own threads */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* signalled when any field below changes */
	Worker *workers;
	int started, busy;
	uint64_t round;
	Job *job;
	bool closing;
};

/* Binds a thread of the pool to its CPU, once for each pool, because an earlier pool may have bound the thread to another CPU.
 * The caller's thread is not bound. */
static void
bind_thread(const Pool *p, int index)
{
	static _Thread_local int bound_to = -1;
	int cpu = p->bound ? p->share.at[index] : -1;
	cpu_set_t set;

	if (index == 0 || bound_to == cpu)
		return;
	bound_to = cpu;
	CPU_ZERO(&set);
	for (int i = 0; i < p->share.n; i++)
		if (cpu < 0 || p->share.at[i] == cpu)
			CPU_SET(p->share.at[i], &set);
	/* errors are ignored: only speed depends on the binding */
	pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void
job_work(Job *job)
{
	int64_t begin;

	while ((begin = atomic_fetch_add_explicit(&job->next, job->part, memory_order_relaxed)) <
	       job->n) {
		int64_t end = job->n - begin < job->part ? job->n : begin + job->part;
		job->fn(job->ctx, begin, end);
	}
}

/* ---- libgomp */

/* Sets libgomp's way of waiting: waiting threads look for work for some microseconds, then sleep. With libgomp's default of
 * 300,000 looks, waiting threads would keep other processes from running on these CPUs. Settings by the user take
 * precedence. */
static void
shorten_spinning(void)
{
	if (!getenv("GOMP_SPINCOUNT") && !getenv("OMP_WAIT_POLICY"))
		setenv("GOMP_SPINCOUNT", "2000", 0);
}

static Status
gomp_open(Pool *p)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	static const LibrarySymbol symbols[] = {
		{"GOMP_parallel", offsetof(Pool, parallel), false},
		{"omp_get_thread_num", offsetof(Pool, thread_index), false},
		{0}};

	if (!HAS_GOMP)
		return status_error(EXIT_SYSTEM, "libgomp.so.1: not under ThreadSanitizer");
	pthread_once(&once, shorten_spinning);
	p->library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!p->library)
		return status_error(EXIT_SYSTEM, "%s", dlerror());
	const char *lacks = symbols_find(p->library, symbols, p);
	return lacks ? status_error(EXIT_SYSTEM, "libgomp.so.1: no %s", lacks) : NULL;
}

/* The library stays loaded: its threads, and other libraries, may still need it. */
static void
gomp_close(Pool *p)
{
	(void)p;
}

static void
gomp_work(void *data)
{
	Job *job = data;

	bind_thread(job->pool, job->pool->thread_index());
	job_work(job);
}

static void
gomp_run(Pool *p, Job *job)
{
	p->parallel(gomp_work, job, (unsigned)p->threads, 0);
}

/* ---- pthreads */
static Job *
next_job(Pool *p, uint64_t *round)
{
	pthread_mutex_lock(&p->lock);
	while (!p->closing && p->round == *round)
		pthread_cond_wait(&p->changed, &p->lock);
	Job *job = p->closing ? NULL : p->job;
	*round = p->round;
	pthread_mutex_unlock(&p->lock);
	return job;
}

static void *
worker_main(void *arg)
{
	Worker *w = arg;
	uint64_t round = 0;

	bind_thread(w->pool, w->index);
	for (Job *job; (job = next_job(w->pool, &round));) {
		job_work(job);
		pthread_mutex_lock(&w->pool->lock);
		if (--w->pool->busy == 0)
			pthread_cond_broadcast(&w->pool->changed);
		pthread_mutex_unlock(&w->pool->lock);
	}
	return NULL;
}

static Status
plain_open(Pool *p)
{
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->changed, NULL);
	p->workers = memory_zeroed((size_t)p->threads, sizeof(*p->workers));
	for (int i = 1; i < p->threads; i++) {
		p->workers[i] = (Worker){.pool = p, .index = i};
		if (pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]) != 0)
			return status_error(EXIT_SYSTEM, "thread %d of %d cannot be started", i + 1,
			                    p->threads);
		p->started = i;
	}
	return NULL;
}

static void
plain_close(Pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->closing = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
	for (int i = 1; i <= p->started; i++)
		pthread_join(p->workers[i].thread, NULL);
	memory_free(p->workers);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
}

static void
plain_run(Pool *p, Job *job)
{
	pthread_mutex_lock(&p->lock);
	p->job = job;
	p->busy = p->threads - 1;
	p->round++;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
	job_work(job);
	pthread_mutex_lock(&p->lock);
	while (p->busy)
		pthread_cond_wait(&p->changed, &p->lock);
	pthread_mutex_unlock(&p->lock);
}

/* ---- both */
static const PoolOps pool_ops[N_THREAD_KINDS] = {
	[THREADS_GOMP] = {"libgomp", gomp_open, gomp_close, gomp_run},
	[THREADS_PLAIN] = {"pthreads", plain_open, plain_close, plain_run},
};

static Status
open_as(Pool *p, ThreadKind kind)
{
	p->ops = &pool_ops[kind];
	return p->ops->open(p);
}

Status
pool_open(ThreadKind kind, int threads, Pool **out)
{
	Pool *p = memory_zeroed(1, sizeof(*p));

	*out = NULL;
	cpu_share(&p->share);
	p->threads = threads > 0 ? threads : p->share.n;
	p->bound = p->share.own && p->threads > 1 && p->threads == p->share.n;
	Status status = open_as(p, kind == THREADS_BEST ? THREADS_GOMP : kind);
	if (status && kind == THREADS_BEST) {
		status_free(status);
		status = open_as(p, THREADS_PLAIN);
	}
	snprintf(p->name, sizeof(p->name), "%s%s", p->ops->name, p->bound ? ", bound" : "");
	if (status)
		pool_close(p);
	else
		*out = p;
	return status;
}

void
pool_close(Pool *p)
{
	if (!p)
		return;
	p->ops->close(p);
	memory_free(p);
}

int
pool_threads(const Pool *p)
{
	return p->threads;
}

const char *
pool_name(const Pool *p)
{
	return p->name;
}

void *
pool_symbol(const Pool *p, const char *name)
{
	return p->library ? dlsym(p->library, name) : NULL;
}

void
parallel_for(Pool *p, int64_t n, int64_t grain, ParallelFn fn, void *ctx)
{
	int64_t parts = (int64_t)p->threads * PARTS_A_THREAD, part = (n + parts - 1) / parts;
	Job job = {.pool = p, .fn = fn, .ctx = ctx, .n = n, .part = part > grain ? part : grain};

	if (p->threads == 1 || n <= job.part)
		fn(ctx, 0, n);
	else
		p->ops->run(p, &job);
}
