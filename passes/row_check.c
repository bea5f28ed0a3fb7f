/* What rows of losses, optimizers and passes must have. Each message names the row and the column. A row's function is
 * run once on small values, so that what it forgets to set is said before anything reads it. */
#include "passes/pass.h"

#include <string.h>

typedef struct {
	const char *kind, *name;
	Diag *diag;
	bool sound;
} RowCheck;

static void PRINTF(3, 4) say(RowCheck *c, const char *column, const char *fmt, ...)
{
	va_list args;
	char text[200];

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	diag_error(c->diag, EXIT_UNSUPPORTED, "%s \"%s\": column %s %s", c->kind,
	           c->name ? c->name : "?", column, text);
	c->sound = false;
}

static void
need(RowCheck *c, const char *column, bool there)
{
	if (!there)
		say(c, column, "is missing");
}

/* ---- optimizers */
/* A number of the scalar block that users can give. */
static bool
is_real_scalar(const char *name)
{
	for (int i = 0; i < N_SCALARS; i++)
		if (strcmp(scalar_names[i], name) == 0)
			return scalar_dtypes[i] == F64;
	return false;
}

/* "lr=0.001 beta1=0.9" */
static void
check_defaults(RowCheck *c, const char *text)
{
	char copy[400], *save = NULL;
	double value;

	if (strlen(text) >= sizeof(copy)) {
		say(c, "defaults", "is longer than %zu bytes", sizeof(copy) - 1);
		return;
	}
	strcpy(copy, text);
	for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		char *equals = strchr(word, '=');
		if (!equals || !parse_double(equals + 1, &value)) {
			say(c, "defaults", "has %s: need NAME=NUMBER", word);
			continue;
		}
		*equals = 0;
		if (!is_real_scalar(word))
			say(c, "defaults", "names the hyperparameter %s, which does not exist",
			    word);
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

/* What update sets, of parameters of that type. */
static void
check_update(RowCheck *c, const OptimizerRow *row, DType dtype)
{
	Module *m = module_new("row check");
	Function *f = function_new(m, "update");
	Builder b = {.m = m, .f = f};
	int64_t n = 8;
	Type t = type_new(m, dtype, 1, &n), f64 = type_scalar(m, F64);
	Update u = {.b = &b,
	            .param = function_param(f, t, "param"),
	            .grad = function_param(f, t, "grad"),
	            .moment = {function_param(f, t, "m0"), function_param(f, t, "m1")},
	            .lr = function_param(f, f64, "lr"),
	            .decay = function_param(f, f64, "decay")};

	row->update(&u);
	for (int i = 0; row->defaults && i <= SCALAR_MOMENTUM; i++)
		if (function_find_param(f, PARAM_HYPERPARAMETER, i) && !has_default(row, i))
			say(c, "defaults", "lacks %s, which update reads", scalar_names[i]);
	if (!u.new_param)
		say(c, "update", "leaves new_param unset");
	else if (u.new_param->type != t)
		say(c, "update", "gives new_param another type than param's %s",
		    dtype_info[dtype].name);
	for (int i = 0; i < 2; i++) {
		bool named = row->moments[i] != NULL;
		if (named && !u.new_moment[i])
			say(c, "update", "leaves new_moment[%d] unset, of %s", i, row->moments[i]);
		else if (named && u.new_moment[i]->type != t)
			say(c, "update", "gives new_moment[%d] another type than param's %s", i,
			    dtype_info[dtype].name);
		else if (!named && (u.new_moment[i] || value_used(u.moment[i])))
			say(c, "moments", "lacks the name of moment %d, which update uses", i);
	}
	module_free(m);
}

bool
optimizer_row_check(const OptimizerRow *row, Diag *diag)
{
	RowCheck c = {"optimizer", row->name, diag, true};

	need(&c, "name", row->name && *row->name);
	need(&c, "doc", row->doc && *row->doc);
	need(&c, "defaults", row->defaults != NULL);
	need(&c, "update", row->update != NULL);
	if (row->moments[1] && !row->moments[0])
		say(&c, "moments", "names the second and not the first");
	if (row->defaults)
		check_defaults(&c, row->defaults);
	if (row->update)
		check_update(&c, row, F32);
	if (row->update && c.sound)
		check_update(&c, row, F64);
	return c.sound;
}

/* ---- losses */
static void
check_scalar(RowCheck *c, const char *what, const Value *v, Type want, bool required)
{
	if (!v && required)
		say(c, "build", "leaves %s unset", what);
	else if (v && v->type != want)
		say(c, "build", "gives %s another type than a scalar of the output's", what);
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
	LossOptions options = {.target = -1, .count = -1, .axis = -1};
	Loss l = {.b = &b,
	          .output = function_param(f, output, "output"),
	          .target = function_param(f, target, "target"),
	          .weight = function_param(f, rows, "weight"),
	          .options = &options,
	          .class_axis = 1};

	row->build(&l);
	check_scalar(c, "sum", l.sum, type_scalar(m, F32), true);
	check_scalar(c, "count", l.count, type_scalar(m, F32), true);
	check_scalar(c, "correct", l.correct, type_scalar(m, F32), false);
	if (l.targets <= 0)
		say(c, "build", "leaves targets unset");
	module_free(m);
}

bool
loss_row_check(const LossRow *row, Diag *diag)
{
	RowCheck c = {"loss", row->name, diag, true};

	need(&c, "name", row->name && *row->name);
	need(&c, "doc", row->doc && *row->doc);
	need(&c, "build", row->build != NULL);
	if (row->build)
		check_build(&c, row);
	return c.sound;
}

/* ---- passes */
bool
pass_row_check(const PassRow *row, Diag *diag)
{
	RowCheck c = {"pass", row->name, diag, true};

	need(&c, "name", row->name && *row->name);
	need(&c, "help", row->help && *row->help);
	need(&c, "run", row->run != NULL);
	if (row->options || row->defaults)
		need(&c, "options_size", row->options_size > 0);
	for (const PassOption *o = row->options; o && o->name; o++) {
		if (!o->help || !*o->help)
			say(&c, "options", "lacks the help of %s", o->name);
		if (row->options_size && o->offset >= row->options_size)
			say(&c, "options", "has %s behind the %zu bytes of options_size", o->name,
			    row->options_size);
	}
	return c.sound;
}

bool
pass_tables_check(Diag *diag)
{
	bool sound = true;

	for (int i = 0; optimizer_table[i]; i++)
		sound &= optimizer_row_check(optimizer_table[i], diag);
	for (int i = 0; loss_table[i]; i++)
		sound &= loss_row_check(loss_table[i], diag);
	return sound;
}
