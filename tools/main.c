/* gradc: runs a subcommand. Only main exits the process. */
#include "codegen/strategy/strategy.h"
#include "tools/tools.h"

#include <signal.h>
#include <string.h>

static void
usage(FILE *out)
{
	fprintf(out,
	        "gradc %s: ONNX models become training executables\n\n"
	        "usage: gradc COMMAND FILE [options]\n\n",
	        GRADC_VERSION);
	for (const Command *c = commands; c->name; c++)
		fprintf(out, "  %-8s %-24s %s\n", c->name, c->what, c->help);
	fprintf(out,
	        "\n`gradc COMMAND --help` lists its options, `gradc --help --all` those of every command; "
	        "`man gradc` says more.\n");
}

static int
refuse(Diag *diag, const char *name)
{
	bool later = strcmp(name, "plan") == 0;

	diag_error(diag, EXIT_USAGE,
	           later ? "`gradc %s`: not supported in this build" : "unknown command `%s`",
	           name);
	diag_hint(diag, "`gradc --help` lists the commands");
	return EXIT_USAGE;
}

/* Checks gradc's own tables (ops, passes, losses, optimizers, targets, strategies): a row with a
 * missing column would crash later, or train nothing. */
static bool
check_rows(Diag *diag)
{
	int n;
	const PassRow *const *passes = pass_rows(&n);

	bool sound = op_table_check(diag) && pass_tables_check(diag) && target_table_check(diag) &&
	             strategy_table_check(diag);
	for (int i = 0; i < n; i++)
		sound &= pass_row_check(passes[i], diag);
	return sound;
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
	Options o = {0};
	int code = EXIT_USAGE;

	cleanup_on_signals();
	if (!check_rows(diag)) {
		code = diag_exit_code(diag);
	} else if (argc < 2) {
		usage(stderr);
	} else if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
		usage(stdout);
		if (argc > 2 && strcmp(argv[2], "--all") == 0)
			options_print_all(arena);
		code = EXIT_OK;
	} else if (strcmp(argv[1], "--version") == 0) {
		printf("gradc %s\n", GRADC_VERSION);
		code = EXIT_OK;
	} else if (!command_find(argv[1])) {
		code = refuse(diag, argv[1]);
	} else if (options_parse(&o, command_find(argv[1]), argc - 1, argv + 1, arena, diag,
	                         &code)) {
		code = command_find(argv[1])->run(&o, arena, diag);
	}
	code = diag_finish_stdout(diag, code);
	arena_free(arena);
	diag_free(diag);
	return code;
}
