/* The blocked matrix product. Per block of columns and of k, b is packed into a local panel; of its product some rows
 * and columns at a time have their sums in local vectors, which the compiler of the kernel keeps in registers. Every
 * element is summed in the order of k, whatever the block sizes. Scheme: Goto and van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", 2008.
 *
 * In parallel go batches, blocks of columns, and where these are few, chunks of rows. */
#include "ir/ops/gemm.h"

enum { MAX_ROWS = 8, DEPTH = 256, ENOUGH_PARTS = 16, LEAST_CHUNK = 64 };
enum { LINE = 16 }; /* numbers of f32 in a line of the cache */

/* The sums in registers, in f32: rows x columns. They leave room for columns of b and an element of a, and need fewer
 * loads than multiplications. A wider panel has a read less often, but does not stay in the first cache. */
typedef struct {
	int vector_bits, rows, columns, panel;
	bool gathers; /* numbers of b that are not side by side, in one instruction */
} Registers;
static const Registers registers[] = {
	{512, 8, 32, 32, true}, /* 16 of 32 registers */
	{256, 6, 16, 64},       /* 12 of 16; narrower vectors, too */
};

/* ---- a shape in blocks of neighbouring elements: `count` steps along `axis`, with all that lies inside it */
typedef struct {
	Ints shape;
	int axis;
	int64_t inside, count;
} Tiling;

static int64_t
tiling_size(const Tiling *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->shape.n; i++)
		n *= t->shape.at[i];
	return n;
}

static Tiling
tile(const Ints *shape, int64_t most)
{
	Tiling t = {.shape = *shape, .inside = 1};

	if (t.shape.n == 0)
		t.shape = (Ints){.n = 1, .at = {1}};
	if (tiling_size(&t) == 0)
		return t;
	t.axis = t.shape.n - 1;
	while (t.axis > 0 && t.inside * t.shape.at[t.axis] <= most)
		t.inside *= t.shape.at[t.axis--];
	t.count = most / t.inside < t.shape.at[t.axis] ? most / t.inside : t.shape.at[t.axis];
	return t;
}

static bool
is_one_block(const Tiling *t)
{
	return t->axis == 0 && t->count == t->shape.at[0];
}

/* Blocks along `axis`, the last of which may be shorter, and how often that axis is repeated. */
static int64_t
blocks_along(const Tiling *t)
{
	return (t->shape.at[t->axis] + t->count - 1) / t->count;
}
static int64_t
repeats(const Tiling *t)
{
	return tiling_size(t) / (t->shape.at[t->axis] * t->inside);
}

/* Calls body for every block, in order, inside loops: its first element, and its steps along `axis`. */
static void
for_blocks(LoopBuilder *lb, const Tiling *t, void (*body)(void *ctx, Affine first, int64_t count),
           void *ctx)
{
	int64_t stride = tiling_size(t), full = t->shape.at[t->axis] / t->count;
	int64_t rest = t->shape.at[t->axis] % t->count;
	Affine first = affine_constant(0);

	for (int i = 0; i < t->axis; i++) {
		stride /= t->shape.at[i];
		LoopValue v = lb_for(lb, LOOP_PLAIN, t->shape.at[i]);
		first = affine_add(first, affine_scale(affine_scalar(v), stride));
	}
	if (full > 1) {
		LoopValue v = lb_for(lb, LOOP_PLAIN, full);
		body(ctx, affine_add(first, affine_scale(affine_scalar(v), t->count * t->inside)),
		     t->count);
		lb_end(lb);
	} else if (full) {
		body(ctx, first, t->count);
	}
	if (rest)
		body(ctx, affine_add(first, affine_constant(full * t->count * t->inside)), rest);
	for (int i = 0; i < t->axis; i++)
		lb_end(lb);
}

/* Opens a loop per axis of a block; the element's number in the block. */
static Affine
open_block(LoopBuilder *lb, const Tiling *t, int64_t count, LoopMode innermost)
{
	int64_t stride = t->inside;
	Affine at = affine_constant(0);

	for (int i = t->axis; i < t->shape.n; i++) {
		LoopMode mode = i == t->shape.n - 1 ? innermost : LOOP_PLAIN;
		LoopValue v = lb_for(lb, mode, i == t->axis ? count : t->shape.at[i]);
		at = affine_add(at, affine_scale(affine_scalar(v), stride));
		if (i + 1 < t->shape.n)
			stride /= t->shape.at[i + 1];
	}
	return at;
}

static void
close_block(LoopBuilder *lb, const Tiling *t)
{
	for (int i = t->axis; i < t->shape.n; i++)
		lb_end(lb);
}

/* ---- the product */
typedef struct {
	Lower *lw;
	const Gemm *g;
	Tiling columns, depth;
	bool bias;     /* is stored with the sums */
	bool by_lines; /* b is packed by lines of the cache */
	int64_t block_rows, block_columns, panel_columns;
	int panel, sums[MAX_ROWS], out;
	int64_t rows; /* of a chunk */
	Affine batch, first_row;
	/* of the block at hand */
	Affine first_column, first_k;
	int64_t column_count, depth_count;
} Product;

/* panel[k, j] = b(k, j) */
static void
pack_element(const Product *p, Affine k, Affine j)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue x = p->g->b(p->lw, p->g->node, p->batch, affine_add(p->first_k, k),
	                      affine_add(p->first_column, j));

	lb_store(lb, p->panel, affine_add(affine_scale(k, p->panel_columns), j), x);
}

/* Where b lies along k: a line of the cache for each column, all of it. With rows of 4 KiB all columns share lines. */
static void
pack_some_depth(const Product *p, Affine first, int64_t count)
{
	LoopBuilder *lb = p->lw->lb;
	Affine j = open_block(lb, &p->columns, p->column_count, LOOP_PLAIN);
	LoopValue k = lb_for(lb, LOOP_VECTOR, count);

	pack_element(p, affine_add(first, affine_scalar(k)), j);
	lb_end(lb);
	close_block(lb, &p->columns);
}

/* The panel of the block; what lies beyond its columns is never stored. */
static void
pack_panel(const Product *p)
{
	LoopBuilder *lb = p->lw->lb;
	int64_t depth = p->depth_count * p->depth.inside;

	if (p->by_lines && p->depth.axis == p->depth.shape.n - 1) {
		int64_t full = depth / LINE, rest = depth % LINE;
		if (full) {
			LoopValue i = lb_for(lb, LOOP_PLAIN, full);
			pack_some_depth(p, affine_scale(affine_scalar(i), LINE), LINE);
			lb_end(lb);
		}
		if (rest)
			pack_some_depth(p, affine_constant(full * LINE), rest);
		return;
	}
	Affine k = open_block(lb, &p->depth, p->depth_count, LOOP_PLAIN);
	Affine j = open_block(lb, &p->columns, p->column_count, LOOP_VECTOR);

	pack_element(p, k, j);
	close_block(lb, &p->columns);
	close_block(lb, &p->depth);
}

static Affine
place_of(const Product *p, Affine row, int r, Affine j)
{
	return p->g->c(p->lw, p->g->node, p->batch, affine_add(row, affine_constant(r)),
	               affine_add(p->first_column, j));
}

/* Sums in registers: of so many rows and columns of the panel's product. */
typedef struct {
	Affine row, column; /* column: within the panel */
	int rows;
	int64_t columns;
} Block;

/* sums[r][j] = 0, or what earlier blocks of k left in c */
static void
start_sums(const Product *p, const Block *b)
{
	LoopBuilder *lb = p->lw->lb;
	bool zero = is_one_block(&p->depth);
	LoopValue j = lb_for(lb, LOOP_VECTOR, zero ? p->block_columns : b->columns);

	for (int r = 0; r < b->rows; r++)
		lb_store(lb, p->sums[r], affine_scalar(j),
		         zero ? lb_number(lb, p->g->type, 0)
		              : lb_load(lb, p->out,
		                        place_of(p, b->row, r,
		                                 affine_add(b->column, affine_scalar(j)))));
	lb_end(lb);
}

static void
multiply(const Product *p, const Block *b)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue x[MAX_ROWS];

	Affine k = open_block(lb, &p->depth, p->depth_count, LOOP_PLAIN);
	for (int r = 0; r < b->rows; r++)
		x[r] = p->g->a(p->lw, p->g->node, p->batch, affine_add(b->row, affine_constant(r)),
		               affine_add(p->first_k, k));
	LoopValue j = lb_for(lb, LOOP_VECTOR, p->block_columns);
	Affine at = affine_add(b->column, affine_scalar(j));
	LoopValue y = lb_load(lb, p->panel, affine_add(affine_scale(k, p->panel_columns), at));
	for (int r = 0; r < b->rows; r++) {
		LoopValue sum = lb_load(lb, p->sums[r], affine_scalar(j));
		if (dtype_is_float(p->g->type))
			sum = lb_op(lb, LOOP_fma, p->g->type, (LoopValue[]){x[r], y, sum});
		else
			sum = lb_binary(lb, LOOP_add, sum, lb_binary(lb, LOOP_mul, x[r], y));
		lb_store(lb, p->sums[r], affine_scalar(j), sum);
	}
	lb_end(lb);
	close_block(lb, &p->depth);
}

/* c = the sums, with the bias if these are all. */
static void
finish_sums(const Product *p, const Block *b)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue j = lb_for(lb, LOOP_VECTOR, b->columns);

	for (int r = 0; r < b->rows; r++) {
		Affine place = place_of(p, b->row, r, affine_add(b->column, affine_scalar(j)));
		LoopValue sum = lb_load(lb, p->sums[r], affine_scalar(j));
		if (is_one_block(&p->depth))
			sum = lower_stored_element(p->lw, p->g->node, place, sum);
		lb_store(lb, p->out, place, sum);
	}
	lb_end(lb);
}

static void
register_block(const Product *p, const Block *b)
{
	start_sums(p, b);
	multiply(p, b);
	finish_sums(p, b);
}

static void
row_block(const Product *p, Affine row, int rows)
{
	LoopBuilder *lb = p->lw->lb;
	int64_t columns = p->column_count * p->columns.inside;
	int64_t full = columns / p->block_columns, rest = columns % p->block_columns;
	Block b = {.row = row, .rows = rows, .column = affine_constant(0)};

	b.columns = p->block_columns;
	if (full > 1) {
		LoopValue i = lb_for(lb, LOOP_PLAIN, full);
		b.column = affine_scale(affine_scalar(i), p->block_columns);
		register_block(p, &b);
		lb_end(lb);
	} else if (full) {
		register_block(p, &b);
	}
	if (rest) {
		b.column = affine_constant(full * p->block_columns);
		b.columns = rest;
		register_block(p, &b);
	}
}

static void
depth_block(void *ctx, Affine first, int64_t count)
{
	Product *p = ctx;
	LoopBuilder *lb = p->lw->lb;
	int64_t full = p->rows / p->block_rows, rest = p->rows % p->block_rows;

	p->first_k = first;
	p->depth_count = count;
	pack_panel(p);
	if (full) {
		LoopValue i = lb_for(lb, LOOP_PLAIN, full);
		row_block(p,
		          affine_add(p->first_row, affine_scale(affine_scalar(i), p->block_rows)),
		          (int)p->block_rows);
		lb_end(lb);
	}
	if (rest)
		row_block(p, affine_add(p->first_row, affine_constant(full * p->block_rows)),
		          (int)rest);
}

/* Opens loops over the elements of a block of columns; their place in c. */
static Affine
open_columns(const Product *p)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue m = lb_for(lb, LOOP_PLAIN, p->rows);
	LoopValue j = lb_for(lb, LOOP_VECTOR, p->column_count * p->columns.inside);

	return place_of(p, affine_add(p->first_row, affine_scalar(m)), 0, affine_scalar(j));
}

static void
close_columns(const Product *p)
{
	lb_end(p->lw->lb);
	lb_end(p->lw->lb);
}

/* c = 0 in the block's columns */
static void
clear_columns(const Product *p)
{
	Affine place = open_columns(p);

	lb_store(p->lw->lb, p->out, place, lb_number(p->lw->lb, p->g->type, 0));
	close_columns(p);
}

/* c += bias in the block's columns, whose sums are complete */
static void
add_bias(const Product *p)
{
	Affine place = open_columns(p);
	LoopValue sum = lb_load(p->lw->lb, p->out, place);

	lb_store(p->lw->lb, p->out, place, lower_stored_element(p->lw, p->g->node, place, sum));
	close_columns(p);
}

/* All of k for one block of columns. */
static void
column_block(Product *p, Affine first, int64_t count)
{
	p->first_column = first;
	p->column_count = count;
	bool in_parts = !is_one_block(&p->depth) || tiling_size(&p->depth) == 0;
	if (in_parts)
		clear_columns(p);
	if (tiling_size(&p->depth))
		for_blocks(p->lw->lb, &p->depth, depth_block, p);
	if (in_parts && p->bias)
		add_bias(p);
}

/* The same for block number `block` along the axis: full blocks, and the rest if that is what it is. */
static void
some_column_block(Product *p, Affine first, Affine block)
{
	LoopBuilder *lb = p->lw->lb;
	const Tiling *t = &p->columns;
	int64_t full = t->shape.at[t->axis] / t->count, rest = t->shape.at[t->axis] % t->count;

	if (rest == 0) {
		column_block(p, affine_add(first, affine_scale(block, t->count * t->inside)),
		             t->count);
		return;
	}
	LoopValue at = lb_affine(lb, block), end = lb_int(lb, S64, full);
	lb_if(lb, lb_compare(lb, LOOP_lt, at, end));
	LoopValue inner = lb_binary(lb, LOOP_min, at, lb_int(lb, S64, full - 1));
	lb_within(lb, inner, full);
	column_block(p, affine_add(first, affine_scale(affine_scalar(inner), t->count * t->inside)),
	             t->count);
	lb_end(lb);
	lb_if(lb, lb_compare(lb, LOOP_eq, at, end));
	column_block(p, affine_add(first, affine_constant(full * t->count * t->inside)), rest);
	lb_end(lb);
}

/* In how many chunks the rows go when there are `parts` parts without: all are equal. */
static int64_t
row_chunks(int64_t rows, int64_t parts)
{
	int64_t n = parts < ENOUGH_PARTS ? ENOUGH_PARTS / parts : 1;

	while (n > 1 && (rows % n != 0 || rows / n < LEAST_CHUNK))
		n--;
	return n;
}

/* Opens the parallel loop and splits its variable: batch, row chunk, repeat of the columns' axis, block. */
static void
parallel_parts(Product *p)
{
	LoopBuilder *lb = p->lw->lb;
	const Gemm *g = p->g;
	int64_t blocks = blocks_along(&p->columns), repeated = repeats(&p->columns);
	int64_t chunks = row_chunks(g->m, g->batch * repeated * blocks);
	int64_t dims[] = {g->batch, chunks, repeated, blocks}, n = chunks * repeated * blocks;
	Index at;

	p->rows = g->m / chunks;
	LoopValue v = lb_for(lb, LOOP_PARALLEL, g->batch * n);
	index_split(lb, type_new(p->lw->m, S64, COUNT(dims), dims), affine_scalar(v), &at);
	for (int i = 0; i < COUNT(dims); i++)
		if (at.at[i].n == 1 && at.at[i].terms[0].coefficient == 1)
			lb_within(lb, at.at[i].terms[0].scalar, dims[i]);
	p->batch = at.at[0];
	p->first_row = affine_scale(at.at[1], p->rows);
	some_column_block(
		p, affine_scale(at.at[2], p->columns.shape.at[p->columns.axis] * p->columns.inside),
		at.at[3]);
	lb_end(lb);
}

void
gemm_kernel(Lower *lw, const Gemm *g)
{
	LoopBuilder *lb = lw->lb;
	const Registers *r = registers;
	int wide = dtype_info[g->type].bits == 64 ? 2 : 1;

	while (r->vector_bits > lw->vector_bits && r < registers + COUNT(registers) - 1)
		r++;
	Product p = {.lw = lw,
	             .g = g,
	             .by_lines = g->b_along_k && !r->gathers,
	             .block_rows = r->rows,
	             .block_columns = r->columns / wide,
	             .panel_columns = r->panel / wide};
	p.columns = tile(&g->n, p.panel_columns);
	p.depth = tile(&g->k, DEPTH);
	p.out = lower_buffer(lw, lower_stored(lw));
	p.bias = lower_stored(lw) != node_result(g->node, 0);
	p.panel = lb_local(lb, g->type,
	                   p.panel_columns * (p.depth.count ? p.depth.count * p.depth.inside : 1));
	for (int i = 0; i < r->rows; i++)
		p.sums[i] = lb_local(lb, g->type, p.block_columns);
	if (tiling_size(&p.columns) && g->batch) {
		parallel_parts(&p);
	} else {
		lb_for(lb, LOOP_PARALLEL, 0);
		lb_end(lb);
	}
}

Value *
added_vector(const Node *n, const Node *reader, int axis)
{
	Value *z = node_result(n, 0);

	if (reader->op != OP_add || !value_used_once(z))
		return NULL;
	const Node *other = node_operand(reader, node_operand(reader, 0) == z)->node;
	if (!other || other->op != OP_broadcast)
		return NULL;
	const Ints *axes = &((BroadcastAttr *)other->attr)->axes;
	return axes->n == 1 && axes->at[0] == axis ? node_operand(other, 0) : NULL;
}

void
library_put(LibraryCall *c, int n, const int64_t *x)
{
	for (int i = 0; i < n; i++)
		c->at[c->n++] = x[i];
}

bool
library_put_bias(Lower *lw, const Node *n, LibraryCall *c)
{
	const Value *v = lower_stored(lw);
	Strided s = {.buffer = -1};

	if (v->node != n) {
		if (!lower_strided(lw, bias_of(v->node), &s) || s.strides[0] > 1)
			return false;
	}
	library_put(c, 2, (int64_t[]){s.buffer + 1, s.offset});
	return true;
}
