/* Places blocks of memory one after the other, each at the lowest offset that is free whenever the block is needed. The order
 * decides how tightly they lie. Two orders are tried: large blocks first, and blocks that are needed long first. Each is then
 * improved: the block that ends last in memory moves halfway to the front of the order, in further tries to the front, and all
 * blocks are placed again, until the memory is as small as it can be (blocks_least), or for a number of rounds.
 *
 *	bytes         in the order of nodes      large first
 *	    4..6           . . c c
 *	    2..3           . b b b                . b b b     (at 3)
 *	    0..1           a a . .                a a c c     (c: 3 bytes)
 *	    node           0 1 2 3                0 1 2 3
 *
 * In the order of nodes, each block in the smallest gap of that time, a step needed up to 24 % more than blocks_least; now the steps of
 * eight models need no more than blocks_least (tests/train/test_peak_buffers.py). */
#include "codegen/schedule/place_blocks.h"

#include <stdlib.h>
#include <string.h>

enum {
	MOST_ROUNDS = 32,        /* of each try */
	MOST_VISITS = 100000000, /* of blocks, in each try; the first round is always made */
	MANY = 10000,            /* of so many blocks, two tries are made instead of four */
};

/* A block that has its place. */
typedef struct {
	int64_t offset, end_offset;
	int begin, end;
} Placed;

typedef struct {
	Block *blocks;
	int n;
	int *order;         /* numbers of blocks */
	Placed *placed;     /* in the order of offsets */
	int64_t *offset;    /* of each block, in the best round so far */
	int64_t top, least; /* of the best round; what no round can beat */
} Placement;

static int
by_size(const void *a, const void *b, void *blocks)
{
	const Block *x = (const Block *)blocks + *(const int *)a;
	const Block *y = (const Block *)blocks + *(const int *)b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x < y ? -1 : x > y;
}

static int
by_lifetime(const void *a, const void *b, void *blocks)
{
	const Block *x = (const Block *)blocks + *(const int *)a;
	const Block *y = (const Block *)blocks + *(const int *)b;
	int of_x = x->end - x->begin, of_y = y->end - y->begin;

	return of_x == of_y ? by_size(a, b, blocks) : of_x < of_y ? 1 : -1;
}

/* Places a block at the lowest offset between the n placed blocks. */
static void
place(Placed *placed, int n, Block *b)
{
	int64_t at = 0;
	int i;

	for (i = 0; i < n; i++) {
		const Placed *p = &placed[i];
		if (p->begin > b->end || p->end < b->begin)
			continue;
		if (p->offset - at >= b->bytes)
			break;
		at = p->end_offset > at ? p->end_offset : at;
	}
	b->offset = at;
	while (i > 0 && placed[i - 1].offset > at)
		i--;
	memmove(&placed[i + 1], &placed[i], sizeof(*placed) * (size_t)(n - i));
	placed[i] = (Placed){at, at + b->bytes, b->begin, b->end};
}

/* Places all blocks in order. Returns the place in the order of the block that ends last in memory. */
static int
place_in_order(Placement *p)
{
	int64_t top = 0;
	int last = 0;

	for (int i = 0; i < p->n; i++) {
		Block *b = &p->blocks[p->order[i]];
		place(p->placed, i, b);
		if (b->offset + b->bytes > top) {
			top = b->offset + b->bytes;
			last = i;
		}
	}
	if (top < p->top) {
		p->top = top;
		for (int i = 0; i < p->n; i++)
			p->offset[i] = p->blocks[i].offset;
	}
	return last;
}

/* An order, and where in it a block that ends last moves: to the front, or halfway. */
typedef struct {
	int (*compare)(const void *a, const void *b, void *blocks);
	bool to_front;
} Try;
static const Try tries[] = {
	{by_size, false}, {by_lifetime, false}, {by_size, true}, {by_lifetime, true}};

static void
try_order(Placement *p, const Try *t)
{
	int64_t visits = (int64_t)p->n * p->n / 2 + 1;

	for (int i = 0; i < p->n; i++)
		p->order[i] = i;
	qsort_r(p->order, (size_t)p->n, sizeof(*p->order), t->compare, p->blocks);
	for (int round = 0; round < MOST_ROUNDS && p->top > p->least &&
	                    (round == 0 || round * visits < MOST_VISITS);
	     round++) {
		int last = place_in_order(p), block = p->order[last];
		int to = t->to_front ? 0 : last / 2;
		memmove(&p->order[to + 1], &p->order[to], sizeof(*p->order) * (size_t)(last - to));
		p->order[to] = block;
	}
}

/* ---- the least */
typedef struct {
	int node;
	int64_t bytes; /* negative: they are free from this node on */
} Change;

static int
by_node(const void *a, const void *b)
{
	const Change *x = a, *y = b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

int64_t
blocks_least(const Blocks *blocks, Arena *scratch)
{
	Change *changes = NEW_ARRAY(scratch, Change, 2 * blocks->n + 1);
	int64_t now = 0, most = 0;

	for (int i = 0; i < blocks->n; i++) {
		const Block *b = &blocks->at[i];
		changes[2 * i] = (Change){b->begin, b->bytes};
		changes[2 * i + 1] = (Change){b->end + 1, -b->bytes};
	}
	qsort(changes, 2 * (size_t)blocks->n, sizeof(*changes), by_node);
	for (int i = 0; i < 2 * blocks->n; i++) {
		now += changes[i].bytes;
		most = now > most ? now : most;
	}
	return most;
}

int64_t
place_blocks(Blocks *blocks, Arena *scratch)
{
	Placement p = {.blocks = blocks->at,
	               .n = blocks->n,
	               .order = NEW_ARRAY(scratch, int, blocks->n + 1),
	               .placed = NEW_ARRAY(scratch, Placed, blocks->n + 1),
	               .offset = NEW_ARRAY(scratch, int64_t, blocks->n + 1),
	               .top = INT64_MAX,
	               .least = blocks_least(blocks, scratch)};

	if (p.n == 0)
		return 0;
	for (int i = 0; i < (p.n < MANY ? COUNT(tries) : COUNT(tries) / 2); i++)
		try_order(&p, &tries[i]);
	for (int i = 0; i < p.n; i++)
		blocks->at[i].offset = p.offset[i];
	return p.top;
}
