/* Prints a table of options as help: one option a line, in at most HELP_WIDTH columns, and as JSON. */
#include "config/rows.h"

#include <jansson.h>
#include <string.h>

enum { COLUMN = 30 }; /* where the texts begin */

/* The length of the part of `text` that goes on a line of `room` bytes: up to a space, or behind a `|` or a comma; a part without
 * such a place is not divided. */
static size_t
part_length(const char *text, size_t room)
{
	size_t n = strlen(text), best = 0;

	if (n <= room)
		return n;
	for (size_t i = 1; i <= n && (i <= room || !best); i++)
		if (text[i] == ' ' || text[i] == '\0')
			best = i;
	if (best > 0 && best <= room)
		return best;
	size_t word = best;
	for (size_t i = 1; i <= word && i <= room; i++)
		if (text[i - 1] == '|' || text[i - 1] == ',')
			best = i;
	return best;
}

/* Prints the text from the column on, over as many lines as it needs. */
static void
print_wrapped(FILE *out, int column, const char *text)
{
	for (bool first = true; *text; first = false) {
		size_t n = part_length(text, (size_t)(HELP_WIDTH - column));
		if (!first)
			fprintf(out, "%*s", column, "");
		fprintf(out, "%.*s\n", (int)n, text);
		text += n;
		text += *text == ' ';
	}
}

void
help_entry(FILE *out, int indent, const char *tag, const char *text)
{
	int n = fprintf(out, "%*s%s", indent, "", tag);

	if (!*text) {
		fprintf(out, "\n");
		return;
	}
	if (n + 1 > COLUMN)
		fprintf(out, "\n%*s", COLUMN, "");
	else
		fprintf(out, "%*s", COLUMN - n, "");
	print_wrapped(out, COLUMN, text);
}

static const char *
commands_of(Arena *arena, const OptionTable *table, const OptionRow *row)
{
	bool shown = row->commands && !table->command && table->command_names;

	return shown ? arena_printf(arena, " (%s)", option_commands(arena, table, row->commands))
	             : "";
}

static void
print_row(FILE *out, const OptionTable *table, const OptionRow *row, Arena *arena)
{
	const char *values = option_values(arena, row), *shown = values, *list = "";
	char letter[8] = "    ";
	int around = (int)strlen("  -o, --=[]");

	if (around + (int)(strlen(row->name) + strlen(values)) > HELP_WIDTH) {
		shown = "WHAT";
		list = arena_printf(arena, "; WHAT is %s", values);
	}
	if (row->letter)
		snprintf(letter, sizeof(letter), "-%c, ", row->letter);
	const char *tag = arena_printf(arena, "%s--%s%s%s%s%s", letter, row->name,
	                               row->optional ? "[" : "", *values ? "=" : "", shown,
	                               row->optional ? "]" : "");
	help_entry(out, 2, tag,
	           arena_printf(arena, "%s%s%s", row->help, list, commands_of(arena, table, row)));
}

void
options_print(FILE *out, const OptionTable *table)
{
	const char *group = NULL;
	Arena *arena = arena_new();

	for (int i = 0; i < table->n; i++) {
		const OptionRow *row = &table->rows[i];
		group = row->group ? row->group : group;
		if (!row->help || !option_is_of_command(table, row))
			continue;
		if (group)
			fprintf(out, "\n%s:\n", group);
		group = NULL;
		print_row(out, table, row, arena);
	}
	arena_free(arena);
}

static json_t *
row_json(const OptionTable *table, const OptionRow *row, const char *group, Arena *arena)
{
	const char *values = option_values(arena, row);
	json_t *out = json_pack("{s:s,s:s,s:s}", "name", row->name, "help", row->help, "group",
	                        group ? group : "");

	if (row->letter)
		json_object_set_new(out, "letter", json_stringn(&row->letter, 1));
	if (*values)
		json_object_set_new(out, "value", json_string(values));
	if (row->optional)
		json_object_set_new(out, "optional", json_true());
	json_t *commands = json_array();
	for (int i = 0; table->command_names && table->command_names[i]; i++)
		if (row->commands & 1u << i)
			json_array_append_new(commands, json_string(table->command_names[i]));
	if (json_array_size(commands))
		json_object_set(out, "commands", commands);
	json_decref(commands);
	return out;
}

json_t *
options_help_json(const OptionTable *table)
{
	json_t *list = json_array();
	const char *group = NULL;
	Arena *arena = arena_new();

	for (int i = 0; i < table->n; i++) {
		const OptionRow *row = &table->rows[i];
		group = row->group ? row->group : group;
		if (row->help && option_is_of_command(table, row))
			json_array_append_new(list, row_json(table, row, group, arena));
	}
	arena_free(arena);
	return list;
}
