/* Private header: AWQ (Lin et al. 2023, arXiv:2306.00978). A weight that meets large activations
 * matters more. So the inputs of a matrix are multiplied by s = mean|x|^alpha before rounding, and x
 * is divided by s. */
#ifndef GRADC_QUANTIZE_AWQ_H
#define GRADC_QUANTIZE_AWQ_H

#include "quantize/input_sums.h"

/* The g->n factors for matrices that read the same value, whose sums are in g. The factors use the
 * alpha of 0, 0.05, ... 0.95 that changes the products least. The result is in the arena. NULL:
 * alpha 0 is best, so all factors are 1. */
const float *awq_factors(const InputSums *g, Arena *arena, const QuantizedTensors *readers);

#endif
