/* The list of devices by name, and helpers for devices whose kernels are functions of this process (the CPU devices). */
#include "runtime/device/device.h"

#include <string.h>

const DeviceOps *const device_table[] = {
#define DEVICE(name) &device_##name,
#include "runtime/device/device_list.def"
#undef DEVICE
	NULL,
};

const DeviceOps *
device_find(const char *name)
{
	for (int i = 0; device_table[i]; i++)
		if (strcmp(device_table[i]->name, name) == 0)
			return device_table[i];
	return NULL;
}

Status
device_no_code(const CodeSource *source, const char *device, const char *kind, const char *target)
{
	Text names = {0};

	for (int i = 0; i < source->n_images; i++)
		text_printf(&names, "%s%s", i ? ", " : "", source->images[i].name);
	Status status = status_error(EXIT_SYSTEM,
	                             "--device=%s: it runs code for %s, and there is code for %s: "
	                             "compile the model with --target=%s, too",
	                             device, kind, names.at ? names.at : "nothing", target);
	text_free(&names);
	return status;
}

/* Was the code compiled together with these tables? */
static Status
check_code(const CodeImage *image, const Format *f, int target)
{
	const KernelCode *code = image->data;

	if (image->size != f->n[SECTION_KERNELS])
		return status_error(EXIT_SYSTEM,
		                    "executable tables: they list %d kernels, but "
		                    "the code has %lld",
		                    f->n[SECTION_KERNELS], (long long)image->size);
	for (int i = 0; i < f->n[SECTION_KERNELS]; i++) {
		const KernelRecord *k = &f->kernels[i];
		if (!(k->targets >> target & 1))
			continue;
		if (!code[i].run)
			return status_error(EXIT_SYSTEM, "executable tables: no code of kernel %s",
			                    format_text(f, k->name));
		if (code[i].facts != kernel_facts(k, f->kernel_arguments + k->first_argument))
			return status_error(
				EXIT_SYSTEM,
				"executable tables: the record of kernel %s is not the one "
				"that its code was made from",
				format_text(f, k->name));
	}
	return NULL;
}

Status
code_functions(const CodeSource *source, const char *device, const KernelCode **out)
{
	const CodeImage *image = source->images, *end = image + source->n_images;

	*out = NULL;
	while (image < end && image->kind != IMAGE_FUNCTIONS)
		image++;
	if (image == end)
		return device_no_code(source, device, "CPUs", "cpu:native");
	if (source->tables)
		RETURN_IF_ERROR(check_code(image, source->tables, source->target));
	*out = image->data;
	return NULL;
}
