/* Private to kernels: shared by the strategies of running sums. */
#ifndef GRADC_CODEGEN_KERNELS_CUMULATE_H
#define GRADC_CODEGEN_KERNELS_CUMULATE_H

#include "codegen/kernels/tiles.h"
#include "codegen/strategy/strategy.h"

typedef struct {
	Lower *lw;
	const Node *node;
	const CumulateAttr *attr;
	Type x, lines;
	DType type; /* type of the sums */
	int64_t size, block, blocks;
} Cumulate;
Cumulate cumulate_of(Lower *lw, const Node *n);
/* The type of the scratch, which the serving kernel fills with the sums of all blocks except the
 * last block of each line. */
Type cumulate_scratch(Lower *lw, const Node *n);
int64_t cumulate_prepare_flops(const Cumulate *c);
/* The index of the line's element that is added in step `at`. If the attribute `reverse` is set,
 * step 0 adds the line's last element. */
Index cumulate_index(const Cumulate *c, const Index *line, Affine at);
/* Place of a block's sum in the scratch. */
Affine cumulate_sum_place(const Cumulate *c, Affine line, Affine block);
/* Stores the sum of a block into the scratch. The block is not the last of its line. */
void cumulate_sum_block(const Cumulate *c, Affine line, Affine block, const Index *at);
/* The sum of all blocks before this one, at which the block starts. */
LoopValue cumulate_sum_before(const Cumulate *c, Affine line, Affine block);
/* Adds x to the running sum `old` and stores the new running sum into `sum`, an array of one
 * element. Returns the element of the result at this place. */
LoopValue cumulate_step(const Cumulate *c, int sum, LoopValue old, LoopValue x);
/* Stores the results of a block; `sum` is an array of one element. */
void cumulate_block(const Cumulate *c, Affine line, Affine block, const Index *at, int sum);

#endif
