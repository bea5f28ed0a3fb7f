/* Finds, opens and calls NVRTC, NVIDIA's library that compiles CUDA C. gradc is built without
 * NVRTC and can show kernels as CUDA C without it. */
#include "codegen/cuda/nvrtc.h"
#include "base/base.h"
#include "format/bundle/bundle.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The newest generation first. Drivers from 580 on accept the PTX of version 13; version 12
 * knows sm_100 from 12.8 on. */
static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};

/* --fmad=false: NVRTC must not fuse multiplications and additions by itself. Loop IR says fma
 * where they are to be fused, so all printers give the same bits. -v: prints registers and
 * spilled bytes of each kernel to the log. 177: suppresses a warning about functions of the
 * prelude that kernels do not use. */
const char *const nvrtc_options[N_NVRTC_OPTIONS] = {"--fmad=false", "--ptxas-options=-v",
                                                    "--diag-suppress=177"};

static const LibrarySymbol symbols[] = {
#define NVRTC_SYMBOL(name, type, parameters) {"nvrtc" #name, offsetof(Nvrtc, name), false},
#include "codegen/cuda/nvrtc_symbols.def"
#undef NVRTC_SYMBOL
	{0}};

static Status
not_found(void)
{
	return status_error(
		EXIT_SYSTEM,
		"NVRTC, which compiles kernels for CUDA, is not found (%s, %s): install "
		"NVIDIA's CUDA toolkit, or `pip install nvidia-cuda-nvrtc==13.0.88` and add "
		"its folder nvidia/cu13/lib to LD_LIBRARY_PATH",
		sonames[0], sonames[1]);
}

/* Finds the version and the file. The file's size distinguishes builds of one version. */
static Status
identify(Arena *arena, Nvrtc *n)
{
	Dl_info where;
	struct stat st;
	int major, minor;

	if (n->Version(&major, &minor) != 0 || n->GetNumSupportedArchs(&n->n_architectures) != 0 ||
	    n->n_architectures < 0 || n->n_architectures > MOST_ARCHITECTURES ||
	    n->GetSupportedArchs(n->architectures) != 0)
		return status_error(EXIT_SYSTEM,
		                    "NVRTC does not report its version and architectures");
	n->version = arena_printf(arena, "%d.%d", major, minor);
	bool found = dladdr(*(void **)&n->CompileProgram, &where) && where.dli_fname;
	n->path = arena_strdup(arena, found ? where.dli_fname : "");
	if (stat(n->path, &st) != 0)
		return status_error(EXIT_SYSTEM, "NVRTC %s: %s: %s", n->version, n->path,
		                    strerror(errno));
	n->identity = arena_printf(arena, "%s %lld", n->version, (long long)st.st_size);
	return NULL;
}

Status
nvrtc_open(Arena *arena, Nvrtc *out)
{
	const char *lacks;

	*out = (Nvrtc){0};
	out->library = cuda_library_load(sonames, symbols, out, &lacks);
	if (out->library)
		return identify(arena, out);
	*out = (Nvrtc){0};
	return lacks ? status_error(EXIT_SYSTEM,
	                            "NVRTC lacks %s: a newer one is needed (pip install "
	                            "nvidia-cuda-nvrtc==13.0.88)",
	                            lacks)
	             : not_found();
}

Status
nvrtc_check_architecture(const Nvrtc *n, const char *architecture)
{
	int number = atoi(strchr(architecture, '_') + 1);
	Text known = {0};

	for (int i = 0; i < n->n_architectures; i++) {
		text_printf(&known, "%ssm_%d", i ? ", " : "", n->architectures[i]);
		if (n->architectures[i] == number) {
			text_free(&known);
			return NULL;
		}
	}
	Status status = status_error(
		EXIT_SYSTEM,
		"NVRTC %s (%s) does not know %s, only %s: install a newer one (pip install "
		"nvidia-cuda-nvrtc==13.0.88), or leave it out of --target",
		n->version, n->path, architecture, known.at ? known.at : "nothing");
	text_free(&known);
	return status;
}

typedef int (*SizeFn)(void *program, size_t *bytes);
typedef int (*GetFn)(void *program, char *to);

static int
append(void *program, SizeFn size, GetFn get, Text *out)
{
	size_t n = 0;
	int code = size(program, &n);

	if (code || n == 0)
		return code;
	char *bytes = memory_get(n);
	code = get(program, bytes);
	if (!code)
		text_add_bytes(out, bytes, n);
	memory_free(bytes);
	return code;
}

/* Returns NVRTC's error code; 0: no error. */
static int
run_program(const Nvrtc *n, void *program, const char *architecture, Text *code, Text *log)
{
	const char *options[N_NVRTC_OPTIONS + 1];
	Text gpu = {0};

	text_printf(&gpu, "--gpu-architecture=%s", architecture);
	memcpy(options, nvrtc_options, sizeof(nvrtc_options));
	options[N_NVRTC_OPTIONS] = gpu.at;
	int result = n->CompileProgram(program, COUNT(options), options);
	append(program, n->GetProgramLogSize, n->GetProgramLog, log);
	while (log->n && log->at[log->n - 1] == '\0')
		log->n--;
	text_free(&gpu);
	if (result)
		return result;
	return bundle_is_ptx(architecture) ? append(program, n->GetPTXSize, n->GetPTX, code)
	                                   : append(program, n->GetCUBINSize, n->GetCUBIN, code);
}

bool
nvrtc_compile(const Nvrtc *n, const char *source, const char *architecture, Text *code, Text *log)
{
	void *program = NULL;
	int result = n->CreateProgram(&program, source, "kernels.cu", 0, NULL, NULL);

	text_add(log, "");
	if (!result)
		result = run_program(n, program, architecture, code, log);
	if (program)
		n->DestroyProgram(&program);
	if (!result && code->n)
		return true;
	text_printf(log, "%s%s\n", log->n ? "\n" : "",
	            result ? n->GetErrorString(result) : "NVRTC gives no code");
	return false;
}
