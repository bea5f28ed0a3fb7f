/* What a process has of its machine: threads, CPUs, checksums of bytes in memory. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_HOST_HOST_H
#define GRADC_RUNTIME_HOST_HOST_H

#include "base/base.h"

#include <pthread.h>

/* ---- parallel.c */
/* The one thread pool of a process: libgomp's, because oneDNN brings it, opened with dlopen so that how
 * it waits can be said before it starts. Where it is missing, and under ThreadSanitizer, which cannot
 * see into it, threads of our own do the same. */
typedef struct Pool Pool;
typedef void (*ParallelFn)(void *ctx, int64_t begin, int64_t end);

/* What the threads of a pool are. */
typedef enum {
	THREADS_BEST,  /* libgomp where it can be */
	THREADS_GOMP,  /* libgomp, else an error */
	THREADS_PLAIN, /* pthreads that sleep between two calls */
	N_THREAD_KINDS,
} ThreadKind;

/* threads: the caller's included, 0 for every CPU that the process may use. They are bound, one to a
 * CPU, only when there is one for each and no other rank has the same; the caller never is, because
 * threads that it starts would be where it is. EXIT_SYSTEM when threads cannot be had. */
Status pool_open(ThreadKind kind, int threads, Pool **out);
void pool_close(Pool *pool); /* NULL is allowed */
int pool_threads(const Pool *pool);
const char *pool_name(const Pool *pool); /* "libgomp, bound", "pthreads": for --info */
void *pool_symbol(const Pool *pool,
                  const char *name); /* of libgomp; NULL: other threads, or none */

/* Calls fn for parts of [0, n) that cover it, on all threads, and returns when all are done. Parts
 * have at least grain iterations, but the last; which thread takes which is left open. One caller at a
 * time, and none from within fn. */
void parallel_for(Pool *pool, int64_t n, int64_t grain, ParallelFn fn, void *ctx);

/* ---- cpus.c: which CPUs are this process's. */
enum { MAX_CPUS = 1024 };
typedef struct {
	int n, at[MAX_CPUS];
	bool own; /* no other rank of the job computes on them */
} CpuShare;
void cpu_share(CpuShare *out);
/* CPUs that the machine lets anybody use, whatever a launcher left to this process. */
int cpu_count(void);
/* Of those that a launcher started on this machine; 0 of 1 without one. */
void local_rank(int *local, int *ranks);
/* The share of rank `local` of `ranks` on this machine: allowed are the n CPUs of this process, of `all`
 * that the machine lets anybody use. */
void cpu_share_divide(CpuShare *s, int all, int local, int ranks);

/* ---- checksum.c */
/* XXH3, 64 bits, of bytes as they come. */
enum { CHECKSUM_HEX = 16 }; /* digits of one as text */
typedef struct {
	_Alignas(64) char state[576];
} Checksum;
void checksum_begin(Checksum *c);
void checksum_add(Checksum *c, const void *bytes, int64_t n);
uint64_t checksum_end(Checksum *c); /* and begins again */
uint64_t checksum_bytes(const void *bytes, int64_t n);
const char *checksum_text(char to[CHECKSUM_HEX + 1], uint64_t checksum);
/* By the vectors of any CPU, and of those that have AVX2. */
void checksum_add_any(Checksum *c, const void *bytes, int64_t n);
void checksum_add_avx2(Checksum *c, const void *bytes, int64_t n);

/* ---- thread.c: EXIT_SYSTEM, saying what the thread was for, when there can be none. It gets no
 * signals; the caller joins it. */
Status thread_start(pthread_t *thread, const char *what_for, void *(*run)(void *), void *context);

#endif
