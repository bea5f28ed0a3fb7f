/* Pads the axes of a library's product z[m,n] = x[m,k] y[k,n]. A GPU's library is fast only if rows begin at multiples of 16
 * bytes and consist of whole 16 bytes. So an axis that is contiguous in some operand gets a padded size:
 *
 *	dot {x = bf16[16384,50257] by [50264,1], y = bf16[50257,768], ..}    k is contiguous in x
 *	dot {x = bf16[16384,50264] by [50264,1], y = bf16[50264,768], ..}    7 more elements of k, zeros in x and in y
 *
 * The additional elements must exist in every operand that has the axis: behind each row if the axis is contiguous there,
 * otherwise behind the last row. In x and y they are zeros, so no element of z changes, and z gets zeros. */
#include "codegen/legalize/pitch.h"
#include "codegen/strategy/strategy.h"

/* Is the dimension contiguous, in rows of `row` elements that begin at multiples of `row`? */
static bool
is_in_rows(const LibraryOperand *o, int dim, int64_t row)
{
	if (o->strides[dim] != 1 || o->offset % row)
		return false;
	for (uint32_t d = 0; d < o->rank; d++)
		if ((int)d != dim && o->dims[d] > 1 && o->strides[d] % row)
			return false;
	return true;
}

/* Is the dimension the outermost: do elements with a larger index lie behind all elements with a smaller index? */
static bool
is_outermost(const LibraryOperand *o, int dim)
{
	int64_t last = o->offset;

	for (uint32_t d = 0; d < o->rank; d++)
		last += (int)d == dim ? 0 : (o->dims[d] - 1) * o->strides[d];
	return last < o->strides[dim];
}

static int64_t
row_of(Type t)
{
	return t->dims[t->rank - 1];
}

static Type
buffer_type(const Kernel *k, int i)
{
	return k->buffers.at[k->library->operands[i].buffer].type;
}

/* The padding that gives operand i more elements along the axis; 0: no padding does. */
static int
padding_along(const Kernel *k, int i, ProductAxis axis)
{
	const LibraryOperand *o = &k->library->operands[i];
	int dim = library_axis_dim(k->library, i, axis);
	Type t = buffer_type(k, i);

	if (t->rank < 2 || dtype_info[t->dtype].bits < 8)
		return 0;
	if (o->dims[dim] == row_of(t) && is_in_rows(o, dim, row_of(t)))
		return PAD_COLUMNS;
	return t->rank == 2 && o->dims[dim] == t->dims[0] && is_outermost(o, dim) ? PAD_ROWS : 0;
}

/* Is the call a product with an operand that is large enough for padding? */
static bool
is_large(const Kernel *k, const LibraryLimits *l)
{
	bool large = false;

	for (int i = 0; k->library && k->library->kind == LIBRARY_DOT && i <= LIBRARY_RESULT; i++)
		large |= type_bytes(buffer_type(k, i)) >= l->least_pitched;
	return large;
}

/* Is the axis long, no multiple of 16 bytes, and could all operands that have it have more elements along it? */
static bool
axis_could_pad(const Kernel *k, ProductAxis axis, const LibraryLimits *l)
{
	const LibraryCall *c = k->library;

	if (!library_axis_is_odd(l, c, axis))
		return false;
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		if (library_axis_dim(c, i, axis) >= 0 &&
		    (i > LIBRARY_RESULT || !padding_along(k, i, axis)))
			return false;
	return true;
}

int
product_padding(const Kernel *k, int buffer, const LibraryLimits *l)
{
	int padding = 0;

	for (int a = 0; is_large(k, l) && a < N_PRODUCT_AXES; a++)
		for (int i = 0; axis_could_pad(k, (ProductAxis)a, l) && i <= LIBRARY_RESULT; i++)
			if (k->library->operands[i].buffer == buffer &&
			    library_axis_dim(k->library, i, (ProductAxis)a) >= 0)
				padding |= padding_along(k, i, (ProductAxis)a);
	return padding;
}

int
product_pitch(const Kernel *k, int buffer, const LibraryLimits *l)
{
	for (int i = 0; is_large(k, l) && i <= LIBRARY_RESULT; i++) {
		const LibraryOperand *o = &k->library->operands[i];
		Type t = buffer_type(k, i);
		if (o->buffer != buffer || t->rank < 2)
			continue;
		int dim = (int)o->rank - (o->strides[o->rank - 1] == 1 ? 1 : 2);
		if (dtype_info[t->dtype].bits >= 8 && library_row_is_odd(l, t->dtype, row_of(t)) &&
		    is_in_rows(o, dim, row_of(t)))
			return PAD_COLUMNS;
	}
	return 0;
}

/* Has the buffer of operand i room for `padded` elements along the axis? True if the operand does not have the axis. */
static bool
has_room(const Kernel *k, int i, ProductAxis axis, int64_t padded)
{
	int dim = library_axis_dim(k->library, i, axis);

	if (dim < 0)
		return true;
	const LibraryOperand *o = &k->library->operands[i];
	Type t = buffer_type(k, i);
	if (t->rank < 2)
		return false;
	if (o->strides[dim] == 1)
		return is_in_rows(o, dim, row_of(t)) && padded <= row_of(t);
	return is_outermost(o, dim) && padded * o->strides[dim] <= t->n;
}

bool
product_can_pad(const Kernel *k, ProductAxis axis, int64_t alignment, const bool operand_zero[2])
{
	const LibraryCall *c = k->library;
	int64_t padded = library_axis_padded(c, axis, alignment);

	if (padded == library_axis_size(c, axis))
		return false;
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		bool zero = i > LIBRARY_SECOND || operand_zero[i];
		if (library_axis_dim(c, i, axis) >= 0 && !(zero && has_room(k, i, axis, padded)))
			return false;
	}
	return true;
}

void
product_pad(Arena *arena, Kernel *k, ProductAxis axis, int64_t alignment)
{
	LibraryCall *c = arena_copy(arena, k->library, sizeof(*c));
	int64_t padded = library_axis_padded(c, axis, alignment);

	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		int dim = library_axis_dim(c, i, axis);
		if (dim >= 0)
			c->operands[i].dims[dim] = padded;
	}
	k->library = c;
}
