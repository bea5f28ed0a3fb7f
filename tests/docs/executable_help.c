/* Prints the --help of a training executable without building one, for the man page; with --json as JSON. */
#include "runtime/cli/cli.h"

#include <string.h>

int
main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "--json") == 0)
		options_help_as_json(stdout, NULL);
	else
		options_help(stdout, "EXE", NULL);
	return 0;
}
