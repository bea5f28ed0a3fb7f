/* How ops compute tensors whose channels are the last axis instead of axis 1 (column `channels_last`). Example: the sum
 * of x: T[batch, channels, height, width] over axes 0, 2 and 3 is the sum of T[batch, height, width, channels] over axes
 * 0, 1 and 2. */
#include "ir/ops/family.h"

/* The axis that axis `axis` becomes. */
static int64_t
moved_axis(int rank, int64_t axis)
{
	return axis == 0 ? 0 : axis == 1 ? rank - 1 : axis - 1;
}

/* One number for each axis, in the order of the moved axes. */
static Ints
moved(const Ints *numbers)
{
	Ints out = {.n = numbers->n};

	for (int i = 0; i < numbers->n; i++)
		out.at[moved_axis(numbers->n, i)] = numbers->at[i];
	return out;
}

/* Numbers for the spatial axes, of windows that have one element along the two axes around them. */
static Ints
between(const Ints *spatial, int64_t around)
{
	Ints out = {.n = spatial->n + 1};

	for (int i = 0; i < spatial->n; i++)
		out.at[i] = spatial->at[i];
	out.at[spatial->n] = around;
	return out;
}

Value *
conv_channels_last(Builder *b, const Node *n, Value *const *operands)
{
	ConvAttr a = *(const ConvAttr *)n->attr;

	if (a.channels_last)
		return NULL;
	a.channels_last = true;
	return build(b, n->op, n->n_operands, operands, &a);
}

/* [batch, spatial.., channels] is seen as [batch, 1, spatial.., channels]: the channels are a spatial axis with windows
 * of one element. */
Value *
pool_channels_last(Builder *b, const Node *n, Value *const *operands)
{
	PoolAttr a = *(const PoolAttr *)n->attr;
	Value *seen[MAX_OPERANDS];
	Type y = node_result(n, 0)->type;
	Ints shape = ints_of_type(y);

	if (y->rank + 1 > MAX_RANK)
		return NULL;
	a.window = between(&a.window, 1);
	a.stride = between(&a.stride, 1);
	a.dilation = between(&a.dilation, 1);
	a.low = between(&a.low, 0);
	a.high = between(&a.high, 0);
	if (a.size.n)
		a.size = between(&a.size, y->dims[1]);
	for (int i = 0; i < n->n_operands; i++) {
		Ints from = {.n = y->rank + 1, .at = {operands[i]->type->dims[0], 1}};
		for (int k = 1; k < y->rank; k++)
			from.at[k + 1] = operands[i]->type->dims[k];
		seen[i] = b_reshape(b, operands[i], from);
	}
	return b_reshape(b, build(b, n->op, n->n_operands, seen, &a), moved(&shape));
}

Value *
broadcast_channels_last(Builder *b, const Node *n, Value *const *operands)
{
	const BroadcastAttr *a = n->attr;
	Ints axes = a->axes, order = {.n = a->axes.n}, sorted = {.n = a->axes.n};

	for (int i = 0; i < axes.n; i++)
		axes.at[i] = moved_axis(a->shape.n, axes.at[i]);
	for (int i = 0; i < axes.n; i++) {
		int before = 0;
		for (int k = 0; k < axes.n; k++)
			before += axes.at[k] < axes.at[i];
		order.at[before] = i;
		sorted.at[before] = axes.at[i];
	}
	return b_broadcast(b, b_transpose(b, operands[0], order), moved(&a->shape), sorted);
}

/* The result has its axes in the old order. */
Value *
reduce_channels_last(Builder *b, const Node *n, Value *const *operands)
{
	const ReduceAttr *a = n->attr;
	int rank = operands[0]->type->rank;
	Ints axes = {0}, order = {0};

	for (int i = 0; i < rank; i++)
		for (int k = 0; k < a->axes.n; k++)
			if (moved_axis(rank, a->axes.at[k]) == i)
				axes.at[axes.n++] = i;
	for (int i = 0; i < rank; i++) {
		int before = 0;
		if (ints_has(&a->axes, i))
			continue;
		for (int k = 0; k < moved_axis(rank, i); k++)
			before += !ints_has(&axes, k);
		order.at[order.n++] = before;
	}
	return b_transpose(b, b_reduce(b, (ReduceKind)a->kind, operands[0], axes), order);
}

Value *
pad_channels_last(Builder *b, const Node *n, Value *const *operands)
{
	const PadAttr *a = n->attr;

	return b_pad(b, operands[0], moved(&a->low), moved(&a->high), moved(&a->interior),
	             a->value);
}

Value *
slice_channels_last(Builder *b, const Node *n, Value *const *operands)
{
	const SliceAttr *a = n->attr;

	return b_slice(b, operands[0], moved(&a->start), moved(&a->stop), moved(&a->step));
}

Value *
concat_channels_last(Builder *b, const Node *n, Value *const *operands)
{
	AxisAttr a = *(const AxisAttr *)n->attr;

	a.axis = moved_axis(operands[0]->type->rank, a.axis);
	return build(b, n->op, n->n_operands, operands, &a);
}
