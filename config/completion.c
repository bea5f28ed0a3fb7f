/* Completes the last word of a command line from a table of options. A shell's script (completion.bash, .zsh, .fish) calls the
 * program with `__complete` and the words, and offers what the program prints. */
#include "config/rows.h"

#include <ctype.h>
#include <string.h>

extern const char completion_bash[], completion_zsh[], completion_fish[];

const char *const completion_shells[N_SHELLS + 1] = {"bash", "zsh", "fish", NULL};
static const char *const scripts[N_SHELLS] = {completion_bash, completion_zsh, completion_fish};

typedef struct {
	FILE *out;
	Arena *arena;
	const char *kept;  /* what stands before the part that is completed: "--loss=" */
	const char *typed; /* the part that is completed */
	const char *help;  /* for every candidate */
	bool partial;      /* a candidate is not a whole word */
} Completion;

/* The help up to its first semicolon, or its first words. */
static const char *
short_help(Arena *arena, const char *help)
{
	enum { MOST = 60 };
	size_t n = strcspn(help, ";");

	if (n <= MOST)
		return arena_strndup(arena, help, n);
	for (n = MOST; n > 1 && help[n] != ' '; n--)
		;
	return arena_printf(arena, "%.*s ...", (int)n, help);
}

static void
print_candidate(Completion *c, const char *word, const char *help)
{
	size_t n = strlen(word);

	if (strncmp(word, c->typed, strlen(c->typed)) != 0)
		return;
	c->partial |= n > 0 && strchr("=:.", word[n - 1]);
	fprintf(c->out, "%s%s\t%s\n", c->kept, plain_text(c->arena, word),
	        short_help(c->arena, help));
}

void
completion_word(FILE *out, const char *prefix, const char *word, const char *help)
{
	if (strncmp(word, prefix, strlen(prefix)) == 0)
		fprintf(out, "%s\t%s\n", word, help);
}

static void
print_choice(void *arg, const char *word)
{
	Completion *c = arg;

	print_candidate(c, word, c->help);
}

/* Prints the last line: what else the shell must offer. */
static void
print_last_line(const Completion *c, const char *kind, const char *endings)
{
	fprintf(c->out, ":%s%s%s\n", kind, endings, c->partial ? " nospace" : "");
}

/* The endings of files in a text such as "MODEL.onnx|FILE.gir", as " onnx gir"; "" if a file may have any ending. */
static const char *
endings_of(Arena *arena, const char *text)
{
	const char *endings = "";

	for (; *text; text += strcspn(text, "|") + (text[strcspn(text, "|")] == '|')) {
		size_t n = strcspn(text, "|"), dot = strcspn(text, ".|["), end = dot + 1;
		if (!isupper((unsigned char)*text))
			continue;
		if (dot >= n || text[dot] != '.')
			return "";
		while (end < n && isalnum((unsigned char)text[end]))
			end++;
		endings = arena_printf(arena, "%s %.*s", endings, (int)(end - dot - 1),
		                       text + dot + 1);
	}
	return endings;
}

/* Does the row's value begin with a name and an equal sign, as NAME=FILE does? */
static bool
begins_with_name(const OptionRow *row)
{
	size_t n = row->value ? strspn(row->value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") : 0;

	return n > 0 && row->value[n] == '=';
}

/* May the row's value have several choices with commas? */
static bool
takes_commas(const OptionRow *row)
{
	return row->value && row->value[strcspn(row->value, ",[")] == ',';
}

/* Moves what stands up to the last `mark` from c->typed to c->kept. */
static bool
keep_up_to(Completion *c, char mark)
{
	const char *at = strrchr(c->typed, mark);

	if (!at)
		return false;
	c->kept = arena_printf(c->arena, "%s%.*s", c->kept, (int)(at + 1 - c->typed), c->typed);
	c->typed = at + 1;
	return true;
}

static void
complete_value(Completion *c, const OptionTable *table, const OptionRow *row)
{
	const char *values = option_values(c->arena, row);
	bool named = begins_with_name(row);

	c->help = "";
	if (named && !keep_up_to(c, '=')) {
		for (int i = 0; table->names && i < table->names->n; i++)
			print_candidate(c, arena_printf(c->arena, "%s=", table->names->at[i]), "");
		print_last_line(c, "", "");
		return;
	}
	if (takes_commas(row))
		keep_up_to(c, ',');
	option_each_word(c->arena, row, print_choice, c);
	if (strstr(values, "DIR"))
		print_last_line(c, "folders", "");
	else if (row->path || row->paths || strstr(values, "PROGRAM") || strstr(values, "FILE"))
		print_last_line(c, "files",
		                endings_of(c->arena, named ? strchr(values, '=') + 1 : values));
	else
		print_last_line(c, "", "");
}

static void
complete_option(Completion *c, const OptionTable *table)
{
	for (int i = 0; i < table->n; i++) {
		const OptionRow *row = &table->rows[i];
		bool takes = option_takes_value(row) && !row->optional;
		if (row->help && option_is_of_command(table, row))
			print_candidate(
				c, arena_printf(c->arena, "--%s%s", row->name, takes ? "=" : ""),
				row->help);
	}
	print_last_line(c, "", "");
}

/* The option whose value is the word behind `word`; NULL: `word` is not such an option. */
static const OptionRow *
option_before(const OptionTable *table, const char *word)
{
	const OptionRow *row = NULL;

	if (word[0] != '-')
		return NULL;
	if (word[1] == '-')
		row = option_row(table, word + 2, strlen(word + 2));
	for (int i = 0; i < table->n && word[1] != '-' && word[1] && !word[2]; i++)
		if (table->rows[i].letter == word[1])
			row = &table->rows[i];
	return row && option_takes_value(row) && !row->optional ? row : NULL;
}

/* Completes an operand of the command: "MODEL.onnx|FILE.gir", or words that stand for themselves. */
static void
complete_operand(Completion *c, const char *operands)
{
	OptionRow row = {.value = operands};

	option_each_word(c->arena, &row, print_choice, c);
	print_last_line(c, isupper((unsigned char)*operands) ? "files" : "",
	                endings_of(c->arena, operands));
}

void
completion_print(FILE *out, const OptionTable *table, int n, char **words)
{
	const char *last = n > 0 ? words[n - 1] : NULL, *equal;
	const OptionRow *row = n > 1 ? option_before(table, words[n - 2]) : NULL;
	Arena *arena = arena_new();
	Completion c = {
		.out = out, .arena = arena, .kept = "", .typed = last ? last : "", .help = ""};

	last = c.typed;
	equal = strchr(last, '=');
	if (!row && last[0] == '-' && last[1] == '-' && equal) {
		row = option_row(table, last + 2, (size_t)(equal - last - 2));
		c.kept = arena_strndup(arena, last, (size_t)(equal + 1 - last));
		c.typed = equal + 1;
	}
	if (row)
		complete_value(&c, table, row);
	else if (*last == '-')
		complete_option(&c, table);
	else
		complete_operand(&c, table->operands ? table->operands : "");
	arena_free(arena);
}

/* Prints the text with `value` in the place of each `mark`. */
static void
print_filled(FILE *out, const char *text, char mark, const char *const values[2])
{
	for (; *text; text++)
		if (text[0] == mark && text[1] >= '1' && text[1] <= '2')
			fputs(values[*++text - '1'], out);
		else
			fputc(*text, out);
}

bool
completion_script(FILE *out, const char *shell, const char *program)
{
	const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
	Text word = {0}, function = {0};
	int i = 0;

	while (i < N_SHELLS && strcmp(completion_shells[i], shell) != 0)
		i++;
	if (i == N_SHELLS)
		return false;
	text_add_shell_word(&word, name);
	for (const char *c = name; *c; c++)
		text_printf(&function, "%c", isalnum((unsigned char)*c) ? *c : '_');
	print_filled(out, scripts[i], '@', (const char *const[]){word.at, function.at});
	text_free(&word);
	text_free(&function);
	return true;
}
