/* How fast the device can be, and how long a step should take. */
#include "runtime/train/steps.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The product or convolution of this target with the most FLOPs: its types decide which peak counts. NULL without products. */
static const LibraryCall *
largest_product(const Format *f, int target)
{
	const LibraryCall *largest = NULL;

	for (int i = 0; i < f->n[SECTION_KERNELS]; i++) {
		const KernelRecord *k = &f->kernels[i];
		if (!k->library || !(k->targets >> target & 1))
			continue;
		const LibraryCall *c = &f->library[k->library - 1].call;
		if (!largest || library_flops(c) > library_flops(largest))
			largest = c;
	}
	return largest;
}

/* The name of a peak in the row of a GPU: the driver writes these names. */
static const char *
peak_name(const Format *f, const LibraryCall *c)
{
	DType d = (DType)c->operands[LIBRARY_FIRST].dtype;

	if (d == F32 && format_info_is(f, "allow_tf32", "1"))
		return "tf32";
	return d == F64 ? "f64" : dtype_info[d].bits == 16 ? "16" : d == F32 ? "f32" : "8";
}

/* The number behind `name=` in a row such as "f32=6.69e13 16=9.894e14"; 0 if the row lacks it. */
static double
number_of(const char *row, const char *name)
{
	size_t n = strlen(name);

	for (const char *at = row; *at; at += strcspn(at, " "), at += *at == ' ')
		if (strncmp(at, name, n) == 0 && at[n] == '=')
			return strtod(at + n + 1, NULL);
	return 0;
}

/* The row of this GPU in the executable's tables; NULL if the GPU is not among the machines that gradc knows. */
static const char *
gpu_row(const Format *f, const char *gpu)
{
	static const char prefix[] = "machine.";

	for (int i = 0; gpu && i < f->n[SECTION_INFO]; i++) {
		const char *key = format_text(f, f->info[i].key);
		size_t n = sizeof(prefix) - 1;
		size_t length = strlen(key);
		if (strncmp(key, prefix, n) == 0 && strncmp(gpu, key + n, length - n) == 0 &&
		    !isalnum((unsigned char)gpu[length - n])) /* an L40 is no L4 */
			return format_text(f, f->info[i].value);
	}
	return NULL;
}

static const char *
gpu_name(const DeviceOps *ops, const Device *device)
{
	return ops->facts ? ops->facts(device).gpu : NULL;
}

GradcPeak
speed_peak(const Format *f, const DeviceOps *ops, Device *device, int target, bool measures)
{
	const LibraryCall *c = largest_product(f, target);
	const char *gpu = gpu_name(ops, device);
	double flops = 0;

	if (!c)
		return (GradcPeak){0, "the model has no product that a library may compute"};
	if (gpu) {
		const char *row = gpu_row(f, gpu);
		flops = row ? number_of(row, peak_name(f, c)) : 0;
		return (GradcPeak){flops, flops > 0 ? "the vendor's datasheet"
		                                    : "gradc has no datasheet of this GPU"};
	}
	if (!measures)
		return (GradcPeak){0, "a training of less than 1e12 FLOPs does not measure it"};
	flops = ops->peak ? ops->peak(device, c) : 0;
	return (GradcPeak){flops, flops > 0 ? "measured with a product of 1024"
	                                    : "no library computes products of this type"};
}

/* ---- the time of a step */
/* Rates in operations and bytes a nanosecond. */
typedef struct {
	double products, loops, bytes, launch;
} Rates;

/* Of a core with AVX-512, on the models of bench/: operations of products and of loops, bytes from memory and from caches. */
enum { PRODUCT_RATE = 128, LOOP_RATE = 16, MEMORY_RATE = 10, CACHED_RATE = 40 };
enum { CACHED_BYTES = 8 << 20 };

static Rates
rates_of(const Gradc *run)
{
	const Executor *x = &run->executor;
	const char *row = gpu_row(&run->format, gpu_name(x->ops, x->device));
	int threads = x->ops->facts ? x->ops->facts(x->device).threads : 1;
	double n = threads > 0 ? threads : 1;

	const LibraryCall *c = row ? largest_product(&run->format, gradc_target(run)) : NULL;
	if (c && run->peak.flops > 0)
		return (Rates){1e-9 * run->peak.flops *
		                       number_of(row, arena_printf(run->arena, "%s.reached",
		                                                   peak_name(&run->format, c))),
		               1e-9 * number_of(row, "loops"), 1e-9 * number_of(row, "memory"),
		               1e9 * number_of(row, "launch")};
	double bytes = gradc_peak_bytes(run) < CACHED_BYTES ? CACHED_RATE : MEMORY_RATE;
	return (Rates){run->peak.flops > 0 ? 0.8e-9 * run->peak.flops : PRODUCT_RATE * n,
	               LOOP_RATE * n, bytes * n, 0};
}

static double
kernel_nanoseconds(const KernelRecord *k, const void *context)
{
	const Rates *r = context;
	double rate = k->library ? r->products : r->loops;

	if (k->serves) /* skipped: a library runs its reader */
		return 0;
	return fmax((double)k->flops / rate, (double)k->bytes / r->bytes) + r->launch;
}

static double
kernel_bytes(const KernelRecord *k, const void *context)
{
	(void)context;
	return (double)k->bytes;
}

/* The sum over a step: its micro-batches and the update. */
static double
step_sum(const Gradc *run, double (*of)(const KernelRecord *k, const void *context),
         const void *context)
{
	const Format *f = &run->format;
	const ProgramRecord *micro = program_find(run, ROLE_ACCUMULATE, gradc_binding(run));
	const ProgramRecord *update = program_any(run, ROLE_UPDATE, gradc_binding(run));
	double n = (double)gradc_accumulation(run);

	return (micro ? n * program_sum(f, micro, of, context) : 0) +
	       (update ? program_sum(f, update, of, context) : 0);
}

double
gradc_predict_step(const Gradc *run)
{
	const Rates r = rates_of(run);

	return 1e-9 * step_sum(run, kernel_nanoseconds, &r);
}

double
gradc_step_bytes(const Gradc *run)
{
	return step_sum(run, kernel_bytes, NULL);
}

double
gradc_mfu(const Gradc *run, double seconds)
{
	double peak = run->peak.flops;

	return peak > 0 && seconds > 0 ? (double)gradc_step_flops(run) / (seconds * peak) : NAN;
}
