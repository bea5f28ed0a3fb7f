/* The part of --info that depends on this machine: threads, libraries, and which code (a library's or gradc's own) runs each
 * matrix product. */
#include "runtime/cli/cli.h"
#include "runtime/train/train.h"

#include <jansson.h>

typedef struct {
	const DeviceOps *ops;
	Device *device;
	Code *code;
	int target; /* target in the tables, whose programs run */
	Tunings tunings;
} Opened;

static void
close_device(Opened *o)
{
	if (o->code)
		o->ops->unload(o->device, o->code);
	if (o->device)
		o->ops->close(o->device);
	tunings_free(&o->tunings);
}

/* Opens the device of the options and loads its code. */
static Status
open_device(const GradcModel *model, const Format *f, const GradcOptions *options, Opened *o)
{
	const CodeImage *image;
	DeviceChoice choice;

	*o = (Opened){0};
	RETURN_IF_ERROR(device_choose(model->images, options->device, options->target, &choice));
	status_free(choice.why_not_gpu);
	o->ops = choice.ops;
	RETURN_IF_ERROR(variant_pick(model->images, options->target, &choice, &image));
	DeviceOptions device = device_options(f, (int)image->target, choice.ordinal, options);
	bool missing;
	RETURN_IF_ERROR(tune_file_read(options, &o->tunings, &missing));
	device.tunings = &o->tunings;
	RETURN_IF_ERROR(o->ops->open(&device, &o->device));
	o->target = (int)image->target;
	CodeSource source = {image, 1, f, o->target};
	return o->ops->load(o->device, &source, &o->code);
}

static const char *
implementation(const Opened *o, int kernel)
{
	return o->ops->implementation ? o->ops->implementation(o->code, kernel) : "generated";
}

static void
add_product(json_t *list, const Format *f, const Opened *o, int kernel)
{
	const KernelRecord *k = &f->kernels[kernel];
	const char *remark = o->ops->remark ? o->ops->remark(o->code, kernel) : NULL;
	Text what = {0};

	format_print_library(&what, f, k->library - 1);
	json_t *call = json_pack("{s:s, s:s, s:s, s:I}", "kernel", format_text(f, k->name), "call",
	                         what.at, "implementation", implementation(o, kernel), "flops",
	                         (json_int_t)library_flops(&f->library[k->library - 1].call));
	if (remark)
		json_object_set_new(call, "remark", json_string(remark));
	json_array_append_new(list, call);
	text_free(&what);
}

static void
add_products(json_t *list, const Format *f, const Opened *o)
{
	for (int i = 0; i < f->n[SECTION_KERNELS]; i++)
		if (f->kernels[i].library && f->kernels[i].targets >> o->target & 1)
			add_product(list, f, o, i);
}

json_t *
info_device(const GradcModel *model, const Format *f, const GradcOptions *options)
{
	json_t *root = json_object(), *list = json_array();
	Opened o;
	Status status = open_device(model, f, options, &o);
	Text text = {0};

	if (status)
		text_add(&text, status->message);
	else if (o.ops && o.ops->describe)
		o.ops->describe(o.device, &text);
	json_object_set_new(root, "device", json_string(text.at ? text.at : o.ops->name));
	if (!status)
		add_products(list, f, &o);
	if (!status && o.ops->native_stream) {
		Text carrier = {0};
		carrier_describe(&carrier);
		json_object_set_new(root, "collectives", json_string(carrier.at));
		text_free(&carrier);
	}
	json_object_set_new(root, "library_calls", list);
	json_object_set_new(
		root, "library_bytes",
		json_integer(!status && o.ops->library_bytes ? o.ops->library_bytes(o.code) : 0));
	if (!status) {
		GradcPeak peak = speed_peak(f, o.ops, o.device, o.target, true);
		json_object_set_new(root, "peak_flops",
		                    peak.flops > 0 ? json_real(peak.flops) : json_null());
		json_object_set_new(root, "peak_source", json_string(peak.source));
	}
	text_free(&text);
	status_free(status);
	close_device(&o);
	return root;
}

static void
print_product(FILE *out, const json_t *call)
{
	const char *name = json_string_value(json_object_get(call, "implementation"));
	const char *remark = json_string_value(json_object_get(call, "remark"));
	Text how = {0};

	text_printf(&how, "%s%s%s", name, remark ? ", " : "", remark ? remark : "");
	fprintf(out, "  %-8s %-24s %s\n", json_string_value(json_object_get(call, "kernel")),
	        how.at, json_string_value(json_object_get(call, "call")));
	text_free(&how);
}

/* The peak that "mfu" in the log refers to, or why the peak is unknown. */
static void
print_peak(const json_t *root)
{
	const json_t *flops = json_object_get(root, "peak_flops");
	const char *source = json_string_value(json_object_get(root, "peak_source"));
	char text[32];

	if (json_is_real(flops))
		printf("%-24s %sFLOP/s: %s\n", "peak", count_text(text, json_real_value(flops)),
		       source);
	else if (source)
		printf("%-24s unknown, so MFU is null: %s\n", "peak", source);
}

void
info_device_print(const GradcModel *model, const Format *f, const GradcOptions *options)
{
	json_t *root = info_device(model, f, options), *call;
	size_t i;

	printf("%-24s %s\n", "device", json_string_value(json_object_get(root, "device")));
	if (json_object_get(root, "collectives"))
		printf("%-24s %s\n", "collectives",
		       json_string_value(json_object_get(root, "collectives")));
	printf("%-24s %lld bytes of scratch\n", "region library",
	       (long long)json_integer_value(json_object_get(root, "library_bytes")));
	print_peak(root);
	json_array_foreach(json_object_get(root, "library_calls"), i, call)
		print_product(stdout, call);
	json_decref(root);
}

void
info_products_print(FILE *out, const Gradc *run)
{
	const Executor *e = &run->executor;
	Opened o = {e->ops, e->device, e->code, e->target};
	json_t *list = json_array(), *call;
	size_t i;

	add_products(list, &run->format, &o);
	fprintf(out, "products that a library may compute: %zu\n", json_array_size(list));
	json_array_foreach(list, i, call)
		print_product(out, call);
	json_decref(list);
}
