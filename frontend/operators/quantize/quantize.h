/* Private header: shared by the importers of quantized operators. quantize.c defines the functions.
 * Codes are the integers that a quantized tensor holds; a code stands for (code - zero) scale. */
#ifndef GRADC_FRONTEND_OPERATORS_QUANTIZE_QUANTIZE_H
#define GRADC_FRONTEND_OPERATORS_QUANTIZE_QUANTIZE_H

#include "frontend/import/import.h"

/* Broadcasts a scale or zero point to the shape of `like`: one number for all, one per index of
 * `axis`, or with block > 0 one per block along `axis`. */
Value *codes_spread(OnnxNode *n, Value *v, Value *like, int axis, int64_t block);
/* Does the same for a matrix: one number for all, one per row or column (`axis`, counted from the
 * last), or a tensor of the matrix's rank. */
Value *codes_spread_matrix(OnnxNode *n, Value *v, Value *like, int axis);
/* x and scale: floats of one type and shape. For floats of 8 and 4 bits this is a cast. */
Value *codes_of_floats(OnnxNode *n, Value *x, Value *scale, Value *zero, DType to);
/* Does the standard have codes of this type, and has the zero point the same type? */
bool codes_check(OnnxNode *n, DType t, const Value *zero);
/* code - zero, in s32. Small floats have no zero point and are converted to f32. */
Value *codes_shifted(OnnxNode *n, Value *x, Value *zero);
/* The codes in input i, less the zero point in input z. */
Value *codes_want_matrix(OnnxNode *n, int i, int z, int axis);
/* Converts a sum of products with the scale `from` to codes with the scale and zero point in the
 * given inputs. */
Value *codes_requantize(OnnxNode *n, Value *sum, Value *from, int scale_input, int zero_input);
/* x quantized to 8 bits over its own range, and dequantized. */
Value *codes_and_back(OnnxNode *n, Value *x);
/* The weight of DynamicQuantizeLSTM, codes [directions, inputs, gates] with a scale per direction or
 * per column of a direction, in the layout of LSTM: [directions, gates, inputs]. */
Value *codes_want_gates(OnnxNode *n, int input, int scale_input);

#endif
