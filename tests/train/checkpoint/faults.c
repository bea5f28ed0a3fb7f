/* A library for LD_PRELOAD that makes the calls of checkpoint writing fail.
 *
 *	FAULT_PATH=TEXT      only files with TEXT in their path
 *	FAULT_CALL=NAME      mkdir, open, write, fsync, rename, unlink, pread; any: all of these but pread
 *	FAULT_AT=N           number of the first failing call, from 1
 *	FAULT_TIMES=N        number of failing calls (1)
 *	FAULT_HOW=kill       kills the process, in the middle of a write
 *	          short      does half of the request, or reads no bytes
 *	          hang       never returns
 *	          slow       takes FAULT_MS (100) milliseconds longer
 *	          flip       silently flips a bit in the middle of a write
 *	          NUMBER     fails with this errno
 *	FAULT_LOG=FILE       gets a line for each call: its name and its path */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GO_ON, FAIL, SHORT, FLIP };
enum { BLOCK = 4096 }; /* block size of direct writes */
static atomic_int calls;

#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))
typedef ssize_t (*WriteFn)(int, const void *, size_t);
typedef ssize_t (*ReadFn)(int, void *, size_t, off_t);
typedef int (*OpenFn)(const char *, int, ...);
typedef int (*PathFn)(const char *, const char *);
typedef int (*At2Fn)(int, const char *, int, const char *, unsigned);

static int
number(const char *name, int otherwise)
{
	return getenv(name) ? atoi(getenv(name)) : otherwise;
}

static void
note(const char *call, const char *path)
{
	FILE *file = getenv("FAULT_LOG") ? fopen(getenv("FAULT_LOG"), "a") : NULL;

	if (file) {
		fprintf(file, "%s %s\n", call, path);
		fclose(file);
	}
}

static int
what_now(const char *call, const char *path)
{
	const char *want = getenv("FAULT_CALL"), *how = getenv("FAULT_HOW");
	int at = number("FAULT_AT", 0);

	if (!want || !getenv("FAULT_PATH") || !strstr(path, getenv("FAULT_PATH")) ||
	    (strcmp(want, call) != 0 && (strcmp(want, "any") != 0 || strcmp(call, "pread") == 0)))
		return GO_ON;
	int n = atomic_fetch_add(&calls, 1) + 1;
	note(call, path);
	if (!how || n < at || n >= at + number("FAULT_TIMES", 1))
		return GO_ON;
	if (strcmp(how, "kill") == 0 && strcmp(call, "write") != 0)
		kill(getpid(), SIGKILL);
	while (strcmp(how, "hang") == 0)
		pause();
	if (strcmp(how, "slow") == 0) {
		usleep(1000 * (useconds_t)number("FAULT_MS", 100));
		return GO_ON;
	}
	errno = atoi(how);
	if (strcmp(how, "flip") == 0)
		return FLIP;
	return strcmp(how, "short") == 0 || strcmp(how, "kill") == 0 ? SHORT : FAIL;
}

static int
what_now_fd(const char *call, int fd)
{
	char link[64], path[4096];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	return what_now(call, path);
}

ssize_t
write(int fd, const void *bytes, size_t n)
{
	WriteFn next = NEXT(WriteFn, "write");
	int what = what_now_fd("write", fd);

	if (what == FAIL)
		return -1;
	if (what == GO_ON)
		return next(fd, bytes, n);
	if (what == FLIP) {
		char *copy = memcpy(aligned_alloc(BLOCK, (n + BLOCK - 1) / BLOCK * BLOCK), bytes,
		                    n);

		copy[n / 2] ^= 1;
		ssize_t all = next(fd, copy, n);
		free(copy);
		return all;
	}
	ssize_t done = next(fd, bytes, n / 2 < BLOCK ? n / 2 : n / 2 / BLOCK * BLOCK);
	if (strcmp(getenv("FAULT_HOW"), "kill") == 0)
		kill(getpid(), SIGKILL);
	return done;
}

ssize_t
pread(int fd, void *bytes, size_t n, off_t offset)
{
	int what = what_now_fd("pread", fd);

	if (what != GO_ON)
		return what == FAIL ? -1 : 0;
	return NEXT(ReadFn, "pread")(fd, bytes, n, offset);
}

int
fsync(int fd)
{
	return what_now_fd("fsync", fd) == GO_ON ? NEXT(int (*)(int), "fsync")(fd) : -1;
}

int
open(const char *path, int flags, ...)
{
	va_list args;

	va_start(args, flags);
	int mode = flags & O_CREAT ? va_arg(args, int) : 0;
	va_end(args);
	if ((flags & O_CREAT) && what_now("open", path) != GO_ON)
		return -1;
	return NEXT(OpenFn, "open")(path, flags, mode);
}

int
mkdir(const char *path, mode_t mode)
{
	return what_now("mkdir", path) == GO_ON
	               ? NEXT(int (*)(const char *, mode_t), "mkdir")(path, mode)
	               : -1;
}

int
rename(const char *from, const char *to)
{
	return what_now("rename", from) == GO_ON ? NEXT(PathFn, "rename")(from, to) : -1;
}

int
renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
	return what_now("rename", from) == GO_ON
	               ? NEXT(At2Fn, "renameat2")(from_fd, from, to_fd, to, flags)
	               : -1;
}

int
unlinkat(int fd, const char *path, int flags)
{
	return what_now_fd("unlink", fd) == GO_ON
	               ? NEXT(int (*)(int, const char *, int), "unlinkat")(fd, path, flags)
	               : -1;
}
