/* Spreads the row weights of a micro-batch (1 for a real row, 0 for padding) to the elements of
 * each row, for all losses. */
#include "passes/losses/loss.h"

Value *
loss_row_weights(const Loss *l, Type t)
{
	Builder *b = l->b;
	bool lacks_classes = t->rank < l->output->type->rank;
	int axis = l->rows.axis - (lacks_classes && l->class_axis < l->rows.axis);
	int64_t size = t->dims[axis], n = l->weight->type->n;
	Value *w = l->weight;

	if (size != n) { /* [repeats, rows, elements of one row along the axis] */
		Ints parts = {.n = 3, .at = {l->rows.repeats, n, size / (l->rows.repeats * n)}};
		w = b_broadcast(b, w, parts, (Ints){.n = 1, .at = {1}});
		w = b_reshape(b, w, (Ints){.n = 1, .at = {size}});
	}
	return b_broadcast(b, w, ints_of_type(t), (Ints){.n = 1, .at = {axis}});
}
