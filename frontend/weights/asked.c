/* Options such as --train, --freeze and --lr-scale: each names tensors by a glob ("lr-scale
 * *.bias=2"). Finds the option that applies to a tensor and reports options that apply to none. */
#include "frontend/weights/judge.h"
#include "frontend/weights/roles.h"

#include <string.h>

/* The glob of a rule such as "freeze GLOB"; NULL: the rule has another verb. */
static const char *
rule_glob(const char *rule, const char *verb)
{
	size_t n = strlen(verb);

	return !strncmp(rule, verb, n) && rule[n] == ' ' ? rule + n + 1 : NULL;
}

/* Does --train name the tensor? Only a full name makes it a parameter; a pattern selects among
 * parameters. */
bool
rule_asked_for(Case *c)
{
	const char *const *rule = c->r->options->rules;

	for (; rule && *rule; rule++) {
		const char *name = rule_glob(*rule, "train");
		if (name && !strcmp(name, c->w->name))
			return true;
	}
	return false;
}

const char *
asked_for_group(const Case *c, const char *groups)
{
	const char *const *rule = c->r->options->rules;
	const char *asked = NULL;

	for (; rule && *rule; rule++) {
		const char *name = rule_glob(*rule, "train");
		if (name && *name == '@' && group_listed(groups, name + 1))
			asked = name;
	}
	return asked;
}

static bool
weight_matches(const Weight *w, const char *glob)
{
	return glob_match(glob, w->name) || (w->path && glob_match(glob, w->path)) ||
	       (*glob == '@' && group_listed(w->groups, glob + 1));
}

bool
weight_is_frozen(const Repairs *r, const Weight *w)
{
	const char *const *rule = r->options->rules;
	bool frozen = w->kind != WEIGHT_PARAMETER;

	for (; rule && *rule; rule++) {
		const char *train = rule_glob(*rule, "train"), *freeze = rule_glob(*rule, "freeze");
		if ((train || freeze) && weight_matches(w, train ? train : freeze))
			frozen = freeze != NULL;
	}
	return frozen;
}

/* The glob of a rule such as "lr-scale GLOB=VALUE"; *n: the length of the verb. */
static const char *
glob_of(const Repairs *r, const char *rule, int *n)
{
	*n = (int)strcspn(rule, " ");
	const char *glob = rule[*n] ? rule + *n + 1 : "", *equal = strrchr(glob, '=');
	bool has_value = !strncmp(rule, "lr-scale ", 9) || !strncmp(rule, "init ", 5);

	return has_value && equal ? arena_strndup(r->arena, glob, (size_t)(equal - glob)) : glob;
}

/* The first constant that the glob matches; NULL: it matches no constants, or also a tensor with a
 * state. */
static const Weight *
takes_constants_only(const Repairs *r, const char *glob)
{
	const Weight *first = NULL;

	for (int i = 0; i < r->list.n; i++) {
		const Weight *w = r->list.at[i];
		if (w->identity || !weight_matches(w, glob))
			continue;
		if (w->kind != WEIGHT_CONSTANT)
			return NULL;
		first = first || !w->is_read ? first : w;
	}
	return first;
}

static bool
takes_some(const Repairs *r, const char *glob)
{
	for (int i = 0; i < r->list.n; i++)
		if (weight_matches(r->list.at[i], glob))
			return true;
	return false;
}

/* If two tensors share a state, the state has the name of the first: a rule must not name the
 * second. */
void
asked_check_ties(const Repairs *r)
{
	const char *const *rule = r->options->rules;

	for (int n; rule && *rule; rule++) {
		const char *glob = glob_of(r, *rule, &n);
		const Weight *w = repairs_weight(r, glob);
		if (!w || !w->tied)
			continue;
		diag_error(r->diag, EXIT_USAGE,
		           "--%.*s=%s: %s shares the state of %s: use that name", n, *rule, glob,
		           quoted(r->model, w->name), quoted(r->model, w->tied->name));
		Text name = {0};
		text_add_shell_word(&name, w->name);
		diag_hint(r->diag, "--no-tie=%s makes them two", name.at);
		text_free(&name);
	}
}

void
asked_check(const Repairs *r)
{
	const char *const *rule = r->options->rules;

	for (int n; rule && *rule; rule++) {
		const char *glob = glob_of(r, *rule, &n);
		const Weight *w = takes_constants_only(r, glob);
		if (*glob == '@' && !takes_some(r, glob)) {
			diag_error(r->diag, EXIT_USAGE,
			           "--%.*s=%s: the model has no group of that name", n, *rule,
			           glob);
			diag_hint(r->diag, "`gradc check` ends with the groups");
		}
		bool keeps = *glob == '@' && !strncmp(*rule, "freeze ", 7);
		if (!w || keeps)
			continue;
		Text name = {0};
		text_add_shell_word(&name, w->name);
		diag_error(r->diag, EXIT_USAGE, "--%.*s=%s fits no parameter: %s is a constant", n,
		           *rule, glob, quoted(r->model, w->name));
		diag_hint(r->diag, "--train=%s makes it a parameter", name.at);
		text_free(&name);
	}
}
