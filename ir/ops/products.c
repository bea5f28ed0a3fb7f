/* Functions that the ops dot and the convolutions share: the dtype of the result, and the vector
 * (bias) that is added to the result. */
#include "ir/ops/products.h"

Value *
added_vector(const Node *n, const Node *reader, int axis)
{
	Value *z = node_result(n, 0);

	if (reader->op != OP_add || !value_used_once(z))
		return NULL;
	const Node *other = node_operand(reader, node_operand(reader, 0) == z)->node;
	if (!other || other->op != OP_broadcast)
		return NULL;
	const Ints *axes = &((BroadcastAttr *)other->attr)->axes;
	return axes->n == 1 && axes->at[0] == axis ? node_operand(other, 0) : NULL;
}

bool
infer_product(Infer *in, int dtype, bool allow_tf32, DType *out)
{
	DType x = in->operand[0]->dtype, y = in->operand[1]->dtype;
	bool floats = dtype_is_float(x);

	*out = dtype ? (DType)(dtype - 1) : x;
	if (x == BOOL || y == BOOL || floats != dtype_is_float(y))
		infer_error(in, "operands are %s and %s", dtype_info[x].name, dtype_info[y].name);
	else if (!dtype && x != y)
		infer_error(in, "operands are %s and %s, and no dtype of the result is given",
		            dtype_info[x].name, dtype_info[y].name);
	else if (*out == BOOL || floats != dtype_is_float(*out))
		infer_error(in, "a product of %s and %s is not %s", dtype_info[x].name,
		            dtype_info[y].name, dtype_info[*out].name);
	else if (allow_tf32 && !floats)
		infer_error(in, "tf32 in a product of %s", dtype_info[x].name);
	return !in->fault;
}

int
product_dtype(DType x, DType y, DType z)
{
	return x == y && y == z ? 0 : 1 + (int)z;
}
