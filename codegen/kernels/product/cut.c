/* Decides how a blocked matrix product c = a b for CPUs is cut. Rows are cut into chunks, columns
 * into panels, and k, the axis that is summed over, into splits; each combination is a part. Of
 * all cuts that give enough parts, this file takes the one with the least additional work
 * (packing, reading, adding splits), estimated with the target's table of costs. */
#include "codegen/fuse/fuse.h"
#include "codegen/kernels/product/product.h"
#include "codegen/lower/lower.h"

#include <math.h>

/* The search. Panel widths: the widest possible, then halves of it. Numbers of splits of k:
 * divisors of k's first axis, then the whole first axis times divisors of the next axis. */
typedef struct {
	const Lower *lw;
	const Product *p;
	const ProductTiles *t;
	int64_t wanted; /* least parts */
	bool alone;     /* is it the only product of its kernel? */
	bool found;
	double least; /* cost of the best cut */
	bool enough;  /* does the best cut have enough parts? */
	ProductCut best;
} Search;

static int64_t
blocks_of(int64_t n, int64_t size)
{
	return size ? (n + size - 1) / size : 0;
}

int64_t
packed_columns(const ProductCut *c)
{
	bool one_axis = c->columns.axis == c->columns.shape.n - 1;
	int64_t panel = c->columns.count * c->columns.inside;

	return one_axis ? c->strip : blocks_of(panel, c->lanes) * c->lanes;
}

static int64_t
depth_of(const ProductCut *c)
{
	return tiling_size(&c->depth);
}

int64_t
panel_elements(const ProductCut *c)
{
	int64_t panel = c->columns.count * c->columns.inside, columns = packed_columns(c);

	return blocks_of(panel, columns) * columns * depth_of(c);
}

static int64_t
panels_of(const ProductCut *c)
{
	return repeats(&c->columns) * blocks_along(&c->columns);
}

int64_t
row_blocks(const Product *p, const ProductCut *c)
{
	return blocks_of(p->m, c->rows);
}

int64_t
shared_columns(const Product *p, const ProductCut *c)
{
	return p->batch * panels_of(c) * panel_elements(c);
}

int64_t
shared_rows(const Product *p, const ProductCut *c)
{
	return c->pack_rows ? p->batch * row_blocks(p, c) * c->rows * depth_of(c) : 0;
}

static int64_t
parts_of(const Product *p, const ProductCut *c)
{
	return p->batch * c->splits * c->chunks * panels_of(c);
}

/* Cycles that reading takes in addition to `multiplying`. Numbers from far caches or memory
 * arrive while other numbers are multiplied, up to the bandwidth of memory. */
static double
reading(const ProductTiles *t, double near, double far, double multiplying)
{
	double time = far / t->far_rate, over = time - multiplying / 2;

	return near / t->near_rate + time * t->not_hidden + (over > 0 ? over : 0);
}

/* Reading for one order of parts. Each of `outer` parts reads its own block of one operand,
 * which stays in near caches if it is small, and the whole other operand. */
static double
reading_in_order(const ProductTiles *t, double outer, double block, double other, double inner,
                 double multiplying)
{
	bool stays = block <= (double)t->near_bytes;
	double blocks = outer * block, near = stays ? inner * blocks : 0;
	double far = stays ? blocks : inner * blocks;

	if (other <= (double)t->near_bytes)
		near += outer * other;
	else
		far += outer * other;
	return reading(t, near, far, multiplying);
}

/* Reading for the better order of parts, for one batch and one split. */
static double
reading_of(const Search *s, const ProductCut *c, double multiplying, bool *panels_outer)
{
	const ProductTiles *t = s->t;
	double bytes = (double)dtype_bytes(s->p->type, 1), k = (double)depth_of(c) * bytes;
	double a = (double)s->p->m * k, b = (double)tiling_size(&c->columns) * k;
	double panels = (double)panels_of(c), chunks = (double)c->chunks;
	double by_chunks = reading_in_order(t, chunks, a / chunks, b, panels, multiplying);
	double by_panels = reading_in_order(t, panels, b / panels, a, chunks, multiplying);

	*panels_outer = by_panels < by_chunks;
	return *panels_outer ? by_panels : by_chunks;
}

/* Cycles in addition to the multiplications themselves. */
static double
cost_of(const Search *s, ProductCut *c)
{
	const ProductTiles *t = s->t;
	double bytes = (double)dtype_bytes(s->p->type, 1), batch = (double)s->p->batch;
	double m = (double)s->p->m, n = (double)tiling_size(&c->columns);
	double part_k = (double)depth_of(c), k = part_k * (double)c->splits;
	double panels = (double)panels_of(c), chunks = (double)c->chunks;
	double width = (double)(c->columns.count * c->columns.inside);
	double block_k = (double)(c->depth.count * c->depth.inside);
	double blocks = (double)blocks_along(&c->depth) * (double)repeats(&c->depth);
	double pack = s->p->b_along_k ? t->pack_along_k : t->pack;
	double multiplying = m * n * k / (2.0 * (double)c->lanes), cost = 0;

	/* b is packed again for each chunk of rows; shared: packed once and written to memory */
	cost += k * n * pack * (c->shared ? 1 : chunks);
	if (c->shared)
		cost += 2 * k * n * bytes / t->far_rate;
	/* the strips of a panel are read again for each block of rows */
	if (width * block_k * bytes > (double)t->first_bytes)
		cost += m / c->rows * n * k * bytes / t->first_rate;
	/* a is packed again for each panel, or read in place with large strides, which takes as
	 * long; shared: packed once */
	if (!s->p->a_along_k)
		cost += m * k * (c->shared ? t->pack + 2 * bytes / t->far_rate : panels * t->pack);
	cost += (double)c->splits *
	        reading_of(s, c, multiplying / (double)c->splits, &c->panels_outer);
	/* sums are stored and loaded between blocks of k, and once more for each split */
	cost += 2 * m * n * (double)c->splits * (blocks - 1) * bytes / t->near_rate;
	if (c->splits > 1)
		cost += 2 * m * n * (double)c->splits * bytes / t->far_rate;
	return batch * cost + (c->shared || c->splits > 1 ? t->launch : 0);
}

bool
product_waits(const Lower *lw, const Product *p, const ProductCut *c)
{
	const Value *stored = lower_stored(lw);
	bool one_block = blocks_along(&c->depth) * repeats(&c->depth) <= 1;
	bool rounds = dtype_info[stored->type->dtype].bits < dtype_info[p->type].bits;
	bool adds = stored->node && added_to_product(stored->node, p->node);

	return c->splits == 1 && (rounds || adds) && !one_block;
}

int64_t
waiting_elements(const Product *p, const ProductCut *c)
{
	int64_t blocks = c->chunk + (p->m % c->rows != 0);

	return blocks * c->rows * c->columns.count * c->columns.inside;
}

/* Is the cut possible? Packed operands, sums of splits, and sums that wait for the next block of
 * k must not exceed the target's limits. */
static bool
fits(const Search *s, const ProductCut *c)
{
	int64_t packed = shared_columns(s->p, c) + shared_rows(s->p, c);
	int64_t partial = s->p->batch * s->p->m * tiling_size(&c->columns) * c->splits;

	if (c->shared && dtype_bytes(s->p->type, packed) > s->t->most_scratch)
		return false;
	if (c->splits > 1 && dtype_bytes(s->p->type, partial) > s->t->most_scratch)
		return false;
	return !product_waits(s->lw, s->p, c) ||
	       dtype_bytes(s->p->type, waiting_elements(s->p, c)) <= s->t->waiting_bytes;
}

static void
consider(Search *s, ProductCut c)
{
	if (!fits(s, &c))
		return;
	int64_t parts = parts_of(s->p, &c), best = s->found ? parts_of(s->p, &s->best) : 0;
	bool enough = parts >= s->wanted;
	double cost = cost_of(s, &c);
	bool better = !s->found || enough > s->enough ||
	              (enough == s->enough && (enough ? cost < s->least : parts > best));

	if (!better)
		return;
	s->found = true;
	s->enough = enough;
	s->least = cost;
	s->best = c;
}

/* Does n read a value that each of its readers computes anew (OpRow.computed_by_readers)? A
 * serving kernel does not pack such a value as a whole. */
static bool
reads_computed(const Node *n)
{
	for (int i = 0; i < n->n_operands; i++) {
		const Node *from = behind_views(node_operand(n, i))->node;
		if (from && op_row(from)->computed_by_readers)
			return true;
	}
	return false;
}

/* Tries chunks of rows: first the tallest chunks that give enough parts, then shorter chunks,
 * which may stay in near caches. */
static void
consider_chunks(Search *s, ProductCut c)
{
	int64_t blocks = s->p->m / c.rows, others = s->p->batch * c.splits * panels_of(&c);
	int64_t chunks = blocks_of(s->wanted, others > 0 ? others : 1);

	bool wide = c.columns.count * c.columns.inside > 2 * c.strip;

	if (blocks == 0)
		blocks = 1;
	for (chunks = chunks < blocks ? chunks : blocks; chunks < 2 * blocks; chunks *= 2) {
		c.chunk = blocks_of(blocks, chunks);
		c.chunks = blocks_of(blocks, c.chunk);
		for (int shared = 0; shared < 2; shared++) {
			c.shared = shared;
			c.pack_rows = !s->p->a_along_k && (shared || wide) && depth_of(&c) > 0;
			bool stored = s->alone && !reads_computed(s->p->node) && c.chunks > 1 &&
			              c.splits == 1;
			if (!shared || stored)
				consider(s, c);
		}
	}
}

/* Tries splits of k's axis `axis`. Of the axes before it, at most one has more than one element:
 * it has `outer` elements and is split completely. */
static void
consider_splits_of(Search *s, ProductCut c, int axis, int64_t outer)
{
	int64_t extent = s->p->k.at[axis], inner = 1;

	for (int i = axis + 1; i < s->p->k.n; i++)
		inner *= s->p->k.at[i];
	for (int64_t n = 2; n <= extent; n++) {
		Ints k = s->p->k;
		c.splits = outer * n;
		if (c.splits > s->wanted || extent / n * inner < s->t->depth)
			return;
		if (extent % n)
			continue;
		for (int i = 0; i < axis; i++)
			k.at[i] = 1;
		k.at[axis] = extent / n;
		c.next_splits = outer > 1 ? n : 1;
		c.depth = tile_evenly(&k, s->t->depth, 1);
		consider_chunks(s, c);
	}
}

/* Tries splits of k. next: splits k's second axis as well; otherwise splits only the first axis,
 * or none. */
static void
consider_splits(Search *s, ProductCut c, bool next)
{
	const Ints *k = &s->p->k;
	int axis = 0;

	if (!next) {
		c.depth = tile_evenly(k, s->t->depth, 1);
		consider_chunks(s, c);
	}
	while (axis < k->n && k->at[axis] == 1)
		axis++;
	int64_t outer = next && axis < k->n ? k->at[axis++] : 1;
	while (axis < k->n && k->at[axis] == 1)
		axis++;
	if (s->alone && axis < k->n && (!next || outer > 1))
		consider_splits_of(s, c, axis, outer);
}

static void
consider_panels(Search *s, ProductCut c, int64_t widest, bool next)
{
	for (int64_t panel = widest; panel >= c.strip; panel /= 2) {
		c.columns = tile_evenly(&s->p->n, panel, c.strip);
		if (tiling_size(&c.columns) == 0 || s->p->batch == 0 || s->p->m == 0)
			return;
		consider_splits(s, c, next);
	}
}

static double
flops_of(const Product *p)
{
	Tiling k = tile(&p->k, 1), n = tile(&p->n, 1);

	return 2.0 * (double)p->batch * (double)p->m * (double)tiling_size(&k) *
	       (double)tiling_size(&n);
}

/* Cycles for multiplying and storing; a product with empty k still has to be stored. */
static double
work_of(const ProductTiles *t, const Product *p)
{
	Tiling n = tile(&p->n, 1);
	double stored = (double)p->batch * (double)p->m * (double)tiling_size(&n);

	return flops_of(p) / (2.0 * t->columns) +
	       stored * (double)dtype_bytes(p->type, 1) / t->far_rate;
}

/* How many parts product i of the kernel's n products should have. The work of all products
 * together decides for how many cores there are parts (a small product uses few cores). Of these
 * parts, each product gets a share in proportion to its own work. */
static int64_t
parts_wanted(const Lower *lw, const Product *list, int n, int i)
{
	const ProductTiles *t = lw->target->product;
	double flops = 0, work = 0;

	for (int k = 0; k < n; k++) {
		flops += flops_of(&list[k]);
		work += work_of(t, &list[k]);
	}
	double worth = flops / t->least_part, parts = (double)lw->parts;
	worth = worth < 1 ? 1 : worth < parts ? (double)(int64_t)worth : parts;
	return work > 0 ? (int64_t)ceil(worth * (work_of(t, &list[i]) / work)) : 1;
}

ProductCut
product_cut(const Lower *lw, const Product *list, int n, int i)
{
	const Product *p = &list[i];
	const ProductTiles *t = lw->target->product;
	int wide = dtype_info[p->type].bits == 64 ? 2 : 1;
	Search s = {
		.lw = lw, .p = p, .t = t, .alone = n == 1, .wanted = parts_wanted(lw, list, n, i)};
	ProductCut c = {.rows = t->rows,
	                .strip = t->columns / wide,
	                .lanes = t->columns / wide / 2,
	                .by_lines = p->b_along_k && !lw->target->gathers,
	                .splits = 1,
	                .next_splits = 1,
	                .chunk = 1,
	                .chunks = 1};

	consider_panels(&s, c, t->panel / wide, false);
	if (!s.enough) /* tried last: more splits mean more sums to add in memory */
		consider_panels(&s, c, t->panel / wide, true);
	if (s.found)
		return s.best;
	c.columns = tile_evenly(&p->n, c.strip, c.strip);
	c.depth = tile_evenly(&p->k, t->depth, 1);
	return c;
}
