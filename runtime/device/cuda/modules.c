/* Loads the compiled GPU code of an executable, a bundle of modules (format/bundle/bundle.h), and launches its kernels. */
#include "runtime/device/cuda/cuda.h"

#include "format/bundle/bundle.h"

#include <limits.h>
#include <string.h>

enum { LOG_BYTES = 4000, MOST_BLOCKS = INT_MAX };

/* Loads a module. If the module is PTX, the driver compiles it here, and the compiler's log becomes part of the fault. */
static Status
load_module(Device *d, const char *image, const void *at, void **out)
{
	char log[LOG_BYTES] = "";
	const int options[] = {CUDA_JIT_LOG, CUDA_JIT_LOG_BYTES};
	void *values[] = {log, (void *)(uintptr_t)LOG_BYTES};
	Text what = {0};

	text_printf(&what, "code for %s on %s (compute capability %d.%d, driver for CUDA %d.%d)",
	            image, d->gpu.name, d->gpu.major, d->gpu.minor, d->driver.version / 1000,
	            d->driver.version % 1000 / 10);
	Status status = cuda_check(
		d, d->driver.ModuleLoadDataEx(out, at, COUNT(options), options, values), what.at);
	text_free(&what);
	return status && log[0] ? status_output(status, log, strlen(log)) : status;
}

static Status
find_kernel(Device *d, const KernelRecord *r, const char *name, void *module, const BundleKernel *k,
            CudaKernel *out)
{
	char symbol[256];

	snprintf(symbol, sizeof(symbol), "gradc_%s", name);
	*out = (CudaKernel){.threads = k->threads,
	                    .parts = k->parts,
	                    .shared = k->parts == 1 ? (uint32_t)launch_shared_bytes(r->shared_bytes)
	                                            : 0};
	RETURN_IF_ERROR(
		cuda_check(d, d->driver.ModuleGetFunction(&out->function, module, symbol), symbol));
	if (!out->shared)
		return NULL;
	return cuda_check(d,
	                  d->driver.FuncSetAttribute(out->function, CUDA_FUNCTION_DYNAMIC_SHARED,
	                                             (int)out->shared),
	                  symbol);
}

/* The compiler puts the module with the look-up's kernel last. Not an error if the module lacks it: then the host converts
 * inputs. */
static void
find_look_up(Code *out)
{
	void *last = out->n_modules > 0 ? out->modules[out->n_modules - 1] : NULL;

	if (!last || out->device->driver.ModuleGetFunction(&out->look_up, last,
	                                                   "gradc_look_up_4") != CUDA_OK)
		out->look_up = NULL;
}

Status
cuda_modules_load(Device *d, const CodeImage *image, const Format *f, Code *out)
{
	uint32_t most = 0;
	Bundle b;

	RETURN_IF_ERROR(bundle_read(image, f, &b));
	out->n_kernels = f->n[SECTION_KERNELS];
	out->kernels = memory_zeroed((size_t)out->n_kernels + 1, sizeof(*out->kernels));
	out->modules = memory_zeroed(b.header->n_modules + 1, sizeof(*out->modules));
	for (uint32_t i = 0; i < b.header->n_modules; i++, out->n_modules++)
		RETURN_IF_ERROR(load_module(d, image->name,
		                            (const char *)b.header + b.modules[i].offset,
		                            &out->modules[i]));
	for (int i = 0; i < out->n_kernels; i++) {
		const KernelRecord *r = &f->kernels[i];
		const BundleKernel *k = &b.kernels[i];

		if (!(r->targets >> image->target & 1))
			continue;
		most = r->n_arguments > most ? r->n_arguments : most;
		RETURN_IF_ERROR(find_kernel(d, r, format_text(f, r->name),
		                            out->modules[k->module - 1], k, &out->kernels[i]));
	}
	out->parameters = memory_zeroed(most + 3, sizeof(*out->parameters));
	find_look_up(out);
	return NULL;
}

void
cuda_modules_unload(Code *code)
{
	for (int i = 0; i < code->n_modules && !atomic_load(&code->device->stuck); i++)
		code->device->driver.ModuleUnload(code->modules[i]);
	memory_free(code->modules);
	memory_free(code->kernels);
	memory_free(code->parameters);
}

/* An int limits the number of blocks in a grid, so long launches are split. */
Status
cuda_launch(Device *d, void *stream, const Code *code, const Launch *l)
{
	const CudaKernel *k = &code->kernels[l->kernel];
	const Scalar *scalars = l->scalars;
	int64_t begin = l->begin, end = l->end, most = (int64_t)MOST_BLOCKS * k->parts;
	uint32_t n = l->n_buffers;

	for (uint32_t i = 0; i < n; i++)
		code->parameters[i] = (void *)&l->buffers[i];
	code->parameters[n] = (void *)&scalars;
	code->parameters[n + 1] = &begin;
	code->parameters[n + 2] = &end;
	for (; begin < l->end; begin = end) {
		end = l->end - begin > most ? begin + most : l->end;
		int64_t blocks = (end - begin + k->parts - 1) / k->parts;
		RETURN_IF_ERROR(cuda_check(d,
		                           d->driver.LaunchKernel(k->function, (unsigned)blocks, 1,
		                                                  1, k->threads, 1, 1, k->shared,
		                                                  stream, code->parameters, NULL),
		                           "launch of a kernel"));
	}
	return NULL;
}

/* ---- look-ups */
/* The kernel moves 4 bytes a number, and counts in 32 bits. */
bool
cuda_has_look_up(const Code *code, const LookUp *l)
{
	return code->look_up && l->bytes == 4 && l->n <= INT32_MAX;
}

/* The kernel reads `from` across the bus, 16 bytes for each thread at a time. The threads of 64 blocks have 256 KiB under way,
 * more than the bus needs to be busy. More blocks would only take multiprocessors from kernels on other streams. */
enum { LOOK_UP_THREADS = 256, LOOK_UP_BLOCKS = 64, LOOK_UP_GROUP = 16 };

Status
cuda_launch_look_up(Device *d, void *stream, const Code *code, const LookUp *l)
{
	LookUp own = *l;
	unsigned n = (unsigned)l->n, channels = (unsigned)l->channels, stride = (unsigned)l->stride;
	void *parameters[] = {&own.to, &own.from, &own.tables, &n, &channels, &stride};
	int64_t groups = (l->n + LOOK_UP_GROUP - 1) / LOOK_UP_GROUP;
	int64_t blocks = (groups + LOOK_UP_THREADS - 1) / LOOK_UP_THREADS;

	blocks = blocks < LOOK_UP_BLOCKS ? blocks : LOOK_UP_BLOCKS;
	if (blocks == 0)
		return NULL;
	return cuda_check(d,
	                  d->driver.LaunchKernel(code->look_up, (unsigned)blocks, 1, 1,
	                                         LOOK_UP_THREADS, 1, 1, 0, stream, parameters,
	                                         NULL),
	                  "launch of a look-up");
}
