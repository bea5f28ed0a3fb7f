/* What strategies say to libraries */
#ifndef GRADC_CODEGEN_KERNELS_LIBRARY_H
#define GRADC_CODEGEN_KERNELS_LIBRARY_H

#include "codegen/lower/lower.h"

/* An operand, and what the node's kernel stores, without sizes and strides. */
LibraryOperand library_operand(DType dtype, int rank, int buffer, int64_t offset);
LibraryOperand library_result(Lower *lw, int rank);
/* The vector that the node's kernel adds, if it adds one; false: the library cannot read it. */
bool library_put_bias(Lower *lw, const Node *n, LibraryCall *c);

#endif
