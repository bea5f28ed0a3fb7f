/* What a library is told of a product or convolution. */
#include "codegen/kernels/kernels.h"

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
