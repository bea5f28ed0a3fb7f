/* Products and reshapes of tensors whose axes have labels. */
#include "ir/groups/labels.h"

#include <string.h>

int
labels_find(const Labels *l, int label)
{
	for (int i = 0; i < l->n; i++)
		if (l->at[i] == label)
			return i;
	return -1;
}

Labels
labels_range(int first, int n)
{
	Labels l = {.n = n};

	for (int i = 0; i < n; i++)
		l.at[i] = first + i;
	return l;
}

static void
push(Ints *list, int64_t x)
{
	list->at[list->n++] = x;
}

/* Appends the labels of x that are neither batch nor summed axes. */
static void
push_free(Labels *out, const Labels *x, const Ints *batch, const Ints *contract)
{
	for (int i = 0; i < x->n; i++)
		if (!ints_has(batch, i) && !ints_has(contract, i))
			out->at[out->n++] = x->at[i];
}

Value *
labels_dot(Builder *b, Labeled x, Labeled y, const Labels *out, DType dtype, bool allow_tf32)
{
	const Labels *of_x = x.labels, *of_y = y.labels;
	DotAttr a = {.allow_tf32 = allow_tf32};
	Labels natural = {0};
	bool ordered = false;

	for (int i = 0; i < of_x->n; i++) {
		int k = labels_find(of_y, of_x->at[i]);
		bool kept = labels_find(out, of_x->at[i]) >= 0;
		if (k < 0)
			continue;
		push(kept ? &a.x_batch : &a.x_contract, i);
		push(kept ? &a.y_batch : &a.y_contract, k);
		if (kept)
			natural.at[natural.n++] = of_x->at[i];
	}
	push_free(&natural, of_x, &a.x_batch, &a.x_contract);
	push_free(&natural, of_y, &a.y_batch, &a.y_contract);
	for (int i = 0; i < out->n; i++) {
		push(&a.order, labels_find(&natural, out->at[i]));
		ordered |= a.order.at[i] != i;
	}
	if (!ordered)
		a.order = (Ints){0};
	if (x.value->type->dtype != dtype || y.value->type->dtype != dtype)
		a.dtype = 1 + (int)dtype;
	return build(b, OP_dot, 2, (Value *[]){x.value, y.value}, &a);
}

Value *
labels_transpose(Builder *b, Value *x, const Labels *from, const Labels *to)
{
	Ints order = {0};

	for (int i = 0; i < to->n; i++)
		push(&order, labels_find(from, to->at[i]));
	return b_transpose(b, x, order);
}

/* ---- merged axes */
MergedAxes
merged_of(const Labels *l, const int64_t *sizes)
{
	MergedAxes a = {.n = l->n};

	for (int i = 0; i < l->n; i++) {
		a.count[i] = sizes[l->at[i]] != 1;
		if (a.count[i])
			a.labels.at[a.labels.n++] = l->at[i];
	}
	return a;
}

bool
merged_reshape(MergedAxes *a, const int64_t *sizes, const Ints *shape, int *label, int64_t *outer)
{
	MergedAxes out = {.n = shape->n, .labels = a->labels};
	int next = 0;

	*label = -1;
	for (int i = 0; i < shape->n; i++)
		for (int64_t left = shape->at[i]; left > 1; out.count[i]++) {
			if (next == a->labels.n)
				return false;
			int64_t size = sizes[a->labels.at[next]];
			if (left % size) {
				*label = size % left ? -1 : a->labels.at[next];
				*outer = left;
				return false;
			}
			left /= size;
			next++;
		}
	*a = out;
	return next == a->labels.n;
}

int
merged_first(const MergedAxes *a, int i)
{
	int first = 0;

	while (i > 0)
		first += a->count[--i];
	return first;
}

void
merged_transpose(MergedAxes *a, const Ints *order)
{
	MergedAxes out = {.n = a->n};

	for (int i = 0; i < a->n; i++) {
		int from = (int)order->at[i], first = merged_first(a, from);
		out.count[i] = a->count[from];
		for (int k = 0; k < a->count[from]; k++)
			out.labels.at[out.labels.n++] = a->labels.at[first + k];
	}
	*a = out;
}

bool
merged_equal(const MergedAxes *a, const MergedAxes *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

Value *
merged_split(Builder *b, Value *x, const MergedAxes *a, const int64_t *sizes, int n)
{
	Ints split = {0}, whole = {0};
	Labels sorted = {0};

	for (int i = 0; i < a->labels.n; i++)
		push(&split, sizes[a->labels.at[i]]);
	for (int label = 0; label < n; label++) {
		push(&whole, sizes[label]);
		if (sizes[label] != 1)
			sorted.at[sorted.n++] = label;
	}
	x = b_reshape(b, x, split);
	return b_reshape(b, labels_transpose(b, x, &a->labels, &sorted), whole);
}
