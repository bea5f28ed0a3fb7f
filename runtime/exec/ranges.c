/* Describes the numbers of an array, for messages about NaN: the least and the largest finite number, and how many numbers are
 * not finite. */
#include "runtime/exec/walk.h"

#include <math.h>
#include <string.h>

GradcRange
range_of_nothing(void)
{
	return (GradcRange){.least = INFINITY, .most = -INFINITY};
}

bool
range_is_finite(const GradcRange *r)
{
	for (int k = 0; k < GRADC_N_UNFIT; k++)
		if (r->n[k] > 0)
			return false;
	return true;
}

static GradcUnfit
kind_of(double value)
{
	if (isnan(value))
		return GRADC_NAN;
	return value > 0 ? GRADC_PLUS_INFINITY : GRADC_MINUS_INFINITY;
}

static void
add_value(GradcRange *r, double value, bool is_old)
{
	if (!isfinite(value)) {
		r->n[kind_of(value)] += !is_old;
		return;
	}
	r->least = value < r->least ? value : r->least;
	r->most = value > r->most ? value : r->most;
}

/* Plain loops for the types that fill most of the memory. */
#define ADD_ALL(T)                                                                            \
	static void add_all_##T(GradcRange *r, const void *at, int64_t n, const void *before) \
	{                                                                                     \
		const T *values = at, *old = before;                                          \
		T least = INFINITY, most = -INFINITY;                                         \
                                                                                              \
		for (int64_t i = 0; i < n; i++) {                                             \
			bool finite = isfinite(values[i]);                                    \
			least = finite && values[i] < least ? values[i] : least;              \
			most = finite && values[i] > most ? values[i] : most;                 \
			if (!finite)                                                          \
				add_value(r, (double)values[i],                               \
				          old &&memcmp(&values[i], &old[i], sizeof(T)) == 0); \
		}                                                                             \
		r->least = (double)least < r->least ? (double)least : r->least;               \
		r->most = (double)most > r->most ? (double)most : r->most;                    \
	}
ADD_ALL(float)
ADD_ALL(double)
#undef ADD_ALL

void
range_add(GradcRange *r, DType t, const void *at, int64_t n, const void *before)
{
	size_t bytes = (size_t)dtype_bytes(t, 1);
	const char *values = at, *old = before;

	r->elements += n;
	if (t == F32) {
		add_all_float(r, at, n, before);
		return;
	}
	if (t == F64) {
		add_all_double(r, at, n, before);
		return;
	}
	for (int64_t i = 0; i < n; i++) {
		size_t place = bytes * (size_t)i;
		add_value(r, dtype_load_float(t, at, i),
		          old && memcmp(values + place, old + place, bytes) == 0);
	}
}

void
range_add_changed(GradcRange *r, DType t, const void *at, int64_t n, const void *before)
{
	size_t bytes = (size_t)dtype_bytes(t, 1);
	const char *values = at, *old = before;

	for (int64_t i = 0; i < n; i++) {
		size_t place = bytes * (size_t)i;
		if (memcmp(values + place, old + place, bytes) == 0)
			continue;
		r->elements++;
		add_value(r, dtype_load_float(t, at, i), false);
	}
}
