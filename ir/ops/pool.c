/* Windows over the spatial axes: pool (max or sum), its adjoint, and the adjoint's adjoint.
 * x: T[batch, channel, spatial...]; places outside x do not count. The first maximum of a window in
 * row-major order takes its whole gradient, as torch's max_pool. */
#include "ir/ops/family.h"

#include <math.h>
#include <string.h>

static const char *const pool_kind_names[] = {"max", "sum", NULL};
/* clang-format off */
#define KIND_FIELD {"kind", FIELD_ENUM, offsetof(PoolAttr, kind), pool_kind_names, false}
#define WINDOW_FIELDS                                              \
	{"window", FIELD_INTS, offsetof(PoolAttr, window), NULL, false}, \
	{"stride", FIELD_INTS, offsetof(PoolAttr, stride), NULL, false}, \
	{"low", FIELD_INTS, offsetof(PoolAttr, low), NULL, false},       \
	{"high", FIELD_INTS, offsetof(PoolAttr, high), NULL, false},     \
	{"dilation", FIELD_INTS, offsetof(PoolAttr, dilation), NULL, false}
static const Field pool_fields[] = {KIND_FIELD, WINDOW_FIELDS, {0}};
static bool
pool_grad_sums(const Node *n)
{
	(void)n;
	return true;
}

static const Field pool_grad_fields[] = {
	KIND_FIELD, WINDOW_FIELDS, {"size", FIELD_INTS, offsetof(PoolAttr, size), NULL, true}, {0}};
static const Field pool_gather_fields[] = {WINDOW_FIELDS, {0}}; /* max only */
/* clang-format on */

static bool
pool_shape(Infer *in, Type x, Ints *shape)
{
	const PoolAttr *a = in->attr;
	int spatial = x->rank - 2;

	*shape = ints_of_type(x);
	if (spatial < 1 || a->window.n != spatial || a->stride.n != spatial ||
	    a->low.n != spatial || a->high.n != spatial || a->dilation.n != spatial ||
	    !dtype_is_float(x->dtype)) {
		infer_error(in,
		            "needs a float operand of rank 3 or more and %d numbers per attribute",
		            spatial);
		return false;
	}
	for (int i = 0; i < spatial; i++) {
		int64_t reach = (a->window.at[i] - 1) * a->dilation.at[i] + 1;
		int64_t room = x->dims[i + 2] + a->low.at[i] + a->high.at[i] - reach;
		if (a->window.at[i] < 1 || a->stride.at[i] < 1 || a->dilation.at[i] < 1 ||
		    a->low.at[i] < 0 || a->high.at[i] < 0 || room < 0) {
			infer_error(in,
			            "spatial axis %d: window %lld over %lld elements padded by "
			            "%lld and %lld",
			            i, (long long)a->window.at[i], (long long)x->dims[i + 2],
			            (long long)a->low.at[i], (long long)a->high.at[i]);
			return false;
		}
		shape->at[i + 2] = room / a->stride.at[i] + 1;
	}
	return true;
}

static void
pool_infer(Infer *in)
{
	Ints shape;

	if (pool_shape(in, in->operand[0], &shape))
		infer_set(in, 0, in->operand[0]->dtype, &shape);
}

/* Flat places of x under the window of y's element, in order: visit each. */
static void
window_walk(const PoolAttr *a, Type x, Module *m, const int64_t *y_at,
            void (*visit)(void *ctx, int64_t place), void *ctx)
{
	int64_t strides[MAX_RANK], at[MAX_RANK];

	type_strides(x, strides);
	for (IndexWalk w = index_walk(type_new(m, S64, a->window.n, a->window.at)); w.ok;
	     index_walk_next(&w)) {
		bool inside = true;
		memcpy(at, y_at, sizeof(at));
		for (int i = 0; i < a->window.n; i++) {
			at[i + 2] = y_at[i + 2] * a->stride.at[i] - a->low.at[i] +
			            w.at[i] * a->dilation.at[i];
			inside &= at[i + 2] >= 0 && at[i + 2] < x->dims[i + 2];
		}
		if (inside)
			visit(ctx, flat_of(at, strides, x->rank));
	}
}

typedef struct {
	const double *x;
	double sum;
	int64_t best; /* place of the maximum; -1 before any */
} Window;
static void
window_visit(void *ctx, int64_t place)
{
	Window *w = ctx;

	w->sum += w->x[place];
	if (w->best < 0 || w->x[place] > w->x[w->best] ||
	    (isnan(w->x[place]) && !isnan(w->x[w->best])))
		w->best = place;
}

typedef struct {
	double *dx;
	double dy;
} Spread;
static void
spread_visit(void *ctx, int64_t place)
{
	Spread *s = ctx;

	s->dx[place] += s->dy;
}

static void
pool_eval(Eval *ev)
{
	const PoolAttr *a = ev->attr;
	Module *m = ev->node->function->module;

	for (IndexWalk y = index_walk(ev->result[0].type); y.ok; index_walk_next(&y)) {
		Window w = {.x = ev->operand[0].f, .best = -1};
		window_walk(a, ev->operand[0].type, m, y.at, window_visit, &w);
		ev->result[0].f[y.flat] = a->kind == POOL_SUM ? w.sum
		                          : w.best < 0        ? -INFINITY
		                                              : w.x[w.best];
	}
}

/* ---- pool_grad (dy, x): x only for max. dx[i] = sum of dy over the windows that i won (max) or lies
 * in (sum) */
static void
pool_grad_infer(Infer *in)
{
	const PoolAttr *a = in->attr;
	Type dy = in->operand[0], x = in->n_operands > 1 ? in->operand[1] : NULL;
	Ints shape;

	if (dy->rank < 3 || (a->kind == POOL_MAX) != (x != NULL) ||
	    (a->kind == POOL_SUM && a->size.n != dy->rank - 2)) {
		infer_error(in, "max takes dy and x; sum takes dy and size");
		return;
	}
	if (!x) {
		Ints full = ints_of_type(dy);
		memcpy(full.at + 2, a->size.at, sizeof(int64_t) * (size_t)a->size.n);
		x = type_new(in->m, dy->dtype, full.n, full.at);
	}
	if (pool_shape(in, x, &shape) && dy != type_new(in->m, x->dtype, shape.n, shape.at))
		infer_error(in, "the pool of this shape does not give that cotangent");
	in->result[0] = x;
}

static void
pool_grad_eval(Eval *ev)
{
	const PoolAttr *a = ev->attr;
	Module *m = ev->node->function->module;
	Type x = ev->result[0].type;

	for (IndexWalk y = index_walk(ev->operand[0].type); y.ok; index_walk_next(&y)) {
		Spread s = {.dx = ev->result[0].f, .dy = ev->operand[0].f[y.flat]};
		if (a->kind == POOL_SUM) {
			window_walk(a, x, m, y.at, spread_visit, &s);
			continue;
		}
		Window w = {.x = ev->operand[1].f, .best = -1};
		window_walk(a, x, m, y.at, window_visit, &w);
		if (w.best >= 0)
			s.dx[w.best] += s.dy;
	}
}

/* ---- pool_gather (g, x): the element of g where x has the maximum of each window */
static void
pool_gather_infer(Infer *in)
{
	Ints shape;

	if (in->operand[0] != in->operand[1])
		infer_error(in, "needs two operands of one type");
	else if (pool_shape(in, in->operand[1], &shape))
		infer_set(in, 0, in->operand[1]->dtype, &shape);
}

static void
pool_gather_eval(Eval *ev)
{
	for (IndexWalk y = index_walk(ev->result[0].type); y.ok; index_walk_next(&y)) {
		Window w = {.x = ev->operand[1].f, .best = -1};
		window_walk(ev->attr, ev->operand[1].type, ev->node->function->module, y.at,
		            window_visit, &w);
		if (w.best >= 0)
			ev->result[0].f[y.flat] = ev->operand[0].f[w.best];
	}
}

/* ---- gradients */
static void
pool_grad(Grad *g)
{
	PoolAttr a = *(const PoolAttr *)g->node->attr;
	Value *x = node_operand(g->node, 0);

	a.size = (Ints){0};
	if (a.kind == POOL_SUM) {
		a.size.n = x->type->rank - 2;
		memcpy(a.size.at, x->type->dims + 2, sizeof(int64_t) * (size_t)a.size.n);
	}
	grad_add(g, 0,
	         build(g->b, OP_pool_grad, a.kind == POOL_MAX ? 2 : 1,
	               (Value *[]){g->dresult[0], x}, &a));
}

static void
pool_grad_grad(Grad *g)
{
	PoolAttr a = *(const PoolAttr *)g->node->attr;

	a.size = (Ints){0};
	if (a.kind == POOL_SUM)
		grad_add(g, 0, build(g->b, OP_pool, 1, &g->dresult[0], &a));
	else
		grad_add(g, 0,
		         build(g->b, OP_pool_gather, 2,
		               (Value *[]){g->dresult[0], node_operand(g->node, 1)}, &a));
}

static void
pool_gather_grad(Grad *g)
{
	grad_add(g, 0,
	         build(g->b, OP_pool_grad, 2, (Value *[]){g->dresult[0], node_operand(g->node, 1)},
	               g->node->attr));
}

/* ---- lowering */
typedef struct {
	Lower *lw;
	const PoolAttr *a;
	Type x, y, window;
	Index at; /* of the window's element of y */
} PoolLoop;

/* The place in x of window place q, clamped; *inside says whether it was inside. */
static Index
pool_place(const PoolLoop *p, const Index *q, LoopValue *inside)
{
	LoopBuilder *lb = p->lw->lb;
	Index at = p->at;

	at.of = NULL;
	*inside = -1;
	for (int i = 0; i < q->rank; i++) {
		Affine place = affine_add(affine_scale(p->at.at[i + 2], p->a->stride.at[i]),
		                          affine_scale(q->at[i], p->a->dilation.at[i]));
		place = affine_add(place, affine_constant(-p->a->low.at[i]));
		int64_t last = (p->y->dims[i + 2] - 1) * p->a->stride.at[i] +
		               (p->a->window.at[i] - 1) * p->a->dilation.at[i] - p->a->low.at[i];
		at.at[i + 2] = place;
		if (p->a->low.at[i] == 0 && last < p->x->dims[i + 2])
			continue;
		LoopValue v = lb_affine(lb, place);
		LoopValue c = lb_binary(lb, LOOP_min,
		                        lb_binary(lb, LOOP_max, v, lb_int(lb, S64, 0)),
		                        lb_int(lb, S64, p->x->dims[i + 2] - 1));
		LoopValue in = lb_compare(lb, LOOP_eq, v, c);
		*inside = *inside < 0 ? in : lb_binary(lb, LOOP_and, *inside, in);
		at.at[i + 2] = affine_scalar(c);
	}
	return at;
}

static LoopValue
when_inside(LoopBuilder *lb, LoopValue inside, LoopValue x, LoopValue other)
{
	return inside < 0 ? x : lb_select(lb, inside, x, other);
}

/* Windows of few places are written out, so that rows of y go in vectors. */
enum { MAX_UNROLLED = 32 };

static bool
is_unrolled(const PoolLoop *p)
{
	return p->window->n <= MAX_UNROLLED;
}

static Index
constant_index(Type t, int64_t flat)
{
	Index at = {.rank = t->rank};

	for (int i = t->rank - 1; i >= 0; i--) {
		at.at[i] = affine_constant(flat % t->dims[i]);
		flat /= t->dims[i];
	}
	return at;
}

/* x at window place q, `outside` where that is not in x. */
static LoopValue
window_element(const PoolLoop *p, const Value *x, const Index *q, double outside)
{
	LoopValue inside;
	Index at = pool_place(p, q, &inside);
	LoopValue v = lower_element(p->lw, x, &at);

	return when_inside(p->lw->lb, inside, v,
	                   lb_float(p->lw->lb, compute_type(p->x->dtype), outside));
}

/* The sum or maximum of x over the window. */
static LoopValue
window_value(const PoolLoop *p, const Value *x)
{
	LoopBuilder *lb = p->lw->lb;
	bool is_max = p->a->kind == POOL_MAX;
	double outside = is_max ? -INFINITY : 0;
	LoopValue sum = -1;
	Index q;

	for (int64_t k = 0; is_unrolled(p) && k < p->window->n; k++) {
		q = constant_index(p->window, k);
		LoopValue v = window_element(p, x, &q, outside);
		sum = sum < 0 ? v : lb_binary(lb, is_max ? LOOP_max : LOOP_add, sum, v);
	}
	if (sum >= 0)
		return sum;
	LoopValue k = lb_for(lb, LOOP_PLAIN, p->window->n);
	index_split(lb, p->window, affine_scalar(k), &q);
	LoopValue v = window_element(p, x, &q, outside);
	sum = lb_accumulator(lb, is_max ? ACC_MAX : ACC_ADD, compute_type(p->x->dtype));
	lb_accumulate(lb, sum, v);
	lb_end(lb);
	return sum;
}

/* Is window place q the first that holds `best`? Its flat place in x, or the last place of x. The maximum is NaN
 * where any element is. */
static LoopValue
place_if_best(const PoolLoop *p, const Value *x, const Index *q, LoopValue best)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue inside;
	Index at = pool_place(p, q, &inside);
	LoopValue v = lower_element(p->lw, x, &at);
	LoopValue hit = lb_binary(lb, LOOP_or, lb_compare(lb, LOOP_eq, v, best),
	                          lb_op(lb, LOOP_is_nan, BOOL, &v));

	if (inside >= 0)
		hit = lb_binary(lb, LOOP_and, hit, inside);
	return lb_select(lb, hit, lb_affine(lb, index_flat(p->x, &at)),
	                 lb_int(lb, S64, p->x->n - 1));
}

/* The flat place in x of the window's first maximum. */
static LoopValue
window_winner(const PoolLoop *p, const Value *x)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue best = window_value(p, x), first = -1;
	Index q;

	for (int64_t k = 0; is_unrolled(p) && k < p->window->n; k++) {
		q = constant_index(p->window, k);
		LoopValue place = place_if_best(p, x, &q, best);
		first = first < 0 ? place : lb_binary(lb, LOOP_min, first, place);
	}
	if (first >= 0)
		return first;
	LoopValue k = lb_for(lb, LOOP_PLAIN, p->window->n);
	index_split(lb, p->window, affine_scalar(k), &q);
	LoopValue place = place_if_best(p, x, &q, best);
	first = lb_accumulator(lb, ACC_MIN, S64);
	lb_accumulate(lb, first, place);
	lb_end(lb);
	return first;
}

static PoolLoop
pool_loop(Lower *lw, const Node *n, Type x, Type y)
{
	const PoolAttr *a = n->attr;

	return (PoolLoop){.lw = lw,
	                  .a = a,
	                  .x = x,
	                  .y = y,
	                  .window = type_new(lw->m, S64, a->window.n, a->window.at)};
}

/* y in rows along its last axis. */
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
	return is_unrolled(p) ? LOOP_VECTOR : LOOP_PLAIN;
}

/* Opens the loop over the elements of row number `row` of y; the flat number of one. */
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
	p->at.at[last] = affine_scalar(i);
	return affine_add(affine_scale(row, row_size(p->y)), affine_scalar(i));
}

static void
pool_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Type y = node_result(n, 0)->type;
	PoolLoop p = pool_loop(lw, n, node_operand(n, 0)->type, y);

	LoopValue row = lb_for(lb, LOOP_PARALLEL, row_count(y));
	Affine i = open_row(&p, affine_scalar(row), row_mode(&p));
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), i, window_value(&p, node_operand(n, 0)));
	lb_end(lb);
	lb_end(lb);
}

static void
pool_gather_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Type y = node_result(n, 0)->type;
	PoolLoop p = pool_loop(lw, n, node_operand(n, 1)->type, y);
	Index at;

	LoopValue row = lb_for(lb, LOOP_PARALLEL, row_count(y));
	Affine i = open_row(&p, affine_scalar(row), row_mode(&p));
	index_split(lb, p.x, affine_scalar(window_winner(&p, node_operand(n, 1))), &at);
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), i,
	         lower_element(lw, node_operand(n, 0), &at));
	lb_end(lb);
	lb_end(lb);
}

/* Adds v to dx at a flat place of the plane that this iteration owns. */
static void
add_to(LoopBuilder *lb, int out, Affine place, LoopValue v)
{
	lb_store(lb, out, place, lb_binary(lb, LOOP_add, lb_load(lb, out, place), v));
}

static void
spread_sum(const PoolLoop *p, int out, LoopValue dy)
{
	LoopBuilder *lb = p->lw->lb;
	LoopValue inside;
	Index q;

	LoopValue k = lb_for(lb, LOOP_PLAIN, p->window->n);
	index_split(lb, p->window, affine_scalar(k), &q);
	Index at = pool_place(p, &q, &inside);
	add_to(lb, out, index_flat(p->x, &at),
	       when_inside(lb, inside, dy, lb_number(lb, lb_type(lb, dy), 0)));
	lb_end(lb);
}

/* Every element of a row of y adds to its window's first maximum: these are found in vectors, then added to one by
 * one, as windows overlap. */
static void
spread_to_winners(PoolLoop *p, const Node *n, int out, Affine row)
{
	LoopBuilder *lb = p->lw->lb;
	int winners = lb_local(lb, S64, row_size(p->y));

	open_row(p, row, row_mode(p));
	LoopValue winner = window_winner(p, node_operand(n, 1));
	lb_store(lb, winners, p->at.at[p->y->rank - 1], winner);
	lb_end(lb);
	LoopValue i = lb_for(lb, LOOP_PLAIN, row_size(p->y));
	p->at.at[p->y->rank - 1] = affine_scalar(i);
	LoopValue dy = lower_element(p->lw, node_operand(n, 0), &p->at);
	add_to(lb, out, affine_scalar(lb_load(lb, winners, affine_scalar(i))), dy);
	lb_end(lb);
}

/* Parallel over planes (batch, channel): windows overlap within a plane only. */
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
	lb_store(lb, out, affine_add(affine_scale(affine_scalar(plane), size), affine_scalar(i)),
	         lb_number(lb, compute_type(x->dtype), 0));
	lb_end(lb);
	i = lb_for(lb, LOOP_PLAIN, rows);
	Affine row = affine_add(affine_scale(affine_scalar(plane), rows), affine_scalar(i));
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

/* Every element of a window is combined once, of the small side y. */
static int64_t
window_flops(const Node *n, Type y)
{
	const PoolAttr *a = n->attr;
	int64_t window = 1;

	for (int i = 0; i < a->window.n; i++)
		window *= a->window.at[i];
	return y->n * window;
}
static int64_t
pool_flops(const Node *n)
{
	return window_flops(n, node_result(n, 0)->type);
}
static int64_t
pool_grad_flops(const Node *n)
{
	return window_flops(n, node_operand(n, 0)->type);
}

/* x stands for what has x's shape, y for what has y's: an axis is cut where no window reaches across. */
static void
pool_factors_of(Partition *p, Type x, Type y)
{
	const PoolAttr *a = p->node->attr;

	for (int i = 0; i < x->rank; i++) {
		int64_t k = i - 2, reach = 1, stride = 1, low = 0;
		if (k >= 0) {
			reach = (a->window.at[k] - 1) * a->dilation.at[k] + 1;
			stride = a->stride.at[k];
			low = a->low.at[k];
		}
		if (low != 0 || reach > stride || x->dims[i] != y->dims[i] * stride)
			continue;
		Factor *f = partition_add(p, y->dims[i], COMBINE_JOIN);
		for (int o = 0; o < p->node->n_operands; o++)
			factor_cut_operand(f, o, i);
		factor_cut_result(f, 0, i);
	}
}
static void
pool_factors(Partition *p)
{
	pool_factors_of(p, node_operand(p->node, 0)->type, node_result(p->node, 0)->type);
}
static void
pool_grad_factors(Partition *p)
{
	pool_factors_of(p, node_result(p->node, 0)->type, node_operand(p->node, 0)->type);
}

static void
pool_grad_cut(Module *m, Cut *cut)
{
	PoolAttr *a = cut->attr;

	(void)m;
	for (int i = 0; i < a->size.n; i++)
		a->size.at[i] = cut->result[0]->dims[i + 2];
}

#define POOL_DOC                                                                                     \
	"batch, channel, and spatial axes whose windows neither overlap nor begin before x; others " \
	"would need a halo"

#define W2 "window = [2,3], stride = [2,1], low = [1,1], high = [0,2], dilation = [1,2]"
#define APART "window = [2], stride = [3], low = [0], high = [0], dilation = [1]"
#define W1 "window = [3], stride = [2], low = [0], high = [0], dilation = [1]"
static const Sample pool_samples[] = {
	{"{kind = max, " W2 "}", "f64[2,3,5,6]"}, {"{kind = sum, " W2 "}", "f64[2,3,5,6]"},
	{"{kind = max, " W1 "}", "f64[1,2,7]"},   {"{kind = max, " APART "}", "f64[12,1,36]"},
	{"{kind = sum, " W1 "}", "f64[0,2,7]"},   {0}};
static const Sample pool_grad_samples[] = {
	{"{kind = sum, " W1 ", size = [7]}", "f64[1,2,3]"},
	{"{kind = max, " W1 "}", "f64[1,2,3], f64[1,2,7]"},
	{"{kind = sum, " W2 ", size = [5,6]}", "f64[2,3,3,5]"},
	{"{kind = max, " W2 "}", "f64[2,3,3,5], f64[2,3,5,6]"},
	{"{kind = sum, " APART ", size = [36]}", "f64[12,1,12]"},
	{"{kind = max, " APART "}", "f64[12,1,12], f64[12,1,36]"},
	{"{kind = sum, " W1 ", size = [7]}", "f64[0,2,3]"},
	{0}};
static const Sample pool_gather_samples[] = {{"{" W1 "}", "f64[1,2,7], f64[1,2,7]"},
                                             {"{" W2 "}", "f64[2,3,5,6], f64[2,3,5,6]"},
                                             {"{" APART "}", "f64[12,1,36], f64[12,1,36]"},
                                             {"{" W1 "}", "f64[0,2,7], f64[0,2,7]"},
                                             {0}};
const OpRow op_pool = {
	COLUMNS(pool, PoolAttr, pool_fields, pool_grad, "maximum or sum over spatial windows"),
	.operands = {{"x", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_OPAQUE,
	.kernel = pool_kernel,
	.flops = pool_flops,
	.precision = PRECISION_FOLLOW,
	.partition = {.factors = pool_factors, .doc = POOL_DOC}};
const OpRow op_pool_grad = {
	COLUMNS(pool_grad, PoolAttr, pool_grad_fields, pool_grad_grad, "adjoint of pool"),
	.operands = {{"dy", OPERAND_REQUIRED}, {"x", OPERAND_OPTIONAL}},
	.results = {"dx"},
	.fuse = FUSE_OPAQUE,
	.kernel = pool_grad_kernel,
	.sums_in_memory = pool_grad_sums,
	.flops = pool_grad_flops,
	.precision = PRECISION_HIGH,
	.partition = {pool_grad_factors, pool_grad_cut, POOL_DOC}};
const OpRow op_pool_gather = {COLUMNS(pool_gather, PoolAttr, pool_gather_fields, pool_gather_grad,
                                      "elements of g at each window's maximum of x"),
                              .operands = {{"g", OPERAND_REQUIRED}, {"x", OPERAND_REQUIRED}},
                              .results = {"y"},
                              .fuse = FUSE_OPAQUE,
                              .kernel = pool_gather_kernel,
                              .flops = pool_flops,
                              .precision = PRECISION_FOLLOW,
                              .partition = {.factors = pool_factors, .doc = POOL_DOC}};
