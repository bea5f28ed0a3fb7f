/* Functions for the column `batch` of op rows: they find the axis that counts the rows of a
 * micro-batch, for ops whose factors (ir/op.h) do not tell it. */
#ifndef GRADC_IR_OPS_BATCH_AXIS_H
#define GRADC_IR_OPS_BATCH_AXIS_H

#include "ir/ir.h"

void batch_reshape(BatchFlow *fl);
void batch_concat(BatchFlow *fl);
void batch_slice(BatchFlow *fl);
void batch_gather(BatchFlow *fl);
void batch_scatter(BatchFlow *fl);
void batch_call(BatchFlow *fl);
void batch_cond(BatchFlow *fl);
void batch_loop(BatchFlow *fl);

#endif
