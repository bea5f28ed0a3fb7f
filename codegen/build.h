/* A build in progress: what the printers of kernels and the linker share. Sections are named after the
 * .c files. */
#ifndef GRADC_CODEGEN_BUILD_H
#define GRADC_CODEGEN_BUILD_H

#include "codegen/codegen.h"

#include <sys/types.h>

/* ---- build.c */
/* A CodeImage of kind IMAGE_BYTES. */
typedef struct {
	const char *name;
	int target; /* of the tables' targets */
	Text bytes;
} ByteImage;
struct Build {
	Arena *arena;
	const LinkOptions *options;
	TemporaryFolder folder;
	VEC(const char *) objects; /* what will be linked */
	VEC(ByteImage) images;     /* what the model has beside the printer's functions */
};
const char *build_file(Build *b, const char *name); /* its path in the temporary folder */
/* Writes an object file that will be linked. */
Status build_object(Build *b, const char *name, const Text *object);
typedef struct {
	const char *name, *log; /* log: the file of its messages */
	pid_t pid;
	CleanupSlot cleanup;
} Program;
/* Starts argv[0] with its messages in a log file, and its own temporary files in the build's folder. */
Status build_start(Build *b, char *const *argv, const char *log, Program *out);
/* Waits for it; an error holds the first lines of its log. */
Status build_finish(Build *b, Program *p);
const char *build_compiler(const Build *b); /* of C; also links */
/* The symbol of the GradcModel. */
const char *build_model_symbol(Build *b);
/* The kernels that programs for a target launch, NULL: all; and where one is not among them a NULL. */
Kernel **build_kernels(Arena *arena, const Module *m, const Target *target);
KernelPart build_list(Arena *arena, const Module *m, const Target *target); /* without the gaps */
/* Which of the module's targets that is, as the tables number them. */
int build_target(Arena *arena, const Module *m, const Target *target);
/* These kernels in parts that are compiled at once, with about as many statements in each; returns how many: one a core,
 * where there is enough for each. */
enum { MAX_PARTS = 8 };
/* In so many parts, into a list that has room for them; `all` is sorted meanwhile. */
void build_divide(Arena *arena, const KernelPart *all, int n, KernelPart *parts);
int build_parts(Arena *arena, const Module *m, const Target *target, KernelPart parts[MAX_PARTS]);

#endif
