/* cumulate: lines in parallel, each in order. Where lines are few and long, blocks of them go in parallel, too: a kernel that
 * runs before sums up every block, and each starts at the sum of those before it. Blocks depend on the shape alone, so that
 * the bits are the same for any target and number of cores. Sums of blocks are in order and in f64 where results are f32 or less:
 * running sums of what is positive do not fall from one block to the next, and nothing overflows that would not in order. */
#include "codegen/codegen.h"
#include "codegen/kernels/kernels.h"
#include "ir/shapes.h"

/* Short operands have whole lines. Lines are few below FEW. A block has LEAST_BLOCK to MOST_BLOCK elements, more where a line
 * would have more than MOST_BLOCKS: each adds up the sums of those before. */
enum { SHORT = 1 << 14, FEW = 256, LEAST_BLOCK = 256, MOST_BLOCK = 4096, MOST_BLOCKS = 4096 };

typedef struct {
	Lower *lw;
	const Node *node;
	const CumulateAttr *attr;
	Type x, lines;
	DType type; /* that sums are of */
	int64_t size, block, blocks;
} Cumulate;

static int64_t
ratio(int64_t n, int64_t by)
{
	return (n + by - 1) / by;
}

static Cumulate
cumulate_of(Lower *lw, const Node *n)
{
	Cumulate c = {.lw = lw, .node = n, .attr = n->attr, .x = node_operand(n, 0)->type};

	c.type = compute_type(c.x->dtype);
	c.lines = type_drop_axis(lw->m, c.x, (int)c.attr->axis);
	c.size = c.block = c.x->dims[c.attr->axis];
	c.blocks = 1;
	if (c.x->n < SHORT || c.lines->n >= FEW)
		return c;
	int64_t even = c.size / ratio(FEW, c.lines->n), least = ratio(c.size, MOST_BLOCKS);
	c.block = even < LEAST_BLOCK ? LEAST_BLOCK : even < MOST_BLOCK ? even : MOST_BLOCK;
	c.block = c.block < least ? least : c.block;
	c.blocks = ratio(c.size, c.block);
	c.type = c.blocks > 1 && c.type == F32 ? F64 : c.type;
	return c;
}

static Type
cumulate_scratch(Lower *lw, const Node *n)
{
	Cumulate c = cumulate_of(lw, n);
	int64_t sums = c.lines->n * (c.blocks - 1);

	return sums ? type_new(lw->m, c.type, 1, &sums) : NULL;
}

/* Element number `at` of the line, in the order in which they are added. */
static Index
index_at_step(const Cumulate *c, const Index *line, Affine at)
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

/* The place of a block's sum. */
static Affine
sum_place(const Cumulate *c, Affine line, Affine block)
{
	return affine_add_scaled(c->lw->lb, block, line, c->blocks - 1);
}

/* The sums of all blocks but the last. */
static void
cumulate_prepare(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Cumulate c = cumulate_of(lw, n);
	bool product = c.attr->kind == REDUCE_PROD;
	Affine line, block;
	Index at;

	lb->k->flops = dtype_is_float(c.type) ? c.lines->n * (c.blocks - 1) * c.block : 0;
	open_blocks(&c, c.blocks - 1, &line, &block, &at);
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, c.block));
	Index full = index_at_step(&c, &at, affine_add(lb, affine_scale(lb, block, c.block), j));
	LoopValue sum = lb_accumulator(lb, product ? ACC_MUL : ACC_ADD, c.type);
	lb_accumulate(lb, sum, lb_cast(lb, c.type, lower_element(lw, node_operand(n, 0), &full)));
	lb_end(lb);
	lb_store(lb, lower_scratch(lw), sum_place(&c, line, block), sum);
	close_blocks(&c);
}

/* What the block starts at: the sum of those before it. */
static LoopValue
sum_before(const Cumulate *c, Affine line, Affine block)
{
	LoopBuilder *lb = c->lw->lb;
	bool product = c->attr->kind == REDUCE_PROD;

	if (c->blocks == 1)
		return lb_number(lb, c->type, product);
	LoopValue i = lb_for_below(lb, LOOP_PLAIN, c->blocks - 1, block);
	LoopValue sum = lb_accumulator(lb, product ? ACC_MUL : ACC_ADD, c->type);
	Affine place = sum_place(c, line, affine_scalar(lb, i));
	lb_accumulate(lb, sum, lb_load(lb, lower_scratch(c->lw), place));
	lb_end(lb);
	return sum;
}

static void
cumulate_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Cumulate c = cumulate_of(lw, n);
	int out = lower_buffer(lw, node_result(n, 0)), sum = lb_local(lb, c.type, 1);
	LoopOp add = c.attr->kind == REDUCE_PROD ? LOOP_mul : LOOP_add;
	Affine line, block;
	Index at;

	open_blocks(&c, c.blocks, &line, &block, &at);
	lb_store(lb, sum, affine_constant(0), sum_before(&c, line, block));
	Affine first = affine_scale(lb, block, c.block);
	Affine left = affine_plus(affine_scale(lb, first, -1), c.size);
	LoopValue j = c.size % (c.block ? c.block : 1) ? lb_for_below(lb, LOOP_PLAIN, c.block, left)
	                                               : lb_for(lb, LOOP_PLAIN, c.block);
	Index full = index_at_step(&c, &at, affine_add(lb, first, affine_scalar(lb, j)));
	LoopValue old = lb_load(lb, sum, affine_constant(0));
	LoopValue x = lb_cast(lb, c.type, lower_element(lw, node_operand(n, 0), &full));
	LoopValue new = lb_binary(lb, add, old, x);
	lb_store(lb, sum, affine_constant(0), new);
	lb_store(lb, out, index_flat(lb, c.x, &full),
	         lb_cast(lb, compute_type(c.x->dtype), c.attr->exclusive ? old : new));
	lb_end(lb);
	close_blocks(&c);
}

const Strategy strategy_cumulate = {.op = OP_cumulate,
                                    .kinds = ON_EVERY_KIND,
                                    .doc = "each line in order, long ones in blocks",
                                    .emit = cumulate_kernel,
                                    .scratch = cumulate_scratch,
                                    .prepare = cumulate_prepare};
