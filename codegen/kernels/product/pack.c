/* Emits code that copies (packs) the operands of a matrix product c = a b into panels of b and
 * blocks of rows of a, in the order in which the product reads them. Either each part packs its
 * own panel, or a serving kernel packs for all parts before the main kernel runs. A panel
 * consists of strips of columns; the numbers of a strip with the same k are contiguous. */
#include "codegen/kernels/product/emit.h"

int64_t
computed_columns(const ProductCut *c, int64_t n)
{
	return (n + c->lanes - 1) / c->lanes * c->lanes;
}

Affine
k_of(const ProductEmit *e, Affine split, Affine k)
{
	LoopBuilder *lb = e->lw->lb;

	return affine_add(lb, affine_scale(lb, split, tiling_size(&e->cut->depth)), k);
}

/* packed[strip, k, j] = b(k, strip + j), for the columns of a strip and a block of k */
static void
pack_element(const ProductEmit *e, const Panel *panel, Affine packed, Affine k, Affine strip,
             Affine j)
{
	LoopBuilder *lb = e->lw->lb;
	Affine column = affine_add(lb, panel->column, affine_add(lb, strip, j));
	LoopValue x = e->p->b(e->lw, e->p, panel->batch, k_of(e, panel->split, k), column);

	lb_store(lb, e->panel, affine_add(lb, packed, j), lb_cast(lb, e->p->type, x));
}

/* Opens a loop over the n columns of a strip. If the panel is a single strip, opens one loop per
 * axis of the columns instead, so that no index needs a division. Returns the column's number in
 * the strip. */
static Affine
open_strip(const ProductEmit *e, const Panel *panel, int64_t n, LoopMode innermost)
{
	const Tiling *t = &e->cut->columns;

	if (t->axis == t->shape.n - 1)
		return affine_scalar(e->lw->lb, lb_for(e->lw->lb, innermost, n));
	return open_block(e->lw->lb, t, panel->columns / t->inside, innermost);
}

static void
close_strip(const ProductEmit *e)
{
	const Tiling *t = &e->cut->columns;

	if (t->axis == t->shape.n - 1)
		lb_end(e->lw->lb);
	else
		close_block(e->lw->lb, t);
}

/* Stores zeros after the strip's n columns, up to whole vectors. */
static void
clear_beyond(const ProductEmit *e, Affine packed, int64_t columns, int64_t depth, int64_t n)
{
	LoopBuilder *lb = e->lw->lb;
	int64_t beyond = computed_columns(e->cut, n) - n;

	if (beyond == 0)
		return;
	Affine k = open_block(lb, &e->cut->depth, depth, LOOP_PLAIN);
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, beyond));
	Affine to = affine_add(lb, affine_add_scaled(lb, packed, k, columns), affine_plus(j, n));
	lb_store(lb, e->panel, to, lb_number(lb, e->p->type, 0));
	lb_end(lb);
	close_block(lb, &e->cut->depth);
}

void
pack_panel(const ProductEmit *e, const Panel *panel, Affine first_k, int64_t depth, int64_t deep)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductCut *c = e->cut;
	int64_t columns = packed_columns(c), in_block = depth * c->depth.inside;
	int64_t line = e->lw->target->line;
	bool lines = c->by_lines && c->depth.axis == c->depth.shape.n - 1;
	Affine from = c->shared ? first_k : affine_constant(0); /* first k of the array */

	for (Pieces s = pieces(lb, panel->columns, columns); s.size; pieces_next(&s)) {
		Affine strip = affine_scale(lb, s.number, columns);
		Affine packed = affine_add_scaled(lb, panel->packed, strip, deep);
		packed = affine_add_scaled(lb, packed, from, columns);
		clear_beyond(e, packed, columns, depth, s.size);
		if (!lines) {
			Affine k = open_block(lb, &c->depth, depth, LOOP_PLAIN);
			Affine to = affine_add_scaled(lb, packed, k, columns);
			Affine j = open_strip(e, panel, s.size, LOOP_VECTOR);
			pack_element(e, panel, to, affine_add(lb, first_k, k), strip, j);
			close_strip(e);
			close_block(lb, &c->depth);
			continue;
		}
		/* Reads a whole cache line of one column before the next column. Columns may be 4
		 * KiB apart; they then compete for the same few lines of the cache, and a line
		 * would be lost before all of it is read. */
		for (Pieces l = pieces(lb, in_block, line); l.size; pieces_next(&l)) {
			Affine j = open_strip(e, panel, s.size, LOOP_PLAIN);
			LoopValue i = lb_for(lb, LOOP_VECTOR, l.size);
			Affine k = affine_add(lb, affine_scale(lb, l.number, line),
			                      affine_scalar(lb, i));
			Affine to = affine_add_scaled(lb, packed, k, columns);
			pack_element(e, panel, to, affine_add(lb, first_k, k), strip, j);
			lb_end(lb);
			close_strip(e);
		}
	}
}

Affine
rows_place(const ProductEmit *e, const Block *b, Affine k)
{
	return affine_add_scaled(e->lw->lb, b->packed_rows, k, e->cut->rows);
}

void
pack_rows(const ProductEmit *e, const Block *b)
{
	LoopBuilder *lb = e->lw->lb;
	Affine k = open_block(lb, &e->cut->depth, b->depth, LOOP_PLAIN);
	Affine r = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, b->n_rows));
	Affine at = k_of(e, b->split, affine_add(lb, b->first_k, k));
	LoopValue x = e->p->a(e->lw, e->p, b->batch, affine_add(lb, b->row, r), at);

	lb_store(lb, e->rows, affine_add(lb, rows_place(e, b, k), r), lb_cast(lb, e->p->type, x));
	lb_end(lb);
	close_block(lb, &e->cut->depth);
}

Affine
shared_rows_place(const ProductEmit *e, const Block *b)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductCut *c = e->cut;
	Affine at = affine_add(lb, affine_scale(lb, b->batch, row_blocks(e->p, c)), b->row_block);

	at = affine_add(lb, affine_scale(lb, at, tiling_size(&c->depth)), b->first_k);
	return affine_plus(affine_scale(lb, at, c->rows), shared_columns(e->p, c));
}

/* ---- where panels lie */
/* Where a panel lies in the array of all panels: [split, batch, repeat, panel]. */
static Affine
shared_place(const ProductEmit *e, const Panel *p)
{
	LoopBuilder *lb = e->lw->lb;
	const Tiling *t = &e->cut->columns;
	Affine at = affine_add(lb, affine_scale(lb, p->split, e->p->batch), p->batch);

	at = affine_add(lb, affine_scale(lb, at, repeats(t)), p->repeat);
	at = affine_add(lb, affine_scale(lb, at, blocks_along(t)), p->number);
	return affine_scale(lb, at, panel_elements(e->cut));
}

Panel
panel_of(const ProductEmit *e, Panel p, const Pieces *along)
{
	LoopBuilder *lb = e->lw->lb;
	const Tiling *t = &e->cut->columns;
	Affine first = affine_scale(lb, p.repeat, t->shape.at[t->axis]);

	first = affine_add_scaled(lb, first, along->number, t->count);
	p.number = along->number;
	p.column = affine_scale(lb, first, t->inside);
	p.columns = along->size * t->inside;
	p.packed = e->cut->shared ? shared_place(e, &p) : affine_constant(0);
	return p;
}

/* ---- a serving kernel */
/* The block of k that a part of the packing kernel packs. */
typedef struct {
	Affine repeat, number;
} DepthPart;

/* The first k of the block that `part` packs. along: the piece that is being emitted, the code
 * for whole blocks or for the shorter last block. */
static Affine
first_of(LoopBuilder *lb, const Tiling *t, const DepthPart *part, const Pieces *along)
{
	Affine first = affine_scale(lb, part->repeat, t->shape.at[t->axis]);

	return affine_scale(lb, affine_add_scaled(lb, first, along->number, t->count), t->inside);
}

static void
pack_shared_columns(const ProductEmit *e, Panel at, DepthPart part)
{
	LoopBuilder *lb = e->lw->lb;
	const Tiling *t = &e->cut->columns, *d = &e->cut->depth;

	for (Pieces w = piece_of(lb, t->shape.at[t->axis], t->count, at.number); w.size;
	     pieces_next(&w)) {
		Panel panel = panel_of(e, at, &w);
		for (Pieces k = piece_of(lb, d->shape.at[d->axis], d->count, part.number); k.size;
		     pieces_next(&k))
			pack_panel(e, &panel, first_of(lb, d, &part, &k), k.size, tiling_size(d));
	}
}

static void
pack_shared_rows(const ProductEmit *e, Affine batch, Affine row_block, DepthPart part)
{
	LoopBuilder *lb = e->lw->lb;
	const Tiling *d = &e->cut->depth;

	for (Pieces r = piece_of(lb, e->p->m, e->cut->rows, row_block); r.size; pieces_next(&r))
		for (Pieces k = piece_of(lb, d->shape.at[d->axis], d->count, part.number); k.size;
		     pieces_next(&k)) {
			Block b = {.batch = batch,
			           .row_block = r.number,
			           .row = affine_scale(lb, r.number, e->cut->rows),
			           .n_rows = (int)r.size,
			           .first_k = first_of(lb, d, &part, &k),
			           .depth = k.size};
			b.packed_rows = shared_rows_place(e, &b);
			pack_rows(e, &b);
		}
}

void
pack_all(const ProductEmit *product)
{
	Lower *lw = product->lw;
	const Product *p = product->p;
	ProductCut cut = *product->cut;
	ProductEmit e = *product;
	const Tiling *t = &cut.columns, *d = &cut.depth;
	bool rows = shared_rows(p, &cut) > 0;
	int64_t k = tiling_size(d), panels = p->batch * repeats(t) * blocks_along(t);
	int64_t others = panels + (rows ? p->batch * row_blocks(p, &cut) : 0);
	int64_t wanted = (lw->parts + others - 1) / others;

	int64_t line = lw->target->line, depth = (k + wanted - 1) / wanted;

	cut.depth = tile_evenly(&p->k, depth < line ? line : depth, 1);
	e.cut = &cut;
	Type of_b = type_new(
		lw->m, S64, 5,
		(int64_t[]){p->batch, repeats(t), blocks_along(t), repeats(d), blocks_along(d)});
	Type of_a = type_new(
		lw->m, S64, 4,
		(int64_t[]){p->batch, row_blocks(p, &cut), repeats(d), blocks_along(d)});
	PartSpaces parts = part_spaces(lw->lb, of_b->n + (rows ? of_a->n : 0));
	Index at = part_space(&parts, of_b);
	pack_shared_columns(&e, (Panel){.batch = at.at[0], .repeat = at.at[1], .number = at.at[2]},
	                    (DepthPart){at.at[3], at.at[4]});
	part_space_end(&parts);
	if (rows) {
		at = part_space(&parts, of_a);
		pack_shared_rows(&e, at.at[0], at.at[1], (DepthPart){at.at[2], at.at[3]});
		part_space_end(&parts);
	}
	lb_end(lw->lb);
}
