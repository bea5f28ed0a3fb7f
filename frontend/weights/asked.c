/* Options such as --train, --freeze and --lr-scale: each names tensors by a glob ("lr-scale
 * *.bias=2"). Finds the option that applies to a tensor and reports options that apply to none. */
#include "frontend/weights/judge.h"
#include "frontend/weights/roles.h"

#include <string.h>

/* Does --train name the tensor? Only a full name makes it a parameter; a pattern selects among
 * parameters. */
bool
rule_asked_for(Case *c)
{
	const ParameterRules *rules = &c->r->options->rules;

	for (int i = 0; i < rules->n; i++)
		if (rules->at[i].verb == RULE_TRAIN && !strcmp(rules->at[i].glob, c->w->name))
			return true;
	return false;
}

const char *
asked_for_group(const Case *c, const char *groups)
{
	const ParameterRules *rules = &c->r->options->rules;
	const char *asked = NULL;

	for (int i = 0; i < rules->n; i++) {
		const char *glob = rules->at[i].glob;
		if (rules->at[i].verb == RULE_TRAIN && *glob == '@' &&
		    group_listed(groups, glob + 1))
			asked = glob;
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
	const ParameterRules *rules = &r->options->rules;
	bool frozen = w->kind != WEIGHT_PARAMETER;

	for (int i = 0; i < rules->n; i++) {
		const ParameterRule *rule = &rules->at[i];
		if ((rule->verb == RULE_TRAIN || rule->verb == RULE_FREEZE) &&
		    weight_matches(w, rule->glob))
			frozen = rule->verb == RULE_FREEZE;
	}
	return frozen;
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
	const ParameterRules *rules = &r->options->rules;

	for (int i = 0; i < rules->n; i++) {
		const char *verb = rule_verbs[rules->at[i].verb], *glob = rules->at[i].glob;
		const Weight *w = repairs_weight(r, glob);
		if (!w || !w->tied)
			continue;
		diag_error(r->diag, EXIT_USAGE, "--%s=%s: %s shares the state of %s: use that name",
		           verb, glob, quoted(r->model, w->name), quoted(r->model, w->tied->name));
		Text name = {0};
		text_add_shell_word(&name, w->name);
		diag_hint(r->diag, "--no-tie=%s makes them two", name.at);
		text_free(&name);
	}
}

static bool
has_groups(const Repairs *r)
{
	for (int i = 0; i < r->list.n; i++)
		if (r->list.at[i]->groups)
			return true;
	return false;
}

void
asked_check(const Repairs *r)
{
	const ParameterRules *rules = &r->options->rules;

	for (int i = 0; i < rules->n; i++) {
		const char *verb = rule_verbs[rules->at[i].verb], *glob = rules->at[i].glob;
		const Weight *w = takes_constants_only(r, glob);
		if (*glob == '@' && !takes_some(r, glob)) {
			diag_error(r->diag, EXIT_USAGE,
			           "--%s=%s: the model has no group of that name", verb, glob);
			diag_hint(r->diag,
			          has_groups(r) ? "the output of `gradc check` ends with a list of "
			                          "the groups"
			                        : "this model has no groups");
		}
		bool keeps = *glob == '@' && rules->at[i].verb == RULE_FREEZE;
		if (!w || keeps)
			continue;
		Text name = {0};
		text_add_shell_word(&name, w->name);
		diag_error(r->diag, EXIT_USAGE, "--%s=%s fits no parameter: %s is a constant", verb,
		           glob, quoted(r->model, w->name));
		diag_hint(r->diag, "--train=%s makes it a parameter", name.at);
		text_free(&name);
	}
}
