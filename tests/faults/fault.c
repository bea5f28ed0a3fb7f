/* Makes the n-th allocation or the n-th system call fail. The linker puts these functions before libc's in all code that is
 * linked into gradc or a training executable (--wrap, see calls.def). Shared libraries (LLVM, oneDNN, MPI, libc itself) keep
 * libc's.
 *
 *	GRADC_FAULT=alloc:17    allocation 17 fails; io:17: system call 17; alloc:17+: allocation 17 and all later ones
 *	GRADC_FAULT_LOG=FILE    gets a line for the failing call, with its name and its path, if it has one; and at the
 *	                        end a line with the number of calls of each kind
 *	GRADC_FAULT_STACK=1     prints the failing call's stack to stderr
 *
 * Programs started by this program are not affected. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void __sanitizer_print_stack_trace(void);

enum { ALLOC, IO, N_KINDS };
enum { IS_ERROR = 0x20 }; /* error flag of glibc's streams, which ferror returns */

static const char *const kind_names[] = {"alloc", "io"};
static atomic_long calls[N_KINDS];
static long first[N_KINDS], last[N_KINDS]; /* range of failing calls; 0: no failing call */
static char log_path[4096];
static bool wants_stack;

int __real_open(const char *path, int flags, ...);
int __real_openat(int folder, const char *path, int flags, ...);
int __real_open64(const char *path, int flags, ...);
int __real_puts(const char *s);
int __real_putchar(int c);
int __real_close(int fd);
ssize_t __real_write(int fd, const void *bytes, size_t n);
int __real_vfprintf(FILE *f, const char *format, va_list args);

static void
note(const char *format, ...)
{
	int saved = errno,
	    fd = *log_path ? __real_open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
	char line[8192];
	va_list args;

	va_start(args, format);
	int n = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (fd >= 0) {
		ssize_t written = __real_write(fd, line, (size_t)n);
		(void)written;
		__real_close(fd);
	}
	errno = saved;
}

/* Runs before any code of gradc. */
__attribute__((constructor)) static void
read_environment(void)
{
	const char *fault = getenv("GRADC_FAULT"), *path = getenv("GRADC_FAULT_LOG");

	for (int kind = 0; fault && kind < N_KINDS; kind++) {
		size_t n = strlen(kind_names[kind]);
		if (strncmp(fault, kind_names[kind], n) != 0 || fault[n] != ':')
			continue;
		first[kind] = atol(fault + n + 1);
		last[kind] = strchr(fault, '+') ? LONG_MAX : first[kind];
	}
	wants_stack = getenv("GRADC_FAULT_STACK") != NULL;
	if (path && path[0] == '/' && strlen(path) < sizeof(log_path))
		strcpy(log_path, path);
	unsetenv("GRADC_FAULT");
	unsetenv("GRADC_FAULT_LOG");
}

__attribute__((destructor)) static void
write_counts(void)
{
	note("calls %ld %ld\n", atomic_load(&calls[ALLOC]), atomic_load(&calls[IO]));
}

static bool
fails(int kind, const char *name, const char *path)
{
	long n = atomic_fetch_add(&calls[kind], 1) + 1;

	if (!first[kind] || n < first[kind] || n > last[kind])
		return false;
	note("%s %ld %s %s\n", kind_names[kind], n, name, path);
	if (wants_stack)
		__sanitizer_print_stack_trace();
	return true;
}

/* The subject of a call for the log: its first argument, if that is a path. */
#define TEXT(x) _Generic((x), const char * : (x), char * : (x), default : "")
#define FIRST(x, ...) TEXT(x)

#define CALL(kind, type, name, parameters, arguments, failure, number) \
	type __real_##name parameters;                                 \
	type __wrap_##name parameters;                                 \
	type __wrap_##name parameters                                  \
	{                                                              \
		if (fails(kind, #name, FIRST arguments)) {             \
			errno = number;                                \
			return failure;                                \
		}                                                      \
		return __real_##name arguments;                        \
	}
#define DONE(kind, type, name, parameters, arguments, failure, number) \
	type __real_##name parameters;                                 \
	type __wrap_##name parameters;                                 \
	type __wrap_##name parameters                                  \
	{                                                              \
		bool failed = fails(kind, #name, "");                  \
		type result = __real_##name arguments;                 \
		if (failed)                                            \
			errno = number;                                \
		return failed ? failure : result;                      \
	}
#define STREAM(kind, type, name, parameters, arguments, failure, number) \
	type __real_##name parameters;                                   \
	type __wrap_##name parameters;                                   \
	type __wrap_##name parameters                                    \
	{                                                                \
		if (stream_fails(f, #name)) {                            \
			errno = number;                                  \
			return failure;                                  \
		}                                                        \
		return __real_##name arguments;                          \
	}
#define BY_HAND(name)

static bool
stream_fails(FILE *f, const char *name)
{
	bool failed = fails(IO, name, f == stderr ? "stderr" : f == stdout ? "stdout" : "");

	if (failed && f)
		f->_flags |= IS_ERROR;
	return failed;
}

#include "calls.def"

#define OPEN(name)                                                                        \
	int __wrap_##name(const char *path, int flags, ...);                              \
	int __wrap_##name(const char *path, int flags, ...)                               \
	{                                                                                 \
		va_list args;                                                             \
                                                                                          \
		va_start(args, flags);                                                    \
		mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0; \
		va_end(args);                                                             \
		if (fails(IO, #name, path)) {                                             \
			errno = EMFILE;                                                   \
			return -1;                                                        \
		}                                                                         \
		return __real_##name(path, flags, mode);                                  \
	}
OPEN(open)
OPEN(open64)

int __wrap_openat(int folder, const char *path, int flags, ...);
int __wrap_fprintf(FILE *f, const char *format, ...);
int __wrap_printf(const char *format, ...);
int __wrap_puts(const char *s);
int __wrap_putchar(int c);

int
__wrap_openat(int folder, const char *path, int flags, ...)
{
	va_list args;

	va_start(args, flags);
	mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (fails(IO, "openat", path)) {
		errno = EMFILE;
		return -1;
	}
	return __real_openat(folder, path, flags, mode);
}

int
__wrap_fprintf(FILE *f, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int n = __wrap_vfprintf(f, format, args);
	va_end(args);
	return n;
}

int
__wrap_printf(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	int n = __wrap_vfprintf(stdout, format, args);
	va_end(args);
	return n;
}

int
__wrap_puts(const char *s)
{
	return stream_fails(stdout, "puts") ? EOF : __real_puts(s);
}

int
__wrap_putchar(int c)
{
	return stream_fails(stdout, "putchar") ? EOF : __real_putchar(c);
}
