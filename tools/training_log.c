/* Reads the log that an executable wrote with --log, and collects how the ranges of quantized
 * activations changed during training. `gradc dump` shows the ranges on its page. A line of the log:
 *   {"step": 10, "loss": 0.5, "ranges": {"x": {"low": -1.5, "high": 2, "scale": 0.0137,
 *   "zero_point": 109}}}
 * Lines without "ranges" are ignored. */

#include "tools/tools.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
append(json_t *object, const char *key, json_t *value)
{
	if (!json_object_get(object, key))
		json_object_set_new(object, key, json_array());
	json_array_append(json_object_get(object, key),
	                  json_is_number(value) ? value : json_null());
}

/* {value: {step, low, high, scale, zero_point}}, each a list. */
static void
add_ranges(json_t *found, json_t *line)
{
	static const char *const keys[] = {"low", "high", "scale", "zero_point"};
	const char *name;
	json_t *range;

	json_object_foreach(json_object_get(line, "ranges"), name, range) {
		if (!json_object_get(found, name))
			json_object_set_new(found, name, json_object());
		json_t *of = json_object_get(found, name);
		append(of, "step", json_object_get(line, "step"));
		for (int i = 0; i < COUNT(keys); i++)
			append(of, keys[i], json_object_get(range, keys[i]));
	}
}

/* A killed run may leave an incomplete last line: it is ignored. */
static bool
read_lines(FILE *f, const char *path, json_t *found, Diag *diag)
{
	char *line = NULL;
	size_t size = 0;
	bool ok = true;
	int n = 0;

	for (ssize_t length; ok && (length = getline(&line, &size, f)) >= 0;) {
		json_t *json = json_loadb(line, (size_t)length, 0, NULL);
		n++;
		if (json_is_object(json))
			add_ranges(found, json);
		else if (line[length - 1] == '\n')
			ok = false;
		json_decref(json);
	}
	if (!ok)
		diag_error(diag, EXIT_DATA, "--log: %s:%d: not a JSON object", path, n);
	else if (ferror(f))
		diag_error(diag, EXIT_SYSTEM, "--log: %s: %s", path, strerror(errno));
	ok = ok && !ferror(f);
	free(line);
	return ok;
}

/* Rejects files above 1 GiB. The limit also bounds the memory of a single line, which getline
 * allocates. */
static FILE *
open_log(const char *path, Diag *diag)
{
	const int64_t most = INT64_C(1) << 30;
	int64_t bytes;
	int fd;

	if (diag_status(diag, status_annotate(file_open_regular(path, EXIT_SYSTEM, &fd, &bytes),
	                                      "--log")))
		return NULL;
	FILE *f = bytes <= most ? fdopen(fd, "r") : NULL;
	if (f)
		return f;
	close(fd);
	diag_error(diag, EXIT_DATA, "--log: %s: %lld bytes, at most %lld are read", path,
	           (long long)bytes, (long long)most);
	return NULL;
}

json_t *
training_ranges(const char *path, Diag *diag)
{
	json_t *found = json_object();
	FILE *f = open_log(path, diag);
	bool ok = f && read_lines(f, path, found, diag);

	if (f)
		fclose(f);
	if (ok && json_object_size(found) == 0)
		diag_warning(
			diag,
			"--log: %s holds no ranges: only training with --quantize and quantized "
			"activations logs ranges",
			path);
	if (ok)
		return found;
	json_decref(found);
	return NULL;
}
