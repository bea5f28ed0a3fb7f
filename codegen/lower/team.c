/* Emits loops that the members of a team (the threads of a GPU block) share. For example, 8
 * members share a row of 36 elements, in vectors of four:
 *
 *	team v1 < 8 {
 *	  for v2 < 2 {
 *	    for v3 < min(1, -8*v2 - v1 + 9) {
 *	      vector v4 < 4 {
 *	        v5 = load x0[36*v0 + 32*v2 + 4*v1 + 4*v3 + v4] : f32
 *
 * Neighbouring members read neighbouring elements. The loop over v3 runs once or not at all; its
 * bound shows later stages that the place is below 36. Such a loop exists only if some members
 * have fewer elements than others. All loops of a kernel over one axis give an element to the
 * same member, so that members never touch each other's elements of an array. */
#include "codegen/lower/nest.h"

/* Does every result have elements of at least a byte? If not, members would store parts of the
 * same byte at the same time. */
static bool
stores_whole_bytes(const Function *f)
{
	const Node *ret = function_return(f);

	for (int i = 0; i < ret->n_operands; i++)
		if (dtype_info[node_operand(ret, i)->type->dtype].bits < 8)
			return false;
	return true;
}

bool
team_begin(Lower *lw)
{
	int members = lw->target->team;

	if (members < 2 || !stores_whole_bytes(lw->f))
		return false;
	lb_team(lw->lb, 1, &members);
	return true;
}

bool
team_begin_for(Lower *lw, int64_t elements)
{
	int members = lw->target->tuning->reduce.row_members;

	if (!team_begin(lw))
		return false;
	while (members < lw->target->team && (int64_t)members * lw->target->lanes < elements)
		members *= 2;
	if (members < lw->target->team)
		lb_team(lw->lb, 1, &members);
	return true;
}

void
team_divide(Lower *lw, int inner)
{
	lb_team(lw->lb, 2, (int[]){lw->lb->k->team[0] / inner, inner});
}

/* How many members share a row: all of the team, or the inner members of a divided team. */
static int
members_of(const Kernel *k)
{
	return k->n_team ? k->team[k->n_team - 1] : 1;
}

int
team_vector(const Lower *lw)
{
	const Kernel *k = lw->lb->k;
	int bits = 64, most = 2 * lw->target->lanes;

	for (int i = 0; i < k->n_inputs + k->n_outputs; i++) {
		DType d = k->buffers.at[i].type->dtype;
		if (k->buffers.at[i].type->n > 1 && dtype_info[d].bits < bits)
			bits = dtype_info[d].bits;
	}
	int n = bits < 8 ? most : 32 * lw->target->lanes / bits;
	return n < 1 ? 1 : n < most ? n : most;
}

/* How many neighbouring iterations a member takes as one vector: the most with which more than
 * half of the members still have a vector. The extent and the bound must be multiples of it. */
static int
vector_along(const Lower *lw, int64_t extent, const Affine *below)
{
	const Kernel *k = lw->lb->k;
	int vector = k->n_team ? team_vector(lw) : 1;

	while (vector > 1 &&
	       (extent % vector || (below && !affine_is_multiple(below, -1, vector)) ||
	        2 * extent / vector <= members_of(k)))
		vector /= 2;
	return vector;
}

static int64_t
groups_of(const Kernel *k, int64_t extent, int vector)
{
	int members = members_of(k);

	return ceil_div(extent / vector, members);
}

int64_t
spread_own(const Lower *lw, int64_t extent)
{
	int vector = vector_along(lw, extent, NULL);

	return groups_of(lw->lb->k, extent, vector) * vector;
}

Spread
spread_open(Lower *lw, int64_t extent, const Affine *below)
{
	LoopBuilder *lb = lw->lb;
	Spread s = {.lb = lb,
	            .extent = extent,
	            .vector = vector_along(lw, extent, below),
	            .below = below ? arena_copy(lb->scratch, below, sizeof(*below)) : NULL};

	if (lb->k->n_team)
		s.variable = lb_for(lb, LOOP_TEAM, members_of(lb->k));
	else if (below)
		s.variable = lb_for_below(lb, LOOP_VECTOR, extent, *below);
	else
		s.variable = lb_for(lb, LOOP_VECTOR, extent);
	return s;
}

static Affine
divided(LoopBuilder *lb, const Affine *a, int by)
{
	Affine x = affine_constant(a->constant / by);

	for (int i = 0; i < a->n; i++)
		x = affine_add(lb, x,
		               affine_scale(lb, affine_scalar(lb, a->terms[i].scalar),
		                            a->terms[i].coefficient / by));
	return x;
}

Affine
nest_if_below(LoopBuilder *lb, Affine at, Affine end, int *loops)
{
	Affine left = affine_add_scaled(lb, end, at, -1);

	++*loops;
	return affine_add(lb, at, affine_scalar(lb, lb_for_below(lb, LOOP_PLAIN, 1, left)));
}

Affine
spread_enter(Spread *s)
{
	LoopBuilder *lb = s->lb;
	Affine at = affine_scalar(lb, s->variable);

	if (lb->k->n_team == 0)
		return at;
	/* counted in vectors */
	int64_t members = members_of(lb->k), n = s->extent / s->vector,
		groups = groups_of(lb->k, s->extent, s->vector);
	s->own = affine_constant(0);
	if (groups != 1) {
		LoopMode mode = s->unrolled ? LOOP_UNROLL : LOOP_PLAIN;
		Affine group = affine_scalar(lb, lb_for(lb, mode, groups));
		at = affine_add(lb, affine_scale(lb, group, members), at);
		s->own = affine_scale(lb, group, s->vector);
		s->inner++;
	}
	if (n % members)
		at = nest_if_below(lb, at, affine_constant(n), &s->inner);
	if (s->below)
		at = nest_if_below(lb, at, divided(lb, s->below, s->vector), &s->inner);
	at = affine_scale(lb, at, s->vector);
	if (s->vector > 1) {
		Affine lane = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, s->vector));
		at = affine_add(lb, at, lane);
		s->own = affine_add(lb, s->own, lane);
		s->inner++;
	}
	return at;
}

void
spread_close(Spread *s)
{
	for (int i = 0; i <= s->inner; i++)
		lb_end(s->lb);
}

Spread
nest_spread(Lower *lw, const LoopNest *nest, int at)
{
	const LoopDim *d = &nest->at[at];

	if (!d->whole)
		return spread_open(lw, d->extent, NULL);
	Affine below = nest_left(lw->lb, d);
	return spread_open(lw, d->extent, &below);
}

int
nest_spread_loop(const Lower *lw, const LoopNest *nest)
{
	const Kernel *k = lw->lb->k;
	int last = nest->n - 1, at = last, members = members_of(k), longest = last;

	while (at > 0 && nest->at[at].extent < members)
		at--;
	if (at >= 0 && nest->at[at].extent >= members)
		return at;
	if (last < 0 || k->n_team == 0 ||
	    nest->at[last].extent >= lw->target->tuning->reduce.row_members)
		return last;
	/* A few iterations would leave most members idle, such as three colors of images. */
	for (int i = last - 1; i >= 0; i--)
		if (nest->at[i].extent > nest->at[longest].extent)
			longest = i;
	return longest;
}

int
nest_open_rows(Lower *lw, const LoopNest *nest, int at, Affine *step)
{
	LoopBuilder *lb = lw->lb;
	const LoopDim *d = &nest->at[at];
	int rows = lb->k->team[0];

	*step = affine_scalar(lb, lb_for(lb, LOOP_TEAM, rows));
	int loops = 1;
	if (d->extent < rows) /* the block may have fewer rows than there are members */
		*step = nest_if_below(lb, *step, affine_constant(d->extent), &loops);
	if (d->whole)
		*step = nest_if_below(lb, *step, nest_left(lb, d), &loops);
	return loops;
}

int
team_inner(const Lower *lw, int64_t elements)
{
	int inner = 1;

	while (inner < lw->target->tuning->reduce.row_members &&
	       (int64_t)inner * lw->target->lanes < elements)
		inner *= 2;
	return inner;
}

/* The nearest loop before the last with at least `rows` iterations, one for each outer member; -1: none. */
static int
loop_of_rows(const LoopNest *nest, int rows)
{
	int at = nest->n - 2;

	while (at >= 0 && nest->at[at].extent < rows)
		at--;
	return at;
}

int
nest_divide(Lower *lw, LoopNest *nest)
{
	const Kernel *k = lw->lb->k;
	int last = nest->n - 1, members = members_of(k);

	if (k->n_team == 0 || nest->n < 2 ||
	    nest->at[last].extent >= (int64_t)members * lw->target->lanes)
		return -1;
	int inner = team_inner(lw, nest->at[last].extent), rows = members / inner;
	int at = inner < LEAST_INNER || rows < 2 ? -1 : loop_of_rows(nest, rows);
	if (at < 0)
		return -1;
	nest_move(nest, at, last - 1);
	if (nest->at[last - 1].extent > rows) {
		if (!nest_cut(nest, last - 1, rows))
			return -1;
		last++;
	}
	team_divide(lw, inner);
	return last - 1;
}
