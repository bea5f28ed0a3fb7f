/* A bundle: the compiled code for one kind of GPU inside an executable (an image of kind IMAGE_BYTES). It consists of a
 * header, a record for each kernel of the tables, the places of the modules, and the modules as a driver loads them. */
#ifndef GRADC_FORMAT_BUNDLE_H
#define GRADC_FORMAT_BUNDLE_H

#include "base/files/files.h"
#include "format/format.h"

#define BUNDLE_MAGIC 0x3142434441524721ull /* "!GRADCB1" */
enum { MODULE_ALIGNMENT = 64 };
/* Are the modules of an image with this name PTX? Otherwise they are cubins. */
bool bundle_is_ptx(const char *name);
typedef struct {
	uint64_t magic;
	uint32_t n_kernels, n_modules;
	int64_t bytes; /* size of the whole image */
	uint64_t hash; /* hash of all bytes after the header */
} BundleHeader;
typedef struct {
	uint64_t facts; /* kernel_facts, as in KernelCode */
	/* 1 + the module that has the kernel as symbol gradc_NAME; 0: no program for the image's target launches the kernel */
	uint32_t module;
	uint32_t threads;  /* threads of a block */
	uint32_t parts;    /* iterations that a block runs */
	uint32_t reserved; /* 0 */
} BundleKernel;
typedef struct {
	int64_t offset,
		bytes; /* place of a cubin, or of PTX with its NUL; offset is a multiple of MODULE_ALIGNMENT */
} BundleModule;
typedef struct {
	const BundleHeader *header;
	const BundleKernel *kernels;
	const BundleModule *modules; /* a module lies at `header` + offset */
} Bundle;
/* Writes the image into an empty text. */
void bundle_write(Text *out, const BundleKernel *kernels, int n_kernels, const FilePart *modules,
                  int n_modules);
/* EXIT_SYSTEM if the image is damaged or does not belong to these tables. */
Status bundle_read(const CodeImage *image, const Format *f, Bundle *out);

#endif
