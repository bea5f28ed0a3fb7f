/* Reads and writes files: reads regular files only, and writes files that appear under their name only when they are
 * complete. */
#include "base/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES 65536
#define MAX_TEMPORARY_NAMES 1000

struct FileWriter {
	int fd;
	/* the path as given, for messages; the path after symbolic links were followed */
	char *path, *target;
	char *temporary; /* temporary path; NULL: the file has its final name from the start */
	/* true: the new file replaces an old file, and gets the old file's owner and permissions */
	bool replaces;
	struct stat old;
	CleanupSlot cleanup; /* slot of the temporary file */
	int64_t offset;      /* offset of the next byte, buffered bytes included */
	bool wants_direct, direct;
	size_t n_buffered, capacity;
	unsigned char *buffer;
};

static Status
system_error(int exit_code, const char *path)
{
	return status_error(exit_code, "%s: %s", path, strerror(errno));
}

Status
file_open_regular(const char *path, int exit_code, int *fd, int64_t *n)
{
	struct stat st;
	Status status = NULL;

	*n = 0;
	*fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (*fd < 0)
		return system_error(exit_code, path);
	if (fstat(*fd, &st) != 0)
		status = system_error(exit_code, path);
	else if (!S_ISREG(st.st_mode))
		status = status_error(exit_code, "%s: not a regular file", path);
	if (status) {
		close(*fd);
		*fd = -1;
		return status;
	}
	*n = st.st_size;
	return NULL;
}

Status
file_pread_as(int exit_code, int fd, const char *path, void *to, int64_t n, int64_t offset)
{
	char *at = to;
	int64_t end;

	if (n < 0 || offset < 0 || !size_add(offset, n, &end))
		return status_error(exit_code, "%s: cannot read %lld bytes at offset %lld", path,
		                    (long long)n, (long long)offset);
	while (offset < end) {
		ssize_t got = pread(fd, at, (size_t)(end - offset), (off_t)offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return system_error(exit_code, path);
		if (got == 0)
			return status_error(exit_code,
			                    "%s: truncated: ends at byte %lld, %lld needed", path,
			                    (long long)offset, (long long)end);
		at += got;
		offset += got;
	}
	return NULL;
}

Status
file_pread(int fd, const char *path, void *to, int64_t n, int64_t offset)
{
	return file_pread_as(EXIT_SYSTEM, fd, path, to, n, offset);
}

static void
close_descriptor(void *fd)
{
	close((int)(intptr_t)fd);
}

/* A NUL follows the bytes; *n does not count it. */
Status
file_read(Arena *arena, const char *path, int64_t limit, void **bytes, int64_t *n)
{
	Status status;
	int64_t size;
	int fd;

	*bytes = NULL;
	*n = 0;
	RETURN_IF_ERROR(file_open_regular(path, EXIT_SYSTEM, &fd, &size));
	if (size > limit) {
		close(fd);
		return status_error(EXIT_SYSTEM, "%s: %lld bytes, at most %lld can be read", path,
		                    (long long)size, (long long)limit);
	}
	memory_hold(close_descriptor, (void *)(intptr_t)fd);
	*bytes = arena_alloc(arena, (size_t)size + 1);
	status = file_pread(fd, path, *bytes, size, 0);
	memory_let_go();
	close(fd);
	if (status)
		*bytes = NULL;
	else
		*n = size;
	return status;
}

bool
file_set_direct(int fd, bool direct)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

static size_t
folder_length(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Creates the temporary file under an unused name in the folder of w->target. */
static Status
open_temporary(FileWriter *w)
{
	int folder = (int)folder_length(w->target);

	for (int i = 0; i < MAX_TEMPORARY_NAMES; i++) {
		Text name = {0};
		text_printf(&name, "%.*s.gradc-%ld-%d.tmp", folder, w->target, (long)getpid(), i);
		if (!cleanup_begin_making()) {
			text_free(&name);
			return status_error(EXIT_SYSTEM, "%s: the process is ending", w->path);
		}
		w->fd = open(name.at, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
		             w->replaces ? 0600 : 0666);
		if (w->fd >= 0)
			w->cleanup = cleanup_add_path(name.at);
		cleanup_end_making();
		if (w->fd >= 0) {
			w->temporary = name.at;
			return NULL;
		}
		text_free(&name);
		if (errno != EEXIST)
			break;
	}
	return system_error(EXIT_SYSTEM, w->path);
}

static void
writer_free(FileWriter *w)
{
	if (w->fd >= 0)
		close(w->fd);
	cleanup_forget(w->cleanup);
	memory_free(w->path);
	memory_free(w->target);
	memory_free(w->temporary);
	memory_free(w);
}

static void
abort_writer(void *w)
{
	file_writer_abort(w);
}

/* buffer NULL: the writer allocates a buffer. */
static FileWriter *
writer_new(const char *path, const char *target, void *buffer, size_t capacity)
{
	size_t n = strlen(path) + 1;
	FileWriter *w = memory_get(sizeof(*w) + (buffer ? 0 : BUFFER_BYTES));

	*w = (FileWriter){.fd = -1, .cleanup = -1, .wants_direct = buffer};
	memory_on_orphaned(w, abort_writer);
	w->path = memcpy(memory_get(n), path, n);
	n = strlen(target) + 1;
	w->target = memcpy(memory_get(n), target, n);
	w->buffer = buffer ? buffer : (unsigned char *)(w + 1);
	w->capacity = buffer ? capacity : BUFFER_BYTES;
	return w;
}

/* Refuses to replace a device, or an input of this run. A symbolic link at the target itself may be replaced. */
static Status
look_at_old(FileWriter *w)
{
	w->replaces = lstat(w->target, &w->old) == 0 && !S_ISLNK(w->old.st_mode);
	if (!w->replaces)
		return NULL;
	if (!S_ISREG(w->old.st_mode))
		return status_error(EXIT_SYSTEM, "%s: not a regular file", w->path);
	return paths_refuse(w->path, &w->old);
}

/* Makes the new file readable for the same users as the old file. If this process may not set the
 * old file's group, the file's group has other members; so the group then gets no permission that
 * not everybody has. */
static Status
take_permissions(FileWriter *w)
{
	mode_t mode = w->old.st_mode & 0777;

	if (!w->replaces)
		return NULL;
	bool has_group = fchown(w->fd, w->old.st_uid, w->old.st_gid) == 0 ||
	                 fchown(w->fd, (uid_t)-1, w->old.st_gid) == 0;
	if (!has_group)
		mode &= 0707 | (mode & 07) << 3;
	return fchmod(w->fd, mode) == 0 ? NULL : system_error(EXIT_SYSTEM, w->path);
}

static Status
open_at(const char *path, const char *target, FileWriter **out)
{
	FileWriter *w = writer_new(path, target, NULL, 0);
	Status status = look_at_old(w);

	*out = NULL;
	if (!status)
		status = open_temporary(w);
	if (!status)
		status = take_permissions(w);
	if (status)
		file_writer_abort(w);
	else
		*out = w;
	return status;
}

Status
file_writer_open(const char *path, FileWriter **out)
{
	struct stat st;

	*out = NULL;
	bool is_there = stat(path, &st) == 0;
	if (is_there &&
	    !S_ISREG(st.st_mode)) /* stat also follows links in /proc, such as /dev/stdout */
		return status_error(EXIT_SYSTEM, "%s: not a regular file", path);
	if (!is_there && errno == ELOOP)
		return system_error(EXIT_SYSTEM, path);
	Arena *arena = arena_new();
	Status status = open_at(path, path_target(arena, path), out);
	arena_free(arena);
	return status;
}

Status
file_writer_open_name(const char *path, FileWriter **out)
{
	return open_at(path, path, out);
}

Status
file_writer_open_part(const char *path, void *buffer, int64_t bytes, FileWriter **out)
{
	FileWriter *w = writer_new(path, path, buffer, (size_t)bytes);
	Status status = NULL;

	*out = NULL;
	w->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (w->fd < 0) {
		status = system_error(EXIT_SYSTEM, path);
		writer_free(w);
	} else {
		*out = w;
	}
	return status;
}

/* Was a direct write refused? A file system may allow direct access and still refuse single writes. */
static bool
is_refused(FileWriter *w)
{
	if (errno != EINVAL || !w->direct || !file_set_direct(w->fd, false))
		return false;
	w->wants_direct = w->direct = false;
	return true;
}

static Status
write_all(FileWriter *w, const unsigned char *bytes, size_t n)
{
	while (n) {
		ssize_t written = write(w->fd, bytes, n);
		if (written < 0 && (errno == EINTR || is_refused(w)))
			continue;
		if (written < 0)
			return system_error(EXIT_SYSTEM, w->path);
		bytes += written;
		n -= (size_t)written;
	}
	return NULL;
}

/* Writes whole blocks directly; the incomplete block at the end of the file goes through the page cache. */
static Status
write_part(FileWriter *w, const unsigned char *bytes, size_t n)
{
	size_t whole = n - n % FILE_BLOCK;

	if (w->wants_direct && !w->direct && n >= FILE_DIRECT_LEAST)
		w->wants_direct = w->direct = file_set_direct(w->fd, true);
	if (!w->direct)
		return write_all(w, bytes, n);
	RETURN_IF_ERROR(write_all(w, bytes, whole));
	if (n > whole)
		w->direct = !file_set_direct(w->fd, false);
	return write_all(w, bytes + whole, n - whole);
}

static Status
writer_flush(FileWriter *w)
{
	size_t n = w->n_buffered;

	w->n_buffered = 0;
	return write_part(w, w->buffer, n);
}

/* How many of n bytes can be written from the caller's memory when the buffer is empty. With direct writes: whole aligned
 * blocks. Else: all bytes, if they would fill the buffer. */
static size_t
straight_bytes(const FileWriter *w, const unsigned char *at, size_t n)
{
	if (!w->wants_direct)
		return n >= w->capacity ? n : 0;
	return (uintptr_t)at % FILE_BLOCK == 0 && n >= FILE_DIRECT_LEAST ? n - n % FILE_BLOCK : 0;
}

/* How many of n bytes go into the buffer: as many as fit, or only the bytes that complete the current block, if the
 * bytes after these can be written from the caller's memory. */
static size_t
buffered_bytes(const FileWriter *w, const unsigned char *at, size_t n)
{
	size_t room = w->capacity - w->n_buffered;
	size_t rest = (FILE_BLOCK - w->n_buffered % FILE_BLOCK) % FILE_BLOCK;

	if (w->wants_direct && n > rest && straight_bytes(w, at + rest, n - rest))
		return rest;
	return n < room ? n : room;
}

Status
file_writer_add(FileWriter *w, const void *bytes, int64_t n)
{
	const unsigned char *at = bytes;
	size_t left = n > 0 ? (size_t)n : 0, part;

	w->offset += (int64_t)left;
	for (; left; at += part, left -= part) {
		part = w->n_buffered == 0 ? straight_bytes(w, at, left) : 0;
		if (part) {
			RETURN_IF_ERROR(write_part(w, at, part));
			continue;
		}
		part = buffered_bytes(w, at, left);
		memcpy(w->buffer + w->n_buffered, at, part);
		w->n_buffered += part;
		if (w->n_buffered == w->capacity || part < left)
			RETURN_IF_ERROR(writer_flush(w));
	}
	return NULL;
}

/* Writes the parts in order. Parts that follow each other in memory are written together. */
Status
file_writer_add_parts(FileWriter *w, const FilePart *parts, int n)
{
	Status status = NULL;

	for (int i = 0, next; i < n && !status; i = next) {
		int64_t bytes = parts[i].n;

		for (next = i + 1; next < n; next++) {
			if ((uintptr_t)parts[next].at != (uintptr_t)parts[i].at + (uintptr_t)bytes)
				break;
			bytes += parts[next].n;
		}
		status = file_writer_add(w, parts[i].at, bytes);
	}
	return status;
}

int64_t
file_writer_offset(const FileWriter *w)
{
	return w->offset;
}

Status
file_writer_pad(FileWriter *w, int64_t alignment)
{
	static const unsigned char zeros[4096];
	int64_t n = (alignment - w->offset % alignment) % alignment;

	while (n > 0) {
		int64_t part = n < (int64_t)sizeof(zeros) ? n : (int64_t)sizeof(zeros);
		RETURN_IF_ERROR(file_writer_add(w, zeros, part));
		n -= part;
	}
	return NULL;
}

Status
folder_sync(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	Status status = NULL;

	if (fd < 0)
		return system_error(EXIT_SYSTEM, path);
	if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
		status = system_error(EXIT_SYSTEM, path);
	close(fd);
	return status;
}

/* Makes the rename durable. A failure is not an error, because the file is complete; but after a crash of the machine
 * the old file may be there. */
static void
sync_folder_of(const char *path)
{
	size_t n = folder_length(path);
	char *folder = memory_get(n + 2);

	memcpy(folder, path, n);
	memcpy(folder + n, ".", 2);
	status_free(folder_sync(folder));
	memory_free(folder);
}

/* Lets every user who may read the file run it. */
static Status
make_executable(FileWriter *w)
{
	struct stat st;

	if (fstat(w->fd, &st) != 0 ||
	    fchmod(w->fd, (st.st_mode & 0777) | (st.st_mode & 0444) >> 2) != 0)
		return system_error(EXIT_SYSTEM, w->path);
	return NULL;
}

static Status
writer_finish(FileWriter *w, bool executable)
{
	int closed;

	RETURN_IF_ERROR(writer_flush(w));
	if (executable)
		RETURN_IF_ERROR(make_executable(w));
	if (w->temporary &&
	    fsync(w->fd) != 0) /* file_sync_parts syncs files without a temporary name */
		return system_error(EXIT_SYSTEM, w->path);
	closed = close(w->fd);
	w->fd = -1;
	if (closed != 0 || (w->temporary && rename(w->temporary, w->target) != 0))
		return system_error(EXIT_SYSTEM, w->path);
	if (w->temporary)
		sync_folder_of(w->target);
	return NULL;
}

Status
file_writer_commit(FileWriter *w, bool executable)
{
	memory_hold(abort_writer, w);
	Status status = writer_finish(w, executable);
	memory_let_go();
	if (status)
		file_writer_abort(w);
	else
		writer_free(w);
	return status;
}

void
file_writer_abort(FileWriter *w)
{
	if (!w)
		return;
	if (w->fd >= 0 || w->temporary)
		unlink(w->temporary ? w->temporary : w->path);
	writer_free(w);
}

Status
file_writer_end(FileWriter *w, Status status)
{
	if (!status)
		return file_writer_commit(w, false);
	file_writer_abort(w);
	return status;
}

Status
file_write(const char *path, const void *bytes, int64_t n)
{
	FileWriter *w;

	RETURN_IF_ERROR(file_writer_open(path, &w));
	return file_writer_end(w, file_writer_add(w, bytes, n));
}

/* Reads n bytes at the offset of a block. If a direct read fails or is short, reads again through the page cache. */
static Status
read_again(int fd, const char *path, void *to, int64_t n, int64_t offset, bool *direct)
{
	int64_t blocks = (n + FILE_BLOCK - 1) / FILE_BLOCK;

	if (*direct) {
		ssize_t got = pread(fd, to, (size_t)(blocks * FILE_BLOCK), (off_t)offset);
		if (got == n)
			return NULL;
		if (got < 0 && errno != EINVAL && errno != EINTR)
			return system_error(EXIT_SYSTEM, path);
		*direct = !file_set_direct(fd, false);
	}
	return file_pread(fd, path, to, n, offset);
}

/* Distributes the bytes of a file to its parts, in order. */
typedef struct {
	const FilePart *parts;
	const FileSink *seen;
	int64_t in_part; /* offset of the next byte in `part` */
	int part;
} Sharing;

static void
share_out(Sharing *s, const char *bytes, int64_t n)
{
	for (int64_t at = 0, step; at < n; at += step) {
		int64_t left = s->parts[s->part].n - s->in_part;

		step = left < n - at ? left : n - at;
		s->seen->take(s->seen->context, s->part, bytes + at, step);
		s->in_part += step;
		if (step == left) {
			s->part++;
			s->in_part = 0;
		}
	}
}

Status
file_sync_parts(const char *path, const FilePart *parts, int n, void *buffer, int64_t bytes,
                const FileSink *seen)
{
	Sharing s = {.parts = parts, .seen = seen};
	int64_t want = 0, got;
	Status status = NULL;
	int fd;

	for (int i = 0; i < n; i++)
		want += parts[i].n;
	RETURN_IF_ERROR(file_open_regular(path, EXIT_SYSTEM, &fd, &got));
	if (got != want)
		status = status_error(EXIT_SYSTEM, "%s: %lld bytes, %lld were written", path,
		                      (long long)got, (long long)want);
	if (!status && fsync(fd) != 0)
		status = system_error(EXIT_SYSTEM, path);
	bool direct = !status && got >= FILE_DIRECT_LEAST && file_set_direct(fd, true);
	for (int64_t first = 0; first < got && !status; first += bytes) {
		int64_t part = got - first < bytes ? got - first : bytes;

		status = read_again(fd, path, buffer, part, first, &direct);
		if (!status)
			share_out(&s, buffer, part);
	}
	close(fd);
	return status;
}

static Status
make_one_folder(const char *path)
{
	struct stat st;
	int error;

	if (mkdir(path, 0777) == 0)
		return NULL;
	error = errno;
	if (stat(path, &st) == 0)
		return S_ISDIR(st.st_mode) ? NULL
		                           : status_error(EXIT_SYSTEM, "%s: not a directory", path);
	return status_error(EXIT_SYSTEM, "%s: %s", path, strerror(error));
}

Status
folder_make(const char *path)
{
	size_t n = strlen(path) + 1;
	char *prefix = memcpy(memory_get(n), path, n);
	Status status = NULL;

	for (char *c = prefix; *c && !status; c++) {
		if (*c != '/' || c == prefix)
			continue;
		*c = '\0';
		status = make_one_folder(prefix);
		*c = '/';
	}
	if (!status)
		status = make_one_folder(prefix);
	memory_free(prefix);
	return status;
}

char *
path_join(Arena *arena, const char *folder, const char *name)
{
	size_t n = strlen(folder);

	return arena_printf(arena, "%s%s%s", folder, n && folder[n - 1] != '/' ? "/" : "", name);
}

const char *
path_real(Arena *arena, const char *path)
{
	char *resolved = realpath(path, NULL);
	const char *copy = resolved ? arena_strdup(arena, resolved) : NULL;

	free(resolved);
	return copy;
}

Status
file_read_regular(Arena *arena, const char *path, int exit_code, int64_t limit, void **bytes,
                  int64_t *n)
{
	int fd;

	RETURN_IF_ERROR(file_open_regular(path, exit_code, &fd, n));
	Status status = *n > limit
	                        ? status_error(exit_code, "%s: %lld bytes, at most %lld are read",
	                                       path, (long long)*n, (long long)limit)
	                        : NULL;
	if (!status) {
		*bytes = arena_alloc(arena, (size_t)*n + 1);
		status = file_pread(fd, path, *bytes, *n, 0);
	}
	close(fd);
	return status;
}
