/* Pooling over windows of the spatial axes: pool (max or sum), its gradient pool_grad, and
 * pool_gather, which the gradient of pool_grad needs. x: T[batch, channel, spatial...]. Places
 * outside of x do not count. The first maximum of a window in row-major order takes its whole
 * gradient, as in torch's max_pool. */
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

/* Visits the flat places of x under the window of y's element, in order. */
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
	int64_t best; /* place of the maximum; -1: no place visited yet */
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

/* ---- pool_grad (dy, x): operand x exists only for max. dx[i] = sum of dy over the windows
 * whose maximum is i (max), or that contain i (sum) */
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

/* ---- pool_gather (g, x): the element of g at the maximum of x, for each window */
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

/* FLOPs: one for every element of a window, for each element of the smaller tensor y. */
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

/* Adds the factors of a node; x: type of the tensor over which windows lie; y: type of the tensor
 * with one element per window. An axis is a factor if its windows do not overlap, so that no
 * window is cut. */
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

#define POOL_DOC                                                                                         \
	"batch, channel, and spatial axes whose windows neither overlap nor begin before x; other axes " \
	"would need a halo"

#define W2 "window = [2,3], stride = [2,1], low = [1,1], high = [0,2], dilation = [1,2]"
#define APART "window = [2], stride = [3], low = [0], high = [0], dilation = [1]"
#define PADDED "window = [2], stride = [3], low = [1], high = [1], dilation = [1]"
#define W1 "window = [3], stride = [2], low = [0], high = [0], dilation = [1]"
static const Sample pool_samples[] = {
	{"{kind = max, " W2 "}", "f64[2,3,5,6]"}, {"{kind = sum, " W2 "}", "f64[2,3,5,6]"},
	{"{kind = max, " W1 "}", "f64[1,2,7]"},   {"{kind = max, " APART "}", "f64[12,1,36]"},
	{"{kind = sum, " W1 "}", "f64[0,2,7]"},   {0}};
static const Sample pool_grad_samples[] = {
	{"{kind = sum, " W1 ", size = [7]}", "f64[1,2,3]"},
	{"{kind = sum, " PADDED ", size = [7]}", "f64[1,2,3]"},
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
	.flops = pool_flops,
	.precision = PRECISION_HIGH,
	.as_floats = OPERAND(0),
	.channels_last = {OPERAND(0) | OPERAND(1), true, pool_channels_last},
	.partition = {.factors = pool_factors, .doc = POOL_DOC}};
const OpRow op_pool_grad = {
	COLUMNS(pool_grad, PoolAttr, pool_grad_fields, pool_grad_grad, "adjoint of pool"),
	.operands = {{"dy", OPERAND_REQUIRED}, {"x", OPERAND_OPTIONAL}},
	.results = {"dx"},
	.fuse = FUSE_OPAQUE,
	.flops = pool_grad_flops,
	.precision = PRECISION_HIGH,
	.channels_last = {OPERAND(0) | OPERAND(1), true, pool_channels_last},
	.partition = {pool_grad_factors, pool_grad_cut, POOL_DOC}};
const OpRow op_pool_gather = {COLUMNS(pool_gather, PoolAttr, pool_gather_fields, pool_gather_grad,
                                      "elements of g at each window's maximum of x"),
                              .operands = {{"g", OPERAND_REQUIRED}, {"x", OPERAND_REQUIRED}},
                              .results = {"y"},
                              .fuse = FUSE_OPAQUE,
                              .flops = pool_flops,
                              .precision = PRECISION_FOLLOW,
                              .channels_last = {OPERAND(0) | OPERAND(1), true, pool_channels_last},
                              .partition = {.factors = pool_factors, .doc = POOL_DOC}};
