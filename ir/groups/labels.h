/* Private to groups: axes of tensors by numbers (labels), as einsum has letters. The labels of
 * attention over scores [2,4,64,32] are 0 for the batch, 1 for heads, 2 for queries, 3 for keys;
 * q has 0, 1, 2 and a label for its width. */
#ifndef GRADC_IR_GROUPS_LABELS_H
#define GRADC_IR_GROUPS_LABELS_H

#include "ir/ir.h"

typedef struct {
	int n;
	int at[MAX_RANK]; /* by axis */
} Labels;
int labels_find(const Labels *l, int label); /* the axis; -1: no axis has the label */
/* Labels first, first + 1, ... */
Labels labels_range(int first, int n);

typedef struct {
	Value *value;
	const Labels *labels;
} Labeled;
/* The product of x and y with axes `out`: sums over the labels that x and y share and `out` lacks. */
Value *labels_dot(Builder *b, Labeled x, Labeled y, const Labels *out, DType dtype,
                  bool allow_tf32);
/* x with its axes in the order `to`. */
Value *labels_transpose(Builder *b, Value *x, const Labels *from, const Labels *to);

/* Axes of which each is a product of several labels. Example: scores reshaped to [8,64,32] have
 * the axes {0,1}, {2}, {3}. Labels of one element do not occur. */
typedef struct {
	int n;
	int count[MAX_RANK]; /* labels of an axis */
	Labels labels;       /* of all axes */
} MergedAxes;
/* sizes: by label */
MergedAxes merged_of(const Labels *l, const int64_t *sizes);
/* The axes after a reshape, or after a transpose. merged_reshape returns false if an axis would be
 * a part of a label. If the shape fits once that label is two labels, *label is the label and
 * *outer the size of the first of the two; else *label is -1. */
bool merged_reshape(MergedAxes *a, const int64_t *sizes, const Ints *shape, int *label,
                    int64_t *outer);
void merged_transpose(MergedAxes *a, const Ints *order);
bool merged_equal(const MergedAxes *a, const MergedAxes *b);
/* Number of the first label of axis i in a->labels. */
int merged_first(const MergedAxes *a, int i);
/* x has the axes a. Returns x with one axis for each of the n labels from 0 on, in their order. */
Value *merged_split(Builder *b, Value *x, const MergedAxes *a, const int64_t *sizes, int n);

#endif
