/* Finds the value behind a marked operand of a product. The mark says how many views lie between the operand and the
 * value: those of the product's own importer, and for a weight also Transpose nodes of the file. For example:
 *
 *	%1 = transpose @w {order = [1,0]}
 *	%2 = dot %0, %1 {…} quantized (_, 0 behind 1)
 *
 * The value is @w, its reader is the transpose, and axis 0 of the product's operand is axis 1 of @w. */
#include "passes/quantize/quantize.h"

/* Goes on to the view's operand. */
static void
step_behind(Arena *arena, Place *at, Node *view)
{
	Partition p = node_partition(arena, view);

	for (int i = 0; i < at->axes.n; i++) {
		int axis = (int)at->axes.at[i];
		const Factor *f = axis < 0 ? NULL : partition_of_result(&p, 0, axis);
		bool stays = f && f->result[0].kind == SHARE_CUT && f->operand[0].kind == SHARE_CUT;
		at->axes.at[i] = stays ? f->operand[0].axis : -1;
	}
	at->reader = view;
	at->input = 0;
}

Place
place_find(Module *m, Arena *arena, Node *product, int i)
{
	OperandMark mark = node_mark(product, i);
	Place at = {.product = product,
	            .operand = i,
	            .of = &m->quantized.at[mark.of - 1],
	            .reader = product,
	            .input = i,
	            .axes = {.n = node_operand(product, i)->type->rank}};

	for (int k = 0; k < at.axes.n; k++)
		at.axes.at[k] = k;
	for (int k = 0; k < mark.views; k++)
		step_behind(arena, &at, place_value(&at)->node);
	return at;
}

Value *
place_value(const Place *at)
{
	return node_operand(at->reader, at->input);
}
