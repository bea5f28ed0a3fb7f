/* Prints kernels for GPUs for people to read (gradc dump): as CUDA C, which needs no NVRTC, as
 * PTX, or as machine instructions. images.c compiles the kernels of an executable. */
#include "codegen/cuda/nvrtc.h"
#include "format/bundle/bundle.h"

#include <string.h>

/* The PTX architecture for an architecture: "compute_90a" for "sm_90a". */
static const char *
ptx_architecture(Arena *arena, const char *architecture)
{
	return arena_printf(arena, "compute%s", strchr(architecture, '_'));
}

static Status
show_code(Text *out, Arena *arena, const CudaSources *sources, bool sass)
{
	TemporaryFolder folder;
	int n_compiled;

	RETURN_IF_ERROR(temporary_folder_open(arena, &folder));
	Status status = cuda_compile(arena, sources, folder.path, NULL, &n_compiled);
	for (int i = 0; i < sources->n && !status; i++) {
		const CudaCode *code = &sources->at[i].code;
		if (sass)
			status = cuda_disassemble(arena, code, folder.path, out);
		else
			text_add_bytes(out, code->at, strnlen(code->at, (size_t)code->n));
	}
	temporary_folder_close(&folder);
	return status;
}

static Status
show(Text *out, Arena *arena, const Module *m, const CpuTarget *gpu, const char *language)
{
	bool sass = strcmp(language, "sass") == 0;
	CudaSources sources = {0};

	if (strcmp(language, "cuda") == 0)
		return cuda_print_all(out, arena, m, gpu->target);
	if (sass && bundle_is_ptx(gpu->cpu))
		return status_error(EXIT_USAGE,
		                    "--stage=sass: %s is PTX, which a driver compiles: name a "
		                    "GPU, as --target=cuda:sm_90a",
		                    gpu->cpu);
	RETURN_IF_ERROR(cuda_print_sources(arena, m, gpu->target,
	                                   sass ? gpu->cpu : ptx_architecture(arena, gpu->cpu),
	                                   &sources));
	return show_code(out, arena, &sources, sass);
}

static Status
cuda_print(Text *out, const Module *m, const CpuTarget *gpu, const char *language)
{
	Arena *arena = arena_new();
	Status status = show(out, arena, m, gpu, language);

	arena_free(arena);
	return status;
}

static const char *const languages[] = {"cuda", "ptx", "sass", NULL};
const KernelPrinter printer_cuda = {.name = "cuda", .languages = languages, .print = cuda_print};
