/* Private header: AWQ (Lin et al. 2023, arXiv:2306.00978). A weight that meets large activations
 * matters more. So before rounding, the weights of each input are multiplied by that input's s =
 * mean|x|^alpha, and the activation x is divided by s. */
#ifndef GRADC_QUANTIZE_AWQ_H
#define GRADC_QUANTIZE_AWQ_H

#include "quantize/input_sums.h"

/* g: sums over the activations that all matrices in `readers` multiply. Returns one factor s for
 * each of the g->n inputs, with the alpha of 0, 0.05, ... 0.95 that changes the products least. The
 * result is in the arena. NULL: alpha 0 is best, so all factors are 1. */
const float *awq_factors(const InputSums *g, Arena *arena, const QuantizedTensors *readers);

#endif
