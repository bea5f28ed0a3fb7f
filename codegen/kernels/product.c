/* The blocked matrix product. Per block of columns and of k, b is packed into a panel, here or by a kernel that runs
 * before; of its product some rows and columns at a time have their sums in local vectors, which the compiler of the kernel
 * keeps in registers. Every element is summed in the order of k, whatever the block sizes; where k is split, in the order
 * of the splits. Scheme: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.
 *
 * In parallel go batches, splits of k, chunks of rows, and panels of columns. */
#include "codegen/kernels/product.h"

enum { LINE = 16 }; /* numbers of f32 in a line of the cache */
/* Sums that a part adds over splits of k. */
enum { LEAST_BLOCK = 64, MOST_BLOCK = 1024 };

/* A product while it is emitted: what it is, how it is cut, and its arrays. */
typedef struct {
	Lower *lw;
	const Product *p;
	const ProductCut *cut;
	int panel;                   /* packed b: of the part, or of all */
	int rows;                    /* packed rows of a; -1: a is read where it lies */
	int sums[MOST_PRODUCT_ROWS]; /* in registers */
	int waiting; /* sums between blocks of k that are more precise than the result; -1: they lie in c */
	int out; /* c, or the sums of parts of k */
} Emit;

/* A panel of the product's columns: one that is there, or that the part has. */
typedef struct {
	Affine batch, split, repeat, number; /* of the part */
	Affine column;                       /* its first */
	int64_t columns;
	Affine packed; /* where it begins in the array */
} Panel;

/* A block of sums. */
typedef struct {
	Affine batch, split;
	Affine row, column; /* of the product: its first */
	Affine row_block;   /* number */
	int n_rows;
	int64_t n_columns;
	Affine in_waiting;  /* its first element there */
	Affine packed;      /* in the panel, of its first k */
	Affine packed_rows; /* in the array of rows, likewise */
	Affine first_k;     /* of the block of k */
	int64_t depth;      /* steps of the block of k */
	bool whole;         /* is all of k */
} Block;

/* Of the columns that are computed: whole vectors. Beyond its own b is 0, and the sums are never stored: what nobody wrote
 * may be subnormal numbers, with which CPUs compute many times as slowly. */
static int64_t
computed_columns(const ProductCut *c, int64_t n)
{
	return (n + c->lanes - 1) / c->lanes * c->lanes;
}

static Affine
plus(Affine a, int64_t constant)
{
	a.constant += constant;
	return a;
}

/* k of the product, from one of the split. */
static Affine
k_of(const Emit *e, Affine split, Affine k)
{
	return affine_add(affine_scale(split, tiling_size(&e->cut->depth)), k);
}

/* ---- b in a panel: strips of columns, whose numbers of one k are side by side */

/* packed[strip, k, j] = b(k, strip + j), for the columns of a strip and a block of k */
static void
pack_element(const Emit *e, const Panel *panel, Affine packed, Affine k, Affine strip, Affine j)
{
	LoopBuilder *lb = e->lw->lb;
	Affine column = affine_add(panel->column, affine_add(strip, j));
	LoopValue x = e->p->b(e->lw, e->p, panel->batch, k_of(e, panel->split, k), column);

	lb_store(lb, e->panel, affine_add(packed, j), lb_cast(lb, e->p->type, x));
}

/* Opens loops over the columns of a strip of n: of its own, or, where the panel is one strip, along the axes. */
static Affine
open_strip(const Emit *e, const Panel *panel, int64_t n, LoopMode innermost)
{
	const Tiling *t = &e->cut->columns;

	if (t->axis == t->shape.n - 1)
		return affine_scalar(lb_for(e->lw->lb, innermost, n));
	return open_block(e->lw->lb, t, panel->columns / t->inside, innermost);
}

static void
close_strip(const Emit *e)
{
	const Tiling *t = &e->cut->columns;

	if (t->axis == t->shape.n - 1)
		lb_end(e->lw->lb);
	else
		close_block(e->lw->lb, t);
}

/* Zeros behind the strip's n columns, up to whole vectors. */
static void
clear_beyond(const Emit *e, Affine packed, int64_t columns, int64_t depth, int64_t n)
{
	LoopBuilder *lb = e->lw->lb;
	int64_t beyond = computed_columns(e->cut, n) - n;

	if (beyond == 0)
		return;
	Affine k = open_block(lb, &e->cut->depth, depth, LOOP_PLAIN);
	Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, beyond));
	Affine to = affine_add(affine_add(packed, affine_scale(k, columns)), plus(j, n));
	lb_store(lb, e->panel, to, lb_number(lb, e->p->type, 0));
	lb_end(lb);
	close_block(lb, &e->cut->depth);
}

/* The block of k that begins at first_k. `deep`: numbers of k that a strip has in the array. */
static void
pack_panel(const Emit *e, const Panel *panel, Affine first_k, int64_t depth, int64_t deep)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductCut *c = e->cut;
	int64_t columns = packed_columns(c), in_block = depth * c->depth.inside;
	bool lines = c->by_lines && c->depth.axis == c->depth.shape.n - 1;
	Affine from = c->shared ? first_k : affine_constant(0); /* of the array */

	for (Pieces s = pieces(lb, panel->columns, columns); s.size; pieces_next(&s)) {
		Affine strip = affine_scale(s.number, columns);
		Affine packed = affine_add(panel->packed, affine_scale(strip, deep));
		packed = affine_add(packed, affine_scale(from, columns));
		clear_beyond(e, packed, columns, depth, s.size);
		if (!lines) {
			Affine k = open_block(lb, &c->depth, depth, LOOP_PLAIN);
			Affine to = affine_add(packed, affine_scale(k, columns));
			Affine j = open_strip(e, panel, s.size, LOOP_VECTOR);
			pack_element(e, panel, to, affine_add(first_k, k), strip, j);
			close_strip(e);
			close_block(lb, &c->depth);
			continue;
		}
		/* A line of the cache for each column, all of it: with rows of 4 KiB all columns share lines. */
		for (Pieces l = pieces(lb, in_block, LINE); l.size; pieces_next(&l)) {
			Affine j = open_strip(e, panel, s.size, LOOP_PLAIN);
			LoopValue i = lb_for(lb, LOOP_VECTOR, l.size);
			Affine k = affine_add(affine_scale(l.number, LINE), affine_scalar(i));
			Affine to = affine_add(packed, affine_scale(k, columns));
			pack_element(e, panel, to, affine_add(first_k, k), strip, j);
			lb_end(lb);
			close_strip(e);
		}
	}
}

/* ---- a block of sums in registers */
static LoopValue
element_of_a(const Emit *e, const Block *b, int64_t row, Affine k)
{
	Affine at = k_of(e, b->split, affine_add(b->first_k, k));

	return lb_cast(e->lw->lb, e->p->type,
	               e->p->a(e->lw, e->p, b->batch, plus(b->row, row), at));
}

static Affine
rows_place(const Emit *e, const Block *b, Affine k)
{
	return affine_add(b->packed_rows, affine_scale(k, e->cut->rows));
}

/* rows[k, r] = a(row + r, k) */
static void
pack_rows(const Emit *e, const Block *b)
{
	LoopBuilder *lb = e->lw->lb;
	Affine k = open_block(lb, &e->cut->depth, b->depth, LOOP_PLAIN);
	Affine r = affine_scalar(lb_for(lb, LOOP_VECTOR, b->n_rows));
	Affine at = k_of(e, b->split, affine_add(b->first_k, k));
	LoopValue x = e->p->a(e->lw, e->p, b->batch, affine_add(b->row, r), at);

	lb_store(lb, e->rows, affine_add(rows_place(e, b, k), r), lb_cast(lb, e->p->type, x));
	lb_end(lb);
	close_block(lb, &e->cut->depth);
}

static Affine
place_of(const Emit *e, const Block *b, int row, Affine j)
{
	Affine c = e->p->c(e->lw, e->p, b->batch, plus(b->row, row), affine_add(b->column, j));
	int64_t stored = node_result(e->p->node, 0)->type->n;

	return e->cut->splits > 1 ? affine_add(affine_scale(b->split, stored), c) : c;
}

/* Where a sum waits for the next block of k. */
static Affine
waiting_place(const Emit *e, const Block *b, int row, Affine j)
{
	int64_t panel = e->cut->columns.count * e->cut->columns.inside;

	return plus(affine_add(b->in_waiting, j), row * panel);
}

/* Opens a condition that the block of k is, or is not, the one that begins at `first`; false: it never holds. */
static bool
if_first_k(const Emit *e, const Block *b, int64_t first, bool is)
{
	LoopBuilder *lb = e->lw->lb;

	if (b->first_k.n == 0)
		return (b->first_k.constant == first) == is;
	LoopValue at = lb_affine(lb, b->first_k), k = lb_int(lb, S64, first);
	lb_if(lb, lb_compare(lb, is ? LOOP_eq : LOOP_ne, at, k));
	return true;
}

static void
end_if_first_k(const Emit *e, const Block *b)
{
	if (b->first_k.n)
		lb_end(e->lw->lb);
}

/* sums = 0 in the first block of k, what earlier ones left in others */
static void
start_sums(const Emit *e, const Block *b)
{
	LoopBuilder *lb = e->lw->lb;

	if (if_first_k(e, b, 0, true)) {
		Affine j = affine_scalar(
			lb_for(lb, LOOP_VECTOR, computed_columns(e->cut, b->n_columns)));
		for (int r = 0; r < b->n_rows; r++)
			lb_store(lb, e->sums[r], j, lb_number(lb, e->p->type, 0));
		lb_end(lb);
		end_if_first_k(e, b);
	}
	if (!b->whole && if_first_k(e, b, 0, false)) {
		Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, b->n_columns));
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
multiply(const Emit *e, const Block *b)
{
	LoopBuilder *lb = e->lw->lb;
	DType type = e->p->type;
	LoopValue x[MOST_PRODUCT_ROWS];
	Affine k = open_block(lb, &e->cut->depth, b->depth, LOOP_PLAIN);

	for (int r = 0; r < b->n_rows; r++)
		x[r] = e->rows < 0 ? element_of_a(e, b, r, k)
		                   : lb_load(lb, e->rows, plus(rows_place(e, b, k), r));
	Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, computed_columns(e->cut, b->n_columns)));
	Affine at = affine_add(b->packed, affine_scale(k, packed_columns(e->cut)));
	LoopValue y = lb_load(lb, e->panel, affine_add(at, j));
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

/* c = the sums; with what else the kernel stores of them where they are complete. */
static void
put_sums(const Emit *e, const Block *b, bool complete)
{
	LoopBuilder *lb = e->lw->lb;
	bool waits = !complete && e->waiting >= 0, splits = e->cut->splits > 1;
	Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, b->n_columns));

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
finish_sums(const Emit *e, const Block *b)
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

/* Where the block's rows lie behind all of b: [batch, row block, k, row]. */
static Affine
shared_rows_place(const Emit *e, const Block *b)
{
	const ProductCut *c = e->cut;
	Affine at = affine_add(affine_scale(b->batch, row_blocks(e->p, c)), b->row_block);

	at = affine_add(affine_scale(at, tiling_size(&c->depth)), b->first_k);
	return plus(affine_scale(at, c->rows), shared_columns(e->p, c));
}

/* Some rows of the panel. */
static void
row_block(const Emit *e, const Panel *panel, Block b, int64_t deep)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductCut *c = e->cut;
	int64_t columns = packed_columns(c);
	Affine from = affine_add(panel->packed, affine_scale(b.packed, columns));

	if (e->rows >= 0 && c->shared)
		b.packed_rows = shared_rows_place(e, &b);
	else if (e->rows >= 0)
		pack_rows(e, &b);
	for (Pieces s = pieces(lb, panel->columns, c->strip); s.size; pieces_next(&s)) {
		Affine strip = affine_scale(s.number, c->strip);
		Block block = b;
		block.column = affine_add(panel->column, strip);
		block.n_columns = s.size;
		block.packed = affine_add(from,
		                          affine_scale(strip, columns == c->strip ? deep : 1));
		block.in_waiting = affine_add(b.in_waiting, strip);
		start_sums(e, &block);
		if (tiling_size(&c->depth))
			multiply(e, &block);
		finish_sums(e, &block);
	}
}

/* The rows of a chunk: whole blocks, and in the last chunk what is left. */
static void
chunk(const Emit *e, const Panel *panel, Affine number, Block b, int64_t deep)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductCut *c = e->cut;
	int64_t blocks = e->p->m / c->rows, rest = e->p->m % c->rows;
	int64_t width = c->columns.count * c->columns.inside;
	Affine before = affine_scale(number, c->chunk);

	if (blocks > 0) {
		Affine left = plus(affine_scale(before, -1), blocks);
		LoopValue i = blocks % c->chunk == 0 ? lb_for(lb, LOOP_PLAIN, c->chunk)
		                                     : lb_for_below(lb, LOOP_PLAIN, c->chunk, left);
		Block block = b;
		block.row_block = affine_add(before, affine_scalar(i));
		block.row = affine_scale(block.row_block, c->rows);
		block.n_rows = c->rows;
		block.in_waiting = affine_scale(affine_scalar(i), c->rows * width);
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

/* Where a panel lies in the array of all: [split, batch, repeat, panel]. */
static Affine
shared_place(const Emit *e, const Panel *p)
{
	const Tiling *t = &e->cut->columns;
	Affine at = affine_add(affine_scale(p->split, e->p->batch), p->batch);

	at = affine_add(affine_scale(at, repeats(t)), p->repeat);
	at = affine_add(affine_scale(at, blocks_along(t)), p->number);
	return affine_scale(at, panel_elements(e->cut));
}

/* Of a part's panel, whose number is p.number: its columns, for the code of whole panels and of the last. */
static Panel
panel_of(const Emit *e, Panel p, const Pieces *along)
{
	const Tiling *t = &e->cut->columns;
	Affine first = affine_scale(p.repeat, t->shape.at[t->axis]);

	first = affine_add(first, affine_scale(along->number, t->count));
	p.number = along->number;
	p.column = affine_scale(first, t->inside);
	p.columns = along->size * t->inside;
	p.packed = e->cut->shared ? shared_place(e, &p) : affine_constant(0);
	return p;
}

/* One part of the product. */
static void
part(const Emit *e, Panel at, Affine number)
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

/* ---- the parts */
enum { BATCH, SPLIT, OUTER, INNER, INNERMOST, N_PART_AXES };

/* [batch, split, chunk, repeat, panel] or [batch, split, repeat, panel, chunk] */
static Type
part_shape(const Lower *lw, const Product *p, const ProductCut *c)
{
	int64_t dims[N_PART_AXES] = {0};
	int panel = c->panels_outer ? OUTER : INNER;

	if (tiling_size(&c->columns) && p->batch && p->m) {
		dims[BATCH] = p->batch;
		dims[SPLIT] = c->splits;
		dims[c->panels_outer ? INNERMOST : OUTER] = c->chunks;
		dims[panel] = repeats(&c->columns);
		dims[panel + 1] = blocks_along(&c->columns);
	}
	return type_new(lw->m, S64, N_PART_AXES, dims);
}

static void
part_at(const Emit *e, const Index *at)
{
	int panel = e->cut->panels_outer ? OUTER : INNER;

	part(e,
	     (Panel){.batch = at->at[BATCH],
	             .split = at->at[SPLIT],
	             .repeat = at->at[panel],
	             .number = at->at[panel + 1]},
	     at->at[e->cut->panels_outer ? INNERMOST : OUTER]);
}

/* A parallel loop over several spaces of parts, one after the other. */
typedef struct {
	LoopBuilder *lb;
	int64_t all, taken; /* parts; of them those of spaces before */
	LoopValue number;
	bool condition; /* is open */
} Numbered;

static Numbered
numbered_open(LoopBuilder *lb, int64_t all)
{
	return (Numbered){.lb = lb, .all = all, .number = lb_for(lb, LOOP_PARALLEL, all)};
}

/* Opens what parts of the next space do; the part's place in it. */
static Index
numbered_take(Numbered *p, Type space)
{
	LoopBuilder *lb = p->lb;
	LoopValue at = p->number;
	Index index;

	p->condition = space->n < p->all;
	if (p->condition) {
		LoopValue own = lb_binary(lb, LOOP_sub, p->number, lb_int(lb, S64, p->taken));
		at = lb_binary(lb, LOOP_max, own, lb_int(lb, S64, 0));
		at = lb_binary(lb, LOOP_min, at, lb_int(lb, S64, space->n - 1));
		lb_within(lb, at, space->n);
		lb_if(lb, lb_compare(lb, LOOP_eq, own, at));
	}
	p->taken += space->n;
	index_split(lb, space, affine_scalar(at), &index);
	for (int i = 0; i < index.rank; i++)
		if (index.at[i].n == 1 && index.at[i].terms[0].coefficient == 1)
			lb_within(lb, index.at[i].terms[0].scalar, space->dims[i]);
	return index;
}

static void
numbered_end(Numbered *p)
{
	if (p->condition)
		lb_end(p->lb);
}

static void
parallel_parts(Lower *lw, const Emit *list, int n)
{
	Type shapes[MAX_PRODUCTS];
	int64_t all = 0;

	for (int i = 0; i < n; i++)
		all += (shapes[i] = part_shape(lw, list[i].p, list[i].cut))->n;
	Numbered parts = numbered_open(lw->lb, all);
	for (int i = 0; i < n; i++) {
		if (shapes[i]->n == 0)
			continue;
		Index at = numbered_take(&parts, shapes[i]);
		part_at(&list[i], &at);
		numbered_end(&parts);
	}
	lb_end(lw->lb);
}

static int64_t
larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* All products have the same arrays. */
static void
declare_arrays(Emit *list, int n)
{
	LoopBuilder *lb = list->lw->lb;
	DType type = list->p->type;
	int64_t panel = 0, rows = 0, waiting = 0;

	for (int i = 0; i < n; i++) {
		const ProductCut *c = list[i].cut;
		int64_t depth = c->depth.count * c->depth.inside, columns = packed_columns(c);
		int64_t width = c->columns.count * c->columns.inside;
		int64_t strips = (width + columns - 1) / columns;
		if (!c->shared)
			panel = larger(panel, strips * columns * larger(depth, 1));
		if (c->pack_rows && !c->shared)
			rows = larger(rows, c->rows * depth);
		if (product_waits(list->lw, list[i].p, c))
			waiting = larger(waiting, waiting_elements(list[i].p, c));
	}
	int own_panel = panel ? lb_local(lb, type, panel) : -1;
	int own_rows = rows ? lb_local(lb, type, rows) : -1;
	int own_waiting = waiting ? lb_local(lb, type, waiting) : -1;
	for (int r = 0; r < list->cut->rows; r++)
		list->sums[r] = lb_local(lb, type, list->cut->strip);
	for (int i = 0; i < n; i++) {
		const ProductCut *c = list[i].cut;
		list[i].panel = c->shared ? lower_scratch(list->lw) : own_panel;
		list[i].rows = !c->pack_rows ? -1 : c->shared ? list[i].panel : own_rows;
		list[i].waiting = product_waits(list->lw, list[i].p, c) ? own_waiting : -1;
		for (int r = 0; r < c->rows; r++)
			list[i].sums[r] = list->sums[r];
	}
}

static void
multiply_all(Lower *lw, const Product *list, int n, int out)
{
	ProductCut *cuts = NEW_ARRAY(lw->lb->scratch, ProductCut, n);
	Emit *emits = NEW_ARRAY(lw->lb->scratch, Emit, n);

	for (int i = 0; i < n; i++) {
		cuts[i] = product_cut(lw, &list[i], n);
		emits[i] = (Emit){.lw = lw, .p = &list[i], .cut = &cuts[i], .out = out};
	}
	declare_arrays(emits, n);
	parallel_parts(lw, emits, n);
}

/* ---- a kernel before */
Type
products_scratch(Lower *lw, const Product *list, int n)
{
	int64_t size;

	if (n > 1)
		return NULL;
	ProductCut c = product_cut(lw, list, n);
	if (c.splits > 1)
		size = c.splits * node_result(list->node, 0)->type->n;
	else if (c.shared)
		size = shared_columns(list, &c) + shared_rows(list, &c);
	else
		return NULL;
	return type_new(lw->m, list->type, 1, &size);
}

/* Of a part that packs: which block of k. */
typedef struct {
	Affine repeat, number;
} DepthPart;

/* The block of k as code for whole blocks and for the last: its first, and its steps. */
static Affine
first_of(const Tiling *t, const DepthPart *part, const Pieces *along)
{
	Affine first = affine_scale(part->repeat, t->shape.at[t->axis]);

	return affine_scale(affine_add(first, affine_scale(along->number, t->count)), t->inside);
}

static void
pack_shared_columns(const Emit *e, Panel at, DepthPart part)
{
	LoopBuilder *lb = e->lw->lb;
	const Tiling *t = &e->cut->columns, *d = &e->cut->depth;

	for (Pieces w = piece_of(lb, t->shape.at[t->axis], t->count, at.number); w.size;
	     pieces_next(&w)) {
		Panel panel = panel_of(e, at, &w);
		for (Pieces k = piece_of(lb, d->shape.at[d->axis], d->count, part.number); k.size;
		     pieces_next(&k))
			pack_panel(e, &panel, first_of(d, &part, &k), k.size, tiling_size(d));
	}
}

static void
pack_shared_rows(const Emit *e, Affine batch, Affine row_block, DepthPart part)
{
	LoopBuilder *lb = e->lw->lb;
	const Tiling *d = &e->cut->depth;

	for (Pieces r = piece_of(lb, e->p->m, e->cut->rows, row_block); r.size; pieces_next(&r))
		for (Pieces k = piece_of(lb, d->shape.at[d->axis], d->count, part.number); k.size;
		     pieces_next(&k)) {
			Block b = {.batch = batch,
			           .row_block = r.number,
			           .row = affine_scale(r.number, e->cut->rows),
			           .n_rows = (int)r.size,
			           .first_k = first_of(d, &part, &k),
			           .depth = k.size};
			b.packed_rows = shared_rows_place(e, &b);
			pack_rows(e, &b);
		}
}

/* Packs all of b, and of a where the cut says so. Parts are panels, or blocks of rows, and blocks of k that need not be
 * those of the product. */
static void
pack_all(const Emit *product)
{
	Lower *lw = product->lw;
	const Product *p = product->p;
	ProductCut cut = *product->cut;
	Emit e = *product;
	const Tiling *t = &cut.columns, *d = &cut.depth;
	bool rows = shared_rows(p, &cut) > 0;
	int64_t k = tiling_size(d), panels = p->batch * repeats(t) * blocks_along(t);
	int64_t others = panels + (rows ? p->batch * row_blocks(p, &cut) : 0);
	int64_t wanted = (lw->parts + others - 1) / others;

	cut.depth = tile_evenly(&p->k, larger(LINE, (k + wanted - 1) / wanted), 1);
	e.cut = &cut;
	Type of_b = type_new(
		lw->m, S64, 5,
		(int64_t[]){p->batch, repeats(t), blocks_along(t), repeats(d), blocks_along(d)});
	Type of_a = type_new(
		lw->m, S64, 4,
		(int64_t[]){p->batch, row_blocks(p, &cut), repeats(d), blocks_along(d)});
	Numbered parts = numbered_open(lw->lb, of_b->n + (rows ? of_a->n : 0));
	Index at = numbered_take(&parts, of_b);
	pack_shared_columns(&e, (Panel){.batch = at.at[0], .repeat = at.at[1], .number = at.at[2]},
	                    (DepthPart){at.at[3], at.at[4]});
	numbered_end(&parts);
	if (rows) {
		at = numbered_take(&parts, of_a);
		pack_shared_rows(&e, at.at[0], at.at[1], (DepthPart){at.at[2], at.at[3]});
		numbered_end(&parts);
	}
	lb_end(lw->lb);
}

void
products_prepare(Lower *lw, const Product *list, int n)
{
	ProductCut c = product_cut(lw, list, n);
	int scratch = lower_scratch(lw);
	Emit e = {.lw = lw, .p = list, .cut = &c, .panel = scratch, .rows = scratch};

	if (c.splits > 1) {
		lw->lb->k->flops = op_row(list->node)->flops(list->node);
		multiply_all(lw, list, n, lower_scratch(lw));
	} else {
		pack_all(&e);
	}
}

/* c = the sum over the splits, in their order */
static void
add_splits(Lower *lw, const Product *p, const ProductCut *c)
{
	LoopBuilder *lb = lw->lb;
	int64_t n = node_result(p->node, 0)->type->n, wanted = (n + lw->parts - 1) / lw->parts;
	lw->lb->k->flops += (c->splits - 1) * n - op_row(p->node)->flops(p->node);
	int64_t block = wanted < LEAST_BLOCK  ? LEAST_BLOCK
	                : wanted > MOST_BLOCK ? MOST_BLOCK
	                                      : wanted;
	int out = lower_buffer(lw, lower_stored(lw)), sums = lb_local(lb, p->type, block);
	Affine number = affine_scalar(lb_for(lb, LOOP_PARALLEL, (n + block - 1) / block));

	for (Pieces b = piece_of(lb, n, block, number); b.size; pieces_next(&b)) {
		Affine first = affine_scale(b.number, block);
		Affine i = affine_scalar(lb_for(lb, LOOP_VECTOR, b.size));
		lb_store(lb, sums, i, lb_load(lb, lower_scratch(lw), affine_add(first, i)));
		lb_end(lb);
		Affine s = affine_scalar(lb_for(lb, LOOP_PLAIN, c->splits - 1));
		i = affine_scalar(lb_for(lb, LOOP_VECTOR, b.size));
		Affine from = affine_add(affine_scale(plus(s, 1), n), affine_add(first, i));
		LoopValue sum = lb_load(lb, sums, i), x = lb_load(lb, lower_scratch(lw), from);
		lb_store(lb, sums, i, lb_binary(lb, LOOP_add, sum, x));
		lb_end(lb);
		lb_end(lb);
		i = affine_scalar(lb_for(lb, LOOP_VECTOR, b.size));
		Affine place = affine_add(first, i);
		sum = result_of_sum(lb, p->node, lb_load(lb, sums, i));
		lb_store(lb, out, place, lower_stored_element(lw, p->node, place, sum));
		lb_end(lb);
	}
	lb_end(lb);
}

void
products_emit(Lower *lw, const Product *list, int n)
{
	ProductCut c = product_cut(lw, list, n);

	if (c.splits > 1)
		add_splits(lw, list, &c);
	else
		multiply_all(lw, list, n, lower_buffer(lw, lower_stored(lw)));
}

DType
accumulation_type(const Node *n)
{
	DType z = node_result(n, 0)->type->dtype;

	if (!dtype_is_float(z))
		return compute_type(z);
	for (int i = 0; i < 2; i++)
		if (node_operand(n, i)->type->dtype == F64)
			return F64;
	return compute_type(z);
}

LoopValue
result_of_sum(LoopBuilder *lb, const Node *n, LoopValue sum)
{
	DType z = node_result(n, 0)->type->dtype;

	return lb_type(lb, sum) == compute_type(z) ? sum : lb_cast(lb, z, sum);
}
