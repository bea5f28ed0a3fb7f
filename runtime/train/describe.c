/* Describes the device for people: what computes the model, and why. */
#include "runtime/train/steps.h"

#include <string.h>

void
gradc_describe_device(const Gradc *run, Text *out)
{
	const Executor *x = &run->executor;

	if (x->ops->describe)
		x->ops->describe(x->device, out);
	else
		text_add(out, x->ops->name);
}

const char *
gradc_why_device(const Gradc *run)
{
	if (run->options.device)
		return "--device";
	if (run->device.why_not_gpu)
		return run->device.why_not_gpu->message;
	if (run->device.ops->image_kind == IMAGE_BYTES)
		return "a GPU runs the compiled code";
	return run->options.target ? "--target" : "the executable has no code for GPUs";
}

/* Is the kernel a product or convolution of this run's target, with operands of at most `bits` bits? */
static bool
is_product(const Gradc *run, const KernelRecord *k, int bits)
{
	const Format *f = &run->format;

	if (!k->library || !(k->targets >> gradc_target(run) & 1))
		return false;
	DType d = (DType)f->library[k->library - 1].call.operands[LIBRARY_FIRST].dtype;
	return dtype_info[d].bits <= bits;
}

static int
count_products(const Gradc *run, int bits, int *by_loops)
{
	const Executor *x = &run->executor;
	const Format *f = &run->format;
	int n = 0;

	*by_loops = 0;
	for (int i = 0; i < f->n[SECTION_KERNELS]; i++) {
		if (!is_product(run, &f->kernels[i], bits))
			continue;
		n++;
		*by_loops += !x->ops->implementation ||
		             strcmp(x->ops->implementation(x->code, i), "generated") == 0;
	}
	return n;
}

int
gradc_narrow_products(const Gradc *run, int *by_loops)
{
	return count_products(run, 16, by_loops);
}

/* Says whether the device has instructions for the types of the products. */
static void
add_native(Text *out, const Gradc *run)
{
	int by_loops, narrow = count_products(run, 16, &by_loops);
	const char *bf16 = cpu_bf16();

	if (run->device.ops->image_kind == IMAGE_BYTES) /* GPUs from sm_80 on have all types */
		text_add(out, ", native");
	else if (narrow > 0 && by_loops == narrow)
		text_add(out, ", products by loops that compute in f32");
	else if (narrow > 0 && bf16)
		text_printf(out, ", native (%s)", bf16);
	else if (narrow > 0)
		text_add(out, ", products in f32: this CPU multiplies no 16-bit floats");
	else if (format_info_is(&run->format, "allow_tf32", "1"))
		text_add(out, ", computed in f32: CPUs have no tf32");
	else
		text_add(out, ", native");
}

void
gradc_describe_precision(const Gradc *run, Text *out)
{
	const char *precision = format_info_get(&run->format, "precision");
	int by_loops, n = count_products(run, 64, &by_loops);

	text_add(out, precision ? precision : "f32");
	if (n == 0) {
		text_add(out, "; no product goes to a library");
		return;
	}
	add_native(out, run);
	text_printf(out, "; %d of %d products by a library", n - by_loops, n);
}
