/* Memory for states that are not kept on the device: --offload selects the states, and --offload-dir puts them into a file, for
 * models that are larger than the host's memory. The file has no name, so a killed process leaves nothing behind. All its
 * blocks are allocated before training starts, so that no write to a page can fail. */
#include "runtime/exec/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the file */
/* A file that disappears when it is closed. */
static int
open_nameless(const char *folder)
{
	int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
		return fd;
	char *path = memory_get(strlen(folder) + sizeof("/offload-XXXXXX"));
	sprintf(path, "%s/offload-XXXXXX", folder);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd >= 0)
		unlink(path);
	memory_free(path);
	return fd;
}

static Status
map_file(const char *folder, int fd, int64_t bytes, Span *out)
{
	char text[32];
	int error = posix_fallocate(fd, 0, bytes);
	void *at = error ? MAP_FAILED
	                 : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		return status_error(EXIT_SYSTEM, "--offload-dir=%s: a file of %s: %s", folder,
		                    bytes_text(text, (double)bytes),
		                    strerror(error ? error : errno));
	*out = (Span){at, bytes};
	return NULL;
}

bool
offload_in_file(const Executor *x, Space space)
{
	return x->offload_folder &&
	       (space == SPACE_OPTIMIZER || (space == SPACE_OFFLOAD && !executor_is_apart(x)));
}

Status
offload_alloc(const Executor *x, int64_t bytes, Span *out)
{
	if (!x->offload_folder || bytes == 0)
		return x->ops->alloc(x->device, MEMORY_PINNED, bytes, out);
	*out = (Span){0};
	int fd = open_nameless(x->offload_folder);
	if (fd < 0)
		return status_error(EXIT_SYSTEM, "--offload-dir=%s: %s", x->offload_folder,
		                    strerror(errno));
	Status status = map_file(x->offload_folder, fd, bytes, out);
	close(fd);
	return status;
}

void
offload_free(const Executor *x, Span span)
{
	if (!x->offload_folder || span.bytes == 0)
		x->ops->free(x->device, MEMORY_PINNED, span);
	else if (span.at)
		munmap(span.at, (size_t)span.bytes);
}
