/* Emits cumulate (running sums along an axis) for CPUs. A line is all elements along the axis;
 * lines run in parallel, and each line is added up in order. If lines are few and long, they are
 * cut into blocks, which run in parallel as well: a first kernel (the serving kernel) adds up
 * every block, and the main kernel starts each block with the sum of the blocks before it.
 *
 * The blocks depend on the shape only, so the bits are the same for every target and number of
 * cores. If results are f32 or smaller, the sums of blocks are added in order and in f64. So
 * running sums of positive numbers never get smaller at the start of a block, and a result
 * overflows only if it would also overflow without blocks. */
#include "codegen/kernels/cumulate.h"
#include "codegen/lower/lower.h"
#include "ir/ops/ops.h"

/* Lines are cut only if the operand has at least SHORT elements and fewer than FEW lines. A block
 * then has LEAST_BLOCK to MOST_BLOCK elements, or more if a line would otherwise have over
 * MOST_BLOCKS blocks: each block has to add up the sums of all blocks before it. */
enum { SHORT = 1 << 14, FEW = 256, LEAST_BLOCK = 256, MOST_BLOCK = 4096, MOST_BLOCKS = 4096 };

Cumulate
cumulate_of(Lower *lw, const Node *n)
{
	Cumulate c = {.lw = lw, .node = n, .attr = n->attr, .x = node_operand(n, 0)->type};

	c.type = compute_type(c.x->dtype);
	c.lines = type_drop_axis(lw->m, c.x, (int)c.attr->axis);
	c.size = c.block = c.x->dims[c.attr->axis];
	c.blocks = 1;
	if (c.x->n < SHORT || c.lines->n >= FEW)
		return c;
	int64_t even = c.size / ceil_div(FEW, c.lines->n), least = ceil_div(c.size, MOST_BLOCKS);
	c.block = even < LEAST_BLOCK ? LEAST_BLOCK : even < MOST_BLOCK ? even : MOST_BLOCK;
	c.block = c.block < least ? least : c.block;
	c.blocks = ceil_div(c.size, c.block);
	c.type = c.blocks > 1 && c.type == F32 ? F64 : c.type;
	return c;
}

Type
cumulate_scratch(Lower *lw, const Node *n)
{
	Cumulate c = cumulate_of(lw, n);
	int64_t sums = c.lines->n * (c.blocks - 1);

	return sums ? type_new(lw->m, c.type, 1, &sums) : NULL;
}

int64_t
cumulate_prepare_flops(const Cumulate *c)
{
	return dtype_is_float(c->type) ? c->lines->n * (c->blocks - 1) * c->block : 0;
}

Index
cumulate_index(const Cumulate *c, const Index *line, Affine at)
{
	Index full = index_of_line(line, c->attr->axis);

	full.at[c->attr->axis] = c->attr->reverse
	                                 ? affine_plus(affine_scale(c->lw->lb, at, -1), c->size - 1)
	                                 : at;
	return full;
}

/* Opens the parallel loops over lines and blocks. */
static void
open_blocks(const Cumulate *c, int64_t blocks, Affine *line, Affine *block, Index *at)
{
	LoopBuilder *lb = c->lw->lb;

	*line = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, c->lines->n));
	*block = c->blocks > 1 ? affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, blocks))
	                       : affine_constant(0);
	index_split(lb, c->lines, *line, at);
}

static void
close_blocks(const Cumulate *c)
{
	lb_end(c->lw->lb);
	if (c->blocks > 1)
		lb_end(c->lw->lb);
}

Affine
cumulate_sum_place(const Cumulate *c, Affine line, Affine block)
{
	return affine_add_scaled(c->lw->lb, block, line, c->blocks - 1);
}

void
cumulate_sum_block(const Cumulate *c, Affine line, Affine block, const Index *at)
{
	LoopBuilder *lb = c->lw->lb;
	bool product = c->attr->kind == REDUCE_PROD;

	Affine j = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, c->block));
	Index full = cumulate_index(c, at, affine_add(lb, affine_scale(lb, block, c->block), j));
	LoopValue sum = lb_accumulator(lb, product ? ACC_MUL : ACC_ADD, c->type);
	LoopValue x = lower_element(c->lw, node_operand(c->node, 0), &full);
	lb_accumulate(lb, sum, lb_cast(lb, c->type, x));
	lb_end(lb);
	lb_store(lb, lower_scratch(c->lw), cumulate_sum_place(c, line, block), sum);
}

static void
cumulate_prepare(Lower *lw, const Node *n)
{
	Cumulate c = cumulate_of(lw, n);
	Affine line, block;
	Index at;

	lw->lb->k->flops = cumulate_prepare_flops(&c);
	open_blocks(&c, c.blocks - 1, &line, &block, &at);
	cumulate_sum_block(&c, line, block, &at);
	close_blocks(&c);
}

LoopValue
cumulate_sum_before(const Cumulate *c, Affine line, Affine block)
{
	LoopBuilder *lb = c->lw->lb;
	bool product = c->attr->kind == REDUCE_PROD;

	if (c->blocks == 1)
		return lb_number(lb, c->type, product);
	LoopValue i = lb_for_below(lb, LOOP_PLAIN, c->blocks - 1, block);
	LoopValue sum = lb_accumulator(lb, product ? ACC_MUL : ACC_ADD, c->type);
	Affine place = cumulate_sum_place(c, line, affine_scalar(lb, i));
	lb_accumulate(lb, sum, lb_load(lb, lower_scratch(c->lw), place));
	lb_end(lb);
	return sum;
}

LoopValue
cumulate_step(const Cumulate *c, int sum, LoopValue old, LoopValue x)
{
	LoopBuilder *lb = c->lw->lb;
	LoopOp add = c->attr->kind == REDUCE_PROD ? LOOP_mul : LOOP_add;
	LoopValue new = lb_binary(lb, add, old, lb_cast(lb, c->type, x));

	lb_store(lb, sum, affine_constant(0), new);
	return lb_cast(lb, compute_type(c->x->dtype), c->attr->exclusive ? old : new);
}

void
cumulate_block(const Cumulate *c, Affine line, Affine block, const Index *at, int sum)
{
	LoopBuilder *lb = c->lw->lb;
	int out = lower_buffer(c->lw, node_result(c->node, 0));

	lb_store(lb, sum, affine_constant(0), cumulate_sum_before(c, line, block));
	Affine first = affine_scale(lb, block, c->block);
	Affine left = affine_plus(affine_scale(lb, first, -1), c->size);
	LoopValue j = c->size % (c->block ? c->block : 1)
	                      ? lb_for_below(lb, LOOP_PLAIN, c->block, left)
	                      : lb_for(lb, LOOP_PLAIN, c->block);
	Index full = cumulate_index(c, at, affine_add(lb, first, affine_scalar(lb, j)));
	LoopValue old = lb_load(lb, sum, affine_constant(0));
	LoopValue x = lower_element(c->lw, node_operand(c->node, 0), &full);
	LoopValue y = cumulate_step(c, sum, old, x);
	lb_store(lb, out, index_flat(lb, c->x, &full), y);
	lb_end(lb);
}

static void
cumulate_kernel(Lower *lw, const Node *n)
{
	Cumulate c = cumulate_of(lw, n);
	int sum = lb_local(lw->lb, c.type, 1);
	Affine line, block;
	Index at;

	open_blocks(&c, c.blocks, &line, &block, &at);
	cumulate_block(&c, line, block, &at, sum);
	close_blocks(&c);
}

const Strategy strategy_cumulate = {.op = OP_cumulate,
                                    .kinds = ON_EVERY_KIND,
                                    .doc = "each line in order, long ones in blocks",
                                    .emit = cumulate_kernel,
                                    .scratch = cumulate_scratch,
                                    .prepare = cumulate_prepare};
