/* Transposes by a team. What is stored along one loop and loaded along another goes through the team's memory, a square of it at a
 * time: members load rows of the one and store rows of the other, so that both are side by side in memory. For example
 * y[i, j] = x[j, i]:
 *
 *	local square3 : f32[32,33]
 *	team v2 < 32 {
 *	  team v3 < 8 {
 *	    vector v4 < 4 {
 *	      v5 = load x0[32*v0 + 2048*v1 + 64*v2 + 4*v3 + v4] : f32
 *	      store square3[33*v2 + 4*v3 + v4] = v5
 *	...
 *	barrier
 *	team v6 < 32 {
 *	  team v7 < 8 {
 *	    vector v8 < 4 {
 *	      v9 = load square3[v6 + 132*v7 + 33*v8] : f32
 *	      store y0[2048*v0 + 32*v1 + 64*v6 + 4*v7 + v8] = v9
 *
 * Rows of 33 are for memory in 32 banks of four bytes: rows and columns of eight times four numbers, four of them at once, are in
 * banks of their own. */
#include "codegen/lower_impl.h"

enum {
	SIDE = 32,
	LEAST_SIDE = 8, /* of a loop that is worth it */
};

/* ---- which loads */
/* The loop that a load runs along, if that is another than the last. */
static int
turned_along(const LoopNest *nest, const NestLoad *load)
{
	int last = nest->n - 1;

	if (load->masked || load->strides[last] == 0 || load->strides[last] == 1)
		return -1;
	for (int d = 0; d < last; d++)
		if (load->strides[d] == 1 && nest->at[d].extent >= LEAST_SIDE)
			return d;
	return -1;
}

bool
nest_turned(Lower *lw, const LoopNest *nest, StoreElement *store, const void *ctx, Turned *out)
{
	int last = nest->n - 1;

	*out = (Turned){0};
	for (int d = 1; d < last; d++)
		if (nest->at[d].extent > nest->at[out->down].extent)
			out->down = d;
	if (lw->lb->k->n_team == 0 || lw->target->team < SIDE || nest->n < 2 ||
	    nest->at[last].extent < LEAST_SIDE)
		return false;
	NestProbe probe = nest_probe(lw, nest);
	store(lw, probe.flat, ctx);
	nest_probe_end(lw, nest, &probe);
	for (int i = 0; i < probe.loads.n && out->n < MOST_TURNED; i++) {
		int down = turned_along(nest, &probe.loads.at[i]);
		if (down < 0 || (out->n && down != out->down))
			continue;
		out->down = down;
		out->loads[out->n++] = probe.loads.at[i];
	}
	return out->n > 0;
}

/* ---- one square */
/* A side of it: up to 32 iterations of a loop. */
typedef struct {
	int64_t extent; /* of the square */
	Affine first;
	bool ends; /* within the square */
	Affine left;
} Side;

static int64_t
squares(const LoopDim *d)
{
	return (d->extent + SIDE - 1) / SIDE;
}

static Side
side_of(LoopBuilder *lb, const LoopDim *d, Affine square)
{
	Side s = {.extent = d->extent < SIDE ? d->extent : SIDE,
	          .first = affine_scale(lb, square, SIDE)};

	s.ends = d->extent % s.extent != 0;
	s.left = affine_plus(affine_scale(lb, s.first, -1), d->extent);
	return s;
}

/* Opens a side for the outer members; how many loops. */
static int
open_rows(LoopBuilder *lb, const Side *s, Affine *at)
{
	int members = lb->k->team[0], loops = 1;

	*at = affine_scalar(lb, lb_for(lb, LOOP_TEAM, members));
	if (s->extent > members) {
		LoopValue group = lb_for(lb, LOOP_PLAIN, (s->extent + members - 1) / members);
		*at = affine_add_scaled(lb, *at, affine_scalar(lb, group), members);
		loops++;
	}
	if (s->extent % members)
		*at = nest_if_below(lb, *at, affine_constant(s->extent), &loops);
	if (s->ends)
		*at = nest_if_below(lb, *at, s->left, &loops);
	return loops;
}

/* Outer members have the rows, inner ones run along them; both within the square. */
typedef struct {
	LoopBuilder *lb;
	Spread lane;
	int rows; /* loops over them */
	Affine row, column;
} Walk;

static Walk
open_walk(Lower *lw, const Side *rows, const Side *columns)
{
	Walk w = {.lb = lw->lb};

	w.rows = open_rows(lw->lb, rows, &w.row);
	w.lane = spread_open(lw, columns->extent, columns->ends ? &columns->left : NULL);
	w.column = spread_enter(&w.lane);
	return w;
}

static void
close_walk(Walk *w)
{
	spread_close(&w->lane);
	for (int i = 0; i < w->rows; i++)
		lb_end(w->lb);
}

static Affine
place_at(LoopBuilder *lb, const NestLoad *load, const Affine *at, int loops)
{
	Affine place = affine_constant(load->constant);

	for (int d = 0; d < loops; d++)
		place = affine_add_scaled(lb, place, at[d], load->strides[d]);
	return place;
}

static Affine
flat_at(LoopBuilder *lb, const LoopNest *nest, const Affine *at)
{
	Affine flat = affine_constant(0);

	for (int d = 0; d < nest->n; d++)
		flat = affine_add_scaled(lb, flat, at[d], nest->at[d].full);
	return flat;
}

/* Iterations of the loops around squares. */
static Type
squares_of(Lower *lw, const LoopNest *nest, const Turned *t)
{
	int64_t n[MAX_RANK];

	for (int d = 0; d < nest->n; d++)
		n[d] = d == t->down || d == nest->n - 1 ? squares(&nest->at[d])
		                                        : nest->at[d].extent;
	return type_new(lw->m, S64, nest->n, n);
}

int64_t
nest_squares(Lower *lw, const LoopNest *nest, const Turned *t)
{
	return squares_of(lw, nest, t)->n;
}

static int
new_square(Lower *lw, const NestLoad *load)
{
	DType memory = lw->lb->k->buffers.at[load->buffer].type->dtype;

	return lb_padded(lw->lb, "square",
	                 type_new(lw->m, compute_type(memory), 2, (int64_t[]){SIDE, SIDE + 1}), 0);
}

void
lower_square(Lower *lw, const LoopNest *nest, const Turned *t, Affine number, StoreElement *store,
             const void *ctx)
{
	LoopBuilder *lb = lw->lb;
	int last = nest->n - 1;
	int arrays[MOST_TURNED];
	Brought brought[MOST_TURNED];
	Index at;

	index_split(lb, squares_of(lw, nest, t), number, &at);
	Side down = side_of(lb, &nest->at[t->down], at.at[t->down]);
	Side along = side_of(lb, &nest->at[last], at.at[last]);
	for (int i = 0; i < t->n; i++)
		arrays[i] = new_square(lw, &t->loads[i]);
	for (int i = 0; i < t->n; i++) {
		Walk w = open_walk(lw, &along, &down);
		at.at[last] = affine_add(lb, along.first, w.row);
		at.at[t->down] = affine_add(lb, down.first, w.column);
		Affine place = place_at(lb, &t->loads[i], at.at, nest->n);
		lb_store(lb, arrays[i], affine_add_scaled(lb, w.column, w.row, SIDE + 1),
		         lb_load(lb, t->loads[i].buffer, place));
		close_walk(&w);
	}
	if (t->n)
		lb_barrier(lb);
	Walk w = open_walk(lw, &down, &along);
	at.at[last] = affine_add(lb, along.first, w.column);
	at.at[t->down] = affine_add(lb, down.first, w.row);
	for (int i = 0; i < t->n; i++)
		brought[i] = (Brought){t->loads[i].buffer,
		                       place_at(lb, &t->loads[i], at.at, nest->n), arrays[i],
		                       affine_add_scaled(lb, w.row, w.column, SIDE + 1)};
	lw->state->brought = brought;
	lw->state->n_brought = t->n;
	store(lw, flat_at(lb, nest, at.at), ctx);
	lw->state->n_brought = 0;
	close_walk(&w);
}

void
team_for_squares(Lower *lw)
{
	int columns = SIDE / team_vector(lw), rows = lw->target->team / columns;

	lb_team(lw->lb, 2, (int[]){rows < SIDE ? rows : SIDE, columns});
}
