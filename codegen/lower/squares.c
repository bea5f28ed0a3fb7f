/* Transposes data with a team of GPU threads (members). If data is stored along one loop and
 * loaded along another, it goes through team memory, one square at a time. Members load rows of
 * the input and store rows of the output, so that both are contiguous in memory. For example y[i,
 * j] = x[j, i]:
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
 * Rows of the square have 33 elements because team memory has 32 banks of four bytes, and numbers
 * in the same bank are read one after the other. The team is divided into groups (outer members)
 * of 8 threads (inner members). With rows of 33, the 32 numbers that 4 groups of 8 threads access
 * together lie in 32 different banks, along rows and along columns. */
#include "codegen/lower/nest.h"

#include <string.h>

/* ---- which loads */
/* The loop along which the load's elements are neighbours in memory, if it is not the last loop;
 * -1: there is no such loop. */
static int
turned_along(const LoopNest *nest, const NestLoad *load)
{
	int last = nest->n - 1;

	if (load->masked || nest->at[last].extent < LEAST_SQUARE_SIDE || load->strides[last] == 0 ||
	    load->strides[last] == 1)
		return -1;
	for (int d = 0; d < last; d++)
		if (load->strides[d] == 1 && nest->at[d].extent >= LEAST_SQUARE_SIDE)
			return d;
	return -1;
}

/* The longest loop other than the last loop. */
static int
longest_loop(const LoopNest *nest)
{
	int longest = 0;

	for (int d = 1; d < nest->n - 1; d++)
		if (nest->at[d].extent > nest->at[longest].extent)
			longest = d;
	return longest;
}

bool
nest_squares(const Lower *lw, const LoopNest *nest, const NestProbe *p, Squares *out)
{
	*out = (Squares){.again = {.iterations = 1}};
	if (lw->lb->k->n_team == 0 || lw->target->team < SQUARE_SIDE || nest->n < 2)
		return false;
	for (int i = 0; i < p->loads.n && out->n < MOST_TURNED; i++) {
		int down = turned_along(nest, &p->loads.at[i]);
		if (down < 0 || (out->n && down != out->down))
			continue;
		out->down = down;
		out->loads[out->n++] = p->loads.at[i];
	}
	if (out->n == 0)
		out->down = longest_loop(nest);
	Cutting c = {.last = nest->n - 1, .least = 1, .squares = out};
	out->again = nest_reuse(lw, nest, p, &c);
	return true;
}

/* ---- one square */
/* A side of a square: up to 32 iterations of a loop. */
typedef struct {
	int64_t extent; /* iterations of the square */
	Affine first;
	bool ends; /* may the loop end within the square? */
	Affine left;
} Side;

static Side
side_of(LoopBuilder *lb, const LoopDim *d, Affine square)
{
	Side s = {.extent = d->extent < SQUARE_SIDE ? d->extent : SQUARE_SIDE,
	          .first = affine_scale(lb, square, SQUARE_SIDE)};

	s.ends = d->extent % s.extent != 0;
	s.left = affine_plus(affine_scale(lb, s.first, -1), d->extent);
	return s;
}

/* Opens a loop over this side, whose iterations outer members share; returns how many loops that
 * opened. */
static int
open_rows(LoopBuilder *lb, const Side *s, Affine *at)
{
	int members = lb->k->team[0], loops = 1;

	*at = affine_scalar(lb, lb_for(lb, LOOP_TEAM, members));
	if (s->extent > members) {
		LoopValue group = lb_for(lb, LOOP_PLAIN, ceil_div(s->extent, members));
		*at = affine_add_scaled(lb, *at, affine_scalar(lb, group), members);
		loops++;
	}
	if (s->extent % members)
		*at = nest_if_below(lb, *at, affine_constant(s->extent), &loops);
	if (s->ends)
		*at = nest_if_below(lb, *at, s->left, &loops);
	return loops;
}

/* A walk over a square: outer members take rows, inner members run along them. row and column count within
 * the square. */
typedef struct {
	LoopBuilder *lb;
	Spread lane;
	int rows; /* loops over rows */
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

int64_t
squares_along(const LoopNest *nest, const Squares *s, int loop)
{
	int64_t n = nest->at[loop].extent;

	if (loop == s->down || loop == nest->n - 1)
		return ceil_div(n, SQUARE_SIDE);
	return loop == s->again.loop ? ceil_div(n, s->again.iterations) : n;
}

/* The number of iterations of the loops around squares, as a shape. */
static Type
squares_of(Lower *lw, const LoopNest *nest, const Squares *s)
{
	int64_t n[MAX_RANK];

	for (int d = 0; d < nest->n; d++)
		n[d] = squares_along(nest, s, d);
	return type_new(lw->m, S64, nest->n, n);
}

int64_t
squares_count(Lower *lw, const LoopNest *nest, const Squares *s)
{
	return squares_of(lw, nest, s)->n;
}

static DType
array_type(const Lower *lw, const NestLoad *load)
{
	return compute_type(lw->lb->k->buffers.at[load->buffer].type->dtype);
}

/* Sets arrays[i] to the array for load i of the square: the next unused one of the load's dtype. */
static void
arrays_of(const Lower *lw, const Squares *s, int *arrays)
{
	int used[N_DTYPES] = {0};

	for (int i = 0; i < s->n; i++) {
		DType type = array_type(lw, &s->loads[i]);
		arrays[i] = lw->state->square_arrays[type][used[type]++];
	}
}

/* Copies the square's elements of one load into `array`: members run along the side along which
 * the load is contiguous. */
static void
bring(Lower *lw, const LoopNest *nest, const NestLoad *load, int array, const Side *down,
      const Side *along, const Affine *around, int loop)
{
	LoopBuilder *lb = lw->lb;
	Affine at[MAX_NEST];
	Walk w = open_walk(lw, along, down);

	memcpy(at, around, sizeof(*at) * (size_t)nest->n);
	at[nest->n - 1] = affine_add(lb, along->first, w.row);
	at[loop] = affine_add(lb, down->first, w.column);
	LoopValue x = lb_load(lb, load->buffer, place_at(lb, load, at, nest->n));
	lb_store(lb, array, affine_add_scaled(lb, w.column, w.row, SQUARE_SIDE + 1), x);
	close_walk(&w);
}

/* Emits one square. at[d]: for the two loops along which squares lie, the number of the square
 * along loop d; for every other loop, its iteration. */
static void
one_square(Lower *lw, const LoopNest *nest, const Squares *s, const int *arrays, Affine *at,
           StoreElement *store, const void *ctx)
{
	LoopBuilder *lb = lw->lb;
	int last = nest->n - 1;
	Side down = side_of(lb, &nest->at[s->down], at[s->down]);
	Side along = side_of(lb, &nest->at[last], at[last]);
	Brought brought[MOST_TURNED];

	for (int i = 0; i < s->n; i++)
		bring(lw, nest, &s->loads[i], arrays[i], &down, &along, at, s->down);
	if (s->n)
		lb_barrier(lb);
	Walk w = open_walk(lw, &down, &along);
	at[last] = affine_add(lb, along.first, w.column);
	at[s->down] = affine_add(lb, down.first, w.row);
	for (int i = 0; i < s->n; i++)
		brought[i] = (Brought){s->loads[i].buffer, place_at(lb, &s->loads[i], at, nest->n),
		                       arrays[i],
		                       affine_add_scaled(lb, w.row, w.column, SQUARE_SIDE + 1)};
	lw->state->brought = brought;
	lw->state->n_brought = s->n;
	store(lw, flat_at(lb, nest, at), ctx);
	lw->state->n_brought = 0;
	close_walk(&w);
}

void
lower_square(Lower *lw, const LoopNest *nest, const Squares *s, Affine number, StoreElement *store,
             const void *ctx)
{
	LoopBuilder *lb = lw->lb;
	int arrays[MOST_TURNED], loops = 0;
	int64_t again = s->again.iterations, extent = nest->at[s->again.loop].extent;
	Index at;

	index_split(lb, squares_of(lw, nest, s), number, &at);
	arrays_of(lw, s, arrays);
	if (again > 1) {
		Affine *repeated = &at.at[s->again.loop],
		       first = affine_scale(lb, *repeated, again);
		*repeated = affine_add(lb, first, affine_scalar(lb, lb_for(lb, LOOP_PLAIN, again)));
		loops = 1;
		if (extent % again)
			*repeated = nest_if_below(lb, *repeated, affine_constant(extent), &loops);
		if (s->n) /* members may still read the previous square */
			lb_barrier(lb);
	}
	one_square(lw, nest, s, arrays, at.at, store, ctx);
	for (int i = 0; i < loops; i++)
		lb_end(lb);
}

void
squares_want(Lower *lw, const Squares *s)
{
	int used[N_DTYPES] = {0}, *most = lw->state->n_squares;

	for (int i = 0; i < s->n; i++) {
		DType type = array_type(lw, &s->loads[i]);
		if (++used[type] > most[type])
			most[type] = used[type];
	}
}

void
squares_begin(Lower *lw)
{
	struct LowerState *st = lw->state;
	int columns = SQUARE_SIDE / team_vector(lw), rows = lw->target->team / columns;
	const int64_t dims[] = {SQUARE_SIDE, SQUARE_SIDE + 1};

	lb_team(lw->lb, 2, (int[]){rows < SQUARE_SIDE ? rows : SQUARE_SIDE, columns});
	for (DType t = 0; t < N_DTYPES; t++)
		for (int i = 0; i < st->n_squares[t]; i++)
			st->square_arrays[t][i] = lb_padded(lw->lb, "square",
			                                    type_new(lw->m, t, 2, dims), 0);
}
