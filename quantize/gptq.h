/* GPTQ (Frantar et al. 2022, arXiv:2210.17323): the weights of a product are rounded one input after the other, and what a rounding
 * changes of the result is made up for by the inputs that are still to come, as far as the data let one stand for another. */
#ifndef GRADC_GPTQ_H
#define GRADC_GPTQ_H

#include "quantize/input_sums.h"

/* The numbers of t, a matrix whose axis `inputs` a product adds up, rounded; sets t->numbers to numbers that are codes' already, and
 * t->scale and t->zero. A group's scale is that of its weights when its first one is rounded. False where the sums tell nothing. */
bool gptq_round(const InputSums *g, Arena *arena, int inputs, QuantizedTensor *t);

#endif
