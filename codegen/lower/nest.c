/* Makes the loops of a kernel. The kernel's elements have flat numbers from 0 on. These numbers
 * are divided into nested loops, with a cut wherever an axis of a view begins. So the index of
 * every value is affine in the loop variables. Example: a transpose of f32[4,6] needs a loop of 4
 * and one of 6. A sum of two such values needs only one of 24 (GPUs; on CPUs, every axis gets a
 * loop). */
#include "codegen/lower/nest.h"

#include <string.h>

/* Cut points in ascending order: the first is 1, the last is the size, and each divides the
 * next. If a nest has no room for another loop, the cut is left out; the index then needs a
 * division. */
typedef struct {
	int n, room;
	int64_t at[MAX_NEST + 1];
} Cuts;

static Cuts
cuts_of(int64_t size, int max_loops)
{
	return (Cuts){.n = 2, .room = max_loops + 1, .at = {1, size}};
}

static void
cut_at(Cuts *c, int64_t x)
{
	int i = 0;

	while (i < c->n && c->at[i] < x)
		i++;
	if (i == 0 || i == c->n || c->at[i] == x || x % c->at[i - 1] || c->at[i] % x ||
	    c->n >= c->room)
		return;
	memmove(c->at + i + 1, c->at + i, sizeof(int64_t) * (size_t)(c->n - i));
	c->at[i] = x;
	c->n++;
}

static void
cut_at_axes(Cuts *c, Type t)
{
	int64_t stride = 1;

	for (int i = t->rank - 1; i >= 0; stride *= t->dims[i--])
		cut_at(c, stride);
}

static bool
is_repeated(const BroadcastAttr *a, int axis)
{
	for (int i = 0; i < a->axes.n; i++)
		if (a->axes.at[i] == axis)
			return false;
	return true;
}

/* Adds the cuts that a broadcast needs. Trailing axes along which one number is repeated need no
 * cuts between them. Example: if images get one number per channel, there is a cut between
 * channels and rows, but none between rows and columns. */
static void
cut_before_repeats(Cuts *c, Type t, const BroadcastAttr *a)
{
	bool repeats = true; /* are axis i and all axes after it repeated? */
	int64_t stride = 1;

	for (int i = t->rank - 1; i >= 0; stride *= t->dims[i--]) {
		repeats &= is_repeated(a, i);
		if (!repeats)
			cut_at(c, stride);
	}
}

/* Does n keep the order of its operand's elements, or repeat a single number? Then no cut is
 * needed for the axes of n. */
static bool
needs_no_axes(const Node *n)
{
	double number;

	return n->op == OP_barrier || value_splat(node_result(n, 0), &number);
}

static bool
wants_axes(const Node *n)
{
	FuseClass c = op_row(n)->fuse;

	return c == FUSE_INDEX || (c == FUSE_VIEW && n->op != OP_reshape);
}

/* Adds cuts at the axes of the values marked in `inside` (by value id), which have an element for
 * each iteration. Also marks values from which marked values are computed element by element.
 * Nodes are visited from the last to the first. If the axes of two views do not fit together,
 * such as two transposes in a row, the later view's axes are cut and the earlier view's index is
 * computed from them.
 *
 * Members of a team share the innermost loop, which should therefore be long, so teams leave out
 * cuts that no index needs. On CPUs every axis is cut: the loops decide the order of additions,
 * and the bits of sums must not change. */
static void
cut_by_nodes(Cuts *c, const Lower *lw, bool *inside)
{
	const Function *f = lw->f;
	bool teams = lw->target->kind == TARGET_TEAMS;

	for_each_node_reverse(f, n) {
		FuseClass class = op_row(n)->fuse;
		const Value *y = n->n_results ? node_result(n, 0) : NULL;
		if (!y || !inside[y->id])
			continue;
		if (teams && n->op == OP_broadcast)
			cut_before_repeats(c, y->type, n->attr);
		else if (wants_axes(n) && !(teams && needs_no_axes(n)))
			cut_at_axes(c, y->type);
		for (int i = 0; i < n->n_operands; i++) {
			const Value *x = node_operand(n, i);
			if (class == FUSE_ELEMENTWISE ||
			    (class == FUSE_VIEW && x->type->n == y->type->n))
				inside[x->id] = true;
		}
	}
}

static bool *
values_of_space(const Function *f, const Spaces *spaces, IterSpace s, Arena *arena)
{
	bool *inside = NEW_ARRAY(arena, bool, f->next_value_id);

	for (uint32_t i = 0; i < f->next_value_id; i++)
		inside[i] = spaces->of[i] == s;
	return inside;
}

/* For a part of a result that is written in parts (concat, pad): marks all values with as many
 * elements as the part. A marked value may have nothing to do with the part; this costs only an
 * extra loop. */
static bool *
values_of_size(const Function *f, int64_t size, Arena *arena)
{
	bool *inside = NEW_ARRAY(arena, bool, f->next_value_id);

	for_each_node(f, n)
		for (int i = 0; i < n->n_results; i++)
			inside[node_result(n, i)->id] = node_result(n, i)->type->n == size;
	return inside;
}

static LoopNest
nest_of_cuts(const Cuts *c)
{
	LoopNest nest = {0};

	for (int i = c->n - 1; i > 0; i--)
		nest.at[nest.n++] = (LoopDim){.extent = c->at[i] / c->at[i - 1],
		                              .full = c->at[i - 1]};
	return nest;
}

LoopNest
nest_elementwise(const Lower *lw, const Spaces *spaces)
{
	int64_t n = spaces->domain.elements[ITER_FULL];
	Cuts c = cuts_of(n, MAX_RANK);

	if (n == 0)
		return (LoopNest){.n = 1, .at = {{.extent = 0, .full = 1}}};
	if (n == 1)
		return (LoopNest){0};
	cut_by_nodes(&c, lw, values_of_space(lw->f, spaces, ITER_FULL, lw->state->scratch));
	return nest_of_cuts(&c);
}

LoopNest
nest_part(const Lower *lw, Type shape, int64_t rows)
{
	Cuts c = cuts_of(shape->n / rows, MAX_RANK);

	if (shape->n == rows)
		return (LoopNest){0};
	cut_at_axes(&c, shape);
	cut_by_nodes(&c, lw, values_of_size(lw->f, shape->n, lw->state->scratch));
	return nest_of_cuts(&c);
}

/* Adds the loops of one run of axes. The run has `extent` iterations; neighbouring iterations are
 * `stride` elements apart. The run is cut where `full` has cuts of the flat numbers, and where
 * `rows` has cuts of the row numbers. */
static void
add_run(LoopNest *nest, const Cuts *full, const Cuts *rows, int64_t stride, int64_t extent,
        int64_t row_stride, int64_t chunk_rows, bool reduced)
{
	Cuts c = cuts_of(extent, MAX_NEST - nest->n);

	/* Cuts of rows come first, because the cut between chunks is required. */
	for (int i = 0; !reduced && i < rows->n; i++)
		if (rows->at[i] % row_stride == 0)
			cut_at(&c, rows->at[i] / row_stride);
	for (int i = 0; i < full->n; i++)
		if (full->at[i] % stride == 0)
			cut_at(&c, full->at[i] / stride);
	for (int i = c.n - 1; i > 0; i--) {
		LoopDim d = {.extent = c.at[i] / c.at[i - 1],
		             .full = stride * c.at[i - 1],
		             .reduced = reduced};
		d.row = reduced ? 0 : row_stride * c.at[i - 1];
		d.chunk = d.row && chunk_rows && d.row >= chunk_rows ? d.row / chunk_rows : 0;
		nest->at[nest->n++] = d;
	}
}

LoopNest
nest_reduce(const Lower *lw, const Spaces *spaces)
{
	Arena *arena = lw->state->scratch;
	LoopNest nest = {0};
	const ReduceForm *form = &spaces->domain.reduction[ITER_FULL];
	const int64_t *elements = spaces->domain.elements;
	int64_t full = elements[ITER_FULL], rows = elements[ITER_ROWS];
	bool columns = spaces->domain.columns.n > 0;
	int64_t chunk_rows = columns                 ? spaces->domain.columns.extent[1]
	                     : elements[ITER_CHUNKS] ? rows / elements[ITER_CHUNKS]
	                                             : 0;

	/* Each run needs one loop. Of the remaining room, half is for cuts of flat numbers and
	 * half for cuts of row numbers. */
	int more = (MAX_NEST - form->n) / 2;
	Cuts uncut = cuts_of(full, 1), full_cuts = cuts_of(full, 1 + more),
	     row_cuts = cuts_of(rows, 1 + more);
	cut_by_nodes(&full_cuts, lw, values_of_space(lw->f, spaces, ITER_FULL, arena));
	if (chunk_rows > 1)
		cut_at(&row_cuts, chunk_rows);
	cut_by_nodes(&row_cuts, lw, values_of_space(lw->f, spaces, ITER_ROWS, arena));
	for (int pass = 0; pass < 2; pass++) {
		int64_t stride = full, row_stride = rows;
		for (int i = 0; i < form->n; i++) {
			/* members keep sums of their own columns, so one loop runs over all columns */
			const Cuts *cuts = columns && form->reduced[i] ? &uncut : &full_cuts;
			stride /= form->extent[i] ? form->extent[i] : 1;
			row_stride /= !form->reduced[i] && form->extent[i] ? form->extent[i] : 1;
			if (form->reduced[i] == (pass == 1))
				add_run(&nest, cuts, &row_cuts, stride, form->extent[i], row_stride,
				        chunk_rows, form->reduced[i]);
		}
	}
	return nest;
}

bool
nest_cut(LoopNest *nest, int at, int64_t block)
{
	LoopDim d = nest->at[at], blocks = d;

	if (block >= d.extent || nest->n == MAX_NEST)
		return false;
	LoopDim *inner = at + 1 < nest->n && nest->at[at + 1].whole ? &nest->at[at + 1] : NULL;
	if (inner && inner->before)
		return false;
	if (inner)
		inner->before = block;
	memmove(nest->at + at + 2, nest->at + at + 1, sizeof(d) * (size_t)(nest->n - at - 1));
	blocks.extent = ceil_div(d.extent, block);
	blocks.full *= block;
	blocks.row *= block;
	blocks.chunk *= block;
	d.whole = d.extent % block ? d.extent : 0;
	d.extent = block;
	nest->at[at] = blocks;
	nest->at[at + 1] = d;
	nest->n++;
	return true;
}

void
nest_move(LoopNest *nest, int from, int to)
{
	LoopDim d = nest->at[from];

	for (; from < to; from++)
		nest->at[from] = nest->at[from + 1];
	for (; from > to; from--)
		nest->at[from] = nest->at[from - 1];
	nest->at[to] = d;
}

/* A block size for a loop that is longer than `about`: a divisor of the extent from about / 2 to
 * `about`, or else `about` itself; in both cases rounded to a multiple of `step`. A shorter loop
 * is one block. */
static int64_t
block_near(int64_t extent, int64_t about, int64_t step)
{
	if (extent <= about)
		return extent;
	about = about < step ? step : about / step * step;
	for (int64_t block = about; block > 0 && block >= about / 2; block -= step)
		if (extent % block == 0)
			return block;
	return about;
}

/* The largest block size up to `about` that is UNIT_BLOCK divided by a power of two. So a block
 * never crosses a multiple of UNIT_BLOCK elements, at which states are divided among ranks, and a
 * rank can run the kernel for its own blocks only. */
static int64_t
block_of_units(int64_t about)
{
	int64_t block = UNIT_BLOCK;

	while (block > about)
		block /= 2;
	return block;
}

static int64_t
clamp(int64_t x, int64_t low, int64_t high)
{
	return x < low ? low : x > high ? high : x;
}

int
nest_parallel(LoopNest *nest, int n, const LanesLoop *lanes, const Lower *lw)
{
	int64_t parts = lw->parts, least = lw->target->tuning->grains.least_part;
	int64_t found = 1, inside = nest->again ? nest->again : 1;
	int i = 0, loops = nest->n;

	for (int k = 0; k < loops; k++)
		inside *= nest->at[k].extent;
	for (; i < n && inside > 0 && (i == 0 || found < parts); i++) {
		int64_t extent = nest->at[i].extent, each = inside / extent;
		if (lanes && i == lanes->at) {
			int64_t even = extent / (ceil_div(parts, found));
			int64_t about = clamp(even, lanes->least, lanes->most);
			bool units = loops == 1 && extent % UNIT_BLOCK == 0;
			nest_cut(nest, i,
			         units ? block_of_units(about)
			               : block_near(extent, about, LOOP_LANES));
			return nest->n > loops ? i + 1 : i;
		}
		if (i > 0 && each < least) {
			nest_cut(nest, i, block_near(extent, least / each, 1));
			return nest->n > loops ? i + 1 : i;
		}
		found *= extent;
		inside = each;
	}
	if (lanes && lanes->array)
		nest_cut(nest, lanes->at,
		         block_near(nest->at[lanes->at].extent, lanes->most, LOOP_LANES));
	return i;
}

Affine
nest_left(LoopBuilder *lb, const LoopDim *d)
{
	const LoopDim *of = d - 1 - d->apart;
	Affine block = affine_scalar(lb, of->variable);

	if (d->before)
		block = affine_add_scaled(lb, block, affine_scalar(lb, of[-1].variable), d->before);
	return affine_plus(affine_scale(lb, block, -d->extent), d->whole);
}

LoopValue
nest_open(LoopBuilder *lb, LoopNest *nest, int at, LoopMode mode)
{
	LoopDim *d = &nest->at[at];

	d->variable = d->whole ? lb_for_below(lb, mode, d->extent, nest_left(lb, d))
	                       : lb_for(lb, mode, d->extent);
	return d->variable;
}
