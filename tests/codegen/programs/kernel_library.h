/* Compiles a module's kernels with a printer and loads them into the test. */
#ifndef GRADC_TESTS_KERNEL_LIBRARY_H
#define GRADC_TESTS_KERNEL_LIBRARY_H

#include "codegen/c/c.h"
#include "codegen/emit/emit.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef TEST_CC
#define TEST_CC "cc"
#endif

/* Reads and verifies the module of a .gir file, with the data file beside it; NULL after reporting a fault. */
static inline Module *
module_of_file(Arena *arena, const char *path, Diag *diag)
{
	StrMap *data;
	void *bytes;
	int64_t n;

	if (diag_status(diag, file_read(arena, path, 1ll << 31, &bytes, &n)) ||
	    diag_status(diag, module_read_data(arena,
	                                       arena_printf(arena, "%.*s.safetensors",
	                                                    (int)strlen(path) - 4, path),
	                                       &data)))
		return NULL;
	Module *m = module_parse(arena_strndup(arena, bytes, (size_t)n), path, data, diag);
	return m && module_verify(m, diag) ? m : NULL;
}

/* Writes a model with one image: a table of the functions gradc_KERNEL + suffix. */
static inline Status
kernel_table_write(Build *b, const Module *m, const char *path, const char *suffix)
{
	Text text = {0};

	c_print_table_types(&text);
	c_print_table(&text, build_kernels(b->arena, m, NULL), m->kernels.n, suffix);
	text_printf(
		&text,
		"static const struct {\n\tconst char *name, *features;\n\tint64_t kind;\n\tconst KernelCode *data;\n"
		"\tint64_t size, target;\n} images[] = {{\"%s\", \"\", %d, gradc_kernels%s, %d, 0}, {0}};\n"
		"const struct {\n\tint64_t abi;\n\tconst void *blob;\n\tint64_t bytes;\n\tconst void *images, *file;\n"
		"} " GRADC_MODEL_NAME " = {%d, 0, 0, images, 0};\n",
		*suffix ? "harness" : "plain", IMAGE_FUNCTIONS, suffix, m->kernels.n, GRADC_ABI);
	Status status = file_write(path, text.at, (int64_t)text.n);
	text_free(&text);
	return status;
}

/* printer_c with an unoptimized compilation, which takes a tenth of the time. It serves as the reference for other code, and
 * in tests of the printer rather than the compiler. */
static inline Status
plain_build(Build *b, const Module *m, const void *blob, int64_t bytes)
{
	KernelPart all = build_list(b->arena, m, NULL);
	const char *kernels = build_file(b, "kernels.c"), *table = build_file(b, "table.c");
	Text text = {0};

	(void)blob, (void)bytes;
	c_print_part(&text, &all, "");
	Status status = file_write(kernels, text.at, (int64_t)text.n);
	text_free(&text);
	if (!status)
		status = kernel_table_write(b, m, table, "");
	vec_push(b->arena, &b->objects, "-O0 -std=gnu11 -ffp-contract=off -fwrapv -fPIC");
	vec_push(b->arena, &b->objects, kernels);
	vec_push(b->arena, &b->objects, table);
	return status;
}

static const KernelPrinter printer_plain_c = {.name = "c", .build = plain_build};

/* With sanitizers, tests use plain C: the sanitizers watch the printer, and the compiled kernels are not instrumented. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const KernelPrinter *const tested_c = &printer_plain_c;
#else
static const KernelPrinter *const tested_c = &printer_c;
#endif

/* True: the loaded library stays until the program ends, because sanitizers read it when they report a fault in it. */
static bool kernel_library_stays;
static TemporaryFolder kernel_library_folder;

static inline void
kernel_library_close(void)
{
	temporary_folder_close(&kernel_library_folder);
}

/* Compiles and loads all kernels of m, one image per target; NULL after reporting a fault. The images stay loaded. */
static inline const CodeImage *
kernel_library(Arena *arena, const Module *m, const KernelPrinter *printer,
               const CpuTarget *targets, int n)
{
	if (printer == &printer_c)
		printer = tested_c;
	LinkOptions options = {.printer = printer, .targets = targets, .n_targets = n};
	Build b = {.arena = arena, .options = &options};
	Text command = {0};

	Status status = temporary_folder_open(arena, &b.folder);
	if (!status)
		status = printer->build(&b, m, "tables", 6);
	if (status) {
		fprintf(stderr, "%s: %s\n", printer->name, status->message);
		return NULL;
	}
	const char *library = build_file(&b, "kernels.so");
	text_printf(&command, TEST_CC " -w -shared -o %s", library);
	for (int i = 0; i < b.objects.n; i++)
		text_printf(&command, " %s", b.objects.at[i]);
	text_add(&command, " -lm -Wl,--defsym=" GRADC_ABI_NAME "=0");
	void *handle = system(command.at) == 0 ? dlopen(library, RTLD_NOW) : NULL;
	text_free(&command);
	if (kernel_library_stays) {
		kernel_library_folder = b.folder;
		atexit(kernel_library_close);
	} else {
		temporary_folder_close(&b.folder);
	}
	if (!handle || !dlsym(handle, GRADC_MODEL_NAME))
		fprintf(stderr, "%s: %s\n", printer->name, dlerror());
	const GradcModel *model = handle ? dlsym(handle, GRADC_MODEL_NAME) : NULL;
	return model ? model->images : NULL;
}

/* The kernels of an image, by the module's kernel numbers. */
static inline const KernelCode *
image_kernels(const CodeImage *image)
{
	return image->data;
}

#endif
