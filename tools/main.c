/* gradc: runs a subcommand. Only main exits the process. */
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"
#include "tools/tools.h"

#include <signal.h>
#include <string.h>

static int
refuse(Diag *diag, const char *name)
{
	bool later = strcmp(name, "plan") == 0;
	WordGuess guess = guess_open(name);

	for (const Command *c = commands; c->name && !later; c++)
		guess_offer(&guess, c->name);
	diag_error(diag, EXIT_USAGE,
	           later ? "`gradc %s`: not supported in this build" : "unknown command `%s`",
	           name);
	hint_guess(diag, &guess, "", "`gradc --help` lists the commands");
	return EXIT_USAGE;
}

/* Checks gradc's own tables (ops, groups, passes, losses, optimizers, targets, strategies): a row with a
 * missing column would crash later, or train nothing. */
static bool
check_rows(Diag *diag)
{
	int n;
	const PassRow *const *passes = pass_rows(&n);

	bool sound = op_table_check(diag) && group_table_check(diag) && pass_tables_check(diag) &&
	             target_table_check(diag) && strategy_table_check(diag);
	for (int i = 0; i < n; i++)
		sound &= pass_row_check(passes[i], diag);
	return sound;
}

static bool
is_word(const char *word, const char *a, const char *b)
{
	return strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

/* `gradc help`, `gradc help COMMAND`, `gradc help --all`, each with --json */
static int
run_help(int argc, char **argv, Arena *arena, Diag *diag)
{
	bool json = false, all = false;
	const char *name = NULL;

	for (int i = 2; i < argc; i++) {
		json |= strcmp(argv[i], "--json") == 0;
		all |= strcmp(argv[i], "--all") == 0;
		if (argv[i][0] != '-')
			name = argv[i];
	}
	if (name && !command_find(name))
		return refuse(diag, name);
	if (!name && !json)
		usage_print(stdout);
	if (name || all || json)
		help_print(name ? command_find(name) : NULL, json, arena);
	return EXIT_OK;
}

/* `gradc -q compile ...` is `gradc compile -q ...`: moves such words behind the command. */
static void
move_behind_command(int argc, char **argv)
{
	int n = 1;

	while (n < argc &&
	       (is_word(argv[n], "-q", "--quiet") || is_word(argv[n], "-v", "--verbose")))
		n++;
	if (n == 1 || n == argc)
		return;
	char *command = argv[n];
	memmove(argv + 2, argv + 1, sizeof(*argv) * (size_t)(n - 1));
	argv[1] = command;
}

static int
run(int argc, char **argv, Arena *arena, Diag *diag)
{
	Options o = {0};
	int code = EXIT_OK;

	if (!check_rows(diag))
		return diag_exit_code(diag);
	if (argc < 2) {
		usage_print(stderr);
		return EXIT_USAGE;
	}
	move_behind_command(argc, argv);
	const Command *command = command_find(argv[1]);
	if (is_word(argv[1], "--help", "-h") || is_word(argv[1], "help", ""))
		return run_help(argc, argv, arena, diag);
	if (strcmp(argv[1], "--version") == 0)
		version_print();
	else if (strcmp(argv[1], "__complete") == 0)
		complete(argc - 2, argv + 2, arena);
	else if (!command && argv[1][0] == '-') {
		diag_error(diag, EXIT_USAGE, "%s: a command is missing", argv[1]);
		diag_hint(diag, "`gradc --help` lists the commands");
		return EXIT_USAGE;
	} else if (!command)
		return refuse(diag, argv[1]);
	else if (options_parse(&o, command, argc - 1, argv + 1, arena, diag, &code))
		code = command->run(&o, arena, diag);
	return code;
}

int
main(int argc, char **argv)
{
	streams_reserve();
	/* the parent process may have set SIGCHLD to be ignored; then gradc could not wait for its
	 * child processes */
	signal(SIGCHLD, SIG_DFL);
	memory_serve_json(true);
	Diag *diag = diag_new("gradc", stderr);
	Arena *arena = arena_new();

	cleanup_on_signals();
	int code = diag_finish_stdout(diag, run(argc, argv, arena, diag));
	arena_free(arena);
	diag_free(diag);
	return code;
}
