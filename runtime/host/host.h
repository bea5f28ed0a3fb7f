/* The host, which is the machine's CPUs and memory, as opposed to a GPU: thread pool, CPUs of this process, checksums of
 * memory. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_HOST_HOST_H
#define GRADC_RUNTIME_HOST_HOST_H

#include "base/base.h"

#include <pthread.h>

/* ---- parallel.c */
/* The process's only thread pool. It uses libgomp, because oneDNN does, opened with dlopen so that libgomp's way of waiting can
 * be set before libgomp starts. The pool uses its own threads if there is no libgomp, and under ThreadSanitizer, which cannot
 * see into libgomp. */
typedef struct Pool Pool;
typedef void (*ParallelFn)(void *ctx, int64_t begin, int64_t end);

/* Kinds of threads in a pool. */
typedef enum {
	THREADS_BEST,  /* libgomp if possible */
	THREADS_GOMP,  /* libgomp, or an error */
	THREADS_PLAIN, /* pthreads that sleep between calls */
	N_THREAD_KINDS,
} ThreadKind;

/* threads: number of threads, the caller's thread included; 0: one per CPU that the process may use. Threads are bound to CPUs
 * only if each thread has a CPU that no other thread and no other rank uses. The caller's thread is never bound, because
 * threads that the caller starts later would inherit its CPU. EXIT_SYSTEM if threads cannot be started. */
Status pool_open(ThreadKind kind, int threads, Pool **out);
void pool_close(Pool *pool); /* pool may be NULL */
int pool_threads(const Pool *pool);
const char *pool_name(const Pool *pool); /* for --info: "libgomp, bound", "pthreads" */
/* A function of libgomp, by name; NULL if the pool does not use libgomp, or if there is no such function. */
void *pool_symbol(const Pool *pool, const char *name);

/* Divides [0, n) into parts, calls fn for each part, on all threads, and waits until all parts are done. Each part but the last
 * has at least `grain` iterations; any thread may take any part. Only one caller at a time, and no calls from within fn. */
void parallel_for(Pool *pool, int64_t n, int64_t grain, ParallelFn fn, void *ctx);

/* ---- cpus.c: the CPUs of this process */
enum { MAX_CPUS = 1024 };
typedef struct {
	int n, at[MAX_CPUS];
	bool own; /* no other rank of the job uses these CPUs */
} CpuShare;
void cpu_share(CpuShare *out);
/* Number of CPUs of the machine, even if a launcher allows this process fewer CPUs. */
int cpu_count(void);
/* *local: index of this process among the *ranks processes that the launcher started on this machine; 0 of 1 without a
 * launcher. */
void local_rank(int *local, int *ranks);
/* Reduces s, which holds the n CPUs that this process may use, to the CPUs for rank `local` of `ranks` on this machine. all:
 * number of CPUs of the machine. */
void cpu_share_divide(CpuShare *s, int all, int local, int ranks);

/* ---- checksum.c */
/* XXH3, 64 bits, over bytes that are added in order. */
enum { CHECKSUM_HEX = 16 }; /* digits of a checksum as text */
typedef struct {
	_Alignas(64) char state[576];
} Checksum;
void checksum_begin(Checksum *c);
void checksum_add(Checksum *c, const void *bytes, int64_t n);
uint64_t checksum_end(Checksum *c); /* also resets c for a new checksum */
uint64_t checksum_bytes(const void *bytes, int64_t n);
const char *checksum_text(char to[CHECKSUM_HEX + 1], uint64_t checksum);
/* Versions for any CPU, and for CPUs with AVX2. */
void checksum_add_any(Checksum *c, const void *bytes, int64_t n);
void checksum_add_avx2(Checksum *c, const void *bytes, int64_t n);

/* ---- thread.c: starts a thread that gets no signals; the caller joins it. EXIT_SYSTEM, naming the thread's purpose, if the
 * thread cannot be started. */
Status thread_start(pthread_t *thread, const char *what_for, void *(*run)(void *), void *context);

#endif
