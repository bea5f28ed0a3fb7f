/* Finds scales of quantized values (codes) that are parameters. --scale-learning trains such scales, and the pass
 * `straight_through` gives them a gradient. */
#include "passes/pass.h"

static State *
parameter_of(Value *v)
{
	Value *root = behind_views(v);

	return root->kind == VALUE_STATE && root->state->kind == STATE_PARAMETER ? root->state
	                                                                         : NULL;
}

State *
scale_parameter(Value *root)
{
	State *s = parameter_of(root);

	for (int i = 0; i < 2 && !s && root->node && root->node->op == OP_add; i++)
		s = parameter_of(node_operand(root->node, i));
	return s;
}

/* The scale of a bias, whose codes have 32 bits, is the product of two other scales. */
Value *
scale_of_codes(const Node *n)
{
	enum { QUANTIZE_SCALE = 1 };
	const QuantizeAttr *a = n->op == OP_quantize ? n->attr : NULL;

	if (!a || dtype_info[a->to].bits >= 32)
		return NULL;
	Value *root = behind_views(node_operand(n, QUANTIZE_SCALE));
	return scale_parameter(root) ? root : NULL;
}

/* If the scale is a sum, the parameter may hold any number. */
static bool
is_below_least(const State *s, const Value *scale)
{
	for (int64_t i = 0; scale->kind == VALUE_STATE && s->data && i < s->type->n; i++)
		if (!(tensor_float(s->data, i) >= LEAST_SCALE))
			return true;
	return false;
}

int
scales_train(Module *m, Diag *diag)
{
	int n_found = 0;

	for_each_function(m, f)
		for_each_node(f, n) {
			Value *scale = scale_of_codes(n);
			State *s = scale ? scale_parameter(scale) : NULL;
			if (!s)
				continue;
			n_found++;
			if (s->trainable)
				continue;
			if (is_below_least(s, scale)) {
				if (f->role == ROLE_FORWARD)
					diag_warning(
						diag,
						"--scale-learning: \"%s\" stays as it is: it holds a scale below 2^-23",
						s->name);
				continue;
			}
			s->trainable = true;
			s->decay = false;
			s->why = "a scale of codes, learned";
		}
	return n_found;
}
