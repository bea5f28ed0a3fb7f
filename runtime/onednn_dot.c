/* Products for oneDNN: its matmul takes strides as they are. */
#if GRADC_ONEDNN
#include "runtime/onednn_impl.h"

#include <string.h>

enum { TILE_ROWS = 128, LEAST_BATCHES = 4 };

/* Tiles are elements of the first batch axis that has enough of them, else rows. */
static Tiling
dot_tiling(const LibraryWork *w, bool tiled)
{
	const LibraryDot *d = &w->dot;
	Tiling t = {.axis = d->rank - 2};

	t.extent = t.step = d->dims[0][t.axis];
	if (tiled) {
		t.step = TILE_ROWS < t.extent ? TILE_ROWS : t.extent;
		for (int i = d->rank - 3; i >= 0; i--)
			if (d->dims[0][i] >= LEAST_BATCHES) {
				t.axis = i;
				t.extent = d->dims[0][i];
				t.step = 1;
			}
		for (int i = 0; i < N_OPERANDS; i++)
			if (i != 1 || t.axis < d->rank - 2)
				t.move[i] = d->strides[i][t.axis];
	}
	return t;
}

static Layout
dot_layout(const LibraryWork *w, const Tiling *t, int64_t steps, int i)
{
	const LibraryDot *d = &w->dot;
	Layout l = {.rank = d->rank};

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
	return lib->matmul_primitive_desc_create(out, lib->engine, m[0], m[1], NULL, m[2],
	                                         lib->attributes);
#else
	dnnl_matmul_desc_t product;
	dnnl_status_t status = lib->matmul_desc_init(&product, m[0], m[1], NULL, m[2]);

	return status == dnnl_success ? lib->primitive_desc_create(out, &product, lib->attributes,
	                                                           lib->engine, NULL)
	                              : status;
#endif
}

const WorkKind onednn_dot = {
	.names = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
	.tiling = dot_tiling,
	.layout = dot_layout,
	.describe = dot_describe,
};
#endif
