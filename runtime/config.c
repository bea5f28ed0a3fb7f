/* --config FILE: INI, one `name = value` a line; sections are allowed and mean nothing. */
#include "runtime/cli.h"

#include <ini.h>
#include <string.h>

typedef struct {
	Arena *arena;
	Diag *diag;
	const char *path;
	CliOptions *out;
	bool ok;
} Config;

static int
config_line(void *user, const char *section, const char *name, const char *value)
{
	Config *c = user;
	const char *word = strcmp(value, "true") == 0    ? "on"
	                   : strcmp(value, "false") == 0 ? "off"
	                                                 : value;

	if (strcmp(name, "config") == 0) {
		diag_error(c->diag, EXIT_USAGE, "%s: a config file names no other", c->path);
		c->ok = false;
	} else {
		c->ok &= options_set(c->arena, c->diag, c->out, arena_strdup(c->arena, name),
		                     arena_strdup(c->arena, word), true);
	}
	return 1;
}

bool
config_read(Arena *arena, Diag *diag, const char *path, CliOptions *out)
{
	Config c = {arena, diag, path, out, true};
	void *bytes;
	int64_t n;

	if (diag_status(diag, file_read(arena, path, 1 << 20, &bytes, &n)))
		return false;
	int line = ini_parse_string(arena_strndup(arena, bytes, (size_t)n), config_line, &c);
	if (line)
		diag_error(diag, EXIT_USAGE, "%s:%d: not `name = value`", path, line);
	return line == 0 && c.ok;
}
