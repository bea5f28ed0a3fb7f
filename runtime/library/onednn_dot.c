/* Describes matrix products to oneDNN, whose matmul accepts any strides of the operands. */
#if GRADC_ONEDNN
#include "runtime/library/onednn.h"

#include <string.h>

enum { LEAST_STEP = 128, LEAST_BATCHES = 4, LINE = 16 /* numbers in a cache line */ };

/* Size of a tile, with at most `tiles` tiles. */
static int64_t
step_of(int64_t extent, int tiles)
{
	int64_t step = (extent + tiles - 1) / tiles;

	step = step < LEAST_STEP ? LEAST_STEP : (step + LINE - 1) / LINE * LINE;
	return step < extent ? step : extent;
}

/* Splits a product into tiles: along the first batch axis that is long enough, otherwise along the rows or the columns of the
 * result, whichever are more. */
static Tiling
dot_tiling(const LibraryCall *call, int tiles)
{
	const int64_t *dims = call->operands[LIBRARY_RESULT].dims;
	int rows = (int)call->operands[LIBRARY_RESULT].rank - 2, columns = rows + 1;
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
			t.move[i] = call->operands[i].strides[t.axis];
	t.move[LIBRARY_BIAS] = t.axis == columns;
	return t;
}

static Layout
dot_layout(const LibraryCall *call, const Tiling *t, int64_t steps, int i)
{
	const LibraryOperand *o = &call->operands[i], *result = &call->operands[LIBRARY_RESULT];
	Layout l = {.rank = (int)result->rank};

	if (i == LIBRARY_BIAS) {
		for (int k = 0; k < l.rank; k++)
			l.dims[k] = k < l.rank - 1 ? 1 : t->move[i] ? steps : result->dims[k];
		for (int k = 0; k < l.rank; k++)
			l.strides[k] = k < l.rank - 1 ? l.dims[l.rank - 1] : 1;
		return l;
	}
	memcpy(l.dims, o->dims, sizeof(*l.dims) * o->rank);
	memcpy(l.strides, o->strides, sizeof(*l.strides) * o->rank);
	if (t->move[i])
		l.dims[t->axis] = steps;
	return l;
}

static dnnl_status_t
dot_describe(const Library *lib, const LibraryCall *call, ConstMemoryDesc m[N_OPERANDS],
             dnnl_primitive_desc_t *out)
{
	const_dnnl_primitive_attr_t attributes = call->beta ? lib->adding : lib->attributes;

#if DNNL_VERSION_MAJOR == 3
	return lib->matmul_primitive_desc_create(out, lib->engine, m[LIBRARY_FIRST],
	                                         m[LIBRARY_SECOND], m[LIBRARY_BIAS],
	                                         m[LIBRARY_RESULT], attributes);
#else
	dnnl_matmul_desc_t product;
	dnnl_status_t status = lib->matmul_desc_init(&product, m[LIBRARY_FIRST], m[LIBRARY_SECOND],
	                                             m[LIBRARY_BIAS], m[LIBRARY_RESULT]);

	return status == dnnl_success
	               ? lib->primitive_desc_create(out, &product, attributes, lib->engine, NULL)
	               : status;
#endif
}

const WorkKind onednn_dot = {
	.names = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
	.tiling = dot_tiling,
	.same_bits = true,
	.layout = dot_layout,
	.describe = dot_describe,
};
#endif
