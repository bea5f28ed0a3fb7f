/* Products for oneDNN: its matmul takes strides as they are. */
#if GRADC_ONEDNN
#include "runtime/onednn_impl.h"

#include <string.h>

enum { LEAST_STEP = 128, LEAST_BATCHES = 4, LINE = 16 /* numbers in a line of the cache */ };

/* Of a dimension, in at most so many steps. */
static int64_t
step_of(int64_t extent, int tiles)
{
	int64_t step = (extent + tiles - 1) / tiles;

	step = step < LEAST_STEP ? LEAST_STEP : (step + LINE - 1) / LINE * LINE;
	return step < extent ? step : extent;
}

/* Tiles are elements of the first batch axis that has enough of them, else rows or columns, whichever are more. */
static Tiling
dot_tiling(const LibraryWork *w, int tiles)
{
	const LibraryDot *d = &w->dot;
	const int64_t *dims = d->dims[LIBRARY_RESULT];
	int rows = d->rank - 2, columns = d->rank - 1;
	Tiling t = {.axis = dims[columns] > dims[rows] ? columns : rows};

	t.extent = t.step = dims[t.axis];
	if (tiles == 1)
		return t;
	t.step = step_of(t.extent, tiles);
	for (int i = rows - 1; i >= 0; i--)
		if (dims[i] >= LEAST_BATCHES) {
			t.axis = i;
			t.extent = dims[i];
			t.step = 1;
		}
	for (int i = 0; i < LIBRARY_BIAS; i++)
		if ((i != LIBRARY_FIRST || t.axis != columns) &&
		    (i != LIBRARY_SECOND || t.axis != rows))
			t.move[i] = d->strides[i][t.axis];
	t.move[LIBRARY_BIAS] = t.axis == columns;
	return t;
}

/* gemm:jit reads both matrices in place when the result is low or narrow: IN_PLACE is the bound of its
 * nocopy_checker_avx2. On one thread, with operands that no near cache holds, that was a third to nine tenths of its speed
 * with copies; the loops had seven to nine tenths, but are slower where there are many small products, unless rows of the
 * second matrix are a multiple of 4 KiB apart and share lines of the first cache. With a second cache of 2 MiB (Golden
 * Cove) what is read in place has 1.05 to 1.8 times the speed of the loops, as long as there is a tile for each CPU. */
#define IN_PLACE 0.0038 /* on 1 / rows + 1 / columns */
enum { LARGE_CACHE = 1 << 20 };
static bool
dot_slow(const LibraryWork *w, const Tiling *t, int enough)
{
	const LibraryDot *d = &w->dot;
	const int64_t *dims = d->dims[LIBRARY_RESULT], *y = d->strides[LIBRARY_SECOND];
	int rows = d->rank - 2, columns = d->rank - 1;
	double height = (double)(t->axis == rows ? t->step : dims[rows]);
	double width = (double)(t->axis == columns ? t->step : dims[columns]);

	if (1 / height + 1 / width < IN_PLACE)
		return false;
	if (t->axis < rows)
		return y[columns] == 1 && dtype_bytes(w->dtype, y[rows]) % 4096 == 0;
	return cpu_second_cache() < LARGE_CACHE || (t->extent + t->step - 1) / t->step < enough;
}

/* brg:avx512_core reads the second matrix in place unless that lies along k, or its rows are a power of 2 apart. Where these
 * are wide and another multiple of 2 KiB apart, an Intel CPU (Sapphire Rapids) had 0.45 to 0.75 of the speed of other
 * widths, the loops 0.9; an AMD one (EPYC, Zen 5) had all of it. */
enum { DEEP = 192, WIDE_BYTES = 8192, SHARED_BYTES = 2048 };
static bool
dot_slow_brg(const LibraryWork *w)
{
	const LibraryDot *d = &w->dot;
	int rows = d->rank - 2, columns = d->rank - 1;
	const int64_t *y = d->strides[LIBRARY_SECOND];
	int64_t bytes = dtype_bytes(w->dtype, y[rows]);

	return w->dtype == F32 && y[columns] == 1 && d->dims[LIBRARY_SECOND][rows] >= DEEP &&
	       bytes > WIDE_BYTES && bytes % SHARED_BYTES == 0 && (bytes & (bytes - 1)) != 0;
}

static Layout
dot_layout(const LibraryWork *w, const Tiling *t, int64_t steps, int i)
{
	const LibraryDot *d = &w->dot;
	Layout l = {.rank = d->rank};

	if (i == LIBRARY_BIAS) {
		for (int k = 0; k < l.rank; k++)
			l.dims[k] = k < l.rank - 1 ? 1
			            : t->move[i]   ? steps
			                           : d->dims[LIBRARY_RESULT][k];
		for (int k = 0; k < l.rank; k++)
			l.strides[k] = k < l.rank - 1 ? l.dims[l.rank - 1] : 1;
		return l;
	}
	memcpy(l.dims, d->dims[i], sizeof(*l.dims) * (size_t)d->rank);
	memcpy(l.strides, d->strides[i], sizeof(*l.strides) * (size_t)d->rank);
	if (t->move[i])
		l.dims[t->axis] = steps;
	return l;
}

static dnnl_status_t
dot_describe(const Onednn *lib, const LibraryWork *w, ConstMemoryDesc m[N_OPERANDS],
             dnnl_primitive_desc_t *out)
{
	(void)w;
#if DNNL_VERSION_MAJOR == 3
	return lib->matmul_primitive_desc_create(out, lib->engine, m[LIBRARY_FIRST],
	                                         m[LIBRARY_SECOND], m[LIBRARY_BIAS],
	                                         m[LIBRARY_RESULT], lib->attributes);
#else
	dnnl_matmul_desc_t product;
	dnnl_status_t status = lib->matmul_desc_init(&product, m[LIBRARY_FIRST], m[LIBRARY_SECOND],
	                                             m[LIBRARY_BIAS], m[LIBRARY_RESULT]);

	return status == dnnl_success ? lib->primitive_desc_create(out, &product, lib->attributes,
	                                                           lib->engine, NULL)
	                              : status;
#endif
}

const WorkKind onednn_dot = {
	.names = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
	.tiling = dot_tiling,
	.slow = dot_slow,
	.slow_brg = dot_slow_brg,
	.layout = dot_layout,
	.describe = dot_describe,
};
#endif
