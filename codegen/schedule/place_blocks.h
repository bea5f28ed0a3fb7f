/* Private to schedule: where in a region blocks of memory lie, if it is known when each of them is needed. */
#ifndef GRADC_CODEGEN_SCHEDULE_PLACE_BLOCKS_H
#define GRADC_CODEGEN_SCHEDULE_PLACE_BLOCKS_H

#include "base/base.h"

/* A block is needed from `begin` to `end`, both included: numbers of nodes. Blocks share bytes only if no node needs both. */
typedef struct {
	int64_t bytes, offset; /* offset: set by place_blocks */
	int begin, end;
} Block;
typedef VEC(Block) Blocks;

/* The most bytes that blocks need at one time. No placement needs fewer. */
int64_t blocks_least(const Blocks *blocks, Arena *scratch);
/* Gives each block its offset, and returns the end of the last block in memory: blocks_least, or a little more. The same blocks
 * always get the same offsets. Time: n² for n blocks, with a small factor: about a second for 20,000 blocks. */
int64_t place_blocks(Blocks *blocks, Arena *scratch);

#endif
