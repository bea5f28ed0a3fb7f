/* C compiler, linker, and the tail: source -> object -> ELF + weights + tables, renamed at the end so
 * that no half-written executable is ever seen. */
#include "codegen/codegen.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_PARTS = 8 };

typedef struct {
	Arena *arena;
	const LinkOptions *options;
	const char *folder;  /* temporary */
	const char *sources; /* folder of the generated C */
	const char *blob, *executable, *table;
	const char *source[MAX_PARTS], *object[MAX_PARTS], *log[MAX_PARTS];
	int parts;
} Link;

/* Starts a program with its messages in a log file. */
static Status
start_program(char *const *argv, const char *log, pid_t *pid)
{
	posix_spawn_file_actions_t actions;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	posix_spawn_file_actions_adddup2(&actions, 1, 2);
	int code = posix_spawnp(pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (code == 0)
		return NULL;
	return status_error(EXIT_SYSTEM, "C compiler `%s`: %s (set CC to another, or install gcc)",
	                    argv[0], strerror(code));
}

/* Waits for it; an error holds the first lines of its log. */
static Status
finish_program(Link *l, const char *name, const char *log, pid_t pid)
{
	void *text = NULL;
	int64_t n = 0;
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return status_error(EXIT_SYSTEM, "%s: %s", name, strerror(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return NULL;
	status_free(file_read(l->arena, log, 1 << 20, &text, &n));
	return status_output(status_error(EXIT_SYSTEM, "C compiler `%s` failed", name), text,
	                     (size_t)n);
}

/* The tables as bytes in the object, beside the kernels. */
static void
print_blob_include(Text *out, const char *path, int64_t bytes)
{
	text_printf(out,
	            "\n__asm__(\".section .rodata\\n.balign 64\\n.global gradc_blob\\n"
	            "gradc_blob:\\n\\t.incbin \\\"%s\\\"\\n.previous\\n\");\n"
	            "const int64_t gradc_blob_bytes = %lld;\n"
	            "extern const int gradc_abi_1;\n"
	            "const int *const gradc_abi_needed = &gradc_abi_1;\n",
	            path, (long long)bytes);
}

static const char *
compiler(const Link *l)
{
	const char *cc = l->options->cc ? l->options->cc : getenv("CC");

	return cc && *cc ? cc : "cc";
}

static const char *const compile_flags[] = {
	"-std=gnu11",      "-O3",
	"-march=native",   "-ffp-contract=off",
	"-fno-math-errno", "-fno-trapping-math",
	"-fopenmp-simd",   "-fwrapv",
	"-fPIC",           "-w",
};

/* All parts at once, then the link. */
static Status
compile_parts(Link *l)
{
	pid_t pids[MAX_PARTS];
	Status first = NULL;
	int started = 0;

	for (; started < l->parts && !first; started++) {
		char *argv[COUNT(compile_flags) + 8];
		int n = 0;
		argv[n++] = (char *)compiler(l);
		for (int k = 0; k < COUNT(compile_flags); k++)
			argv[n++] = (char *)compile_flags[k];
		argv[n++] = "-c";
		argv[n++] = (char *)l->source[started];
		argv[n++] = "-o";
		argv[n++] = (char *)l->object[started];
		argv[n] = NULL;
		first = start_program(argv, l->log[started], &pids[started]);
		if (first)
			break;
	}
	for (int i = 0; i < started; i++) {
		Status status = finish_program(l, compiler(l), l->log[i], pids[i]);
		if (first)
			status_free(status);
		else
			first = status;
	}
	return first;
}

static Status
link_parts(Link *l)
{
	char *argv[MAX_PARTS + 16];
	pid_t pid;
	int n = 0;

	argv[n++] = (char *)compiler(l);
	argv[n++] = "-w";
	argv[n++] = (char *)l->table;
	for (int i = 0; i < l->parts; i++)
		argv[n++] = (char *)l->object[i];
	argv[n++] = (char *)l->options->runtime;
	if (*GRADC_LINK_FLAGS)
		argv[n++] = GRADC_LINK_FLAGS;
	argv[n++] = "-lm";
	argv[n++] = "-lpthread";
	argv[n++] = "-o";
	argv[n++] = (char *)l->executable;
	argv[n] = NULL;
	RETURN_IF_ERROR(start_program(argv, l->log[0], &pid));
	return finish_program(l, compiler(l), l->log[0], pid);
}

/* The weights in the order in which tables_write gave them offsets. */
static Status
write_weights(FileWriter *out, const Module *m, uint64_t *hash)
{
	*hash = 0;
	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		if (s->init != INIT_DATA || !s->data)
			continue;
		*hash = hash_bytes(s->data->data, (size_t)type_bytes(s->type), *hash);
		RETURN_IF_ERROR(file_writer_add(out, s->data->data, type_bytes(s->type)));
		RETURN_IF_ERROR(file_writer_pad(out, 64));
	}
	return NULL;
}

static Status
write_weights_file(const Module *m, const char *path)
{
	FileWriter *out;
	uint64_t hash;

	RETURN_IF_ERROR(file_writer_open(path, &out));
	Status status = write_weights(out, m, &hash);
	if (status) {
		file_writer_abort(out);
		return status;
	}
	return file_writer_commit(out, 0);
}

static Status
append_tail(FileWriter *out, Link *l, const Module *m, const void *blob, int64_t blob_bytes)
{
	FormatTail tail = {.magic = FORMAT_MAGIC};
	uint64_t hash;
	void *elf;
	int64_t n;

	RETURN_IF_ERROR(file_read(l->arena, l->executable, 1ll << 32, &elf, &n));
	RETURN_IF_ERROR(file_writer_add(out, elf, n));
	RETURN_IF_ERROR(file_writer_pad(out, 4096));
	tail.offset = file_writer_offset(out);
	if (!l->options->weights_file)
		RETURN_IF_ERROR(write_weights(out, m, &hash));
	tail.bytes = file_writer_offset(out) - tail.offset;
	tail.blob_offset = file_writer_offset(out);
	tail.blob_bytes = blob_bytes;
	RETURN_IF_ERROR(file_writer_add(out, blob, blob_bytes));
	RETURN_IF_ERROR(file_writer_pad(out, 64));
	return file_writer_add(out, &tail, sizeof(tail));
}

static Status
link_in(Link *l, const Module *m, FormatWriter *w)
{
	Text source = {0};
	int64_t blob_bytes;
	FileWriter *out;

	w->weights_hash = 0;
	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->init == INIT_DATA && m->states.at[i]->data)
			w->weights_hash = hash_bytes(m->states.at[i]->data->data,
			                             (size_t)type_bytes(m->states.at[i]->type),
			                             w->weights_hash);
	void *blob = format_finish(w, &blob_bytes);
	RETURN_IF_ERROR(file_write(l->blob, blob, blob_bytes));
	c_print_table(&source, m);
	print_blob_include(&source, l->blob, blob_bytes);
	Status status = file_write(l->table, source.at, (int64_t)source.n);
	text_free(&source);
	for (int i = 0; !status && i < l->parts; i++) {
		c_print_part(&source, m, i, l->parts);
		status = file_write(l->source[i], source.at, (int64_t)source.n);
		text_free(&source);
	}
	RETURN_IF_ERROR(status);
	RETURN_IF_ERROR(compile_parts(l));
	RETURN_IF_ERROR(link_parts(l));
	if (l->options->weights_file)
		RETURN_IF_ERROR(write_weights_file(m, l->options->weights_file));
	RETURN_IF_ERROR(file_writer_open(l->options->output, &out));
	status = append_tail(out, l, m, blob, blob_bytes);
	if (status) {
		file_writer_abort(out);
		return status;
	}
	return file_writer_commit(out, 0755);
}

static void
name_files(Link *l)
{
	for (int i = 0; i < l->parts; i++) {
		l->source[i] = path_join(l->arena, l->sources,
		                         arena_printf(l->arena, "kernels%d.c", i));
		l->object[i] = path_join(l->arena, l->folder,
		                         arena_printf(l->arena, "kernels%d.o", i));
		l->log[i] = path_join(l->arena, l->folder, arena_printf(l->arena, "log%d", i));
	}
	l->table = path_join(l->arena, l->sources, "table.c");
	l->blob = path_join(l->arena, l->folder, "tables.bin");
	l->executable = path_join(l->arena, l->folder, "executable");
}

static void
remove_files(Link *l)
{
	for (int i = 0; i < l->parts; i++) {
		if (!l->options->keep_sources)
			unlink(l->source[i]);
		unlink(l->object[i]);
		unlink(l->log[i]);
	}
	if (!l->options->keep_sources)
		unlink(l->table);
	unlink(l->blob);
	unlink(l->executable);
	rmdir(l->folder);
}

/* As many compilers as cores, where there is enough for each. */
static int
count_parts(const Module *m)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int parts = m->kernels.n / 8 + 1;

	if (parts > cores)
		parts = cores < 1 ? 1 : (int)cores;
	return parts > MAX_PARTS ? MAX_PARTS : parts;
}

Status
link_executable(const Module *m, FormatWriter *w, const LinkOptions *options)
{
	Link l = {.arena = arena_new(), .options = options, .parts = count_parts(m)};
	const char *base = getenv("TMPDIR");
	char *folder = arena_printf(l.arena, "%s/gradc-XXXXXX", base && *base ? base : "/tmp");

	if (!mkdtemp(folder)) {
		Status status = status_error(EXIT_SYSTEM, "%s: %s", folder, strerror(errno));
		arena_free(l.arena);
		return status;
	}
	l.folder = folder;
	l.sources = options->keep_sources ? options->keep_sources : folder;
	name_files(&l);
	Status status = options->keep_sources ? folder_make(options->keep_sources) : NULL;
	if (!status)
		status = link_in(&l, m, w);
	remove_files(&l);
	arena_free(l.arena);
	return status;
}
