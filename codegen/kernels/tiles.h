/* Tilings: a shape cut into blocks of neighbouring elements, and loops over the blocks. Example:
 * f32[4,100] in blocks of at most 32 elements: each of the 4 rows has blocks of 32, 32, 32 and 4
 * elements. */
#ifndef GRADC_CODEGEN_KERNELS_TILES_H
#define GRADC_CODEGEN_KERNELS_TILES_H

#include "ir/loop/loop.h"

/* A block is `count` steps along `axis`, each with the `inside` elements of all later axes. The last block
 * along the axis may have fewer steps. */
typedef struct {
	Ints shape;
	int axis;
	int64_t inside, count;
} Tiling;

int64_t tiling_size(const Tiling *t); /* elements of the shape */
/* Blocks of at most `most` elements. A shape without axes has one element; a shape without elements has no
 * blocks. */
Tiling tile(const Ints *shape, int64_t most);
/* Like tile, but all blocks have equal size if possible: a multiple of `multiple` elements, and
 * at least half of `most`. */
Tiling tile_evenly(const Ints *shape, int64_t most, int64_t multiple);
int64_t blocks_along(const Tiling *t); /* blocks along `axis` */
int64_t repeats(const Tiling *t);      /* product of the extents of the axes before `axis` */
/* number of the last block's first element; 0 if there are no blocks */
int64_t last_block(const Tiling *t);

/* Opens loops over the elements of a block with `count` steps, one per axis. Returns the number
 * of the current element within the block. */
Affine open_block(LoopBuilder *lb, const Tiling *t, int64_t count, LoopMode innermost);
void close_block(LoopBuilder *lb, const Tiling *t);

/* Cuts n elements into pieces of `width` and a remainder. The body of
 *
 *	for (Pieces p = pieces(lb, n, width); p.size; pieces_next(&p))
 *
 * is emitted at most twice: once for the whole pieces, in a loop if there are several, and once
 * for the remainder. The body's code therefore knows the size of its piece. */
typedef struct {
	Affine number; /* of the piece */
	int64_t size;  /* elements of the piece; 0: no more pieces */
	/* private to the iteration */
	LoopBuilder *lb;
	int64_t n, width;
	bool block_open;  /* a loop or a condition is open */
	bool picks;       /* only one piece is emitted (piece_of) */
	LoopValue picked; /* number of that piece */
} Pieces;
Pieces pieces(LoopBuilder *lb, int64_t n, int64_t width);
/* Like `pieces`, for the single piece `number`, which is known only at run time and must be below
 * the number of pieces. If there are whole pieces and a remainder, the body is emitted once for
 * each kind, each inside a condition. */
Pieces piece_of(LoopBuilder *lb, int64_t n, int64_t width, Affine number);
void pieces_next(Pieces *p);

/* All blocks of a tiling in order, with loops over the axes before its axis. Used like pieces:
 * for (Blocks b = blocks(lb, t); b.count; blocks_next(&b)). */
typedef struct {
	Affine first;  /* number of the block's first element */
	int64_t count; /* steps of the block along the axis; 0: no more blocks */
	const Tiling *tiling;
	Affine outer;
	Pieces along;
} Blocks;
Blocks blocks(LoopBuilder *lb, const Tiling *t);
void blocks_next(Blocks *b);

/* One parallel loop over the parts of several computations, such as products. The parts of each
 * computation have an index into a shape (a space). The loop runs through one space after the
 * other. */
typedef struct {
	LoopBuilder *lb;
	/* all: number of parts of all spaces; taken: number of parts of the spaces opened so far */
	int64_t all, taken;
	LoopValue number;
	bool condition; /* a condition is open */
} PartSpaces;
PartSpaces part_spaces(LoopBuilder *lb, int64_t all);
/* Opens the body for parts of the next space. Returns the part's index in the space. */
Index part_space(PartSpaces *p, Type space);
void part_space_end(PartSpaces *p);

#endif
