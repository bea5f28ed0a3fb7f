/* Declarations that the ops dot and the convolutions share: the dtype of the result, and the
 * vector (bias) that is added to the result. */
#ifndef GRADC_IR_OPS_PRODUCTS_H
#define GRADC_IR_OPS_PRODUCTS_H

#include "ir/ir.h"

/* The vector along axis `axis` that `reader` adds to n's result. NULL: `reader` adds no such
 * vector, or n's result has other readers. */
Value *added_vector(const Node *n, const Node *reader, int axis);

/* ---- dtypes of a product: the operands are all floats or all integers. If `dtype` is given, it is
 * the result's type. Otherwise both operands must have one type, which is the result's type,
 * too. */

/* Sets *out to the result's dtype; false after reporting. */
bool infer_product(Infer *in, int dtype, bool allow_tf32, DType *out);
/* The attribute `dtype` of a product of x and y with result type z: 0 if the operands' types
 * already determine it. */
int product_dtype(DType x, DType y, DType z);

#endif
