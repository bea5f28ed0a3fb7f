/* Derivative rules build nodes in the types of the values that they read. In 16 bits, some of these nodes would lose
 * digits: above all, sums of the gradients that come from several readers of a value. */
#include "ir/ir.h"

bool
value_is_narrow(const Value *v)
{
	return dtype_is_float(v->type->dtype) && dtype_info[v->type->dtype].bits < 32;
}

/* v in f32. If v is the result of a cast from f32, the value before that cast; otherwise a new
 * cast of v. */
static Value *
wide(Builder *b, Value *v)
{
	Value *before = value_cast_of(v);

	return before && before->type->dtype == F32 ? before : b_cast(b, v, F32);
}

/* Computes n in f32, and rounds the result for its readers. Returns the rounded result. */
static Value *
widen(Builder *b, Node *n)
{
	Value **operands = NEW_ARRAY(b->m->arena, Value *, n->n_operands + 1);

	for (int i = 0; i < n->n_operands; i++) {
		Value *x = node_operand(n, i);
		operands[i] = x && value_is_narrow(x) ? wide(b, x) : x;
	}
	Value *y = build(b, n->op, n->n_operands, operands, n->attr);
	Value *rounded = b_cast(b, y, node_result(n, 0)->type->dtype);
	value_replace_uses(node_result(n, 0), rounded);
	return rounded;
}

void
gradient_widen(const Builder *b, int n_grads, Value **grads)
{
	for_each_node(b->f, n) {
		bool sums = n->phase == PHASE_BACKWARD && n->n_results == 1 &&
		            op_row(n)->precision == PRECISION_HIGH &&
		            value_is_narrow(node_result(n, 0));
		if (!sums)
			continue;
		Builder here = *b;
		here.before = n;
		here.loc = n->loc;
		Value *rounded = widen(&here, n);
		for (int i = 0; i < n_grads; i++)
			if (grads[i] == node_result(n, 0))
				grads[i] = rounded;
		node_erase(n);
	}
}

Value *
gradient_unrounded(Builder *b, Value *v)
{
	Node *n = v->node;
	const OpRow *row = n ? op_row(n) : NULL;
	const Field *type = NULL;
	Value *before = value_cast_of(v);

	if (!row || !value_used_once(v) || n->n_results > 1)
		return v;
	if (before)
		return before->type->dtype == F32 ? before : v;
	for (const Field *f = row->fields; f && f->name; f++)
		type = f->kind == FIELD_DTYPE_IF_ANY ? f : type;
	bool moves = row->fuse == FUSE_VIEW && n->n_operands == 1;
	if (!moves && !type)
		return v;
	Builder here = *b;
	here.before = n;
	here.loc = n->loc;
	Value **operands = NEW_ARRAY(b->m->arena, Value *, n->n_operands);
	for (int i = 0; i < n->n_operands; i++)
		operands[i] = node_operand(n, i);
	void *attr = arena_copy(b->m->arena, n->attr, row->attr_size);
	if (type)
		*(int *)((char *)attr + type->offset) = 1 + F32;
	else if ((operands[0] = gradient_unrounded(b, operands[0]))->type->dtype != F32)
		return v;
	return build(&here, n->op, n->n_operands, operands, attr);
}
