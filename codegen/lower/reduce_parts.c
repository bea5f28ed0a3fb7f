/* Kernels with reductions: how they are cut into parts, and how the members of a team share a part. */
#include "codegen/lower/reduce.h"

#include <string.h>

/* Drops kept loops of one iteration, so that the innermost kept loop has rows. */
static void
drop_unit_loops(Rows *r)
{
	int n = 0;

	for (int i = 0; i < r->nest.n; i++)
		if (i >= r->n_kept || r->nest.at[i].extent > 1)
			r->nest.at[n++] = r->nest.at[i];
	r->n_kept -= r->nest.n - n;
	r->nest.n = n;
}

/* Is the team divided into groups, one for each row? The rows must be short, and two rows may
 * not add to the same sum. */
static bool
rows_have_teams(const Rows *r)
{
	const Kernel *k = r->lw->lb->k;

	return k->n_team && k->team[0] >= 2 * r->tiles->row_members && !r->by_column &&
	       !r->chunks && r->full / r->rows <= r->tiles->team_row;
}

/* Lists what the passes load. For this, every reduction's result is replaced by a constant, so no
 * pass has to be emitted for it. */
static NestProbe
probe_rows(Rows *r)
{
	struct LowerState *st = r->lw->state;
	const Function *f = r->lw->f;
	const Node *ret = function_return(f);
	NestProbe p = nest_probe(r->lw, &r->nest);

	for_each_node(f, n) {
		if (!reduces(n))
			continue;
		st->reduced[n->id] = REDUCED_SCALAR;
		st->reduced_at[n->id] = lb_number(r->lw->lb, reduce_type(n), 0);
	}
	for (int i = 0; i < r->row_reduces.n; i++)
		rows_element(r, node_operand(r->row_reduces.at[i], 0), p.flat);
	for (int i = 0; i < ret->n_operands; i++)
		if (rows_space(r, node_operand(ret, i)) == ITER_FULL)
			rows_element(r, node_operand(ret, i), p.flat);
	nest_probe_end(r->lw, &r->nest, &p);
	memset(st->reduced, 0, sizeof(*st->reduced) * f->next_node_id);
	return p;
}

/* Chooses the kept loop whose iterations (rows) go to outer members, and makes it the last kept
 * loop. Returns how many of its rows a part should have; 0: there are no kept loops. */
static int64_t
choose_rows(Rows *r)
{
	drop_unit_loops(r);
	if (r->n_kept == 0)
		return 0;
	NestProbe p = probe_rows(r);
	Cutting c = {.last = r->n_kept - 1,
	             .n = r->n_kept,
	             .least = r->lw->lb->k->team[0] / r->tiles->row_members};
	Reuse reuse = nest_reuse(r->lw, &r->nest, &p, &c);
	nest_move(&r->nest, reuse.loop, c.last);
	return reuse.iterations;
}

/* How many rows the outer members (groups of threads) take at a time: the first of most, most / 2
 * and most / 4 that divides the number of rows, so that no outer member idles in the last turn.
 * Example: with most = 8, 12 rows are taken four at a time. If none divides it, returns `most`. */
static int
rows_at_once(int64_t rows, int most)
{
	for (int n = most; n > 1 && n >= most / 4; n /= 2)
		if (rows % n == 0)
			return n;
	return most;
}

/* Each outer member takes one row with a team of its own, so no thread waits for another warp. */
static void
give_rows(Rows *r, int64_t part_rows)
{
	int inner = r->tiles->row_members, last = r->n_kept - 1, loops = r->nest.n;
	int rows = rows_at_once(r->nest.at[last].extent, r->lw->lb->k->team[0] / inner);

	lb_team(r->lw->lb, 1, &(int){rows * inner});
	bool cut = nest_cut(&r->nest, last, rows);
	r->n_parallel = nest_parallel(&r->nest, cut ? last + 1 : last, NULL, r->lw);
	if (r->n_parallel == last + 1 && r->nest.n == loops + cut && part_rows > rows)
		nest_cut(&r->nest, last, part_rows / rows);
	r->n_kept += r->nest.n - loops;
	r->team_rows = rows;
	team_divide(r->lw, inner);
}

/* Each part has a block of rows, whose columns it sums. Outer members take the rows of the block, each with a team of its own. */
static void
give_block(Rows *r)
{
	int inner = r->tiles->row_members, last = r->n_kept - 1, loops = r->nest.n, longest = last;

	for (r->n_parallel = 0; r->nest.at[r->n_parallel].chunk; r->n_parallel++)
		;
	for (int i = r->n_parallel; i < r->n_kept; i++)
		if (r->nest.at[i].extent > r->nest.at[longest].extent)
			longest = i;
	nest_move(&r->nest, longest, last);
	r->team_rows = rows_at_once(r->nest.at[last].extent, r->lw->lb->k->team[0] / inner);
	lb_team(r->lw->lb, 1, &(int){r->team_rows * inner});
	nest_cut(&r->nest, last, r->team_rows);
	r->n_kept += r->nest.n - loops;
	team_divide(r->lw, inner);
}

/* Like nest_parallel. In addition, for teams: if several iterations of some kept loop load the
 * same data, each part takes several of these iterations and loads the data once (reuse.c). */
static int
parallel_columns(Rows *r, int n, const LanesLoop *lanes)
{
	if (r->lw->lb->k->n_team && r->n_kept > 1 && n == r->n_kept) {
		NestProbe p = probe_rows(r);
		Cutting c = {.last = r->n_kept - 2, .n = n, .least = 1, .lanes = lanes};
		Reuse reuse = nest_reuse(r->lw, &r->nest, &p, &c);
		if (reuse.iterations > 1)
			return nest_parallel_again(&r->nest, &reuse, &c, lanes->at, r->lw);
	}
	return nest_parallel(&r->nest, n, lanes, r->lw);
}

/* Divides the team: outer members share the longest of the first n reduced loops. False: no loop is long
 * enough for all of them. */
static bool
share_rows(Rows *r, int n, int inner)
{
	int members = r->lw->lb->k->team[0];

	r->row_loop = r->n_kept;
	for (int i = r->n_kept; i < r->n_kept + n; i++)
		if (r->nest.at[i].extent > r->nest.at[r->row_loop].extent)
			r->row_loop = i;
	if (n < 1 || inner < LEAST_INNER || inner >= members ||
	    r->nest.at[r->row_loop].extent < members / inner)
		return false;
	r->team_rows = members / inner;
	team_divide(r->lw, inner);
	return true;
}

/* Divides the team, if that pays: outer members then add up different reduced elements of the
 * same results. */
static void
divide_team(Rows *r)
{
	const Kernel *k = r->lw->lb->k;
	int64_t lanes = r->lw->target->lanes;
	int last = r->nest.n - 1, reduced = r->nest.n - r->n_kept;

	if (k->n_team == 0 || k->team[0] < 2 * r->tiles->row_members)
		return;
	if (r->by_column) {
		int inner = team_inner(r->lw, r->nest.at[r->column_loop].extent);
		if (!share_rows(r, reduced, inner))
			share_rows(r, reduced, r->tiles->row_members);
		return;
	}
	if (r->full / r->rows <= r->tiles->team_row)
		return;
	int64_t extent = reduced > 0 ? r->nest.at[last].extent : 0;
	r->shares_rows = extent < k->team[0] * lanes &&
	                 share_rows(r, reduced - 1, team_inner(r->lw, extent));
}

static void
cut_parts(Rows *r)
{
	/* number of outermost kept loops whose iterations belong to different chunks */
	int loops = r->nest.n, free = 0;

	while (free < r->n_kept && (!(r->chunks || r->block_rows) || r->nest.at[free].chunk))
		free++;
	LanesLoop lanes = {.at = r->n_kept - 1,
	                   .least = r->tiles->least_columns,
	                   .most = r->tiles->most_columns,
	                   .array = true};
	r->n_parallel = r->by_column ? parallel_columns(r, free, &lanes)
	                             : nest_parallel(&r->nest, free, NULL, r->lw);
	r->n_kept += r->nest.n - loops;
	r->column_loop = r->n_kept - 1;
	divide_team(r);
}

void
cut_rows(Rows *r)
{
	bool teams = rows_have_teams(r);
	int64_t part_rows = teams && !r->block_rows ? choose_rows(r) : 0;

	if (teams && r->block_rows)
		give_block(r);
	else if (part_rows)
		give_rows(r, part_rows);
	else
		cut_parts(r);
}
