/* Runs a training by the command line's options: evaluation, steps, checkpoints, log, exports. If an output that training
 * itself does not need fails, such as the log, only that output ends; training continues, and the exit code tells the fault. */
#include "runtime/cli/cli.h"

#include "runtime/model/model.h"

#include <math.h>
#include <string.h>

/* Says what training does, unless --quiet. */
static void PRINTF(2, 3) tell(const Session *s, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	if (!s->o->quiet)
		vfprintf(stderr, fmt, args);
	va_end(args);
}

static void
add_metrics(Text *line, const GradcEval *e)
{
	text_printf(line, "eval loss %.6g", e->loss);
	if (!isnan(e->accuracy))
		text_printf(line, ", accuracy %.4f", e->accuracy);
	if (!isnan(e->perplexity))
		text_printf(line, ", perplexity %.5g", e->perplexity);
	for (int i = 0; i < e->n_metrics; i++)
		if (!e->metrics[i].is_field)
			text_printf(line, ", %s %.5g", e->metrics[i].name, e->metrics[i].value);
}

/* averaged: NULL without averages. */
static void
show_eval(Session *s, const char *when, const GradcEval *e, const GradcEval *averaged)
{
	Text line = {0};

	text_printf(&line, "%s: ", when);
	add_metrics(&line, e);
	if (averaged) {
		text_add(&line, " (averaged weights: ");
		add_metrics(&line, averaged);
		text_add(&line, ")");
	}
	if (e->rows == e->all_rows)
		text_printf(&line, ", %lld rows", (long long)e->rows);
	results_add_left_out(&line, e);
	progress_line(&s->progress, "%s\n", line.at);
	text_free(&line);
}

/* Reports the fault of an output that training itself does not need. The fault decides the exit code; training continues. */
static void
tell_fault(Session *s, Status fault)
{
	if (!fault || !*fault->message) { /* another rank reports the fault */
		status_free(fault);
		return;
	}
	progress_line(&s->progress, "%s", ""); /* so that the message begins a line */
	diag_status(s->diag, fault);
}

/* Reports a fault of the log and closes the log, so that only the log's first fault is reported. views_fault does the same for
 * the event file. */
static void
log_fault(Session *s, Status fault)
{
	if (!fault)
		return;
	tell_fault(s, fault);
	status_free(log_close(s->log));
	s->log = NULL;
}

static void
views_fault(Session *s, Status fault)
{
	if (!fault)
		return;
	tell_fault(s, fault);
	views_drop_events(&s->views);
}

/* Evaluates. *ended: a signal ended the evaluation; then s->stop is the signal, and there is no result. */
static Status
evaluate(Session *s, Status (*with)(Gradc *, GradcEval *), GradcEval *out, bool *ended)
{
	Status status = with(s->run, out);

	*ended = status && status->exit_code == EXIT_PREEMPTED;
	if (!status && gradc_rank(s->run) == 0 && !s->eval_failed) {
		Status fault = eval_check(out);
		s->eval_failed = fault != NULL;
		tell_fault(s, fault);
	}
	if (!*ended)
		return status;
	status_free(status);
	return gradc_agree(s->run, (int)s->signals->number, &s->stop);
}

static Status
evaluate_before(Session *s)
{
	bool ended;

	if (!gradc_has_eval(s->run))
		return NULL;
	RETURN_IF_ERROR(evaluate(s, gradc_evaluate, &s->before, &ended));
	if (ended)
		return NULL;
	s->after = s->before;
	s->evaluated = true;
	show_eval(s, s->resumed.path ? "as resumed" : "before training", &s->before, NULL);
	views_fault(s, views_eval_before(&s->views, gradc_steps_done(s->run), &s->before));
	if (gradc_steps_done(s->run) == 0)
		log_fault(s, log_eval_before(s->log, s->run, &s->before));
	return NULL;
}

static bool
is_save_due(const Session *s, int64_t step)
{
	return s->o->save_every > 0 && step % s->o->save_every == 0;
}

bool
session_finds_lr(const Session *s)
{
	return s->o->find_lr[0] > 0;
}

static bool
is_eval_due(const Session *s, int64_t step)
{
	int64_t every = s->o->eval_every;

	return gradc_has_eval(s->run) && !session_finds_lr(s) &&
	       (step == gradc_total_steps(s->run) || (every > 0 && step % every == 0) ||
	        (s->o->run.keep_best && is_save_due(s, step)));
}

static bool
is_range_due(const Session *s, int64_t step)
{
	return s->keeps_ranges && gradc_ranges_due(s->run, step);
}

/* Rank 0 reads the ranges of activations; the other ranks send their parts of learned scales. */
static Status
read_ranges(Session *s, Arena *arena, GradcRunningRanges *out)
{
	RETURN_IF_ERROR(gradc_begin_exports(s->run));
	Status status = gradc_rank(s->run) == 0 ? gradc_running_ranges(s->run, arena, out) : NULL;
	return status_first(status, gradc_end_exports(s->run));
}

/* Writes a step's line to the log. A failed step has a line as well, so that the log ends with the fault. */
static void
write_step(Session *s, const StepEval *eval, const GradcRunningRanges *ranges)
{
	log_fault(s, log_step(s->log, s->run, &s->step, eval, ranges));
	views_fault(s, views_step(&s->views, s->run, &s->step, eval, ranges));
}

static Status
evaluate_step(Session *s, StepEval *out)
{
	int64_t every = s->o->eval_every;
	bool ended;

	RETURN_IF_ERROR(evaluate(s, gradc_evaluate, &s->after, &ended));
	if (!ended && gradc_has_averages(s->run))
		RETURN_IF_ERROR(evaluate(s, gradc_evaluate_averages, &s->averaged, &ended));
	if (ended)
		return NULL;
	/* Only at multiples of --eval-every: a training that may be continued must not depend on where it stopped. */
	bool counts = s->after.count != 0 && every > 0 && s->step.step % every == 0;
	if (counts)
		gradc_schedule_loss(s->run, s->after.loss);
	gradc_judge(s->run, &s->after, counts);
	*out = (StepEval){&s->after, gradc_has_averages(s->run) ? &s->averaged : NULL,
	                  gradc_best(s->run)};
	return NULL;
}

/* Is it a fault, such as an unreadable row, after which the states of the steps before can still be saved and exported? */
static bool
is_between_steps(const StatusInfo *fault)
{
	return fault->exit_code == EXIT_DATA || fault->exit_code == EXIT_CHECKPOINT;
}

/* Handles a step's results. */
static Status
finish_step(Session *s, Status status)
{
	GradcRunningRanges ranges = {0};
	StepEval eval = {0};
	bool is_done = !status;

	s->step_seconds += s->step.seconds;
	s->save_seconds += s->step.save_seconds;
	s->evaluated = false;
	if (!status && s->step.count == 0)
		diag_warning(s->diag, "step %lld: every target is ignored: no update",
		             (long long)s->step.step);
	if (!status && is_eval_due(s, s->step.step))
		status = evaluate_step(s, &eval);
	Arena *scratch = arena_new();
	if (!status && is_range_due(s, s->step.step))
		status = read_ranges(s, scratch, &ranges);
	if (!status || status->exit_code == EXIT_NON_FINITE ||
	    (is_done && is_between_steps(status)))
		write_step(s, &eval, &ranges);
	arena_free(scratch);
	if (is_done)
		progress_step(&s->progress, s->run, &s->step);
	if (!status && eval.trained) {
		char when[48];
		snprintf(when, sizeof(when), "step %lld", (long long)s->step.step);
		show_eval(s, when, eval.trained, eval.averaged);
		s->evaluated = true;
	}
	return status;
}

/* Takes the results of queued steps. One step may stay under way while the next one is queued, unless the states are read next.
 * All ranks take a result at the same point of the loop, even if the result is ready earlier on some ranks. */
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
		/* report the results of the earlier step first, in the log and among the faults */
		if (status)
			return status_first(take_results(s, true), status);
		return take_results(s, is_save_due(s, step) || is_eval_due(s, step) ||
		                               is_range_due(s, step));
	}
	RETURN_IF_ERROR(gradc_accumulate(s->run, &s->step));
	tell_fault(s, gradc_dump_gradients(s->run, s->o->dump_gradients));
	return finish_step(s, gradc_update(s->run, &s->step));
}

static Status
save_step(Session *s)
{
	return gradc_save(s->run, s->evaluated ? s->after.loss : NAN);
}

/* Saves the last step's states, again if needed, until the checkpoint is written or gradc_save gives up. */
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

/* Warns about steps without an update because of overflow. */
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
	             "%.3g ms, less than writing a checkpoint",
	             s->save_seconds, all, (long long)s->o->save_every,
	             1e3 * every * s->step_seconds / (double)steps);
	diag_hint(s->diag, "with --save-every=%.0f it need not wait",
	          ceil(every * (1 + s->save_seconds / s->step_seconds)));
}

/* After each step ranks exchange signals and faults, so that all end after the same step. */
static Status
meet(Session *s, Status fault)
{
	enum { FAULT = 1 << 16 }; /* larger than any signal */
	int most = 0;
	Status status = gradc_agree(s->run, fault ? FAULT : (int)s->signals->number, &most);

	if (status)
		return status_first(fault, status);
	if (most == FAULT)
		return gradc_share(s->run, fault);
	s->stop = most;
	return NULL;
}

static Status
save_after(Session *s, int64_t step)
{
	/* an evaluated step has its results already; the last results may be those of an earlier step */
	bool is_best = s->o->run.keep_best && s->step.step == step && s->evaluated &&
	               gradc_best(s->run)->improved;

	if (is_save_due(s, step))
		RETURN_IF_ERROR(save_step(s));
	else if (is_best)
		RETURN_IF_ERROR(gradc_save_best(s->run, s->after.loss));
	return gradc_save_poll(s->run, false);
}

static Status
train(Session *s)
{
	int64_t done = gradc_steps_done(s->run), total = gradc_total_steps(s->run);

	s->signals->awaited = true;
	RETURN_IF_ERROR(evaluate_before(s));
	for (int64_t i = done; i < total && !s->stop && !gradc_best(s->run)->stops; i++) {
		RETURN_IF_ERROR(take_step(s, i == done));
		Status fault = meet(s, save_after(s, i + 1));
		if (fault && (gradc_ranks(s->run) == 1 || gradc_is_shared(s->run)))
			/* the step under way is still finished and counted */
			return status_first(fault, take_results(s, true));
		RETURN_IF_ERROR(fault); /* a rank is lost */
	}
	RETURN_IF_ERROR(take_results(s, true));
	warn_saving(s, gradc_steps_done(s->run) - done);
	warn_overflows(s, gradc_steps_done(s->run) - done);
	return s->o->run.save ? gradc_share(s->run, save_last(s)) : NULL;
}

/* Steps of --find-lr. A loss that is not finite ends the sweep and is not a fault. */
static Status
sweep(Session *s)
{
	int64_t total = gradc_total_steps(s->run);
	LrSweep found = lr_sweep_new(s->arena, total);
	bool over = false;

	s->signals->awaited = true;
	for (int64_t i = 0; i < total && !s->stop && !over; i++) {
		Status status = finish_step(s, gradc_step(s->run, &s->step));
		over = status && status->exit_code == EXIT_NON_FINITE;
		found.diverged = over;
		if (over)
			status_free(status);
		else
			RETURN_IF_ERROR(status);
		over = over || !lr_sweep_add(&found, s->step.lr, s->step.loss);
		RETURN_IF_ERROR(gradc_agree(s->run, (int)s->signals->number, &s->stop));
	}
	progress_end(&s->progress);
	if (gradc_rank(s->run) == 0 && !s->stop)
		lr_sweep_print(&found, stdout, s->o->json);
	return NULL;
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
			"batch statistics are computed in each of %lld micro-batches, which differs from "
			"one batch as large",
			(long long)parts);
}

Status
session_resume(Session *s)
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
		tell(s, "resumed from %s: step %lld\n", plain_text(s->arena, r->path),
		     (long long)r->step);
	else
		tell(s, "no checkpoint to resume from: training starts fresh\n");
	return NULL;
}

/* Reports the steps that an earlier run's log has after the checkpoint. */
static void
tell_lost(const Session *s)
{
	double seconds;
	long long steps = log_lost_steps(s->log, &seconds);

	if (steps > 0)
		tell(s,
		     "%lld step%s after the checkpoint, %.3g s of training, %s computed again; it was "
		     "written %.3g s ago\n",
		     steps, steps > 1 ? "s" : "", seconds, steps > 1 ? "are" : "is",
		     s->resumed.age);
}

static Status
check_eval(const Session *s)
{
	const GradcOptions *o = &s->o->run;
	const struct {
		bool given;
		const char *option;
	} needs[] = {{s->o->eval_every > 0, "--eval-every"},
	             {o->keep_best, "--keep-best"},
	             {o->metric != NULL, "--metric"}};

	for (int i = 0; i < COUNT(needs); i++)
		if (needs[i].given && !gradc_has_eval(s->run))
			return status_error(EXIT_USAGE,
			                    "%s: there are no evaluation data: give --eval-data, "
			                    "--eval-tokens or --split",
			                    needs[i].option);
	return NULL;
}

/* Checks that all ranks have the same values of the options that decide when ranks exchange messages between steps. */
static Status
compare_ranks(const Session *s)
{
	RETURN_IF_ERROR(gradc_compare(s->run, "--save-every", s->o->save_every));
	return gradc_compare(s->run, "--eval-every", s->o->eval_every);
}

/* Is it a fault that all ranks find by themselves, at the same step? */
bool
status_is_common(int exit_code)
{
	return exit_code == EXIT_NON_FINITE || exit_code == EXIT_USAGE;
}

bool
session_is_everybodys(const Session *s, const StatusInfo *status)
{
	return status_is_common(status->exit_code) && !s->apart;
}

/* After a fault between two steps, saves and exports the steps before it. Several ranks do this together, so all of them must
 * know the fault and be at the same step. */
static void
rescue(Session *s, const StatusInfo *fault)
{
	bool together = gradc_ranks(s->run) == 1 || gradc_is_shared(s->run);
	int64_t done = gradc_steps_done(s->run);

	s->rescued = fault && is_between_steps(fault) && together && gradc_is_whole(s->run) &&
	             !session_finds_lr(s);
	if (!s->rescued || !s->o->run.save || fault->exit_code == EXIT_CHECKPOINT ||
	    done == s->resumed.step)
		return;
	tell_fault(s, save_last(s));
	if (gradc_saved_step(s->run) == done && gradc_rank(s->run) == 0)
		progress_line(&s->progress, "saved step %lld, after which a step failed\n",
		              (long long)done);
}

static Status
run_training(Session *s)
{
	const CliOptions *o = s->o;

	RETURN_IF_ERROR(gradc_bind_data(s->run));
	RETURN_IF_ERROR(compare_ranks(s));
	RETURN_IF_ERROR(check_eval(s));
	RETURN_IF_ERROR(session_resume(s));
	if (o->run.save)
		RETURN_IF_ERROR(gradc_check_saves(s->run, o->save_every));
	warn_statistics(s);
	if (gradc_rank(s->run) == 0)
		table_print(stderr, s->run, o);
	s->progress = progress_start(o->progress, stderr, gradc_steps_done(s->run),
	                             gradc_total_steps(s->run));
	RETURN_IF_ERROR(log_open(o->log, o->command, &s->resumed, &s->log));
	tell_lost(s);
	Status status = views_open(s->arena, o, &s->views);
	if (!status)
		status = session_finds_lr(s) ? sweep(s) : train(s);
	if (status && (!gradc_saves_together(s->run) || gradc_is_shared(s->run) ||
	               session_is_everybodys(s, status)))
		status_free(gradc_save_poll(s->run, true));
	rescue(s, status);
	progress_end(&s->progress);
	const char *fault = status ? status->message : NULL;
	if (fault && !*fault) /* another rank has the fault */
		fault = gradc_shared_fault(s->run);
	tell_fault(s, views_close(&s->views, s->run, fault));
	tell_fault(s, log_close(s->log));
	s->log = NULL;
	RETURN_IF_ERROR(status);
	results_print(s);
	return NULL;
}

/* Warns if the exported model was not trained. */
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
			"the checkpoint is of step %lld, after --steps %lld: nothing was trained",
			step, (long long)o->run.steps);
	else if (!s->resumed.path && o->run.steps == 0 && !o->run.load &&
	         (o->export || o->export_merged))
		diag_warning(s->diag, "no step was trained: %s has the initial weights",
		             o->export ? o->export : o->export_merged);
}

/* Warns of --once if the program of role forward has batch norms or dropout in training form. */
static void
warn_training_form(const Session *s)
{
	const Format *f = gradc_tables(s->run);
	const char *form = format_info_get(f, "forward_in_training_form");

	if (gradc_rank(s->run) > 0 || !form || strcmp(form, "1") != 0)
		return;
	diag_warning(s->diag, "the outputs are in training form, as the model is: %s",
	             format_info_get(f, "training_form"));
	diag_hint(s->diag, "%s", TRAINING_FORM_HINT);
}

static bool
exports_best(const CliOptions *o)
{
	const char *which = o->run.export_weights;

	return (o->export || o->export_merged || o->export_adapter) &&
	       (which ? strcmp(which, "best") == 0 : o->run.keep_best);
}

/* Brings the weights of the best step back, and says so if that step is not the last one. */
static Status
load_best(Session *s)
{
	const GradcBest *b = gradc_best(s->run);
	bool asked = s->o->run.export_weights != NULL;

	if (b->step < 0 && !asked) {
		if (gradc_rank(s->run) == 0)
			diag_warning(
				s->diag,
				"no evaluation after a step had a %s: the last step is exported",
				b->metric);
		return NULL;
	}
	Status status = gradc_load_best(s->run);
	if (status && asked)
		return status;
	if (status) { /* better the last step than no export; the fault decides the exit code */
		tell_fault(s, status);
		if (gradc_rank(s->run) == 0)
			tell(s, "exporting the last step, %lld, in place of the best one\n",
			     (long long)gradc_steps_done(s->run));
		return NULL;
	}
	if (gradc_rank(s->run) == 0 && b->step != gradc_steps_done(s->run))
		tell(s, "exporting the best step, %lld (%s %.6g), of %lld\n", (long long)b->step,
		     b->metric, b->value, (long long)gradc_steps_done(s->run));
	return NULL;
}

/* Says which form was written. An adapter alone has no form. */
static void
tell_export(const Session *s, const char *path, bool is_model)
{
	if (is_model && gradc_rank(s->run) == 0)
		tell(s, "wrote %s (%s)\n", plain_text(s->arena, path),
		     export_is_weights(path) ? "weights alone" : gradc_export_form(s->run));
}

/* Writes all exports. If one export fails, the others are still written. */
static Status
write_exports(Session *s)
{
	const CliOptions *o = s->o;
	const struct {
		const char *path;
		Status (*write)(Gradc *run, const char *path);
		bool is_model;
	} exports[] = {{o->export, gradc_export, true},
	               {o->export_merged, gradc_export_merged, true},
	               {o->export_adapter, gradc_export_adapter, false}};

	int best; /* only rank 0 exports, but all ranks load */
	RETURN_IF_ERROR(gradc_agree(s->run, exports_best(o), &best));
	if (best)
		RETURN_IF_ERROR(load_best(s));
	RETURN_IF_ERROR(gradc_begin_exports(s->run));
	for (int i = 0; i < COUNT(exports); i++) {
		Status status = exports[i].path ? exports[i].write(s->run, exports[i].path) : NULL;
		if (exports[i].path && !status)
			tell_export(s, exports[i].path, exports[i].is_model);
		tell_fault(s, status);
	}
	return gradc_end_exports(s->run);
}

/* Checks before training whether the exports can be written. */
Status
session_check_exports(const Session *s)
{
	const CliOptions *o = s->o;

	if (o->dump_gradients && gradc_holds_parts(s->run))
		return status_error(
			EXIT_USAGE,
			"--dump-gradients: not possible if ranks hold parts of gradients; "
			"compile with --data-parallel=ddp as well, and use it");
	if (o->export)
		RETURN_IF_ERROR(gradc_check_adapters(s->run, "--export"));
	if (o->export_adapter)
		RETURN_IF_ERROR(gradc_check_adapters(s->run, "--export-adapter"));
	return o->export_merged ? gradc_check_adapters(s->run, "--export-merged") : NULL;
}

static bool
is_training(const CliOptions *o)
{
	return !o->once && (o->run.steps != 0 || o->run.data.n || o->run.tokens || o->run.text);
}

/* --steps 0 with evaluation data, but no training data */
static bool
is_evaluation(const CliOptions *o)
{
	return !o->once && !is_training(o) &&
	       (o->run.eval_data.n || o->run.eval_tokens || o->run.eval_text);
}

Status
session_run(Session *s)
{
	const CliOptions *o = s->o;

	if (o->word)
		return o->word->run(s);
	if (is_evaluation(o))
		RETURN_IF_ERROR(gradc_bind_eval_data(s->run));
	Status status = is_training(o) ? run_training(s) : session_resume(s);

	if (status && s->rescued)
		tell_fault(s, write_exports(s));
	RETURN_IF_ERROR(status);
	if (o->once && o->check_gradients && gradc_rank(s->run) == 0)
		return check_gradients(s->run, o);
	if (o->once && !o->backward)
		warn_training_form(s);
	if (o->once)
		return gradc_rank(s->run) == 0
		               ? gradc_once(s->run, &o->inputs, o->backward, o->output_dir)
		               : NULL;
	if (is_evaluation(o))
		RETURN_IF_ERROR(session_evaluate(s));
	warn_untrained(s);
	/* no exports: the run that continues this one will write them */
	bool stopped = s->stop && o->run.save;
	status = stopped ? NULL : write_exports(s);
	if (!status && is_training(o) && !s->stop)
		results_print_end(s);
	return status;
}
