/* Emits argmax for teams of GPU threads (members). A line is all elements along the searched
 * axis. If neighbouring elements belong to different lines, each member has a line. Otherwise a
 * whole team shares a line; a short line is shared by a few members. If there are too few lines
 * for all teams, lines are cut into blocks: a first kernel (the serving kernel) stores the index
 * of each block's largest element, and the main kernel searches among these elements. */
#include "codegen/kernels/lines.h"
#include "ir/ops/ops.h"

#include <math.h>

typedef struct {
	Lower *lw;
	const Node *node;
	int64_t axis, size;    /* of a line */
	int64_t block, blocks; /* elements of a block; blocks of a line */
	Type lines;
	bool columns; /* each member has a line */
} Argmax;

static Argmax
argmax_of(Lower *lw, const Node *n)
{
	const Tuning *t = lw->target->tuning;
	int64_t axis = ((const AxisAttr *)n->attr)->axis;
	Type x = node_operand(n, 0)->type, lines = node_result(n, 0)->type;
	bool columns = lines_are_columns(lw, x, axis);
	int64_t each = columns ? lw->target->team : 1;
	LineBlocks b = line_blocks(lw, x->dims[axis], ceil_div(lines->n, each),
	                           columns ? t->reduce.chunk_rows : t->lines.least_block);

	return (Argmax){lw, n, axis, x->dims[axis], b.block, b.blocks, lines, columns};
}

static Type
argmax_scratch(Lower *lw, const Node *n)
{
	Argmax a = argmax_of(lw, n);

	return line_indices(lw, a.lines->n, a.blocks);
}

/* The place of a block's index in the scratch (the serving kernel's result). */
static Affine
scratch_place(const Argmax *a, Affine line, Affine block)
{
	LoopBuilder *lb = a->lw->lb;

	return a->columns ? affine_add_scaled(lb, line, block, a->lines->n)
	                  : affine_add_scaled(lb, block, line, a->blocks);
}

/* A search for a maximum: among the elements of a block, or (of_blocks) among the largest
 * elements of all blocks of a line. */
typedef struct {
	const Argmax *a;
	Affine line;
	Index at; /* index of the line */
	bool of_blocks;
	Affine first; /* first element of the block */
} Search;

/* Opens a loop over the elements of the block, or over all blocks. */
static Spread
open_search(const Search *s)
{
	const Argmax *a = s->a;
	LoopBuilder *lb = a->lw->lb;
	int64_t count = s->of_blocks ? a->blocks : a->block;
	bool whole = s->of_blocks || a->size == 0 || a->size % a->block == 0;
	Affine left = affine_plus(affine_scale(lb, s->first, -1), a->size);

	if (!a->columns)
		return spread_open(a->lw, count, whole ? NULL : &left);
	return (Spread){.lb = lb,
	                .variable = whole ? lb_for(lb, LOOP_PLAIN, count)
	                                  : lb_for_below(lb, LOOP_PLAIN, count, left)};
}

static Affine
enter_search(const Search *s, Spread *lane)
{
	return s->a->columns ? affine_scalar(lane->lb, lane->variable) : spread_enter(lane);
}

/* Element j of the search, and its index. For a block of only NaN the stored index is the line's
 * size. It is larger than the index of any element, so it never wins the search for the smallest
 * index. No element has this index, so the line's last element is read in its place; this element
 * belongs to the line and does not change its maximum. */
static LoopValue
searched(const Search *s, Affine j, LoopValue *index)
{
	const Argmax *a = s->a;
	LoopBuilder *lb = a->lw->lb;
	Index full = index_of_line(&s->at, a->axis);

	if (s->of_blocks) {
		*index = lb_load(lb, lower_scratch(a->lw), scratch_place(a, s->line, j));
		LoopValue place = lb_binary(lb, LOOP_min, *index, lb_int(lb, S64, a->size - 1));
		lb_within(lb, place, a->size);
		full.at[a->axis] = affine_scalar(lb, place);
	} else {
		full.at[a->axis] = affine_add(lb, s->first, j);
		*index = lb_affine(lb, full.at[a->axis]);
	}
	return lower_element(a->lw, node_operand(a->node, 0), &full);
}

/* The index of the largest element; the first one if there are several. One pass finds the
 * maximum. A second pass finds the smallest index of an element that equals the maximum. If all
 * elements are NaN, the index is the line's size, because no element equals the maximum. */
static LoopValue
first_largest(const Search *s)
{
	const Argmax *a = s->a;
	LoopBuilder *lb = a->lw->lb;
	DType t = compute_type(node_operand(a->node, 0)->type->dtype);
	LoopValue i;

	Spread lane = open_search(s);
	LoopValue best = lb_accumulator(lb, ACC_MAX, t);
	LoopValue x = searched(s, enter_search(s, &lane), &i);
	if (dtype_is_float(t))
		x = lb_select(lb, lb_op(lb, LOOP_is_nan, BOOL, &x), lb_float(lb, t, -INFINITY), x);
	lb_accumulate(lb, best, x);
	spread_close(&lane);
	lane = open_search(s);
	LoopValue index = lb_accumulator(lb, ACC_MIN, S64);
	x = searched(s, enter_search(s, &lane), &i);
	LoopValue hit = lb_compare(lb, LOOP_eq, x, best);
	lb_accumulate(lb, index, lb_select(lb, hit, i, lb_int(lb, S64, a->size)));
	spread_close(&lane);
	return index;
}

/* The open loops over lines and, if there are several, their blocks. */
typedef struct {
	Affine line, block;
	Spread lane;
	/* the team is divided into groups of threads; each group searches a line of its own */
	bool divided;
} Loops;

static Loops
open_loops(const Argmax *a, int64_t blocks, Search *s)
{
	Lower *lw = a->lw;
	LoopBuilder *lb = lw->lb;
	Loops l = {.block = affine_constant(0)};
	int64_t looked_at = s->of_blocks ? a->blocks : a->block;
	int64_t inner = looked_at / lw->target->lanes;

	if (a->columns) {
		int64_t members = columns_begin(lw, a->lines->n);
		int64_t groups = ceil_div(a->lines->n, members);
		Affine group = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, groups));
		if (blocks > 1)
			l.block = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, blocks));
		l.line = columns_open(lw, a->lines->n, group, &l.lane);
	} else if (blocks == 1 && lines_divide(lw, inner)) {
		l.divided = true;
		l.line = lines_open(lw, a->lines->n);
	} else {
		team_begin_for(lw, looked_at);
		l.line = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, a->lines->n));
		if (blocks > 1)
			l.block = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, blocks));
	}
	s->line = l.line;
	s->first = affine_scale(lb, l.block, a->block);
	index_split(lb, a->lines, l.line, &s->at);
	return l;
}

static void
close_loops(const Argmax *a, int64_t blocks, Loops *l)
{
	LoopBuilder *lb = a->lw->lb;

	if (l->divided) {
		lines_close(a->lw);
		return;
	}
	if (a->columns)
		spread_close(&l->lane);
	lb_end(lb);
	if (blocks > 1)
		lb_end(lb);
}

static void
argmax_prepare(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Argmax a = argmax_of(lw, n);
	Search s = {.a = &a};

	lb->k->flops = op_row(n)->flops(n);
	Loops l = open_loops(&a, a.blocks, &s);
	lb_store(lb, lower_scratch(lw), scratch_place(&a, l.line, l.block), first_largest(&s));
	close_loops(&a, a.blocks, &l);
}

static void
argmax_team_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Argmax a = argmax_of(lw, n);
	Search s = {.a = &a, .of_blocks = a.blocks > 1};

	if (s.of_blocks)
		lb->k->flops += a.lines->n * a.blocks - op_row(n)->flops(n);
	Loops l = open_loops(&a, 1, &s);
	LoopValue index = first_largest(&s);
	/* all NaN: index 0, as in eval */
	LoopValue none = lb_compare(lb, LOOP_eq, index, lb_int(lb, S64, a.size));
	index = lb_select(lb, none, lb_int(lb, S64, 0), index);
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), l.line, index);
	close_loops(&a, 1, &l);
}

const Strategy strategy_argmax_team = {.op = OP_argmax,
                                       .kinds = ON(TEAMS),
                                       .doc = "the maximum, then the first that has it",
                                       .takes = team_stores,
                                       .emit = argmax_team_kernel,
                                       .scratch = argmax_scratch,
                                       .prepare = argmax_prepare};
