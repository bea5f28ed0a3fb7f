/* The calls of gradc.h that allocate: running out of memory is their fault to report, not the process's end. */
#include "runtime/runtime_impl.h"

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
	a->run->saver.folder.lock = -1; /* so that it can be closed */
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

	*out = NULL;
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

/* A call on a run with one more argument, which is passed by its address. */
typedef struct {
	Gradc *run;
	void *more;
} RunArgs;

/* doing: what ranks that wait for this one are told; NULL: nothing. */
static Status
guarded(Status (*call)(void *), Gradc *run, void *more, const char *doing)
{
	RunArgs args = {run, more};

	comm_doing(&run->comm, doing);
	Status status = memory_guard(call, &args, &run->orphans);
	comm_doing(&run->comm, NULL);
	return status;
}

#define GUARDED(name, inner, Type, pass, doing)                         \
	static Status call_##name(void *args)                           \
	{                                                               \
		const RunArgs *a = args;                                \
                                                                        \
		return inner(a->run, *(Type *)a->more);                 \
	}                                                               \
	Status gradc_##name(Gradc *run, Type pass)                      \
	{                                                               \
		return guarded(call_##name, run, (void *)&pass, doing); \
	}
GUARDED(accumulate, step_accumulate, GradcStep *, out, "computing a step")
GUARDED(check_gradients, gradients_check, const GradcCheckOptions *, options, "checking gradients")
GUARDED(update, step_update, GradcStep *, out, "computing a step")
GUARDED(evaluate, step_evaluate, GradcEval *, out, "evaluating")
GUARDED(resume, resume_checkpoint, GradcResume *, out, "reading a checkpoint")
GUARDED(save, saver_save, double, eval_loss, "saving a checkpoint")
GUARDED(check_saves, saver_check_names, int64_t, every, "reading checkpoints")
GUARDED(save_poll, saver_poll, bool, wait, "saving a checkpoint")
GUARDED(dump_gradients, once_dump_gradients, const char *, folder, "writing gradients")
GUARDED(export, export_trained, const char *, path, "writing the model")
GUARDED(export_merged, export_merged, const char *, path, "writing the model")
GUARDED(export_adapter, peft_write, const char *, folder, "writing the adapters")
GUARDED(check_adapters, adapters_check, const char *, option, "looking at the adapters")
#undef GUARDED

#define GUARDED(name, inner, doing)                            \
	static Status call_##name(void *args)                  \
	{                                                      \
		return inner(((RunArgs *)args)->run);          \
	}                                                      \
	Status gradc_##name(Gradc *run)                        \
	{                                                      \
		return guarded(call_##name, run, NULL, doing); \
	}
GUARDED(bind_data, trainer_bind_data, "opening the data")
GUARDED(queue_step, step_queue, "computing a step")
GUARDED(finish, trainer_finish, "completing the trace")
GUARDED(begin_exports, states_begin, "writing the model")
GUARDED(end_exports, states_end, "writing the model")
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

	return guarded(call_result, run, &args, "computing a step");
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

	return guarded(call_compare, run, &args, "comparing options");
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

	return guarded(call_agree, run, &args, NULL);
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

	status_free(guarded(call_settings, run, &args, NULL));
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

	return guarded(call_once, run, &args, NULL);
}
