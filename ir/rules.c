/* Rules of users for parameters: --train=GLOB, --lr-scale=GLOB=X and so on. */
#include "ir/ir.h"

#include <string.h>

const char *const rule_verbs[] = {"train", "freeze", "decay", "no-decay", "lr-scale", "init", NULL};

bool
rule_takes_value(RuleVerb verb)
{
	return verb == RULE_LR_SCALE || verb == RULE_INIT;
}

ParameterRule
rule_of(Arena *arena, RuleVerb verb, const char *text)
{
	const char *equal = rule_takes_value(verb) ? strrchr(text, '=') : NULL;

	return (ParameterRule){.verb = verb,
	                       .glob = equal ? arena_strndup(arena, text, (size_t)(equal - text))
	                                     : text,
	                       .value = equal ? equal + 1 : ""};
}

bool
rule_parse(Arena *arena, const char *text, ParameterRule *out)
{
	size_t n = strcspn(text, " ");

	for (int verb = 0; text[n] && rule_verbs[verb]; verb++) {
		if (strlen(rule_verbs[verb]) != n || strncmp(rule_verbs[verb], text, n) != 0)
			continue;
		*out = rule_of(arena, (RuleVerb)verb, text + n + 1);
		return true;
	}
	return false;
}

void
rule_print(Text *out, const ParameterRule *rule)
{
	text_printf(out, "%s %s%s%s", rule_verbs[rule->verb], rule->glob,
	            rule_takes_value(rule->verb) ? "=" : "", rule->value);
}
