/* What the printers and the linker need while an executable is built: temporary files, running
 * compilers, and the division of kernels into parts that are compiled in parallel. */
#include "codegen/build/build.h"
#include "codegen/legalize/legalize.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define VIEW(name)
const KernelPrinter *const kernel_printers[] = {
#define PRINTER(name) &printer_##name,
#include "codegen/build/printer_list.def"
#undef PRINTER
	NULL,
};
#undef VIEW

#define PRINTER(name)
const KernelPrinter *const kernel_views[] = {
#define VIEW(name) &printer_##name,
#include "codegen/build/printer_list.def"
#undef VIEW
	NULL,
};
#undef PRINTER

/* Returns language i of all printers and views; with a name, the language of this name. Sets *of
 * to the printer of the language. Returns NULL if there is no such language. */
static const char *
find_language(int i, const char *name, const KernelPrinter **of)
{
	const KernelPrinter *const *const lists[] = {kernel_printers, kernel_views};

	for (int l = 0; l < COUNT(lists); l++)
		for (int p = 0; lists[l][p]; p++) {
			*of = lists[l][p];
			for (const char *const *at = (*of)->languages; *at; at++)
				if (name ? strcmp(*at, name) == 0 : i-- == 0)
					return *at;
		}
	*of = NULL;
	return NULL;
}

const KernelPrinter *
printer_of_language(const char *language)
{
	const KernelPrinter *of;

	find_language(0, language, &of);
	return of;
}

const char *
printer_language(int i)
{
	const KernelPrinter *of;

	return find_language(i, NULL, &of);
}

const char *
build_file(Build *b, const char *name)
{
	return path_join(b->arena, b->folder.path, name);
}

Status
build_object(Build *b, const char *name, const Text *object)
{
	const char *path = build_file(b, name);

	vec_push(b->arena, &b->objects, path);
	return file_write(path, object->at, (int64_t)object->n);
}

/* The environment with another TMPDIR, so that a killed compiler leaves its files in a folder
 * that is removed. */
static char **
environment(Build *b)
{
	int n = 0;

	while (environ[n])
		n++;
	char **copy = NEW_ARRAY(b->arena, char *, n + 2);
	n = 0;
	for (char **e = environ; *e; e++)
		if (strncmp(*e, "TMPDIR=", 7) != 0)
			copy[n++] = *e;
	copy[n] = arena_printf(b->arena, "TMPDIR=%s", b->folder.path);
	return copy;
}

/* Starts the program in its own process group, so that a signal also reaches the programs that it starts. */
Status
build_start(Build *b, char *const *argv, const char *log, Process *out)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t group;
	sigset_t none;

	sigemptyset(&none);
	*out = (Process){.name = argv[0], .log = log, .cleanup = -1};
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	posix_spawn_file_actions_adddup2(&actions, 1, 2);
	posix_spawnattr_init(&group);
	posix_spawnattr_setflags(&group, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&group, &none);
	char **variables = environment(b);
	int code = ECANCELED;
	if (cleanup_begin_making()) {
		code = posix_spawnp(&out->pid, argv[0], &actions, &group, argv, variables);
		if (code == 0)
			out->cleanup = cleanup_add_child(-out->pid);
		cleanup_end_making();
	}
	posix_spawnattr_destroy(&group);
	posix_spawn_file_actions_destroy(&actions);
	if (code == 0)
		return NULL;
	return status_error(EXIT_SYSTEM, "C compiler `%s`: %s (set CC to another, or install gcc)",
	                    argv[0], strerror(code));
}

Status
build_finish(Build *b, Process *p)
{
	void *text = NULL;
	int64_t n = 0;
	int status;

	pid_t ended;
	while ((ended = waitpid(p->pid, &status, 0)) < 0 && errno == EINTR)
		;
	cleanup_forget(p->cleanup);
	if (ended < 0)
		return status_error(EXIT_SYSTEM, "%s: %s", p->name, strerror(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return NULL;
	status_free(file_read(b->arena, p->log, 1 << 20, &text, &n));
	return status_output(status_error(EXIT_SYSTEM, "C compiler `%s` failed", p->name), text,
	                     (size_t)n);
}

const char *
build_compiler(const Build *b)
{
	const char *cc = b->options->cc ? b->options->cc : getenv("CC");

	return cc && *cc ? cc : "cc";
}

const char *
build_model_symbol(Build *b)
{
	const char *name = b->options->library;

	return name ? arena_printf(b->arena, GRADC_MODEL_NAME "_%s", name) : GRADC_MODEL_NAME;
}

int
build_target(Arena *arena, const Module *m, const Target *target)
{
	Versions v = module_versions(arena, m);
	int i = target ? version_index(&v, target->name) : 0;

	if (i < 0 && v.names.n > 1) { /* cannot happen: check_targets has refused such a build */
		fprintf(stderr, "gradc: internal error: no program is for target %s\n",
		        target->name);
		abort();
	}
	return i < 0 ? 0 : i; /* with a single target, its programs run on all CPUs */
}

Kernel **
build_kernels(Arena *arena, const Module *m, const Target *target)
{
	Versions v = module_versions(arena, m);
	int t = target ? version_index(&v, target->name) : -1;
	Kernel **kernels = NEW_ARRAY(arena, Kernel *, m->kernels.n + 1);

	for (int i = 0; i < m->kernels.n; i++)
		kernels[i] = t < 0 || v.needs[t][i] ? m->kernels.at[i] : NULL;
	return kernels;
}

KernelPart
build_list(Arena *arena, const Module *m, const Target *target)
{
	KernelPart list = {build_kernels(arena, m, target), 0};

	for (int i = 0; i < m->kernels.n; i++)
		if (list.at[i])
			list.at[list.n++] = list.at[i];
	return list;
}

static int
count_parts(int n_kernels)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int parts = n_kernels / 8 + 1;

	if (parts > cores)
		parts = cores < 1 ? 1 : (int)cores;
	return parts > MAX_PARTS ? MAX_PARTS : parts;
}

static int
by_statements(const void *a, const void *b)
{
	const Kernel *x = *(const Kernel *const *)a, *y = *(const Kernel *const *)b;

	return x->body.n != y->body.n ? (x->body.n < y->body.n) - (x->body.n > y->body.n)
	                              : strcmp(x->name, y->name);
}

/* Takes kernels from the longest to the shortest and gives each to the part with the fewest
 * statements so far: Graham, "Bounds on Multiprocessing Timing Anomalies", 1969. */
void
build_divide(Arena *arena, const KernelPart *all, int n, KernelPart *parts)
{
	int *statements = NEW_ARRAY(arena, int, n);

	if (all->n)
		qsort(all->at, (size_t)all->n, sizeof(Kernel *), by_statements);
	for (int i = 0; i < n; i++)
		parts[i] = (KernelPart){0};
	for (int i = 0; i < all->n; i++) {
		int least = 0;
		for (int k = 1; k < n; k++)
			if (statements[k] < statements[least])
				least = k;
		vec_push(arena, &parts[least], all->at[i]);
		statements[least] += all->at[i]->body.n;
	}
}

int
build_parts(Arena *arena, const Module *m, const Target *target, KernelPart parts[MAX_PARTS])
{
	KernelPart all = build_list(arena, m, target);
	int n = count_parts(all.n);

	build_divide(arena, &all, n, parts);
	return n;
}
