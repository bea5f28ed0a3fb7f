/* Kernels that write their result in parts, one after the other (concat, pad). The parts have
 * their first axes in common; loops over these axes stand around all parts and are parallel. If
 * that gives too few parallel iterations and the parts do not overlap, each part is cut into
 * blocks, the blocks of all parts are numbered, and blocks run in parallel as well. */
#include "codegen/lower/nest.h"

/* Opens loops over the first `axes` axes, the outer ones parallel until there are enough parallel
 * iterations. Returns how many are parallel. */
static int
open_rows(Lower *lw, Type t, int axes)
{
	LoopBuilder *lb = lw->lb;
	struct LowerState *st = lw->state;
	LoopNest nest = {0};
	int64_t inside = t->n;
	int common = 0;

	for (int i = 0; i < t->rank && t->n; i++) {
		common += i < axes && t->dims[i] > 1;
		inside /= t->dims[i];
		if (t->dims[i] > 1)
			nest.at[nest.n++] = (LoopDim){.extent = t->dims[i], .full = inside};
	}
	int loops = nest.n, parallel = nest_parallel(&nest, common, NULL, lw);
	st->row_loops = parallel + (nest.n > loops); /* the loop within a block counts, too */
	st->rows = st->row_loops ? t->n / nest.at[st->row_loops - 1].full : 1;
	st->row = affine_constant(0);
	for (int i = 0; i < st->row_loops; i++) {
		LoopValue v = nest_open(lb, &nest, i, i < parallel ? LOOP_PARALLEL : LOOP_PLAIN);
		int64_t rows = nest.at[i].full / (t->n / st->rows);
		st->row = affine_add_scaled(lb, st->row, affine_scalar(lb, v), rows);
	}
	return parallel;
}

/* Opens a loop over the numbered blocks of all parts. */
static void
open_blocks(Lower *lw)
{
	struct LowerState *st = lw->state;

	st->first_block = 0;
	if (st->blocks > 1) {
		st->block = lb_for(lw->lb, LOOP_PARALLEL, st->blocks);
		st->row_loops++;
	}
}

static void
count_blocks(Lower *lw, const Node *n)
{
	lw->state->blocks = 0;
	lw->state->counts_blocks = true;
	op_row(n)->parts(lw, n);
	lw->state->counts_blocks = false;
}

/* If a part is transposed, or its rows are too short to keep a team busy, all parts are cut into squares.
 * The parts then have no row loops in common, and each square is a block. */
static bool
open_squares(Lower *lw, const Node *n)
{
	struct LowerState *st = lw->state;

	if (lw->lb->k->n_team == 0)
		return false;
	st->rows = 1;
	st->row_loops = 0;
	st->row = affine_constant(0);
	st->block_elements = lw->target->tuning->grains.least_part;
	st->wants_squares = false;
	st->squares = true;
	count_blocks(lw, n);
	st->squares = st->wants_squares;
	if (!st->squares)
		return false;
	squares_begin(lw);
	open_blocks(lw);
	return true;
}

void
kernel_open_parts(Lower *lw, const Node *n, int axes, bool apart)
{
	struct LowerState *st = lw->state;
	Type t = node_result(n, 0)->type;

	if (st->counts_blocks)
		return;
	team_begin(lw);
	st->overlap = !apart;
	if (apart && open_squares(lw, n))
		return;
	int parallel = open_rows(lw, t, axes);
	st->blocks = 0;
	if (!apart || st->rows >= lw->parts || parallel < st->row_loops)
		return;
	st->block_elements = t->n / st->rows / ceil_div(lw->parts, st->rows);
	count_blocks(lw, n);
	open_blocks(lw);
}

void
kernel_close_parts(Lower *lw)
{
	if (lw->state->counts_blocks)
		return;
	for (int i = 0; i < lw->state->row_loops; i++)
		lb_end(lw->lb);
	lw->state->rows = lw->state->blocks = 0;
}

/* Iterations of a part's outermost loop in one block. */
static int64_t
block_length(const Lower *lw, const LoopNest *nest)
{
	const struct LowerState *st = lw->state;
	int64_t least = lw->target->tuning->grains.least_part;
	int64_t step = nest->n == 1 ? LOOP_LANES : 1, n = st->block_elements / nest->at[0].full;

	n = n < least / nest->at[0].full ? least / nest->at[0].full : n;
	n = n < 1 ? 1 : n;
	n = ceil_div(n, step) * step;
	return n < nest->at[0].extent ? n : nest->at[0].extent;
}

/* The current block: a range of iterations of a part's outermost loop. */
typedef struct {
	int64_t length;
	bool shorter; /* the last block is shorter and ends below `end` */
	Affine first, end;
} Block;

/* Opens a condition that is true for the blocks of this part. The number of the block within the
 * part is clamped, so that places lie within the part even where the condition is false. */
static Block
if_own_block(Lower *lw, int64_t extent, int64_t length, int64_t blocks)
{
	struct LowerState *st = lw->state;
	LoopBuilder *lb = lw->lb;
	LoopValue zero = lb_int(lb, S64, 0);
	LoopValue own = lb_affine(lb, affine_plus(affine_scalar(lb, st->block), -st->first_block));
	LoopValue inside = lb_binary(lb, LOOP_and, lb_compare(lb, LOOP_ge, own, zero),
	                             lb_compare(lb, LOOP_lt, own, lb_int(lb, S64, blocks)));
	LoopValue at = lb_binary(lb, LOOP_min, lb_binary(lb, LOOP_max, own, zero),
	                         lb_int(lb, S64, blocks - 1));

	lb_within(lb, at, blocks);
	lb_if(lb, inside);
	Block b = {.length = length,
	           .shorter = extent % length != 0,
	           .first = affine_scale(lb, affine_scalar(lb, at), length)};
	b.end = affine_plus(affine_scale(lb, b.first, -1), extent);
	return b;
}

/* For a part without squares in a divided team: the first group of threads computes the part.
 * Returns how many loops that opened. */
static int
open_first_member(LoopBuilder *lb)
{
	int loops = 1;

	if (lb->k->n_team < 2)
		return 0;
	Affine member = affine_scalar(lb, lb_for(lb, LOOP_TEAM, lb->k->team[0]));
	nest_if_below(lb, member, affine_constant(1), &loops);
	return loops;
}

/* Opens the loops of a part, or of one block of its outermost loop. Returns the flat number of the current
 * element. */
static Affine
open_loops(Lower *lw, const LoopNest *nest, const Block *block, Spread *lane)
{
	LoopBuilder *lb = lw->lb;
	Affine flat = affine_constant(0);

	for (int i = 0; i < nest->n; i++) {
		bool cut = i == 0 && block->length;
		int64_t extent = cut ? block->length : nest->at[i].extent;
		const Affine *below = cut && block->shorter ? &block->end : NULL;
		Affine at;
		if (i == nest->n - 1) {
			*lane = spread_open(lw, extent, below);
			at = spread_enter(lane);
		} else {
			at = affine_scalar(lb, below ? lb_for_below(lb, LOOP_PLAIN, extent, *below)
			                             : lb_for(lb, LOOP_PLAIN, extent));
		}
		at = cut ? affine_add(lb, block->first, at) : at;
		flat = affine_add_scaled(lb, flat, at, nest->at[i].full);
	}
	return flat;
}

/* The arguments of kernel_part (below). */
typedef struct {
	const Node *n;
	Type shape;
	LoopValue (*element)(Lower *lw, const Node *n, const Index *at, const void *ctx);
	void (*place)(Lower *lw, const Node *n, const Index *at, Index *out, const void *ctx);
	const void *ctx;
} Part;

/* flat: number of the element within a row. */
static void
store_element(Lower *lw, Affine flat, const void *ctx)
{
	LoopBuilder *lb = lw->lb;
	const struct LowerState *st = lw->state;
	const Part *p = ctx;
	Type y = node_result(p->n, 0)->type;
	Affine row = affine_scale(lb, st->row, p->shape->n / st->rows);
	Index at = index_at(lw, p->shape, affine_add(lb, row, flat)), out;

	p->place(lw, p->n, &at, &out, p->ctx);
	lb_store(lb, lower_buffer(lw, node_result(p->n, 0)), index_flat(lb, y, &out),
	         p->element(lw, p->n, &at, p->ctx));
}

/* Emits the loops that store the part: the current block of `length` iterations if the part has
 * `blocks`, otherwise all of it. */
static void
store_blocks(Lower *lw, LoopNest *nest, const Part *p, int64_t length, int64_t blocks)
{
	LoopBuilder *lb = lw->lb;
	bool in_blocks = lw->state->blocks > 1;
	Block block = {0};
	Spread lane = {0};

	if (in_blocks && nest->n == 0) /* a part of one element */
		nest->at[nest->n++] = (LoopDim){.extent = 1, .full = 1};
	if (in_blocks)
		block = if_own_block(lw, nest->at[0].extent, length, blocks);
	int loops = nest->n ? open_first_member(lb) : 0;
	store_element(lw, open_loops(lw, nest, &block, &lane), p);
	if (nest->n)
		spread_close(&lane);
	for (int i = 1; i < nest->n + loops; i++)
		lb_end(lb);
	if (in_blocks)
		lb_end(lb);
}

static void
store_squares(Lower *lw, const LoopNest *nest, const Part *p, const Squares *s, int64_t blocks)
{
	Affine number = affine_constant(0);

	if (lw->state->blocks > 1)
		number = if_own_block(lw, blocks, 1, blocks).first;
	lower_square(lw, nest, s, number, store_element, p);
	if (lw->state->blocks > 1)
		lb_end(lw->lb);
}

/* The nest has only one loop: cuts it into two, because a square has two sides. */
static void
cut_evenly(LoopNest *nest)
{
	int64_t n = nest->at[0].extent;

	for (int64_t side = SQUARE_SIDE; side >= LEAST_SQUARE_SIDE; side--)
		if (n % side == 0 && nest_cut(nest, 0, side))
			return;
}

/* Can this part be cut into squares? */
static bool
squares_of_part(Lower *lw, LoopNest *nest, const Part *part, Squares *out)
{
	struct LowerState *st = lw->state;

	if (!st->squares)
		return false;
	if (nest->n == 1)
		cut_evenly(nest);
	if (nest->n < 2)
		return false;
	NestProbe p = nest_probe(lw, nest);
	store_element(lw, p.flat, part);
	nest_probe_end(lw, nest, &p);
	if (!nest_squares(lw, nest, &p, out))
		return false;
	int64_t busy = (int64_t)lw->lb->k->team[0] * team_vector(lw);
	bool is_short = 2 * nest->at[nest->n - 1].extent <= busy && nest->at[out->down].extent > 1;
	st->wants_squares |= out->n > 0 || is_short;
	if (st->counts_blocks)
		squares_want(lw, out);
	return true;
}

void
kernel_part(Lower *lw, const Node *n, Type shape,
            LoopValue (*element)(Lower *lw, const Node *n, const Index *at, const void *ctx),
            void (*place)(Lower *lw, const Node *n, const Index *at, Index *out, const void *ctx),
            const void *ctx)
{
	struct LowerState *st = lw->state;
	const Part part = {n, shape, element, place, ctx};
	Squares s;

	if (shape->n == 0)
		return;
	LoopNest nest = nest_part(lw, shape, st->rows);
	bool squares = squares_of_part(lw, &nest, &part, &s);
	int64_t length = nest.n && !squares ? block_length(lw, &nest) : 1;
	int64_t blocks = squares  ? squares_count(lw, &nest, &s)
	                 : nest.n ? ceil_div(nest.at[0].extent, length)
	                          : 1;
	if (st->counts_blocks) {
		st->blocks += blocks;
		return;
	}
	if (squares)
		store_squares(lw, &nest, &part, &s, blocks);
	else
		store_blocks(lw, &nest, &part, length, blocks);
	if (st->overlap)
		lb_barrier(lw->lb);
	st->first_block += blocks;
}
