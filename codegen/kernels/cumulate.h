/* What the strategies of running sums share. */
#ifndef GRADC_CODEGEN_KERNELS_CUMULATE_H
#define GRADC_CODEGEN_KERNELS_CUMULATE_H

#include "codegen/kernels/tiles.h"
#include "codegen/strategy/strategy.h"

typedef struct {
	Lower *lw;
	const Node *node;
	const CumulateAttr *attr;
	Type x, lines;
	DType type; /* that sums are of */
	int64_t size, block, blocks;
} Cumulate;
Cumulate cumulate_of(Lower *lw, const Node *n);
/* The sums of all blocks but the last. */
Type cumulate_scratch(Lower *lw, const Node *n);
int64_t cumulate_prepare_flops(const Cumulate *c);
/* Element number `at` of the line, in the order in which they are added. */
Index cumulate_index(const Cumulate *c, const Index *line, Affine at);
/* The place of a block's sum. */
Affine cumulate_sum_place(const Cumulate *c, Affine line, Affine block);
/* Stores the sum of a block, which is not the last, for the kernel that `c` is of. */
void cumulate_sum_block(const Cumulate *c, Affine line, Affine block, const Index *at);
/* What the block starts at: the sum of those before it. */
LoopValue cumulate_sum_before(const Cumulate *c, Affine line, Affine block);
/* Stores the next running sum, of the old one and x, to an array of one; what the result has there. */
LoopValue cumulate_step(const Cumulate *c, int sum, LoopValue old, LoopValue x);
/* The results of a block; sum: an array of one. */
void cumulate_block(const Cumulate *c, Affine line, Affine block, const Index *at, int sum);

#endif
