/* Runs a module's kernels on a real GPU, through the runtime's own device. */
#ifndef GRADC_TESTS_CUDA_GPU_H
#define GRADC_TESTS_CUDA_GPU_H

#include "codegen/cuda/nvrtc.h"
#include "format/bundle/bundle.h"
#include "runtime/device/device.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
	Device *device;
	Code *code;
	Span scalars;
	const Module *module;
	bool faulty; /* true: a fault was reported */
} GpuKernels;

static inline bool
gpu_failed(GpuKernels *g, Status status)
{
	if (!status)
		return false;
	fprintf(stderr, "gpu: %s\n%s", status->message, status->output ? status->output : "");
	status_free(status);
	return g->faulty = true;
}

/* Tables with the records of all kernels, as far as a device reads them. */
static inline Format
gpu_tables(Arena *arena, const Module *m)
{
	KernelRecord *records = NEW_ARRAY(arena, KernelRecord, m->kernels.n + 1);
	TargetRecord *target = NEW_ARRAY(arena, TargetRecord, 1);
	VEC(KernelArgument) arguments = {0};
	Text names = {0};

	text_add_bytes(&names, "", 1);
	for (int i = 0; i < m->kernels.n; i++) {
		const Kernel *k = m->kernels.at[i];
		KernelArgument own[256];
		KernelRecord *r = &records[i];
		kernel_record(k, r, own);
		r->targets = 1;
		r->first_argument = (uint32_t)arguments.n;
		r->name = (StrRef)names.n;
		text_add_bytes(&names, k->name, strlen(k->name) + 1);
		for (uint32_t a = 0; a < r->n_arguments; a++)
			vec_push(arena, &arguments, own[a]);
	}
	Format f = {.kernels = records,
	            .kernel_arguments = arguments.at,
	            .targets = target,
	            .strings = arena_copy(arena, names.at, names.n)};
	f.n[SECTION_KERNELS] = m->kernels.n;
	f.n[SECTION_TARGETS] = 1;
	text_free(&names);
	return f;
}

static inline bool
gpu_compile(Arena *arena, const Module *m, const char *architecture, Text *code)
{
	KernelPart all = build_list(arena, m, NULL);
	Text text = {0}, log = {0};
	Nvrtc n;

	cuda_print_part(&text, target_find("cuda-sm_90"), &all);
	Status status = nvrtc_open(arena, &n);
	bool ok = !status && nvrtc_compile(&n, text.at, architecture, code, &log);
	if (!ok)
		fprintf(stderr, "%s\n", status ? status->message : log.at);
	status_free(status);
	text_free(&text);
	text_free(&log);
	return ok;
}

static inline CodeImage
gpu_image(Arena *arena, const Module *m, const char *architecture, const Text *code)
{
	BundleKernel *kernels = NEW_ARRAY(arena, BundleKernel, m->kernels.n + 1);
	Text bundle = {0};

	for (int i = 0; i < m->kernels.n; i++) {
		const Kernel *k = m->kernels.at[i];
		kernels[i] = (BundleKernel){.facts = kernel_code_facts(arena, k),
		                            .module = 1,
		                            .threads = (uint32_t)cuda_threads(k),
		                            .parts = k->n_team ? 1 : (uint32_t)cuda_threads(k)};
	}
	bundle_write(&bundle, kernels, m->kernels.n, &(FilePart){code->at, (int64_t)code->n}, 1);
	CodeImage image = {architecture,      "",
	                   IMAGE_BYTES,       arena_copy(arena, bundle.at, bundle.n),
	                   (int64_t)bundle.n, 0};
	text_free(&bundle);
	return image;
}

/* false after reporting a fault. */
static inline bool
gpu_open(Arena *arena, const Module *m, const char *architecture, GpuKernels *out)
{
	Format *tables = NEW_ARRAY(arena, Format, 1);
	CodeImage *image = NEW_ARRAY(arena, CodeImage, 1);
	const DeviceOps *ops = &device_cuda;
	Text code = {0};

	*out = (GpuKernels){.module = m};
	*tables = gpu_tables(arena, m);
	if (!gpu_compile(arena, m, architecture, &code))
		return false;
	*image = gpu_image(arena, m, architecture, &code);
	text_free(&code);
	CodeSource source = {image, 1, tables, 0};
	return !gpu_failed(out, ops->open(&(DeviceOptions){.no_libraries = true}, &out->device)) &&
	       !gpu_failed(out, ops->load(out->device, &source, &out->code)) &&
	       !gpu_failed(out,
	                   ops->alloc(out->device, MEMORY_DEVICE, SCALARS_BYTES, &out->scalars));
}

static inline bool
gpu_copy(GpuKernels *g, Span to, const void *from)
{
	return !gpu_failed(g, device_cuda.copy(g->device, 0, to, from));
}

/* Like a KernelFn: copies the buffers to the GPU, runs the kernel, copies the buffers back. */
static inline void
gpu_run(GpuKernels *g, int index, void **buffers, const Scalar *scalars, int64_t begin, int64_t end)
{
	const Kernel *k = g->module->kernels.at[index];
	int n = k->n_inputs + k->n_outputs;
	Span spans[256];
	void *at[256];

	gpu_copy(g, g->scalars, scalars);
	for (int i = 0; i < n && !g->faulty; i++) {
		int64_t bytes = type_bytes(k->buffers.at[i].type);
		if (gpu_failed(g, device_cuda.alloc(g->device, MEMORY_DEVICE, bytes, &spans[i])))
			return;
		at[i] = spans[i].at;
		gpu_copy(g, spans[i], buffers[i]);
	}
	Launch l = {.kernel = (uint32_t)index,
	            .n_buffers = (uint32_t)n,
	            .buffers = at,
	            .scalars = (const Scalar *)(const void *)g->scalars.at,
	            .begin = begin,
	            .end = end};
	if (!g->faulty)
		gpu_failed(g, device_cuda.run(g->device, 0, g->code, &l));
	for (int i = k->n_inputs; i < n && !g->faulty; i++)
		gpu_copy(g, (Span){buffers[i], spans[i].bytes}, spans[i].at);
	gpu_failed(g, device_cuda.sync(g->device));
	for (int i = 0; i < n && !g->faulty; i++)
		device_cuda.free(g->device, MEMORY_DEVICE, spans[i]);
}

#endif
