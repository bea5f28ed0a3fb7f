/* A shape in blocks of neighbouring elements, and loops over these: what a blocked kernel is cut into. */
#ifndef GRADC_CODEGEN_KERNELS_TILES_H
#define GRADC_CODEGEN_KERNELS_TILES_H

#include "ir/loop.h"

/* A block is `count` steps along `axis`, with the `inside` elements of all axes behind it; the last along the axis may
 * have fewer steps. */
typedef struct {
	Ints shape;
	int axis;
	int64_t inside, count;
} Tiling;

int64_t tiling_size(const Tiling *t); /* elements of the shape */
/* Blocks of at most so many elements; a shape of no axes has one element. No blocks where the shape has none. */
Tiling tile(const Ints *shape, int64_t most);
/* The same without a shorter block at the end, if the blocks can have a multiple of `multiple` elements and need not be
 * less than half as long. */
Tiling tile_evenly(const Ints *shape, int64_t most, int64_t multiple);
int64_t blocks_along(const Tiling *t); /* blocks along `axis` */
int64_t repeats(const Tiling *t);      /* how often that axis is repeated */
int64_t last_block(const Tiling *t);   /* the first element of the last block; 0 without any */

/* Calls body for every block, in order, inside loops: its first element, and its steps along `axis`. */
void for_blocks(LoopBuilder *lb, const Tiling *t,
                void (*body)(void *ctx, Affine first, int64_t count), void *ctx);
/* Opens a loop per axis of a block of `count` steps; the element's number in the block. */
Affine open_block(LoopBuilder *lb, const Tiling *t, int64_t count, LoopMode innermost);
void close_block(LoopBuilder *lb, const Tiling *t);

/* Calls body in a loop for every `width` of n, and for what is left: the number of the piece, and its size. */
void for_pieces(LoopBuilder *lb, int64_t n, int64_t width,
                void (*body)(void *ctx, Affine number, int64_t size), void *ctx);

#endif
