/* Facts about one row of a table of options, for reading, help and completion; hints for misspelt values. */
#include "config/rows.h"

#include <ctype.h>
#include <string.h>

const OptionRow *
option_row(const OptionTable *table, const char *name, size_t n)
{
	for (int i = 0; i < table->n; i++)
		if (strlen(table->rows[i].name) == n && memcmp(table->rows[i].name, name, n) == 0)
			return &table->rows[i];
	return NULL;
}

bool
option_takes_value(const OptionRow *row)
{
	return row->takes != TAKES_FLAG && (row->value || row->nth);
}

char *
option_values(Arena *arena, const OptionRow *row)
{
	Text t = {0};

	for (int i = 0; row->nth && row->nth(i); i++)
		text_printf(&t, "%s%s", i ? "|" : "", row->nth(i));
	if (row->value)
		text_printf(&t, "%s%s", t.n ? "|" : "", row->value);
	char *copy = arena_strdup(arena, t.n ? t.at : "");
	text_free(&t);
	return copy;
}

const char *
option_commands(Arena *arena, const OptionTable *table, unsigned commands)
{
	const char *list = "";

	for (int i = 0; table->command_names && table->command_names[i]; i++)
		if (commands & 1u << i)
			list = arena_printf(arena, "%s%s%s", list, *list ? ", " : "",
			                    table->command_names[i]);
	return list;
}

bool
option_is_of_command(const OptionTable *table, const OptionRow *row)
{
	return !row->commands || !table->command || (row->commands & table->command);
}

/* The length of a choice's beginning that stands for itself: up to a name in capitals, which stands for what the user gives. */
static size_t
fixed_length(const char *choice, size_t n)
{
	size_t end = 0;

	while (end < n && (!isupper((unsigned char)choice[end]) ||
	                   (end > 0 && isalnum((unsigned char)choice[end - 1]))))
		end++;
	return end;
}

void
option_each_word(Arena *arena, const OptionRow *row, void (*each)(void *arg, const char *word),
                 void *arg)
{
	static const char *const switches = "on|off";
	const char *choices = row->takes == TAKES_SWITCH ? switches : option_values(arena, row);

	while (*choices) {
		size_t n = strcspn(choices, "|,["), fixed = fixed_length(choices, n);
		if (fixed)
			each(arg, arena_strndup(arena, choices, fixed));
		n += choices[n] == '[' ? strcspn(choices + n, "|") : 0;
		choices += n + (choices[n] != '\0');
	}
	const char *word;
	for (int i = 0; row->words && (word = row->words(arena, i)); i++)
		each(arg, word);
}

static void
offer(void *guess, const char *word)
{
	guess_offer(guess, word);
}

void
option_hint(const OptionUse *u, const char *word, const char *rest)
{
	WordGuess guess = guess_open(word);

	option_each_word(u->arena, u->row, offer, &guess);
	hint_guess(u->diag, &guess, "", rest);
}
