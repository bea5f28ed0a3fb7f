/* Emits one part of the blocked matrix product. For each block of k (the axis that is summed
 * over), the part packs its panel of b, or a serving kernel has packed it. Then the sums of a few
 * rows and columns at a time are computed in local vectors, which the kernel's compiler keeps in
 * registers. Every element is summed in the order of k. */
#include "codegen/kernels/product/emit.h"
#include "codegen/lower/lower.h"

/* ---- a block of sums in registers */
static LoopValue
element_of_a(const ProductEmit *e, const Block *b, int64_t row, Affine k)
{
	Affine at = k_of(e, b->split, affine_add(e->lw->lb, b->first_k, k));

	return lb_cast(e->lw->lb, e->p->type,
	               e->p->a(e->lw, e->p, b->batch, affine_plus(b->row, row), at));
}

static Affine
place_of(const ProductEmit *e, const Block *b, int row, Affine j)
{
	LoopBuilder *lb = e->lw->lb;
	Affine c = e->p->c(e->lw, e->p, b->batch, affine_plus(b->row, row),
	                   affine_add(lb, b->column, j));
	int64_t stored = node_result(e->p->node, 0)->type->n;

	return e->cut->splits > 1 ? affine_add(lb, affine_scale(lb, b->split, stored), c) : c;
}

/* Where a sum waits for the next block of k. */
static Affine
waiting_place(const ProductEmit *e, const Block *b, int row, Affine j)
{
	int64_t panel = e->cut->columns.count * e->cut->columns.inside;

	return affine_plus(affine_add(e->lw->lb, b->in_waiting, j), row * panel);
}

/* Opens a condition. With `is`, the condition is true if the current block of k begins at `first`;
 * otherwise, if the block does not begin there. Returns false, and opens nothing, if the condition
 * can never be true. */
static bool
if_first_k(const ProductEmit *e, const Block *b, int64_t first, bool is)
{
	LoopBuilder *lb = e->lw->lb;

	if (b->first_k.n == 0)
		return (b->first_k.constant == first) == is;
	LoopValue at = lb_affine(lb, b->first_k), k = lb_int(lb, S64, first);
	lb_if(lb, lb_compare(lb, is ? LOOP_eq : LOOP_ne, at, k));
	return true;
}

static void
end_if_first_k(const ProductEmit *e, const Block *b)
{
	if (b->first_k.n)
		lb_end(e->lw->lb);
}

/* sums = 0 in the first block of k; in later blocks, the sums that earlier blocks left */
static void
start_sums(const ProductEmit *e, const Block *b)
{
	LoopBuilder *lb = e->lw->lb;

	if (if_first_k(e, b, 0, true)) {
		Affine j = affine_scalar(
			lb, lb_for(lb, LOOP_VECTOR, computed_columns(e->cut, b->n_columns)));
		for (int r = 0; r < b->n_rows; r++)
			lb_store(lb, e->sums[r], j, lb_number(lb, e->p->type, 0));
		lb_end(lb);
		end_if_first_k(e, b);
	}
	if (!b->whole && if_first_k(e, b, 0, false)) {
		Affine j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, b->n_columns));
		for (int r = 0; r < b->n_rows; r++) {
			LoopValue x = e->waiting < 0
			                      ? lb_load(lb, e->out, place_of(e, b, r, j))
			                      : lb_load(lb, e->waiting, waiting_place(e, b, r, j));
			lb_store(lb, e->sums[r], j, x);
		}
		lb_end(lb);
		end_if_first_k(e, b);
	}
}

static void
multiply(const ProductEmit *e, const Block *b)
{
	LoopBuilder *lb = e->lw->lb;
	DType type = e->p->type;
	LoopValue x[MOST_PRODUCT_ROWS];
	Affine k = open_block(lb, &e->cut->depth, b->depth, LOOP_PLAIN);

	for (int r = 0; r < b->n_rows; r++)
		x[r] = e->rows < 0 ? element_of_a(e, b, r, k)
		                   : lb_load(lb, e->rows, affine_plus(rows_place(e, b, k), r));
	Affine j = affine_scalar(lb,
	                         lb_for(lb, LOOP_VECTOR, computed_columns(e->cut, b->n_columns)));
	Affine at = affine_add_scaled(lb, b->packed, k, packed_columns(e->cut));
	LoopValue y = lb_load(lb, e->panel, affine_add(lb, at, j));
	for (int r = 0; r < b->n_rows; r++) {
		LoopValue sum = lb_load(lb, e->sums[r], j);
		if (dtype_is_float(type))
			sum = lb_op(lb, LOOP_fma, type, (LoopValue[]){x[r], y, sum});
		else
			sum = lb_binary(lb, LOOP_add, sum, lb_binary(lb, LOOP_mul, x[r], y));
		lb_store(lb, e->sums[r], j, sum);
	}
	lb_end(lb);
	close_block(lb, &e->cut->depth);
}

/* Stores the sums to c, or to the waiting array. complete: the sums are complete, so the bias is
 * added if the kernel adds one. */
static void
put_sums(const ProductEmit *e, const Block *b, bool complete)
{
	LoopBuilder *lb = e->lw->lb;
	bool waits = !complete && e->waiting >= 0, splits = e->cut->splits > 1;
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, b->n_columns));

	for (int r = 0; r < b->n_rows; r++) {
		Affine place = waits ? waiting_place(e, b, r, j) : place_of(e, b, r, j);
		LoopValue sum = lb_load(lb, e->sums[r], j);
		if (!waits && !splits)
			sum = result_of_sum(lb, e->p->node, sum);
		if (complete && !splits)
			sum = lower_stored_element(e->lw, e->p->node, place, sum);
		lb_store(lb, waits ? e->waiting : e->out, place, sum);
	}
	lb_end(lb);
}

static void
finish_sums(const ProductEmit *e, const Block *b)
{
	int64_t last = last_block(&e->cut->depth);
	bool same = lower_stored(e->lw) == node_result(e->p->node, 0) && e->waiting < 0;

	if (same || e->cut->splits > 1) {
		put_sums(e, b, true);
		return;
	}
	if (!b->whole && if_first_k(e, b, last, false)) {
		put_sums(e, b, false);
		end_if_first_k(e, b);
	}
	if (if_first_k(e, b, last, true)) {
		put_sums(e, b, true);
		end_if_first_k(e, b);
	}
}

/* Computes one block of rows with the panel. */
static void
row_block(const ProductEmit *e, const Panel *panel, Block b, int64_t deep)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductCut *c = e->cut;
	int64_t columns = packed_columns(c);
	Affine from = affine_add_scaled(lb, panel->packed, b.packed, columns);

	if (e->rows >= 0 && c->shared)
		b.packed_rows = shared_rows_place(e, &b);
	else if (e->rows >= 0)
		pack_rows(e, &b);
	for (Pieces s = pieces(lb, panel->columns, c->strip); s.size; pieces_next(&s)) {
		Affine strip = affine_scale(lb, s.number, c->strip);
		Block block = b;
		block.column = affine_add(lb, panel->column, strip);
		block.n_columns = s.size;
		block.packed = affine_add_scaled(lb, from, strip, columns == c->strip ? deep : 1);
		block.in_waiting = affine_add(lb, b.in_waiting, strip);
		start_sums(e, &block);
		if (tiling_size(&c->depth))
			multiply(e, &block);
		finish_sums(e, &block);
	}
}

/* The rows of a chunk: whole blocks, and in the last chunk the remaining rows. */
static void
chunk(const ProductEmit *e, const Panel *panel, Affine number, Block b, int64_t deep)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductCut *c = e->cut;
	int64_t blocks = e->p->m / c->rows, rest = e->p->m % c->rows;
	int64_t width = c->columns.count * c->columns.inside;
	Affine before = affine_scale(lb, number, c->chunk);

	if (blocks > 0) {
		Affine left = affine_plus(affine_scale(lb, before, -1), blocks);
		LoopValue i = blocks % c->chunk == 0 ? lb_for(lb, LOOP_PLAIN, c->chunk)
		                                     : lb_for_below(lb, LOOP_PLAIN, c->chunk, left);
		Block block = b;
		block.row_block = affine_add(lb, before, affine_scalar(lb, i));
		block.row = affine_scale(lb, block.row_block, c->rows);
		block.n_rows = c->rows;
		block.in_waiting = affine_scale(lb, affine_scalar(lb, i), c->rows * width);
		row_block(e, panel, block, deep);
		lb_end(lb);
	}
	if (rest == 0)
		return;
	if (c->chunks > 1)
		lb_if(lb, lb_compare(lb, LOOP_eq, lb_affine(lb, number),
		                     lb_int(lb, S64, c->chunks - 1)));
	b.row_block = affine_constant(blocks);
	b.row = affine_constant(blocks * c->rows);
	b.n_rows = (int)rest;
	b.in_waiting = affine_constant((blocks - (c->chunks - 1) * c->chunk) * c->rows * width);
	row_block(e, panel, b, deep);
	if (c->chunks > 1)
		lb_end(lb);
}

void
product_part(const ProductEmit *e, Panel at, Affine number)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductCut *c = e->cut;
	const Tiling *t = &c->columns;
	int64_t all = tiling_size(&c->depth), in_block = c->depth.count * c->depth.inside;
	int64_t deep = c->shared ? all : in_block;

	for (Pieces w = piece_of(lb, t->shape.at[t->axis], t->count, at.number); w.size;
	     pieces_next(&w)) {
		Panel panel = panel_of(e, at, &w);
		Block b = {.batch = at.batch, .split = at.split, .whole = in_block == all};
		if (all == 0) {
			chunk(e, &panel, number, b, 0);
			continue;
		}
		for (Blocks k = blocks(lb, &c->depth); k.count; blocks_next(&k)) {
			b.first_k = k.first;
			b.depth = k.count;
			b.packed = c->shared ? k.first : affine_constant(0);
			if (!c->shared)
				pack_panel(e, &panel, k.first, k.count, deep);
			chunk(e, &panel, number, b, deep);
		}
	}
}
