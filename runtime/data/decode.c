/* Converts the values x of a file to the values of an input: x * scale + offset, then (x - mean) / std with the channel's mean
 * and std, computed in double and rounded once. A byte has only 256 values. So for files of bytes, such as images, the results
 * are computed once for each channel and looked up in a table; the bits are the same. */
#include "runtime/data/sources.h"

#include <math.h>

enum { BYTE_VALUES = 256, MOST_TABLE_BYTES = 1 << 22 };

static double
load(DType dtype, const void *raw, int64_t i)
{
	return dtype_is_float(dtype) ? dtype_load_float(dtype, raw, i)
	                             : (double)dtype_load_int(dtype, raw, i);
}

static double
scaled(const Source *s, double x, int64_t channel)
{
	x = x * s->scale + s->offset;
	return s->mean ? (x - (double)s->mean[channel]) / (double)s->std[channel] : x;
}

static int64_t
channel_of(const Source *s, int64_t i)
{
	return s->mean ? i % s->elements / s->channel_stride % s->channels : 0;
}

static bool
is_scaled(const Source *s)
{
	return s->mean || s->scale != 1 || s->offset != 0;
}

void
decode_prepare(Arena *arena, Source *s, DType from)
{
	DType to = (DType)s->port->dtype;
	int64_t channels = s->mean ? s->channels : 1;
	uint8_t byte[BYTE_VALUES];

	if (!is_scaled(s) || (from != U8 && from != S8) || dtype_info[to].bits < 16 ||
	    channels > MOST_TABLE_BYTES / dtype_bytes(to, BYTE_VALUES))
		return;
	for (int i = 0; i < BYTE_VALUES; i++)
		byte[i] = (uint8_t)i;
	char *table = arena_alloc(arena, (size_t)dtype_bytes(to, channels * BYTE_VALUES));
	for (int64_t c = 0; c < channels; c++)
		for (int64_t i = 0; i < BYTE_VALUES; i++)
			dtype_store_float(to, table, c * BYTE_VALUES + i,
			                  scaled(s, load(from, byte, i), c));
	s->bytes = table;
}

LookUp
decode_look_up(const Source *s, int64_t n)
{
	return (LookUp){.tables = s->bytes,
	                .n = n,
	                .channels = s->mean ? s->channels : 1,
	                .stride = s->mean ? s->channel_stride : n,
	                .bytes = dtype_bytes((DType)s->port->dtype, 1)};
}

bool
decode_is_finite(const Source *s)
{
	int64_t channels = s->mean ? s->channels : 1;

	for (int64_t i = 0; i < channels * BYTE_VALUES; i++)
		if (!isfinite(dtype_load_float((DType)s->port->dtype, s->bytes, i)))
			return false;
	return true;
}

void
decode(const Source *s, DType from, const void *raw, int64_t n, void *to)
{
	DType dtype = (DType)s->port->dtype;

	if (s->bytes) {
		LookUp l = decode_look_up(s, n);

		l.to = to;
		l.from = raw;
		look_up_on_host(&l);
	} else if (!is_scaled(s))
		dtype_convert(dtype, to, from, raw, n);
	else
		for (int64_t i = 0; i < n; i++)
			dtype_store_float(dtype, to, i,
			                  scaled(s, load(from, raw, i), channel_of(s, i)));
}
