/* Refuses data that training must not see: labels and tokens out of range, values that do not fit, NaN. Values are checked
 * before they are converted. The fault names file, row and value. */
#include "runtime/data/sources.h"

#include <math.h>

static bool
is_integer(DType t)
{
	return dtype_info[t].class == CLASS_SIGNED || dtype_info[t].class == CLASS_UNSIGNED;
}

static bool
is_double_or_float(DType t)
{
	return t == F64 || t == F32;
}

bool
validate_dtype(const PortRecord *port, DType file, bool scaled)
{
	DType want = (DType)port->file_dtype;

	if (dtype_info[file].bits < 8)
		return false;
	if (scaled)
		return dtype_is_float((DType)port->dtype) && file != BOOL;
	if (is_integer(want))
		return is_integer(file);
	return file == want || (is_double_or_float(file) && dtype_is_float(want));
}

typedef struct {
	int64_t low, high;
} Range;

/* Range of an integer type, clamped to int64. */
static Range
range_of(DType t)
{
	int bits = dtype_info[t].bits;

	if (dtype_info[t].class == CLASS_UNSIGNED)
		return (Range){0, bits >= 64 ? INT64_MAX : (int64_t)((1ull << bits) - 1)};
	return (Range){bits >= 64 ? INT64_MIN : -(1ll << (bits - 1)),
	               bits >= 64 ? INT64_MAX : (1ll << (bits - 1)) - 1};
}

static Status
fault_integer(const Source *s, const DataFile *file, int64_t row, int64_t value, const Range *r)
{
	const char *or_ignored = s->port->bounded == 2 ? " nor the ignored " : "";
	char ignored[32] = "";

	if (s->port->bounded == 2)
		snprintf(ignored, sizeof(ignored), "%lld", (long long)s->port->ignore);
	return status_error(EXIT_DATA,
	                    "%s: row %lld: \"%s\": value %lld is not in [%lld, %lld]%s%s",
	                    file->path, (long long)row, s->name, (long long)value,
	                    (long long)r->low, (long long)r->high, or_ignored, ignored);
}

/* Are all values in the range, or equal to the ignored value? These functions have no branches, so they run at the speed of
 * memory. If the answer is no, check_integers finds the wrong value. */
typedef bool (*AllWithin)(const void *raw, int64_t n, const Range *r, const int64_t *ignored);
#define ALL_WITHIN(T)                                                                  \
	static bool all_within_##T(const void *raw, int64_t n, const Range *r,         \
	                           const int64_t *ignored)                             \
	{                                                                              \
		const T *values = raw;                                                 \
		int64_t low = r->low, high = r->high, also = ignored ? *ignored : low; \
		int bad = 0;                                                           \
                                                                                       \
		for (int64_t i = 0; i < n; i++) {                                      \
			int64_t value = (int64_t)values[i];                            \
			bad |= ((value < low) | (value > high)) & (value != also);     \
		}                                                                      \
		return !bad;                                                           \
	}
ALL_WITHIN(uint8_t)
ALL_WITHIN(uint16_t)
ALL_WITHIN(uint32_t)
ALL_WITHIN(int8_t)
ALL_WITHIN(int16_t)
ALL_WITHIN(int32_t)
ALL_WITHIN(int64_t)
#undef ALL_WITHIN

static const AllWithin all_within[N_DTYPES] = {
	[U8] = all_within_uint8_t,  [U16] = all_within_uint16_t, [U32] = all_within_uint32_t,
	[S8] = all_within_int8_t,   [S16] = all_within_int16_t,  [S32] = all_within_int32_t,
	[S64] = all_within_int64_t,
};

static Status
check_integers(const Source *s, const DataFile *file, int64_t row, int64_t n, const void *raw)
{
	const PortRecord *p = s->port;
	DType dtype = file->info.dtype;
	Range r = range_of((DType)p->dtype);
	const int64_t *ignore = p->bounded == 2 ? &p->ignore : NULL;

	if (p->bounded)
		r = (Range){p->min, p->max};
	else if (p->dtype == U64 && dtype == U64)
		return NULL; /* all values are valid, even those above int64 */
	if (r.low <= r.high && all_within[dtype] && all_within[dtype](raw, n, &r, ignore))
		return NULL;
	for (int64_t i = 0; i < n; i++) {
		int64_t value = dtype_load_int(dtype, raw, i);
		bool ignored = ignore && value == *ignore;

		/* u64 values above INT64_MAX become negative here; they are out of range as well. */
		if ((value < r.low || value > r.high || (dtype == U64 && value < 0)) && !ignored)
			return fault_integer(s, file, row + i / s->elements, value, &r);
	}
	return NULL;
}

#define HAS_NAN(T)                                          \
	static bool has_nan_##T(const T *values, int64_t n) \
	{                                                   \
		int bad = 0;                                \
                                                            \
		for (int64_t i = 0; i < n; i++)             \
			bad |= values[i] != values[i];      \
		return bad;                                 \
	}
HAS_NAN(float)
HAS_NAN(double)
#undef HAS_NAN

static int64_t
first_nan(DType dtype, const void *raw, int64_t n)
{
	const float *f32 = raw;
	const double *f64 = raw;

	if ((dtype == F32 && !has_nan_float(f32, n)) || (dtype == F64 && !has_nan_double(f64, n)))
		return -1;
	for (int64_t i = 0; i < n; i++) {
		double value = dtype == F32   ? (double)f32[i]
		               : dtype == F64 ? f64[i]
		                              : dtype_load_float(dtype, raw, i);
		if (isnan(value))
			return i;
	}
	return -1;
}

Status
validate_values(const Source *s, const DataFile *file, int64_t row, int64_t n, const void *raw)
{
	if (is_integer(file->info.dtype) && is_integer((DType)s->port->dtype))
		return check_integers(s, file, row, n, raw);
	if (s->allow_nan || !dtype_is_float(file->info.dtype))
		return NULL;
	int64_t at = first_nan(file->info.dtype, raw, n);
	if (at < 0)
		return NULL;
	return status_error(EXIT_DATA, "%s: row %lld: \"%s\": element %lld is nan", file->path,
	                    (long long)(row + at / s->elements), s->name,
	                    (long long)(at % s->elements));
}
