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

typedef struct {
	Arena *arena;
	const LinkOptions *options;
	const char *folder; /* temporary */
	const char *source, *blob, *executable, *log;
} Link;

/* Runs a program with its messages in the log file; an error holds their first lines. */
static Status
run_program(Link *l, char *const *argv)
{
	posix_spawn_file_actions_t actions;
	pid_t pid;
	int code, status;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 1, l->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	posix_spawn_file_actions_adddup2(&actions, 1, 2);
	code = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (code)
		return status_error(EXIT_SYSTEM, "C compiler `%s`: %s (set CC to another, or install "
		                    "gcc)", argv[0], strerror(code));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return status_error(EXIT_SYSTEM, "%s: %s", argv[0], strerror(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return NULL;
	void *text = NULL;
	int64_t n = 0;
	status_free(file_read(l->arena, l->log, 1 << 20, &text, &n));
	return status_error(EXIT_SYSTEM, "C compiler `%s` failed: %.*s", argv[0],
	                    n > 400 ? 400 : (int)n, text ? (char *)text : "");
}

/* The tables as bytes in the object, beside the kernels. */
static void
print_blob_include(Text *out, const char *path, int64_t bytes)
{
	text_printf(out, "\n__asm__(\".section .rodata\\n.balign 64\\n.global gradc_blob\\n"
	            "gradc_blob:\\n\\t.incbin \\\"%s\\\"\\n.previous\\n\");\n"
	            "const int64_t gradc_blob_bytes = %lld;\n"
	            "extern const int gradc_abi_1;\n"
	            "const int *const gradc_abi_needed = &gradc_abi_1;\n", path, (long long)bytes);
}

static Status
compile(Link *l)
{
	const char *cc = l->options->cc ? l->options->cc : getenv("CC");
	char *argv[32];
	int n = 0;

	argv[n++] = (char *)(cc && *cc ? cc : "cc");
	argv[n++] = "-std=gnu11";
	argv[n++] = l->options->debug ? "-O1" : "-O3";
	argv[n++] = "-march=native";
	argv[n++] = "-ffp-contract=off";
	argv[n++] = "-fno-math-errno";
	argv[n++] = "-fno-trapping-math";
	argv[n++] = "-fopenmp-simd";
	argv[n++] = "-fwrapv";
	argv[n++] = "-w";
	argv[n++] = (char *)l->source;
	argv[n++] = (char *)l->options->runtime;
	argv[n++] = "-lm";
	argv[n++] = "-lpthread";
	argv[n++] = "-o";
	argv[n++] = (char *)l->executable;
	argv[n] = NULL;
	return run_program(l, argv);
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
	c_print_module(&source, m);
	print_blob_include(&source, l->blob, blob_bytes);
	Status status = file_write(l->source, source.at, (int64_t)source.n);
	text_free(&source);
	RETURN_IF_ERROR(status);
	RETURN_IF_ERROR(compile(l));
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

Status
link_executable(const Module *m, FormatWriter *w, const LinkOptions *options)
{
	Link l = {.arena = arena_new(), .options = options};
	const char *base = getenv("TMPDIR");
	char *folder = arena_printf(l.arena, "%s/gradc-XXXXXX", base && *base ? base : "/tmp");

	if (!mkdtemp(folder)) {
		Status status = status_error(EXIT_SYSTEM, "%s: %s", folder, strerror(errno));
		arena_free(l.arena);
		return status;
	}
	l.folder = folder;
	Status status = options->keep_sources ? folder_make(options->keep_sources) : NULL;
	l.source = path_join(l.arena, options->keep_sources ? options->keep_sources : folder,
	                     "kernels.c");
	l.blob = path_join(l.arena, folder, "tables.bin");
	l.executable = path_join(l.arena, folder, "executable");
	l.log = path_join(l.arena, folder, "log");
	if (!status)
		status = link_in(&l, m, w);
	if (!options->keep_sources)
		unlink(l.source);
	unlink(l.blob);
	unlink(l.executable);
	unlink(l.log);
	rmdir(folder);
	arena_free(l.arena);
	return status;
}
