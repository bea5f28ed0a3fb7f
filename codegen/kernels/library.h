/* Private to kernels: describes the operands of a matrix product or convolution for a call of a
 * GPU library. */
#ifndef GRADC_CODEGEN_KERNELS_LIBRARY_H
#define GRADC_CODEGEN_KERNELS_LIBRARY_H

#include "codegen/lower/lower.h"

/* The description of an operand, and of the kernel's result, without sizes and strides. */
LibraryOperand library_operand(DType dtype, int rank, int buffer, int64_t offset);
LibraryOperand library_result(Lower *lw, int rank);
/* Adds the bias to the call, if the node's kernel adds one. False: the library cannot read the bias. */
bool library_put_bias(Lower *lw, const Node *n, LibraryCall *c);

#endif
