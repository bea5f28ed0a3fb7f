/* Parses the option for an optimizer and its settings: "rmsprop,centered=true,lr=0.01". Keys are the row's own options
 * and its hyperparameters, whose defaults change. */
#include "passes/pass.h"

#include <math.h>
#include <string.h>

#define OPTIMIZER(name) extern const OptimizerRow optimizer_##name;
#include "base/numbers/optimizer_list.def"
const OptimizerRow *const optimizer_table[] = {
#define OPTIMIZER(name) &optimizer_##name,
#include "base/numbers/optimizer_list.def"
	NULL,
};

const OptimizerRow *
optimizer_find(const char *name)
{
	for (int i = 0; optimizer_table[i]; i++)
		if (strcmp(optimizer_table[i]->name, name) == 0)
			return optimizer_table[i];
	return NULL;
}

/* Sets a hyperparameter in "lr=0.001 beta1=0.9 ...". Returns false if the text has no such hyperparameter. */
static bool
set_default(OptimizerChoice *c, const char *key, const char *value, Arena *arena)
{
	size_t n = strlen(key);

	for (const char *at = c->defaults; at && *at; at = strchr(at, ' ')) {
		at += *at == ' ';
		if (strncmp(at, key, n) != 0 || at[n] != '=')
			continue;
		const char *end = at + strcspn(at, " ");
		c->defaults = arena_printf(arena, "%.*s%s=%s%s", (int)(at - c->defaults),
		                           c->defaults, key, value, end);
		return true;
	}
	return false;
}

static bool
is_own(const OptimizerRow *row, const char *name)
{
	for (const PassOption *o = row->options; o && o->name; o++)
		if (strcmp(o->name, name) == 0)
			return true;
	return false;
}

/* The bound of a hyperparameter's values, the same as in the options of executables. */
static double
bound_of(const char *key)
{
	for (int i = 0; i < N_SCALARS; i++)
		if (strcmp(scalar_names[i], key) == 0)
			return hyperparameters[i].below;
	return INFINITY;
}

static bool
is_in_range(const char *key, const char *value)
{
	double x;

	return parse_double(value, &x) && x >= 0 && x < bound_of(key);
}

static bool
set_key(OptimizerChoice *c, const char *option, char *word, void *settings, Arena *arena,
        Diag *diag)
{
	char *equals = strchr(word, '=');
	const char *owner = arena_printf(arena, "%s=%s", option, c->row->name);

	if (equals)
		*equals = 0;
	const char *value = equals ? equals + 1 : "true";
	if (is_own(c->row, word)) {
		c->name = arena_printf(arena, "%s,%s=%s", c->name, word, value);
		return option_set(c->row->options, owner, settings, arena,
		                  &(OptionText){word, value}, diag);
	}
	if (!set_default(c, word, value, arena)) {
		diag_error(diag, EXIT_USAGE, "%s: %s=%s is not one of its settings", owner, word,
		           value);
		WordGuess guess = guess_open(word);
		for (const PassOption *p = c->row->options; p && p->name; p++)
			guess_offer(&guess, p->name);
		hint_guess(diag, &guess, "",
		           arena_printf(arena, "it has %s; `gradc compile --help` lists them",
		                        c->row->defaults));
		return false;
	}
	if (is_in_range(word, value))
		return true;
	diag_error(diag, EXIT_USAGE, "%s: %s=%s is out of range: need a number from 0%s", owner,
	           word, value, bound_of(word) == 1 ? " to below 1" : "");
	return false;
}

static void
hint_optimizers(const char *name, Diag *diag)
{
	WordGuess guess = guess_open(name);

	for (int i = 0; optimizer_table[i]; i++)
		guess_offer(&guess, optimizer_table[i]->name);
	hint_guess(diag, &guess, "", "`gradc compile --help` lists all");
}

/* option: the option's name for messages, "--optimizer". */
static bool
parse_choice(const char *option, const char *text, OptimizerChoice *out, Arena *arena, Diag *diag)
{
	if (!text)
		text = "adamw"; /* the default optimizer */
	char *copy = arena_strdup(arena, text), *save = NULL;
	char *name = strtok_r(copy, ",", &save);
	const OptimizerRow *row = name ? optimizer_find(name) : NULL;

	if (!row) {
		diag_error(diag, EXIT_USAGE, "%s=%s: not supported in this build", option, text);
		hint_optimizers(name ? name : "", diag);
		return false;
	}
	size_t n;
	const char *twice = save && *save ? text_key_twice(save, &n) : NULL;
	if (twice) {
		diag_error(diag, EXIT_USAGE, "%s=%s: %.*s is given twice", option, text, (int)n,
		           twice);
		return false;
	}
	char *settings = arena_alloc(arena, row->options_size + 1);
	if (row->settings)
		memcpy(settings, row->settings, row->options_size);
	*out = (OptimizerChoice){row, settings, row->name, row->defaults,
	                         arena_strdup(arena, text)};
	for (char *word; (word = strtok_r(NULL, ",", &save));)
		if (!set_key(out, option, word, settings, arena, diag))
			return false;
	return true;
}

bool
optimizer_parse(const char *text, OptimizerChoice *out, Arena *arena, Diag *diag)
{
	return parse_choice("--optimizer", text, out, arena, diag);
}

/* ---- --optimizer-for GLOB=NAME,KEY=VALUE */
bool
optimizer_group_parse(const char *text, OptimizerGroup *out, Arena *arena, Diag *diag)
{
	const char *equals = strchr(text, '=');
	const char *at;
	int n = 0;

	*out = (OptimizerGroup){0};
	if (!equals || equals == text) {
		diag_error(diag, EXIT_USAGE, "--optimizer-for=%s: need GLOB=NAME", text);
		return false;
	}
	out->glob = arena_strndup(arena, text, (size_t)(equals - text));
	const char *option = arena_printf(arena, "--optimizer-for=%s", out->glob);
	if (!parse_choice(option, equals + 1, &out->choice, arena, diag))
		return false;
	out->is_fixed = true;
	for (at = out->choice.defaults; *at; at += strcspn(at, " "), at += *at == ' ')
		for (int i = 0; i < N_SCALARS; i++) {
			n = (int)strlen(scalar_names[i]);
			if (strncmp(at, scalar_names[i], (size_t)n) == 0 && at[n] == '=')
				parse_double(
					arena_strndup(arena, at + n + 1, strcspn(at + n + 1, " ")),
					&out->fixed[i]);
		}
	return true;
}

int64_t
optimizer_every(const OptimizerChoice *c)
{
	return c->row->every ? c->row->every(c->settings) : 0;
}

/* ---- options of the pass */
static bool
choice_parse(const char *text, void *at, Arena *arena, Diag *diag)
{
	return optimizer_parse(text, at, arena, diag);
}

static const char *
choice_text(const void *at, Arena *arena)
{
	(void)arena;
	return ((const OptimizerChoice *)at)->text;
}

const OptionParser optimizer_choice_parser = {sizeof(OptimizerChoice), choice_parse, choice_text};

static bool
groups_parse(const char *text, void *at, Arena *arena, Diag *diag)
{
	OptimizerGroups groups = {0};
	char *rest = arena_strdup(arena, text);

	for (const char *line; (line = strsep(&rest, "\n"));) {
		OptimizerGroup group;
		if (!*line && !rest)
			break;
		if (!optimizer_group_parse(line, &group, arena, diag))
			return false;
		vec_push(arena, &groups, group);
	}
	*(OptimizerGroups *)at = groups;
	return true;
}

static const char *
groups_text(const void *at, Arena *arena)
{
	const OptimizerGroups *groups = at;
	const char *text = NULL;

	for (int i = 0; i < groups->n; i++) {
		const OptimizerGroup *g = &groups->at[i];
		const char *line = arena_printf(arena, "%s=%s", g->glob, g->choice.text);
		text = text ? arena_printf(arena, "%s\n%s", text, line) : line;
	}
	return text;
}

const OptionParser optimizer_groups_parser = {sizeof(OptimizerGroups), groups_parse, groups_text};
