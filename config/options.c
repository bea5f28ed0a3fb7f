/* Reads the command line and the --config files (INI, or DeepSpeed's JSON) as a table of rows says. The given options are first collected in one list: options of files, then options of the command line. Then they are set
 * in the order of the list, so the command line's value replaces a file's value. */
#include "config/rows.h"

#include <assert.h>
#include <getopt.h>
#include <ini.h>
#include <math.h>
#include <string.h>

typedef struct {
	const OptionRow *row;
	const char *value;  /* NULL: no value */
	const char *origin; /* the config file as "FILE: "; "" for the command line */
	/* another option that replaces this one when given on the command line; NULL: no other */
	const char *unless;
} Given;
typedef VEC(Given) GivenList;
typedef struct {
	const OptionTable *table;
	Arena *arena;
	Diag *diag;
	const char *origin;
	const char *refused; /* the last unknown section that was reported, or NULL */
	GivenList given;
	int n_config; /* number of options from config files, which stand first */
	bool ok;
} Reader;

/* ---- values */
static bool
malformed(const OptionUse *u, const char *what)
{
	diag_error(u->diag, EXIT_USAGE, "%s--%s=%s: need %s", u->origin, u->row->name, u->value,
	           what);
	return false;
}

static bool
is_choice(const char *choices, const char *value)
{
	size_t n = strlen(value);

	for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL)
		if (strcspn(c, "|") == n && memcmp(c, value, n) == 0)
			return true;
	return false;
}

static bool
set_string(const OptionUse *u, void *at)
{
	if (!*u->value && !u->row->optional && !u->row->empty)
		return malformed(u, option_values(u->arena, u->row));
	*(const char **)at = u->value;
	return true;
}

static bool
set_int(const OptionUse *u, void *at)
{
	int64_t value, most = u->row->most ? u->row->most : INT64_MAX;

	if (!parse_int(u->value, &value) || value < u->row->least || value > most)
		return malformed(u, arena_printf(u->arena,
		                                 u->row->most ? "a whole number from %lld to %lld"
		                                              : "a whole number from %lld",
		                                 (long long)u->row->least, (long long)most));
	*(int64_t *)at = value;
	if (u->row->origin)
		*(const char **)((char *)u->to + u->row->origin) = u->origin;
	return true;
}

static bool
set_uint(const OptionUse *u, void *at)
{
	if (!parse_uint(u->value, at))
		return malformed(u, "a whole number from 0 to 18446744073709551615");
	return true;
}

static const char *const ranges[] = {
	[RANGE_ANY] = "a number",
	[RANGE_NOT_NEGATIVE] = "a number from 0",
	[RANGE_POSITIVE] = "a number above 0",
	[RANGE_BELOW_1] = "a number from 0 to below 1",
};

static bool
is_in_range(OptionRange range, double x)
{
	return isfinite(x) &&
	       (range == RANGE_ANY || x > 0 || (x == 0 && range != RANGE_POSITIVE)) &&
	       (range != RANGE_BELOW_1 || x < 1);
}

static bool
set_double(const OptionUse *u, void *at)
{
	double value;

	if (!parse_double(u->value, &value) || !is_in_range(u->row->range, value))
		return malformed(u, ranges[u->row->range]);
	*(double *)at = value;
	return true;
}

/* Also sets the flags of a config file, which may say `name = true`. */
static bool
set_switch(const OptionUse *u, void *at)
{
	bool on = !u->value || is_choice("on|true|yes|1", u->value);

	if (!on && !is_choice("off|false|no|0", u->value))
		return malformed(u, "on or off");
	*(bool *)at = on;
	return true;
}

static bool
set_list(const OptionUse *u, void *at)
{
	if (!*u->value)
		return malformed(u, u->row->value);
	vec_push(u->arena, (StringList *)at, u->value);
	return true;
}

static bool
set_choice(const OptionUse *u, void *at)
{
	const char *choices = option_values(u->arena, u->row);

	if (!is_choice(choices, u->value)) {
		malformed(u, arena_printf(u->arena, "one of %s", choices));
		option_hint(u, u->value, NULL);
		return false;
	}
	*(const char **)at = u->value;
	return true;
}

static bool
set_choices(const OptionUse *u, void *at)
{
	const char *choice;

	return set_choice(u, &choice) && set_list(u, at);
}

static bool
set_known(const OptionUse *u, void *at)
{
	const char *choices = option_values(u->arena, u->row);

	if (!is_choice(choices, u->value)) {
		diag_error(u->diag, EXIT_USAGE, "%s--%s=%s: not supported in this build", u->origin,
		           u->row->name, u->value);
		option_hint(u, u->value, arena_printf(u->arena, "it has %s", choices));
		return false;
	}
	*(const char **)at = u->value;
	return true;
}

static bool
set_nothing(const OptionUse *u, void *at)
{
	const char *value = u->value ? u->value : "";

	(void)at;
	diag_error(u->diag, EXIT_USAGE, "%s--%s%s%s: not supported in this build", u->origin,
	           u->row->name, *value ? "=" : "", value);
	return false;
}

static bool
set_call(const OptionUse *u, void *at)
{
	return u->row->set(u, at);
}

static bool (*const setters[])(const OptionUse *u, void *at) = {
	[TAKES_STRING] = set_string, [TAKES_INT] = set_int,         [TAKES_DOUBLE] = set_double,
	[TAKES_FLAG] = set_switch,   [TAKES_SWITCH] = set_switch,   [TAKES_LIST] = set_list,
	[TAKES_CHOICE] = set_choice, [TAKES_CHOICES] = set_choices, [TAKES_KNOWN] = set_known,
	[TAKES_CALL] = set_call,     [TAKES_NOTHING] = set_nothing, [TAKES_UINT] = set_uint,
	[TAKES_CONFIG] = set_list,
};

/* ---- collecting */
static void
usage_error(Reader *r, const char *word, const char *what)
{
	diag_error(r->diag, EXIT_USAGE, "%s%s: %s", r->origin, word, what);
	diag_hint(r->diag, "`%s --help` lists the options", r->table->program);
	r->ok = false;
}

/* Reports an unknown option, and names a similar one. word: as the user wrote it; name: the option's name, with or without a
 * value. */
static void
refuse_name(Reader *r, const char *word, const char *name, const char *what)
{
	WordGuess guess = guess_open(arena_strndup(r->arena, name, strcspn(name, "=")));

	for (int i = 0; i < r->table->n; i++)
		if (r->table->rows[i].help && option_is_of_command(r->table, &r->table->rows[i]))
			guess_offer(&guess, r->table->rows[i].name);
	diag_error(r->diag, EXIT_USAGE, "%s%s: %s", r->origin, word, what);
	hint_guess(r->diag, &guess, *r->origin ? "" : "--",
	           arena_printf(r->arena, "`%s --help` lists the options", r->table->program));
	r->ok = false;
}

/* Must this program skip the section's lines? Lines in [gradc] or [executable] are for that program; lines before any
 * section are for both. An unknown section is reported and skipped. */
static bool
is_for_another(Reader *r, const char *section)
{
	static const char *const sections[] = {"gradc", "executable"};
	bool known = !*section;

	for (int i = 0; i < COUNT(sections); i++)
		known |= strcmp(section, sections[i]) == 0;
	if (!known) {
		if (!r->refused || strcmp(r->refused, section) != 0)
			usage_error(r, arena_printf(r->arena, "[%s]", section),
			            "need [gradc] or [executable]");
		r->refused = arena_strdup(r->arena, section);
		return true;
	}
	return *section && r->table->section && strcmp(section, r->table->section) != 0;
}

static int
config_line(void *user, const char *section, const char *name, const char *value)
{
	Reader *r = user;
	const OptionRow *row = option_row(r->table, name, strlen(name));

	if (is_for_another(r, section))
		return 1;
	if (!row)
		refuse_name(r, name, name, "no such option");
	else if (row->takes == TAKES_CONFIG)
		usage_error(r, name, "a config file cannot name another config file");
	else
		vec_push(r->arena, &r->given,
		         ((Given){row, arena_strdup(r->arena, value), r->origin, NULL}));
	return 1;
}

static bool
is_on_line(const void *line, const char *name)
{
	const GivenList *list = line;

	for (int i = 0; i < list->n; i++)
		if (strcmp(list->at[i].row->name, name) == 0)
			return true;
	return false;
}

/* Reads DeepSpeed's file. Keys of the other program are ignored. */
static void
config_json(Reader *r, const char *path, const char *text, size_t n, const GivenList *line)
{
	const char *section = r->table->section;
	DeepspeedFile file = {path, text, n, 0, is_on_line, line};
	DeepspeedOptions options = {0};

	if (!section) {
		usage_error(r, "JSON", "need one `name = value` a line");
		return;
	}
	file.of = strcmp(section, "gradc") == 0 ? OF_GRADC : OF_EXECUTABLE;
	r->ok &= deepspeed_read(&file, &options, r->arena, r->diag);
	for (int i = 0; i < options.n; i++) {
		const DeepspeedOption *o = &options.at[i];
		const OptionRow *row = option_row(r->table, o->name, strlen(o->name));
		assert(row);
		vec_push(r->arena, &r->given, ((Given){row, o->value, o->origin, o->unless}));
	}
}

static void
config_ini(Reader *r, const char *path, const char *text, size_t n)
{
	const char *end = memchr(text, '\0',
	                         n); /* the INI parser would ignore the text after a NUL */
	int line_of_end = 1;

	for (const char *at = text; end && at < end; at++)
		line_of_end += *at == '\n';
	if (end) {
		diag_error(r->diag, EXIT_USAGE, "%s:%d: a byte that is 0: not a text file", path,
		           line_of_end);
		r->ok = false;
		return;
	}
	int line = ini_parse_string(arena_strndup(r->arena, text, n), config_line, r);

	if (line)
		diag_error(r->diag, EXIT_USAGE, "%s:%d: not `name = value`", path, line);
	r->ok &= line == 0;
}

enum { MOST_CONFIG = 1 << 20, MOST_READ = 1 << 26 }; /* bytes */

static void
read_config(Reader *r, const char *path, const GivenList *line)
{
	void *bytes;
	int64_t n;

	if (diag_status(r->diag, file_read(r->arena, path, MOST_READ, &bytes, &n))) {
		r->ok = false;
		return;
	}
	r->origin = arena_printf(r->arena, "%s: ", path);
	if (n > MOST_CONFIG)
		usage_error(r, arena_printf(r->arena, "%lld bytes", (long long)n),
		            "options have at most a MiB");
	else if (deepspeed_is_json(bytes, (size_t)n))
		config_json(r, path, bytes, (size_t)n, line);
	else
		config_ini(r, path, bytes, (size_t)n);
	r->origin = "";
}

enum { CODE_ROWS = 1000 };

static struct option *
getopt_table(Arena *arena, const OptionTable *table, char *letters)
{
	struct option *longs = NEW_ARRAY(arena, struct option, table->n + 1);

	*letters++ = ':';
	for (int i = 0; i < table->n; i++) {
		const OptionRow *row = &table->rows[i];
		bool bare = !option_takes_value(row);
		int argument = bare            ? no_argument
		               : row->optional ? optional_argument
		                               : required_argument;
		longs[i] = (struct option){row->name, argument, NULL, CODE_ROWS + i};
		if (row->letter)
			*letters++ = row->letter;
		if (row->letter && !bare)
			*letters++ = ':';
	}
	*letters = '\0';
	return longs;
}

static int
row_of_letter(const OptionTable *table, int letter)
{
	int i = 0;

	while (i < table->n && table->rows[i].letter != letter)
		i++;
	return i;
}

/* Reports a word that getopt refused; `word` as the user wrote it. */
static void
refuse_word(Reader *r, int code, const char *word)
{
	size_t n = strcspn(word, "=");
	bool known = n > 2 && option_row(r->table, word + 2, n - 2);

	if (code == ':' || known)
		usage_error(r, word,
		            code == ':' ? "a value is missing" : "this option takes no value");
	else
		refuse_name(r, word, word[0] == '-' && word[1] == '-' ? word + 2 : "",
		            "no such option, or an abbreviation of several options");
}

/* Config files are read after the command line, but their options stand before the line's options. */
static void
read_line(Reader *r, int argc, char **argv, StringList *operands)
{
	char letters[64];
	struct option *longs = getopt_table(r->arena, r->table, letters);
	GivenList line = {0};
	int code;

	opterr = 0;
	optind = 0;
	while ((code = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		if (code == '?' || code == ':') {
			refuse_word(r, code, argv[optind - 1]);
		} else {
			int i = code >= CODE_ROWS ? code - CODE_ROWS
			                          : row_of_letter(r->table, code);
			const OptionRow *row = &r->table->rows[i];
			const char *value = optarg || !row->optional ? optarg : "";
			vec_push(r->arena, &line, ((Given){row, value, "", NULL}));
		}
	}
	for (int i = 0; i < line.n; i++)
		if (line.at[i].row->takes == TAKES_CONFIG)
			read_config(r, line.at[i].value, &line);
	r->n_config = r->given.n;
	for (int i = 0; i < line.n; i++)
		vec_push(r->arena, &r->given, line.at[i]);
	for (; optind < argc; optind++)
		vec_push(r->arena, operands, argv[optind]);
}

/* Does the command line replace option i of a file? It does if the line has the option `unless` of option i, or the same
 * repeatable option with the same NAME=. */
static bool
is_overruled(const Reader *r, int i)
{
	const Given *own = &r->given.at[i];
	size_t n = own->value ? strcspn(own->value, "=") : 0;
	bool named = own->value && own->value[n] == '=';

	for (int k = i < r->n_config ? r->n_config : r->given.n; k < r->given.n; k++) {
		const Given *g = &r->given.at[k];
		if (own->unless && strcmp(g->row->name, own->unless) == 0)
			return true;
		if (named && g->row == own->row && g->value &&
		    strncmp(g->value, own->value, n + 1) == 0)
			return true;
	}
	return false;
}

static bool
takes_several(const OptionRow *row)
{
	return row->takes == TAKES_LIST || row->takes == TAKES_CHOICES ||
	       row->takes == TAKES_CONFIG || (row->takes == TAKES_CALL && row->repeats);
}

/* The option as the user gave it. */
static const char *
given_text(Arena *arena, const Given *g)
{
	return g->value && *g->value ? arena_printf(arena, "--%s=%s", g->row->name, g->value)
	                             : arena_printf(arena, "--%s", g->row->name);
}

/* Compares the NAMEs of two NAME=VALUE. NAME may contain an `=`, so NAME ends at the last `=`. */
static bool
has_same_name(const Given *a, const Given *b)
{
	const char *x = strrchr(a->value, '='), *y = strrchr(b->value, '=');

	return x && y && x - a->value == y - b->value &&
	       strncmp(a->value, b->value, (size_t)(x - a->value)) == 0;
}

/* Is option i, which takes one value, given again with another value in the same place (the command line, or one file)? */
static bool
is_contradicted(Reader *r, int i)
{
	const Given *own = &r->given.at[i];

	bool several = takes_several(own->row) && !own->row->one_per_name;

	for (int k = i + 1; k < r->given.n && !several; k++) {
		const Given *g = &r->given.at[k];
		if (g->row != own->row || strcmp(g->origin, own->origin) != 0 ||
		    (!own->value && !g->value) ||
		    (own->value && g->value && strcmp(own->value, g->value) == 0) ||
		    (own->row->one_per_name && !has_same_name(own, g)))
			continue;
		diag_error(r->diag, EXIT_USAGE, "%s%s and %s: one of them", own->origin,
		           given_text(r->arena, own), given_text(r->arena, g));
		return true;
	}
	return false;
}

static bool
refuse_command(Reader *r, const Given *g)
{
	diag_error(r->diag, EXIT_USAGE, "%s: has no meaning for `%s`", given_text(r->arena, g),
	           r->table->mode ? r->table->mode : r->table->program);
	diag_hint(r->diag, "it is for %s", option_commands(r->arena, r->table, g->row->commands));
	return false;
}

/* Does a later value replace option i? */
static bool
is_replaced(const Reader *r, int i)
{
	const OptionRow *row = r->given.at[i].row;
	bool replaced = false;

	for (int k = i + 1; k < r->given.n && !takes_several(row); k++)
		replaced |= r->given.at[k].row == row;
	return replaced;
}

static bool
take_value(Reader *r, int i, void *to)
{
	const Given *g = &r->given.at[i];
	OptionUse use = {g->row, g->value, g->origin, to, r->arena, r->diag};

	if (!setters[g->row->takes](&use, (char *)to + g->row->offset))
		return false;
	bool names_paths = g->row->path || g->row->paths;
	PathUses *uses = names_paths && !is_replaced(r, i) ? r->table->uses : NULL;
	if (uses && g->row->path)
		option_add_path(&use, uses, g->row->path, g->value);
	if (uses && g->row->paths)
		g->row->paths(&use, uses);
	return true;
}

bool
options_read(const OptionTable *table, void *to, int argc, char **argv, StringList *operands,
             Arena *arena, Diag *diag)
{
	Reader r = {.table = table, .arena = arena, .diag = diag, .origin = "", .ok = true};

	read_line(&r, argc, argv, operands);
	for (int i = 0; i < r.given.n; i++) {
		const Given *g = &r.given.at[i];
		if (!option_is_of_command(table, g->row))
			r.ok &= i < r.n_config || refuse_command(&r, g);
		else if (is_contradicted(&r, i))
			r.ok = false;
		else if (!is_overruled(&r, i))
			r.ok &= take_value(&r, i, to);
	}
	return r.ok;
}
