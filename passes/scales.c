/* Scales of codes that are parameters: --scale-learning trains them, `straight_through` passes them a gradient. */
#include "passes/pass.h"

/* One of a bias, whose codes have 32 bits, is the product of two others. */
Value *
scale_of_codes(const Node *n)
{
	enum { QUANTIZE_SCALE = 1 };
	const QuantizeAttr *a = n->op == OP_quantize ? n->attr : NULL;

	if (!a || dtype_info[a->to].bits >= 32)
		return NULL;
	Value *root = behind_views(node_operand(n, QUANTIZE_SCALE));
	return root->kind == VALUE_STATE && root->state->kind == STATE_PARAMETER ? root : NULL;
}

bool
scales_train(Module *m)
{
	bool any = false;

	for_each_function(m, f)
		for_each_node(f, n) {
			Value *scale = scale_of_codes(n);
			if (!scale)
				continue;
			scale->state->trainable = any = true;
			scale->state->decay = false;
			scale->state->why = "a scale of codes, learned";
		}
	return any;
}
