/* Rows of one input: read as the file has them, checked, then converted to the type of the port. */
#include "runtime/runtime_impl.h"

#include <string.h>

bool
source_is_sampled(const Source *s)
{
	return s->port->sample_axis >= 0 && !s->constant;
}

static double
load(DType dtype, const void *raw, int64_t i)
{
	return dtype_is_float(dtype) ? dtype_load_float(dtype, raw, i)
	                             : (double)dtype_load_int(dtype, raw, i);
}

/* x * scale + offset, then (x - mean) / std of its channel. */
static void
convert_scaled(const Source *s, DType from, int64_t n, char *to)
{
	for (int64_t i = 0; i < n; i++) {
		double x = load(from, s->raw, i) * s->scale + s->offset;

		if (s->mean) {
			int64_t channel = i % s->elements / s->channel_stride % s->channels;
			x = (x - (double)s->mean[channel]) / (double)s->std[channel];
		}
		dtype_store_float((DType)s->port->dtype, to, i, x);
	}
}

static void
convert(const Source *s, DType from, int64_t n, char *to)
{
	DType dtype = (DType)s->port->dtype;

	if (s->mean || s->scale != 1 || s->offset != 0)
		convert_scaled(s, from, n, to);
	else if (from == dtype)
		memcpy(to, s->raw, (size_t)dtype_bytes(dtype, n));
	else
		dtype_convert(dtype, to, from, s->raw, n);
}

/* Rows [row, row+n) that lie in one file. */
static Status
read_part(Source *s, const DataFile *file, int64_t row, int64_t n, char *to)
{
	int64_t size = dtype_bytes(file->info.dtype, 1);
	int64_t first = (row - file->first_row) * s->elements + s->shift;
	Status status = file_pread(file->fd, file->path, s->raw, n * s->elements * size,
	                           file->info.data_offset + first * size);

	if (status)
		status->exit_code = EXIT_DATA; /* it was long enough when we opened it */
	RETURN_IF_ERROR(status);
	RETURN_IF_ERROR(validate_values(s, file, row - file->first_row, n * s->elements, s->raw));
	convert(s, file->info.dtype, n * s->elements, to);
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
