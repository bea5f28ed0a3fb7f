/* Declarations that the rows of dot and the convolutions share. */
#ifndef GRADC_IR_OPS_PRODUCTS_H
#define GRADC_IR_OPS_PRODUCTS_H

#include "ir/ir.h"

/* The vector along that axis of n's result that `reader` adds to the result. NULL: `reader` adds no such vector, or
 * n's result has other readers. */
Value *added_vector(const Node *n, const Node *reader, int axis);

/* ---- dtypes of a product: the operands have one class. The result has type `dtype`, or the operands' type if
 * they agree. */

/* Sets *out to the result's dtype; false after reporting. */
bool infer_product(Infer *in, int dtype, bool allow_tf32, DType *out);
/* The attribute `dtype` of a product of x and y with result type z: 0 if the operands already say it. */
int product_dtype(DType x, DType y, DType z);

#endif
