/* Checks the rows of the tables of losses, optimizers, passes and recipes, for people who add a row. Each message names the row
 * and the column. The row's function is run once on small values, so that a result that it forgets to set is reported
 * before anything reads it. */
#include "passes/pass.h"

#include <string.h>

/* Checks options of passes and of losses. */
static void
check_options(RowCheck *c, const PassOption *options, size_t size, const void *defaults)
{
	static const size_t sizes[] = {
		[OPTION_STRING] = sizeof(char *), [OPTION_INT] = sizeof(int64_t),
		[OPTION_DOUBLE] = sizeof(double), [OPTION_BOOL] = sizeof(bool),
		[OPTION_BYTES] = sizeof(int64_t), [OPTION_PARSED] = 0};

	if (options || defaults)
		row_needs(c, "options_size", size > 0);
	for (const PassOption *o = options; o && o->name; o++) {
		if (!o->help || !*o->help)
			row_error(c, "options", "lacks the help of %s", o->name);
		size_t bytes = o->parser ? o->parser->size : sizes[o->kind];
		if ((o->kind == OPTION_PARSED) != (o->parser != NULL))
			row_error(c, "options",
			          "has %s with a parser but without OPTION_PARSED, or reversed",
			          o->name);
		if (o->parser && o->flag.name)
			row_error(c, "options", "has --%s, but flags cannot be parsed options",
			          o->flag.name);
		if (size && o->offset + bytes > size)
			row_error(c, "options", "has %s beyond the %zu bytes of options_size",
			          o->name, size);
		if (o->flag.name && (!o->flag.value || !o->flag.help || !o->flag.group))
			row_error(c, "options", "has the option --%s without value, help or group",
			          o->flag.name);
	}
}

/* ---- optimizers */
static bool
takes_default(const char *name)
{
	for (int i = 0; i < N_SCALARS; i++)
		if (strcmp(scalar_names[i], name) == 0)
			return hyperparameters[i].option != NULL;
	return false;
}

/* "lr=0.001 beta1=0.9" */
static void
check_defaults(RowCheck *c, const char *text)
{
	char copy[400], *save = NULL;
	double value;

	if (strlen(text) >= sizeof(copy)) {
		row_error(c, "defaults", "is longer than %zu bytes", sizeof(copy) - 1);
		return;
	}
	strcpy(copy, text);
	for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		char *equals = strchr(word, '=');
		if (!equals || !parse_double(equals + 1, &value)) {
			row_error(c, "defaults", "has %s: need NAME=NUMBER", word);
			continue;
		}
		*equals = 0;
		if (!takes_default(word))
			row_error(c, "defaults",
			          "names the hyperparameter %s, which does not exist", word);
	}
}

static bool
has_default(const OptimizerRow *row, int scalar)
{
	size_t n = strlen(scalar_names[scalar]);

	for (const char *at = row->defaults; at; at = strchr(at, ' ')) {
		at += *at == ' ';
		if (strncmp(at, scalar_names[scalar], n) == 0 && at[n] == '=')
			return true;
	}
	return false;
}

/* Checks what update sets, for parameters of that type. Optimizers may store moments of few elements in another way
 * than moments of many. */
enum { FEW = 4, MANY = 1 << 13 };
static void
check_update(RowCheck *c, const OptimizerRow *row, DType dtype, int64_t rows)
{
	Module *m = module_new("row check");
	Function *f = function_new(m, "update");
	Builder b = {.m = m, .f = f};
	int64_t n = 2 * rows, matrix[] = {rows, 2};
	Type t = row->whole ? type_new(m, dtype, 2, matrix) : type_new(m, dtype, 1, &n);
	Type f64 = type_scalar(m, F64), kept[MAX_MOMENTS] = {0};
	char *settings = arena_alloc(m->arena, row->options_size + 1);
	if (row->settings)
		memcpy(settings, row->settings, row->options_size);
	unsigned without = row->without ? row->without(settings) : 0;
	Update u = {.b = &b,
	            .settings = settings,
	            .param = function_param(f, t, "param"),
	            .grad = function_param(f, t, "grad"),
	            .t = function_param(f, f64, "t"),
	            .lr = function_param(f, f64, "lr"),
	            .inputs_axis = -1,
	            .count = function_param(f, f64, "count"),
	            .group_lr = function_param(f, f64, "lr"),
	            .decay = function_param(f, f64, "decay")};

	for (int i = 0; i < MAX_MOMENTS; i++) {
		bool named = row->moments[i] && !(without >> i & 1);
		kept[i] = named && row->moment_type ? row->moment_type(m, settings, t, i) : t;
		u.moment[i] = without >> i & 1 || !kept[i] ? NULL
		                                           : function_param(f, kept[i], "moment");
	}
	for (int i = 0; i < MAX_NUMBERS; i++)
		u.numbers[i] = row->numbers[i].name ? function_param(f, f64, "number") : NULL;
	row->update(&u);
	for (int i = 0; i < MAX_NUMBERS; i++)
		if ((row->numbers[i].name != NULL) != (u.new_numbers[i] != NULL))
			row_error(c, "numbers",
			          row->numbers[i].name ? "are left unset by update"
			                               : "are missing");
	for (int i = 0; row->defaults && i < N_SCALARS; i++)
		if (hyperparameters[i].option && function_find_param(f, PARAM_HYPERPARAMETER, i) &&
		    !has_default(row, i))
			row_error(c, "defaults", "lacks %s, which update reads", scalar_names[i]);
	if (!u.new_param)
		row_error(c, "update", "leaves new_param unset");
	else if (u.new_param->type != t)
		row_error(c, "update", "gives new_param another type than param's %s",
		          dtype_info[dtype].name);
	for (int i = 0; i < MAX_MOMENTS; i++) {
		bool named = row->moments[i] && !(without >> i & 1) && kept[i];
		if (named && !u.new_moment[i])
			row_error(c, "update", "leaves new_moment[%d] unset, of %s", i,
			          row->moments[i]);
		else if (named && u.new_moment[i]->type != kept[i])
			row_error(c, "update",
			          "gives new_moment[%d] another type than the moment's", i);
		else if (!named && (u.new_moment[i] || (u.moment[i] && value_used(u.moment[i]))))
			row_error(c, "moments", "lacks the name of moment %d, which update uses",
			          i);
	}
	module_free(m);
}

bool
optimizer_row_check(const OptimizerRow *row, Diag *diag)
{
	RowCheck c = {"optimizer", row->name, diag, true};

	row_needs(&c, "name", row->name && *row->name);
	row_needs(&c, "doc", row->doc && *row->doc);
	row_needs(&c, "defaults", row->defaults != NULL);
	row_needs(&c, "update", row->update != NULL);
	for (int i = 1; i < MAX_MOMENTS; i++)
		if (row->moments[i] && !row->moments[i - 1])
			row_error(&c, "moments", "names number %d and not the one before", i);
	check_options(&c, row->options, row->options_size, row->settings);
	if (row->defaults)
		check_defaults(&c, row->defaults);
	if (row->update)
		check_update(&c, row, F32, FEW);
	if (row->update && c.sound)
		check_update(&c, row, F64, MANY);
	return c.sound;
}

/* ---- losses */
static void
check_scalar(RowCheck *c, const char *what, const Value *v, Type want, bool required)
{
	if (!v && required)
		row_error(c, "build", "leaves %s unset", what);
	else if (v && v->type != want)
		row_error(c, "build", "gives %s another type than a scalar of the output's", what);
}

static void
check_build(RowCheck *c, const LossRow *row)
{
	Module *m = module_new("row check");
	Function *f = function_new(m, "loss");
	Builder b = {.m = m, .f = f};
	int64_t dims[] = {4, 3};
	Type output = type_new(m, F32, 2, dims), rows = type_new(m, F32, 1, dims);
	Type target = row->class_targets ? type_with_dtype(m, rows, S64) : output;
	LossOptions options = {.target = -1, .count = -1, .axis = -1, .rows = -1};
	Loss l = {.b = &b,
	          .output = function_param(f, output, "output"),
	          .target = function_param(f, target, "target"),
	          .weight = function_param(f, rows, "weight"),
	          .options = &options,
	          .class_axis = 1,
	          .rows = {.axis = 0, .repeats = 1}};

	l.settings = loss_settings(row, NULL, m->arena, c->diag);
	row->build(&l);
	check_scalar(c, "sum", l.sum, type_scalar(m, F32), true);
	check_scalar(c, "count", l.count, type_scalar(m, F32), true);
	check_scalar(c, "correct", l.correct, type_scalar(m, F32), false);
	if (l.targets <= 0)
		row_error(c, "build", "leaves targets unset");
	module_free(m);
}

/* Options that --loss has for every kind. */
static const char *const loss_words[] = {"target", "axis", "count", "rows"};

bool
loss_row_check(const LossRow *row, Diag *diag)
{
	RowCheck c = {"loss", row->name, diag, true};

	for (const PassOption *o = row->options; o && o->name; o++)
		for (int i = 0; i < COUNT(loss_words); i++)
			if (strcmp(o->name, loss_words[i]) == 0)
				row_error(&c, "options", "names %s, which every loss has", o->name);
	row_needs(&c, "name", row->name && *row->name);
	row_needs(&c, "doc", row->doc && *row->doc);
	row_needs(&c, "build", row->build != NULL);
	check_options(&c, row->options, row->options_size, row->defaults);
	if (row->build && c.sound)
		check_build(&c, row);
	return c.sound;
}

/* ---- passes */
bool
pass_row_check(const PassRow *row, Diag *diag)
{
	RowCheck c = {"pass", row->name, diag, true};

	row_needs(&c, "name", row->name && *row->name);
	row_needs(&c, "help", row->help && *row->help);
	row_needs(&c, "run", row->run != NULL);
	check_options(&c, row->options, row->options_size, row->defaults);
	return c.sound;
}

/* ---- recipes */
bool
recipe_row_check(const Recipe *recipe, Diag *diag)
{
	RowCheck c = {"recipe", recipe->name, diag, true};
	Arena *arena = arena_new();
	LossScale scale;
	OpKind op;

	row_needs(&c, "name", recipe->name && *recipe->name);
	row_needs(&c, "floats", recipe->floats == F32 || recipe->floats == F64);
	row_needs(&c, "products",
	          !recipe_is_mixed(recipe) || (recipe->floats == F32 && (recipe->products == BF16 ||
	                                                                 recipe->products == F16)));
	row_needs(&c, "loss_scale",
	          recipe->loss_scale && loss_scale_parse(recipe->loss_scale, &scale, arena, diag));
	for (const char *const *name = recipe->high; name && *name; name++)
		if (!op_find(*name, &op))
			row_error(&c, "high", "names the op %s, which does not exist", *name);
	arena_free(arena);
	return c.sound;
}

bool
pass_tables_check(Diag *diag)
{
	bool sound = true;

	for (int i = 0; recipe_table[i]; i++)
		sound &= recipe_row_check(recipe_table[i], diag);

	for (int i = 0; optimizer_table[i]; i++)
		sound &= optimizer_row_check(optimizer_table[i], diag);
	for (int i = 0; loss_table[i]; i++)
		sound &= loss_row_check(loss_table[i], diag);
	return sound;
}
