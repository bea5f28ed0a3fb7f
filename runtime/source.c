/* Rows of one input: read as the file has them, checked, then converted to the type of the port. */
#include "runtime/runtime_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

bool
source_is_sampled(const Source *s)
{
	return s->port->sample_axis >= 0 && !s->constant;
}

/* Rows are read to where they belong when nothing converts them. */
static bool
is_direct(const Source *s, DType from)
{
	return from == (DType)s->port->dtype && from != BOOL && !s->mean && s->scale == 1 &&
	       s->offset == 0;
}

/* It was long enough when it was opened. */
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

/* Rows [row, row+n) that lie in one file. */
static Status
read_part(Source *s, const DataFile *file, int64_t row, int64_t n, char *to)
{
	DType dtype = file->info.dtype;
	int64_t first = (row - file->first_row) * s->elements + s->shift, count = n * s->elements;
	int64_t bytes = dtype_bytes(dtype, count);
	int64_t offset = file->info.data_offset + dtype_bytes(dtype, first);
	void *raw = is_direct(s, dtype) ? to : s->raw;
	Status status = file_pread(file->fd, file->path, raw, bytes, offset);

	if (status && has_shrunk(file, offset + bytes)) {
		status_free(status);
		return fault_shrunk(s, file, row - file->first_row);
	}
	RETURN_IF_ERROR(status);
	RETURN_IF_ERROR(validate_values(s, file, row - file->first_row, count, raw));
	if (raw != to)
		decode(s, dtype, raw, count, to);
	return NULL;
}

Status
source_read_files(Source *s, int64_t row, int64_t n, char *to)
{
	int64_t bytes = dtype_bytes((DType)s->port->dtype, s->elements);

	for (int i = 0; i < s->set.n_files && n > 0; i++) {
		const DataFile *file = &s->set.files[i];
		int64_t left = file->first_row + file->rows - row, part = n < left ? n : left;

		if (left <= 0)
			continue;
		RETURN_IF_ERROR(read_part(s, file, row, part, to));
		row += part;
		n -= part;
		to += part * bytes;
	}
	return NULL;
}

Status
source_read_constant(Source *s, int64_t row, int64_t n, char *to)
{
	(void)row;
	(void)n;
	memcpy(to, s->constant, (size_t)dtype_bytes((DType)s->port->dtype, s->elements));
	return NULL;
}
