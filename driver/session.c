/* Opens a session: reads the model file and imports it as a module. session_dims.c binds open
 * dimensions, session_loss.c reads the loss, pipeline.c runs the passes. */
#include "driver/session.h"

#include <string.h>
#include <sys/stat.h>

/* ---- option texts */
bool
split_pair(Session *s, const char *option, const char *text, const char **name, const char **value)
{
	const char *equal = strrchr(text, '=');

	if (!equal || equal == text) {
		diag_error(s->diag, EXIT_USAGE, "--%s %s: need NAME=VALUE", option, text);
		return false;
	}
	*name = arena_strndup(s->arena, text, (size_t)(equal - text));
	*value = equal + 1;
	return true;
}

/* Reports --fill of an input that has a file from --input. */
static bool
has_input_file(const Session *s, const char *fill, const char *name)
{
	size_t n = strlen(name);

	for (int i = 0; i < s->o->inputs.n; i++) {
		const char *input = s->o->inputs.at[i];
		if (strncmp(input, name, n) != 0 || input[n] != '=')
			continue;
		if (s->o->data.n) /* `quantize` made --input from its --data */
			diag_error(s->diag, EXIT_USAGE, "--fill %s and --data %s: one of them",
			           fill, name);
		else
			diag_error(s->diag, EXIT_USAGE, "--fill %s and --input %s: one of them",
			           fill, input);
		return true;
	}
	return false;
}

static bool
read_fills(Session *s, ImportOptions *io)
{
	const StringList *list = &s->o->fills;
	Fill *fills = NEW_ARRAY(s->arena, Fill, list->n);
	const char *value;

	for (int i = 0; i < list->n; i++) {
		if (!split_pair(s, "fill", list->at[i], &fills[i].name, &value) ||
		    has_input_file(s, list->at[i], fills[i].name))
			return false;
		if (strcmp(value, "ones") == 0)
			fills[i].kind = FILL_ONES;
		else if (strcmp(value, "zeros") == 0)
			fills[i].kind = FILL_ZEROS;
		else if (strcmp(value, "iota") == 0)
			fills[i].kind = FILL_IOTA;
		else if (parse_double(value, &fills[i].value))
			fills[i].kind = FILL_VALUE;
		else {
			diag_error(s->diag, EXIT_USAGE,
			           "--fill %s: need ones, zeros, iota or a number", list->at[i]);
			return false;
		}
	}
	io->fills = fills;
	io->n_fills = list->n;
	return true;
}

static bool
read_bounds(Session *s, ImportOptions *io)
{
	const StringList *list = &s->o->bounds;
	SizeBound *bounds = NEW_ARRAY(s->arena, SizeBound, list->n + 1);
	const char *value;

	for (int i = 0; i < list->n; i++) {
		if (!split_pair(s, "bound", list->at[i], &bounds[i].name, &value))
			return false;
		if (!parse_int(value, &bounds[i].value) || bounds[i].value < 0) {
			diag_error(s->diag, EXIT_USAGE, "--bound %s: need NAME=N", list->at[i]);
			return false;
		}
		bounds[i].used = NEW(s->arena, bool);
	}
	io->bounds = bounds;
	io->n_bounds = list->n;
	return true;
}

static void
warn_idle_bounds(Session *s, const ImportOptions *io)
{
	for (int i = 0; i < io->n_bounds; i++)
		if (!*io->bounds[i].used)
			diag_warning(s->diag,
			             "--bound %s: no result of this name has a size that depends "
			             "on data",
			             s->o->bounds.at[i]);
}

static bool
read_ties(Session *s, ImportOptions *io)
{
	const Options *o = s->o;
	TieOption *ties = NEW_ARRAY(s->arena, TieOption, o->ties.n + o->no_ties.n);
	int n = 0;

	for (int i = 0; i < o->ties.n; i++)
		if (!split_pair(s, "tie", o->ties.at[i], &ties[n].a, &ties[n].b))
			return false;
		else
			n++;
	for (int i = 0; i < o->no_ties.n; i++)
		ties[n++] = (TieOption){.a = o->no_ties.at[i], .untie = true};
	io->ties = ties;
	io->n_ties = n;
	return true;
}

static bool
list_has(const StringList *list, const char *text)
{
	for (int i = 0; i < list->n; i++)
		if (strcmp(list->at[i], text) == 0)
			return true;
	return false;
}

/* With --lora the model's own parameters are frozen, except those of --train. */
static ParameterRules
import_rules(const Session *s)
{
	ParameterRules rules = {0};

	if (s->o->lora.n)
		vec_push(s->arena, &rules, rule_of(s->arena, RULE_FREEZE, "*"));
	for (int i = 0; i < s->o->rules.n; i++)
		vec_push(s->arena, &rules, s->o->rules.at[i]);
	return rules;
}

/* ---- opening */
static bool
import_options(Session *s, ImportOptions *io)
{
	const Options *o = s->o;

	for (int i = 0; i < o->repairs.n; i++)
		if (list_has(&o->no_repairs, o->repairs.at[i])) {
			diag_error(s->diag, EXIT_USAGE,
			           "--repair=%s and --no-repair=%s: one of them", o->repairs.at[i],
			           o->repairs.at[i]);
			return false;
		}
	if (!read_fills(s, io) || !read_ties(s, io) || !read_bounds(s, io))
		return false;
	io->repairs = terminated(s->arena, &o->repairs);
	io->no_repairs = terminated(s->arena, &o->no_repairs);
	io->rules = import_rules(s);
	io->update_statistics = o->statistics && strcmp(o->statistics, "update") == 0;
	io->sync_batch_norm = o->sync_batchnorm;
	io->train_mode_given = o->train_mode != NULL;
	io->restore_train_mode = o->train_mode && strcmp(o->train_mode, "restore") == 0;
	io->forward_only = o->forward_only;
	io->keep_metadata = o->keep_metadata;
	io->shapes_only = o->init_random;
	return true;
}

/* --loss=model: adds options from the file's training algorithm; options of the command line take
 * precedence. */
static bool
take_training(Session *s)
{
	Options *o = arena_copy(s->arena, s->o, sizeof(*o));
	TrainingInfo info;
	ParameterRules rules = {0};

	if (!model_take_training(s->model, &info, s->diag))
		return false;
	s->own_loss = info.loss;
	o->loss = arena_printf(s->arena, "output:%s", info.loss);
	if (!o->optimizer.row && info.optimizer &&
	    !optimizer_parse(info.optimizer, &o->optimizer, s->arena, s->diag))
		return false;
	vec_push(s->arena, &rules, rule_of(s->arena, RULE_FREEZE, "*"));
	for (int i = 0; i < info.parameters.n; i++)
		vec_push(s->arena, &rules, rule_of(s->arena, RULE_TRAIN, info.parameters.at[i]));
	for (int i = 0; i < info.first_values.n && !o->init; i++)
		vec_push(s->arena, &rules, rule_of(s->arena, RULE_INIT, info.first_values.at[i]));
	for (int i = 0; i < o->rules.n; i++)
		vec_push(s->arena, &rules, o->rules.at[i]);
	o->rules = rules;
	s->o = o;
	return true;
}

bool
session_read(Session *s, const Options *o, Arena *arena, Diag *diag)
{
	*s = (Session){.o = o, .arena = arena, .diag = diag, .stage = STAGE_IMPORT};
	if (!o->input) {
		diag_error(diag, EXIT_USAGE, "no model given");
		return false;
	}
	s->model = model_open(o->input, diag);
	return s->model && (!o->loss || strcmp(o->loss, "model") != 0 || take_training(s));
}

/* Is the input's file small? Axes and sizes are, images are not. A missing file is reported
 * later. */
static bool
is_small(const char *input)
{
	enum { MOST = 1 << 16 }; /* bytes */
	const char *equal = strchr(input, '=');
	struct stat st;

	return equal && stat(equal + 1, &st) == 0 && st.st_size <= MOST;
}

static bool
give_inputs(Session *s, ImportOptions *io)
{
	const StringList *list = &s->o->inputs;
	NamedTensor t, *elements;

	if (!lists_read(s, io))
		return false;
	int n_elements = list_elements(s, &elements);
	NamedTensor *given = NEW_ARRAY(s->arena, NamedTensor, list->n + n_elements + 1);
	for (; io->n_given < n_elements; io->n_given++)
		given[io->n_given] = elements[io->n_given];
	for (int i = 0; i < list->n; i++) {
		if (is_list_input(s, list->at[i]) || !is_small(list->at[i]))
			continue;
		if (!input_read(s, list->at[i], &t))
			return false;
		given[io->n_given++] = t;
	}
	io->given = given;
	return true;
}

bool
evaluates_as_exported(const Options *o)
{
	return o->eval_mode && strcmp(o->eval_mode, "as-exported") == 0;
}

bool
session_import(Session *s, OpenDims open, const char *const *outputs)
{
	ImportOptions io = {.outputs = outputs};
	const Options *o = s->o;
	const char *own[] = {s->own_loss, NULL};

	if (s->own_loss && !outputs)
		io.outputs = own;
	if (!import_options(s, &io) || !session_bind(s, open, &io) || !session_quantize(s) ||
	    (open == OPEN_DIMS_FROM_INPUTS && !give_inputs(s, &io)))
		return false;
	io.quantize = s->quantize;
	s->m = session_import_open(s, &io);
	if (!s->m)
		return false;
	warn_idle_bounds(s, &io);
	s->import = s->m->import;
	if (s->m->name != o->input)
		s->m->name = arena_strdup(s->m->arena, o->input);
	const ImportBinding *first = &s->import->bindings.at[0];
	for (int i = 0; i < first->outputs.n; i++)
		vec_push(s->arena, &s->outputs, first->outputs.at[i].name);
	if (evaluates_as_exported(o))
		for (Function *f; (f = module_first(s->m, ROLE_INFERENCE));)
			function_remove(f);
	return !o->loss || session_parse_loss(s, o->loss);
}

const char *
training_form_text(const Session *s)
{
	enum { SHOWN = 3 };
	const StringList *list = &s->import->training_form;
	int shown = list->n > SHOWN + 1 ? SHOWN : list->n;
	const char *text = NULL;

	for (int i = 0; i < shown; i++)
		text = arena_printf(s->arena, "%s%s%s", text ? text : "", text ? ", " : "",
		                    list->at[i]);
	return shown < list->n ? arena_printf(s->arena, "%s and %d others", text, list->n - shown)
	                       : text;
}

void
session_forget_import(Session *s)
{
	module_free(s->m);
	s->m = NULL;
	s->import = NULL;
	s->stage = STAGE_IMPORT;
	s->outputs = (StringList){0};
}

bool
session_open(Session *s, const Options *o, OpenDims open, Arena *arena, Diag *diag)
{
	return session_read(s, o, arena, diag) && session_import(s, open, NULL) &&
	       outputs_prepare(o, s->model, s->loss_graph, arena, diag);
}

bool
session_open_training(Session *s, const Options *o, OpenDims open, Arena *arena, Diag *diag)
{
	Options *own = arena_copy(arena, o, sizeof(*o));
	bool by_file = o->loss && strcmp(o->loss, "model") == 0;

	if (!own->optimizer.row && !by_file &&
	    !optimizer_parse(NULL, &own->optimizer, arena, diag)) {
		*s = (Session){0};
		return false;
	}
	return session_open(s, own, open, arena, diag) && session_default_loss(s);
}

void
session_close(Session *s)
{
	module_free(s->m);
	model_close(s->model);
}
