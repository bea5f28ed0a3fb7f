/* A training executable's main: options, table, steps, log, evaluation, export, exit code. The
 * only file that knows the compiled object's symbols, handles signals and decides to exit. */
#include "runtime/cli.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern const GradcModel gradc_model;

static volatile sig_atomic_t stop_signal;

static void
on_signal(int number)
{
	if (stop_signal) {
		cleanup_now();
		_exit(128 + number);
	}
	stop_signal = number;
}

static void
catch_signals(void)
{
	const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;

	for (int i = 0; i < COUNT(numbers); i++) {
		sigaction(numbers[i], &action, &old);
		if (numbers[i] == SIGHUP && old.sa_handler == SIG_IGN) /* nohup */
			sigaction(SIGHUP, &old, NULL);
	}
	signal(SIGPIPE, SIG_IGN);
	cleanup_on_signals();
}

/* Only rank 0 prints and writes files. */
static void
keep_quiet(CliOptions *o)
{
	o->log = o->export = o->export_merged = o->export_adapter = o->dump_gradients = o->table =
		o->tensorboard = o->report = NULL;
	o->progress = "off";
	o->run.trace = NULL;
}

typedef struct {
	Gradc *run;
	const CliOptions *o;
	Arena *arena;
	Diag *diag;
	Progress progress;
	Log *log;
	Views views;
	GradcStep step;
	GradcEval before, after;
	GradcResume resumed;
	bool evaluated;                    /* `after` is of the last step, or `before` of no step */
	double step_seconds, save_seconds; /* of this process's steps, and between them */
	bool apart; /* this rank could not begin a step that others have begun */
	bool keeps_ranges; /* rank 0 does: a log or a report; all ranks know it, for all wait for a step that is read */
	int stop; /* the signal that ended training, on whatever rank; 0: none */
} Session;

/* ", 8 of 12 rows" */
static void
add_left_out(Text *line, const GradcEval *e)
{
	if (e->rows != e->all_rows)
		text_printf(line, ", %lld of %lld rows", (long long)e->rows,
		            (long long)e->all_rows);
}

static void
show_eval(Session *s, const char *when, const GradcEval *e)
{
	Text line = {0};

	text_printf(&line, "%s: eval loss %.6g", when, e->loss);
	if (!isnan(e->accuracy))
		text_printf(&line, ", accuracy %.4f", e->accuracy);
	if (!isnan(e->perplexity))
		text_printf(&line, ", perplexity %.5g", e->perplexity);
	if (e->rows == e->all_rows)
		text_printf(&line, ", %lld rows", (long long)e->rows);
	add_left_out(&line, e);
	progress_line(&s->progress, "%s\n", line.at);
	text_free(&line);
}

static Status
evaluate_before(Session *s)
{
	if (!gradc_has_eval(s->run))
		return NULL;
	RETURN_IF_ERROR(gradc_evaluate(s->run, &s->before));
	s->after = s->before;
	s->evaluated = true;
	show_eval(s, s->resumed.path ? "as resumed" : "before training", &s->before);
	RETURN_IF_ERROR(views_eval_before(&s->views, gradc_steps_done(s->run), &s->before));
	return gradc_steps_done(s->run) == 0 ? log_eval_before(s->log, &s->before) : NULL;
}

static bool
is_save_due(const Session *s, int64_t step)
{
	return s->o->save_every > 0 && step % s->o->save_every == 0;
}

static bool
finds_lr(const Session *s)
{
	return s->o->find_lr[0] > 0;
}

static bool
is_eval_due(const Session *s, int64_t step)
{
	int64_t every = s->o->eval_every;

	return gradc_has_eval(s->run) && !finds_lr(s) &&
	       (step == gradc_total_steps(s->run) || (every > 0 && step % every == 0) ||
	        (s->o->run.keep_best && is_save_due(s, step)));
}

static bool
is_range_due(const Session *s, int64_t step)
{
	return s->keeps_ranges && gradc_ranges_due(s->run, step);
}

/* By rank 0; the others lend it what they have of learned scales. */
static Status
read_ranges(Session *s, Arena *arena, GradcRunningRanges *out)
{
	RETURN_IF_ERROR(gradc_begin_exports(s->run));
	Status status = gradc_rank(s->run) == 0 ? gradc_running_ranges(s->run, arena, out) : NULL;
	return status_first(status, gradc_end_exports(s->run));
}

/* What is done with a step's results. With a fault the line of the step is written all the same: the log ends with what
 * went wrong. */
static Status
finish_step(Session *s, Status status)
{
	GradcRunningRanges ranges = {0};
	GradcEval *eval = NULL;

	s->step_seconds += s->step.seconds;
	s->save_seconds += s->step.save_seconds;
	s->evaluated = false;
	if (!status && s->step.count == 0)
		diag_warning(s->diag, "step %lld: every target is ignored: no update",
		             (long long)s->step.step);
	if (!status && is_eval_due(s, s->step.step)) {
		status = gradc_evaluate(s->run, &s->after);
		eval = &s->after;
		/* Not at the end of a training, which may go on: what it does then must not depend on that. */
		if (!status && s->after.count != 0 && s->o->eval_every > 0 &&
		    s->step.step % s->o->eval_every == 0)
			gradc_schedule_loss(s->run, s->after.loss);
	}
	Arena *scratch = arena_new();
	if (!status && is_range_due(s, s->step.step))
		status = read_ranges(s, scratch, &ranges);
	if (!status || status->exit_code == EXIT_NON_FINITE) {
		Status written = log_step(s->log, s->run, &s->step, eval, &ranges);
		if (!written)
			written = views_step(&s->views, s->run, &s->step, eval, &ranges);
		status = status_first(status, written);
	}
	arena_free(scratch);
	if (!status)
		progress_step(&s->progress, s->run, &s->step);
	if (!status && eval) {
		char when[48];
		snprintf(when, sizeof(when), "step %lld", (long long)s->step.step);
		show_eval(s, when, eval);
		s->evaluated = true;
	}
	return status;
}

/* One step may be under way while the next is queued; before anything reads the states there is none. Ranks take the same
 * results at the same place, whoever has them sooner. */
static Status
take_results(Session *s, bool all)
{
	for (bool got = true; got;) {
		bool wait = all || gradc_steps_queued(s->run) > 1 || gradc_computes_at_once(s->run);
		if (!wait && gradc_ranks(s->run) > 1)
			return NULL;
		Status status = gradc_step_result(s->run, wait, &s->step, &got);

		if (got)
			status = finish_step(s, status);
		RETURN_IF_ERROR(status);
	}
	return NULL;
}

static Status
take_step(Session *s, bool first)
{
	int64_t step = gradc_steps_done(s->run) + 1;

	if (!first || !s->o->dump_gradients) {
		Status status = gradc_queue_step(s->run);
		s->apart = status != NULL;
		if (status) /* the step before comes first, in the log and among faults */
			return status_first(take_results(s, true), status);
		return take_results(s, is_save_due(s, step) || is_eval_due(s, step) ||
		                               is_range_due(s, step));
	}
	RETURN_IF_ERROR(gradc_accumulate(s->run, &s->step));
	RETURN_IF_ERROR(gradc_dump_gradients(s->run, s->o->dump_gradients));
	return finish_step(s, gradc_update(s->run, &s->step));
}

static Status
save_step(Session *s)
{
	return gradc_save(s->run, s->evaluated ? s->after.loss : NAN);
}

/* The state of the last step, again if need be until it is there or gradc_save gives up. */
static Status
save_last(Session *s)
{
	Status status = gradc_save_poll(s->run, true);

	while (!status && gradc_saved_step(s->run) != gradc_steps_done(s->run)) {
		status = save_step(s);
		if (!status)
			status = gradc_save_poll(s->run, true);
	}
	return status;
}

enum { SAVING_MOST_PERCENT = 5, SAVING_LEAST_SECONDS = 1 };

/* A save that comes before the last one is written makes training wait for the disk. */
static void
warn_overflows(const Session *s, int64_t steps)
{
	if (s->step.overflows == 0)
		return;
	diag_warning(
		s->diag,
		"%lld of %lld steps changed nothing but the loss scale, which is %g: the gradients overflowed",
		(long long)s->step.overflows, (long long)steps, s->step.loss_scale);
}

static void
warn_saving(const Session *s, int64_t steps)
{
	double all = s->step_seconds + s->save_seconds, every = (double)s->o->save_every;

	if (gradc_rank(s->run) > 0 || all < SAVING_LEAST_SECONDS ||
	    s->save_seconds < 0.01 * SAVING_MOST_PERCENT * all)
		return;
	diag_warning(s->diag,
	             "training waited %.3g s of %.3g s for checkpoints: %lld steps take "
	             "%.3g ms, less than writing one",
	             s->save_seconds, all, (long long)s->o->save_every,
	             1e3 * every * s->step_seconds / (double)steps);
	diag_hint(s->diag, "with --save-every=%.0f it need not wait",
	          ceil(every * (1 + s->save_seconds / s->step_seconds)));
}

static Status
train(Session *s)
{
	int64_t done = gradc_steps_done(s->run), total = gradc_total_steps(s->run);

	RETURN_IF_ERROR(evaluate_before(s));
	for (int64_t i = done; i < total && !s->stop; i++) {
		RETURN_IF_ERROR(take_step(s, i == done));
		if (is_save_due(s, i + 1))
			RETURN_IF_ERROR(save_step(s));
		RETURN_IF_ERROR(gradc_save_poll(s->run, false));
		RETURN_IF_ERROR(gradc_agree(s->run, (int)stop_signal, &s->stop));
	}
	RETURN_IF_ERROR(take_results(s, true));
	warn_saving(s, gradc_steps_done(s->run) - done);
	warn_overflows(s, gradc_steps_done(s->run) - done);
	return s->o->run.save ? save_last(s) : NULL;
}

/* Steps of --find-lr. A loss that is not finite is what it looks for. */
static Status
sweep(Session *s)
{
	int64_t total = gradc_total_steps(s->run);
	LrSweep found = lr_sweep_new(s->arena, total);
	bool over = false;

	for (int64_t i = 0; i < total && !s->stop && !over; i++) {
		Status status = finish_step(s, gradc_step(s->run, &s->step));
		over = status && status->exit_code == EXIT_NON_FINITE;
		found.diverged = over;
		if (over)
			status_free(status);
		else
			RETURN_IF_ERROR(status);
		over = over || !lr_sweep_add(&found, s->step.lr, s->step.loss);
		RETURN_IF_ERROR(gradc_agree(s->run, (int)stop_signal, &s->stop));
	}
	progress_end(&s->progress);
	if (gradc_rank(s->run) == 0 && !s->stop)
		lr_sweep_print(&found, stdout, s->o->json);
	return NULL;
}

static void
print_result(const Session *s)
{
	if (gradc_rank(s->run) > 0 || finds_lr(s))
		return;
	if (s->o->json) {
		json_t *root = json_object();
		json_object_set_new(root, "steps", json_integer(s->step.step));
		json_object_set_new(root, "loss", json_number(s->step.loss));
		if (s->evaluated)
			json_add_eval(root, &s->after);
		json_dumpf(root, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
		printf("\n");
		json_decref(root);
		return;
	}
	printf("steps %lld", (long long)s->step.step);
	if (!isnan(s->step.loss)) /* that of a step: a fault would have ended the run */
		printf(", loss %.9g", s->step.loss);
	if (s->evaluated)
		printf(", eval loss %.9g -> %.9g", s->before.loss, s->after.loss);
	if (s->evaluated && !isnan(s->after.accuracy))
		printf(", accuracy %.4f -> %.4f", s->before.accuracy, s->after.accuracy);
	if (s->evaluated && !isnan(s->after.perplexity))
		printf(", perplexity %.5g -> %.5g", s->before.perplexity, s->after.perplexity);
	Text left_out = {0};
	if (s->evaluated)
		add_left_out(&left_out, &s->after);
	printf("%s\n", left_out.n ? left_out.at : "");
	text_free(&left_out);
}

static void
warn_statistics(const Session *s)
{
	const char *statistics = format_info_get(gradc_tables(s->run), "has_batch_statistics");

	const char *together = format_info_get(gradc_tables(s->run), "sync_batch_norm");
	bool synchronized = together && strcmp(together, "1") == 0;
	int64_t parts = gradc_accumulation(s->run) * (synchronized ? 1 : gradc_ranks(s->run));

	if (parts > 1 && gradc_rank(s->run) == 0 && statistics && strcmp(statistics, "1") == 0)
		diag_warning(
			s->diag,
			"batch statistics are those of each of %lld micro-batches: that is not "
			"one batch as large",
			(long long)parts);
}

static Status
resume(Session *s)
{
	GradcResume *r = &s->resumed;

	RETURN_IF_ERROR(gradc_resume(s->run, r));
	if (!s->o->run.resume)
		return NULL;
	s->step.step = r->step;
	s->step.loss = r->loss;
	if (gradc_rank(s->run) > 0)
		return NULL;
	if (r->path)
		fprintf(stderr, "resumed from %s: step %lld\n", plain_text(s->arena, r->path),
		        (long long)r->step);
	else
		fprintf(stderr, "no checkpoint to resume from: training starts fresh\n");
	return NULL;
}

/* By what the log has of the run before, which may have been killed. */
static void
tell_lost(const Session *s)
{
	double seconds;
	long long steps = log_lost_steps(s->log, &seconds);

	if (steps > 0)
		fprintf(stderr,
		        "%lld step%s behind the checkpoint, %.3g s of training, %s computed again; it was "
		        "written %.3g s ago\n",
		        steps, steps > 1 ? "s" : "", seconds, steps > 1 ? "are" : "is",
		        s->resumed.age);
}

static Status
check_eval(const Session *s)
{
	const CliOptions *o = s->o;
	const char *option = o->eval_every > 0 ? "--eval-every" : "--keep-best";

	if ((o->eval_every > 0 || o->run.keep_best) && !gradc_has_eval(s->run))
		return status_error(EXIT_USAGE,
		                    "%s: there are no evaluation data: give --eval-data or "
		                    "--eval-tokens",
		                    option);
	return NULL;
}

/* What decides when ranks meet besides steps. */
static Status
compare_ranks(const Session *s)
{
	RETURN_IF_ERROR(gradc_compare(s->run, "--save-every", s->o->save_every));
	return gradc_compare(s->run, "--eval-every", s->o->eval_every);
}

/* Faults that all ranks come to by themselves, at the same step. */
static bool
is_common(int exit_code)
{
	return exit_code == EXIT_NON_FINITE || exit_code == EXIT_USAGE;
}

static bool
is_everybodys(const Session *s, const StatusInfo *status)
{
	return is_common(status->exit_code) && !s->apart;
}

static Status
run_training(Session *s)
{
	const CliOptions *o = s->o;

	RETURN_IF_ERROR(gradc_bind_data(s->run));
	RETURN_IF_ERROR(compare_ranks(s));
	RETURN_IF_ERROR(check_eval(s));
	RETURN_IF_ERROR(resume(s));
	if (o->run.save)
		RETURN_IF_ERROR(gradc_check_saves(s->run, o->save_every));
	warn_statistics(s);
	if (gradc_rank(s->run) == 0)
		table_print(stderr, s->run, o);
	s->progress = progress_start(o->progress, stderr, gradc_steps_done(s->run),
	                             gradc_total_steps(s->run));
	RETURN_IF_ERROR(log_open(o->log, &s->resumed, &s->log));
	tell_lost(s);
	Status status = views_open(s->arena, o, &s->views);
	if (!status)
		status = finds_lr(s) ? sweep(s) : train(s);
	if (status && (!gradc_saves_together(s->run) || is_everybodys(s, status)))
		status_free(gradc_save_poll(s->run, true));
	progress_end(&s->progress);
	status = views_close(&s->views, s->run, status);
	RETURN_IF_ERROR(status_first(status, log_close(s->log)));
	print_result(s);
	return NULL;
}

/* What one would take for the result of a training. */
static void
warn_untrained(const Session *s)
{
	const CliOptions *o = s->o;
	long long step = s->resumed.step;

	if (o->once || gradc_rank(s->run) > 0)
		return;
	if (s->resumed.path && o->run.steps > 0 && step > o->run.steps)
		diag_warning(
			s->diag,
			"the checkpoint is of step %lld, behind --steps %lld: nothing was trained",
			step, (long long)o->run.steps);
	else if (!s->resumed.path && o->run.steps == 0 && (o->export || o->export_merged))
		diag_warning(s->diag, "no step was trained: %s has the initial weights",
		             o->export ? o->export : o->export_merged);
}

/* Where the file has batch norms or dropout in training form, what is computed or exported so is not what evaluation computes. */
static void
warn_training_form(const Session *s, const char *text)
{
	const char *nodes = format_info_get(gradc_tables(s->run), "training_form");

	if (gradc_rank(s->run) > 0 || !nodes || !*nodes)
		return;
	diag_warning(s->diag, "%s in training form, as the model is: %s", text, nodes);
	diag_hint(s->diag, "%s", TRAINING_FORM_HINT);
}

static Status
write_exports(Session *s)
{
	const CliOptions *o = s->o;
	const char *path = o->export ? o->export : o->export_merged;

	if (path)
		warn_training_form(s, arena_printf(s->arena, "%s is", path));
	RETURN_IF_ERROR(gradc_begin_exports(s->run));
	Status status = o->export ? gradc_export(s->run, o->export) : NULL;
	if (!status && o->export_merged)
		status = gradc_export_merged(s->run, o->export_merged);
	if (!status && o->export_adapter)
		status = gradc_export_adapter(s->run, o->export_adapter);
	return status_first(status, gradc_end_exports(s->run));
}

/* What could not be written at the end is told at the start. */
static Status
check_exports(Session *s)
{
	const CliOptions *o = s->o;

	if (o->dump_gradients && gradc_holds_parts(s->run))
		return status_error(EXIT_USAGE,
		                    "--dump-gradients: not where ranks hold parts of gradients; "
		                    "--data-parallel=ddp, compiled in, too, does it");
	if (o->export)
		RETURN_IF_ERROR(gradc_check_adapters(s->run, "--export"));
	if (o->export_adapter)
		RETURN_IF_ERROR(gradc_check_adapters(s->run, "--export-adapter"));
	return o->export_merged ? gradc_check_adapters(s->run, "--export-merged") : NULL;
}

static Status
run_session(Session *s)
{
	const CliOptions *o = s->o;

	if (!o->once && (o->run.steps != 0 || o->run.data.n || o->run.tokens || o->run.text))
		RETURN_IF_ERROR(run_training(s));
	else
		RETURN_IF_ERROR(resume(s));
	if (o->once && o->check_gradients && gradc_rank(s->run) == 0)
		return check_gradients(s->run, o);
	const char *form = format_info_get(gradc_tables(s->run), "forward_in_training_form");
	if (o->once && !o->backward && form && strcmp(form, "1") == 0)
		warn_training_form(s, "the outputs are");
	if (o->once && gradc_rank(s->run) == 0)
		return gradc_once(s->run, &o->inputs, o->backward, o->output_dir);
	warn_untrained(s);
	bool stopped = s->stop && o->run.save; /* the run that resumes it exports */
	return stopped ? NULL : write_exports(s);
}

enum { SILENT_WAIT = 200000 }; /* microseconds */

/* Frees the status; true if it was an error. Errors of all ranks are told by one, but for what only another knows of them. */
static bool
report(const Session *s, Status status)
{
	bool others = s->run && gradc_rank(s->run) > 0 && status && is_everybodys(s, status) &&
	              !s->step.not_finite;

	if (!status || (*status->message && !others))
		return diag_status(s->diag, status);
	status_free(status);
	usleep(SILENT_WAIT); /* a launcher ends all ranks when the first one leaves: the one that says why has to be sooner */
	return true;
}

/* Where the stopped training is, and how it goes on. */
static void
show_stop(const Session *s)
{
	Text command = {0};

	if (!s->stop || gradc_rank(s->run) > 0)
		return;
	fprintf(stderr, "stopped by signal %d (%s) after step %lld", s->stop, strsignal(s->stop),
	        (long long)gradc_steps_done(s->run));
	if (!s->o->run.save) {
		fprintf(stderr, ": nothing is saved without --save DIR\n");
		return;
	}
	text_add_plain(&command, s->o->command);
	fprintf(stderr, "; saved in %s; to continue%s:\n  %s\n",
	        plain_text(s->arena, s->o->run.save),
	        gradc_ranks(s->run) > 1 ? ", under the same launcher," : "", command.at);
	text_free(&command);
}

/* Before training: they could be written, and nobody else is writing them. */
static Status
take_outputs(Arena *arena, const PathUses *paths, PathLocks *locks, Diag *diag)
{
	RETURN_IF_ERROR(paths_try(arena, paths));
	return paths_lock(arena, paths, locks, diag);
}

static int
run_executable(CliOptions *o, Arena *arena, Diag *diag)
{
	GradcModel model = gradc_model;
	Session s = {.o = o,
	             .arena = arena,
	             .diag = diag,
	             .step.loss = NAN,
	             .keeps_ranges = o->log || o->report};
	PathUses paths = {0};
	PathLocks locks = {0};

	model.file = o->program;
	if (o->info)
		return info_print(&model, o, diag);
	o->run.communicator = "auto";
	o->run.alone = o->once;
	Status status = options_match_names(arena, &model, o);
	if (!status && !outputs_prepare(o, &model, arena, &paths, diag))
		return EXIT_USAGE;
	if (!status)
		status = paths_make(arena, &paths);
	if (!status)
		status = gradc_open(&model, &o->run, diag, &s.run);
	if (!status)
		status = check_exports(&s); /* all ranks alike */
	if (!status && gradc_rank(s.run) == 0)
		status = take_outputs(arena, &paths, &locks, diag);
	else if (!status)
		keep_quiet(o);
	if (!status)
		status = run_session(&s);
	if (s.run)
		status = status_first(status, gradc_finish(s.run));
	int code = status ? status->exit_code : EXIT_OK;
	if (!status && s.run)
		show_stop(&s);
	bool failed = report(&s, status);
	if (failed && s.run && (!is_common(code) || s.apart))
		gradc_abort(s.run, code);
	gradc_close(s.run);
	paths_unlock(&locks);
	if (!failed && diag_errors(diag) > 0)
		code = diag_exit_code(diag);
	if (failed || !s.stop)
		return code;
	return o->run.save ? EXIT_PREEMPTED : 128 + s.stop;
}

/* As a shell reads it, with --resume=auto in place of any --resume. */
static const char *
resuming_command(Arena *arena, int argc, char **argv)
{
	Text t = {0};

	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "--resume") == 0)
			i++;
		else if (strncmp(argv[i], "--resume=", 9) != 0) {
			text_add_shell_word(&t, argv[i]);
			text_add(&t, " ");
		}
	}
	const char *copy = arena_printf(arena, "%s--resume=auto", t.at ? t.at : "");
	text_free(&t);
	return copy;
}

/* Also when that is killed, and cannot end us itself. 0: whoever started us does not want it. */
static void
end_with_parent(int64_t parent)
{
	if (parent == 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) /* it was sooner */
		raise(SIGKILL);
}

/* The name that the user gave, unless the shell found it elsewhere. */
static const char *
own_path(Arena *arena, const char *name)
{
	static const char self[] = "/proc/self/exe";
	char path[PATH_MAX];
	ssize_t n = readlink(self, path, sizeof(path) - 1);

	if (name && (n < 0 || path_is_same(arena, name, self)))
		return name;
	path[n < 0 ? 0 : n] = '\0';
	return n > 0 && path_is_same(arena, path, self) ? arena_strdup(arena, path) : self;
}

int
main(int argc, char **argv)
{
	streams_reserve();
	memory_serve_json(true);
	Arena *arena = arena_new();
	Diag *diag = diag_new("gradc", stderr);
	CliOptions options;
	const char *command = resuming_command(arena, argc, argv);
	int code = EXIT_OK;

	if (!options_parse(arena, diag, argc, argv, &options))
		code = diag_exit_code(diag);
	else if (options.help)
		options_help(stdout, plain_text(arena, argv[0]));
	else {
		options.command = command;
		end_with_parent(options.parent);
		options.program = own_path(arena, argv[0]);
		catch_signals();
		code = run_executable(&options, arena, diag);
	}
	code = diag_finish_stdout(diag, code);
	diag_free(diag);
	arena_free(arena);
	return code;
}
