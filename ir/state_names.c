/* The names by which people ask for parameters: globs over names and paths, and what they may have meant. */
#include "ir/ir.h"

enum { NEAREST = 3 };

bool
state_matches(const State *s, const char *glob)
{
	return glob_match(glob, s->name) || (s->path && glob_match(glob, s->path));
}

/* The glob without its wildcards, as a part of the name or the path. */
static int
distance(const State *s, const char *letters)
{
	int by_name = text_distance(letters, s->name);
	int by_path = s->path ? text_distance(letters, s->path) : by_name;

	return by_name < by_path ? by_name : by_path;
}

void
hint_nearest_states(const Module *m, const char *glob, Diag *diag)
{
	const State *nearest[NEAREST] = {NULL};
	int distances[NEAREST];
	Text letters = {0}, names = {0};

	text_add(&letters, "");
	for (; *glob; glob++)
		if (*glob != '*' && *glob != '?')
			text_add_bytes(&letters, glob, 1);
	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		int d = s->kind == STATE_PARAMETER ? distance(s, letters.at) : 0, k = NEAREST;
		if (s->kind != STATE_PARAMETER)
			continue;
		for (; k > 0 && (!nearest[k - 1] || d < distances[k - 1]); k--)
			if (k < NEAREST) {
				nearest[k] = nearest[k - 1];
				distances[k] = distances[k - 1];
			}
		if (k < NEAREST) {
			nearest[k] = s;
			distances[k] = d;
		}
	}
	for (int k = 0; k < NEAREST && nearest[k]; k++) {
		text_add(&names, k ? ", " : "");
		text_add_plain(&names, nearest[k]->name);
		if (nearest[k]->path) {
			text_add(&names, " (");
			text_add_plain(&names, nearest[k]->path);
			text_add(&names, ")");
		}
	}
	if (names.n)
		diag_hint(diag, "the nearest names are %s; `gradc check` lists all", names.at);
	text_free(&letters);
	text_free(&names);
}
