/* Appends to files that grow, such as logs. An addition is written whole or not at all. */
#include "base/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Status
system_error(const char *path)
{
	return status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
}

struct FileAppender {
	int fd;
	char *path;
};

Status
file_appender_open(const char *path, bool keep, FileAppender **out)
{
	size_t n = strlen(path) + 1;
	int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (keep ? 0 : O_TRUNC);
	struct stat st;
	bool is_there = stat(path, &st) == 0, is_fifo = is_there && S_ISFIFO(st.st_mode);

	*out = NULL;
	if (is_there)
		RETURN_IF_ERROR(paths_refuse(path, &st));
	FileAppender *a = memory_get(sizeof(*a));
	*a = (FileAppender){.path = memcpy(memory_get(n), path, n)};
	a->fd = open(path, is_fifo ? flags | O_NONBLOCK : flags,
	             0666); /* O_NONBLOCK: opening a FIFO does not wait for a reader */
	if (a->fd >= 0 && is_fifo)
		fcntl(a->fd, F_SETFL, fcntl(a->fd, F_GETFL) & ~O_NONBLOCK);
	if (a->fd < 0) {
		Status status = is_fifo && errno == ENXIO
		                        ? status_error(EXIT_SYSTEM, "%s: a FIFO that nobody reads",
		                                       path)
		                        : system_error(path);
		memory_free(a->path);
		memory_free(a);
		return status;
	}
	*out = a;
	return NULL;
}

Status
file_appender_add(FileAppender *a, const void *bytes, size_t n)
{
	const char *at = bytes;
	size_t left = n;

	while (left) {
		ssize_t written = write(a->fd, at, left);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			break;
		at += written;
		left -= (size_t)written;
	}
	if (!left)
		return NULL;
	Status status = system_error(a->path);
	struct stat st;
	if (left < n && fstat(a->fd, &st) == 0 && S_ISREG(st.st_mode) &&
	    ftruncate(a->fd, st.st_size - (off_t)(n - left)) != 0)
		return status_annotate(status, "the last line is not whole");
	return status;
}

Status
file_appender_close(FileAppender *a)
{
	if (!a)
		return NULL;
	Status status = close(a->fd) == 0 ? NULL : system_error(a->path);
	memory_free(a->path);
	memory_free(a);
	return status;
}
