/* The file of --tune, in which choices of engines are kept from run to run. */
#include "base/files/files.h"
#include "runtime/library/library.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char first_line[] = "gradc tune 1\n";
enum { LETTERS = sizeof(first_line) - 1 };

static Status
fault(const char *path)
{
	return status_error(EXIT_SYSTEM, "--tune: %s: %s", path, strerror(errno));
}

/* A write may have been cut short: the next line must not continue it. */
static Status
end_last_line(const char *path, int fd, int64_t bytes)
{
	char last;

	bool ends = pread(fd, &last, 1, bytes - 1) != 1 || last == '\n';
	return ends || write(fd, "\n", 1) == 1 ? NULL : fault(path);
}

/* Checks the open file, and writes the first line of a new file. */
static Status
check(const char *path, int fd, bool writes)
{
	char line[LETTERS];
	struct stat s;

	if (fstat(fd, &s) != 0)
		return fault(path);
	if (!S_ISREG(s.st_mode))
		return status_error(EXIT_SYSTEM, "--tune: %s is not a regular file", path);
	if (s.st_size > TUNE_FILE_BYTES)
		return status_error(EXIT_SYSTEM,
		                    "--tune: %s has %lld bytes, more than %d: take another", path,
		                    (long long)s.st_size, TUNE_FILE_BYTES);
	if (s.st_size == 0)
		return !writes || write(fd, first_line, LETTERS) == LETTERS ? NULL : fault(path);
	if (pread(fd, line, LETTERS, 0) == LETTERS && memcmp(line, first_line, LETTERS) == 0)
		return writes ? end_last_line(path, fd, s.st_size) : NULL;
	return status_error(EXIT_SYSTEM,
	                    "--tune: %s exists and is not a file of --tune: take another name",
	                    path);
}

Status
tune_file_open(const char *path, bool writes, Tunings *out, bool *missing)
{
	int flags = writes ? O_RDWR | O_APPEND | O_CREAT : O_RDONLY;
	int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666);
	if (fd < 0 && writes && (errno == EACCES || errno == EROFS)) {
		/* it helps although nothing can be added to it */
		writes = false;
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	}
	void *bytes = NULL;
	int64_t n = 0;

	*missing = fd < 0 && !writes && errno == ENOENT;
	if (*missing)
		return NULL;
	if (fd < 0)
		return fault(path);
	Status status = check(path, fd, writes);
	close(fd);
	Arena *arena = arena_new();
	if (!status)
		status = file_read(arena, path, TUNE_FILE_BYTES, &bytes, &n);
	if (!status && n > LETTERS)
		tunings_parse(out, (char *)bytes + LETTERS, (size_t)n - LETTERS);
	arena_free(arena);
	return status;
}

bool
tune_file_add(const char *path, const TunedEngine *e)
{
	Text line = {0};

	tunings_print(e, &line);
	text_add(&line, "\n");
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	bool ok = fd >= 0 && write(fd, line.at, (size_t)line.n) == (ssize_t)line.n;
	if (fd >= 0)
		ok &= close(fd) == 0;
	text_free(&line);
	return ok;
}
