/* What a person has said of tensors: the rules of --train, --freeze and their like. */
#include "frontend/roles_impl.h"

#include <string.h>

/* What stands behind the verb in a rule; NULL: it has another one. */
static const char *
rule_glob(const char *rule, const char *verb)
{
	size_t n = strlen(verb);

	return !strncmp(rule, verb, n) && rule[n] == ' ' ? rule + n + 1 : NULL;
}

/* By --train, which names it: a pattern is for what are parameters already. */
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

static bool
weight_matches(const Weight *w, const char *glob)
{
	return glob_match(glob, w->name) || (w->path && glob_match(glob, w->path));
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
