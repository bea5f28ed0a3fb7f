/* What the op families share. */
#ifndef GRADC_IR_OPS_FAMILY_H
#define GRADC_IR_OPS_FAMILY_H

#include "ir/ir.h"
#include "ir/ops/ops.h"

/* Visits the multi-indices of a shape in row-major order: for (IndexWalk w = index_walk(t); w.ok; index_walk_next(&w)). */
typedef struct {
	Type type;
	int64_t at[MAX_RANK];
	int64_t flat;
	bool ok;
} IndexWalk;
IndexWalk index_walk(Type t);
void index_walk_next(IndexWalk *w);
/* Sum of index * stride. */
int64_t flat_of(const int64_t *at, const int64_t *strides, int rank);
/* Copies element j of x to element i of y, whatever their class. */
void eval_move(EvalTensor *y, int64_t i, const EvalTensor *x, int64_t j);

/* Order of integers as eval holds them; `u`: they are u64. */
static inline bool
int_less(int64_t x, int64_t y, bool u)
{
	return u ? (uint64_t)x < (uint64_t)y : x < y;
}

/* Shared checks. */
bool infer_axis(Infer *in, int64_t axis, int rank);
void infer_set(Infer *in, int i, DType dtype, const Ints *shape);

/* The columns of a row that every op with attributes has, from functions and tables named after it. */
#define COLUMNS(op, Attr, field_table, grad_column, text)                           \
	.name = #op, .doc = text, .fields = field_table, .attr_size = sizeof(Attr), \
	.infer = op##_infer, .eval = op##_eval, .grad = grad_column, .samples = op##_samples

extern const Field axis_fields[]; /* of AxisAttr */

Value *zeros_like(Builder *b, const Value *v);
/* pad(a) + pad(b) for zero pads whose contents lie next to each other along one axis: pad(concat(a, b)).
 * The gradients of a split meet so. NULL when they don't. */
Value *join_pads(Builder *b, Value *x, Value *y);
/* add(x, scatter(0, i, u)), which adds up: scatter(x, i, u). Gradients of a looked-up table meet the table's other ones so,
 * and those of earlier micro-batches. NULL: n is something else, or who else reads the sum of updates runs at the same
 * time. */
Value *add_to_scatter(Builder *b, Node *n);

#endif
