/* AWQ (Lin et al. 2023, arXiv:2306.00978): a weight that meets a large activation counts more. So the inputs of a matrix are multiplied by
 * s = mean|x|^alpha before they are rounded, and x is divided by s. */
#ifndef GRADC_AWQ_H
#define GRADC_AWQ_H

#include "tools/gptq.h"

/* Of matrices that read one value, of which g holds the sums: the factors of that alpha out of 0, 0.05, ... 0.95 by which the products
 * change least, g->n of them. NULL: of alpha 0, all 1. */
const float *awq_factors(const Gptq *g, Arena *arena, const QuantizedTensors *readers);

#endif
