/* The free ranges of an arena, for a plan: best fit, neighbours joined. Every call takes logarithmic time. */
#ifndef GRADC_CODEGEN_FREE_BLOCKS_H
#define GRADC_CODEGEN_FREE_BLOCKS_H

#include "base/base.h"

#include <bsd/sys/tree.h>

typedef struct FreeBlock FreeBlock;
struct FreeBlock {
	int64_t offset, bytes;
	RB_ENTRY(FreeBlock) offset_entry, size_entry;
};
typedef struct {
	Arena *arena;
	RB_HEAD(FreeBlocksByOffset, FreeBlock) by_offset;
	RB_HEAD(FreeBlocksBySize, FreeBlock) by_size;
} FreeBlocks;

/* The blocks live in `arena`. A FreeBlocks of zeros but for it is empty. */
/* Takes `bytes` out of the smallest block that has them, of equal ones the first: *offset is where; false where no
 * block is large enough. */
bool free_blocks_take(FreeBlocks *list, int64_t bytes, int64_t *offset);
/* Gives a range back that overlaps no free one; bytes > 0. */
void free_blocks_put(FreeBlocks *list, int64_t offset, int64_t bytes);

#endif
