/* Declarations that the files of ops share: walks over indices, checks for type inference, and
 * rewrites. */
#ifndef GRADC_IR_OPS_FAMILY_H
#define GRADC_IR_OPS_FAMILY_H

#include "ir/ir.h"
#include "ir/ops/ops.h"

/* Visits the indices of a shape in row-major order: for (IndexWalk w = index_walk(t); w.ok; index_walk_next(&w)). */
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
/* Copies element j of x to element i of y, whatever their dtype. */
void eval_move(EvalTensor *y, int64_t i, const EvalTensor *x, int64_t j);

/* Compares integers in eval's form; `u`: they are u64. */
static inline bool
int_less(int64_t x, int64_t y, bool u)
{
	return u ? (uint64_t)x < (uint64_t)y : x < y;
}

/* Checks that infer functions share. infer_set sets the type of result i. Both report faults. */
bool infer_axis(Infer *in, int64_t axis, int rank);
void infer_set(Infer *in, int i, DType dtype, const Ints *shape);

/* The columns that every op with attributes has; the names of functions and tables derive from the op's name. */
#define COLUMNS(op, Attr, field_table, grad_column, text)                           \
	.name = #op, .doc = text, .fields = field_table, .attr_size = sizeof(Attr), \
	.infer = op##_infer, .eval = op##_eval, .grad = grad_column, .samples = op##_samples

extern const Field axis_fields[]; /* fields of AxisAttr */

Value *zeros_like(Builder *b, const Value *v);
/* Builds x + y as pad(concat(a, b)), if x = pad(a) and y = pad(b) pad with zeros, and a and b lie
 * next to each other along one axis. The gradients of a split have this form. NULL: x and y are
 * something else. */
Value *join_pads(Builder *b, Value *x, Value *y);
/* Rewrites add(x, scatter(0, i, u)) to scatter(x, i, u), for a scatter that adds. So the gradient
 * of a table that was read by gather is added in place to the table's other gradients, or to the
 * sum of earlier micro-batches. NULL: n is something else, or another node reads the scatter in
 * the same micro-batch. */
Value *add_to_scatter(Builder *b, Node *n);

/* ---- channels_last.c: for the column `channels_last` */
Value *conv_channels_last(Builder *b, const Node *n, Value *const *operands);
Value *pool_channels_last(Builder *b, const Node *n, Value *const *operands);
Value *broadcast_channels_last(Builder *b, const Node *n, Value *const *operands);
Value *reduce_channels_last(Builder *b, const Node *n, Value *const *operands);
Value *pad_channels_last(Builder *b, const Node *n, Value *const *operands);
Value *slice_channels_last(Builder *b, const Node *n, Value *const *operands);
Value *concat_channels_last(Builder *b, const Node *n, Value *const *operands);

#endif
