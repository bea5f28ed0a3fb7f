/* Plans a matrix product c = a b for a team of GPU threads before its loops are emitted: how the
 * operands lie in memory, which of the target's blocks it uses, and into how many parts k, the
 * axis that is summed over, is split. blocks.c has the loops. */
#include "codegen/kernels/product/emit.h"
#include "codegen/lower/lower.h"
#include "codegen/strategy/strategy.h"

#include <math.h>

/* With so many parts
 * per processor, no more splits of k are tried, because more parts do not keep a processor
 * busier. */
enum { MOST_PARTS = 8 };

static int64_t
size_of(const Ints *shape)
{
	int64_t n = 1;

	for (int i = 0; i < shape->n; i++)
		n *= shape->at[i];
	return n;
}

/* ---- how operands lie */
LoopValue
side_element(const BlockedProduct *e, int side, Affine batch, Affine across, Affine k)
{
	const Product *p = e->p;

	return side == LEFT ? p->a(e->lw, p, batch, across, k) : p->b(e->lw, p, batch, k, across);
}

/* The array's type: 16-bit numbers stay as they are, for matrix units; other numbers get the type of the
 * sums. */
static DType
array_type(const BlockedProduct *e, const LoopStatement *made)
{
	const LoopBuilder *lb = e->lw->lb;
	DType stored = e->p->type;

	if (made->kind == LOOP_STATEMENT_LOAD)
		stored = lb->k->buffers.at[made->buffer].type->dtype;
	else if (made->kind == LOOP_STATEMENT_CAST)
		stored = (DType)made->i;
	return e->p->type == F32 && (stored == BF16 || stored == F16) ? stored : e->p->type;
}

/* Finds out how an operand lies in memory: emits loops over the whole operand with the code of
 * one element, and looks at the load in that code. */
static void
find_side(BlockedProduct *e, int number)
{
	LoopBuilder *lb = e->lw->lb;
	ProductSide *side = &e->sides[number];
	int mark = lb->k->body.n;
	LoopValue batch = lb_for(lb, LOOP_PLAIN, e->p->batch);
	LoopValue across = lb_for(lb, LOOP_PLAIN, side->extent);
	LoopValue k = lb_for(lb, LOOP_PLAIN, e->k);
	LoopValue x = side_element(e, number, affine_scalar(lb, batch), affine_scalar(lb, across),
	                           affine_scalar(lb, k));
	const LoopStatement *load = lower_load(lb, x);

	side->type = array_type(e, &lb->k->body.at[lb->definitions.at[x]]);
	side->along_k = number == LEFT ? e->p->a_along_k : e->p->b_along_k;
	side->unit = 1;
	if (load) {
		int by_k = lower_contiguous(lb, load, k, e->k);
		int by_others = lower_contiguous(lb, load, across, side->extent);
		if (by_k || by_others) {
			side->along_k = by_k >= by_others;
			side->unit = side->along_k ? by_k : by_others;
		}
		side->copied = lb->k->buffers.at[load->buffer].type->dtype == side->type &&
		               dtype_bytes(side->type, side->unit) >= LEAST_COPY_BYTES;
	}
	if (!side->copied)
		side->unit = 1;
	for (int i = 0; i < 3; i++)
		lb_end(lb);
	lb_forget(lb, mark);
}

/* ---- which block */
const MatrixShape *
block_unit(const BlockedProduct *e)
{
	DType type = e->sides[LEFT].type;

	return e->sides[RIGHT].type == type && dtype_info[type].bits == 16
	               ? target_matrix(e->lw->target, type)
	               : NULL;
}

/* Padding elements after each row of an operand's array. With them, the rows that a warp reads at
 * the same time lie in different banks of shared memory. A warp reads eight rows of a 16-bit
 * matrix at a time, or eight numbers with the same k. */
int64_t
block_pad(const ProductSide *s)
{
	int bits = dtype_info[s->type].bits;

	return s->along_k || bits == 16 ? COPY_BYTES * 8 / bits : 0;
}

/* Bytes of the arrays of both operands. */
static int64_t
shared_bytes(const BlockedProduct *e, const TeamBlock *b)
{
	int64_t bytes = 0;

	for (int i = 0; i < N_SIDES; i++) {
		const ProductSide *s = &e->sides[i];
		int64_t across = i == LEFT ? b->rows : b->columns;
		int64_t rows = s->along_k ? across : e->depth, row = s->along_k ? e->depth : across;
		int64_t array = dtype_bytes(s->type, STAGES * rows * (row + block_pad(s)));
		bytes += (array + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
	}
	return bytes;
}

static int64_t
parts_of(const BlockedProduct *e, const TeamBlock *b)
{
	return e->p->batch * team_blocks(e->sides[LEFT].extent, b->rows) *
	       team_blocks(e->sides[RIGHT].extent, b->columns);
}

int64_t
block_results(const BlockedProduct *e)
{
	return e->p->batch * e->sides[LEFT].extent * e->sides[RIGHT].extent;
}

/* May k be split like this? Each split must consist of whole blocks, and the sums must fit in memory. */
static bool
can_split(const BlockedProduct *e, const TeamTiles *t, int64_t splits)
{
	int64_t bytes = dtype_bytes(e->p->type, 1);

	return splits == 1 || (e->k % (splits * e->depth) == 0 && e->k / splits >= t->least_split &&
	                       block_results(e) <= t->most_scratch / bytes / splits);
}

/* Estimated cycles of the processor with the most parts. */
static double
cost_of(const BlockedProduct *e, const TeamTiles *t, const TeamBlock *b, int64_t splits)
{
	double bytes = (double)dtype_bytes(e->sides[LEFT].type, 1), team = b->team;
	double parts = (double)team_blocks(parts_of(e, b) * splits, t->processors);
	double rate = block_unit(e) ? t->multiplied_16 : t->multiplied * 4 / bytes;
	double sums = (double)b->rows * b->columns, busy = fmin(1, parts * team / t->members);
	/* cycles for each k, as the sum of three times:
	 *   1. to multiply and add
	 *   2. to read operands from team memory: a member's sums form a square, so it reads
	 *      sqrt(sums / team) numbers of each operand
	 *   3. to bring operands from memory to team memory */
	double cycles = sums / rate / busy + sqrt(sums / team) * team / 32 * bytes / t->read +
	                (b->rows + b->columns) * bytes / t->brought;
	double time = parts * (double)(e->k / splits) * cycles;
	double stored = (double)(block_results(e) * splits * 2 * dtype_bytes(e->p->type, 1));

	return splits == 1 ? time : time * t->split_gain + t->launch + stored / t->stored;
}

/* Puts the block into the plan if it costs less than `least`. splits 0: tries all numbers of splits. */
static void
consider_block(BlockedProduct *e, const Target *target, const TeamBlock *b, int64_t splits,
               double *least)
{
	const TeamTiles *t = target->tiles;
	int64_t sums = (int64_t)b->rows * b->columns / b->team;
	int64_t first = splits ? splits : 1, most = splits ? splits : e->k / t->least_split;

	if (dtype_bytes(e->p->type, sums) > t->most_sums ||
	    shared_bytes(e, b) > target->shared_bytes)
		return;
	for (int64_t n = first; n == first || n <= most; n++) {
		double cost = can_split(e, t, n) ? cost_of(e, t, b, n) : INFINITY;
		if (cost < *least) {
			*least = cost;
			e->block = *b;
			e->splits = n;
		}
		if (parts_of(e, b) * n > MOST_PARTS * t->processors)
			break;
	}
}

static void
consider_blocks(BlockedProduct *e, const Target *target, int64_t splits)
{
	double least = INFINITY;

	for (const TeamBlock *b = target->tiles->blocks; b->rows; b++)
		consider_block(e, target, b, splits, &least);
}

/* The number of splits of k changes the bits of the sums, so it is the same for all targets of a
 * kind (all GPUs). The block does not change bits, so it is chosen for this target. */
static void
choose_block(BlockedProduct *e, const Target *target)
{
	e->depth = block_unit(e) ? 2 * target->tiles->depth : target->tiles->depth;
	consider_blocks(e, target->tuning->splits, 0);
	consider_blocks(e, target, e->splits);
	e->sides[LEFT].across = e->block.rows;
	e->sides[RIGHT].across = e->block.columns;
	/* each member must copy the same number of units (copies of a few elements) */
	for (int i = 0; i < N_SIDES; i++)
		while (e->sides[i].across * e->depth / e->sides[i].unit < e->block.team)
			e->sides[i].unit /= 2;
}

/* ---- the plan */
/* Is a product in blocks faster than one without? With few rows, a member that computes a whole
 * column reads each number of b only once anyway. Blocks, which copy b to team memory, then help
 * only if b's numbers are contiguous along k: without blocks, the numbers that neighbouring members
 * read at the same time would lie far apart in memory. */
static bool
pays(const BlockedProduct *e, const TeamTiles *t)
{
	const Product *p = e->p;
	bool thin = p->m <= t->few_rows && !p->b_along_k;
	bool empty = p->batch == 0 || p->m == 0 || e->sides[RIGHT].extent == 0 || e->k == 0;

	return dtype_is_float(p->type) && !empty && !thin;
}

bool
block_plan(BlockedProduct *e, Lower *lw, const Product *p)
{
	const TeamTiles *t = lw->target->tiles;

	*e = (BlockedProduct){.lw = lw, .p = p, .k = size_of(&p->k)};
	e->sides[LEFT].extent = p->m;
	e->sides[RIGHT].extent = size_of(&p->n);
	if (!t || !pays(e, t))
		return false;
	find_side(e, LEFT);
	find_side(e, RIGHT);
	choose_block(e, lw->target);
	return true;
}

int64_t
product_block_splits(Lower *lw, const Product *p)
{
	BlockedProduct e;

	return block_plan(&e, lw, p) ? e.splits : 0;
}
