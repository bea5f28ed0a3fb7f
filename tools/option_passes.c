/* Options whose values name passes or options of passes. */
#include "tools/tools.h"

#include <string.h>

const char *
nth_pass(Arena *arena, int i)
{
	int n;
	const PassRow *const *rows = pass_rows(&n);

	for (int k = 0; k < n; k++)
		if (!pass_is_repeated(k) && i-- == 0)
			return rows[k]->name;
	return NULL;
}

const char *
nth_pass_option(Arena *arena, int i)
{
	int n;
	const PassRow *const *rows = pass_rows(&n);

	for (int k = 0; k < n; k++)
		for (const PassOption *p = rows[k]->options; p && p->name; p++)
			if (!pass_is_repeated(k) && i-- == 0)
				return arena_printf(arena, "%s.%s=", rows[k]->name, p->name);
	return NULL;
}

static bool
is_pass(const OptionUse *u)
{
	if (pass_find(u->value))
		return true;
	diag_error(u->diag, EXIT_USAGE, "%s--%s=%s: unknown pass `%s`", u->origin, u->row->name,
	           u->value, u->value);
	option_hint(u, u->value, "`gradc passes` lists them");
	return false;
}

bool
set_pass(const OptionUse *u, void *at)
{
	*(const char **)at = u->value;
	return is_pass(u);
}

bool
set_pass_or_all(const OptionUse *u, void *at)
{
	*(const char **)at = u->value;
	return strcmp(u->value, "all") == 0 || is_pass(u);
}

/* Checked by setting it on a call of the pass. */
bool
add_pass_option(const OptionUse *u, void *at)
{
	const PassRow *row;
	OptionText text = pass_option_text(u->arena, u->value, &row);

	if (!row || !*text.name) {
		diag_error(u->diag, EXIT_USAGE, "%s--%s=%s: need PASS.NAME=VALUE%s", u->origin,
		           u->row->name, u->value, row ? "" : " with a pass that exists");
		option_hint(u, u->value, "`gradc passes` lists passes and their options");
		return false;
	}
	PassCall call = pass_call(u->arena, row);
	vec_push(u->arena, (StringList *)at, u->value);
	return pass_set(&call, u->arena, &text, u->diag);
}

bool
set_flag(const OptionUse *u, void *at)
{
	Options *o = at;
	int n;
	const PassRow *const *rows = pass_rows(&n);

	for (int i = 0; i < n; i++)
		for (const PassOption *p = rows[i]->options; p && p->name; p++) {
			union {
				int64_t whole;
				double number;
				bool flag;
				const char *text;
			} value;
			if (!p->flag.name || strcmp(p->flag.name, u->row->name) != 0)
				continue;
			if (option_read(p, u->value, &value, u->arena)) {
				FlagUse use = {rows[i], {p->name, u->value}};
				vec_push(u->arena, &o->flags, use);
				return true;
			}
			diag_error(u->diag, EXIT_USAGE, "%s--%s=%s: need %s", u->origin,
			           p->flag.name, u->value, option_needs(p, u->arena));
			if (p->flag.hint)
				diag_hint(u->diag, "%s", p->flag.hint);
			return false;
		}
	return false;
}

bool
add_pass(const OptionUse *u, void *at)
{
	StringList *passes = at;

	vec_push(u->arena, passes, u->value);
	return is_pass(u);
}
