/* What products and convolutions share beside their loops: their dtypes, the vector that is added to them, and what a
 * library is told. */
#include "ir/ops/gemm.h"

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

DType
accumulation_type(const Node *n)
{
	DType z = node_result(n, 0)->type->dtype;

	if (!dtype_is_float(z))
		return compute_type(z);
	for (int i = 0; i < 2; i++)
		if (node_operand(n, i)->type->dtype == F64)
			return F64;
	return compute_type(z);
}

LoopValue
result_of_sum(LoopBuilder *lb, const Node *n, LoopValue sum)
{
	DType z = node_result(n, 0)->type->dtype;

	return lb_type(lb, sum) == compute_type(z) ? sum : lb_cast(lb, z, sum);
}

bool
library_takes_dtypes(const Node *n)
{
	DType z = node_result(n, 0)->type->dtype;

	return (z == F32 || z == BF16) && node_operand(n, 0)->type->dtype == z &&
	       node_operand(n, 1)->type->dtype == z;
}

void
library_put(LibraryCall *c, int n, const int64_t *x)
{
	for (int i = 0; i < n; i++)
		c->at[c->n++] = x[i];
}

bool
library_put_bias(Lower *lw, const Node *n, LibraryCall *c)
{
	const Value *v = lower_stored(lw);
	Strided s = {.buffer = -1};

	if (v->node != n) {
		if (!lower_strided(lw, bias_of(v->node), &s) || s.strides[0] > 1)
			return false;
	}
	library_put(c, 2, (int64_t[]){s.buffer + 1, s.offset});
	return true;
}
