/* Rows of one input: read from the file, checked, then converted to the port's type. */
#include "runtime/data/sources.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { KEPT_FILES = 8, KEPT_ROW = 1 << 14 };

bool
source_is_sampled(const Source *s)
{
	return s->port->sample_axis >= 0 && !s->constant;
}

/* Does the host convert nothing? Then rows are read directly to their place. */
static bool
is_direct(const Source *s, DType from)
{
	return s->raw || (from == (DType)s->port->dtype && from != BOOL && !s->mean &&
	                  s->scale == 1 && s->offset == 0);
}

int64_t
source_sample_bytes(const Source *s)
{
	return dtype_bytes(s->raw ? U8 : (DType)s->port->dtype, s->elements);
}

/* The fault for a file that has become shorter: it was long enough when it was opened. */
static Status
fault_shrunk(const Source *s, const DataFile *file, int64_t row)
{
	int64_t size = dtype_bytes(file->info.dtype, s->elements);
	int64_t shift = dtype_bytes(file->info.dtype, s->shift);
	struct stat st;

	if (fstat(file->fd, &st) != 0)
		return status_error(EXIT_SYSTEM, "%s: %s", file->path, strerror(errno));
	int64_t whole = (st.st_size - file->info.data_offset - shift) / (size > 0 ? size : 1);
	return status_error(
		EXIT_DATA, "%s: row %lld: the file has shrunk to %lld bytes since it was opened",
		file->path, (long long)(whole > row ? whole : row), (long long)st.st_size);
}

static bool
has_shrunk(const DataFile *file, int64_t end)
{
	struct stat st;

	return fstat(file->fd, &st) == 0 && st.st_size < end;
}

/* Reads bytes [at, at + n) of the file's data. row: number of the row at `at`, for messages. */
static Status
read_bytes(const Source *s, const DataFile *file, int64_t row, void *to, int64_t n, int64_t at)
{
	int64_t offset = file->info.data_offset + at;
	Status status = file_pread(file->fd, file->path, to, n, offset);

	if (status && has_shrunk(file, offset + n)) {
		status_free(status);
		return fault_shrunk(s, file, row);
	}
	return status;
}

/* Reading a random row costs a system call, about a microsecond, as long as a small model computes. So small files are kept in
 * memory. */
Status
source_keep(Arena *arena, Source *s, int64_t *left)
{
	int64_t bytes = 0;

	for (int i = 0; i < s->set.n_files; i++)
		bytes += s->set.files[i].kept ? 0 : s->set.files[i].info.n_bytes;
	if (s->set.n_files == 0 || s->set.n_files > KEPT_FILES || bytes > *left ||
	    dtype_bytes(s->set.files[0].info.dtype, s->elements) >= KEPT_ROW)
		return NULL;
	*left -= bytes;
	for (int i = 0; i < s->set.n_files; i++) {
		DataFile *file = &s->set.files[i];
		int64_t n = file->info.n_bytes;

		if (file->kept)
			continue;
		file->kept = arena_alloc(arena, (size_t)n);
		RETURN_IF_ERROR(read_bytes(s, file, 0, file->kept, n, 0));
	}
	return NULL;
}

Status
source_check_kept(const Source *s)
{
	for (int i = 0; i < s->set.n_files; i++) {
		const DataFile *file = &s->set.files[i];

		if (file->kept && has_shrunk(file, file->info.data_offset + file->info.n_bytes))
			return fault_shrunk(s, file, 0);
	}
	return NULL;
}

/* Reads rows [row, row+n), all in one file. */
static Status
read_part(const Source *s, const DataFile *file, int64_t row, int64_t n, char *to, char *buffer)
{
	DType dtype = file->info.dtype;
	int64_t first = (row - file->first_row) * s->elements + s->shift, count = n * s->elements;
	int64_t bytes = dtype_bytes(dtype, count), at = dtype_bytes(dtype, first);
	void *raw = is_direct(s, dtype) ? to : buffer;

	if (file->kept)
		memcpy(raw, file->kept + at, (size_t)bytes);
	else
		RETURN_IF_ERROR(read_bytes(s, file, row - file->first_row, raw, bytes, at));
	RETURN_IF_ERROR(validate_values(s, file, row - file->first_row, count, raw));
	if (raw != to)
		decode(s, dtype, raw, count, to);
	return NULL;
}

Status
source_read(const Source *s, int64_t row, int64_t n, char *to, char *raw)
{
	int64_t bytes = source_sample_bytes(s);

	for (int i = 0; i < s->set.n_files && n > 0; i++) {
		const DataFile *file = &s->set.files[i];
		int64_t left = file->first_row + file->rows - row, part = n < left ? n : left;

		if (left <= 0)
			continue;
		RETURN_IF_ERROR(read_part(s, file, row, part, to, raw));
		row += part;
		n -= part;
		to += part * bytes;
	}
	return NULL;
}
