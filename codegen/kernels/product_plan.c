/* How the blocked matrix product is cut: the registers' sums, panels, and the parts that go in parallel. */
#include "codegen/kernels/product_impl.h"

/* Parts are more only where they are wanted; LEAST_NEAR: rows of a chunk, at least, where a's numbers are to stay near. */
enum { ENOUGH_PARTS = 16, LEAST_PANEL = 32, LEAST_NEAR = 256 };

/* The most chunks, up to n, in which the rows go: all are equal, and have at least so many. */
static int64_t
most_chunks(int64_t rows, int64_t n, int64_t least)
{
	while (n > 1 && (rows % n != 0 || rows / n < least))
		n--;
	return n;
}

/* In how many equal chunks the rows go, at least, that k numbers of each stay near; 0: these would be too low. */
static int64_t
near_chunks(const Product *p, int64_t k)
{
	int64_t rows = p->g->m, bytes = dtype_bytes(p->g->type, rows * k);

	if (bytes <= p->near_bytes)
		return 1;
	for (int64_t n = (bytes + p->near_bytes - 1) / p->near_bytes; n <= rows / LEAST_NEAR; n++)
		if (rows % n == 0)
			return n;
	return 0;
}

static int64_t
groups(const Product *p)
{
	return (blocks_along(&p->columns) + p->group - 1) / p->group;
}

/* In how many chunks the rows go: so many that there are enough parts, if they can have `least` rows, and that a chunk's
 * numbers of a stay near from one panel to the next: those of a block of k, or all if a group is one panel. */
static int64_t
row_chunks(const Product *p, int64_t least)
{
	int64_t panels = repeats(&p->columns) * groups(p), parts = p->g->batch * panels;
	int64_t n = most_chunks(p->g->m, (ENOUGH_PARTS + parts - 1) / parts, least);
	int64_t near = 0;

	if (p->group > 1)
		near = near_chunks(p, most_depth(p));
	else if (p->near_bytes && panels > 1)
		near = near_chunks(p, tiling_size(&p->depth));
	return near > n ? near : n;
}

/* Panels as wide, and groups of as many, as they may be; less where there would be too few parts. */
static void
choose_panels(Product *p, int64_t least, int64_t most)
{
	const Gemm *g = p->g;
	int64_t least_rows = p->near_bytes ? LEAST_NEAR : p->tiles->least_chunk;

	p->group = p->near_bytes && near_chunks(p, tiling_size(&p->depth)) == 0
	                   ? p->tiles->many_panels
	                   : 1;
	for (p->panel_columns = most;;) {
		p->columns = tile_evenly(&g->n, p->panel_columns, p->block_columns);
		if (tiling_size(&p->columns) == 0 || g->batch == 0)
			return;
		int64_t blocks = blocks_along(&p->columns);
		p->group = p->group < blocks ? p->group : blocks;
		int64_t panels = repeats(&p->columns) * groups(p);
		if (g->batch * panels * row_chunks(p, least_rows) >= ENOUGH_PARTS)
			return;
		if (p->group > 1)
			p->group /= 2;
		else if (p->panel_columns / 2 >= least)
			p->panel_columns /= 2;
		else
			return;
	}
}

Type
part_shape(const Product *p)
{
	int64_t dims[4] = {0};

	if (tiling_size(&p->columns) && p->g->batch) {
		dims[0] = p->g->batch;
		dims[1] = row_chunks(p, p->tiles->least_chunk);
		dims[2] = repeats(&p->columns);
		dims[3] = groups(p);
	}
	return type_new(p->lw->m, S64, COUNT(dims), dims);
}

/* Would sums lose bits between two blocks of k if they were stored in the result? */
static bool
sums_wait(const Product *p)
{
	DType stored = lower_stored(p->lw)->type->dtype;

	return dtype_info[stored].bits < dtype_info[p->g->type].bits &&
	       most_depth(p) < tiling_size(&p->depth);
}

static int64_t
most_waiting_rows(const Product *p)
{
	int64_t n = p->tiles->waiting_bytes / dtype_bytes(p->g->type, p->panel_columns);

	return n / p->block_rows * p->block_rows;
}

Product
product_of(Lower *lw, const Gemm *g)
{
	const ProductTiles *r = &lw->target->product;
	int wide = dtype_info[g->type].bits == 64 ? 2 : 1;

	Product p = {.lw = lw,
	             .g = g,
	             .tiles = r,
	             .by_lines = g->b_along_k && !lw->target->gathers,
	             .block_rows = r->rows,
	             .block_columns = r->columns / wide,
	             .lanes = r->columns / wide / 2,
	             .partial = -1};
	p.depth = tile_evenly(&g->k, r->depth, 1);
	bool waits = sums_wait(&p);
	p.near_bytes = g->a_along_k && !waits ? r->near_bytes : 0;
	choose_panels(&p, LEAST_PANEL / wide, r->panel[!g->a_along_k] / wide);
	if (waits)
		p.partial_rows = most_waiting_rows(&p);
	p.out = lower_buffer(lw, lower_stored(lw));
	p.bias = lower_stored(lw) != node_result(g->node, 0);
	bool one_axis = p.columns.axis == p.columns.shape.n - 1;
	p.strip_columns = one_axis ? p.block_columns : p.panel_columns;
	bool many_columns = p.columns.count * p.columns.inside > 2 * p.block_columns;
	p.packed_rows = !g->a_along_k && many_columns ? 0 : -1;
	return p;
}
