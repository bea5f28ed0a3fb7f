/* Describes dot and conv as loops: which axes are batch, rows, columns and summed axes, and how
 * large they are. The op rows of ir/ops/ and the strategies of codegen/kernels/ use these
 * descriptions. */
#ifndef GRADC_IR_SHAPES_H
#define GRADC_IR_SHAPES_H

#include "ir/ir.h"
#include "ir/loop/loop.h"

/* ---- dot.c: a dot seen as a matrix product: the groups of axes of each side, as shapes. */
typedef struct {
	Ints x_free, y_free;              /* axes of x and of y */
	Type batch, rows, columns, inner; /* shapes of the groups of axes */
} DotShape;
DotShape dot_shape(Module *m, const DotAttr *a, Type x, Type y);
/* Strides in the result z of the axes batch, rows, columns; `order` may have moved them. */
void dot_result_strides(const DotAttr *a, Type z, int64_t *strides);
/* The axes of a tensor that neither list names, in order. */
Ints free_axes(int rank, const Ints *batch, const Ints *contract);

/* ---- conv.c: the three tensors of a convolution or of one of its adjoints. */
typedef struct {
	const ConvAttr *a;
	Type x, w, y;
	Value *p, *q;                  /* operands 0 and 1 */
	Type x_space, window, y_space; /* spatial dims only */
	int64_t in, out;               /* channels of one group */
} ConvShape;
ConvShape conv_shapes(Module *m, const Node *n);
/* FLOPs of a convolution with weights w and result y: two per product. */
int64_t conv_cost_of(Type w, Type y);

/* ---- family.c: the index of a line along `axis`, from an index without that axis. The caller sets at[axis]. */
Index index_of_line(const Index *at, int64_t axis);

#endif
