/* Finds the value behind a marked operand of a product. Import marks the operand that the product reads; between the
 * product and the value that the ONNX file quantizes may lie views: those of the product's own importer, and for a
 * weight also Transpose nodes of the file. For example, with operand 1 marked:
 *
 *	%1 = transpose @w {order = [1,0]}  loc "t"
 *	%2 = dot %0, %1 {…} quantized (_, 0)  loc "fc"
 *
 * The value is @w, its reader is the transpose, and axis 0 of the product's operand is axis 1 of @w. */
#include "passes/quantize/quantize.h"

/* Is v itself what the ONNX file calls the operand? The views that import makes of a weight bear the weight's name. */
static bool
is_named(Module *m, const Place *at, const Value *v)
{
	Loc loc = v->node->loc;

	return quantized_is_weight(at->of) ? loc == loc_name(m, at->of->name)
	                                   : loc != at->product->loc;
}

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
	Place at = {.product = product,
	            .operand = i,
	            .of = &m->quantized.at[node_mark(product, i) - 1],
	            .reader = product,
	            .input = i,
	            .axes = {.n = node_operand(product, i)->type->rank}};

	for (int k = 0; k < at.axes.n; k++)
		at.axes.at[k] = k;
	for (Value *v = place_value(&at); v->kind == VALUE_RESULT; v = place_value(&at)) {
		bool is_view = op_row(v->node)->fuse == FUSE_VIEW && v->node->n_operands == 1;
		if (!is_view || is_named(m, &at, v))
			break;
		step_behind(arena, &at, v->node);
	}
	return at;
}

Value *
place_value(const Place *at)
{
	return node_operand(at->reader, at->input);
}
