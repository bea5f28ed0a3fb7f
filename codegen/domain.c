#include "codegen/domain.h"

ReduceForm
reduce_form(const Ints *shape, const Ints *reduced_axes)
{
	ReduceForm f = {0};

	for (int i = 0; i < shape->n; i++) {
		bool reduced = ints_has(reduced_axes, i);
		if (shape->at[i] == 1)
			continue;
		if (f.n && f.reduced[f.n - 1] == reduced) {
			f.extent[f.n - 1] *= shape->at[i];
		} else {
			f.extent[f.n] = shape->at[i];
			f.reduced[f.n++] = reduced;
		}
	}
	return f;
}

bool
reduce_form_equal(const ReduceForm *a, const ReduceForm *b)
{
	if (a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++)
		if (a->extent[i] != b->extent[i] || a->reduced[i] != b->reduced[i])
			return false;
	return true;
}

int64_t
reduce_form_kept(const ReduceForm *f)
{
	int64_t n = 1;

	for (int i = 0; i < f->n; i++)
		n *= f->reduced[i] ? 1 : f->extent[i];
	return n;
}

bool
reduce_form_by_column(const ReduceForm *f)
{
	return f->n && !f->reduced[f->n - 1];
}

Value *
behind_reshapes(Value *v)
{
	while (v->node && v->node->op == OP_reshape)
		v = node_operand(v->node, 0);
	return v;
}
