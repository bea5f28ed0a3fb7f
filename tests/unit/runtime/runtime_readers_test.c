/* Threads that read the tasks of a micro-batch: each task runs once, the first fault is returned, and nothing runs afterwards. */
#include "runtime/data/data.h"
#include "tests/unit/runtime/expect_status.h"

#include <stdatomic.h>
#include <unistd.h>

enum { TASKS = 200, READERS = 4 };

typedef struct {
	atomic_int runs[TASKS];
	atomic_int busy[READERS]; /* tasks that a reader runs at this time: at most 1 */
	atomic_int together, most;
	int bad[3]; /* tasks that fail; -1: none */
	int late;   /* a task that takes 50 ms */
	useconds_t delay;
} Job;

static Status
task(void *context, int reader, int number)
{
	Job *j = context;

	assert_true(reader >= 0 && reader < READERS && number >= 0 && number < TASKS);
	assert_int_equal(atomic_fetch_add(&j->busy[reader], 1), 0);
	int together = atomic_fetch_add(&j->together, 1) + 1, most = atomic_load(&j->most);
	while (together > most && !atomic_compare_exchange_weak(&j->most, &most, together))
		;
	usleep(number == j->late ? 50000 : j->delay);
	atomic_fetch_add(&j->runs[number], 1);
	atomic_fetch_sub(&j->together, 1);
	atomic_fetch_sub(&j->busy[reader], 1);
	for (int i = 0; i < COUNT(j->bad); i++)
		if (j->bad[i] == number)
			return status_error(EXIT_DATA, "task %d", number);
	return NULL;
}

static void
run(Readers *r, Job *j, int n, const char *fault)
{
	for (int i = 0; i < TASKS; i++)
		atomic_store(&j->runs[i], 0);
	Status status = readers_run(r, n, task, j);
	if (fault)
		expect_status(status, EXIT_DATA, fault);
	else
		must(status);
	assert_int_equal(atomic_load(&j->together), 0);
	for (int i = 0; i < TASKS; i++)
		assert_true(atomic_load(&j->runs[i]) <= (i < n));
	for (int i = 0; i < n && !fault; i++)
		assert_int_equal(atomic_load(&j->runs[i]), 1);
}

/* Alone (r NULL), with one thread, and with helpers. */
static void
each(int threads)
{
	Arena *arena = arena_new();
	MemoryOrphans *orphans = NULL;
	Readers *r = NULL;
	Job j = {.bad = {-1, -1, -1}, .late = -1};

	if (threads)
		must(readers_open(arena, threads, &orphans, &r));
	for (int n = 0; n <= TASKS; n = n * 3 + 1)
		run(r, &j, n, NULL);
	run(r, &j, TASKS, NULL);
	j = (Job){.bad = {150, 7, 40}, .late = 7}; /* task 40 fails long before task 7 */
	run(r, &j, TASKS, "task 7");
	for (int i = 0; i < 7; i++)
		assert_int_equal(atomic_load(&j.runs[i]), 1);
	j = (Job){.bad = {TASKS - 1, -1, -1}, .late = -1};
	run(r, &j, TASKS, "task 199");
	j = (Job){.bad = {-1, -1, -1}, .late = -1};
	run(r, &j, TASKS, NULL); /* the fault before is forgotten */
	readers_close(r);
	memory_orphans_free(orphans);
	arena_free(arena);
}

static void
test_each_task_once(void **state)
{
	(void)state;
	for (int threads = 0; threads <= READERS; threads++)
		each(threads);
}

static void
test_threads_help(void **state)
{
	Arena *arena = arena_new();
	MemoryOrphans *orphans = NULL;
	Job j = {.bad = {-1, -1, -1}, .late = -1, .delay = 2000};
	Readers *r;

	(void)state;
	must(readers_open(arena, READERS, &orphans, &r));
	run(r, &j, TASKS / 4, NULL);
	assert_true(atomic_load(&j.most) > 1);
	readers_close(r);
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_task_once),
		cmocka_unit_test(test_threads_help),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
