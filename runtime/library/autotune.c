/* Opens the file of --autotune, in which libraries keep the results of timing trials. It has a first line that identifies the
 * file, then one line per result. */
#include "runtime/library/library.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char first_line[] = "gradc autotune 1\n";

static Status
fault(const char *path)
{
	return status_error(EXIT_SYSTEM, "--autotune: %s: %s", path, strerror(errno));
}

/* Checks the file, and writes the first line of a new file. */
static Status
check(const char *path, int fd, bool writes)
{
	enum { LETTERS = sizeof(first_line) - 1 };
	char line[LETTERS];
	struct stat s;

	if (fstat(fd, &s) != 0)
		return fault(path);
	if (!S_ISREG(s.st_mode))
		return status_error(EXIT_SYSTEM, "--autotune: %s is not a regular file", path);
	if (s.st_size > AUTOTUNE_BYTES)
		return status_error(EXIT_SYSTEM,
		                    "--autotune: %s has %lld bytes, more than %d: take another",
		                    path, (long long)s.st_size, AUTOTUNE_BYTES);
	if (s.st_size == 0)
		return !writes || write(fd, first_line, LETTERS) == LETTERS ? NULL : fault(path);
	if (pread(fd, line, LETTERS, 0) == LETTERS && memcmp(line, first_line, LETTERS) == 0)
		return NULL;
	return status_error(
		EXIT_SYSTEM,
		"--autotune: %s exists and is not a file of --autotune: take another name", path);
}

Status
autotune_file_open(const char *path, bool writes, bool *missing)
{
	int flags = writes ? O_RDWR | O_APPEND | O_CREAT : O_RDONLY;
	int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666);

	*missing = fd < 0 && !writes && errno == ENOENT;
	if (*missing)
		return NULL;
	if (fd < 0)
		return fault(path);
	Status status = check(path, fd, writes);
	close(fd);
	return status;
}
