/* Emits pooling and its gradient for CPUs: each part runs on one thread and loops over rows of
 * the smaller tensor. */
#include "codegen/kernels/pool.h"
#include "codegen/lower/lower.h"

#include <math.h>
#include <string.h>

/* ---- lowering */
/* The index in x of position q of the current window. Sets *inside to the condition that it lies
 * in x; -1: it always does. */
static Index
pool_place(const PoolLoop *p, const Index *q, LoopValue *inside)
{
	LoopBuilder *lb = p->lw->lb;
	Index at = p->at;

	at.of = NULL;
	*inside = -1;
	for (int i = 0; i < q->rank; i++) {
		Affine place = affine_add_scaled(
			lb, affine_scale(lb, p->at.at[i + 2], p->a->stride.at[i]), q->at[i],
			p->a->dilation.at[i]);
		place = affine_plus(place, -p->a->low.at[i]);
		int64_t last = (p->y->dims[i + 2] - 1) * p->a->stride.at[i] +
		               (p->a->window.at[i] - 1) * p->a->dilation.at[i] - p->a->low.at[i];
		at.at[i + 2] = place;
		if (p->a->low.at[i] == 0 && last < p->x->dims[i + 2])
			continue;
		lb_and_inside(lb, place, p->x->dims[i + 2], inside);
	}
	return at;
}

static LoopValue
when_inside(LoopBuilder *lb, LoopValue inside, LoopValue x, LoopValue other)
{
	return inside < 0 ? x : lb_select(lb, inside, x, other);
}

bool
pool_is_unrolled(const PoolLoop *p)
{
	return p->window->n <= p->lw->target->tuning->pool.most_unrolled;
}

Index
pool_constant_index(Type t, int64_t flat)
{
	Index at = {.rank = t->rank};

	for (int i = t->rank - 1; i >= 0; i--) {
		at.at[i] = affine_constant(flat % t->dims[i]);
		flat /= t->dims[i];
	}
	return at;
}

/* x at window position q; `outside` if that position is not in x. */
static LoopValue
window_element(const PoolLoop *p, const Value *x, const Index *q, double outside)
{
	LoopValue inside;
	Index at = pool_place(p, q, &inside);
	LoopValue v = lower_element_inside(p->lw, x, &at, inside);

	if (outside == 0)
		return v;
	return when_inside(p->lw->lb, inside, v,
	                   lb_float(p->lw->lb, compute_type(p->x->dtype), outside));
}

LoopValue
pool_window_value(const PoolLoop *p, const Value *x)
{
	LoopBuilder *lb = p->lw->lb;
	bool is_max = p->a->kind == POOL_MAX;
	double outside = is_max ? -INFINITY : 0;
	LoopValue sum = -1;
	Index q;

	for (int64_t k = 0; pool_is_unrolled(p) && k < p->window->n; k++) {
		q = pool_constant_index(p->window, k);
		LoopValue v = window_element(p, x, &q, outside);
		sum = sum < 0 ? v : lb_binary(lb, is_max ? LOOP_max : LOOP_add, sum, v);
	}
	if (sum >= 0)
		return sum;
	LoopValue k = lb_for(lb, LOOP_PLAIN, p->window->n);
	index_split(lb, p->window, affine_scalar(lb, k), &q);
	LoopValue v = window_element(p, x, &q, outside);
	sum = lb_accumulator(lb, is_max ? ACC_MAX : ACC_ADD, compute_type(p->x->dtype));
	lb_accumulate(lb, sum, v);
	lb_end(lb);
	return sum;
}

/* The flat place in x of position q of the current window, if the element there equals `best` or
 * is NaN; otherwise the last place of x, so that the smallest of all these places is the first
 * maximum. NaN counts as the maximum. */
static LoopValue
place_if_best(const PoolLoop *p, const Value *x, const Index *q, LoopValue best)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue inside;
	Index at = pool_place(p, q, &inside);
	LoopValue v = lower_element_inside(p->lw, x, &at, inside);
	LoopValue hit = lb_binary(lb, LOOP_or, lb_compare(lb, LOOP_eq, v, best),
	                          lb_op(lb, LOOP_is_nan, BOOL, &v));

	if (inside >= 0)
		hit = lb_binary(lb, LOOP_and, hit, inside);
	return lb_select(lb, hit, lb_affine(lb, index_flat(lb, p->x, &at)),
	                 lb_int(lb, S64, p->x->n - 1));
}

LoopValue
pool_window_winner(const PoolLoop *p, const Value *x)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue best = pool_window_value(p, x), first = -1;
	Index q;

	for (int64_t k = 0; pool_is_unrolled(p) && k < p->window->n; k++) {
		q = pool_constant_index(p->window, k);
		LoopValue place = place_if_best(p, x, &q, best);
		first = first < 0 ? place : lb_binary(lb, LOOP_min, first, place);
	}
	if (first >= 0)
		return first;
	LoopValue k = lb_for(lb, LOOP_PLAIN, p->window->n);
	index_split(lb, p->window, affine_scalar(lb, k), &q);
	LoopValue place = place_if_best(p, x, &q, best);
	first = lb_accumulator(lb, ACC_MIN, S64);
	lb_accumulate(lb, first, place);
	lb_end(lb);
	return first;
}

PoolLoop
pool_loop(Lower *lw, const Node *n, Type x, Type y)
{
	const PoolAttr *a = n->attr;

	return (PoolLoop){.lw = lw,
	                  .a = a,
	                  .x = x,
	                  .y = y,
	                  .window = type_new(lw->m, S64, a->window.n, a->window.at)};
}

/* The elements of a row of y, which lies along y's last axis. */
static int64_t
row_size(Type y)
{
	return y->dims[y->rank - 1];
}
static int64_t
row_count(Type y)
{
	return y->n ? y->n / row_size(y) : 0;
}

static LoopMode
row_mode(const PoolLoop *p)
{
	return pool_is_unrolled(p) ? LOOP_VECTOR : LOOP_PLAIN;
}

/* Opens the loop over the elements of row `row` of y. Returns the flat number of the element. */
static Affine
open_row(PoolLoop *p, Affine row, LoopMode mode)
{
	LoopBuilder *lb = p->lw->lb;
	int64_t dims[MAX_RANK];
	int last = p->y->rank - 1;

	memcpy(dims, p->y->dims, sizeof(*dims) * (size_t)last);
	index_split(lb, type_new(p->lw->m, S64, last, dims), row, &p->at);
	LoopValue i = lb_for(lb, mode, row_size(p->y));
	p->at.rank = last + 1;
	p->at.of = NULL;
	p->at.at[last] = affine_scalar(lb, i);
	return affine_add(lb, affine_scale(lb, row, row_size(p->y)), affine_scalar(lb, i));
}

LoopValue
pool_value(const PoolLoop *p, const Node *n)
{
	return pool_window_value(p, node_operand(n, 0));
}

LoopValue
pool_gathered(const PoolLoop *p, const Node *n)
{
	LoopBuilder *lb = p->lw->lb;
	Index at;

	index_split(lb, p->x, affine_scalar(lb, pool_window_winner(p, node_operand(n, 1))), &at);
	return lower_element(p->lw, node_operand(n, 0), &at);
}

/* x: the tensor that windows lie over. */
static void
each_element(Lower *lw, const Node *n, const Value *x, PoolElement *element)
{
	LoopBuilder *lb = lw->lb;
	Type y = node_result(n, 0)->type;
	PoolLoop p = pool_loop(lw, n, x->type, y);

	LoopValue row = lb_for(lb, LOOP_PARALLEL, row_count(y));
	Affine i = open_row(&p, affine_scalar(lb, row), row_mode(&p));
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), i, element(&p, n));
	lb_end(lb);
	lb_end(lb);
}

static void
pool_kernel(Lower *lw, const Node *n)
{
	each_element(lw, n, node_operand(n, 0), pool_value);
}

static void
pool_gather_kernel(Lower *lw, const Node *n)
{
	each_element(lw, n, node_operand(n, 1), pool_gathered);
}

/* Adds v to dx at a flat place. The place lies in the plane that this iteration owns. */
static void
add_to(LoopBuilder *lb, int out, Affine place, LoopValue v)
{
	lb_store(lb, out, place, lb_binary(lb, LOOP_add, lb_load(lb, out, place), v));
}

/* An enclosing condition keeps the place inside x when the kernel runs. But the loop checkers must
 * also see this from the place's form. Returns the place, clamped if its form does not show it. */
static Affine
place_inside(const PoolLoop *p, Affine place)
{
	LoopBuilder *lb = p->lw->lb;
	int64_t low, high;

	if (!affine_range(lb->scratch, &place, lb->extents.at, lb->bounds.at, &low, &high) ||
	    (low >= 0 && high < p->x->n))
		return place;
	LoopValue at = lb_binary(lb, LOOP_max, lb_affine(lb, place), lb_int(lb, S64, 0));
	return affine_scalar(lb, lb_binary(lb, LOOP_min, at, lb_int(lb, S64, p->x->n - 1)));
}

static void
spread_sum(const PoolLoop *p, int out, LoopValue dy)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue inside;
	Index q;

	LoopValue k = lb_for(lb, LOOP_PLAIN, p->window->n);
	index_split(lb, p->window, affine_scalar(lb, k), &q);
	Index at = pool_place(p, &q, &inside);
	if (inside >= 0)
		lb_if(lb, inside);
	Affine place = index_flat(lb, p->x, &at);
	add_to(lb, out, inside < 0 ? place : place_inside(p, place), dy);
	if (inside >= 0)
		lb_end(lb);
	lb_end(lb);
}

/* Adds every element of a row of dy to dx, at the place of the first maximum of its window. The
 * maxima are found in vectors; the additions are done one by one, because windows overlap. */
static void
spread_to_winners(PoolLoop *p, const Node *n, int out, Affine row)
{
	LoopBuilder *lb = p->lw->lb;
	int winners = lb_local(lb, S64, row_size(p->y));

	open_row(p, row, row_mode(p));
	LoopValue winner = pool_window_winner(p, node_operand(n, 1));
	lb_store(lb, winners, p->at.at[p->y->rank - 1], winner);
	lb_end(lb);
	LoopValue i = lb_for(lb, LOOP_PLAIN, row_size(p->y));
	p->at.at[p->y->rank - 1] = affine_scalar(lb, i);
	LoopValue dy = lower_element(p->lw, node_operand(n, 0), &p->at);
	add_to(lb, out, affine_scalar(lb, lb_load(lb, winners, affine_scalar(lb, i))), dy);
	lb_end(lb);
}

/* Each plane (one channel of one image) is a part, because only windows within a plane overlap. */
static void
pool_grad_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Type x = node_result(n, 0)->type, y = node_operand(n, 0)->type;
	int out = lower_buffer(lw, node_result(n, 0));
	int64_t planes = x->dims[0] * x->dims[1], size = planes ? x->n / planes : 0;
	int64_t rows = planes ? row_count(y) / planes : 0;
	PoolLoop p = pool_loop(lw, n, x, y);

	LoopValue plane = lb_for(lb, LOOP_PARALLEL, planes);
	LoopValue i = lb_for(lb, LOOP_VECTOR, size);
	lb_store(lb, out,
	         affine_add(lb, affine_scale(lb, affine_scalar(lb, plane), size),
	                    affine_scalar(lb, i)),
	         lb_number(lb, compute_type(x->dtype), 0));
	lb_end(lb);
	i = lb_for(lb, LOOP_PLAIN, rows);
	Affine row = affine_add(lb, affine_scale(lb, affine_scalar(lb, plane), rows),
	                        affine_scalar(lb, i));
	if (p.a->kind == POOL_MAX) {
		spread_to_winners(&p, n, out, row);
	} else {
		open_row(&p, row, LOOP_PLAIN);
		spread_sum(&p, out, lower_element(lw, node_operand(n, 0), &p.at));
		lb_end(lb);
	}
	lb_end(lb);
	lb_end(lb);
}

static bool
pool_grad_sums(const Node *n)
{
	(void)n;
	return true;
}

const Strategy strategy_pool = {.op = OP_pool,
                                .kinds = ON_EVERY_KIND,
                                .doc = "windows of each row in vectors",
                                .emit = pool_kernel};

const Strategy strategy_pool_grad = {.op = OP_pool_grad,
                                     .kinds = ON_EVERY_KIND,
                                     .doc = "planes in parallel, windows in order",
                                     .emit = pool_grad_kernel,
                                     .sums_in_memory = pool_grad_sums};

const Strategy strategy_pool_gather = {.op = OP_pool_gather,
                                       .kinds = ON_EVERY_KIND,
                                       .doc = "windows of each row in vectors",
                                       .emit = pool_gather_kernel};
