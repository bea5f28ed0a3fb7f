/* Checkpoints through gradc.h, with the tiny model: the writer thread during steps, the state of a resumed run, and failing
 * writes. Also runs under the thread sanitizer. */
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/gradc.h"
#include "runtime/host/host.h"
#include "runtime/run/run.h"
#include "tests/unit/runtime/runtime_tiny.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static Gradc *
start(Tiny *t, GradcResume *resumed)
{
	Gradc *run;

	must(gradc_open(&t->model, &t->options, t->diag, &run));
	must(gradc_bind_data(run));
	must(gradc_resume(run, resumed));
	return run;
}

static double
steps(Gradc *run, int n, bool save)
{
	GradcStep step = {0};

	for (int i = 0; i < n; i++) {
		must(gradc_step(run, &step));
		if (save)
			must(gradc_save(run, NAN));
	}
	return step.loss;
}

static Tiny
saving(void)
{
	Tiny t = tiny_open(true, 40);

	t.options.save = tiny_path(&t, "checkpoints");
	t.options.lr = 1e-4;
	t.options.steps = 100;
	return t;
}

/* Saves at every step: the next snapshot is taken as soon as the writer has finished with the previous one. */
static void
test_steps_go_on_while_a_checkpoint_is_written(void **state)
{
	Tiny t = saving();
	GradcResume resumed;
	Gradc *run = start(&t, &resumed);

	assert_null(resumed.path);
	steps(run, 20, true);
	double want = steps(run, 10, false);
	must(gradc_save_poll(run, true));
	assert_int_equal(gradc_saved_step(run), 20);
	gradc_close(run);
	for (int step = 1; step <= 20; step += 19) {
		t.options.resume = tiny_path(&t,
		                             arena_printf(t.arena, "checkpoints/step-%08d", step));
		run = start(&t, &resumed);
		assert_int_equal(resumed.step, step);
		assert_int_equal(resumed.samples, step * ROWS);
		assert_int_equal(gradc_steps_done(run), step);
		assert_true(steps(run, 30 - step, false) == want);
		gradc_close(run);
	}
	tiny_close(&t);
}

/* Closing waits for the writer, so a checkpoint that was begun is complete. */
static void
test_closing_finishes_the_checkpoint(void **state)
{
	Tiny t = saving();
	GradcResume resumed;
	Gradc *run = start(&t, &resumed);

	steps(run, 3, false);
	must(gradc_save(run, 0.5));
	gradc_close(run);
	t.options.resume = "auto";
	run = start(&t, &resumed);
	assert_int_equal(resumed.step, 3);
	assert_true(resumed.eval_loss == 0.5);
	assert_int_equal(gradc_saved_step(run), 3);
	gradc_close(run);
	tiny_close(&t);
}

/* Checkpoints are the same whether the device hashes during the copy or the writer hashes. A run on another device resumes
 * from them. */
static void
test_devices_save_the_same(void **state)
{
	double losses[2];

	for (int i = 0; i < 2; i++) {
		Tiny t = saving();
		GradcResume resumed;

		t.options.device = i ? "cpu" : "async";
		Gradc *run = start(&t, &resumed);
		steps(run, 3, true);
		gradc_close(run);
		t.options.device = i ? "async" : "cpu";
		t.options.resume = "auto";
		run = start(&t, &resumed);
		assert_int_equal(resumed.step, 3);
		losses[i] = steps(run, 3, true);
		gradc_close(run);
		tiny_close(&t);
	}
	assert_true(losses[0] == losses[1]);
}

static void
test_three_failures(void **state)
{
	Tiny t = saving();
	GradcResume resumed;
	Status status = NULL;

	Gradc *run = start(&t, &resumed);
	assert_int_equal(rmdir(t.options.save), 0);
	must(file_write(t.options.save, "mine", 4)); /* a file in place of the folder */
	for (int i = 1; i <= 3; i++) {
		assert_null(status);
		steps(run, 1, false);
		status = gradc_save(run, NAN);
		if (!status)
			status = gradc_save_poll(run, true);
	}
	assert_non_null(status);
	assert_int_equal(status->exit_code, EXIT_CHECKPOINT);
	assert_non_null(strstr(status->message, "of step 3: "));
	assert_int_equal(diag_errors(t.diag), 0);
	assert_int_equal(gradc_saved_step(run), -1);
	status_free(status);
	gradc_close(run);
	tiny_close(&t);
}

static void
test_two_runs_do_not_share_a_folder(void **state)
{
	Tiny t = saving();
	GradcResume resumed;
	Gradc *run = start(&t, &resumed), *other;

	steps(run, 1, true);
	Status status = gradc_open(&t.model, &t.options, t.diag, &other);
	assert_non_null(status);
	assert_int_equal(status->exit_code, EXIT_CHECKPOINT);
	status_free(status);
	assert_null(other);
	gradc_close(run);
	must(gradc_open(&t.model, &t.options, t.diag, &other));
	gradc_close(other);
	tiny_close(&t);
}

/* The snapshot holds the saved state only, and exists only if saving is on. */
static void
test_the_snapshot_is_planned(void **state)
{
	Tiny t = saving();
	GradcResume resumed;
	Gradc *run = start(&t, &resumed);
	int64_t with = gradc_peak_bytes(run);
	GradcRegion regions[GRADC_MAX_REGIONS];
	int n = gradc_regions(run, regions);

	assert_string_equal(regions[n - 1].name, "snapshot");
	assert_int_equal(regions[n - 1].bytes, 12); /* statistic and w */
	gradc_close(run);
	t.options.save = NULL;
	run = start(&t, &resumed);
	assert_int_equal(gradc_regions(run, regions), n - 1);
	assert_int_equal(with - gradc_peak_bytes(run), 12);
	Status status = gradc_save(run, NAN);
	assert_int_equal(status->exit_code, EXIT_USAGE);
	status_free(status);
	gradc_close(run);
	tiny_close(&t);
}

static atomic_int handled_by_main;
static pthread_t main_thread;

static void
on_signal(int number)
{
	if (pthread_equal(pthread_self(), main_thread))
		handled_by_main++;
	else
		handled_by_main = -1000;
}

/* The process may have signal handlers of its own: no signal is delivered to the writer thread. */
static void
test_the_writer_takes_no_signals(void **state)
{
	Tiny t = saving();
	GradcResume resumed;
	Gradc *run = start(&t, &resumed);
	struct sigaction action = {.sa_handler = on_signal}, before;

	main_thread = pthread_self();
	sigaction(SIGUSR2, &action, &before);
	for (int i = 0; i < 50; i++) {
		steps(run, 1, true);
		kill(getpid(), SIGUSR2);
	}
	must(gradc_save_poll(run, true));
	sigaction(SIGUSR2, &before, NULL);
	assert_int_equal(handled_by_main, 50);
	gradc_close(run);
	tiny_close(&t);
}

/* gradc_settings keeps its list and gives the same list again. Only when data are bound it makes a new list, which has the
 * data's settings, too. */
static void
test_settings_are_those_of_the_data(void **state)
{
	Tiny t = saving();
	Gradc *run;
	int before, bound, again;

	must(gradc_open(&t.model, &t.options, t.diag, &run));
	gradc_settings(run, &before);
	must(gradc_bind_data(run));
	const GradcPair *settings = gradc_settings(run, &bound);
	assert_true(bound > before);
	assert_ptr_equal(gradc_settings(run, &again), settings);
	assert_int_equal(again, bound);
	gradc_close(run);
	tiny_close(&t);
}

/* The values of xxHash's own sanity check for its test buffer, hashed in any pieces. */
static void
test_checksums(void **state)
{
	static const struct {
		int64_t n;
		uint64_t checksum;
	} known[] = {{0, 0x2D06800538D394C2},   {1, 0xC44BDFF4074EECDB},
	             {12, 0xA713DAF0DFBB77E7},  {195, 0xCD94217EE362EC3A},
	             {403, 0xCDEB804D65C6DEA4}, {2048, 0xDD59E2C3A5F038E0},
	             {2367, 0xCB37AEB9E5D361ED}};
	char bytes[2367], text[CHECKSUM_HEX + 1];
	uint64_t random = 2654435761u;
	Checksum c;

	for (int i = 0; i < COUNT(bytes); i++, random *= 11400714785074694797u)
		bytes[i] = (char)(random >> 56);
	checksum_begin(&c);
	for (int i = 0; i < COUNT(known); i++) {
		assert_true(checksum_bytes(bytes, known[i].n) == known[i].checksum);
		for (int64_t at = 0, n; at < known[i].n; at += n) {
			n = known[i].n - at < 77 ? known[i].n - at : 77;
			checksum_add(&c, bytes + at, n);
		}
		assert_true(checksum_end(&c) == known[i].checksum);
		checksum_add_any(&c, bytes, known[i].n);
		assert_true(checksum_end(&c) == known[i].checksum);
	}
	assert_string_equal(checksum_text(text, 0xabc), "0000000000000abc");
}

static void
add_checkpoint(CheckpointFolder *folder, int64_t step, int64_t serial)
{
	CheckpointEntry entry = {.step = step, .serial = serial, .run = 1};
	char *temporary = folder_temporary(folder->arena, folder);
	bool beside = true;

	assert_int_equal(mkdir(temporary, 0700), 0);
	must(file_write(path_join(folder->arena, temporary, MANIFEST_FILE), "{}", 2));
	must(folder_add(folder, temporary, &entry, &beside));
	assert_false(beside);
}

/* A run that resumes from before an existing step writes this step again, however many digits its number has. */
static void
test_a_step_is_saved_again(void **state)
{
	static const int64_t steps[] = {20, 99999999, 100000000, 123456789012};

	(void)state;
	for (int i = 0; i < COUNT(steps); i++) {
		char path[] = "/tmp/gradc-folder-XXXXXX";
		assert_non_null(mkdtemp(path));
		CheckpointFolder folder = {.arena = arena_new(), .path = path, .lock = -1};
		must(folder_prepare(&folder));
		add_checkpoint(&folder, steps[i], 1);
		must(folder_list(&folder));
		assert_int_equal(folder.entries.n, 1);
		folder.entries.at[0].serial = folder.entries.at[0].run = 1; /* as in a manifest */
		add_checkpoint(&folder, steps[i], 2);
		assert_int_equal(folder.entries.n, 1);
		folder_rotate(&folder, 1, 1, -1);
		must(folder_list(&folder));
		assert_int_equal(folder.entries.n, 1);
		assert_int_equal(folder.entries.at[0].step, steps[i]);
		folder_remove(
			path_join(folder.arena, path,
		                  arena_printf(folder.arena, "step-%08lld", (long long)steps[i])));
		folder_close(&folder);
		assert_int_equal(rmdir(path), 0);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_step_is_saved_again),
		cmocka_unit_test(test_steps_go_on_while_a_checkpoint_is_written),
		cmocka_unit_test(test_closing_finishes_the_checkpoint),
		cmocka_unit_test(test_devices_save_the_same),
		cmocka_unit_test(test_three_failures),
		cmocka_unit_test(test_two_runs_do_not_share_a_folder),
		cmocka_unit_test(test_the_snapshot_is_planned),
		cmocka_unit_test(test_the_writer_takes_no_signals),
		cmocka_unit_test(test_settings_are_those_of_the_data),
		cmocka_unit_test(test_checksums),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
