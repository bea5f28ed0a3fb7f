/* Makes the images (compiled GPU code) of an executable, one for each GPU architecture that was
 * asked for. An image is a list of cubins (machine code) or of PTX (NVIDIA's portable assembly). */
#include "codegen/cuda/nvrtc.h"
#include "format/bundle/bundle.h"

/* The sources of one architecture: n sources from `first` on. */
typedef struct {
	const CudaArchitecture *architecture;
	int first, n;
} ImageSources;

/* Parts (iterations of the parallel loops) that a block of threads runs: one for a kernel with a
 * team, otherwise one for each thread. */
static int
block_parts(const Kernel *k)
{
	return k->n_team ? 1 : cuda_threads(k);
}

static void
add_image(Build *b, const Module *m, const CudaSources *sources, const ImageSources *of)
{
	BundleKernel *kernels = NEW_ARRAY(b->arena, BundleKernel, m->kernels.n);
	FilePart *modules = NEW_ARRAY(b->arena, FilePart, of->n);
	ByteImage image = {.name = of->architecture->name,
	                   .target = build_target(b->arena, m, of->architecture->target)};

	for (int i = 0; i < of->n; i++) {
		const CudaSource *s = &sources->at[of->first + i];
		modules[i] = (FilePart){s->code.at, s->code.n};
		for (int k = 0; k < s->kernels.n; k++) {
			const Kernel *kernel = s->kernels.at[k];
			kernels[kernel->id] = (BundleKernel){
				.facts = kernel_code_facts(b->arena, kernel),
				.module = (uint32_t)i + 1,
				.threads = (uint32_t)cuda_threads(kernel),
				.parts = (uint32_t)block_parts(kernel)};
		}
	}
	bundle_write(&image.bytes, kernels, m->kernels.n, modules, of->n);
	vec_push(b->arena, &b->images, image);
}

extern const char cuda_look_up[]; /* look_up.cuh */

/* The look-up's kernels are the last source of an image: equal in all models, so mostly in the cache. */
static void
add_look_up(Arena *arena, const CudaArchitecture *a, CudaSources *out)
{
	vec_push(arena, out,
	         ((CudaSource){.text = cuda_look_up,
	                       .architecture = a->name,
	                       .name = arena_printf(arena, "look_up_%s", a->name)}));
}

Status
cuda_build_images(Build *b, const Module *m)
{
	const LinkOptions *o = b->options;
	ImageSources *of = NEW_ARRAY(b->arena, ImageSources, o->n_gpus);
	CudaSources sources = {0};
	int n_compiled = 0;

	if (o->n_gpus == 0)
		return NULL;
	for (int i = 0; i < o->n_gpus; i++) {
		const CudaArchitecture *a = o->gpus[i];
		of[i] = (ImageSources){.architecture = a, .first = sources.n};
		RETURN_IF_ERROR(cuda_print_sources(b->arena, m, a->target, a->name, &sources));
		add_look_up(b->arena, a, &sources);
		of[i].n = sources.n - of[i].first;
	}
	RETURN_IF_ERROR(
		cuda_compile(b->arena, &sources, b->folder.path, o->keep_sources, &n_compiled));
	for (int i = 0; i < o->n_gpus; i++)
		add_image(b, m, &sources, &of[i]);
	if (o->gpu_report)
		*o->gpu_report = (GpuReport){.n_sources = sources.n, .n_compiled = n_compiled};
	return NULL;
}
