/* What the rows of dot and the convolutions share. */
#ifndef GRADC_IR_OPS_PRODUCTS_H
#define GRADC_IR_OPS_PRODUCTS_H

#include "ir/ir.h"

/* The vector along that axis of n's result that reader adds to it, and nobody else reads the result; else NULL. */
Value *added_vector(const Node *n, const Node *reader, int axis);

/* ---- dtypes of a product: operands of one class; the result's is `dtype`, or theirs where they agree */

/* Result dtype of a node with these attributes; false after reporting. */
bool infer_product(Infer *in, int dtype, bool allow_tf32, DType *out);
/* The attribute that makes a product of x and y one of type z: nothing is said that goes without saying. */
int product_dtype(DType x, DType y, DType z);

#endif
