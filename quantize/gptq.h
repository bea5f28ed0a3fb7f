/* Private header: GPTQ (Frantar et al. 2022, arXiv:2210.17323). A product's weights are rounded one
 * input after the other. The weights of later inputs are changed to compensate each rounding error,
 * as far as these inputs correlate in the data. */
#ifndef GRADC_QUANTIZE_GPTQ_H
#define GRADC_QUANTIZE_GPTQ_H

#include "quantize/input_sums.h"

/* Rounds the matrix t, whose axis `inputs` a product sums over. Sets t->numbers to the rounded
 * numbers, and t->scale and t->zero. A group's scale is computed when its first weight is rounded.
 * false: t is unchanged, because the sums do not fit the matrix or cannot be inverted. */
bool gptq_round(const InputSums *g, Arena *arena, int inputs, QuantizedTensor *t);

#endif
