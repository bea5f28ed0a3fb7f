#include "ir/ops/family.h"

const Field axis_fields[] = {{"axis", FIELD_INT, offsetof(AxisAttr, axis), NULL, false}, {0}};

IndexWalk
index_walk(Type t)
{
	return (IndexWalk){.type = t, .ok = t->n > 0};
}

void
index_walk_next(IndexWalk *w)
{
	int i = w->type->rank - 1;

	w->flat++;
	for (; i >= 0; i--) {
		if (++w->at[i] < w->type->dims[i])
			return;
		w->at[i] = 0;
	}
	w->ok = false;
}

int64_t
flat_of(const int64_t *at, const int64_t *strides, int rank)
{
	int64_t sum = 0;

	for (int i = 0; i < rank; i++)
		sum += at[i] * strides[i];
	return sum;
}

void
eval_move(EvalTensor *y, int64_t i, const EvalTensor *x, int64_t j)
{
	y->i[i] = x->i[j]; /* doubles and integers both have 8 bytes */
}

Index
index_of_line(const Index *at, int64_t axis)
{
	Index full = {.rank = at->rank + 1};

	for (int k = 0; k < at->rank; k++)
		full.at[k < axis ? k : k + 1] = at->at[k];
	return full;
}

bool
infer_axis(Infer *in, int64_t axis, int rank)
{
	if (axis >= 0 && axis < rank)
		return true;
	infer_error(in, "axis %lld of a rank-%d operand", (long long)axis, rank);
	return false;
}

void
infer_set(Infer *in, int i, DType dtype, const Ints *shape)
{
	int64_t n = 1;

	for (int k = 0; k < shape->n; k++) {
		if (shape->at[k] < 0 || !size_mul(n, shape->at[k], &n) || n > INT64_MAX / 16) {
			infer_error(in, "a size of %lld is out of range", (long long)shape->at[k]);
			return;
		}
	}
	in->result[i] = type_new(in->m, dtype, shape->n, shape->at);
}

Value *
zeros_like(Builder *b, const Value *v)
{
	return b_splat(b, v->type, 0);
}
