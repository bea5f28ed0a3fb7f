/* What the strategies of convolutions share. */
#ifndef GRADC_CODEGEN_KERNELS_CONV_H
#define GRADC_CODEGEN_KERNELS_CONV_H

#include "codegen/kernels/kernels.h"
#include "codegen/kernels/product.h"
#include "ir/shapes.h"

/* Of a window's axis: places so far apart read places of x that are whole strides apart; at most the window. */
int64_t conv_period(int64_t stride, int64_t dilation, int64_t window);

/* Clamps place to [0, size) and adds to *inside that it was there; *inside < 0: nothing so far. */
Affine clamp_place(LoopBuilder *lb, Affine place, int64_t size, bool never_outside,
                   LoopValue *inside);
/* A loaded element, 0 where `inside` is false; the place is clamped by the caller. inside < 0: always */
LoopValue load_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside);

/* The strategies' columns. */
bool conv_library(Lower *lw, const Node *n, LibraryCall *out);
Reading conv_reads(const Node *n, int i, Ints *axes);

#endif
