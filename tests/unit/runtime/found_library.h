/* Tests how a GPU library is found, by starting the test's own program in another environment. */
#ifndef GRADC_FOUND_LIBRARY_H
#define GRADC_FOUND_LIBRARY_H

#include "runtime/library/library.h"
#include "tests/unit/runtime/expect_status.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The number of handles and descriptors of a pretended library that were not destroyed. */
static inline int
count_alive(const char *soname, const char *function)
{
	void *library = dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
	int (*alive)(void);

	assert_non_null(library);
	*(void **)&alive = dlsym(library, function);
	assert_non_null(alive);
	dlclose(library);
	return alive();
}

static char program[4096];

static inline void
say_what_opens(const LibraryOps *ops)
{
	Library *library;
	Status status = ops->open(&(LibraryHome){.machine = "pretended"}, &library);

	puts(status ? status->message : ops->version(library));
	status_free(status);
	ops->close(library);
}

static inline void
expect_opening(const char *folder, const char *words)
{
	char said[1024] = "";
	Text command = {0};

	text_printf(&command, "LD_LIBRARY_PATH='%s' CUDA_HOME='%s' '%s' open", folder, folder,
	            program);
	FILE *child = popen(command.at, "r");
	assert_non_null(child);
	size_t n = fread(said, 1, sizeof(said) - 1, child);
	said[n] = 0;
	assert_int_equal(pclose(child), 0);
	if (!strstr(said, words))
		fail_msg("\"%s\" does not say \"%s\"", said, words);
	text_free(&command);
}

/* Puts a file of this name into a folder: a link, or the text "none", which the loader does not accept as a library. */
static inline void
put_file(const char *folder, const char *name, const char *link_to)
{
	Text path = {0};

	text_printf(&path, "%s/%s", folder, name);
	unlink(path.at);
	if (link_to) {
		assert_int_equal(symlink(link_to, path.at), 0);
	} else {
		FILE *file = fopen(path.at, "w");
		assert_non_null(file);
		fputs("none", file);
		fclose(file);
	}
	text_free(&path);
}

static inline void
remove_folder(const char *folder)
{
	Text command = {0};

	text_printf(&command, "rm -r '%s'", folder);
	assert_int_equal(system(command.at), 0);
	text_free(&command);
}

/* A library in LD_LIBRARY_PATH or in a toolkit's lib64 is opened. A file that is not a library or lacks functions is
 * reported by name. */
typedef struct {
	const char *const *sonames; /* names of the library, in the order of the search */
	int n;
	const char *symbol;                      /* a symbol of the pretended library */
	const char *not_found, *lacks, *version; /* expected messages */
} FoundLibrary;

static inline void
check_how_it_is_found(const FoundLibrary *f)
{
	char folder[] = "/tmp/found_library.XXXXXX";
	const char *last = f->sonames[f->n - 1];
	Text toolkit = {0};
	Dl_info library, other;
	void *handle = dlopen(f->sonames[0], RTLD_NOW);

	assert_non_null(mkdtemp(folder));
	assert_true(dladdr(dlsym(handle, f->symbol), &library));
	assert_true(dladdr(dlsym(RTLD_DEFAULT, "cosh"), &other));
	for (int i = 0; i < f->n; i++)
		put_file(folder, f->sonames[i], NULL);
	expect_opening(folder, f->not_found);
	put_file(folder, last, other.dli_fname);
	expect_opening(folder, f->lacks);
	put_file(folder, last, library.dli_fname);
	expect_opening(folder, f->version);
	put_file(folder, last, NULL);
	text_printf(&toolkit, "%s/lib64", folder);
	assert_int_equal(mkdir(toolkit.at, 0700), 0);
	put_file(toolkit.at, last, library.dli_fname);
	expect_opening(folder, f->version);
	text_free(&toolkit);
	remove_folder(folder);
	dlclose(handle);
}

/* The loader reads LD_LIBRARY_PATH at a program's start, so this restarts the program with the pretended libraries in cuda/
 * beside the test. */
static inline void
start_with_the_libraries(char **argv)
{
	Text path = {0};
	const char *others = getenv("LD_LIBRARY_PATH");

	text_printf(&path, "%.*s/cuda%s%s", (int)(strrchr(program, '/') - program), program,
	            others ? ":" : "", others ? others : "");
	setenv("LD_LIBRARY_PATH", path.at, 1);
	execv(program, (char *[]){argv[0], "tests", NULL});
	perror(program);
	exit(1);
}

/* To be called first in main. True: the program was only started to report which library opens. */
static inline bool
find_library(int argc, char **argv, const LibraryOps *ops)
{
	if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0)
		exit(1);
	if (argc == 1)
		start_with_the_libraries(argv);
	if (strcmp(argv[1], "open") != 0)
		return false;
	say_what_opens(ops);
	return true;
}

#endif
