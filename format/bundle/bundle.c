/* Writes, reads and checks bundles. A bundle is the compiled code for one kind of GPU inside an executable: modules
 * (cubin or PTX), and for each kernel the number of its module. codegen writes bundles; the runtime and --info read
 * them. */
#include "format/bundle/bundle.h"

#include <string.h>

bool
bundle_is_ptx(const char *name)
{
	return strncmp(name, "compute_", 8) == 0;
}

static uint64_t
hash_behind(const void *header, int64_t bytes)
{
	size_t first = sizeof(BundleHeader);

	return hash_bytes((const char *)header + first, (size_t)bytes - first, 0);
}

static void
pad(Text *out)
{
	static const char zeros[MODULE_ALIGNMENT];
	size_t rest = out->n % MODULE_ALIGNMENT;

	if (rest)
		text_add_bytes(out, zeros, MODULE_ALIGNMENT - rest);
}

void
bundle_write(Text *out, const BundleKernel *kernels, int n_kernels, const FilePart *modules,
             int n_modules)
{
	BundleHeader h = {.magic = BUNDLE_MAGIC,
	                  .n_kernels = (uint32_t)n_kernels,
	                  .n_modules = (uint32_t)n_modules};
	Arena *arena = arena_new();
	BundleModule *places = NEW_ARRAY(arena, BundleModule, n_modules);
	size_t at = sizeof(h) + sizeof(*kernels) * (size_t)n_kernels;

	text_add_bytes(out, &h, sizeof(h));
	text_add_bytes(out, kernels, sizeof(*kernels) * (size_t)n_kernels);
	text_add_bytes(out, places, sizeof(*places) * (size_t)n_modules);
	for (int i = 0; i < n_modules; i++) {
		pad(out);
		places[i] = (BundleModule){(int64_t)out->n, modules[i].n};
		text_add_bytes(out, modules[i].at, (size_t)modules[i].n);
	}
	if (n_modules)
		memcpy(out->at + at, places, sizeof(*places) * (size_t)n_modules);
	h.bytes = (int64_t)out->n;
	h.hash = hash_behind(out->at, h.bytes);
	memcpy(out->at, &h, sizeof(h));
	arena_free(arena);
}

static Status
damaged(const CodeImage *image, const char *what)
{
	return status_error(EXIT_SYSTEM, "code for %s is damaged: %s", image->name, what);
}

/* The fault of a module; NULL: no fault. begin: where the image's modules begin. */
static const char *
module_fault(const CodeImage *image, const BundleModule *m, int64_t begin)
{
	if (m->offset < begin || m->bytes < 1 || m->offset > image->size ||
	    m->bytes > image->size - m->offset)
		return "a module lies outside the image";
	if (m->offset % MODULE_ALIGNMENT)
		return "a module is not aligned";
	if (bundle_is_ptx(image->name) &&
	    ((const char *)image->data)[m->offset + m->bytes - 1] != '\0')
		return "PTX without an end";
	return NULL;
}

/* Checks lengths and places, so that every record and module can be read. */
static Status
check_layout(const CodeImage *image)
{
	const BundleHeader *h = image->data;
	int64_t left = image->size - (int64_t)sizeof(*h);

	if (left < 0 || h->magic != BUNDLE_MAGIC || h->bytes != image->size)
		return damaged(image, "its header");
	left -= (int64_t)sizeof(BundleKernel) * h->n_kernels;
	left -= (int64_t)sizeof(BundleModule) * h->n_modules;
	if (left < 0)
		return damaged(image, "its tables are longer than the image");
	const BundleKernel *kernels = (const BundleKernel *)(h + 1);
	const BundleModule *modules = (const BundleModule *)(kernels + h->n_kernels);
	for (uint32_t i = 0; i < h->n_kernels; i++)
		if (kernels[i].reserved)
			return damaged(image, "a reserved field is not 0");
	for (uint32_t i = 0; i < h->n_modules; i++) {
		const char *fault = module_fault(image, &modules[i], image->size - left);
		if (fault)
			return damaged(image, fault);
	}
	return NULL;
}

/* Was the code made from these tables? */
static Status
check_kernels(const CodeImage *image, const Format *f, const Bundle *b)
{
	if ((int64_t)b->header->n_kernels != f->n[SECTION_KERNELS])
		return damaged(image, "the executable tables have another number of kernels");
	for (int i = 0; i < f->n[SECTION_KERNELS]; i++) {
		const KernelRecord *r = &f->kernels[i];
		const BundleKernel *k = &b->kernels[i];
		if (!(r->targets >> image->target & 1))
			continue;
		if (k->module < 1 || k->module > b->header->n_modules)
			return status_error(EXIT_SYSTEM, "code for %s lacks kernel %s", image->name,
			                    format_text(f, r->name));
		if (k->facts != kernel_facts(r, f->kernel_arguments + r->first_argument))
			return status_error(
				EXIT_SYSTEM,
				"code for %s: the executable tables have other facts for "
				"kernel %s than its code was made from",
				image->name, format_text(f, r->name));
		bool alone = r->team <= 1 && k->threads == 1 &&
		             k->parts == 1; /* one thread runs one iteration */
		if (!alone &&
		    (k->threads != kernel_block_threads(r) || k->parts != kernel_block_parts(r)))
			return damaged(image,
			               "a kernel's block of threads differs from the tables");
	}
	return NULL;
}

Status
bundle_read(const CodeImage *image, const Format *f, Bundle *out)
{
	*out = (Bundle){0};
	if (image->kind != IMAGE_BYTES || (uintptr_t)image->data % _Alignof(BundleHeader))
		return damaged(image, "it is none");
	if (image->target < 0 || image->target >= f->n[SECTION_TARGETS])
		return damaged(image, "its target is none of the executable tables");
	RETURN_IF_ERROR(check_layout(image));
	const BundleHeader *h = image->data;
	Bundle b = {.header = h, .kernels = (const BundleKernel *)(h + 1)};
	b.modules = (const BundleModule *)(b.kernels + h->n_kernels);
	RETURN_IF_ERROR(check_kernels(image, f, &b));
	if (h->hash != hash_behind(h, image->size))
		return damaged(image, "its bytes have changed");
	*out = b;
	return NULL;
}
