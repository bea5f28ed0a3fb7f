/* Convolution (conv) and the gradients of its operands (conv_grad_input, conv_grad_weight). Each
 * of the three ops is linear in both operands, and its gradients are again computed by these
 * three ops. x: T[batch, in, spatial...], w: T[out, in/groups, window...], y: T[batch, out,
 * spatial...]:
 *   y[n,o,p] = sum_{i,q} x[n, i, p*stride - low + q*dilation] w[o,i,q]
 * Places outside of x count as 0.
 *
 * With channels_last = true, x and y are T[batch, spatial..., channels], w stays as it is. The code
 * below numbers axes as if the channels were axis 1, and converts types and axes where it reads or
 * sets those of a node. */
#include "ir/ops/family.h"
#include "ir/ops/products.h"
#include "ir/ops/ops.h"

#include <string.h>

static Type
spatial_type(Module *m, Type t)
{
	return type_new(m, t->dtype, t->rank - 2, t->dims + 2);
}

/* The number of a node's axis that the code calls `axis` of x or y, of rank `rank`. */
static int
axis_of(const ConvAttr *a, int rank, int axis)
{
	return !a->channels_last || axis == 0 ? axis : axis == 1 ? rank - 1 : axis - 1;
}

/* The type of x or y, with the channels as axis 1. */
static Type
channels_first(Module *m, const ConvAttr *a, Type t)
{
	int64_t dims[MAX_RANK];

	for (int i = 0; i < t->rank; i++)
		dims[i] = t->dims[axis_of(a, t->rank, i)];
	return type_new(m, t->dtype, t->rank, dims);
}

/* The type of a node's x or y. t: the same with the channels as axis 1 */
static Type
type_of_node(Module *m, const ConvAttr *a, Type t)
{
	int64_t dims[MAX_RANK];

	for (int i = 0; i < t->rank; i++)
		dims[axis_of(a, t->rank, i)] = t->dims[i];
	return type_new(m, t->dtype, t->rank, dims);
}

ConvShape
conv_shapes(Module *m, const Node *n)
{
	Value *p = node_operand(n, 0), *q = node_operand(n, 1);
	Type r = node_result(n, 0)->type;
	ConvShape s = {.a = n->attr, .p = p, .q = q};

	s.x = n->op == OP_conv_grad_input ? r : p->type;
	s.w = n->op == OP_conv_grad_weight ? r : q->type;
	s.y = n->op == OP_conv ? r : n->op == OP_conv_grad_input ? p->type : q->type;
	s.x = channels_first(m, s.a, s.x);
	s.y = channels_first(m, s.a, s.y);
	s.x_space = spatial_type(m, s.x);
	s.window = spatial_type(m, s.w);
	s.y_space = spatial_type(m, s.y);
	s.in = s.w->dims[1];
	s.out = s.w->dims[0] / s.a->groups;
	return s;
}

#define WINDOW_FIELDS                                                                \
	{"stride", FIELD_INTS, offsetof(ConvAttr, stride), NULL, false},             \
		{"low", FIELD_INTS, offsetof(ConvAttr, low), NULL, false},           \
		{"high", FIELD_INTS, offsetof(ConvAttr, high), NULL, false},         \
		{"dilation", FIELD_INTS, offsetof(ConvAttr, dilation), NULL, false}, \
	{                                                                            \
		"groups", FIELD_INT, offsetof(ConvAttr, groups), NULL, false         \
	}
#define DTYPE_FIELDS                                                                       \
	{"dtype", FIELD_DTYPE_IF_ANY, offsetof(ConvAttr, dtype), NULL, true},              \
		{"allow_tf32", FIELD_BOOL, offsetof(ConvAttr, allow_tf32), NULL, true},    \
	{                                                                                  \
		"channels_last", FIELD_BOOL, offsetof(ConvAttr, channels_last), NULL, true \
	}
static const Field conv_fields[] = {WINDOW_FIELDS, DTYPE_FIELDS, {0}};
static const Field conv_grad_fields[] = {
	WINDOW_FIELDS,
	{"size", FIELD_INTS, offsetof(ConvAttr, size), NULL, false},
	DTYPE_FIELDS,
	{0}};

/* The shape of a convolution's result, after all checks. */
static bool
conv_shape(Infer *in, Type x, Type w, Ints *shape)
{
	const ConvAttr *a = in->attr;
	int spatial = x->rank - 2;

	*shape = (Ints){.n = x->rank};
	if (spatial < 1 || w->rank != x->rank) {
		infer_error(in, "weight rank %d, input rank %d; need equal ranks of 3 or more",
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
	const ConvAttr *a = in->attr;
	Ints shape;
	DType dtype;

	if (infer_product(in, a->dtype, a->allow_tf32, &dtype) &&
	    conv_shape(in, channels_first(in->m, a, in->operand[0]), in->operand[1], &shape))
		in->result[0] = type_of_node(in->m, a, type_new(in->m, dtype, shape.n, shape.at));
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
	Type dy = channels_first(in->m, a, in->operand[0]), w = in->operand[1];
	DType dtype;

	if (!infer_product(in, a->dtype, a->allow_tf32, &dtype))
		return;
	if (dy->rank < 3 || a->size.n != dy->rank - 2 || w->rank != dy->rank) {
		infer_error(
			in,
			"operands of ranks %d and %d, `size` of length %d; need equal ranks r >= 3 and `size` of length r - 2",
			dy->rank, w->rank, a->size.n);
		return;
	}
	Type x = sized_type(in, dy->dims[0], w->dims[1] * a->groups, &a->size, dtype);
	in->result[0] = type_of_node(in->m, a, x);
	check_gives(in, x, w, dy);
}

/* x: T[n,i,...], dy: T[n,o,...]  ->  T[o, i/groups, size] */
static void
conv_grad_weight_infer(Infer *in)
{
	const ConvAttr *a = in->attr;
	Type x = channels_first(in->m, a, in->operand[0]);
	Type dy = channels_first(in->m, a, in->operand[1]);
	DType dtype;

	if (!infer_product(in, a->dtype, a->allow_tf32, &dtype))
		return;
	if (dy->rank < 3 || a->size.n != dy->rank - 2 || x->rank != dy->rank || a->groups < 1) {
		infer_error(
			in,
			"operands of ranks %d and %d, `size` of length %d; need equal ranks r >= 3 and `size` of length r - 2",
			x->rank, dy->rank, a->size.n);
		return;
	}
	in->result[0] = sized_type(in, dy->dims[1], x->dims[1] / a->groups, &a->size, dtype);
	check_gives(in, x, in->result[0], dy);
}

/* ---- naive evaluation: adds every product once */
typedef struct {
	const ConvAttr *a;
	Type x, w, y;
	const EvalTensor *p, *q; /* operands 0 and 1 */
	EvalTensor *sum;
	int role; /* the result: 0 is x, 1 is w, 2 is y */
} ConvWalk;

/* Sets *at to the flat place in x that position q of the window reads for position p of the
 * result. False: it lies outside of x. */
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
add_product(const ConvWalk *c, int64_t at, int64_t i, int64_t j)
{
	if (dtype_is_float(c->p->type->dtype))
		c->sum->f[at] += c->p->f[i] * c->q->f[j];
	else
		c->sum->i[at] = (int64_t)((uint64_t)c->sum->i[at] +
		                          (uint64_t)c->p->i[i] * (uint64_t)c->q->i[j]);
}

/* The strides of x or y, with the channels as axis 1. */
static void
conv_strides(const ConvAttr *a, Type t, int64_t *out)
{
	int64_t stride = 1;

	for (int i = t->rank - 1; i >= 0; i--) {
		int axis = !a->channels_last || i == 0 ? i : i == t->rank - 1 ? 1 : i + 1;
		out[axis] = stride;
		stride *= t->dims[axis];
	}
}

static void
conv_walk(const ConvWalk *c)
{
	int64_t xs[MAX_RANK], ys[MAX_RANK], at[MAX_RANK];
	int64_t outputs = c->w->dims[0] / c->a->groups;

	conv_strides(c->a, c->x, xs);
	conv_strides(c->a, c->y, ys);
	for (IndexWalk y = index_walk(c->y); y.ok; index_walk_next(&y)) {
		for (IndexWalk w = index_walk(c->w); w.ok; index_walk_next(&w)) {
			if (w.at[0] != y.at[1] || !conv_source(c->a, c->x, y.at, w.at, at))
				continue;
			at[0] = y.at[0];
			at[1] = y.at[1] / outputs * c->w->dims[1] + w.at[1];
			int64_t x_at = flat_of(at, xs, c->x->rank);
			int64_t y_at = flat_of(y.at, ys, c->y->rank);
			if (c->role == 0)
				add_product(c, x_at, y_at, w.flat);
			else if (c->role == 1)
				add_product(c, w.flat, x_at, y_at);
			else
				add_product(c, y_at, x_at, w.flat);
		}
	}
}

static void
conv_eval_role(Eval *ev, int role)
{
	Type p = ev->operand[0].type, q = ev->operand[1].type, r = ev->result[0].type;
	ConvWalk c = {.a = ev->attr,
	              .p = &ev->operand[0],
	              .q = &ev->operand[1],
	              .sum = &ev->result[0],
	              .role = role};

	Module *m = ev->node->function->module;

	c.x = channels_first(m, c.a, role == 0 ? r : p);
	c.w = role == 1 ? r : q;
	c.y = channels_first(m, c.a, role == 2 ? r : role == 0 ? p : q);
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

/* Adds op(p, q) to the gradient of operand i. */
static void
add_like(Grad *g, int i, OpKind op, Value *p, Value *q)
{
	Type wanted = node_operand(g->node, i)->type;
	Type sized = op == OP_conv ? NULL : wanted;
	ConvAttr a = *(const ConvAttr *)g->node->attr;

	if (!g->needs[i])
		return;
	a.dtype = product_dtype(p->type->dtype, q->type->dtype, wanted->dtype);

	a.size = (Ints){0};
	if (sized) {
		a.size.n = sized->rank - 2;
		if (op == OP_conv_grad_input)
			sized = channels_first(g->b->m, &a, sized);
		memcpy(a.size.at, sized->dims + 2, sizeof(int64_t) * (size_t)a.size.n);
	}
	grad_add(g, i, build(g->b, op, 2, (Value *[]){p, q}, &a));
}

/* dx = conv_grad_input(dy, w), dw = conv_grad_weight(x, dy) */
static void
conv_grad(Grad *g)
{
	Value *x = node_operand(g->node, 0), *w = node_operand(g->node, 1), *dy = g->dresult[0];

	add_like(g, 0, OP_conv_grad_input, dy, w);
	add_like(g, 1, OP_conv_grad_weight, x, dy);
}

/* x = conv_grad_input(y, w): dy = conv(dx, w), dw = conv_grad_weight(dx, y) */
static void
conv_grad_input_grad(Grad *g)
{
	Value *y = node_operand(g->node, 0), *w = node_operand(g->node, 1), *dx = g->dresult[0];

	add_like(g, 0, OP_conv, dx, w);
	add_like(g, 1, OP_conv_grad_weight, dx, y);
}

/* w = conv_grad_weight(x, y): dx = conv_grad_input(y, dw), dy = conv(x, dw) */
static void
conv_grad_weight_grad(Grad *g)
{
	Value *x = node_operand(g->node, 0), *y = node_operand(g->node, 1), *dw = g->dresult[0];

	add_like(g, 0, OP_conv_grad_input, y, dw);
	add_like(g, 1, OP_conv, x, dw);
}

int64_t
conv_cost_of(Type w, Type y)
{
	return w->dims[0] ? 2 * y->n * (w->n / w->dims[0]) : 0;
}
static int64_t
conv_flops(const Node *n)
{
	return conv_cost_of(node_operand(n, 1)->type, node_result(n, 0)->type);
}
static int64_t
conv_grad_input_flops(const Node *n)
{
	return conv_cost_of(node_operand(n, 1)->type, node_operand(n, 0)->type);
}
static int64_t
conv_grad_weight_flops(const Node *n)
{
	return conv_cost_of(node_result(n, 0)->type, node_operand(n, 1)->type);
}

/* ---- parts: the types of x, w and y in each of the three ops */
typedef struct {
	Type x, w, y;
	int x_at, w_at, y_at; /* number of the operand; -1: it is the result */
} ConvRoles;

static ConvRoles
conv_roles(const Node *n)
{
	ConvShape s = conv_shapes(n->function->module, n);

	return (ConvRoles){s.x, s.w, s.y, 0, 1, -1};
}
static ConvRoles
conv_grad_input_roles(const Node *n)
{
	ConvShape s = conv_shapes(n->function->module, n);

	return (ConvRoles){s.x, s.w, s.y, -1, 1, 0};
}
static ConvRoles
conv_grad_weight_roles(const Node *n)
{
	ConvShape s = conv_shapes(n->function->module, n);

	return (ConvRoles){s.x, s.w, s.y, 0, -1, 1};
}

/* Adds a factor. axes: the axes of x, w and y that it cuts; -1: it does not cut this tensor. If
 * it does not cut the result, the results of the parts are summed. */
static void
conv_factor(Partition *p, const ConvRoles *r, int64_t size, const int axes[3])
{
	const int at[] = {r->x_at, r->w_at, r->y_at};
	Factor *f = partition_add(p, size, COMBINE_SUM);

	for (int i = 0; i < 3; i++) {
		int axis = i == 1 ? axes[i] : axis_of(p->node->attr, r->x->rank, axes[i]);
		if (axes[i] >= 0 && at[i] >= 0)
			factor_cut_operand(f, at[i], axis);
		if (axes[i] >= 0 && at[i] < 0) {
			factor_cut_result(f, 0, axis);
			f->combine = COMBINE_JOIN;
		}
	}
}

/* Adds the factors: the batch; the channels, or the groups if there are several; and those
 * spatial axes in which windows neither overlap nor reach outside of x, so that no part needs
 * elements of another part. */
static void
conv_factors_of(Partition *p, ConvRoles r)
{
	const ConvAttr *a = p->node->attr;

	conv_factor(p, &r, r.x->dims[0], (int[]){0, -1, 0});
	if (a->groups > 1) {
		conv_factor(p, &r, a->groups, (int[]){1, 0, 1});
	} else {
		conv_factor(p, &r, r.w->dims[1], (int[]){1, 1, -1});
		conv_factor(p, &r, r.w->dims[0], (int[]){-1, 0, 1});
	}
	for (int i = 0; i < a->stride.n; i++) {
		int64_t reach = (r.w->dims[i + 2] - 1) * a->dilation.at[i] + 1;
		if (a->low.at[i] == 0 && reach <= a->stride.at[i] &&
		    r.x->dims[i + 2] == r.y->dims[i + 2] * a->stride.at[i])
			conv_factor(p, &r, r.y->dims[i + 2], (int[]){i + 2, -1, i + 2});
	}
}
static void
conv_factors(Partition *p)
{
	conv_factors_of(p, conv_roles(p->node));
}
static void
conv_grad_input_factors(Partition *p)
{
	conv_factors_of(p, conv_grad_input_roles(p->node));
}
static void
conv_grad_weight_factors(Partition *p)
{
	conv_factors_of(p, conv_grad_weight_roles(p->node));
}

/* Sets the groups of a part, and the result's sizes if an attribute has them. sized: the result with the spatial axes
 * from axis 2 on; NULL: no attribute has sizes */
static void
conv_cut_of(Cut *cut, Type x, Type w, Type sized)
{
	ConvAttr *a = cut->attr;

	if (w->dims[1] > 0)
		a->groups = x->dims[1] / w->dims[1];
	for (int i = 0; sized && i < a->size.n; i++)
		a->size.at[i] = sized->dims[i + 2];
}
static void
conv_cut(Module *m, Cut *cut)
{
	conv_cut_of(cut, channels_first(m, cut->attr, cut->operand[0]), cut->operand[1], NULL);
}
static void
conv_grad_input_cut(Module *m, Cut *cut)
{
	Type x = channels_first(m, cut->attr, cut->result[0]);

	conv_cut_of(cut, x, cut->operand[1], x);
}
static void
conv_grad_weight_cut(Module *m, Cut *cut)
{
	Type x = channels_first(m, cut->attr, cut->operand[0]);

	conv_cut_of(cut, x, cut->result[0], cut->result[0]);
}

/* Does every window have one element, and every element of x a window? */
static bool
is_pointwise(const ConvShape *s)
{
	bool is = s->a->groups == 1 && s->window->n == 1;

	for (int i = 0; is && i < s->x_space->rank; i++)
		is = s->a->stride.at[i] == 1 && s->a->low.at[i] == 0 && s->a->high.at[i] == 0;
	return is;
}

/* With channels last and windows of one element, dw is a product of two matrices whose rows are the places of all
 * images. It is built where dw has more bits than x and dy: cuDNN has no such gradient of filters, but libraries have
 * such products. */
static Value *
conv_grad_weight_simplify(Builder *b, Node *n)
{
	ConvShape s = conv_shapes(b->m, n);
	DotAttr dot = {.x_contract = {.n = 1, .at = {0}},
	               .y_contract = {.n = 1, .at = {0}},
	               .dtype = s.a->dtype,
	               .allow_tf32 = s.a->allow_tf32};
	int64_t rows = s.y->dims[0] * s.y_space->n;

	bool wider = dtype_info[s.w->dtype].bits > dtype_info[s.x->dtype].bits;

	if (!s.a->channels_last || !wider || !is_pointwise(&s) || rows == 0)
		return NULL;
	/* x also gets the axes of the window, so that the result has dw's shape */
	Ints matrix = ints_of_type(s.w);
	matrix.at[0] = rows;
	Value *x = b_reshape(b, s.p, matrix);
	Value *dy = b_reshape(b, s.q, (Ints){.n = 2, .at = {rows, s.y->dims[1]}});
	return build(b, OP_dot, 2, (Value *[]){dy, x}, &dot);
}

/* The bias is a vector along the channels. */
static Value *
conv_bias(const Node *n, const Node *reader)
{
	return n->op == OP_conv
	               ? added_vector(n, reader, axis_of(n->attr, node_result(n, 0)->type->rank, 1))
	               : NULL;
}

/* ---- the axis along which a quantized operand may have several scales: one that is not summed
 * over */
static int
conv_channel(const Node *n, int i)
{
	(void)n;
	return i == 1 ? 0 : -1; /* the outputs of w */
}
/* The inputs of w are the channels of the result dx, in each group. */
static int
conv_grad_input_channel(const Node *n, int i)
{
	(void)n;
	return i == 1 ? 1 : -1;
}
static int
conv_grad_weight_channel(const Node *n, int i)
{
	const ConvAttr *a = n->attr;

	return i == 1 || a->groups == 1 ? axis_of(a, node_operand(n, i)->type->rank, 1) : -1;
}

/* ---- the axis along which products are added: the channels of x, and the inputs of w or its outputs */
static int
conv_sums(const Node *n, int i)
{
	const ConvAttr *a = n->attr;

	return i == 1 ? 1 : a->groups == 1 ? axis_of(a, node_operand(n, 0)->type->rank, 1) : -1;
}
static int
conv_grad_input_sums(const Node *n, int i)
{
	return i == 1 ? 0 : conv_sums(n, i);
}
static int
conv_grad_weight_sums(const Node *n, int i)
{
	(void)n, (void)i;
	return -1; /* the batch and the places */
}

#define PLAIN "{stride = [1], low = [0], high = [0], dilation = [1], groups = 1"
#define APART "{stride = [3], low = [0], high = [1], dilation = [1], groups = 12"
#define WIDE "{stride = [2,1], low = [1,2], high = [0,1], dilation = [1,2], groups = 2"
static const Sample conv_samples[] = {
	{PLAIN "}", "f64[2,3,7], f64[4,3,3]"},
	{WIDE "}", "f64[2,4,6,5], f64[6,2,3,2]"},
	{"{stride = [2,2], low = [1,1], high = [1,1], dilation = [1,1], groups = 12}",
         "f64[1,12,5,5], f64[12,1,3,3]"},
	{PLAIN ", channels_last = true}", "f64[2,7,3], f64[4,3,3]"},
	{WIDE ", channels_last = true}", "f64[2,6,5,4], f64[6,2,3,2]"},
	{PLAIN "}", "f64[12,12,1], f64[12,12,1]"},
	{APART "}", "f64[1,24,36], f64[24,2,2]"},
	{PLAIN ", dtype = f64, allow_tf32 = true}", "f32[2,3,7] eighths, f64[4,3,3]"},
	{WIDE ", dtype = s32}", "s8[2,4,6,5], u8[6,2,3,2]"},
	{PLAIN "}", "f64[0,1,3], f64[1,1,2]"},
	{0}};
static const Sample conv_grad_input_samples[] = {
	{PLAIN ", size = [7]}", "f64[2,4,5], f64[4,3,3]"},
	{WIDE ", size = [6,5]}", "f64[2,6,3,6], f64[6,2,3,2]"},
	{"{stride = [3], low = [2], high = [3], dilation = [2], groups = 1, size = [9]}",
         "f64[1,2,3], f64[2,3,4]"},
	{"{stride = [5,4], low = [0,1], high = [0,0], dilation = [1,2], groups = 1, size = [7,6]}",
         "f64[1,2,2,2], f64[2,1,2,2]"},
	{PLAIN ", size = [7], channels_last = true}", "f64[2,5,4], f64[4,3,3]"},
	{WIDE ", size = [6,5], channels_last = true}", "f64[2,3,6,6], f64[6,2,3,2]"},
	{PLAIN ", size = [1]}", "f64[12,12,1], f64[12,12,1]"},
	{APART ", size = [36]}", "f64[1,24,12], f64[24,2,2]"},
	{PLAIN ", size = [7], dtype = f64, allow_tf32 = true}", "f32[2,4,5] eighths, f64[4,3,3]"},
	{PLAIN ", size = [3]}", "f64[0,1,2], f64[1,1,2]"},
	{0}};
static const Sample conv_grad_weight_samples[] = {
	{PLAIN ", size = [3]}", "f64[2,3,7], f64[2,4,5]"},
	{PLAIN ", size = [3]}", "f64[1,16,7], f64[1,2,5]"},
	{WIDE ", size = [3,2]}", "f64[2,4,6,5], f64[2,6,3,6]"},
	{"{stride = [2,1], low = [1,2], high = [0,1], dilation = [1,2], groups = 24, size = [3,2]}",
         "f64[1,24,4,3], f64[1,48,2,4]"},
	{"{stride = [3], low = [2], high = [3], dilation = [2], groups = 24, size = [4]}",
         "f64[1,24,9], f64[1,24,3]"},
	{PLAIN ", size = [3], channels_last = true}", "f64[2,7,3], f64[2,5,4]"},
	{WIDE ", size = [3,2], channels_last = true}", "f64[2,6,5,4], f64[2,3,6,6]"},
	{PLAIN ", size = [1]}", "f64[12,12,1], f64[12,12,1]"},
	{APART ", size = [2]}", "f64[1,24,36], f64[1,24,12]"},
	{PLAIN ", size = [3], dtype = f64, allow_tf32 = true}", "f64[2,3,7], f32[2,4,5] eighths"},
	{PLAIN ", size = [3], dtype = s32}", "s8[1,16,7], u8[1,2,5]"},
	{PLAIN ", size = [2]}", "f64[0,1,3], f64[0,1,2]"},
	{0}};

static bool *
conv_allow_tf32(void *attr)
{
	return &((ConvAttr *)attr)->allow_tf32;
}

#define CONV_DOC                                                                                         \
	"batch; groups, or input and output channels if there is one group; spatial axes whose windows " \
	"neither overlap nor begin before x. Other spatial axes would need a halo"
#define CONV_ROW(op, text, x, y, z, field_table, weights, floats, images, gives_image, simpler) \
	const OpRow op_##op = {.name = #op,                                                     \
	                       .doc = text,                                                     \
	                       .operands = {{x, OPERAND_REQUIRED}, {y, OPERAND_REQUIRED}},      \
	                       .results = {z},                                                  \
	                       .fields = field_table,                                           \
	                       .attr_size = sizeof(ConvAttr),                                   \
	                       .infer = op##_infer,                                             \
	                       .eval = op##_eval,                                               \
	                       .grad = op##_grad_name,                                          \
	                       .fuse = FUSE_OPAQUE,                                             \
	                       .bias = conv_bias,                                               \
	                       .allow_tf32 = conv_allow_tf32,                                   \
	                       .flops = op##_flops,                                             \
	                       .precision = PRECISION_LOW,                                      \
	                       .quantizes = OPERAND(0) | OPERAND(1),                            \
	                       .channel = op##_channel,                                         \
	                       .sums = op##_sums,                                               \
	                       .adapts = weights,                                               \
	                       .as_floats = floats,                                             \
	                       .leaves_range = (floats) != 0,                                   \
	                       .partition = {op##_factors, op##_cut, CONV_DOC},                 \
	                       .channels_last = {images, gives_image, conv_channels_last},      \
	                       .simplify = simpler,                                             \
	                       .samples = op##_samples};
#define conv_grad_name conv_grad
#define conv_grad_input_grad_name conv_grad_input_grad
#define conv_grad_weight_grad_name conv_grad_weight_grad
CONV_ROW(conv, "convolution (cross-correlation), grouped", "x", "w", "y", conv_fields, OPERAND(1),
         OPERAND(0) | OPERAND(1), OPERAND(0), true, NULL)
CONV_ROW(conv_grad_input, "adjoint of conv in x: transposed convolution", "dy", "w", "dx",
         conv_grad_fields, OPERAND(1), 0, OPERAND(0), true, NULL)
CONV_ROW(conv_grad_weight, "adjoint of conv in w", "x", "dy", "dw", conv_grad_fields, 0, 0,
         OPERAND(0) | OPERAND(1), false, conv_grad_weight_simplify)
