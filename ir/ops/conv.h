/* What conv.c and conv_kernel.c share: the rows of conv, conv_grad_input and conv_grad_weight. */
#ifndef GRADC_IR_OPS_CONV_H
#define GRADC_IR_OPS_CONV_H

#include "ir/ops/gemm.h"

/* FLOPs of a convolution with weights w that gives y: two for each product. */
int64_t conv_cost_of(Type w, Type y);

/* The rows' columns `kernel`, `bias`, `library` and `reads`. */
void conv_kernel(Lower *lw, const Node *n);
void conv_grad_input_kernel(Lower *lw, const Node *n);
void conv_grad_weight_kernel(Lower *lw, const Node *n);
Value *conv_bias(const Node *n, const Node *reader);
bool conv_library(Lower *lw, const Node *n, LibraryCall *out);
Reading conv_reads(const Node *n, int i, Ints *axes);

#endif
