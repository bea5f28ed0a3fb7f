/* Emits the blocked matrix product for a team of GPU threads (members). A part is a block of the
 * result; the block's sums are a tile. Along k, the axis that is summed over, blocks of both
 * operands are copied to arrays in team memory. Each array has room for two blocks (two stages):
 * the next block is copied while the current block is multiplied.
 *
 *	for s < blocks of k + 1:
 *	  wait, barrier             block s - 1 has arrived, and nobody reads block s - 2 any more
 *	  copies of block s, or loads into private arrays
 *	  mma of block s - 1
 *	  private arrays are stored to the stage of block s
 *
 * An operand whose elements are plain loads is copied, 16 bytes by one instruction if they are
 * contiguous. Computed elements are first stored to private arrays of the members. Each sum adds
 * its products in the order of k. If k is not a multiple of the block's depth, the last mma adds
 * only the remaining products, no zeros. Beyond the last row and column, the arrays hold zeros or
 * other data; sums computed from these are not stored. */
#include "codegen/kernels/product/emit.h"
#include "codegen/lower/lower.h"

/* ---- arrays */
static int64_t
row_of(const BlockedProduct *e, const ProductSide *s)
{
	return s->along_k ? e->depth : s->across;
}

static int64_t
stage_of(const BlockedProduct *e, const ProductSide *s)
{
	return s->across * e->depth;
}

/* How many units (copies of a few elements) of a block one member makes. */
static int64_t
units_of(const BlockedProduct *e, const ProductSide *s)
{
	return stage_of(e, s) / s->unit / e->block.team;
}

static void
declare_arrays(BlockedProduct *e)
{
	LoopBuilder *lb = e->lw->lb;
	static const char *const names[] = {"left", "right"};

	for (int i = 0; i < N_SIDES; i++) {
		ProductSide *s = &e->sides[i];
		int64_t row = row_of(e, s), dims[] = {STAGES, stage_of(e, s) / row, row};
		s->array = lb_padded(lb, names[i], type_new(lb->m, s->type, COUNT(dims), dims),
		                     block_pad(s));
		s->held = s->copied ? -1 : lb_private(lb, s->type, units_of(e, s));
	}
	e->sums = lb_tile(lb, "sum", e->p->type, e->block.rows, e->block.columns);
}

/* ---- a block of k arrives */
/* A unit (a few elements that one instruction copies). place: its first element's place in the
 * stage; across, k: that element's row or column, and k, in the product. */
typedef struct {
	Affine place, across, k;
} Unit;

/* The unit that member `member` copies as its unit number u: unit u * team + member of the stage.
 * first_k: first k of the block. */
static Unit
unit_of(const BlockedProduct *e, int number, Affine u, LoopValue member, Affine first_k)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductSide *s = &e->sides[number];
	int64_t units = row_of(e, s) / s->unit, rows = e->block.team / units;
	Affine all = affine_add(lb, affine_scale(lb, u, e->block.team), affine_scalar(lb, member));
	Index at;

	index_split(lb, type_new(lb->m, S64, 2, (int64_t[]){rows, units}),
	            affine_scalar(lb, member), &at);
	Affine row = affine_add(lb, affine_scale(lb, u, rows), at.at[0]);
	Affine in_row = affine_scale(lb, at.at[1], s->unit);
	return (Unit){.place = affine_scale(lb, all, s->unit),
	              .across = affine_add(lb, e->first[number], s->along_k ? row : in_row),
	              .k = affine_add(lb, first_k, s->along_k ? in_row : row)};
}

static bool
has_edge(const ProductSide *s)
{
	return s->extent % s->across != 0;
}

static void
and_below(LoopBuilder *lb, Affine place, int64_t end, LoopValue *inside)
{
	LoopValue below = lb_compare(lb, LOOP_lt, lb_affine(lb, place), lb_int(lb, S64, end));

	*inside = *inside < 0 ? below : lb_binary(lb, LOOP_and, *inside, below);
}

static void
copy_unit(const BlockedProduct *e, int number, const Unit *u, Affine stage)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductSide *s = &e->sides[number];
	LoopValue inside = -1;

	if (has_edge(s))
		and_below(lb, u->across, s->extent, &inside);
	if (e->k % e->depth)
		and_below(lb, u->k, e->k, &inside);
	LoopValue x = side_element(e, number, e->batch, u->across, u->k);
	const LoopStatement *load = lower_load(lb, x);
	int from = load->buffer;
	Affine source = *load->place;
	if (load->n_operands)
		inside = inside < 0 ? load->operands[0]
		                    : lb_binary(lb, LOOP_and, inside, load->operands[0]);
	lb_copy(lb, s->array, affine_add(lb, stage, u->place), from, source, s->unit, inside);
}

static void
hold_unit(const BlockedProduct *e, int number, const Unit *u, Affine held)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductSide *s = &e->sides[number];
	Affine across = u->across, k = u->k;
	bool edge = has_edge(s), last = e->k % e->depth != 0;

	if (edge || last)
		lb_store(lb, s->held, held, lb_number(lb, e->p->type, 0));
	if (edge)
		across = lb_open_below(lb, across, s->extent);
	if (last)
		k = lb_open_below(lb, k, e->k);
	LoopValue x = side_element(e, number, e->batch, across, k);
	lb_store(lb, s->held, held, lb_cast(lb, e->p->type, x));
	for (int i = 0; i < edge + last; i++)
		lb_end(lb);
}

/* Where the stage begins in the array. */
static Affine
stage_place(const BlockedProduct *e, int number, Affine stage)
{
	return affine_scale(e->lw->lb, stage, stage_of(e, &e->sides[number]));
}

static bool
has_copies(const BlockedProduct *e)
{
	return e->sides[LEFT].copied || e->sides[RIGHT].copied;
}

static bool
has_held(const BlockedProduct *e)
{
	return !e->sides[LEFT].copied || !e->sides[RIGHT].copied;
}

/* Starts copies of block `s` of k, or loads its elements into private arrays. */
static void
bring_block(const BlockedProduct *e, Affine s, Affine stage, bool copies)
{
	LoopBuilder *lb = e->lw->lb;
	LoopValue member = lb_for(lb, LOOP_TEAM, e->block.team);
	Affine first_k = affine_add(lb, affine_scale(lb, e->split, e->k / e->splits),
	                            affine_scale(lb, s, e->depth));

	for (int i = 0; i < N_SIDES; i++) {
		if (e->sides[i].copied != copies)
			continue;
		Affine u = affine_scalar(lb, lb_for(lb, LOOP_UNROLL, units_of(e, &e->sides[i])));
		Unit unit = unit_of(e, i, u, member, first_k);
		if (copies)
			copy_unit(e, i, &unit, stage_place(e, i, stage));
		else
			hold_unit(e, i, &unit, u);
		lb_end(lb);
	}
	lb_end(lb);
}

/* Stores the private arrays to the stage. */
static void
put_block(const BlockedProduct *e, Affine stage)
{
	LoopBuilder *lb = e->lw->lb;
	LoopValue member = lb_for(lb, LOOP_TEAM, e->block.team);

	for (int i = 0; i < N_SIDES; i++) {
		const ProductSide *s = &e->sides[i];
		if (s->copied)
			continue;
		Affine u = affine_scalar(lb, lb_for(lb, LOOP_UNROLL, units_of(e, s)));
		Affine place = affine_add(lb, affine_scale(lb, u, e->block.team),
		                          affine_scalar(lb, member));
		lb_store(lb, s->array, affine_add(lb, stage_place(e, i, stage), place),
		         lb_load(lb, s->held, u));
		lb_end(lb);
	}
	lb_end(lb);
}

/* ---- the block is multiplied */
static void
multiply(const BlockedProduct *e, Affine stage, int64_t from, int64_t depth)
{
	LoopBuilder *lb = e->lw->lb;
	const ProductSide *a = &e->sides[LEFT], *b = &e->sides[RIGHT];
	int64_t a_k = a->along_k ? 1 : a->across, b_k = b->along_k ? 1 : b->across;
	Affine left = affine_plus(stage_place(e, LEFT, stage), from * a_k);
	Affine right = affine_plus(stage_place(e, RIGHT, stage), from * b_k);
	LoopWindow windows[] = {
		{a->array, &left, a->along_k ? e->depth : 1, a_k},
		{b->array, &right, b_k, b->along_k ? e->depth : 1},
	};

	if (depth)
		lb_mma(lb, e->sums, windows, depth, false);
}

/* Multiplies the last, shorter block of k in two steps: a depth that matrix units can take, and
 * what remains. */
static void
multiply_rest(const BlockedProduct *e, int64_t block)
{
	LoopBuilder *lb = e->lw->lb;
	Affine stage = affine_constant(block % STAGES);
	int64_t rest = e->k % e->depth;
	const MatrixShape *unit = block_unit(e);
	int64_t by_unit = unit ? rest / unit->depth * unit->depth : 0;

	if (has_copies(e))
		lb_wait(lb, 0);
	lb_barrier(lb);
	multiply(e, stage, 0, by_unit);
	multiply(e, stage, by_unit, rest - by_unit);
}

/* Copies block `at` of k to the stage, and multiplies the previous block. */
static void
add_block(const BlockedProduct *e, Affine at, LoopValue number, Affine stage)
{
	LoopBuilder *lb = e->lw->lb;
	int64_t blocks = team_blocks(e->k / e->splits, e->depth);
	bool more = e->k % e->depth == 0; /* the last iteration copies nothing */
	Affine comes = more ? lb_open_below(lb, at, blocks) : at;

	if (has_copies(e)) {
		bring_block(e, comes, stage, true);
		lb_commit(lb);
	}
	if (has_held(e))
		bring_block(e, comes, stage, false);
	if (more)
		lb_end(lb);
	if (e->k >= e->depth) {
		lb_if(lb, lb_compare(lb, LOOP_ge, number, lb_int(lb, S64, 1)));
		multiply(e, affine_plus(affine_scale(lb, stage, -1), 1), 0, e->depth);
		lb_end(lb);
	}
	if (has_held(e)) {
		if (more)
			lb_open_below(lb, at, blocks);
		put_block(e, stage);
		if (more)
			lb_end(lb);
	}
}

/* sums += products over all of k */
static void
add_blocks(const BlockedProduct *e)
{
	LoopBuilder *lb = e->lw->lb;
	int64_t whole = e->k / e->splits / e->depth, rest = e->k % e->depth;
	LoopValue s = lb_for(lb, LOOP_PLAIN, whole + 1);
	LoopValue odd = lb_binary(lb, LOOP_and, s, lb_int(lb, S64, 1));

	if (has_copies(e))
		lb_wait(lb, 0);
	lb_barrier(lb);
	add_block(e, affine_scalar(lb, s), s, affine_scalar(lb, odd));
	lb_end(lb);
	if (rest)
		multiply_rest(e, whole);
}

/* ---- the result */
static void
start_sums(const BlockedProduct *e)
{
	LoopBuilder *lb = e->lw->lb;
	TileElement at = lb_each(lb, e->sums);

	lb_store(lb, e->sums, at.place, lb_number(lb, e->p->type, 0));
	lb_end(lb);
}

static void
store_sums(const BlockedProduct *e)
{
	LoopBuilder *lb = e->lw->lb;
	TileElement at = lb_each(lb, e->sums);
	Affine place[] = {affine_add(lb, e->first[LEFT], affine_scalar(lb, at.row)),
	                  affine_add(lb, e->first[RIGHT], affine_scalar(lb, at.column))};
	int open = 0;

	for (int i = 0; i < N_SIDES; i++) {
		if (!has_edge(&e->sides[i]))
			continue;
		place[i] = lb_open_below(lb, place[i], e->sides[i].extent);
		open++;
	}
	Affine to = e->p->c(e->lw, e->p, e->batch, place[LEFT], place[RIGHT]);
	LoopValue sum = lb_load(lb, e->sums, at.place);
	if (e->splits > 1) {
		to = affine_add_scaled(lb, to, e->split, block_results(e));
		lb_store(lb, lower_scratch(e->lw), to, sum);
	} else {
		sum = lower_stored_element(e->lw, e->p->node, to,
		                           result_of_sum(lb, e->p->node, sum));
		lb_store(lb, lower_buffer(e->lw, lower_stored(e->lw)), to, sum);
	}
	for (int i = 0; i <= open; i++)
		lb_end(lb);
}

static void
one_part(BlockedProduct *e)
{
	declare_arrays(e);
	start_sums(e);
	add_blocks(e);
	store_sums(e);
}

void
product_by_blocks(Lower *lw, const Product *p)
{
	LoopBuilder *lb = lw->lb;
	BlockedProduct e;
	Affine at[2 + N_SIDES];

	block_plan(&e, lw, p);
	lb_team(lb, 1, &e.block.team);
	int64_t parts[] = {p->batch, e.splits, team_blocks(p->m, e.block.rows),
	                   team_blocks(e.sides[RIGHT].extent, e.block.columns)};
	for (int i = 0; i < COUNT(parts); i++)
		at[i] = parts[i] == 1 && i < COUNT(parts) - 1
		                ? affine_constant(0)
		                : affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, parts[i]));
	e.batch = at[0];
	e.split = at[1];
	e.first[LEFT] = affine_scale(lb, at[2], e.block.rows);
	e.first[RIGHT] = affine_scale(lb, at[3], e.block.columns);
	one_part(&e);
	for (int i = 0; i < COUNT(parts); i++)
		if (parts[i] > 1 || i == COUNT(parts) - 1)
			lb_end(lb);
}
