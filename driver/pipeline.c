/* Decides which passes run, and with which options. Passes run in the order of two lists, first the
 * list of passes/, then that of codegen/. The `when` of a pass's row tells when a command line
 * leaves the pass out. Options of the command line that set one option of a pass stand in the
 * pass's row (PassFlag), and --pass-option sets any option. A pass needs a line here only if
 * options of gradc set its options in another way, as --lora does. */
#include "codegen/codegen.h"
#include "driver/session.h"

#include <string.h>

#define PASS(name) extern const PassRow pass_##name;
#include "codegen/pass_list.def"
#undef PASS

const PassRow *const *
pass_rows(int *n)
{
	static const PassRow *const rows[] = {
#define PASS(name) &pass_##name,
#include "passes/pass_list.def"

#include "codegen/pass_list.def"
#undef PASS
	};

	*n = COUNT(rows);
	return rows;
}

bool
pass_is_repeated(int i)
{
	int n;
	const PassRow *const *rows = pass_rows(&n);

	for (int k = 0; k < i; k++)
		if (rows[k] == rows[i])
			return true;
	return false;
}

const PassRow *
pass_find(const char *name)
{
	int n;
	const PassRow *const *rows = pass_rows(&n);

	for (int i = 0; i < n; i++)
		if (strcmp(rows[i]->name, name) == 0)
			return rows[i];
	return NULL;
}

OptionText
pass_option_text(Arena *arena, const char *text, const PassRow **row)
{
	size_t n = strcspn(text, ".="), end = strcspn(text, "=");

	*row = pass_find(arena_strndup(arena, text, n));
	if (text[n] != '.')
		return (OptionText){"", ""};
	return (OptionText){arena_strndup(arena, text + n + 1, end - n - 1),
	                    text[end] ? text + end + 1 : "true"};
}

/* ---- from the command line to a pass */
/* Joins a list, one item per line. A line break in a glob becomes `?`, which matches it. */
static const char *
joined(const Session *s, const StringList *list)
{
	Text t = {0};

	for (int i = 0; i < list->n; i++) {
		size_t start = t.n;
		text_add(&t, list->at[i]);
		for (char *c = t.at + start; *c; c++)
			*c = *c == '\n' ? '?' : *c;
		text_add(&t, "\n");
	}
	const char *copy = arena_strdup(s->arena, t.n ? t.at : "");
	text_free(&t);
	return copy;
}

static void
fill_precision(const Session *s, void *options)
{
	if (!recipe_is_mixed(recipe_find(s->o->precision)))
		((PrecisionOptions *)options)->to = s->o->precision;
}

static void
fill_mixed(const Session *s, void *options)
{
	MixedOptions *o = options;

	if (recipe_is_mixed(recipe_find(s->o->precision)))
		o->to = s->o->precision;
	o->f32 = joined(s, &s->o->mixed);
	o->master = s->o->master;
}

static void
fill_lora(const Session *s, void *options)
{
	((LoraOptions *)options)->adapters = joined(s, &s->o->lora);
}

static void
fill_quantize(const Session *s, void *options)
{
	if (s->quantize)
		*(QuantizePassOptions *)options = s->quantizing;
}

static void
fill_trainable(const Session *s, void *options)
{
	const char *learning = s->o->scale_learning;

	StringList lines = {0};

	for (int i = 0; i < s->o->rules.n; i++) {
		Text line = {0};
		rule_print(&line, &s->o->rules.at[i]);
		vec_push(s->arena, &lines, (const char *)arena_strdup(s->arena, line.at));
		text_free(&line);
	}
	((TrainableOptions *)options)->rules = joined(s, &lines);
	((TrainableOptions *)options)->scales = learning && strcmp(learning, "none") != 0;
}

static void
fill_straight_through(const Session *s, void *options)
{
	((StraightThroughOptions *)options)->learning = s->o->scale_learning;
	((StraightThroughOptions *)options)->scale_grad = s->o->scale_grad;
}

/* Name of the first optimizer that needs functions of role estimate; NULL: no optimizer does. */
static const char *
estimating_optimizer(const Options *o)
{
	if (o->optimizer.row && optimizer_every(&o->optimizer) > 0)
		return o->optimizer.row->name;
	for (int i = 0; i < o->optimizers_for.n; i++)
		if (optimizer_every(&o->optimizers_for.at[i].choice) > 0)
			return o->optimizers_for.at[i].choice.row->name;
	return NULL;
}

static void
fill_loss(const Session *s, void *options)
{
	LossOptions *o = options;

	*o = s->loss;
	o->infers = !s->o->forward_as_exported;
	if (s->o->optimizer.row)
		o->estimates_for = estimating_optimizer(s->o);
}

static void
fill_autograd(const Session *s, void *options)
{
	Text t = {0};

	for (int i = 0; i < s->wrt.n; i++)
		text_printf(&t, "%s%d", i ? " " : "", s->wrt.at[i]);
	((AutogradOptions *)options)->wrt = arena_strdup(s->arena, t.n ? t.at : "");
	((AutogradOptions *)options)->gradients = s->o->gradients;
	((AutogradOptions *)options)->skips_empty = s->has_loss &&
	                                            strcmp(s->loss.kind, "output") == 0;
	text_free(&t);
}

/* Units that --unit-bytes asks for may hold the whole model. */
static void
fill_units(const Session *s, void *options)
{
	for (int i = 0; i < s->o->flags.n; i++)
		if (s->o->flags.at[i].row == &pass_units)
			((UnitsOptions *)options)->parts = 1;
}

static void
fill_inline(const Session *s, void *options)
{
	(void)s;
	((InlineOptions *)options)->final = true;
}

static void
fill_optimizer(const Session *s, void *options)
{
	OptimizerOptions *o = options;

	o->choice = s->o->optimizer;
	o->groups = s->o->optimizers_for;
	o->loss_scale = options_loss_scale(s->o);
	o->moments = s->o->moments;
	o->rounding = s->o->rounding;
}

/* A list with `+` for `,`: an option of a pass cannot contain commas. */
static const char *
with_plus(const Session *s, const char *list)
{
	char *copy = arena_strdup(s->arena, list);

	for (char *c = copy; *c; c++)
		*c = *c == ',' ? '+' : *c;
	return copy;
}

static void
fill_memory(const Session *s, void *options)
{
	MemoryOptions *m = options;

	m->modes = s->o->data_parallel ? with_plus(s, s->o->data_parallel) : m->modes;
	m->offload = s->o->offload ? with_plus(s, s->o->offload) : m->offload;
}

/* With --offload=optimizer alone, the host updates weights that the device reads: such a weight is
 * stored in the memory of both. */
static void
fill_working(const Session *s, void *options)
{
	((WorkingOptions *)options)->all = options_offload(s->o, OFFLOAD_OPTIMIZER) &&
	                                   !options_offload(s->o, OFFLOAD_PARAMS);
}

/* The targets of programs. CPUs with the same vector width share a target, and so their programs;
 * GPUs of one generation do, too. --machine alone implies its own target, unless --target is given. */
static void
fill_targets(const Session *s, void *options)
{
	Text t = {0};

	if (s->o->machine.machine && !s->o->target) {
		((MultiversionOptions *)options)->targets = s->o->machine.machine->target;
		return;
	}
	for (int i = 0; i < s->o->cpus.n; i++)
		text_printf(&t, "%s%s", t.n ? "+" : "", s->o->cpus.at[i].target->name);
	for (int i = 0; i < s->o->gpus.n; i++)
		text_printf(&t, "%s%s", t.n ? "+" : "", s->o->gpus.at[i]->target->name);
	((MultiversionOptions *)options)->targets = arena_strdup(s->arena, t.at);
	text_free(&t);
}

static void
fill_cores(const Session *s, void *options)
{
	if (s->o->cores)
		((TargetOptions *)options)->cores = s->o->cores;
}

static bool
asked_by_offload(const Options *o)
{
	return options_offload(o, OFFLOAD_ACTIVATIONS);
}

static bool
asked_by_init(const Options *o)
{
	return o->init_random;
}

static bool
asked_by_max_accumulate(const Options *o)
{
	return o->max_accumulate == 1;
}

static bool
asked_by_quantize(const Options *o)
{
	return o->quantize != NULL;
}

static bool
asked_by_lora(const Options *o)
{
	return o->lora.n > 0;
}

static const struct {
	const PassRow *row;
	void (*fill)(const Session *s, void *options);
	bool (*asked)(const Options *o); /* for a PASS_WHEN_ASKED pass: a test besides --enable */
} uses[] = {
	{&pass_quantize, .fill = fill_quantize, .asked = asked_by_quantize},
	{&pass_precision, .fill = fill_precision},
	{&pass_initialize, .asked = asked_by_init},
	{&pass_lora, .fill = fill_lora, .asked = asked_by_lora},
	{&pass_trainable, .fill = fill_trainable},
	{&pass_straight_through, .fill = fill_straight_through},
	{&pass_loss, .fill = fill_loss},
	{&pass_autograd, .fill = fill_autograd},
	{&pass_optimizer, .fill = fill_optimizer},
	{&pass_lower, .fill = fill_cores},
	{&pass_legalize, .fill = fill_cores},
	{&pass_rematerialize, .fill = fill_cores},
	{&pass_fuse, .fill = fill_cores},
	{&pass_units, .fill = fill_units},
	{&pass_one_micro_batch, .asked = asked_by_max_accumulate},
	{&pass_inline, .fill = fill_inline},
	{&pass_multiversion, .fill = fill_targets},
	{&pass_offload, .asked = asked_by_offload},
	{&pass_memory, .fill = fill_memory},
	{&pass_mixed, .fill = fill_mixed},
	{&pass_working, .fill = fill_working},
};

/* Does an option of the command line besides --enable ask for the pass? */
static bool
is_asked_by_option(const Session *s, const PassRow *row)
{
	for (int i = 0; i < COUNT(uses); i++)
		if (uses[i].row == row && uses[i].asked && uses[i].asked(s->o))
			return true;
	for (int i = 0; i < s->o->flags.n; i++)
		if (s->o->flags.at[i].row == row)
			return true;
	return false;
}

static bool
is_asked(const Session *s, const PassRow *row)
{
	for (int i = 0; i < s->o->enable.n; i++)
		if (strcmp(s->o->enable.at[i], row->name) == 0)
			return true;
	return is_asked_by_option(s, row);
}

/* Refuses --disable of a pass that another option asks for. */
static bool
check_disabled(const Session *s)
{
	for (int i = 0; i < s->o->disable.n; i++) {
		const PassRow *row = pass_find(s->o->disable.at[i]);
		if (row->when != PASS_WHEN_ASKED || !is_asked_by_option(s, row))
			continue;
		diag_error(s->diag, EXIT_USAGE, "--disable=%s: another option asks for that pass",
		           row->name);
		return false;
	}
	return true;
}

static bool
applies(const Session *s, const PassRow *row, bool with_update)
{
	switch (row->when) {
	case PASS_ALWAYS: return true;
	case PASS_WITH_LOSS: return s->has_loss;
	case PASS_WITH_OPTIMIZER: return s->has_loss && with_update;
	case PASS_WHEN_ASKED: return is_asked(s, row);
	}
	return false;
}

/* Sets a pass's options from the command line, then from --pass-option. */
static PassCall
call_with_options(const Session *s, const PassRow *row)
{
	PassCall call = pass_call(s->arena, row);
	const PassRow *of;

	for (int i = 0; i < COUNT(uses); i++)
		if (uses[i].row == row && uses[i].fill)
			uses[i].fill(s, call.options);
	for (int i = 0; i < s->o->flags.n; i++)
		if (s->o->flags.at[i].row == row)
			pass_set(&call, s->arena, &s->o->flags.at[i].text, s->diag);
	for (int i = 0; i < s->o->pass_options.n; i++) {
		OptionText t = pass_option_text(s->arena, s->o->pass_options.at[i], &of);
		if (of == row)
			pass_set(&call, s->arena, &t, s->diag);
	}
	return call;
}

bool
session_asks_for(const Session *s, const char *pass)
{
	return is_asked(s, pass_find(pass));
}

void
session_flags(const Session *s, void (*visit)(void *ctx, const PassOption *o, const void *value),
              void *ctx)
{
	int n;
	const PassRow *const *rows = pass_rows(&n);

	for (int i = 0; i < n; i++) {
		bool is_off = rows[i]->when == PASS_WHEN_ASKED && !is_asked(s, rows[i]);
		if (pass_is_repeated(i))
			continue;
		PassCall call = is_off ? pass_call(s->arena, rows[i])
		                       : call_with_options(s, rows[i]);
		for (const PassOption *o = rows[i]->options; o && o->name; o++)
			if (o->flag.name)
				visit(ctx, o, (char *)call.options + o->offset);
	}
}

/* ---- the last pass to run */
/* The number of passes to run, from the start of the lists, to bring a module to the stage and
 * through all passes of the stage. The stage ends before the next pass that takes a module of this
 * stage. */
static int
lines_until(Stage stage)
{
	int n, i = 0;
	const PassRow *const *rows = pass_rows(&n);

	while (i < n && rows[i]->leaves != stage)
		i++;
	for (i++; i < n && rows[i]->takes != stage; i++)
		;
	return i < n ? i : n;
}

static int
lines_through(const char *pass)
{
	int n;
	const PassRow *const *rows = pass_rows(&n);

	while (n > 0 && strcmp(rows[n - 1]->name, pass) != 0)
		n--;
	return n;
}

/* Refuses options of a loss if there is no loss. */
static bool
check_loss_given(const Session *s)
{
	const Options *o = s->o;

	if (s->has_loss || (!o->label_smoothing && !o->class_weight))
		return true;
	diag_error(s->diag, EXIT_USAGE, "%s: needs --loss",
	           o->class_weight ? "--class-weight" : "--label-smoothing");
	diag_hint(s->diag, "only `compile` and `grad` have a default loss: cross_entropy");
	return false;
}

static bool
run_lines(Session *s, int n_lines, bool with_update)
{
	Pipeline p = {0};
	int n;
	const PassRow *const *rows = pass_rows(&n);
	PassManagerOptions o = manager_options(s->o, s->arena);

	if (!check_loss_given(s) || !check_disabled(s))
		return false;
	for (int i = 0; i < n_lines; i++)
		if (applies(s, rows[i], with_update))
			vec_push(s->arena, &p, call_with_options(s, rows[i]));
	return pipeline_run(&p, s->m, &s->stage, &o, s->diag);
}

bool
session_run(Session *s, const char *last, bool with_update)
{
	const PassRow *row = pass_find(last);

	if (!applies(s, row, with_update)) {
		diag_error(s->diag, EXIT_USAGE, "pass `%s` does not run here: it runs %s", last,
		           pass_when_names[row->when]);
		return false;
	}
	return run_lines(s, lines_through(last), with_update);
}

bool
session_stage(Session *s, Stage stage, bool with_update)
{
	return stage == STAGE_IMPORT || run_lines(s, lines_until(stage), with_update);
}

/* ---- options of the pass manager */
const char *const *
terminated(Arena *arena, const StringList *list)
{
	const char **copy = NEW_ARRAY(arena, const char *, list->n + 1);

	for (int i = 0; i < list->n; i++)
		copy[i] = list->at[i];
	return copy;
}

PassManagerOptions
manager_options(const Options *o, Arena *arena)
{
	return (PassManagerOptions){.dump_after = o->dump_after,
	                            .dump_dir = o->dump_dir,
	                            .dump_changed = o->dump_changed,
	                            .stop_after = o->stop_after,
	                            .disable = terminated(arena, &o->disable),
#ifdef NDEBUG
	                            .verify_each = o->verify_each,
#else
	                            .verify_each = true,
#endif
	                            .time_passes = o->time_passes,
	                            .reproducer_dir = o->dump_dir,
	                            .abort_in = o->abort_in,
	                            .fail_in = o->fail_in};
}
