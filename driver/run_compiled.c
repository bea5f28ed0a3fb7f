/* For `gradc run` and `gradc grad`: builds a temporary executable and runs it once. The executable
 * itself reads the inputs and writes the results. */
#include "driver/driver.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int64_t
n_elements(int rank, const int64_t *dims)
{
	int64_t n = 1;

	for (int i = 0; i < rank; i++)
		n *= dims[i];
	return n;
}

/* Starts the program; returns an error number, or 0. */
static int
start_program(char *const *argv, pid_t *pid, CleanupSlot *cleanup)
{
	posix_spawnattr_t attributes;
	sigset_t none;
	int code = ECANCELED;

	sigemptyset(&none);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &none);
	if (cleanup_begin_making()) {
		code = posix_spawn(pid, argv[0], NULL, &attributes, argv, environ);
		if (code == 0)
			*cleanup = cleanup_add_child(*pid);
		cleanup_end_making();
	}
	posix_spawnattr_destroy(&attributes);
	return code;
}

static int
run_program(Session *s, char *const *argv)
{
	CleanupSlot cleanup = -1;
	pid_t pid, ended;
	int status, code = start_program(argv, &pid, &cleanup);

	if (code) {
		diag_error(s->diag, EXIT_SYSTEM, "%s: %s", argv[0], strerror(code));
		return EXIT_SYSTEM;
	}
	while ((ended = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
		;
	cleanup_forget(cleanup);
	if (ended < 0)
		diag_error(s->diag, EXIT_SYSTEM, "%s: %s", argv[0], strerror(errno));
	else if (WIFEXITED(status))
		return WEXITSTATUS(status);
	else
		diag_error(s->diag, EXIT_SYSTEM, "the compiled program ended with signal %d",
		           WTERMSIG(status));
	return EXIT_SYSTEM;
}

/* ---- .pb files, converted to and from the .npy files of the executable */
static bool
has_suffix(const char *text, const char *suffix)
{
	size_t n = strlen(text), k = strlen(suffix);

	return n >= k && strcmp(text + n - k, suffix) == 0;
}

/* NumPy's type that holds every value of d. */
static DType
npy_dtype(DType d)
{
	const DTypeInfo *t = &dtype_info[d];

	if (t->npy)
		return d;
	return dtype_is_float(d) ? F32 : t->class == CLASS_SIGNED ? S8 : U8;
}

/* Writes a tensor as NAME=FOLDER/inputI.npy; NULL after reporting. */
static const char *
as_npy(Session *s, const NamedTensor *t, const char *folder, int i)
{
	char *path = path_join(s->arena, folder, arena_printf(s->arena, "input%d.npy", i));
	DType as = npy_dtype(t->dtype);
	int64_t n = n_elements(t->rank, t->dims);
	void *data = arena_alloc(s->arena, (size_t)dtype_bytes(as, n) + 1);

	dtype_convert(as, data, t->dtype, t->data, n);
	if (diag_status(s->diag, npy_write(path, as, t->rank, t->dims, data)))
		return NULL;
	return arena_printf(s->arena, "%s=%s", t->name, path);
}

/* Converts NAME=FILE.pb to a .npy file; other texts stay unchanged. NULL after reporting. */
static const char *
npy_input(Session *s, const char *text, const char *folder, int i)
{
	NamedTensor t;

	if (!has_suffix(text, ".pb"))
		return text;
	return input_read(s, text, &t) ? as_npy(s, &t, folder, i) : NULL;
}

/* Adds "--input" and its text for each input; false after reporting. */
static bool
add_inputs(Session *s, const char *folder, char **argv, int *n)
{
	const StringList *list = &s->o->inputs;
	NamedTensor *elements;
	int n_list = list_elements(s, &elements);

	for (int i = 0; i < list->n + n_list; i++) {
		if (i < list->n && is_list_input(s, list->at[i]))
			continue;
		const char *text = i < list->n ? npy_input(s, list->at[i], folder, i)
		                               : as_npy(s, &elements[i - list->n], folder, i);
		if (!text)
			return false;
		argv[(*n)++] = "--input";
		argv[(*n)++] = (char *)text;
	}
	return true;
}

/* Packs elements smaller than a byte, which a .npy file stores one per byte. */
static void *
pack_elements(Arena *arena, DType dtype, int64_t n, void *data)
{
	int bits = dtype_info[dtype].bits;
	const uint8_t *codes = data;

	if (bits >= 8)
		return data;
	void *packed = arena_alloc(arena, (size_t)dtype_bytes(dtype, n) + 1);
	for (int64_t i = 0; i < n; i++)
		dtype_store_int(bits == 4 ? U4 : U2, packed, i, codes[i]);
	return packed;
}

/* Converts the results of a folder with names.json to .pb files in another folder. */
static bool
convert_results(Session *s, const char *from, const char *to)
{
	json_t *names = json_load_file(path_join(s->arena, from, "names.json"), 0, NULL), *entry;
	int n = 0, count = (int)json_object_size(names);
	NamedTensor *list = NEW_ARRAY(s->arena, NamedTensor, count);
	const char *name;
	bool ok = true;

	json_object_foreach(names, name, entry) {
		const char *file = json_string_value(json_object_get(entry, "file"));
		const char *dtype = json_string_value(json_object_get(entry, "dtype"));
		NpyInfo info;
		void *data;
		char *path = path_join(s->arena, from, file);
		ok = ok && !diag_status(s->diag, npy_read(s->arena, path, &info, &data));
		if (!ok)
			break;
		list[n] = (NamedTensor){.name = arena_strdup(s->arena, name),
		                        .dtype = info.dtype,
		                        .rank = info.rank,
		                        .data = data};
		dtype_parse(dtype, &list[n].dtype); /* the file stores bf16 as its bits */
		list[n].data = pack_elements(s->arena, list[n].dtype, info.n_elements, data);
		memcpy(list[n++].dims, info.dims, sizeof(info.dims));
		unlink(path);
	}
	ok = ok && !diag_status(s->diag, tensors_write(s->arena, to, "", list, n, true));
	json_decref(names);
	return ok;
}

enum { OUTPUT_DIR = 3 }; /* index in the program's arguments */

/* Runs the program again on the same inputs, to compare its gradients with finite differences of
 * the loss. */
static int
run_check(Session *s, char **argv, int n, const char *folder)
{
	argv[OUTPUT_DIR] = (char *)folder;
	argv[n++] = "--check-gradients";
	argv[n++] = arena_printf(s->arena, "%lld", (long long)s->o->check_gradients);
	argv[n] = NULL;
	int code = run_program(s, argv);
	if (code == EXIT_OK)
		s->gradients = json_load_file(path_join(s->arena, folder, "gradients.json"), 0,
		                              NULL);
	return code;
}

int
run_executable(Session *s, const char *exe, const char *output_dir)
{
	Arena *arena = arena_new();
	const struct {
		char *option;
		const StringList *values;
	} lists[] = {{"--input", &s->o->inputs},
	             {"--scale", &s->o->scales},
	             {"--mean-std", &s->o->mean_stds}};
	int n = 0, most = 8;

	for (int k = 0; k < COUNT(lists); k++)
		most += 2 * lists[k].values->n;
	char **argv = NEW_ARRAY(arena, char *, most);

	argv[n++] = (char *)exe;
	argv[n++] = "--once";
	argv[n++] = "--output-dir";
	argv[n++] = (char *)output_dir;
	argv[n++] = "--parent";
	argv[n++] = arena_printf(arena, "%ld", (long)getpid());
	for (int k = 0; k < COUNT(lists); k++)
		for (int i = 0; i < lists[k].values->n; i++) {
			argv[n++] = lists[k].option;
			argv[n++] = (char *)lists[k].values->at[i];
		}
	int code = run_program(s, argv);
	if (code && !diag_exit_code(s->diag))
		diag_error(s->diag, code, "the compiled model ended with exit code %d", code);
	arena_free(arena);
	return code;
}

int
run_compiled(Session *s, bool backward)
{
	const Options *o = s->o;
	TemporaryFolder temporary;
	NamedTensor *elements;
	int n_inputs = o->inputs.n + list_elements(s, &elements);
	char **argv = NEW_ARRAY(s->arena, char *, 2 * n_inputs + 20);
	bool as_pb = o->output_format && strcmp(o->output_format, "pb") == 0;
	int n = 0, code = EXIT_USAGE;

	if (diag_status(s->diag, temporary_folder_open(s->arena, &temporary)))
		return EXIT_SYSTEM;
	const char *folder = temporary.path;
	char *exe = path_join(s->arena, folder, "once");
	argv[n++] = exe;
	argv[n++] = "--once";
	argv[n++] = "--output-dir";
	argv[n++] = as_pb || !o->output_dir ? (char *)folder : (char *)o->output_dir;
	argv[n++] = "--parent";
	argv[n++] = arena_printf(s->arena, "%ld", (long)getpid());
	if (backward)
		argv[n++] = "--backward";
	if (o->quiet)
		argv[n++] = "--quiet";
	bool ok = add_inputs(s, folder, argv, &n);
	if (ok)
		code = session_link(s, exe, false) ? EXIT_OK : EXIT_USAGE;
	if (ok && code == EXIT_OK && o->output_dir)
		code = run_program(s, argv);
	if (ok && code == EXIT_OK && o->check_gradients)
		code = run_check(s, argv, n, folder);
	if (ok && code == EXIT_OK && as_pb)
		ok = convert_results(s, folder, o->output_dir);
	if (ok && code == EXIT_OK && o->output_dir)
		results_finish(s, o->output_dir, as_pb);
	temporary_folder_close(&temporary);
	return diag_exit_code(s->diag) ? diag_exit_code(s->diag) : code;
}
