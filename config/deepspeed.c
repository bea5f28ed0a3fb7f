/* Reads DeepSpeed's configuration: each key is checked against its row in the table of keys (deepspeed_keys.c), then
 * deepspeed_map.c turns the keys into options. The file is not trusted. Every fault is reported with the key's path and
 * value. */
#include "config/deepspeed.h"

#include <math.h>
#include <string.h>

bool
deepspeed_is_json(const char *text, size_t n)
{
	Arena *arena = arena_new();
	const char *plain = deepspeed_without_comments(arena, text, n);
	size_t i = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;

	while (i < n && strchr(" \t\r\n", plain[i]) && plain[i])
		i++;
	bool found = i < n && plain[i] == '{';
	arena_free(arena);
	return found;
}

/* ---- words of a row: a|b|c */
const char *
deepspeed_word(Arena *arena, const char *words, int n)
{
	while (words && n-- > 0)
		words = strchr(words, '|') ? strchr(words, '|') + 1 : NULL;
	return words ? arena_strndup(arena, words, strcspn(words, "|")) : NULL;
}

int
deepspeed_word_find(const char *words, const char *word)
{
	size_t n = strlen(word);

	for (int i = 0; words; i++) {
		if (strcspn(words, "|") == n && memcmp(words, word, n) == 0)
			return i;
		words = strchr(words, '|') ? strchr(words, '|') + 1 : NULL;
	}
	return -1;
}

/* ---- values */
static bool
is_open(const json_t *v)
{
	return !v || json_is_null(v) ||
	       (json_is_string(v) && strcmp(json_string_value(v), "auto") == 0);
}

const json_t *
deepspeed_get(const DeepspeedReader *r, const char *path)
{
	const json_t *v = r->root;

	for (const char *key = path; v && key; key = strchr(key, '.') ? strchr(key, '.') + 1 : NULL)
		v = json_object_get(v, arena_strndup(r->arena, key, strcspn(key, ".")));
	return is_open(v) ? NULL : v;
}

bool
deepspeed_is_on(const DeepspeedReader *r, const char *path)
{
	return json_is_true(deepspeed_get(r, path));
}

bool
deepspeed_is_given(const DeepspeedReader *r, const char *option)
{
	return option && r->file->is_given && r->file->is_given(r->file->line, option);
}

static bool
is_whole(const json_t *v)
{
	double x = json_number_value(v);

	return json_is_integer(v) || (json_is_real(v) && x == floor(x) && fabs(x) < 9e15);
}

static const char *
number_text(Arena *arena, const json_t *v)
{
	Text t = {0};

	if (is_whole(v))
		text_printf(&t, "%lld",
		            json_is_integer(v) ? (long long)json_integer_value(v)
		                               : (long long)json_real_value(v));
	else
		text_add_double(&t, json_number_value(v));
	char *copy = arena_strdup(arena, t.at);
	text_free(&t);
	return copy;
}

/* ---- rows */
/* Does a row's path, which may have wildcards, match this path? */
static bool
path_fits(const char *row, const char *path)
{
	while (*row && *path) {
		size_t n = strcspn(row, "."), m = strcspn(path, ".");
		bool any = n == 1 && *row == '*';
		if (!any && (n != m || memcmp(row, path, n) != 0))
			return false;
		row += n + (row[n] == '.');
		path += m + (path[m] == '.');
	}
	return !*row && !*path;
}

static const char *
last_name(const char *path)
{
	return strrchr(path, '.') ? strrchr(path, '.') + 1 : path;
}

/* The first row that fits; rows without wildcards stand before rows with wildcards. */
static const DeepspeedKey *
find_key(const char *path)
{
	for (const DeepspeedKey *k = deepspeed_keys; k->path; k++) {
		bool open = strcmp(last_name(k->path), "*") == 0 && k->words;
		if (path_fits(k->path, path) &&
		    (!open || deepspeed_word_find(k->words, last_name(path)) >= 0))
			return k;
	}
	return NULL;
}

const char *
deepspeed_text(DeepspeedReader *r, const char *path, const json_t *value)
{
	const DeepspeedKey *key = find_key(path);

	if (json_is_boolean(value) && key->on)
		return json_is_true(value) ? key->on : "0";
	if (json_is_boolean(value))
		return json_is_true(value) ? "true" : "false";
	if (json_is_string(value)) {
		const char *word = json_string_value(value);
		const char *name = deepspeed_word(r->arena, key->names,
		                                  deepspeed_word_find(key->words, word));
		return name ? name : arena_strdup(r->arena, word);
	}
	if (key->words)
		return deepspeed_word(r->arena, key->words, (int)json_number_value(value));
	return number_text(r->arena, value);
}

/* ---- faults */
/* The value as JSON on one line, cut to a length that suits a message. */
static const char *
shown(Arena *arena, const json_t *v)
{
	enum { MOST = 60 };
	char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
	const char *copy = !text                 ? ""
	                   : strlen(text) < MOST ? arena_strdup(arena, text)
	                                         : arena_printf(arena, "%.*s...", MOST, text);

	memory_free(text);
	return copy;
}

void
deepspeed_fault(DeepspeedReader *r, const char *key, const json_t *value, const char *what,
                const char *hint)
{
	enum { MOST = 200 };
	diag_error(r->diag, EXIT_USAGE, "%s: %.*s%s%s: %s", r->file->path, MOST, key,
	           value ? " = " : "", value ? shown(r->arena, value) : "", what);
	if (hint)
		diag_hint(r->diag, "%s", hint);
	r->faults++;
}

/* How different two keys are, for suggestions. text_distance is added in both directions, because a substring has
 * distance 0 in one direction. Keys of different blocks get a larger distance. */
static int
key_distance(const DeepspeedKey *k, const char *path)
{
	enum { OTHER_BLOCK = 4 };
	size_t n = (size_t)(last_name(path) - path);
	bool same = (size_t)(last_name(k->path) - k->path) == n && memcmp(k->path, path, n) == 0;

	return text_distance(last_name(path), last_name(k->path)) +
	       text_distance(last_name(k->path), last_name(path)) + (same ? 0 : OTHER_BLOCK);
}

static void
fault_unknown(DeepspeedReader *r, const char *path)
{
	const DeepspeedKey *nearest = NULL;

	for (const DeepspeedKey *k = deepspeed_keys; k->path; k++)
		if (!strchr(k->path, '*') &&
		    (!nearest || key_distance(k, path) < key_distance(nearest, path)))
			nearest = k;
	deepspeed_fault(r, path, NULL, "DeepSpeed's configuration has no such key",
	                arena_printf(r->arena, "the nearest is %s", nearest->path));
}

/* ---- one value against its row */
static const char *
range_text(Arena *arena, const DeepspeedKey *k, const char *what)
{
	if (k->most == 0 || k->fate == KEY_REFUSED)
		return arena_printf(arena, "need %s from %g", what, k->least);
	return arena_printf(arena, "need %s from %g to %s%.16g", what, k->least,
	                    k->below ? "below " : "", k->most);
}

static bool
is_in_range(const DeepspeedKey *k, double x)
{
	bool bounded = k->least != 0 || k->most != 0 || k->fate == KEY_MAPPED;
	bool below = k->most == 0 || k->fate == KEY_REFUSED || x < k->most ||
	             (x == k->most && !k->below);

	return isfinite(x) && (!bounded || (x >= k->least && below));
}

static const char *
check_number(DeepspeedReader *r, const DeepspeedKey *k, const json_t *v)
{
	bool whole = k->kind == KEY_WHOLE;
	const char *what = whole ? "a whole number" : "a number";

	if (!json_is_number(v) || (whole && !is_whole(v)))
		return arena_printf(r->arena, "need %s", what);
	return is_in_range(k, json_number_value(v)) ? NULL : range_text(r->arena, k, what);
}

static const char *
check_pair(DeepspeedReader *r, const DeepspeedKey *k, const json_t *v)
{
	const char *fault = json_array_size(v) == 2 ? NULL : "need a list of two numbers";

	for (size_t i = 0; i < json_array_size(v) && !fault; i++)
		fault = check_number(r, k, json_array_get(v, i));
	return fault;
}

/* The fault of a value's type or size; NULL: no fault. */
static const char *
check_value(DeepspeedReader *r, const DeepspeedKey *k, const json_t *v)
{
	if (k->kind == KEY_BOOL && !json_is_boolean(v))
		return "need true or false";
	if (k->kind == KEY_BLOCK && !json_is_object(v) && !json_is_false(v))
		return "need an object";
	if (k->kind == KEY_WHOLE || k->kind == KEY_NUMBER)
		return check_number(r, k, v);
	if (k->kind == KEY_PAIR)
		return check_pair(r, k, v);
	if (k->kind != KEY_WORD)
		return NULL;
	if (!json_is_string(v))
		return "need a string";
	return k->words && k->fate != KEY_REFUSED &&
	                       deepspeed_word_find(k->words, json_string_value(v)) < 0
	               ? arena_printf(r->arena, "need one of %s", k->words)
	               : NULL;
}

/* Does the value of a refused key turn the missing feature on? */
static bool
asks(const DeepspeedKey *k, const json_t *v)
{
	if (json_is_boolean(v))
		return json_is_true(v) != (k->words && strcmp(k->words, "true") == 0);
	if (json_is_number(v))
		return json_number_value(v) > k->most;
	if (json_is_string(v))
		return deepspeed_word_find(k->words, json_string_value(v)) < 0;
	return !json_is_false(json_object_get(v, "enabled")) &&
	       (json_object_size(v) > 0 || json_array_size(v) > 0);
}

static void
check_key(DeepspeedReader *r, const DeepspeedKey *k, const char *path, const json_t *v)
{
	if (k->stated && json_is_string(v) && is_open(v)) {
		deepspeed_fault(r, path, v, "\"auto\" is not allowed here",
		                "give a number, or leave the block out");
		return;
	}
	if (is_open(v))
		return;
	const char *fault = check_value(r, k, v);
	if (fault)
		deepspeed_fault(r, path, v, fault, NULL);
	else if (k->fate == KEY_REFUSED && (k->of & r->file->of) && asks(k, v) &&
	         !deepspeed_is_given(r, k->unless))
		deepspeed_fault(r, path, v, arena_printf(r->arena, "not supported: %s", k->says),
		                k->hint);
}

enum { MOST_FAULTS = 100 }; /* the check stops after this many faults */

/* Checks an object's keys. The recursion is never deeper than the paths of the rows. */
static void
check_object(DeepspeedReader *r, const char *prefix, const json_t *object)
{
	const char *name;
	json_t *value;

	json_object_foreach((json_t *)object, name, value) {
		if (r->faults >= MOST_FAULTS)
			return;
		const char *path = arena_printf(r->arena, "%s%s", prefix, name);
		const DeepspeedKey *k = strchr(name, '.') ? NULL : find_key(path);
		if (!k) {
			fault_unknown(r, path);
			continue;
		}
		check_key(r, k, path, value);
		if (k->kind == KEY_BLOCK)
			check_object(r, arena_printf(r->arena, "%s.", path), value);
	}
}

/* ---- the file */
static json_t *
parse(const DeepspeedFile *file, Arena *arena, Diag *diag)
{
	bool marked = file->n >= 3 && memcmp(file->text, "\xef\xbb\xbf", 3) == 0;
	json_error_t error;
	const char *text = deepspeed_without_comments(arena, file->text, file->n);
	json_t *root = json_loadb(text + (marked ? 3 : 0), file->n - (marked ? 3 : 0),
	                          JSON_REJECT_DUPLICATES, &error);

	if (!root)
		diag_error(diag, EXIT_USAGE, "%s:%d: not JSON: %s", file->path, error.line,
		           error.text);
	return root;
}

bool
deepspeed_read(const DeepspeedFile *file, DeepspeedOptions *out, Arena *arena, Diag *diag)
{
	DeepspeedReader r = {.file = file, .arena = arena, .diag = diag, .out = out};

	r.root = parse(file, arena, diag);
	if (!r.root)
		return false;
	check_object(&r, "", r.root);
	if (r.faults == 0)
		deepspeed_map(&r);
	json_decref(r.root);
	return r.faults == 0;
}
