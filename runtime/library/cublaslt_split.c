/* Splits a product along an axis whose size is not a multiple of 16 bytes, if rows begin at multiples of 16 bytes. The GPU's
 * matrix units (tensor cores) compute the larger part; the rest is a small product. For example, 50257 columns of f32 become
 * 50256 and 1.
 *
 * Along k the second part is added to the result of the first. In f32 the larger part is the first. In bf16 the first
 * part is rounded before the second is added, so the small part is the first: of a sum of 50257 products only one is rounded on its own, which loses no more than
 * the rounding of its operands. */
#include "base/numbers/numbers.h"
#include "runtime/library/cublaslt.h"

enum { UNIT_BYTES = 16, LEAST_UNITS = 64 /* least size of the first part */ };

/* For each operand and each axis of the product: which dimension of the operand it is, counted from the last; 0 if the operand
 * does not have the axis. */
typedef enum { AXIS_ROWS, AXIS_COLUMNS, AXIS_INNER, N_PRODUCT_AXES } ProductAxis;
static const uint32_t from_last[N_PRODUCT_AXES][N_LIBRARY_OPERANDS] = {
	[AXIS_ROWS] =
		{[LIBRARY_FIRST] = 2, [LIBRARY_RESULT] = 2, [LIBRARY_ADDED] = 2, [LIBRARY_AUX] = 2},
	[AXIS_COLUMNS] = {[LIBRARY_SECOND] = 1,
                          [LIBRARY_RESULT] = 1,
                          [LIBRARY_BIAS] = 1,
                          [LIBRARY_ADDED] = 1,
                          [LIBRARY_AUX] = 1},
	[AXIS_INNER] = {[LIBRARY_FIRST] = 1, [LIBRARY_SECOND] = 2},
};

static int64_t
units_of(const LibraryOperand *o)
{
	return UNIT_BYTES * 8 / dtype_info[o->dtype].bits;
}

/* Are the dimension's elements adjacent in memory, and do all rows of the operand begin at multiples of 16 bytes? */
static bool
is_along_rows(const LibraryOperand *o, uint32_t dim)
{
	if (o->strides[dim] != 1 || o->offset % units_of(o))
		return false;
	for (uint32_t d = 0; d < o->rank; d++)
		if (d != dim && o->dims[d] > 1 && o->strides[d] % units_of(o))
			return false;
	return true;
}

/* Size of the first part; 0 if the axis is not split. */
static int64_t
first_part(const LibraryCall *c, ProductAxis axis)
{
	int64_t size = 0, units = 1;
	bool gains = false;

	/* Along k, epilogues other than a bias apply to the whole sum, and an added operand must be added to the whole sum. In
	 * f16 a part of a sum may overflow where the sum does not. */
	if (axis == AXIS_INNER && ((c->operands[LIBRARY_RESULT].dtype != F32 &&
	                            c->operands[LIBRARY_RESULT].dtype != BF16) ||
	                           c->epilogue > EPILOGUE_BIAS || c->beta))
		return 0;
	for (int i = 0; i < LIBRARY_BIAS; i++) {
		const LibraryOperand *o = &c->operands[i];
		if (!from_last[axis][i])
			continue;
		uint32_t dim = o->rank - from_last[axis][i];
		size = o->dims[dim];
		units = units_of(o) > units ? units_of(o) : units;
		gains |= is_along_rows(o, dim);
	}
	bool cut = gains && size % units && size >= LEAST_UNITS * units;
	return cut ? size / units * units : 0;
}

/* Makes the second part of a sum add to the result of the first. The larger part keeps the epilogue: it is the first in f32,
 * otherwise the second. */
static void
add_parts(LibraryCall *first, LibraryCall *second)
{
	if (first->operands[LIBRARY_RESULT].dtype == F32) {
		second->epilogue = EPILOGUE_NONE;
	} else {
		LibraryCall larger = *first;
		*first = *second;
		*second = larger;
		first->epilogue = EPILOGUE_NONE;
	}
	second->beta = 1;
	second->operands[LIBRARY_ADDED] = second->operands[LIBRARY_RESULT];
}

bool
cublaslt_split(const LibraryCall *call, LibraryCall *first, LibraryCall *rest)
{
	int axis = 0;
	int64_t part = 0;

	while (call->kind == LIBRARY_DOT && axis < N_PRODUCT_AXES &&
	       !(part = first_part(call, (ProductAxis)axis)))
		axis++;
	if (!part)
		return false;
	*first = *rest = *call;
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		if (!from_last[axis][i] || !library_has_operand(call, i))
			continue;
		uint32_t dim = call->operands[i].rank - from_last[axis][i];
		first->operands[i].dims[dim] = part;
		rest->operands[i].dims[dim] -= part;
		rest->operands[i].offset += part * call->operands[i].strides[dim];
	}
	if (axis == AXIS_INNER)
		add_parts(first, rest);
	return true;
}
