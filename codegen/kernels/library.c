/* Describes the operands of a matrix product or convolution for a call of a GPU library
 * (cuBLASLt, cuDNN). */
#include "codegen/kernels/library.h"
#include "codegen/fuse/fuse.h"

LibraryOperand
library_operand(DType dtype, int rank, int buffer, int64_t offset)
{
	return (LibraryOperand){
		.dtype = dtype, .rank = (uint32_t)rank, .buffer = buffer, .offset = offset};
}

LibraryOperand
library_result(Lower *lw, int rank)
{
	const Value *v = lower_stored(lw);

	return library_operand(v->type->dtype, rank, lower_buffer(lw, v), 0);
}

bool
library_put_added(Lower *lw, const Node *n, LibraryCall *c)
{
	const Value *v = lower_stored(lw), *bias, *sum;
	Strided s;

	if (v->node == n)
		return true;
	sum = added_to_product(v->node, n);
	if (sum) {
		c->beta = 1;
		c->operands[LIBRARY_ADDED] = c->operands[LIBRARY_RESULT];
		c->operands[LIBRARY_ADDED].buffer = lower_buffer(lw, sum);
		return true;
	}
	bias = bias_of(lw->target, v->node);
	if (!lower_strided(lw, bias, &s) || s.strides[0] > 1)
		return false;
	LibraryOperand *o = &c->operands[LIBRARY_BIAS];
	*o = library_operand(bias->type->dtype, 1, s.buffer, s.offset);
	o->dims[0] = bias->type->n;
	library_dense(o);
	c->epilogue = EPILOGUE_BIAS;
	return true;
}
