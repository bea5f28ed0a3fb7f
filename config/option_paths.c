/* Finds the files that an option's value names if the value is not a path itself, such as NAME=FILE. The tables of
 * options have these functions in the column `paths`. Forms of values that only one table has are handled in the file
 * of that table. */
#include "config/config.h"

#include <glob.h>
#include <string.h>

const char *
option_title(const OptionUse *u)
{
	return u->row->letter ? arena_printf(u->arena, "-%c", u->row->letter)
	                      : arena_printf(u->arena, "--%s", u->row->name);
}

void
option_add_path(const OptionUse *u, PathUses *uses, PathKind kind, const char *path)
{
	paths_add(u->arena, uses, kind, option_title(u), path);
}

/* NAME may contain an `=`, so the text after every `=` is taken as a path. A path without a file does no harm. */
void
reads_named_file(const OptionUse *u, PathUses *uses)
{
	for (const char *at = strchr(u->value, '='); at; at = strchr(at + 1, '='))
		option_add_path(u, uses, PATH_INPUT, at + 1);
}

static void
add_matches(const OptionUse *u, PathUses *uses, const char *pattern)
{
	glob_t found = {0};

	option_add_path(u, uses, PATH_INPUT, pattern);
	if (glob(pattern, 0, NULL, &found) == 0)
		for (size_t i = 0; i < found.gl_pathc; i++)
			option_add_path(u, uses, PATH_INPUT,
			                arena_strdup(u->arena, found.gl_pathv[i]));
	globfree(&found);
}

void
reads_named_files(const OptionUse *u, PathUses *uses)
{
	for (const char *at = strchr(u->value, '='); at; at = strchr(at + 1, '='))
		add_matches(u, uses, at + 1);
}
