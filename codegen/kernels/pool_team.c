/* Emits pooling and its gradient for teams of GPU threads (members). A part is a block of
 * neighbouring elements of the result, and each member has some of these elements. Parts are not
 * rows of the result, because rows of 7 or 56 elements would keep few members busy.
 *
 * pool_grad gathers: each element of dx adds up dy of all windows that cover it, in the order of
 * the windows. So it has the same bits as on CPUs, where each window adds to dx in memory. For
 * maximum pooling, a serving kernel leaves the place of each window's first maximum. Without it,
 * each element of dx would search the maximum of every window that covers the element. */
#include "codegen/kernels/pool.h"
#include "codegen/lower/lower.h"

/* ---- elements in blocks */
/* The number of elements of a block: one for each member of the team, or more if there would be
 * more parts than wanted. */
static int64_t
elements_of_part(const Lower *lw, int64_t n)
{
	int64_t block = lw->target->team;

	while (lw->parts > 1 && n / block > lw->parts &&
	       block < lw->target->tuning->grains.most_block)
		block *= 2;
	return block;
}

/* Opens the loops over n elements; returns the current one. straight: the body has no loops. */
static Affine
open_elements(Lower *lw, int64_t n, bool straight, Spread *lane)
{
	LoopBuilder *lb = lw->lb;
	int64_t block = elements_of_part(lw, n);

	team_begin(lw);
	LoopValue part = lb_for(lb, LOOP_PARALLEL, ceil_div(n, block));
	Affine first = affine_scale(lb, affine_scalar(lb, part), block);
	Affine left = affine_plus(affine_scale(lb, first, -1), n);
	*lane = spread_open(lw, block, n % block ? &left : NULL);
	if (!straight)
		lane->vector = 1;
	return affine_add(lb, first, spread_enter(lane));
}

static void
close_elements(Spread *lane)
{
	spread_close(lane);
	lb_end(lane->lb);
}

/* ---- pool, pool_gather */
static void
each_element(Lower *lw, const Node *n, const Value *x, PoolElement *element)
{
	LoopBuilder *lb = lw->lb;
	Type y = node_result(n, 0)->type;
	PoolLoop p = pool_loop(lw, n, x->type, y);
	Spread lane;

	Affine i = open_elements(lw, y->n, pool_is_unrolled(&p), &lane);
	index_split(lb, y, i, &p.at);
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), i, element(&p, n));
	close_elements(&lane);
}

static void
pool_team_kernel(Lower *lw, const Node *n)
{
	each_element(lw, n, node_operand(n, 0), pool_value);
}

static void
pool_gather_team_kernel(Lower *lw, const Node *n)
{
	each_element(lw, n, node_operand(n, 1), pool_gathered);
}

/* ---- pool_grad */
/* Which windows are candidates for covering a position of x, along a spatial axis. LAST_WINDOWS:
 * the last windows that begin at the position or before it. ALL_WINDOWS: all windows. PLACES: one
 * candidate for each position q in a window, namely the window whose position q would lie on the
 * position of x; used if dilation puts the positions of a window far apart. */
typedef enum { LAST_WINDOWS, ALL_WINDOWS, PLACES } Candidates;

static int64_t
reach_of(const PoolLoop *p, int i)
{
	return (p->a->window.at[i] - 1) * p->a->dilation.at[i];
}

static Candidates
candidates(const PoolLoop *p, int i, int64_t *count)
{
	int64_t last = reach_of(p, i) / p->a->stride.at[i] + 1, all = p->y->dims[i + 2],
		places = p->a->window.at[i];

	*count = last < all ? last : all;
	if (places < *count) {
		*count = places;
		return PLACES;
	}
	return last < all ? LAST_WINDOWS : ALL_WINDOWS;
}

static void
and_divides(LoopBuilder *lb, Affine x, int64_t by, LoopValue *inside)
{
	if (by == 1)
		return;
	LoopValue rest = lb_binary(lb, LOOP_rem, lb_affine(lb, x), lb_int(lb, S64, by));
	LoopValue divides = lb_compare(lb, LOOP_eq, rest, lb_int(lb, S64, 0));
	*inside = *inside < 0 ? divides : lb_binary(lb, LOOP_and, *inside, divides);
}

static Affine
divided(LoopBuilder *lb, Affine x, int64_t by)
{
	if (by == 1)
		return x;
	return affine_scalar(lb, lb_binary(lb, LOOP_div, lb_affine(lb, x), lb_int(lb, S64, by)));
}

/* The number of the window that is candidate `at` for position `place` of x along axis i. Adds to
 * *inside the condition that this window exists and covers the position. */
static Affine
candidate(const PoolLoop *p, int i, Affine place, Affine at, LoopValue *inside)
{
	LoopBuilder *lb = p->lw->lb;
	int64_t count, stride = p->a->stride.at[i], dilation = p->a->dilation.at[i];
	Candidates kind = candidates(p, i, &count);
	Affine window = at;

	place = affine_plus(place, p->a->low.at[i]); /* counted from where window 0 begins */
	if (kind == PLACES) {
		Affine begin = affine_add_scaled(lb, affine_plus(place, -reach_of(p, i)), at,
		                                 dilation);
		and_divides(lb, begin, stride, inside);
		window = divided(lb, begin, stride);
		lb_and_inside(lb, begin, (p->y->dims[i + 2] - 1) * stride + 1, inside);
		return window;
	}
	if (kind == LAST_WINDOWS) {
		window = affine_plus(affine_add(lb, divided(lb, place, stride), at), 1 - count);
		lb_and_inside(lb, window, p->y->dims[i + 2], inside);
	}
	Affine within = affine_add_scaled(lb, place, window, -stride);
	if (kind == ALL_WINDOWS || reach_of(p, i) + 1 < stride * count)
		lb_and_inside(lb, within, reach_of(p, i) + 1, inside);
	and_divides(lb, within, dilation, inside);
	return window;
}

/* The element of dx that is being computed: one member adds up its dy. */
typedef struct {
	const PoolLoop *p; /* p->at is the element's index */
	const Value *dy;
	int winners;   /* buffer of the first maxima; -1: every position of a window gets dy */
	LoopValue own; /* the element's flat place */
} DyOf;

/* What candidate window `at` adds to the element: dy of the window, or 0 if the window's gradient
 * goes to another element. */
static LoopValue
candidate_dy(const DyOf *g, const Index *at)
{
	const PoolLoop *p = g->p;
	LoopBuilder *lb = p->lw->lb;
	LoopValue inside = -1;
	Index window = p->at;

	window.of = NULL;
	for (int i = 0; i < at->rank; i++)
		window.at[i + 2] = candidate(p, i, p->at.at[i + 2], at->at[i], &inside);
	LoopValue dy = lower_element_inside(p->lw, g->dy, &window, inside);
	if (g->winners < 0)
		return dy;
	Affine flat = index_flat(lb, p->y, &window);
	LoopValue winner = inside < 0 ? lb_load(lb, g->winners, flat)
	                              : lb_load_if(lb, g->winners, flat, inside);
	return lb_select(lb, lb_compare(lb, LOOP_eq, winner, g->own), dy,
	                 lb_number(lb, lb_type(lb, dy), 0));
}

static LoopValue
gathered_sum(const DyOf *g, Type all)
{
	LoopBuilder *lb = g->p->lw->lb;
	DType t = compute_type(g->p->x->dtype);
	LoopValue sum = lb_number(lb, t, 0);
	Index at;

	if (all->n <= g->p->lw->target->tuning->pool.most_unrolled) {
		for (int64_t k = 0; k < all->n; k++) {
			at = pool_constant_index(all, k);
			sum = lb_binary(lb, LOOP_add, sum, candidate_dy(g, &at));
		}
		return sum;
	}
	LoopValue k = lb_for(lb, LOOP_PLAIN, all->n);
	index_split(lb, all, affine_scalar(lb, k), &at);
	LoopValue dy = candidate_dy(g, &at);
	sum = lb_accumulator(lb, ACC_ADD, t);
	lb_accumulate(lb, sum, dy);
	lb_end(lb);
	return sum;
}

/* The scratch: the flat place in x of each window's first maximum. */
static Type
pool_grad_scratch(Lower *lw, const Node *n)
{
	Type x = node_result(n, 0)->type, y = node_operand(n, 0)->type;

	if (((const PoolAttr *)n->attr)->kind != POOL_MAX || x->n == 0)
		return NULL;
	return type_new(lw->m, x->n <= INT32_MAX ? S32 : S64, y->rank, y->dims);
}

static void
pool_grad_prepare(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Type y = node_operand(n, 0)->type;
	PoolLoop p = pool_loop(lw, n, node_result(n, 0)->type, y);
	DType t = lb->k->buffers.at[lower_scratch(lw)].type->dtype;
	Spread lane;

	lb->k->flops = op_row(n)->flops(n);
	Affine i = open_elements(lw, y->n, pool_is_unrolled(&p), &lane);
	index_split(lb, y, i, &p.at);
	LoopValue winner = pool_window_winner(&p, node_operand(n, 1));
	lb_store(lb, lower_scratch(lw), i, lb_cast(lb, t, winner));
	close_elements(&lane);
}

static void
pool_grad_team_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Type x = node_result(n, 0)->type, y = node_operand(n, 0)->type;
	PoolLoop p = pool_loop(lw, n, x, y);
	DyOf g = {.p = &p, .dy = node_operand(n, 0), .winners = lower_scratch(lw)};
	int64_t counts[MAX_RANK];
	Spread lane;

	for (int i = 0; i < p.window->rank; i++)
		candidates(&p, i, &counts[i]);
	Type all = type_new(lw->m, S64, p.window->rank, counts);
	bool straight = all->n <= lw->target->tuning->pool.most_unrolled;
	Affine i = open_elements(lw, x->n, straight, &lane);
	index_split(lb, x, i, &p.at);
	if (g.winners >= 0) {
		DType t = lb->k->buffers.at[g.winners].type->dtype;
		g.own = lb_cast(lb, t, lb_affine(lb, i));
	}
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), i, gathered_sum(&g, all));
	close_elements(&lane);
}

const Strategy strategy_pool_team = {.op = OP_pool,
                                     .kinds = ON(TEAMS),
                                     .doc = "windows of a block of elements",
                                     .takes = team_stores,
                                     .emit = pool_team_kernel};

const Strategy strategy_pool_grad_team = {.op = OP_pool_grad,
                                          .kinds = ON(TEAMS),
                                          .doc = "each element of dx adds its windows in order",
                                          .takes = team_stores,
                                          .emit = pool_grad_team_kernel,
                                          .scratch = pool_grad_scratch,
                                          .prepare = pool_grad_prepare};

const Strategy strategy_pool_gather_team = {.op = OP_pool_gather,
                                            .kinds = ON(TEAMS),
                                            .doc = "windows of a block of elements",
                                            .takes = team_stores,
                                            .emit = pool_gather_team_kernel};
