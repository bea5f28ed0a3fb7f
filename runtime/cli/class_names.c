/* --classes: the names of classes, one a line. */
#include "runtime/cli/cli.h"

#include <string.h>

enum { MOST_BYTES = 1 << 26 };

static Status
class_names_read(Arena *arena, const char *path, int64_t classes, const char *const **out)
{
	void *bytes;
	int64_t n, found = 0;

	*out = NULL;
	RETURN_IF_ERROR(file_read_regular(arena, path, EXIT_SYSTEM, MOST_BYTES, &bytes, &n));
	char *text = arena_strndup(arena, bytes, (size_t)n);
	if (strlen(text) != (size_t)n)
		return status_error(EXIT_DATA, "%s: a byte that is 0: not a text file", path);
	if (!utf8_valid(text, (size_t)n))
		return status_error(EXIT_DATA, "%s: is not UTF-8", path);
	if (strncmp(text, "\xEF\xBB\xBF", 3) == 0) /* a byte order mark */
		text += 3;
	const char **names = NEW_ARRAY(arena, const char *, classes + 1);
	for (char *line = text; *line; found++) {
		size_t length = strcspn(line, "\n"), end = length;
		if (end > 0 && line[end - 1] == '\r')
			end--;
		for (size_t i = 0; i < end; i++)
			if ((unsigned char)line[i] < ' ' || line[i] == 0x7F)
				return status_error(EXIT_DATA,
				                    "%s: line %lld has a control character", path,
				                    (long long)found + 1);
		if (found < classes)
			names[found] = arena_strndup(arena, line, end);
		line += length + (line[length] == '\n');
	}
	if (found != classes)
		return status_error(
			EXIT_DATA,
			"%s: %lld names, but the model has %lld classes; need one name a line",
			path, (long long)found, (long long)classes);
	*out = names;
	return NULL;
}

Status
class_names_of(Arena *arena, const char *path, int64_t classes, const char *const **out)
{
	*out = NULL;
	if (!path)
		return NULL;
	if (classes == 0)
		return status_error(
			EXIT_USAGE,
			"--classes: has no meaning for this model: its labels are not classes");
	return class_names_read(arena, path, classes, out);
}
