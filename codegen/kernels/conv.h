/* What the strategies of convolutions share. */
#ifndef GRADC_CODEGEN_KERNELS_CONV_H
#define GRADC_CODEGEN_KERNELS_CONV_H

#include "codegen/kernels/product/product.h"
#include "ir/ops/ops.h"

/* Of a window's axis: places so far apart read places of x that are whole strides apart; at most the window. */
int64_t conv_period(int64_t stride, int64_t dilation, int64_t window);

/* The strategies' columns. */
bool conv_library(Lower *lw, const Node *n, LibraryCall *out);
Reading conv_reads(const Target *t, const Node *n, int i, Ints *axes);

#endif
