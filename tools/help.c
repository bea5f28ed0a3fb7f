/* What gradc says of itself: help, version, and what a shell completes. */
#include "tools/tools.h"

#include <jansson.h>
#include <string.h>

void
version_print(void)
{
	printf("gradc %s\n", GRADC_VERSION);
}

void
usage_print(FILE *out)
{
	fprintf(out,
	        "gradc %s: ONNX models become training executables\n\n"
	        "usage: gradc COMMAND FILE [options]\n\n",
	        GRADC_VERSION);
	for (const Command *c = commands; c->name; c++)
		fprintf(out, "  %-10s %-24s %s\n", c->name, c->what, c->help);
	fprintf(out, "\n`gradc COMMAND --help` lists a command's options, `gradc help --all` all\n"
	             "options; `man gradc` says more.\n");
}

static void
print_settings(Arena *arena, const PassOption *p)
{
	for (; p && p->name; p++)
		help_entry(stdout, 4, arena_printf(arena, ",%s=...", p->name), p->help);
}

static void
print_lists(Arena *arena)
{
	printf("\nlosses (--loss), each with options of its own as --loss=NAME,OPTION=VALUE:\n");
	for (int i = 0; loss_table[i]; i++) {
		help_entry(stdout, 2, loss_table[i]->name, loss_table[i]->doc);
		print_settings(arena, loss_table[i]->options);
	}
	printf("\noptimizers (--optimizer), with hyperparameters, which are options of the\n"
	       "executable, and settings:\n");
	for (int i = 0; optimizer_table[i]; i++) {
		const OptimizerRow *row = optimizer_table[i];
		help_entry(stdout, 2, row->name, row->doc);
		help_entry(stdout, 4, "", row->defaults);
		print_settings(arena, row->options);
	}
}

static json_t *
settings_json(const PassOption *p)
{
	json_t *list = json_array();

	for (; p && p->name; p++)
		json_array_append_new(list,
		                      json_pack("{s:s,s:s}", "name", p->name, "help", p->help));
	return list;
}

static json_t *
losses_json(void)
{
	json_t *list = json_array();

	for (int i = 0; loss_table[i]; i++)
		json_array_append_new(list, json_pack("{s:s,s:s,s:o}", "name", loss_table[i]->name,
		                                      "help", loss_table[i]->doc, "settings",
		                                      settings_json(loss_table[i]->options)));
	return list;
}

static json_t *
optimizers_json(void)
{
	json_t *list = json_array();

	for (int i = 0; optimizer_table[i]; i++) {
		const OptimizerRow *row = optimizer_table[i];
		json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:o}", "name", row->name,
		                                      "help", row->doc, "defaults", row->defaults,
		                                      "settings", settings_json(row->options)));
	}
	return list;
}

static json_t *
commands_json(void)
{
	json_t *list = json_array();

	for (const Command *c = commands; c->name; c++)
		json_array_append_new(list, json_pack("{s:s,s:s,s:s}", "name", c->name, "takes",
		                                      c->what, "help", c->help));
	return list;
}

static void
print_json(const OptionTable *table, bool trains)
{
	json_t *out = json_pack("{s:o,s:o}", "commands", commands_json(), "options",
	                        options_help_json(table));

	if (trains) {
		json_object_set_new(out, "losses", losses_json());
		json_object_set_new(out, "optimizers", optimizers_json());
	}
	json_dumpf(out, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	printf("\n");
	json_decref(out);
}

void
help_print(const Command *command, bool json, Arena *arena)
{
	enum { TRAIN = COMMAND_COMPILE | COMMAND_CHECK | COMMAND_GRAD | COMMAND_DUMP };
	OptionTable table = option_table(arena, command);
	bool trains = !command || (command->bit & TRAIN);

	if (json) {
		print_json(&table, trains);
		return;
	}
	if (command)
		printf("usage: gradc %s %s%s[options]\n%s\n\noptions:\n", command->name,
		       command->what, *command->what ? " " : "", command->help);
	options_print(stdout, &table);
	if (trains)
		print_lists(arena);
}

int
command_completion(Options *o, Arena *arena, Diag *diag)
{
	const char *shell = o->input ? o->input : "";
	WordGuess guess = guess_open(shell);

	if (completion_script(stdout, shell, "gradc"))
		return EXIT_OK;
	for (int i = 0; completion_shells[i]; i++)
		guess_offer(&guess, completion_shells[i]);
	diag_error(diag, EXIT_USAGE, "completion for %s: need bash, zsh or fish",
	           *shell ? arena_printf(arena, "`%s`", shell) : "no shell");
	hint_guess(diag, &guess, "", "for bash: source <(gradc completion bash)");
	return EXIT_USAGE;
}

void
complete(int n, char **words, Arena *arena)
{
	const Command *command = n > 1 ? command_find(words[0]) : NULL;
	OptionTable table;

	if (command) {
		table = option_table(arena, command);
		completion_print(stdout, &table, n - 1, words + 1);
		return;
	}
	for (const Command *c = commands; n == 1 && c->name; c++)
		completion_word(stdout, words[0], c->name, c->help);
	if (n == 1 && words[0][0] == '-') {
		completion_word(stdout, words[0], "--help", "the commands");
		completion_word(stdout, words[0], "--version", "gradc's version");
	}
	printf(":\n");
}
