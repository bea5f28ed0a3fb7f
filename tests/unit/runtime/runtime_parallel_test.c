/* The thread pool, each kind: every iteration runs once, memory is visible across calls, threads are bound to the right
 * CPUs. And the division of a machine's CPUs among ranks. */
#include "base/base.h"
#include "runtime/host/host.h"
#include "tests/unit/runtime/expect_status.h"

#include <sched.h>
#include <stdatomic.h>

enum { N = 10007 };

static Pool *
open_pool(void **state, int threads)
{
	ThreadKind kind = (ThreadKind)(intptr_t)*state;
	Pool *pool;
	Status status = pool_open(kind, threads, &pool);

	if (status && kind == THREADS_GOMP) { /* not installed, or ThreadSanitizer */
		print_message("%s\n", status->message);
		status_free(status);
		skip();
	}
	must(status);
	return pool;
}

typedef struct {
	int64_t *values;
	_Atomic int parts;
	_Atomic int64_t least;
} Sweep;

static void
add_one(void *ctx, int64_t begin, int64_t end)
{
	Sweep *s = ctx;

	assert_true(begin < end && begin >= 0 && end <= N);
	atomic_fetch_add(&s->parts, 1);
	if (end < N && end - begin < atomic_load(&s->least))
		atomic_store(&s->least, end - begin);
	for (int64_t i = begin; i < end; i++)
		s->values[i] += i + 1;
}

/* With plain loads and stores, a call sees what the previous call wrote, in whichever thread. */
static void
test_covers(void **state)
{
	static int64_t values[N];
	Pool *pool = open_pool(state, 4);

	memset(values, 0, sizeof(values));
	for (int round = 0; round < 100; round++) {
		Sweep s = {.values = values, .least = N};

		parallel_for(pool, N, 1 + round * 7, add_one, &s);
		assert_true(s.parts > 1 && s.parts <= 16);
		assert_true(s.least >= 1 + round * 7);
	}
	for (int64_t i = 0; i < N; i++)
		assert_true(values[i] == 100 * (i + 1));
	pool_close(pool);
}

static void
test_small_is_one_part(void **state)
{
	static int64_t values[N];
	Pool *pool = open_pool(state, 4);
	Sweep s = {.values = values};

	parallel_for(pool, 8, 8, add_one, &s);
	assert_int_equal(s.parts, 1);
	pool_close(pool);
}

typedef struct {
	_Atomic int waiting;
	int n;
} Meeting;

/* Returns only when n threads are here at the same time; with fewer threads it would hang. */
static void
meet(void *ctx, int64_t begin, int64_t end)
{
	Meeting *m = ctx;

	atomic_fetch_add(&m->waiting, (int)(end - begin));
	while (atomic_load(&m->waiting) < m->n)
		sched_yield();
}

static void
test_threads_run_at_once(void **state)
{
	Pool *pool = open_pool(state, 3);
	Meeting m = {.n = 3};

	assert_int_equal(pool_threads(pool), 3);
	parallel_for(pool, 3, 1, meet, &m);
	pool_close(pool);
}

typedef struct {
	_Atomic int bound, n;
	Meeting meeting;
} Places;

static void
look(void *ctx, int64_t begin, int64_t end)
{
	Places *p = ctx;
	cpu_set_t set;

	meet(&p->meeting, begin, end);
	sched_getaffinity(0, sizeof(set), &set);
	atomic_fetch_add(&p->bound, CPU_COUNT(&set) == 1);
	atomic_fetch_add(&p->n, 1);
}

/* All threads but the caller are bound if there is a CPU for each; no thread is bound if there are more threads than CPUs. */
static void
test_binding(void **state)
{
	cpu_set_t before, after;
	CpuShare share;

	cpu_share(&share);
	if (share.n < 2 || !share.own)
		skip();
	sched_getaffinity(0, sizeof(before), &before);
	for (int extra = 1; extra >= 0; extra--) {
		Pool *pool = open_pool(state, share.n + extra);
		Places p = {.meeting.n = share.n + extra};

		parallel_for(pool, p.meeting.n, 1, look, &p);
		assert_int_equal(p.n, share.n + extra);
		assert_int_equal(p.bound, extra ? 0 : share.n - 1);
		assert_int_equal(strstr(pool_name(pool), "bound") != NULL, !extra);
		pool_close(pool);
	}
	sched_getaffinity(0, sizeof(after), &after);
	assert_true(CPU_EQUAL(&before, &after));
}

static CpuShare
divided(int n, int all, int local, int ranks)
{
	CpuShare s = {.n = n};

	for (int i = 0; i < n; i++)
		s.at[i] = i;
	cpu_share_divide(&s, all, local, ranks);
	return s;
}

static void
test_shares(void **state)
{
	CpuShare s = divided(8, 8, 0, 1);

	assert_true(s.n == 8 && s.own);
	s = divided(8, 8, 1, 3); /* a whole machine for three ranks: 2, 3 and 3 CPUs */
	assert_true(s.n == 3 && s.own && s.at[0] == 2 && s.at[2] == 4);
	s = divided(2, 8, 3, 4); /* the launcher gave each rank two CPUs of its own */
	assert_true(s.n == 2 && s.own && s.at[0] == 0);
	s = divided(4, 8, 3, 4); /* one socket for two of four ranks */
	assert_true(s.n == 2 && !s.own);
	s = divided(2, 2, 3, 8); /* more ranks than CPUs */
	assert_true(s.n == 1 && !s.own);
}

#define KIND(kind)                                                                                \
	{"covers " #kind, test_covers, NULL, NULL, (void *)(intptr_t)kind},                       \
		{"small " #kind, test_small_is_one_part, NULL, NULL, (void *)(intptr_t)kind},     \
		{"at once " #kind, test_threads_run_at_once, NULL, NULL, (void *)(intptr_t)kind}, \
		{"binding " #kind, test_binding, NULL, NULL, (void *)(intptr_t)kind},

int
main(void)
{
	const struct CMUnitTest tests[] = {
		KIND(THREADS_BEST) KIND(THREADS_GOMP) KIND(THREADS_PLAIN)
			cmocka_unit_test(test_shares),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
