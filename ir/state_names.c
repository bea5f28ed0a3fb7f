/* Finds parameters by the patterns that users write, such as --train='encoder.*': globs over
 * names and paths, and hints at the nearest names. */
#include "ir/ir.h"

#include <string.h>

bool
group_listed(const char *groups, const char *word)
{
	size_t n = strlen(word);

	for (; groups && *groups; groups += strcspn(groups, " "), groups += *groups == ' ')
		if (strcspn(groups, " ") == n && !strncmp(groups, word, n))
			return true;
	return false;
}

bool
state_matches(const State *s, const char *glob)
{
	return glob_match(glob, s->name) || (s->path && glob_match(glob, s->path)) ||
	       (*glob == '@' && group_listed(s->groups, glob + 1));
}

/* The edit distance between the glob and the state's name, or between the glob and its path,
 * whichever is smaller. */
static int
distance(const Nearest *n, const State *s)
{
	int by_name = nearest_distance(n, s->name);
	int by_path = s->path ? nearest_distance(n, s->path) : by_name;

	return by_name < by_path ? by_name : by_path;
}

void
hint_nearest_states(const Module *m, const char *glob, Diag *diag)
{
	Nearest nearest = nearest_open(glob);
	Text names = {0};

	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		if (s->kind == STATE_PARAMETER)
			nearest_offer(&nearest, s, distance(&nearest, s));
	}
	for (int k = 0; k < N_NEAREST && nearest.item[k]; k++) {
		const State *s = nearest.item[k];
		text_add(&names, k ? ", " : "");
		text_add_plain(&names, s->name);
		if (s->path) {
			text_add(&names, " (");
			text_add_plain(&names, s->path);
			text_add(&names, ")");
		}
	}
	if (names.n)
		diag_hint(diag, "the nearest names are %s; `gradc check` lists all", names.at);
	nearest_close(&nearest);
	text_free(&names);
}
