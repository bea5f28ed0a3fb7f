/* base/cleanup.c and base/memory.c: cleaning up when a process ends, and when a call runs out of memory. */
#include "base/files/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/gradc-test-XXXXXX";

static int
make_folder(void **state)
{
	strcpy(folder + strlen(folder) - 6, "XXXXXX");
	return mkdtemp(folder) && setenv("TMPDIR", folder, 1) == 0 ? 0 : -1;
}

static int
n_entries(void)
{
	DIR *dir = opendir(folder);
	int n = -2; /* not counting "." and ".." */

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static int
remove_test_folder(void **state)
{
	return rmdir(folder);
}

/* Calls `make` in a process that then gets SIGTERM. Nothing may be left in the folder. */
static void
end_process_after(void (*make)(void))
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		cleanup_on_signals();
		make();
		raise(SIGTERM);
		_exit(EXIT_OK);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGTERM);
	assert_int_equal(n_entries(), 0);
}

/* ---- many files at once */
enum { MANY = 300 };

static void
make_many(void)
{
	Arena *arena = arena_new();

	for (int i = 0; i < MANY; i++) {
		TemporaryFolder made;
		if (temporary_folder_open(arena, &made))
			_exit(EXIT_SYSTEM);
		close(open(path_join(arena, made.path, "file"), O_WRONLY | O_CREAT, 0600));
	}
	if (n_entries() != MANY)
		_exit(EXIT_SYSTEM);
}

static void
test_any_number_is_cleaned_up(void **state)
{
	end_process_after(make_many);
}

static void *
open_and_close(void *unused)
{
	Arena *arena = arena_new();
	TemporaryFolder made[40];

	for (int i = 0; i < COUNT(made); i++)
		if (temporary_folder_open(arena, &made[i]))
			_exit(EXIT_SYSTEM);
	for (int i = 0; i < COUNT(made); i += 2)
		temporary_folder_close(&made[i]);
	arena_free(arena);
	return unused;
}

/* The table grows while other threads walk it. */
static void
make_in_threads(void)
{
	pthread_t threads[4];

	for (int i = 0; i < COUNT(threads); i++)
		pthread_create(&threads[i], NULL, open_and_close, NULL);
	for (int i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	if (n_entries() != COUNT(threads) * 20)
		_exit(EXIT_SYSTEM);
}

static void
test_threads_share_the_table(void **state)
{
	end_process_after(make_in_threads);
}

/* ---- a folder that another thread has made but not yet added */
static _Atomic bool is_made;

static void *
make_slowly(void *unused)
{
	Arena *arena = arena_new();
	char *path = path_join(arena, folder, "slow");

	if (!cleanup_begin_making())
		_exit(EXIT_SYSTEM);
	mkdir(path, 0700);
	atomic_store(&is_made, true);
	usleep(20000);
	cleanup_add_path(path);
	cleanup_end_making();
	for (;;)
		pause();
	return unused;
}

static void
make_in_another_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, make_slowly, NULL);
	while (!atomic_load(&is_made))
		usleep(100);
}

static void
test_the_end_waits_for_what_is_being_made(void **state)
{
	end_process_after(make_in_another_thread);
}

/* ---- child processes */
static int alive[2]; /* a pipe whose writing end is open as long as a child lives */

static pid_t
start_child(void (*run)(void))
{
	CleanupSlot slot;
	pid_t child = cleanup_fork(&slot);

	if (child == 0) {
		run();
		_exit(EXIT_OK);
	}
	if (child < 0)
		_exit(EXIT_SYSTEM);
	return child;
}

static void
end_by_signal(void)
{
	raise(SIGTERM);
}

static void
wait_for_ever(void)
{
	for (;;)
		pause();
}

/* A signal ends the child but leaves its parent's files. */
static void
make_folder_and_child(void)
{
	Arena *arena = arena_new();
	TemporaryFolder made;
	int status;

	if (temporary_folder_open(arena, &made))
		_exit(EXIT_SYSTEM);
	pid_t child = start_child(end_by_signal);
	if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) ||
	    WTERMSIG(status) != SIGTERM || n_entries() != 1)
		_exit(EXIT_SYSTEM);
	start_child(wait_for_ever);
}

static void
expect_no_child_left(void)
{
	char byte;

	close(alive[1]);
	assert_int_equal(read(alive[0], &byte, 1),
	                 0); /* waits until no process has the writing end open */
	close(alive[0]);
}

static void
test_children_end_with_their_parent(void **state)
{
	assert_int_equal(pipe(alive), 0);
	end_process_after(make_folder_and_child);
	expect_no_child_left();
}

/* A process killed by SIGKILL cannot clean up. */
static void
test_children_end_with_a_killed_parent(void **state)
{
	int status;

	assert_int_equal(pipe(alive), 0);
	pid_t child = fork();
	if (child == 0) {
		start_child(wait_for_ever);
		raise(SIGKILL);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	expect_no_child_left();
}

/* ---- orphans */
enum { N_BLOCKS = 100000 };
static int n_released;

/* Releases an object that owns another block. */
static void
release_pair(void *block)
{
	n_released++;
	memory_free(*(void **)block);
	memory_free(block);
}

/* Runs out of memory after many blocks, some of which own other blocks. */
static Status
take_until_none_is_left(void *unused)
{
	(void)unused;
	for (int i = 0; i < N_BLOCKS; i++) {
		void **object = memory_get(sizeof(void *));
		*object = memory_get(1);
		memory_on_orphaned(object, release_pair);
		memory_get(1);
	}
	memory_zeroed(SIZE_MAX, SIZE_MAX);
	return NULL;
}

/* This would take minutes if each search for a block started at the first block. */
static void
test_orphans_are_freed_in_one_pass(void **state)
{
	MemoryOrphans *orphans = NULL;
	Status status = memory_guard(take_until_none_is_left, NULL, &orphans);
	double begin = seconds_now();

	assert_non_null(status);
	assert_int_equal(status->exit_code, EXIT_SYSTEM);
	status_free(status);
	memory_orphans_free(orphans);
	assert_int_equal(n_released, N_BLOCKS);
	assert_true(seconds_now() - begin < 10);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_any_number_is_cleaned_up, make_folder,
	                                        remove_test_folder),
		cmocka_unit_test_setup_teardown(test_threads_share_the_table, make_folder,
	                                        remove_test_folder),
		cmocka_unit_test_setup_teardown(test_the_end_waits_for_what_is_being_made,
	                                        make_folder, remove_test_folder),
		cmocka_unit_test_setup_teardown(test_children_end_with_their_parent, make_folder,
	                                        remove_test_folder),
		cmocka_unit_test(test_children_end_with_a_killed_parent),
		cmocka_unit_test(test_orphans_are_freed_in_one_pass),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
