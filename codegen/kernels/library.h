/* Private to kernels: describes the operands of a matrix product or convolution for a call of a
 * GPU library. */
#ifndef GRADC_CODEGEN_KERNELS_LIBRARY_H
#define GRADC_CODEGEN_KERNELS_LIBRARY_H

#include "codegen/lower/lower.h"

/* The description of an operand, and of the kernel's result, without sizes and strides. */
LibraryOperand library_operand(DType dtype, int rank, int buffer, int64_t offset);
LibraryOperand library_result(Lower *lw, int rank);
/* If the node's kernel adds a bias or a carried sum, makes the library call add it. False: the library cannot
 * read this bias. */
bool library_put_added(Lower *lw, const Node *n, LibraryCall *c);

#endif
