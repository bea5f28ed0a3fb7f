/* Private to schedule: the free byte ranges of a region of memory, while the compiler plans which
 * value lies where. free_blocks_take finds the smallest range that is large enough;
 * free_blocks_put joins neighbouring ranges. Both take logarithmic time. */
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

/* A FreeBlocks with only `arena` set has no free blocks. The nodes of the trees are allocated in
 * `arena`. */
/* Removes `bytes` from the beginning of the smallest block that is large enough; among blocks of
 * the same size, the one with the least offset. Sets *offset to the place of the removed bytes.
 * False: no block is large enough. */
bool free_blocks_take(FreeBlocks *list, int64_t bytes, int64_t *offset);
/* Adds the range [offset, offset + bytes) to the free blocks. The range must not overlap a free
 * block; bytes > 0. */
void free_blocks_put(FreeBlocks *list, int64_t offset, int64_t bytes);

#endif
