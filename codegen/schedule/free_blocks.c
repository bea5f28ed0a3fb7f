/* Each block is in two red-black trees: by offset, to find its neighbours, and by size, to find the best
 * fit. */
#include "codegen/schedule/free_blocks.h"
#include "base/base.h"

static int
compare(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

static int
compare_offsets(const FreeBlock *a, const FreeBlock *b)
{
	return compare(a->offset, b->offset);
}

static int
compare_sizes(const FreeBlock *a, const FreeBlock *b)
{
	return a->bytes != b->bytes ? compare(a->bytes, b->bytes) : compare_offsets(a, b);
}

/* RB_GENERATE_INTERNAL also defines functions that nobody calls; no warning for them */
#define STATIC __attribute__((unused)) static
RB_GENERATE_INTERNAL(FreeBlocksByOffset, FreeBlock, offset_entry, compare_offsets, STATIC)
RB_GENERATE_INTERNAL(FreeBlocksBySize, FreeBlock, size_entry, compare_sizes, STATIC)

static void
insert(FreeBlocks *list, FreeBlock *b)
{
	RB_INSERT(FreeBlocksByOffset, &list->by_offset, b);
	RB_INSERT(FreeBlocksBySize, &list->by_size, b);
}

static void
unlink_block(FreeBlocks *list, FreeBlock *b)
{
	RB_REMOVE(FreeBlocksByOffset, &list->by_offset, b);
	RB_REMOVE(FreeBlocksBySize, &list->by_size, b);
}

bool
free_blocks_take(FreeBlocks *list, int64_t bytes, int64_t *offset)
{
	FreeBlock key = {.offset = INT64_MIN, .bytes = bytes};
	FreeBlock *b = RB_NFIND(FreeBlocksBySize, &list->by_size, &key);

	if (!b)
		return false;
	unlink_block(list, b);
	*offset = b->offset;
	b->offset += bytes;
	b->bytes -= bytes;
	if (b->bytes > 0)
		insert(list, b);
	return true;
}

void
free_blocks_put(FreeBlocks *list, int64_t offset, int64_t bytes)
{
	FreeBlock key = {.offset = offset};
	FreeBlock *next = RB_NFIND(FreeBlocksByOffset, &list->by_offset, &key);
	FreeBlock *b = next ? RB_PREV(FreeBlocksByOffset, &list->by_offset, next)
	                    : RB_MAX(FreeBlocksByOffset, &list->by_offset);

	if (b && b->offset + b->bytes == offset) {
		unlink_block(list, b);
		b->bytes += bytes;
	} else {
		b = NEW(list->arena, FreeBlock);
		b->offset = offset;
		b->bytes = bytes;
	}
	if (next && b->offset + b->bytes == next->offset) {
		unlink_block(list, next);
		b->bytes += next->bytes;
	}
	insert(list, b);
}
