/* What the attributes of dot and conv say of their operands' loops: read by the rows of ir/ops/, which define
 * these, and by the strategies of codegen/kernels/. */
#ifndef GRADC_IR_SHAPES_H
#define GRADC_IR_SHAPES_H

#include "ir/ir.h"
#include "ir/loop/loop.h"

/* ---- dot.c: the matrix view of a dot: per side its groups of axes, as shapes. */
typedef struct {
	Ints x_free, y_free;              /* axes of x, of y */
	Type batch, rows, columns, inner; /* shapes of the groups */
} DotShape;
DotShape dot_shape(Module *m, const DotAttr *a, Type x, Type y);
/* Strides in the result z of the axes batch, rows, columns, whatever their order there. */
void dot_result_strides(const DotAttr *a, Type z, int64_t *strides);
/* The axes of a rank that neither list names, in order. */
Ints free_axes(int rank, const Ints *batch, const Ints *contract);

/* ---- conv.c: the three tensors of a convolution or an adjoint. */
typedef struct {
	const ConvAttr *a;
	Type x, w, y;
	Value *p, *q;                  /* operands 0 and 1 */
	Type x_space, window, y_space; /* spatial dims only */
	int64_t in, out;               /* channels of a group */
} ConvShape;
ConvShape conv_shapes(Module *m, const Node *n);
/* FLOPs of a convolution with weights w that gives y: two for each product. */
int64_t conv_cost_of(Type w, Type y);

/* ---- family.c: the index of a line along `axis` from that of the shape without it; the caller sets at[axis]. */
Index index_of_line(const Index *at, int64_t axis);

#endif
