/* What conv.c, conv_kernel.c and conv_planes.c share: the rows of conv, conv_grad_input and conv_grad_weight. */
#ifndef GRADC_IR_OPS_CONV_H
#define GRADC_IR_OPS_CONV_H

#include "ir/ops/gemm.h"

/* FLOPs of a convolution with weights w that gives y: two for each product. */
int64_t conv_cost_of(Type w, Type y);

/* The three tensors of a convolution or an adjoint. */
typedef struct {
	const ConvAttr *a;
	Type x, w, y;
	Value *p, *q;                  /* operands 0 and 1 */
	Type x_space, window, y_space; /* spatial dims only */
	int64_t in, out;               /* channels of a group */
} ConvShape;
ConvShape conv_shapes(Module *m, const Node *n);

/* Of a window's axis: places so far apart read places of x that are whole strides apart; at most the window. */
int64_t conv_period(int64_t stride, int64_t dilation, int64_t window);

/* Clamps place to [0, size) and adds to *inside that it was there; *inside < 0: nothing so far. */
Affine clamp_place(LoopBuilder *lb, Affine place, int64_t size, bool never_outside,
                   LoopValue *inside);
/* A loaded element, 0 where `inside` is false; the place is clamped by the caller. inside < 0: always */
LoopValue load_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside);

/* conv_grad_weight where groups have few outputs; false: others, of which nothing is emitted. */
bool conv_planes_grad_weight(Lower *lw, const Node *n);

/* The rows' columns `kernel`, `bias`, `library` and `reads`. */
void conv_kernel(Lower *lw, const Node *n);
void conv_grad_input_kernel(Lower *lw, const Node *n);
void conv_grad_weight_kernel(Lower *lw, const Node *n);
Value *conv_bias(const Node *n, const Node *reader);
bool conv_library(Lower *lw, const Node *n, LibraryCall *out);
Reading conv_reads(const Node *n, int i, Ints *axes);

#endif
