/* Prints the --help of a training executable without building one, for the man page. */
#include "runtime/cli/cli.h"

int
main(void)
{
	options_help(stdout, "EXE");
	return 0;
}
