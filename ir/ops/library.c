/* What products and convolutions share beside their loops: the vector that is added to them, and what a library is
 * told. */
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
