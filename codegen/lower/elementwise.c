/* Kernels without reductions: loops over the elements of the results. */
#include "codegen/lower/nest.h"

static void
store_results(Lower *lw, Affine flat, const void *ctx)
{
	const Node *ret = function_return(lw->f);

	(void)ctx;
	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		Index at = index_at(lw, v->type, flat);
		lb_store(lw->lb, lw->state->buffers[v->id], flat, lower_element(lw, v, &at));
	}
}

static NestProbe
probe_results(Lower *lw, const LoopNest *nest)
{
	NestProbe p = nest_probe(lw, nest);

	store_results(lw, p.flat, NULL);
	nest_probe_end(lw, nest, &p);
	return p;
}

/* ---- in squares: transposed blocks that go through team memory (squares.c) */
static bool
lower_squares(Lower *lw, const LoopNest *nest)
{
	Squares s;

	if (lw->lb->k->n_team == 0 || nest->n < 2)
		return false;
	NestProbe p = probe_results(lw, nest);
	if (!nest_squares(lw, nest, &p, &s) || s.n == 0)
		return false;
	squares_want(lw, &s);
	squares_begin(lw);
	LoopValue square = lb_for(lw->lb, LOOP_PARALLEL, squares_count(lw, nest, &s));
	lower_square(lw, nest, &s, affine_scalar(lw->lb, square), store_results, NULL);
	lb_end(lw->lb);
	return true;
}

/* ---- in rows */
/* Like nest_parallel. In addition, for teams: if several iterations of some loop load the same
 * data, each part takes several of these iterations and loads the data once (reuse.c). */
static int
parallel_loops(Lower *lw, LoopNest *nest, const Cutting *c, int within)
{
	if (lw->lb->k->n_team && c->last >= 0 && nest->n < MAX_NEST - 1) {
		NestProbe p = probe_results(lw, nest);
		Reuse r = nest_reuse(lw, nest, &p, c);
		if (r.iterations > 1)
			return nest_parallel_again(nest, &r, c, within, lw);
	}
	return nest_parallel(nest, c->n, c->lanes, lw);
}

/* Makes the loops before loop `rows` parallel. The groups of threads of a divided team (outer
 * members) take the iterations of loop `rows`. */
static int
parallel_rows(Lower *lw, LoopNest *nest, int rows, bool in_blocks)
{
	/* With in_blocks, loop rows - 1 runs over the blocks of loop `rows` and must stay
	 * directly before loop `rows`. So reuse may only move loops up to rows - 2. */
	Cutting c = {.last = rows - 1 - in_blocks, .n = rows, .least = 1};

	return parallel_loops(lw, nest, &c, rows);
}

static int
parallel_lanes(Lower *lw, LoopNest *nest, int spread)
{
	const Grains *g = &lw->target->tuning->grains;
	bool innermost = spread == nest->n - 1;
	int64_t each = 1;

	for (int i = spread + 1; i < nest->n; i++)
		each *= nest->at[i].extent;
	LanesLoop lanes = {.at = spread,
	                   .least = (g->least_part + each - 1) / each,
	                   .most = (g->most_block + each - 1) / each};
	Cutting c = {
		.last = innermost ? spread - 1 : -1, .n = spread + 1, .least = 1, .lanes = &lanes};
	return parallel_loops(lw, nest, &c, spread);
}

void
lower_elementwise(Lower *lw, const Spaces *spaces)
{
	LoopBuilder *lb = lw->lb;
	LoopNest nest = nest_elementwise(lw, spaces);
	Affine flat = affine_constant(0);
	Spread lane = {0};
	int opened = 0;

	team_begin(lw);
	if (lower_squares(lw, &nest))
		return;
	int loops = nest.n, rows = nest_divide(lw, &nest);
	int spread = rows < 0 ? nest_spread_loop(lw, &nest) : nest.n - 1;
	bool in_blocks = nest.n > loops;
	loops = nest.n;
	int parallel = rows < 0 ? parallel_lanes(lw, &nest, spread)
	                        : parallel_rows(lw, &nest, rows, in_blocks);
	rows += rows < 0 ? 0 : nest.n - loops;
	spread += nest.n - loops;
	for (int i = 0; i < nest.n; i++) {
		Affine at;
		if (i == spread) {
			lane = nest_spread(lw, &nest, i);
			if (i < nest.n - 1) /* there are loops inside */
				lane.vector = 1;
			at = spread_enter(&lane);
		} else if (i == rows) {
			opened += nest_open_rows(lw, &nest, i, &at);
		} else {
			LoopMode mode = i < parallel ? LOOP_PARALLEL : LOOP_PLAIN;
			at = affine_scalar(lb, nest_open(lb, &nest, i, mode));
			opened++;
		}
		flat = affine_add_scaled(lb, flat, at, nest.at[i].full);
	}
	store_results(lw, flat, NULL);
	for (int i = 0; i < opened; i++)
		lb_end(lb);
	if (nest.n)
		spread_close(&lane);
}
