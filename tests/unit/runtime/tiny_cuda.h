/* The tiny model's code for a GPU (tests/cuda/tiny.cu), compiled by NVRTC. NVRTC cannot run in one process with the
 * pretended driver; with that driver the code comes from the file $GRADC_TINY_CODE. */
#ifndef GRADC_TINY_CUDA_H
#define GRADC_TINY_CUDA_H

#include "codegen/cuda/nvrtc.h"
#include "format/bundle/bundle.h"
#include "tests/unit/runtime/runtime_tiny.h"

extern const char tiny_cu[], cuda_look_up[]; /* texts of tiny.cu and look_up.cuh */

static void
compile_tiny(Arena *arena, const char *architecture, Text *code)
{
	const char *file = getenv("GRADC_TINY_CODE");
	Text log = {0}, text = {0};
	Nvrtc n;

	if (file) {
		void *bytes;
		int64_t size;
		must(file_read(arena, file, 1 << 20, &bytes, &size));
		text_add_bytes(code, bytes, (size_t)size);
		return;
	}
	must(nvrtc_open(arena, &n));
	text_printf(&text, "enum { SCALAR_LR = %d, SCALAR_CLIP_NORM = %d };\n%s%s", SCALAR_LR,
	            SCALAR_CLIP_NORM, tiny_cu, cuda_look_up);
	if (!nvrtc_compile(&n, text.at, architecture, code, &log))
		fail_msg("%s", log.at);
	text_free(&log);
	text_free(&text);
}

/* An image with all of its kernels, and the end of the list. */
static const CodeImage *
tiny_cuda_image(Arena *arena, const char *architecture)
{
	BundleKernel *kernels = NEW_ARRAY(arena, BundleKernel, N_KERNELS);
	CodeImage *images = NEW_ARRAY(arena, CodeImage, 2);
	Text code = {0}, bundle = {0};

	compile_tiny(arena, architecture, &code);
	for (int i = 0; i < N_KERNELS; i++) {
		KernelRecord r = tiny_record(&tiny_kernels[i]);
		kernels[i] = (BundleKernel){.facts = kernel_facts(&r, tiny_kernels[i].arguments),
		                            .module = 1,
		                            .threads = LONE_THREADS,
		                            .parts = LONE_THREADS};
	}
	bundle_write(&bundle, kernels, N_KERNELS, &(FilePart){code.at, (int64_t)code.n}, 1);
	images[0] = (CodeImage){arena_strdup(arena, architecture),
	                        "",
	                        IMAGE_BYTES,
	                        arena_copy(arena, bundle.at, bundle.n),
	                        (int64_t)bundle.n,
	                        0};
	text_free(&code);
	text_free(&bundle);
	return images;
}

#endif
