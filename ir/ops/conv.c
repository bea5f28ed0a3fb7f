/* Convolution and its two adjoints, closed under differentiation: each is linear in either operand
 * and the adjoint of one is another. x: T[batch, in, spatial...], w: T[out, in/groups, window...],
 * y: T[batch, out, spatial...]:
 *   y[n,o,p] = sum_{i,q} x[n, i, p*stride - low + q*dilation] w[o,i,q]
 * Places outside x count as 0. */
#include "ir/ops/gemm.h"

#include <string.h>

#define WINDOW_FIELDS                                                                \
	{"stride", FIELD_INTS, offsetof(ConvAttr, stride), NULL, false},             \
		{"low", FIELD_INTS, offsetof(ConvAttr, low), NULL, false},           \
		{"high", FIELD_INTS, offsetof(ConvAttr, high), NULL, false},         \
		{"dilation", FIELD_INTS, offsetof(ConvAttr, dilation), NULL, false}, \
	{                                                                            \
		"groups", FIELD_INT, offsetof(ConvAttr, groups), NULL, false         \
	}
static const Field conv_fields[] = {WINDOW_FIELDS, {0}};
static const Field conv_grad_fields[] = {
	WINDOW_FIELDS, {"size", FIELD_INTS, offsetof(ConvAttr, size), NULL, false}, {0}};

/* The result shape of a convolution, with every check. */
static bool
conv_shape(Infer *in, Type x, Type w, Ints *shape)
{
	const ConvAttr *a = in->attr;
	int spatial = x->rank - 2;

	*shape = (Ints){.n = x->rank};
	if (spatial < 1 || w->rank != x->rank || x->dtype != w->dtype ||
	    !dtype_is_float(x->dtype)) {
		infer_error(in,
		            "weight rank %d, input rank %d; need equal ranks of 3 or more and one "
		            "float type",
		            w->rank, x->rank);
		return false;
	}
	if (a->stride.n != spatial || a->low.n != spatial || a->high.n != spatial ||
	    a->dilation.n != spatial) {
		infer_error(in, "strides, pads and dilations need %d numbers each", spatial);
		return false;
	}
	if (a->groups < 1 || x->dims[1] != w->dims[1] * a->groups || w->dims[0] % a->groups) {
		infer_error(in,
		            "input has %lld channels, weight %lld inputs and %lld outputs in %lld "
		            "groups",
		            (long long)x->dims[1], (long long)w->dims[1], (long long)w->dims[0],
		            (long long)a->groups);
		return false;
	}
	shape->at[0] = x->dims[0];
	shape->at[1] = w->dims[0];
	for (int i = 0; i < spatial; i++) {
		int64_t reach = (w->dims[i + 2] - 1) * a->dilation.at[i] + 1;
		int64_t room = x->dims[i + 2] + a->low.at[i] + a->high.at[i] - reach;
		if (a->stride.at[i] < 1 || a->dilation.at[i] < 1 || w->dims[i + 2] < 1 ||
		    room < 0) {
			infer_error(
				in,
				"spatial axis %d: window %lld (dilation %lld, stride %lld) over "
				"%lld elements padded by %lld and %lld",
				i, (long long)w->dims[i + 2], (long long)a->dilation.at[i],
				(long long)a->stride.at[i], (long long)x->dims[i + 2],
				(long long)a->low.at[i], (long long)a->high.at[i]);
			return false;
		}
		shape->at[i + 2] = room / a->stride.at[i] + 1;
	}
	return true;
}

static void
conv_infer(Infer *in)
{
	Ints shape;

	if (conv_shape(in, in->operand[0], in->operand[1], &shape))
		infer_set(in, 0, in->operand[0]->dtype, &shape);
}

static Type
sized_type(Infer *in, int64_t a, int64_t b, const Ints *size, DType dtype)
{
	int64_t dims[MAX_RANK] = {a, b};

	memcpy(dims + 2, size->at, sizeof(int64_t) * (size_t)size->n);
	return type_new(in->m, dtype, size->n + 2, dims);
}

static void
check_gives(Infer *in, Type x, Type w, Type y)
{
	Ints shape;

	if (conv_shape(in, x, w, &shape) && y != type_new(in->m, y->dtype, shape.n, shape.at))
		infer_error(in, "the convolution of these shapes does not give that cotangent");
}

/* dy: T[n,o,...], w: T[o,i,...]  ->  T[n, i*groups, size] */
static void
conv_grad_input_infer(Infer *in)
{
	const ConvAttr *a = in->attr;
	Type dy = in->operand[0], w = in->operand[1];

	if (dy->rank < 3 || a->size.n != dy->rank - 2 || w->rank != dy->rank) {
		infer_error(in, "ranks %d and %d, size of %d", dy->rank, w->rank, a->size.n);
		return;
	}
	in->result[0] = sized_type(in, dy->dims[0], w->dims[1] * a->groups, &a->size, dy->dtype);
	check_gives(in, in->result[0], w, dy);
}

/* x: T[n,i,...], dy: T[n,o,...]  ->  T[o, i/groups, size] */
static void
conv_grad_weight_infer(Infer *in)
{
	const ConvAttr *a = in->attr;
	Type x = in->operand[0], dy = in->operand[1];

	if (dy->rank < 3 || a->size.n != dy->rank - 2 || x->rank != dy->rank || a->groups < 1) {
		infer_error(in, "ranks %d and %d, size of %d", x->rank, dy->rank, a->size.n);
		return;
	}
	in->result[0] = sized_type(in, dy->dims[1], x->dims[1] / a->groups, &a->size, dy->dtype);
	check_gives(in, x, in->result[0], dy);
}

/* ---- naive evaluation: every product of the sum once */
typedef struct {
	const ConvAttr *a;
	Type x, w, y;
	const double *p, *q; /* the two operands */
	double *sum;
	int role; /* which of x, w, y is the result: 0, 1, 2 */
} ConvWalk;

/* The element of x under window place q of result place p; false where outside. */
static bool
conv_source(const ConvAttr *a, Type x, const int64_t *p, const int64_t *q, int64_t *at)
{
	for (int i = 0; i + 2 < x->rank; i++) {
		at[i + 2] = p[i + 2] * a->stride.at[i] - a->low.at[i] +
		            q[i + 2] * a->dilation.at[i];
		if (at[i + 2] < 0 || at[i + 2] >= x->dims[i + 2])
			return false;
	}
	return true;
}

static void
conv_walk(const ConvWalk *c)
{
	int64_t xs[MAX_RANK], at[MAX_RANK];
	int64_t outputs = c->w->dims[0] / c->a->groups;

	type_strides(c->x, xs);
	for (Walk y = walk(c->y); y.ok; walk_next(&y)) {
		for (Walk w = walk(c->w); w.ok; walk_next(&w)) {
			if (w.at[0] != y.at[1] || !conv_source(c->a, c->x, y.at, w.at, at))
				continue;
			at[0] = y.at[0];
			at[1] = y.at[1] / outputs * c->w->dims[1] + w.at[1];
			int64_t x = flat_of(at, xs, c->x->rank);
			if (c->role == 0)
				c->sum[x] += c->p[y.flat] * c->q[w.flat];
			else if (c->role == 1)
				c->sum[w.flat] += c->p[x] * c->q[y.flat];
			else
				c->sum[y.flat] += c->p[x] * c->q[w.flat];
		}
	}
}

static void
conv_eval_role(Eval *ev, int role)
{
	Type p = ev->operand[0].type, q = ev->operand[1].type, r = ev->result[0].type;
	ConvWalk c = {.a = ev->attr,
	              .p = ev->operand[0].f,
	              .q = ev->operand[1].f,
	              .sum = ev->result[0].f,
	              .role = role};

	c.x = role == 0 ? r : p;
	c.w = role == 1 ? r : q;
	c.y = role == 2 ? r : role == 0 ? p : q;
	conv_walk(&c);
}
static void
conv_eval(Eval *ev)
{
	conv_eval_role(ev, 2);
}
static void
conv_grad_input_eval(Eval *ev)
{
	conv_eval_role(ev, 0);
}
static void
conv_grad_weight_eval(Eval *ev)
{
	conv_eval_role(ev, 1);
}

/* ---- gradients */
static Value *
conv_like(Builder *b, OpKind op, Value *p, Value *q, const ConvAttr *of, Type sized)
{
	ConvAttr a = *of;

	a.size = (Ints){0};
	if (sized) {
		a.size.n = sized->rank - 2;
		memcpy(a.size.at, sized->dims + 2, sizeof(int64_t) * (size_t)a.size.n);
	}
	return build(b, op, 2, (Value *[]){p, q}, &a);
}

/* dx = conv_grad_input(dy, w), dw = conv_grad_weight(x, dy) */
static void
conv_grad(Grad *g)
{
	Value *x = node_operand(g->node, 0), *w = node_operand(g->node, 1), *dy = g->dresult[0];

	if (g->needs[0])
		grad_add(g, 0, conv_like(g->b, OP_conv_grad_input, dy, w, g->node->attr, x->type));
	if (g->needs[1])
		grad_add(g, 1, conv_like(g->b, OP_conv_grad_weight, x, dy, g->node->attr, w->type));
}

/* x = conv_grad_input(y, w): dy = conv(dx, w), dw = conv_grad_weight(dx, y) */
static void
conv_grad_input_grad(Grad *g)
{
	Value *y = node_operand(g->node, 0), *w = node_operand(g->node, 1), *dx = g->dresult[0];

	if (g->needs[0])
		grad_add(g, 0, conv_like(g->b, OP_conv, dx, w, g->node->attr, NULL));
	if (g->needs[1])
		grad_add(g, 1, conv_like(g->b, OP_conv_grad_weight, dx, y, g->node->attr, w->type));
}

/* w = conv_grad_weight(x, y): dx = conv_grad_input(y, dw), dy = conv(x, dw) */
static void
conv_grad_weight_grad(Grad *g)
{
	Value *x = node_operand(g->node, 0), *y = node_operand(g->node, 1), *dw = g->dresult[0];

	if (g->needs[0])
		grad_add(g, 0, conv_like(g->b, OP_conv_grad_input, y, dw, g->node->attr, x->type));
	if (g->needs[1])
		grad_add(g, 1, conv_like(g->b, OP_conv, x, dw, g->node->attr, NULL));
}

/* Two operations for each product. */
static int64_t
conv_cost_of(Type w, Type y)
{
	return w->dims[0] ? 2 * y->n * (w->n / w->dims[0]) : 0;
}
static int64_t
conv_cost(const Node *n)
{
	return conv_cost_of(node_operand(n, 1)->type, node_result(n, 0)->type);
}
static int64_t
conv_grad_input_cost(const Node *n)
{
	return conv_cost_of(node_operand(n, 1)->type, node_operand(n, 0)->type);
}
static int64_t
conv_grad_weight_cost(const Node *n)
{
	return conv_cost_of(node_result(n, 0)->type, node_operand(n, 1)->type);
}

/* ---- lowering: matrix products over implicit patches (im2col) */
typedef struct {
	const ConvAttr *a;
	Type x, w, y;
	Value *p, *q;
	Type x_space, window, y_space; /* spatial dims only */
	int64_t in, out;               /* channels of a group */
} ConvShape;

static Type
spatial_type(Module *m, Type t)
{
	return type_new(m, t->dtype, t->rank - 2, t->dims + 2);
}

static ConvShape
conv_shapes(Module *m, const Node *n)
{
	Value *p = node_operand(n, 0), *q = node_operand(n, 1);
	Type r = node_result(n, 0)->type;
	ConvShape s = {.a = n->attr, .p = p, .q = q};

	s.x = n->op == OP_conv_grad_input ? r : p->type;
	s.w = n->op == OP_conv_grad_weight ? r : q->type;
	s.y = n->op == OP_conv ? r : n->op == OP_conv_grad_input ? p->type : q->type;
	s.x_space = spatial_type(m, s.x);
	s.window = spatial_type(m, s.w);
	s.y_space = spatial_type(m, s.y);
	s.in = s.w->dims[1];
	s.out = s.w->dims[0] / s.a->groups;
	return s;
}

/* A loaded element, 0 where `inside` is false; the place is clamped by the caller. inside < 0: always */
static LoopValue
load_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside)
{
	LoopValue x = lower_element(lw, v, at);

	return inside < 0 ? x
	                  : lb_select(lw->lb, inside, x, lb_number(lw->lb, lb_type(lw->lb, x), 0));
}

/* Clamps place to [0, size) and adds to *inside that it was there. lo..hi: what it can be. */
static Affine
clamp_place(LoopBuilder *lb, Affine place, int64_t size, bool never_outside, LoopValue *inside)
{
	if (never_outside)
		return place;
	LoopValue p = lb_affine(lb, place);
	LoopValue c = lb_binary(lb, LOOP_min, lb_binary(lb, LOOP_max, p, lb_int(lb, S64, 0)),
	                        lb_int(lb, S64, size - 1));
	LoopValue in = lb_compare(lb, LOOP_eq, p, c);
	*inside = *inside < 0 ? in : lb_binary(lb, LOOP_and, *inside, in);
	return affine_scalar(c);
}

/* x[batch, channel, p*stride - low + q*dilation], 0 outside */
static LoopValue
patch_element(Lower *lw, const ConvShape *s, const Value *x, Affine batch, Affine channel,
              const Index *p, const Index *q)
{
	Index at = {.rank = s->x->rank, .at = {batch, channel}};
	LoopValue inside = -1;

	for (int i = 0; i < p->rank; i++) {
		Affine place = affine_add(affine_scale(p->at[i], s->a->stride.at[i]),
		                          affine_scale(q->at[i], s->a->dilation.at[i]));
		place = affine_add(place, affine_constant(-s->a->low.at[i]));
		int64_t last = (s->y_space->dims[i] - 1) * s->a->stride.at[i] +
		               (s->window->dims[i] - 1) * s->a->dilation.at[i] - s->a->low.at[i];
		bool never = s->a->low.at[i] <= 0 && last < s->x_space->dims[i];
		at.at[i + 2] = clamp_place(lw->lb, place, s->x_space->dims[i], never, &inside);
	}
	return load_inside(lw, x, &at, inside);
}

static Ints
with_first(int64_t first, Type rest)
{
	Ints shape = {.n = rest->rank + 1, .at = {first}};

	memcpy(shape.at + 1, rest->dims, sizeof(int64_t) * (size_t)rest->rank);
	return shape;
}

/* Splits flat = outer * inner->n + rest. */
static void
split_two(LoopBuilder *lb, Module *m, Affine flat, int64_t outer, Type inner, Affine *first,
          Index *rest)
{
	int64_t dims[MAX_RANK] = {outer};
	Index at;

	memcpy(dims + 1, inner->dims, sizeof(int64_t) * (size_t)inner->rank);
	index_split(lb, type_new(m, inner->dtype, inner->rank + 1, dims), flat, &at);
	*first = at.at[0];
	rest->rank = inner->rank;
	rest->of = NULL;
	memcpy(rest->at, at.at + 1, sizeof(Affine) * (size_t)inner->rank);
}

/* batch index -> (image, group) */
static void
split_batch(LoopBuilder *lb, Module *m, const ConvShape *s, Affine batch, Affine *image,
            Affine *group)
{
	Index rest;

	split_two(lb, m, batch, s->x->dims[0], type_new(m, S64, 1, &s->a->groups), image, &rest);
	*group = rest.at[0];
}

/* conv: rows = outputs of the group, columns = places of y, k = (input, window place) */
static LoopValue
conv_a(Lower *lw, const Node *n, Affine batch, Affine m, Affine k)
{
	ConvShape s = conv_shapes(lw->m, n);
	Affine image, group;
	Index at = {.rank = s.w->rank}, q;

	split_batch(lw->lb, lw->m, &s, batch, &image, &group);
	at.at[0] = affine_add(affine_scale(group, s.out), m);
	split_two(lw->lb, lw->m, k, s.in, s.window, &at.at[1], &q);
	memcpy(at.at + 2, q.at, sizeof(Affine) * (size_t)q.rank);
	return lower_element(lw, s.q, &at);
}
static LoopValue
conv_b(Lower *lw, const Node *n, Affine batch, Affine k, Affine col)
{
	ConvShape s = conv_shapes(lw->m, n);
	Affine image, group, in;
	Index p, q;

	split_batch(lw->lb, lw->m, &s, batch, &image, &group);
	split_two(lw->lb, lw->m, k, s.in, s.window, &in, &q);
	index_split(lw->lb, s.y_space, col, &p);
	return patch_element(lw, &s, s.p, image, affine_add(affine_scale(group, s.in), in), &p, &q);
}
static Affine
conv_c(Lower *lw, const Node *n, Affine batch, Affine m, Affine col)
{
	ConvShape s = conv_shapes(lw->m, n);

	/* (image * groups + group) * out + m is image * channels + channel */
	return affine_add(affine_scale(affine_add(affine_scale(batch, s.out), m), s.y_space->n),
	                  col);
}
static void
conv_kernel(Lower *lw, const Node *n)
{
	ConvShape s = conv_shapes(lw->m, n);

	gemm_kernel(lw, &(Gemm){.node = n,
	                        .type = compute_type(s.y->dtype),
	                        .batch = s.x->dims[0] * s.a->groups,
	                        .m = s.out,
	                        .n = ints_of_type(s.y_space),
	                        .k = with_first(s.in, s.window),
	                        .a = conv_a,
	                        .b = conv_b,
	                        .c = conv_c});
}

/* conv_grad_input: rows = inputs of the group, columns = places of x, k = (output, window place) */
static LoopValue
conv_grad_input_a(Lower *lw, const Node *n, Affine batch, Affine m, Affine k)
{
	ConvShape s = conv_shapes(lw->m, n);
	Affine image, group, out;
	Index at = {.rank = s.w->rank}, q;

	split_batch(lw->lb, lw->m, &s, batch, &image, &group);
	split_two(lw->lb, lw->m, k, s.out, s.window, &out, &q);
	at.at[0] = affine_add(affine_scale(group, s.out), out);
	at.at[1] = m;
	memcpy(at.at + 2, q.at, sizeof(Affine) * (size_t)q.rank);
	return lower_element(lw, s.q, &at);
}
/* dy at (place + low - q*dilation) / stride where that divides and lies inside */
static LoopValue
conv_grad_input_b(Lower *lw, const Node *n, Affine batch, Affine k, Affine col)
{
	LoopBuilder *lb = lw->lb;
	ConvShape s = conv_shapes(lw->m, n);
	Affine image, group, out;
	Index p, q, at = {.rank = s.y->rank};
	LoopValue inside = -1;

	split_batch(lb, lw->m, &s, batch, &image, &group);
	split_two(lb, lw->m, k, s.out, s.window, &out, &q);
	index_split(lb, s.x_space, col, &p);
	at.at[0] = image;
	at.at[1] = affine_add(affine_scale(group, s.out), out);
	for (int i = 0; i < p.rank; i++) {
		Affine place = affine_add(p.at[i], affine_scale(q.at[i], -s.a->dilation.at[i]));
		place = affine_add(place, affine_constant(s.a->low.at[i]));
		int64_t size = s.y_space->dims[i], stride = s.a->stride.at[i];
		if (stride > 1) {
			LoopValue v = lb_affine(lb, place), by = lb_int(lb, S64, stride);
			LoopValue whole = lb_binary(lb, LOOP_div, v, by);
			LoopValue exact = lb_compare(lb, LOOP_eq,
			                             lb_binary(lb, LOOP_mul, whole, by), v);
			inside = inside < 0 ? exact : lb_binary(lb, LOOP_and, inside, exact);
			place = affine_scalar(whole);
		}
		at.at[i + 2] = clamp_place(lb, place, size, false, &inside);
	}
	return load_inside(lw, s.p, &at, inside);
}
static Affine
conv_grad_input_c(Lower *lw, const Node *n, Affine batch, Affine m, Affine col)
{
	ConvShape s = conv_shapes(lw->m, n);

	return affine_add(affine_scale(affine_add(affine_scale(batch, s.in), m), s.x_space->n),
	                  col);
}
static void
conv_grad_input_kernel(Lower *lw, const Node *n)
{
	ConvShape s = conv_shapes(lw->m, n);

	gemm_kernel(lw, &(Gemm){.node = n,
	                        .type = compute_type(s.x->dtype),
	                        .batch = s.x->dims[0] * s.a->groups,
	                        .m = s.in,
	                        .n = ints_of_type(s.x_space),
	                        .k = with_first(s.out, s.window),
	                        .a = conv_grad_input_a,
	                        .b = conv_grad_input_b,
	                        .c = conv_grad_input_c});
}

/* conv_grad_weight: batch = group, rows = outputs, columns = (input, window place), k = (image,
 * place of y) */
static LoopValue
conv_grad_weight_a(Lower *lw, const Node *n, Affine batch, Affine m, Affine k)
{
	ConvShape s = conv_shapes(lw->m, n);
	Index at = {.rank = s.y->rank}, p;

	split_two(lw->lb, lw->m, k, s.x->dims[0], s.y_space, &at.at[0], &p);
	at.at[1] = affine_add(affine_scale(batch, s.out), m);
	memcpy(at.at + 2, p.at, sizeof(Affine) * (size_t)p.rank);
	return lower_element(lw, s.q, &at);
}
static LoopValue
conv_grad_weight_b(Lower *lw, const Node *n, Affine batch, Affine k, Affine col)
{
	ConvShape s = conv_shapes(lw->m, n);
	Affine image, in;
	Index p, q;

	split_two(lw->lb, lw->m, k, s.x->dims[0], s.y_space, &image, &p);
	split_two(lw->lb, lw->m, col, s.in, s.window, &in, &q);
	return patch_element(lw, &s, s.p, image, affine_add(affine_scale(batch, s.in), in), &p, &q);
}
static Affine
conv_grad_weight_c(Lower *lw, const Node *n, Affine batch, Affine m, Affine col)
{
	ConvShape s = conv_shapes(lw->m, n);

	return affine_add(
		affine_scale(affine_add(affine_scale(batch, s.out), m), s.in * s.window->n), col);
}
static void
conv_grad_weight_kernel(Lower *lw, const Node *n)
{
	ConvShape s = conv_shapes(lw->m, n);

	gemm_kernel(lw, &(Gemm){.node = n,
	                        .type = compute_type(s.w->dtype),
	                        .batch = s.a->groups,
	                        .m = s.out,
	                        .n = with_first(s.in, s.window),
	                        .k = with_first(s.x->dims[0], s.y_space),
	                        .a = conv_grad_weight_a,
	                        .b = conv_grad_weight_b,
	                        .c = conv_grad_weight_c});
}

/* ---- as a library's convolution */
enum { MAX_LIBRARY_SPATIAL_AXES = 3 };

/* All of the operand's buffer, or a dense part of it. */
static bool
dense_operand(Lower *lw, const Value *v, LibraryCall *out)
{
	int64_t strides[MAX_RANK];
	Strided s;

	if (!lower_strided(lw, v, &s))
		return false;
	type_strides(v->type, strides);
	for (int i = 0; i < v->type->rank; i++)
		if (v->type->dims[i] > 1 && s.strides[i] != strides[i])
			return false;
	library_put(out, 2, (int64_t[]){s.buffer, s.offset});
	return true;
}

static bool
conv_library(Lower *lw, const Node *n, LibraryCall *out)
{
	ConvShape s = conv_shapes(lw->m, n);
	DType d = s.y->dtype;

	*out = (LibraryCall){.kind = op_row(n)->name};
	if ((d != F32 && d != BF16) || s.y_space->rank > MAX_LIBRARY_SPATIAL_AXES ||
	    conv_cost_of(s.w, s.y) < LEAST_LIBRARY_FLOPS || !dense_operand(lw, s.p, out) ||
	    !dense_operand(lw, s.q, out))
		return false;
	library_put(out, 4, (int64_t[]){s.x->dims[0], s.a->groups, s.in, s.out});
	for (int i = 0; i < s.y_space->rank; i++) {
		if (s.a->low.at[i] < 0 || s.a->high.at[i] < 0)
			return false;
		library_put(out, 6,
		            (int64_t[]){s.x_space->dims[i], s.window->dims[i], s.y_space->dims[i],
		                        s.a->stride.at[i], s.a->dilation.at[i], s.a->low.at[i]});
	}
	return true;
}

#define PLAIN "{stride = [1], low = [0], high = [0], dilation = [1], groups = 1"
#define WIDE "{stride = [2,1], low = [1,2], high = [0,1], dilation = [1,2], groups = 2"
static const Sample conv_samples[] = {
	{PLAIN "}", "f64[2,3,7], f64[4,3,3]"},
	{WIDE "}", "f64[2,4,6,5], f64[6,2,3,2]"},
	{"{stride = [2,2], low = [1,1], high = [1,1], dilation = [1,1], groups = 3}",
         "f64[1,3,5,5], f64[3,1,3,3]"},
	{PLAIN "}", "f64[0,1,3], f64[1,1,2]"},
	{0}};
static const Sample conv_grad_input_samples[] = {
	{PLAIN ", size = [7]}", "f64[2,4,5], f64[4,3,3]"},
	{WIDE ", size = [6,5]}", "f64[2,6,3,6], f64[6,2,3,2]"},
	{PLAIN ", size = [3]}", "f64[0,1,2], f64[1,1,2]"},
	{0}};
static const Sample conv_grad_weight_samples[] = {
	{PLAIN ", size = [3]}", "f64[2,3,7], f64[2,4,5]"},
	{WIDE ", size = [3,2]}", "f64[2,4,6,5], f64[2,6,3,6]"},
	{PLAIN ", size = [2]}", "f64[0,1,3], f64[0,1,2]"},
	{0}};

#define CONV_ROW(op, text, x, y, z, field_table)                                           \
	const OpRow op_##op = {.name = #op,                                                \
	                       .doc = text,                                                \
	                       .operands = {{x, OPERAND_REQUIRED}, {y, OPERAND_REQUIRED}}, \
	                       .results = {z},                                             \
	                       .fields = field_table,                                      \
	                       .attr_size = sizeof(ConvAttr),                              \
	                       .infer = op##_infer,                                        \
	                       .eval = op##_eval,                                          \
	                       .grad = op##_grad_name,                                     \
	                       .fuse = FUSE_OPAQUE,                                        \
	                       .kernel = op##_kernel,                                      \
	                       .library = conv_library,                                    \
	                       .cost = op##_cost,                                          \
	                       .samples = op##_samples};
#define conv_grad_name conv_grad
#define conv_grad_input_grad_name conv_grad_input_grad
#define conv_grad_weight_grad_name conv_grad_weight_grad
CONV_ROW(conv, "convolution (cross-correlation), grouped", "x", "w", "y", conv_fields)
CONV_ROW(conv_grad_input, "adjoint of conv in x: transposed convolution", "dy", "w", "dx",
         conv_grad_fields)
CONV_ROW(conv_grad_weight, "adjoint of conv in w", "x", "dy", "dw", conv_grad_fields)
