/* --config FILE: INI, one `name = value` a line; `#` and `;` begin comments, sections are allowed
 * and mean nothing. */
#include "runtime/cli.h"

#include <string.h>

static char *
trim(char *text)
{
	size_t n;

	text += strspn(text, " \t\r");
	for (n = strlen(text); n > 0 && strchr(" \t\r", text[n - 1]); n--)
		text[n - 1] = '\0';
	return text;
}

static bool
read_line(Arena *arena, Diag *diag, const char *where, char *line, CliOptions *out)
{
	char *equal, *text = trim(line);

	if (!*text || strchr("#;[", *text))
		return true;
	equal = strchr(text, '=');
	if (equal)
		*equal = '\0';
	char *name = trim(text), *value = equal ? trim(equal + 1) : NULL;
	if (!value) {
		diag_error(diag, EXIT_USAGE, "%s: \"%s\" is not `name = value`", where, name);
		return false;
	}
	if (strcmp(name, "config") == 0) {
		diag_error(diag, EXIT_USAGE, "%s: a config file names no other", where);
		return false;
	}
	const char *word = strcmp(value, "true") == 0    ? "on"
	                   : strcmp(value, "false") == 0 ? "off"
	                                                 : value;
	return options_set(arena, diag, out, name, word, true);
}

bool
config_read(Arena *arena, Diag *diag, const char *path, CliOptions *out)
{
	void *bytes;
	int64_t n;
	bool ok = true;

	if (diag_status(diag, file_read(arena, path, 1 << 20, &bytes, &n)))
		return false;
	char *text = arena_strndup(arena, bytes, (size_t)n), *save = NULL;
	int number = 0;
	for (char *at = text; at; at = save) {
		save = strchr(at, '\n');
		if (save)
			*save++ = '\0';
		ok = read_line(arena, diag, arena_printf(arena, "%s:%d", path, ++number), at,
		               out) &&
		     ok;
	}
	return ok;
}
