/* Runs nvdisasm, which prints the instructions of a cubin (compiled GPU code). nvdisasm is a
 * program of the CUDA toolkit and of a Python package. */
#include "base/base.h"
#include "codegen/cuda/nvrtc.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *
in_folder(Arena *arena, const char *folder)
{
	const char *path = path_join(arena, folder, "nvdisasm");

	return access(path, X_OK) == 0 ? path : NULL;
}

static const char *
in_search_path(Arena *arena)
{
	const char *all = getenv("PATH"), *found = NULL;
	char *copy = arena_strdup(arena, all ? all : ""), *save = NULL;

	for (char *folder = strtok_r(copy, ":", &save); folder && !found;
	     folder = strtok_r(NULL, ":", &save))
		found = in_folder(arena, folder);
	return found;
}

/* The path of nvdisasm if it lies in the folder bin next to the folder lib of NVRTC, as in a
 * CUDA toolkit, or in a Python environment with both packages. */
static const char *
beside_nvrtc(Arena *arena)
{
	Nvrtc nvrtc;
	Status status = nvrtc_open(arena, &nvrtc);

	if (status) {
		status_free(status);
		return NULL;
	}
	char *folder = arena_strdup(arena, nvrtc.path), *slash = strrchr(folder, '/');
	if (!slash)
		return NULL;
	*slash = '\0';
	return in_folder(arena, arena_printf(arena, "%s/../bin", folder));
}

static const char *
find_program(Arena *arena)
{
	const char *found = in_search_path(arena);

	if (!found)
		found = in_folder(arena, path_join(arena, cuda_home(), "bin"));
	return found ? found : beside_nvrtc(arena);
}

/* Starts a program whose output goes to the file `to`. Returns an error number; 0: no error. */
static int
start_program(char *const *argv, const char *to, const char *log, pid_t *pid, CleanupSlot *cleanup)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int code = ECANCELED;
	sigset_t none;

	sigemptyset(&none);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 1, to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &none);
	if (cleanup_begin_making()) {
		code = posix_spawn(pid, argv[0], &actions, &attributes, argv, environ);
		if (code == 0)
			*cleanup = cleanup_add_child(*pid);
		cleanup_end_making();
	}
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return code;
}

static Status
run_program(Arena *arena, char *const *argv, const char *to, const char *log)
{
	CleanupSlot cleanup;
	pid_t pid, ended;
	int status, code = start_program(argv, to, log, &pid, &cleanup);
	void *text = NULL;
	int64_t n = 0;

	if (code)
		return status_error(EXIT_SYSTEM, "%s: %s", argv[0], strerror(code));
	while ((ended = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
		;
	cleanup_forget(cleanup);
	if (ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return NULL;
	status_free(file_read(arena, log, 1 << 20, &text, &n));
	return status_output(status_error(EXIT_SYSTEM, "`%s` failed", argv[0]), text, (size_t)n);
}

Status
cuda_disassemble(Arena *arena, const CudaCode *cubin, const char *folder, Text *out)
{
	const char *program = find_program(arena), *code = path_join(arena, folder, "code.cubin");
	const char *to = path_join(arena, folder, "code.sass");
	const char *log = path_join(arena, folder, "nvdisasm.log");
	char *const argv[] = {(char *)program, "-c", (char *)code, NULL};
	int64_t n;
	void *text;

	if (!program)
		return status_error(
			EXIT_SYSTEM,
			"nvdisasm, which shows the instructions of a GPU, is not found: install NVIDIA's "
			"CUDA toolkit, or `pip install nvidia-cuda-nvdisasm`, and add the folder of "
			"nvdisasm to PATH");
	RETURN_IF_ERROR(file_write(code, cubin->at, cubin->n));
	RETURN_IF_ERROR(run_program(arena, argv, to, log));
	RETURN_IF_ERROR(file_read(arena, to, 1ll << 32, &text, &n));
	text_add_bytes(out, text, (size_t)n);
	return NULL;
}
