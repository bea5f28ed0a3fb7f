/* Interface of passes/units, and declarations that its files share. A unit is a flat state that holds several
 * parameters with equal updates, or their gradients or moments. */
#ifndef GRADC_PASSES_UNITS_H
#define GRADC_PASSES_UNITS_H

#include "passes/pass.h"

/* ---- layer_blocks.c: by state id: the layer block of a parameter, from 0 in the order of the forward pass. */
/* The blocks of f before small blocks are merged. */
int *layer_blocks_of(const Function *f, Arena *arena);

#endif
