/* The blocked matrix product. Per block of columns and of k, b is packed into a local panel; of its product some rows
 * and columns at a time have their sums in local vectors, which the compiler of the kernel keeps in registers. Every
 * element is summed in the order of k, whatever the block sizes. Scheme: Goto and van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", 2008.
 *
 * In parallel go batches, chunks of rows, and groups of blocks of columns. */
#include "codegen/kernels/product_impl.h"

#include <string.h>

enum { MANY_BLOCKS = 4 };
enum { LINE = 16 }; /* numbers of f32 in a line of the cache */

static int64_t
panel_size(const Product *p)
{
	return p->column_count * p->columns.inside;
}

/* Columns of the strip or block that are computed: whole vectors. Beyond its own b is 0, and the sums are never stored:
 * what nobody wrote may be subnormal numbers, with which CPUs compute many times as slowly. */
static int64_t
computed_columns(const Product *p)
{
	return (p->n_columns + p->lanes - 1) / p->lanes * p->lanes;
}

/* ---- b in a panel */

/* Opens loops over the columns of a strip; the column within it. */
static Affine
open_strip(const Product *p, LoopMode innermost)
{
	if (p->strip_columns < p->panel_columns)
		return affine_scalar(lb_for(p->lw->lb, innermost, p->n_columns));
	return open_block(p->lw->lb, &p->columns, p->column_count, innermost);
}

static void
close_strip(const Product *p)
{
	if (p->strip_columns < p->panel_columns)
		lb_end(p->lw->lb);
	else
		close_block(p->lw->lb, &p->columns);
}

/* panel[strip, k, j] = b(k, strip + j) */
static void
pack_element(const Product *p, Affine k, Affine j)
{
	Affine column = affine_add(p->first_column, affine_add(p->column, j));
	LoopValue x = p->g->b(p->lw, p->g, p->batch, affine_add(p->first_k, k), column);
	Affine place = affine_add(affine_scale(k, p->strip_columns), j);

	lb_store(p->lw->lb, p->panel, affine_add(p->packed, place),
	         lb_cast(p->lw->lb, p->g->type, x));
}

/* Where b lies along k: a line of the cache for each column, all of it. With rows of 4 KiB all columns share lines. */
static void
pack_line(void *ctx, Affine number, int64_t size)
{
	const Product *p = ctx;
	Affine j = open_strip(p, LOOP_PLAIN);
	LoopValue k = lb_for(p->lw->lb, LOOP_VECTOR, size);

	pack_element(p, affine_add(affine_scale(number, LINE), affine_scalar(k)), j);
	lb_end(p->lw->lb);
	close_strip(p);
}

/* panel[strip, k, j] = 0 for the columns beyond b's */
static void
clear_beyond(const Product *p)
{
	LoopBuilder *lb = p->lw->lb;
	Affine k = open_block(lb, &p->depth, p->depth_count, LOOP_PLAIN);
	Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, computed_columns(p) - p->n_columns));
	Affine place = affine_add(affine_scale(k, p->strip_columns),
	                          affine_add(affine_constant(p->n_columns), j));

	lb_store(lb, p->panel, affine_add(p->packed, place), lb_number(lb, p->g->type, 0));
	lb_end(lb);
	close_block(lb, &p->depth);
}

static void
pack_strip(void *ctx, Affine number, int64_t size)
{
	Product *p = ctx;
	LoopBuilder *lb = p->lw->lb;

	p->column = affine_scale(number, p->strip_columns);
	p->packed = affine_scale(p->column, most_depth(p));
	p->n_columns = size;
	if (computed_columns(p) > size)
		clear_beyond(p);
	if (p->by_lines && p->depth.axis == p->depth.shape.n - 1) {
		for_pieces(lb, p->depth_count * p->depth.inside, LINE, pack_line, p);
		return;
	}
	Affine k = open_block(lb, &p->depth, p->depth_count, LOOP_PLAIN);
	Affine j = open_strip(p, LOOP_VECTOR);

	pack_element(p, k, j);
	close_strip(p);
	close_block(lb, &p->depth);
}

/* ---- a block of sums in registers */
static LoopValue
element_of_a(const Product *p, Affine r, Affine k)
{
	Affine row = affine_add(p->row, r), at = affine_add(p->first_k, k);

	return lb_cast(p->lw->lb, p->g->type, p->g->a(p->lw, p->g, p->batch, row, at));
}

/* packed_rows[k, r] = a(row + r, k) */
static void
pack_rows(const Product *p)
{
	LoopBuilder *lb = p->lw->lb;
	Affine k = open_block(lb, &p->depth, p->depth_count, LOOP_PLAIN);
	Affine r = affine_scalar(lb_for(lb, LOOP_VECTOR, p->n_rows));

	lb_store(lb, p->packed_rows, affine_add(affine_scale(k, p->block_rows), r),
	         element_of_a(p, r, k));
	lb_end(lb);
	close_block(lb, &p->depth);
}

static Affine
place_of(const Product *p, int r, Affine j)
{
	return p->g->c(p->lw, p->g, p->batch, affine_add(p->row, affine_constant(r)),
	               affine_add(p->first_column, affine_add(p->column, j)));
}

/* Where a sum waits for the next block of k. */
static Affine
partial_place(const Product *p, int r, Affine j)
{
	Affine row = affine_add(p->partial_row, affine_constant(r));

	return affine_add(affine_scale(row, p->panel_columns), affine_add(p->column, j));
}

/* Calls body for the block of k that begins at `first`, or for all others: what is known not to be is left out. */
static void
where_k_is(const Product *p, int64_t first, bool is, void (*body)(const Product *p))
{
	LoopBuilder *lb = p->lw->lb;

	if (p->first_k.n) {
		LoopValue at = lb_affine(lb, p->first_k), k = lb_int(lb, S64, first);
		lb_if(lb, lb_compare(lb, is ? LOOP_eq : LOOP_ne, at, k));
		body(p);
		lb_end(lb);
	} else if ((p->first_k.constant == first) == is) {
		body(p);
	}
}

/* sums[r][j] = 0 */
static void
clear_sums(const Product *p)
{
	LoopBuilder *lb = p->lw->lb;
	Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, computed_columns(p)));

	for (int r = 0; r < p->n_rows; r++)
		lb_store(lb, p->sums[r], j, lb_number(lb, p->g->type, 0));
	lb_end(lb);
}

/* sums[r][j] = what earlier blocks of k left */
static void
load_sums(const Product *p)
{
	LoopBuilder *lb = p->lw->lb;
	Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, p->n_columns));

	for (int r = 0; r < p->n_rows; r++)
		lb_store(lb, p->sums[r], j,
		         p->partial < 0 ? lb_load(lb, p->out, place_of(p, r, j))
		                        : lb_load(lb, p->partial, partial_place(p, r, j)));
	lb_end(lb);
}

/* c = the sums, and the bias if they are complete. */
static void
put_sums(const Product *p, bool complete)
{
	LoopBuilder *lb = p->lw->lb;
	Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, p->n_columns));

	for (int r = 0; r < p->n_rows; r++) {
		bool waits = !complete && p->partial >= 0;
		Affine place = waits ? partial_place(p, r, j) : place_of(p, r, j);
		LoopValue sum = lb_load(lb, p->sums[r], j);
		if (!waits)
			sum = result_of_sum(lb, p->g->node, sum);
		if (complete)
			sum = lower_stored_element(p->lw, p->g->node, place, sum);
		lb_store(lb, waits ? p->partial : p->out, place, sum);
	}
	lb_end(lb);
}
static void
store_sums(const Product *p)
{
	put_sums(p, false);
}
static void
finish_sums(const Product *p)
{
	put_sums(p, true);
}

static void
multiply(const Product *p)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue x[MAX_ROWS];
	Affine k = open_block(lb, &p->depth, p->depth_count, LOOP_PLAIN);

	for (int r = 0; r < p->n_rows; r++) {
		Affine row = affine_constant(r);
		Affine at = affine_add(affine_scale(k, p->block_rows), row);
		x[r] = p->packed_rows < 0 ? element_of_a(p, row, k)
		                          : lb_load(lb, p->packed_rows, at);
	}
	Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, computed_columns(p)));
	Affine at = affine_add(affine_scale(k, p->strip_columns), j);
	LoopValue y = lb_load(lb, p->panel, affine_add(p->packed, at));
	for (int r = 0; r < p->n_rows; r++) {
		LoopValue sum = lb_load(lb, p->sums[r], j);
		if (dtype_is_float(p->g->type))
			sum = lb_op(lb, LOOP_fma, p->g->type, (LoopValue[]){x[r], y, sum});
		else
			sum = lb_binary(lb, LOOP_add, sum, lb_binary(lb, LOOP_mul, x[r], y));
		lb_store(lb, p->sums[r], j, sum);
	}
	lb_end(lb);
	close_block(lb, &p->depth);
}

static void
register_block(void *ctx, Affine number, int64_t size)
{
	Product *p = ctx;
	int64_t last = last_block(&p->depth);

	p->column = affine_scale(number, p->block_columns);
	p->packed = affine_scale(p->column,
	                         p->strip_columns == p->block_columns ? most_depth(p) : 1);
	p->n_columns = size;
	where_k_is(p, 0, true, clear_sums);
	where_k_is(p, 0, false, load_sums);
	if (tiling_size(&p->depth))
		multiply(p);
	if (p->bias || p->partial >= 0) {
		where_k_is(p, last, false, store_sums);
		where_k_is(p, last, true, finish_sums);
	} else {
		store_sums(p);
	}
}

static void
row_block(Product *p, Affine first, int64_t size)
{
	p->row = affine_add(p->first_row, first);
	p->partial_row = first;
	p->n_rows = (int)size;
	if (p->packed_rows >= 0 && tiling_size(&p->depth))
		pack_rows(p);
	for_pieces(p->lw->lb, panel_size(p), p->block_columns, register_block, p);
}

static void
numbered_row_block(void *ctx, Affine number, int64_t size)
{
	Product *p = ctx;

	row_block(p, affine_scale(number, p->block_rows), size);
}

/* All blocks of rows. Where sums are complete at once, the last of many is moved back to be as high as the others: it
 * computes some rows again, and no code is needed for a lower one. */
static void
row_blocks(Product *p)
{
	LoopBuilder *lb = p->lw->lb;
	int64_t most = p->rows - p->block_rows, blocks = p->rows / p->block_rows;
	bool at_once = p->depth_count * p->depth.inside == tiling_size(&p->depth);

	if (p->rows % p->block_rows == 0 || blocks < MANY_BLOCKS || !at_once) {
		for_pieces(lb, p->rows, p->block_rows, numbered_row_block, p);
		return;
	}
	LoopValue number = lb_for(lb, LOOP_PLAIN, blocks + 1);
	LoopValue at = lb_affine(lb, affine_scale(affine_scalar(number), p->block_rows));
	LoopValue first = lb_binary(lb, LOOP_min, at, lb_int(lb, S64, most));
	lb_within(lb, first, most + 1);
	row_block(p, affine_scalar(first), p->block_rows);
	lb_end(lb);
}

/* So many steps along the columns' axis, for the block of k at hand. */
static void
column_block(Product *p, Affine first, int64_t count)
{
	LoopBuilder *lb = p->lw->lb;

	p->first_column = first;
	p->column_count = count;
	if (tiling_size(&p->depth))
		for_pieces(lb, panel_size(p), p->strip_columns, pack_strip, p);
	row_blocks(p);
}

/* Block number `block` along that axis: a full one, the rest, or none if the last group has fewer. */
static void
some_column_block(Product *p, Affine block)
{
	LoopBuilder *lb = p->lw->lb;
	const Tiling *t = &p->columns;
	int64_t full = t->shape.at[t->axis] / t->count, rest = t->shape.at[t->axis] % t->count;
	int64_t width = t->count * t->inside;

	if (rest == 0 && full % p->group == 0) {
		column_block(p, affine_add(p->repeat, affine_scale(block, width)), t->count);
		return;
	}
	LoopValue at = lb_affine(lb, block), end = lb_int(lb, S64, full);
	lb_if(lb, lb_compare(lb, LOOP_lt, at, end));
	LoopValue inner = lb_binary(lb, LOOP_min, at, lb_int(lb, S64, full - 1));
	lb_within(lb, inner, full);
	column_block(p, affine_add(p->repeat, affine_scale(affine_scalar(inner), width)), t->count);
	lb_end(lb);
	if (rest == 0)
		return;
	lb_if(lb, lb_compare(lb, LOOP_eq, at, end));
	column_block(p, affine_add(p->repeat, affine_constant(full * width)), rest);
	lb_end(lb);
}

/* A block of k for all panels of the group. */
static void
depth_block(void *ctx, Affine first, int64_t count)
{
	Product *p = ctx;
	LoopBuilder *lb = p->lw->lb;

	p->first_k = first;
	p->depth_count = count;
	if (p->group == 1) {
		some_column_block(p, p->first_panel);
		return;
	}
	LoopValue i = lb_for(lb, LOOP_PLAIN, p->group);
	some_column_block(p, affine_add(p->first_panel, affine_scalar(i)));
	lb_end(lb);
}

static void
all_depths(Product *p)
{
	if (tiling_size(&p->depth))
		for_blocks(p->lw->lb, &p->depth, depth_block, p);
	else
		depth_block(p, affine_constant(0), 0);
}

/* So many rows from block of k to block of k, before any others. */
static void
waiting_rows(void *ctx, Affine number, int64_t size)
{
	Product *p = ctx;
	Affine first = p->first_row;
	int64_t rows = p->rows;

	p->first_row = affine_add(first, affine_scale(number, p->partial_rows));
	p->rows = size;
	all_depths(p);
	p->first_row = first;
	p->rows = rows;
}

static void
one_part(Product *p, Type shape, Affine number)
{
	LoopBuilder *lb = p->lw->lb;
	const Tiling *t = &p->columns;
	Index at;

	p->rows = p->g->m / shape->dims[1];
	index_split(lb, shape, number, &at);
	for (int i = 0; i < at.rank; i++)
		if (at.at[i].n == 1 && at.at[i].terms[0].coefficient == 1)
			lb_within(lb, at.at[i].terms[0].scalar, shape->dims[i]);
	p->batch = at.at[0];
	p->first_row = affine_scale(at.at[1], p->rows);
	p->repeat = affine_scale(at.at[2], t->shape.at[t->axis] * t->inside);
	p->first_panel = affine_scale(at.at[3], p->group);
	if (p->partial_rows)
		for_pieces(lb, p->rows, p->partial_rows, waiting_rows, p);
	else
		all_depths(p);
}

/* The parts of each, one after the other. */
static void
parallel_parts(Lower *lw, Product *list, int n)
{
	LoopBuilder *lb = lw->lb;
	Type shapes[MAX_GEMMS];
	int64_t all = 0, first = 0;

	for (int i = 0; i < n; i++)
		all += (shapes[i] = part_shape(&list[i]))->n;
	LoopValue number = lb_for(lb, LOOP_PARALLEL, all), at = number;
	for (int i = 0; i < n; first += shapes[i++]->n) {
		bool others = shapes[i]->n < all;

		if (shapes[i]->n == 0)
			continue;
		if (others) {
			LoopValue own = lb_binary(lb, LOOP_sub, number, lb_int(lb, S64, first));
			at = lb_binary(lb, LOOP_max, own, lb_int(lb, S64, 0));
			at = lb_binary(lb, LOOP_min, at, lb_int(lb, S64, shapes[i]->n - 1));
			lb_within(lb, at, shapes[i]->n);
			lb_if(lb, lb_compare(lb, LOOP_eq, own, at));
		}
		one_part(&list[i], shapes[i], affine_scalar(at));
		if (others)
			lb_end(lb);
	}
	lb_end(lb);
}

/* All products have the same. */
static void
declare_locals(LoopBuilder *lb, Product *list, int n)
{
	int64_t panel = 0, rows = 0, waiting = 0;
	Product *first = &list[0];

	for (int i = 0; i < n; i++) {
		const Product *p = &list[i];
		int64_t depth = p->depth.count ? most_depth(p) : 1;

		panel = panel > p->panel_columns * depth ? panel : p->panel_columns * depth;
		if (p->packed_rows >= 0)
			rows = rows > p->block_rows * depth ? rows : p->block_rows * depth;
		int64_t sums = p->partial_rows * p->panel_columns;
		waiting = waiting > sums ? waiting : sums;
	}
	panel = lb_local(lb, first->g->type, panel);
	rows = rows ? lb_local(lb, first->g->type, rows) : -1;
	waiting = waiting ? lb_local(lb, first->g->type, waiting) : -1;
	for (int r = 0; r < first->block_rows; r++)
		first->sums[r] = lb_local(lb, first->g->type, first->block_columns);
	for (int i = 0; i < n; i++) {
		list[i].panel = (int)panel;
		list[i].partial = list[i].partial_rows ? (int)waiting : -1;
		list[i].packed_rows = list[i].packed_rows < 0 ? -1 : (int)rows;
		memmove(list[i].sums, first->sums, sizeof(first->sums));
	}
}

void
gemm_kernel(Lower *lw, const Gemm *list, int n)
{
	Product products[MAX_GEMMS] = {product_of(lw, list)};

	for (int i = 1; i < n; i++)
		products[i] = product_of(lw, &list[i]);
	declare_locals(lw->lb, products, n);
	parallel_parts(lw, products, n);
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
