/* Private to schedule: the free ranges of an arena, while a plan is made. Takes the best fit and joins
 * neighbouring ranges; every call takes logarithmic time. */
#ifndef GRADC_CODEGEN_SCHEDULE_FREE_BLOCKS_H
#define GRADC_CODEGEN_SCHEDULE_FREE_BLOCKS_H

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

/* Blocks are allocated in `arena`; a FreeBlocks with only `arena` set is empty. */
/* Takes `bytes` from the smallest block that is large enough; among equal blocks, from the first. Sets
 * *offset. False: no block is large enough. */
bool free_blocks_take(FreeBlocks *list, int64_t bytes, int64_t *offset);
/* Adds a range to the free blocks. It must not overlap a free one; bytes > 0. */
void free_blocks_put(FreeBlocks *list, int64_t offset, int64_t bytes);

#endif
