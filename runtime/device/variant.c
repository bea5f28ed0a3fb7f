/* Picks the device to run on, and the variant of the compiled kernels for that device. An executable may hold several variants,
 * such as cpu:x86-64-v3 and cuda:sm_90a. */
#include "runtime/device/device.h"
#include "runtime/host/host.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VARIANTS = 64 }; /* number of bits in a set */

static const char *
kind_name(const CodeImage *v)
{
	return v->kind == IMAGE_FUNCTIONS ? "cpu" : "cuda";
}

/* "cpu:native, cuda:sm_90a" */
static void
add_names(Text *out, const CodeImage *all)
{
	for (const CodeImage *v = all; v->name; v++)
		text_printf(out, "%s%s:%s", v == all ? "" : ", ", kind_name(v), v->name);
}

/* asked: "cuda:sm_90a" or "sm_90a"; NULL matches every variant. */
static bool
is_asked(const CodeImage *v, const char *asked)
{
	const char *colon = asked ? strchr(asked, ':') : NULL;

	if (!asked)
		return true;
	if (!colon)
		return strcmp(v->name, asked) == 0;
	size_t n = (size_t)(colon - asked);
	return strlen(kind_name(v)) == n && memcmp(kind_name(v), asked, n) == 0 &&
	       strcmp(v->name, colon + 1) == 0;
}

static bool
has_asked(const CodeImage *all, const char *asked, ImageKind kind)
{
	for (; all->name; all++)
		if (all->kind == kind && is_asked(all, asked))
			return true;
	return false;
}

/* ---- the device */
enum { MOST_ORDINAL = 65535 };

static Status
unknown_device(const char *asked)
{
	Text names = {0};

	for (int i = 0; device_table[i]; i++)
		if (!device_table[i]->for_tests)
			text_printf(&names, "%s%s", i ? ", " : "", device_table[i]->name);
	Status status = status_error(EXIT_USAGE,
	                             "--device=%s: not supported in this build: it has %s, and "
	                             "cuda:N for the GPU of that number",
	                             asked, names.at);
	text_free(&names);
	return status;
}

static Status
find_device(const char *asked, DeviceChoice *out)
{
	char name[32];
	const char *colon = strchr(asked, ':');
	size_t n = colon ? (size_t)(colon - asked) : strlen(asked);
	int64_t ordinal = -1;

	snprintf(name, sizeof(name), "%.*s", (int)n, asked);
	out->ops = n < sizeof(name) ? device_find(name) : NULL;
	bool number = !colon ||
	              (parse_int(colon + 1, &ordinal) && ordinal >= 0 && ordinal <= MOST_ORDINAL);
	if (!out->ops)
		return unknown_device(asked);
	if (!number)
		return status_error(EXIT_USAGE,
		                    "--device=%s: need a number from 0 to %d after the colon",
		                    asked, MOST_ORDINAL);
	out->ordinal = (int)ordinal;
	return NULL;
}

/* Ranks on the same machine take its devices in turn. */
static void
pick_ordinal(DeviceChoice *out)
{
	int local, ranks, n = out->ops->count ? out->ops->count() : 1;

	if (out->ordinal >= 0)
		return;
	local_rank(&local, &ranks);
	out->ordinal = n > 0 ? local % n : 0;
}

Status
device_choose(const CodeImage *all, const char *device, const char *target, DeviceChoice *out)
{
	uint64_t here;

	*out = (DeviceChoice){.ops = &device_cpu, .ordinal = -1};
	if (device) {
		RETURN_IF_ERROR(find_device(device, out));
		pick_ordinal(out);
		return NULL;
	}
	if (has_asked(all, target, IMAGE_BYTES)) {
		out->ops = &device_cuda;
		pick_ordinal(out);
		out->why_not_gpu = variant_list(all, target, out, &here);
		bool other = has_asked(all, target, IMAGE_FUNCTIONS);
		if (!out->why_not_gpu || !other) {
			Status why = out->why_not_gpu;
			out->why_not_gpu = NULL;
			return why;
		}
	}
	out->ops = &device_cpu;
	out->ordinal = 0;
	return NULL;
}

/* ---- variants */
static Status
not_compiled(const CodeImage *all, const char *asked)
{
	Text names = {0};

	add_names(&names, all);
	Status status = status_error(EXIT_USAGE, "--target=%s: the model is compiled for %s", asked,
	                             names.at ? names.at : "nothing");
	text_free(&names);
	return status;
}

static Status
not_for_device(const CodeImage *all, const DeviceOps *ops)
{
	bool gpu = ops->image_kind == IMAGE_BYTES;
	Text names = {0};

	add_names(&names, all);
	Status status = status_error(
		EXIT_SYSTEM,
		"the model is compiled for %s only, and --device=%s runs code for %s: compile it with "
		"--target=cpu,cuda%s",
		names.at ? names.at : "nothing", ops->name, gpu ? "GPUs" : "CPUs",
		gpu || !names.at ? "" : ", or run it with --device=cuda");
	text_free(&names);
	return status;
}

static Status
contradiction(const char *asked, const DeviceOps *ops)
{
	bool gpu = ops->image_kind == IMAGE_BYTES;

	return status_error(EXIT_USAGE,
	                    "--device=%s runs code for %s, and --target=%s is code for %s: leave "
	                    "one of the two out",
	                    ops->name, gpu ? "GPUs" : "CPUs", asked, gpu ? "CPUs" : "GPUs");
}

Status
variant_list(const CodeImage *all, const char *asked, const DeviceChoice *device, uint64_t *out)
{
	bool any = false;
	Status why = NULL;

	*out = 0;
	for (int i = 0; all[i].name; i++) {
		if (i == MAX_VARIANTS) {
			status_free(why);
			return status_error(EXIT_SYSTEM, "kernels for more than %d machines",
			                    MAX_VARIANTS);
		}
		if (!is_asked(&all[i], asked))
			continue;
		any = true;
		if (all[i].kind != device->ops->image_kind)
			continue;
		Status runs = device->ops->runs(device->ordinal, &all[i]);
		if (!runs)
			*out |= 1ull << i;
		else {
			status_free(why);
			why = runs;
		}
	}
	if (*out) {
		status_free(why);
		return NULL;
	}
	if (why)
		return why;
	if (all[0].name == NULL)
		return status_error(EXIT_SYSTEM, "there are no kernels");
	if (!any)
		return not_compiled(all, asked);
	return asked ? contradiction(asked, device->ops) : not_for_device(all, device->ops);
}

static int
count_words(const char *text)
{
	int n = 0;

	for (; *text; text += strcspn(text, " "), text += strspn(text, " "))
		n++;
	return n;
}

/* A number for comparing variants: the best variant has the highest number. On CPUs: the number of features. On GPUs: a newer
 * architecture is better; for the same architecture, machine code is better than PTX. */
static int
rank_of(const CodeImage *v)
{
	const char *number = strchr(v->name, '_');

	if (v->kind == IMAGE_FUNCTIONS)
		return count_words(v->features);
	int own = number ? (int)strtol(number + 1, NULL, 10) : 0;
	bool special = number && number[strlen(number) - 1] > '9';
	return own * 4 + (strncmp(v->name, "sm_", 3) == 0 ? 2 : 0) + special;
}

const CodeImage *
variant_best(const CodeImage *all, uint64_t of)
{
	const CodeImage *best = NULL;

	for (int i = 0; all[i].name; i++)
		if (of >> i & 1 && (!best || rank_of(&all[i]) > rank_of(best)))
			best = &all[i];
	return best;
}

Status
variant_pick(const CodeImage *all, const char *asked, const DeviceChoice *device,
             const CodeImage **out)
{
	uint64_t here;

	*out = NULL;
	RETURN_IF_ERROR(variant_list(all, asked, device, &here));
	*out = variant_best(all, here);
	return NULL;
}

/* ---- devices that run functions of the process */
Status
functions_run(int ordinal, const CodeImage *image)
{
	int n = 0;
	const char *lacks = cpu_lacks(image->features, &n);

	(void)ordinal;
	if (!lacks)
		return NULL;
	return status_error(EXIT_SYSTEM,
	                    "this CPU lacks %.*s, which the kernels for cpu:%s use: compile the "
	                    "model on this machine, or with --target=cpu:x86-64-v2,cpu:%s",
	                    n, lacks, image->name,
	                    strcmp(image->name, "native") ? image->name : "x86-64-v3");
}
