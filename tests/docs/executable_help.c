/* What a training executable prints for --help, without one: for the man page. */
#include "runtime/cli/cli.h"

int
main(void)
{
	options_help(stdout, "EXE");
	return 0;
}
