/* Private to kernels: shared by the strategies of convolutions. */
#ifndef GRADC_CODEGEN_KERNELS_CONV_H
#define GRADC_CODEGEN_KERNELS_CONV_H

#include "codegen/kernels/product/product.h"
#include "ir/ops/ops.h"

/* The smallest distance q > 0 for which q * dilation is a multiple of the stride, so that window
 * positions q apart read positions of x that are whole strides apart. At most the size of the
 * window. */
int64_t conv_period(int64_t stride, int64_t dilation, int64_t window);

/* Functions in the rows of the strategies (codegen/strategy). */
bool conv_library(Lower *lw, const Node *n, LibraryCall *out);
Reading conv_reads(const Target *t, const Node *n, int i, Ints *axes);

#endif
