/* A shape in blocks of neighbouring elements, and loops over these: what a blocked kernel is cut into. */
#ifndef GRADC_CODEGEN_KERNELS_TILES_H
#define GRADC_CODEGEN_KERNELS_TILES_H

#include "ir/loop/loop.h"

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

/* Opens a loop per axis of a block of `count` steps; the element's number in the block. */
Affine open_block(LoopBuilder *lb, const Tiling *t, int64_t count, LoopMode innermost);
void close_block(LoopBuilder *lb, const Tiling *t);

/* n in pieces of `width` and what is left. What stands in
 *
 *	for (Pieces p = pieces(lb, n, width); p.size; pieces_next(&p))
 *
 * is emitted once for the whole pieces, in a loop where there are several, and once for the rest: the code of a piece
 * knows its size. */
typedef struct {
	Affine number; /* of the piece */
	int64_t size;  /* 0: there are no more */
	/* for the iteration */
	LoopBuilder *lb;
	int64_t n, width;
	bool block_open;  /* a loop or condition is */
	bool picks;       /* of one piece only */
	LoopValue picked; /* its number */
} Pieces;
Pieces pieces(LoopBuilder *lb, int64_t n, int64_t width);
/* The piece of that number alone, which is below the number of pieces: the same, in a condition where both kinds are. */
Pieces piece_of(LoopBuilder *lb, int64_t n, int64_t width, Affine number);
void pieces_next(Pieces *p);

/* Blocks of a tiling, in order, within loops over the axes before: for (Blocks b = blocks(lb, t); b.count;
 * blocks_next(&b)). */
typedef struct {
	Affine first;  /* element */
	int64_t count; /* steps along the axis; 0: there are no more */
	const Tiling *tiling;
	Affine outer;
	Pieces along;
} Blocks;
Blocks blocks(LoopBuilder *lb, const Tiling *t);
void blocks_next(Blocks *b);

/* A parallel loop over several spaces of parts, one after the other. */
typedef struct {
	LoopBuilder *lb;
	int64_t all, taken; /* parts; of them those of spaces before */
	LoopValue number;
	bool condition; /* is open */
} PartSpaces;
PartSpaces part_spaces(LoopBuilder *lb, int64_t all);
/* Opens what parts of the next space do; the part's place in it. */
Index part_space(PartSpaces *p, Type space);
void part_space_end(PartSpaces *p);

#endif
