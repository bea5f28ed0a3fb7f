/* A temporary executable, run once: the executable itself reads the inputs and writes the results. */
#include "tools/tools.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int
run_program(Session *s, char *const *argv)
{
	pid_t pid;
	int status, code = posix_spawn(&pid, argv[0], NULL, NULL, argv, environ);

	if (code) {
		diag_error(s->diag, EXIT_SYSTEM, "%s: %s", argv[0], strerror(code));
		return EXIT_SYSTEM;
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return EXIT_SYSTEM;
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	diag_error(s->diag, EXIT_SYSTEM, "the compiled program ended with signal %d", WTERMSIG(status));
	return EXIT_SYSTEM;
}

int
run_compiled(Session *s, bool backward)
{
	const Options *o = s->o;
	const char *base = getenv("TMPDIR");
	char *folder = arena_printf(s->arena, "%s/gradc-run-XXXXXX", base && *base ? base : "/tmp");
	char **argv = NEW_ARRAY(s->arena, char *, 2 * o->inputs.n + 16);
	int n = 0, code;

	if (!mkdtemp(folder)) {
		diag_error(s->diag, EXIT_SYSTEM, "%s: %s", folder, strerror(errno));
		return EXIT_SYSTEM;
	}
	char *exe = path_join(s->arena, folder, "once");
	argv[n++] = exe;
	argv[n++] = "--once";
	if (backward)
		argv[n++] = "--backward";
	argv[n++] = "--output-dir";
	argv[n++] = (char *)o->output_dir;
	if (o->output_format) {
		argv[n++] = "--output-format";
		argv[n++] = (char *)o->output_format;
	}
	for (int i = 0; i < o->inputs.n; i++) {
		argv[n++] = "--input";
		argv[n++] = (char *)o->inputs.at[i];
	}
	code = session_link(s, exe, false) ? run_program(s, argv) : diag_exit_code(s->diag);
	unlink(exe);
	rmdir(folder);
	return code;
}
