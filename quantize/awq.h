/* AWQ (Lin et al. 2023, arXiv:2306.00978): a weight that meets a large activation counts more. So the inputs of a matrix are multiplied by
 * s = mean|x|^alpha before they are rounded, and x is divided by s. */
#ifndef GRADC_AWQ_H
#define GRADC_AWQ_H

#include "quantize/input_sums.h"

/* Of matrices that read one value, of which g holds the sums: g->n factors, those of the alpha out of 0, 0.05, ... 0.95 by which the
 * products change least; in the arena. NULL: alpha 0 is best, where all are 1. */
const float *awq_factors(const InputSums *g, Arena *arena, const QuantizedTensors *readers);

#endif
