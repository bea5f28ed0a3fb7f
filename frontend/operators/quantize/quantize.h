/* What the files of quantized operators share: quantize.c has it. */
#ifndef GRADC_ONNX_QUANTIZE_H
#define GRADC_ONNX_QUANTIZE_H

#include "frontend/import/import.h"

/* A scale or zero point in the shape of `like`: one for all, one for each place along `axis`, or with block > 0 one for each block there. */
Value *codes_spread(OnnxNode *n, Value *v, Value *like, int axis, int64_t block);
/* That of a matrix: one for all, one for each row or column (`axis`, from the end), or of the matrix's rank. */
Value *codes_spread_matrix(OnnxNode *n, Value *v, Value *like, int axis);
/* x and scale: floats of one type and shape. To floats of 8 and 4 bits it is a conversion. */
Value *codes_of_floats(OnnxNode *n, Value *x, Value *scale, Value *zero, DType to);
/* Are they codes that the standard has, and is a zero point of the same type? */
bool codes_check(OnnxNode *n, DType t, const Value *zero);
/* code - zero: in s32, or of small floats, which have no zero point, in f32. */
Value *codes_shifted(OnnxNode *n, Value *x, Value *zero);
/* Input i, which are codes, less the zero point of input z. */
Value *codes_want_matrix(OnnxNode *n, int i, int z, int axis);
/* The sum of products, which has the scale `from`, as codes of the scale and zero point that these inputs are. */
Value *codes_requantize(OnnxNode *n, Value *sum, Value *from, int scale_input, int zero_input);
/* x as codes of 8 bits over its own range, and as the floats that these stand for. */
Value *codes_and_back(OnnxNode *n, Value *x);
/* DynamicQuantizeLSTM's weight [directions, inputs, gates], codes with a scale for each direction or each of its columns, as that of an
 * LSTM, [directions, gates, inputs]. */
Value *codes_want_gates(OnnxNode *n, int input, int scale_input);

#endif
