/* Code of a GPU, an image of kind IMAGE_BYTES: a header, a record for each kernel of the tables, the places of modules, and the
 * modules as a driver loads them. */
#ifndef GRADC_FORMAT_BUNDLE_H
#define GRADC_FORMAT_BUNDLE_H

#include "base/files/files.h"
#include "format/format.h"

#define BUNDLE_MAGIC 0x3142434441524721ull /* "!GRADCB1" */
enum { MODULE_ALIGNMENT = 64 };
/* Of images by that name modules are PTX, of others cubins. */
bool bundle_is_ptx(const char *name);
typedef struct {
	uint64_t magic;
	uint32_t n_kernels, n_modules;
	int64_t bytes; /* of the whole */
	uint64_t hash; /* of all that is behind this header */
} BundleHeader;
typedef struct {
	uint64_t facts; /* as KernelCode's */
	uint32_t
		module; /* 1 + the one that has it, as gradc_NAME; 0: no program for the image's target launches it */
	uint32_t threads;  /* of a block */
	uint32_t parts;    /* iterations that a block runs */
	uint32_t reserved; /* 0 */
} BundleKernel;
typedef struct {
	int64_t offset,
		bytes; /* of a cubin, or of PTX with its NUL; a multiple of MODULE_ALIGNMENT */
} BundleModule;
typedef struct {
	const BundleHeader *header;
	const BundleKernel *kernels;
	const BundleModule *modules; /* at `header` + offset */
} Bundle;
/* Appends to an empty text. */
void bundle_write(Text *out, const BundleKernel *kernels, int n_kernels, const FilePart *modules,
                  int n_modules);
/* EXIT_SYSTEM where it is damaged, or not of these tables. */
Status bundle_read(const CodeImage *image, const Format *f, Bundle *out);

#endif
