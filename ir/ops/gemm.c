/* The blocked matrix product. Per block of COLUMNS columns and DEPTH of k, b is packed into a local
 * panel; rows go ROWS at a time with their sums in local vectors, which the C compiler keeps in
 * registers: 8 x 32 f32 sums fill 16 of AVX-512's 32 registers. Every element is summed in the
 * order of k, whatever the block sizes. Scheme: Goto and van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", 2008. */
#include "ir/ops/gemm.h"

enum { ROWS = 8, DEPTH = 256 };

typedef struct {
	Lower *lw;
	const Gemm *g;
	int64_t columns;
	int panel, sums[ROWS], out;
	Affine batch, first_column;
	int64_t width; /* columns of this block */
	Affine first_k;
	int64_t depth;
	bool first; /* of the blocks of k */
} Block;

/* panel[k, j] = b(k, j), 0 beyond the last column */
static void
pack_panel(const Block *bl)
{
	LoopBuilder *lb = bl->lw->lb;

	LoopValue k = lb_for(lb, LOOP_PLAIN, bl->depth);
	LoopValue j = lb_for(lb, LOOP_VECTOR, bl->width);
	LoopValue x = bl->g->b(bl->lw, bl->g->node, bl->batch,
	                       affine_add(bl->first_k, affine_scalar(k)),
	                       affine_add(bl->first_column, affine_scalar(j)));
	lb_store(lb, bl->panel,
	         affine_add(affine_scale(affine_scalar(k), bl->columns), affine_scalar(j)), x);
	lb_end(lb);
	lb_end(lb);
}

/* sums[r][j] = 0, or what earlier blocks of k left in c */
static void
start_sums(const Block *bl, Affine row, int rows)
{
	LoopBuilder *lb = bl->lw->lb;
	LoopValue j = lb_for(lb, LOOP_VECTOR, bl->first ? bl->columns : bl->width);

	for (int r = 0; r < rows; r++) {
		LoopValue x = lb_number(lb, bl->g->type, 0);
		if (!bl->first)
			x = lb_load(lb, bl->out,
			            bl->g->c(bl->g->node, bl->batch,
			                     affine_add(row, affine_constant(r)),
			                     affine_add(bl->first_column, affine_scalar(j))));
		lb_store(lb, bl->sums[r], affine_scalar(j), x);
	}
	lb_end(lb);
}

static void
multiply_rows(const Block *bl, Affine row, int rows)
{
	LoopBuilder *lb = bl->lw->lb;
	LoopValue a[ROWS];

	LoopValue k = lb_for(lb, LOOP_PLAIN, bl->depth);
	for (int r = 0; r < rows; r++)
		a[r] = bl->g->a(bl->lw, bl->g->node, bl->batch, affine_add(row, affine_constant(r)),
		                affine_add(bl->first_k, affine_scalar(k)));
	LoopValue j = lb_for(lb, LOOP_VECTOR, bl->columns);
	Affine at = affine_add(affine_scale(affine_scalar(k), bl->columns), affine_scalar(j));
	LoopValue b = lb_load(lb, bl->panel, at);
	for (int r = 0; r < rows; r++) {
		LoopValue sum = lb_load(lb, bl->sums[r], affine_scalar(j));
		if (dtype_is_float(bl->g->type))
			sum = lb_op(lb, LOOP_fma, bl->g->type, (LoopValue[]){a[r], b, sum});
		else
			sum = lb_binary(lb, LOOP_add, sum, lb_binary(lb, LOOP_mul, a[r], b));
		lb_store(lb, bl->sums[r], affine_scalar(j), sum);
	}
	lb_end(lb);
	lb_end(lb);
}

static void
finish_rows(const Block *bl, Affine row, int rows)
{
	LoopBuilder *lb = bl->lw->lb;
	LoopValue j = lb_for(lb, LOOP_VECTOR, bl->width);

	for (int r = 0; r < rows; r++)
		lb_store(lb, bl->out,
		         bl->g->c(bl->g->node, bl->batch, affine_add(row, affine_constant(r)),
		                  affine_add(bl->first_column, affine_scalar(j))),
		         lb_load(lb, bl->sums[r], affine_scalar(j)));
	lb_end(lb);
}

static void
row_block(const Block *bl, Affine row, int rows)
{
	start_sums(bl, row, rows);
	multiply_rows(bl, row, rows);
	finish_rows(bl, row, rows);
}

static void
depth_block(Block *bl)
{
	LoopBuilder *lb = bl->lw->lb;
	int64_t full = bl->g->m / ROWS, rest = bl->g->m % ROWS;

	pack_panel(bl);
	if (full) {
		LoopValue i = lb_for(lb, LOOP_PLAIN, full);
		row_block(bl, affine_scale(affine_scalar(i), ROWS), ROWS);
		lb_end(lb);
	}
	if (rest)
		row_block(bl, affine_constant(full * ROWS), (int)rest);
}

/* All of k for one block of columns. */
static void
column_block(Block *bl, int64_t width)
{
	LoopBuilder *lb = bl->lw->lb;
	int64_t k = bl->g->k, done = k < DEPTH ? k : DEPTH, full = (k - done) / DEPTH;

	bl->width = width;
	bl->first = true;
	bl->first_k = affine_constant(0);
	bl->depth = done;
	depth_block(bl);
	bl->first = false;
	if (full) {
		LoopValue i = lb_for(lb, LOOP_PLAIN, full);
		bl->first_k = affine_add(affine_scale(affine_scalar(i), DEPTH),
		                         affine_constant(done));
		bl->depth = DEPTH;
		depth_block(bl);
		lb_end(lb);
	}
	done += full * DEPTH;
	if (done < k) {
		bl->first_k = affine_constant(done);
		bl->depth = k - done;
		depth_block(bl);
	}
}

void
gemm_kernel(Lower *lw, const Gemm *g)
{
	LoopBuilder *lb = lw->lb;
	Block bl = {.lw = lw, .g = g, .columns = g->type == F64 || g->type == S64 ? 16 : 32};
	int64_t full = g->n / bl.columns, rest = g->n % bl.columns;

	bl.out = lower_buffer(lw, node_result(g->node, 0));
	bl.panel = lb_local(lb, g->type, bl.columns * (g->k < DEPTH ? (g->k ? g->k : 1) : DEPTH));
	for (int r = 0; r < ROWS; r++)
		bl.sums[r] = lb_local(lb, g->type, bl.columns);
	LoopValue b = lb_for(lb, LOOP_PARALLEL, g->batch);
	bl.batch = affine_scalar(b);
	if (full) {
		LoopValue j = lb_for(lb, LOOP_PLAIN, full);
		bl.first_column = affine_scale(affine_scalar(j), bl.columns);
		column_block(&bl, bl.columns);
		lb_end(lb);
	}
	if (rest) {
		bl.first_column = affine_constant(full * bl.columns);
		column_block(&bl, rest);
	}
	lb_end(lb);
}
