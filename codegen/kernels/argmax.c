/* Emits argmax for CPUs. A line is all elements along the searched axis. Lines run in parallel,
 * each on one thread. If there are only a few long lines, they are cut into blocks, which run in
 * parallel as well: a first kernel (the serving kernel) stores the index of each block's largest
 * element, and the main kernel searches among these elements. */
#include "codegen/kernels/lines.h"
#include "ir/ops/ops.h"

#include <math.h>

typedef struct {
	Lower *lw;
	const Node *node;
	int64_t axis, size;    /* of a line */
	int64_t block, blocks; /* elements of a block; blocks of a line */
	Type lines;
} Argmax;

static Argmax
argmax_of(Lower *lw, const Node *n)
{
	int64_t axis = ((const AxisAttr *)n->attr)->axis;
	int64_t size = node_operand(n, 0)->type->dims[axis];
	Type lines = node_result(n, 0)->type;
	LineBlocks b = line_blocks(lw, size, lines->n, lw->target->tuning->lines.least_block);

	return (Argmax){lw, n, axis, size, b.block, b.blocks, lines};
}

static Type
argmax_scratch(Lower *lw, const Node *n)
{
	Argmax a = argmax_of(lw, n);

	return line_indices(lw, a.lines->n, a.blocks);
}

static LoopValue
element_at(const Argmax *a, const Index *line, Affine at)
{
	Index full = index_of_line(line, a->axis);

	full.at[a->axis] = at;
	return lower_element(a->lw, node_operand(a->node, 0), &full);
}

/* The index of the largest element among `count` elements of the line from `first` on (fewer if
 * the line ends before); the first one if there are several. One pass finds the maximum. A second
 * pass finds the smallest index of an element that equals the maximum. If all elements are NaN, no
 * element equals the maximum, and the result is `size`. */
static LoopValue
first_largest(const Argmax *a, const Index *line, Affine first, int64_t count)
{
	LoopBuilder *lb = a->lw->lb;
	DType t = compute_type(node_operand(a->node, 0)->type->dtype);
	Affine left = affine_plus(affine_scale(lb, first, -1), a->size);
	bool whole = a->size == 0 || a->size % count == 0;

	LoopValue j = whole ? lb_for(lb, LOOP_VECTOR, count)
	                    : lb_for_below(lb, LOOP_VECTOR, count, left);
	LoopValue v = element_at(a, line, affine_add(lb, first, affine_scalar(lb, j)));
	LoopValue best = lb_accumulator(lb, ACC_MAX, t);
	if (dtype_is_float(t))
		v = lb_select(lb, lb_op(lb, LOOP_is_nan, BOOL, &v), lb_float(lb, t, -INFINITY), v);
	lb_accumulate(lb, best, v);
	lb_end(lb);
	j = whole ? lb_for(lb, LOOP_VECTOR, count) : lb_for_below(lb, LOOP_VECTOR, count, left);
	Affine at = affine_add(lb, first, affine_scalar(lb, j));
	v = element_at(a, line, at);
	LoopValue index = lb_accumulator(lb, ACC_MIN, S64);
	LoopValue hit = lb_compare(lb, LOOP_eq, v, best);
	lb_accumulate(lb, index, lb_select(lb, hit, lb_affine(lb, at), lb_int(lb, S64, a->size)));
	lb_end(lb);
	return index;
}

static void
argmax_prepare(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Argmax a = argmax_of(lw, n);
	Index at;

	lb->k->flops = op_row(n)->flops(n);
	Affine line = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, a.lines->n));
	Affine block = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, a.blocks));
	index_split(lb, a.lines, line, &at);
	LoopValue index = first_largest(&a, &at, affine_scale(lb, block, a.block), a.block);
	lb_store(lb, lower_scratch(lw), affine_add(lb, affine_scale(lb, line, a.blocks), block),
	         index);
	lb_end(lb);
	lb_end(lb);
}

/* The first index of the line's largest element, from the indices that the serving kernel stored
 * for the line's blocks. */
static LoopValue
combine_blocks(const Argmax *a, Affine line, const Index *at)
{
	LoopBuilder *lb = a->lw->lb;
	DType t = compute_type(node_operand(a->node, 0)->type->dtype);
	Affine zero = affine_constant(0);

	lb->k->flops += a->lines->n * a->blocks - op_row(a->node)->flops(a->node);
	int best = lb_local(lb, t, 1), index = lb_local(lb, S64, 1);
	LoopValue none = lb_int(lb, S64, a->size);

	lb_store(lb, best, zero, lb_number(lb, t, 0));
	lb_store(lb, index, zero, none);
	Affine b = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, a->blocks));
	LoopValue i = lb_load(lb, lower_scratch(a->lw),
	                      affine_add(lb, affine_scale(lb, line, a->blocks), b));
	LoopValue there = lb_compare(lb, LOOP_lt, i, none);
	LoopValue place = lb_binary(lb, LOOP_min, i, lb_int(lb, S64, a->size - 1));
	lb_within(lb, place, a->size);
	LoopValue x = element_at(a, at, affine_scalar(lb, place));
	LoopValue old = lb_load(lb, best, zero), old_index = lb_load(lb, index, zero);
	LoopValue better = lb_binary(lb, LOOP_or, lb_compare(lb, LOOP_eq, old_index, none),
	                             lb_compare(lb, LOOP_gt, x, old));
	better = lb_binary(lb, LOOP_and, there, better);
	lb_store(lb, best, zero, lb_select(lb, better, x, old));
	lb_store(lb, index, zero, lb_select(lb, better, i, old_index));
	lb_end(lb);
	return lb_load(lb, index, zero);
}

static void
argmax_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Argmax a = argmax_of(lw, n);
	Index at;

	Affine line = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, a.lines->n));
	index_split(lb, a.lines, line, &at);
	LoopValue index = a.blocks > 1 ? combine_blocks(&a, line, &at)
	                               : first_largest(&a, &at, affine_constant(0), a.size);
	/* all NaN: index 0, as in eval */
	LoopValue none = lb_compare(lb, LOOP_eq, index, lb_int(lb, S64, a.size));
	index = lb_select(lb, none, lb_int(lb, S64, 0), index);
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), line, index);
	lb_end(lb);
}

const Strategy strategy_argmax = {.op = OP_argmax,
                                  .kinds = ON_EVERY_KIND,
                                  .doc = "the maximum, then the first that has it",
                                  .emit = argmax_kernel,
                                  .scratch = argmax_scratch,
                                  .prepare = argmax_prepare};
