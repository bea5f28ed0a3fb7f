/* The calls of gradc.h that return a Status. Each call checks first whether it is allowed now; for example, gradc_update is
 * refused if gradc_accumulate has not run. A call that runs out of memory returns an error and does not end the process. */
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/model/model.h"
#include "runtime/train/steps.h"

#include <stdatomic.h>

typedef struct {
	const GradcModel *model;
	const GradcOptions *options;
	Diag *diag;
	Gradc *run;
} OpenArgs;

static Status
call_new(void *args)
{
	OpenArgs *a = args;
	Arena *arena = arena_new();

	a->run = NEW(arena, Gradc);
	a->run->arena = arena;
	a->run->saver = saver_new(a->run->arena);
	return NULL;
}

static Status
call_open(void *args)
{
	OpenArgs *a = args;

	return trainer_open(a->model, a->options, a->diag, a->run);
}

Status
gradc_open(const GradcModel *model, const GradcOptions *options, Diag *diag, Gradc **out)
{
	OpenArgs args = {model, options, diag, NULL};
	MemoryOrphans *orphans = NULL;

	if (out)
		*out = NULL;
	if (!model || !options || !out)
		return status_error(EXIT_USAGE, "gradc_open: an argument is NULL");
	memory_serve_json(false);
	Status status = memory_guard(call_new, &args, &orphans);
	memory_orphans_free(orphans);
	RETURN_IF_ERROR(status);
	status = memory_guard(call_open, &args, &args.run->orphans);
	if (status)
		gradc_close(args.run);
	else
		*out = args.run;
	return status;
}

/* What must be true of the run for a call to be allowed. In addition, no call may overlap another call. */
enum {
	NEEDS_NOTHING,
	NEEDS_DATA = 1,     /* training data are bound */
	NEEDS_WHOLE = 2,    /* no step is queued or half done */
	NEEDS_HALF = 4,     /* gradients wait for gradc_update */
	NEEDS_STATES = 8,   /* no update was done only in part */
	ALSO_FINISHED = 16, /* the call may follow gradc_finish */
	NEEDS_EVAL = 32     /* data are bound, with or without training data */
};

/* A call on a run with one more argument, passed by its address. */
typedef struct {
	Gradc *run;
	void *more;
	Status (*call)(void *args);
	unsigned needs;
} RunArgs;

static Status
check_needs(const Gradc *run, unsigned needs)
{
	if (run->is_finished && !(needs & ALSO_FINISHED))
		return status_error(EXIT_USAGE, "after gradc_finish comes gradc_close");
	if (needs & NEEDS_DATA && !run->is_bound)
		return status_error(EXIT_USAGE, "no data are bound: gradc_bind_data comes first");
	if (needs & NEEDS_EVAL && !run->is_eval_bound)
		return status_error(EXIT_USAGE, "no data are bound: gradc_bind_data or "
		                                "gradc_bind_eval_data comes first");
	if (needs & NEEDS_HALF && !run->accumulated)
		return status_error(EXIT_USAGE,
		                    "there are no gradients: gradc_accumulate comes first");
	if (needs & NEEDS_STATES && run->torn)
		return status_error(EXIT_SYSTEM,
		                    "an update failed half way: the states belong to no "
		                    "step; gradc_resume loads others");
	return needs & NEEDS_WHOLE ? step_is_whole(run) : NULL;
}

static Status
call_checked(void *args)
{
	const RunArgs *a = args;

	RETURN_IF_ERROR(check_needs(a->run, a->needs));
	return a->call(args);
}

/* Runs a call. doing: the text that other ranks show while they wait for this rank; may be NULL. */
static Status
guarded(RunArgs args, const char *doing)
{
	Gradc *run = args.run;

	if (!run)
		return status_error(EXIT_USAGE, "there is no run: gradc_open comes first");
	if (atomic_exchange(&run->is_called, true))
		return status_error(EXIT_USAGE, "another call on this run is under way: a run "
		                                "belongs to one thread at a time");
	comm_doing(&run->comm, doing);
	Status status = memory_guard(call_checked, &args, &run->orphans);
	comm_doing(&run->comm, NULL);
	atomic_store(&run->is_called, false);
	return status;
}

static Status
no_argument(const char *name)
{
	return status_error(EXIT_USAGE, "%s: an argument is NULL", name);
}

#define GUARDED(name, inner, Type, pass, there, doing, needs)                             \
	static Status call_##name(void *args)                                             \
	{                                                                                 \
		const RunArgs *a = args;                                                  \
                                                                                          \
		return inner(a->run, *(Type *)a->more);                                   \
	}                                                                                 \
	Status gradc_##name(Gradc *run, Type pass)                                        \
	{                                                                                 \
		if (!(there))                                                             \
			return no_argument("gradc_" #name);                               \
		return guarded((RunArgs){run, (void *)&pass, call_##name, needs}, doing); \
	}
#define GUARDED_TO(name, inner, Type, pass, doing, needs) \
	GUARDED(name, inner, Type, pass, pass, doing, needs)
#define GUARDED_BY(name, inner, Type, pass, doing, needs) \
	GUARDED(name, inner, Type, pass, true, doing, needs)
/* clang-format off */
GUARDED_TO(accumulate, step_accumulate, GradcStep *, out, "computing a step", NEEDS_DATA | NEEDS_STATES)
GUARDED_TO(update, step_update, GradcStep *, out, "computing a step", NEEDS_DATA | NEEDS_STATES)
GUARDED_TO(step, step_take, GradcStep *, out, "computing a step", NEEDS_DATA | NEEDS_STATES)
GUARDED_TO(evaluate, step_evaluate, GradcEval *, out, "evaluating", NEEDS_EVAL | NEEDS_STATES)
GUARDED_TO(evaluate_averages, averages_evaluate, GradcEval *, out, "evaluating", NEEDS_DATA | NEEDS_STATES | NEEDS_WHOLE)
GUARDED_TO(bind_predict_data, predict_bind, GradcPredictions *, out, "opening the data", NEEDS_WHOLE)
GUARDED_TO(predict, predict_run, const GradcPredict *, options, "predicting", NEEDS_STATES)
GUARDED_TO(check_gradients, gradients_check, const GradcCheckOptions *, options, "checking gradients", NEEDS_WHOLE | NEEDS_STATES)
GUARDED_TO(resume, resume_checkpoint, GradcResume *, out, "reading a checkpoint", NEEDS_WHOLE)
GUARDED_BY(save, saver_save, double, eval_loss, "saving a checkpoint", NEEDS_STATES)
GUARDED_BY(save_best, saver_save_best, double, eval_loss, "saving a checkpoint", NEEDS_STATES)
GUARDED_BY(check_saves, saver_check_names, int64_t, every, "reading checkpoints", NEEDS_NOTHING)
GUARDED_BY(save_poll, saver_poll, bool, wait, "saving a checkpoint", NEEDS_NOTHING)
GUARDED_TO(dump_gradients, once_dump_gradients, const char *, folder, "writing gradients", NEEDS_HALF)
GUARDED_TO(export, export_trained, const char *, path, "writing the model", NEEDS_WHOLE | NEEDS_STATES)
GUARDED_TO(export_merged, export_merged, const char *, path, "writing the model", NEEDS_WHOLE | NEEDS_STATES)
GUARDED_TO(export_adapter, peft_write, const char *, folder, "writing the adapters", NEEDS_WHOLE | NEEDS_STATES)
GUARDED_TO(check_adapters, adapters_check, const char *, option, "looking at the adapters", NEEDS_NOTHING)
/* clang-format on */
#undef GUARDED
#undef GUARDED_TO
#undef GUARDED_BY

#define GUARDED(name, inner, doing, needs)                                       \
	static Status call_##name(void *args)                                    \
	{                                                                        \
		return inner(((RunArgs *)args)->run);                            \
	}                                                                        \
	Status gradc_##name(Gradc *run)                                          \
	{                                                                        \
		return guarded((RunArgs){run, NULL, call_##name, needs}, doing); \
	}
GUARDED(bind_data, trainer_bind_data, "opening the data", NEEDS_WHOLE)
GUARDED(bind_eval_data, trainer_bind_eval, "opening the data", NEEDS_WHOLE)
GUARDED(queue_step, step_queue, "computing a step", NEEDS_DATA | NEEDS_STATES)
GUARDED(load_best, resume_best, "reading the best checkpoint", NEEDS_WHOLE)
GUARDED(finish, trainer_finish, "completing the trace", NEEDS_NOTHING)
GUARDED(begin_exports, states_begin, "writing the model", NEEDS_NOTHING)
GUARDED(end_exports, states_end, "writing the model", NEEDS_NOTHING)
#undef GUARDED

typedef struct {
	bool wait, *got;
	GradcStep *out;
} ResultArgs;

static Status
call_result(void *args)
{
	const RunArgs *a = args;
	const ResultArgs *r = a->more;

	return step_result(a->run, r->wait, r->out, r->got);
}

Status
gradc_step_result(Gradc *run, bool wait, GradcStep *out, bool *got)
{
	ResultArgs args = {wait, got, out};

	if (!out || !got)
		return no_argument("gradc_step_result");
	return guarded((RunArgs){run, &args, call_result, NEEDS_NOTHING}, "computing a step");
}

typedef struct {
	const char *option;
	int64_t value;
} CompareArgs;

static Status
call_compare(void *args)
{
	const RunArgs *a = args;
	const CompareArgs *c = a->more;

	return ranks_compare_option(a->run, c->option, c->value);
}

Status
gradc_compare(Gradc *run, const char *option, int64_t value)
{
	CompareArgs args = {option, value};

	if (!option)
		return no_argument("gradc_compare");
	return guarded((RunArgs){run, &args, call_compare, NEEDS_NOTHING}, "comparing options");
}

typedef struct {
	const char *option, *path;
} OutputArgs;

static Status
call_compare_output(void *args)
{
	const RunArgs *a = args;
	const OutputArgs *o = a->more;

	return ranks_compare_output(a->run, o->option, o->path);
}

Status
gradc_compare_output(Gradc *run, const char *option, const char *path)
{
	OutputArgs args = {option, path};

	if (!option)
		return no_argument("gradc_compare_output");
	return guarded((RunArgs){run, &args, call_compare_output, NEEDS_NOTHING},
	               "comparing outputs");
}

typedef struct {
	int own, *most;
} AgreeArgs;

static Status
call_agree(void *args)
{
	const RunArgs *a = args;
	const AgreeArgs *agree = a->more;

	return ranks_agree(a->run, agree->own, agree->most);
}

Status
gradc_agree(Gradc *run, int own, int *most)
{
	AgreeArgs args = {own, most};

	if (!most)
		return no_argument("gradc_agree");
	return guarded((RunArgs){run, &args, call_agree, NEEDS_NOTHING}, NULL);
}

static Status
call_share(void *args)
{
	const RunArgs *a = args;
	Status *own = a->more, fault = *own;

	*own = NULL;
	return ranks_share(a->run, fault);
}

Status
gradc_share(Gradc *run, Status own)
{
	Status status = guarded((RunArgs){run, &own, call_share, ALSO_FINISHED}, NULL);

	return status_first(own, status);
}

typedef struct {
	const GradcPair *at;
	int n;
} SettingsArgs;

static Status
call_settings(void *args)
{
	const RunArgs *a = args;
	SettingsArgs *s = a->more;

	s->at = facts_settings(a->run, &s->n);
	return NULL;
}

const GradcPair *
gradc_settings(Gradc *run, int *n)
{
	SettingsArgs args = {NULL, 0};

	status_free(guarded((RunArgs){run, &args, call_settings, NEEDS_NOTHING}, NULL));
	*n = args.n;
	return args.at;
}

typedef struct {
	const GradcPairs *inputs;
	bool backward;
	const char *folder;
} OnceArgs;

static Status
call_once(void *args)
{
	const RunArgs *a = args;
	const OnceArgs *o = a->more;

	return once_run(a->run, o->inputs, o->backward, o->folder);
}

Status
gradc_once(Gradc *run, const GradcPairs *inputs, bool backward, const char *folder)
{
	OnceArgs args = {inputs, backward, folder};

	if (!inputs || !folder)
		return no_argument("gradc_once");
	return guarded((RunArgs){run, &args, call_once, NEEDS_WHOLE | NEEDS_STATES}, NULL);
}

typedef struct {
	Arena *arena;
	GradcRunningRanges *out;
} RangesArgs;

static Status
call_ranges(void *args)
{
	const RunArgs *a = args;
	const RangesArgs *r = a->more;

	return running_ranges(a->run, r->arena, r->out);
}

Status
gradc_running_ranges(Gradc *run, Arena *arena, GradcRunningRanges *out)
{
	RangesArgs args = {arena, out};

	if (!arena || !out)
		return no_argument("gradc_running_ranges");
	return guarded((RunArgs){run, &args, call_ranges, NEEDS_WHOLE | NEEDS_STATES}, NULL);
}
