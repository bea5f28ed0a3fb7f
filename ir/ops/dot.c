/* dot {x_batch, y_batch, x_contract, y_contract, order, dtype, allow_tf32}: a matrix product of
 * tensors, as XLA's DotGeneral: sums over the contracted axes; the batch axes of x and y belong
 * together. The result axes are the batch axes, the free axes of x, the free axes of y. With
 * `order`, result axis i is axis number order[i] of this list: a transpose that costs nothing.
 * The sum is rounded once, to `dtype`, whatever the types of the operands. allow_tf32 lets a
 * target round f32 operands to tf32; the interpreter and loops never do so. */
#include "ir/ops/family.h"
#include "ir/ops/products.h"
#include "ir/ops/ops.h"

static const Field dot_fields[] = {
	{"x_batch", FIELD_INTS, offsetof(DotAttr, x_batch), NULL, true},
	{"y_batch", FIELD_INTS, offsetof(DotAttr, y_batch), NULL, true},
	{"x_contract", FIELD_INTS, offsetof(DotAttr, x_contract), NULL, true},
	{"y_contract", FIELD_INTS, offsetof(DotAttr, y_contract), NULL, true},
	{"order", FIELD_INTS, offsetof(DotAttr, order), NULL, true},
	{"dtype", FIELD_DTYPE_IF_ANY, offsetof(DotAttr, dtype), NULL, true},
	{"allow_tf32", FIELD_BOOL, offsetof(DotAttr, allow_tf32), NULL, true},
	{0}};

Ints
free_axes(int rank, const Ints *batch, const Ints *contract)
{
	Ints axes = {0};

	for (int i = 0; i < rank; i++)
		if (!ints_has(batch, i) && !ints_has(contract, i))
			axes.at[axes.n++] = i;
	return axes;
}

static bool
pairs_fit(Infer *in, const Ints *a, const Ints *b, const char *what)
{
	Type x = in->operand[0], y = in->operand[1];

	if (a->n != b->n) {
		infer_error(in, "%d and %d %s axes", a->n, b->n, what);
		return false;
	}
	for (int i = 0; i < a->n; i++) {
		if (!infer_axis(in, a->at[i], x->rank) || !infer_axis(in, b->at[i], y->rank))
			return false;
		if (x->dims[a->at[i]] != y->dims[b->at[i]]) {
			infer_error(in, "%s dimensions differ: %lld and %lld", what,
			            (long long)x->dims[a->at[i]], (long long)y->dims[b->at[i]]);
			return false;
		}
	}
	return true;
}

static Ints
in_order(Infer *in, const Ints *order, const Ints *shape)
{
	Ints result = {.n = shape->n};
	unsigned seen = 0;

	if (order->n == 0)
		return *shape;
	for (int i = 0; i < order->n && i < shape->n; i++) {
		if (!infer_axis(in, order->at[i], shape->n))
			return *shape;
		seen |= 1u << order->at[i];
		result.at[i] = shape->at[order->at[i]];
	}
	if (order->n != shape->n || seen != (1u << shape->n) - 1)
		infer_error(in, "order names %d axes of %d, or one twice", order->n, shape->n);
	return result;
}

/* x: T[8,4,64,16], y: T[8,4,64,16], batch [0,1] x [0,1], contract [3] x [3]  ->  T[8,4,64,64] */
static void
dot_infer(Infer *in)
{
	const DotAttr *a = in->attr;
	Type x = in->operand[0], y = in->operand[1];
	Ints shape = {0};
	DType dtype;

	if (!infer_product(in, a->dtype, a->allow_tf32, &dtype) ||
	    !pairs_fit(in, &a->x_batch, &a->y_batch, "batch") ||
	    !pairs_fit(in, &a->x_contract, &a->y_contract, "inner"))
		return;
	Ints fx = free_axes(x->rank, &a->x_batch, &a->x_contract);
	Ints fy = free_axes(y->rank, &a->y_batch, &a->y_contract);
	if (a->x_batch.n + fx.n + fy.n > MAX_RANK ||
	    fx.n + a->x_batch.n + a->x_contract.n != x->rank ||
	    fy.n + a->y_batch.n + a->y_contract.n != y->rank) {
		infer_error(in, "an axis is named twice, or the result's rank exceeds %d",
		            MAX_RANK);
		return;
	}
	for (int i = 0; i < a->x_batch.n; i++)
		shape.at[shape.n++] = x->dims[a->x_batch.at[i]];
	for (int i = 0; i < fx.n; i++)
		shape.at[shape.n++] = x->dims[fx.at[i]];
	for (int i = 0; i < fy.n; i++)
		shape.at[shape.n++] = y->dims[fy.at[i]];
	shape = in_order(in, &a->order, &shape);
	infer_set(in, 0, dtype, &shape);
}

static Type
group_type(Module *m, Type t, const Ints *axes)
{
	int64_t dims[MAX_RANK];

	for (int i = 0; i < axes->n; i++)
		dims[i] = t->dims[axes->at[i]];
	return type_new(m, t->dtype, axes->n, dims);
}

DotShape
dot_shape(Module *m, const DotAttr *a, Type x, Type y)
{
	DotShape s = {.x_free = free_axes(x->rank, &a->x_batch, &a->x_contract),
	              .y_free = free_axes(y->rank, &a->y_batch, &a->y_contract)};

	s.batch = group_type(m, x, &a->x_batch);
	s.rows = group_type(m, x, &s.x_free);
	s.columns = group_type(m, y, &s.y_free);
	s.inner = group_type(m, x, &a->x_contract);
	return s;
}

void
dot_result_strides(const DotAttr *a, Type z, int64_t *strides)
{
	int64_t by_place[MAX_RANK];

	type_strides(z, by_place);
	for (int i = 0; i < z->rank; i++)
		strides[a->order.n ? a->order.at[i] : i] = by_place[i];
}

/* A table for naive evaluation: the flat offset of every index of a group of axes, in row-major
 * order, by the tensor's strides. */
static int64_t *
strided_offsets(Arena *arena, const int64_t *strides, const Ints *axes, Type group)
{
	int64_t *offsets = NEW_ARRAY(arena, int64_t, group->n);

	for (IndexWalk w = index_walk(group); w.ok; index_walk_next(&w))
		for (int i = 0; i < axes->n; i++)
			offsets[w.flat] += w.at[i] * strides[axes->at[i]];
	return offsets;
}

static int64_t *
group_offsets(Arena *arena, Type t, const Ints *axes, Type group)
{
	int64_t strides[MAX_RANK];

	type_strides(t, strides);
	return strided_offsets(arena, strides, axes, group);
}

static Ints
ints_range(int from, int n)
{
	Ints list = {.n = n};

	for (int i = 0; i < n; i++)
		list.at[i] = from + i;
	return list;
}

/* Offsets of batch, rows and columns in the result. */
typedef struct {
	const int64_t *batch, *rows, *columns;
} ResultOffsets;

static ResultOffsets
result_offsets(Arena *arena, const DotAttr *a, const DotShape *s, Type z)
{
	int64_t strides[MAX_RANK];
	int n_batch = s->batch->rank, n_rows = s->rows->rank;
	Ints batch = ints_range(0, n_batch), rows = ints_range(n_batch, n_rows);
	Ints columns = ints_range(n_batch + n_rows, s->columns->rank);

	dot_result_strides(a, z, strides);
	return (ResultOffsets){strided_offsets(arena, strides, &batch, s->batch),
	                       strided_offsets(arena, strides, &rows, s->rows),
	                       strided_offsets(arena, strides, &columns, s->columns)};
}

static void
dot_eval(Eval *ev)
{
	const DotAttr *a = ev->attr;
	const EvalTensor *x = &ev->operand[0], *y = &ev->operand[1];
	EvalTensor *z = &ev->result[0];
	Module *m = ev->node->function->module;
	DotShape s = dot_shape(m, a, x->type, y->type);
	int64_t *xb = group_offsets(ev->arena, x->type, &a->x_batch, s.batch);
	int64_t *yb = group_offsets(ev->arena, y->type, &a->y_batch, s.batch);
	int64_t *xr = group_offsets(ev->arena, x->type, &s.x_free, s.rows);
	int64_t *yc = group_offsets(ev->arena, y->type, &s.y_free, s.columns);
	int64_t *xk = group_offsets(ev->arena, x->type, &a->x_contract, s.inner);
	int64_t *yk = group_offsets(ev->arena, y->type, &a->y_contract, s.inner);
	ResultOffsets to = result_offsets(ev->arena, a, &s, z->type);
	bool is_float = dtype_is_float(x->type->dtype);

	for (int64_t b = 0; b < s.batch->n; b++)
		for (int64_t r = 0; r < s.rows->n; r++)
			for (int64_t c = 0; c < s.columns->n; c++) {
				int64_t at = to.batch[b] + to.rows[r] + to.columns[c];
				double f = 0;
				uint64_t u = 0;
				int64_t i = xb[b] + xr[r], j = yb[b] + yc[c];
				for (int64_t k = 0; k < s.inner->n; k++) {
					if (is_float)
						f += x->f[i + xk[k]] * y->f[j + yk[k]];
					else
						u += (uint64_t)x->i[i + xk[k]] *
						     (uint64_t)y->i[j + yk[k]];
				}
				if (is_float)
					z->f[at] = f;
				else
					z->i[at] = (int64_t)u;
			}
}

/* d has the axes of an operand in the order batch, free, contracted. Transposes d to the
 * operand's own order. */
static Value *
dot_reorder(Builder *b, Value *d, const Ints *batch, const Ints *free, const Ints *contract)
{
	Ints order = {.n = d->type->rank};
	int from = 0;

	for (int i = 0; i < batch->n; i++)
		order.at[batch->at[i]] = from++;
	for (int i = 0; i < free->n; i++)
		order.at[free->at[i]] = from++;
	for (int i = 0; i < contract->n; i++)
		order.at[contract->at[i]] = from++;
	return b_transpose(b, d, order);
}

/* A product that computes an operand's gradient, in the dtype of this operand. */
static Value *
product_like(Grad *g, Value *x, Value *y, DotAttr a, DType dtype)
{
	a.dtype = product_dtype(x->type->dtype, y->type->dtype, dtype);
	a.allow_tf32 = ((const DotAttr *)g->node->attr)->allow_tf32;
	return build(g->b, OP_dot, 2, (Value *[]){x, y}, &a);
}

/* dx[b,m,k] = dz[b,m,n] . y[b,k,n] over n;  dy[b,n,k] = dz[b,m,n] . x[b,m,k] over m */
static void
dot_grad(Grad *g)
{
	const DotAttr *a = g->node->attr;
	Value *x = node_operand(g->node, 0), *y = node_operand(g->node, 1), *dz = g->dresult[0];
	Ints fx = free_axes(x->type->rank, &a->x_batch, &a->x_contract);
	Ints fy = free_axes(y->type->rank, &a->y_batch, &a->y_contract);
	Ints batch = ints_range(0, a->x_batch.n), rows = ints_range(batch.n, fx.n);
	Ints columns = ints_range(batch.n + fx.n, fy.n);

	if (a->order.n) {
		Ints inverse = {.n = a->order.n};
		for (int i = 0; i < a->order.n; i++)
			inverse.at[a->order.at[i]] = i;
		dz = b_transpose(g->b, dz, inverse);
	}
	if (g->needs[0]) {
		/* The free axes of y that remain in d are y's contracted axes, in ascending order. */
		Value *d = product_like(g, dz, y,
		                        (DotAttr){batch, a->y_batch, columns, fy, .dtype = 0},
		                        x->type->dtype);
		Ints left = free_axes(y->type->rank, &a->y_batch, &fy), contract = {0};
		for (int i = 0; i < left.n; i++)
			for (int k = 0; k < a->y_contract.n; k++)
				if (a->y_contract.at[k] == left.at[i])
					contract.at[contract.n++] = a->x_contract.at[k];
		grad_add(g, 0, dot_reorder(g->b, d, &a->x_batch, &fx, &contract));
	}
	if (g->needs[1]) {
		/* Axes of d: batch, columns, then x's contracted axes in ascending order. d is computed as x^T dz if
		 * that gives y's own order without a transpose. */
		Ints left = free_axes(x->type->rank, &a->x_batch, &fx), contract = {0};
		for (int i = 0; i < left.n; i++)
			for (int k = 0; k < a->x_contract.n; k++)
				if (a->x_contract.at[k] == left.at[i])
					contract.at[contract.n++] = a->y_contract.at[k];
		if (fy.n && contract.n && contract.at[0] < fy.at[0]) {
			Value *d = product_like(g, x, dz,
			                        (DotAttr){a->x_batch, batch, fx, rows, .dtype = 0},
			                        y->type->dtype);
			grad_add(g, 1, dot_reorder(g->b, d, &a->y_batch, &contract, &fy));
		} else {
			Value *d = product_like(g, dz, x,
			                        (DotAttr){batch, a->x_batch, rows, fx, .dtype = 0},
			                        y->type->dtype);
			grad_add(g, 1, dot_reorder(g->b, d, &a->y_batch, &fy, &contract));
		}
	}
}

static int64_t
dot_flops(const Node *n)
{
	const DotAttr *a = n->attr;
	Type x = node_operand(n, 0)->type;
	int64_t k = 1;

	for (int i = 0; i < a->x_contract.n; i++)
		k *= x->dims[a->x_contract.at[i]];
	return 2 * k * node_result(n, 0)->type->n;
}

static int
place_of_axis(const Ints *list, int64_t axis)
{
	for (int i = 0; i < list->n; i++)
		if (list->at[i] == axis)
			return i;
	return -1;
}

/* The result axis that is number i in the sequence batch, rows, columns. */
static int
result_axis(const DotAttr *a, int i)
{
	return a->order.n ? place_of_axis(&a->order, i) : i;
}

static void
dot_factors(Partition *p)
{
	const DotAttr *a = p->node->attr;
	Type t[] = {node_operand(p->node, 0)->type, node_operand(p->node, 1)->type};
	Ints free[] = {free_axes(t[0]->rank, &a->x_batch, &a->x_contract),
	               free_axes(t[1]->rank, &a->y_batch, &a->y_contract)};
	int at = 0;

	for (int i = 0; i < a->x_batch.n; i++) {
		Factor *f = partition_add(p, t[0]->dims[a->x_batch.at[i]], COMBINE_JOIN);
		factor_cut_operand(f, 0, (int)a->x_batch.at[i]);
		factor_cut_operand(f, 1, (int)a->y_batch.at[i]);
		factor_cut_result(f, 0, result_axis(a, at++));
	}
	for (int side = 0; side < 2; side++)
		for (int i = 0; i < free[side].n; i++) {
			int axis = (int)free[side].at[i];
			Factor *f = partition_add(p, t[side]->dims[axis], COMBINE_JOIN);
			factor_cut_operand(f, side, axis);
			factor_cut_result(f, 0, result_axis(a, at++));
		}
	for (int i = 0; i < a->x_contract.n; i++) {
		Factor *f = partition_add(p, t[0]->dims[a->x_contract.at[i]], COMBINE_SUM);
		factor_cut_operand(f, 0, (int)a->x_contract.at[i]);
		factor_cut_operand(f, 1, (int)a->y_contract.at[i]);
	}
}

/* The bias is a vector along the columns, if the columns are one axis of the result. */
static Value *
dot_bias(const Node *n, const Node *reader)
{
	const DotAttr *a = n->attr;
	Type x = node_operand(n, 0)->type, y = node_operand(n, 1)->type;
	int n_columns = y->rank - a->y_batch.n - a->y_contract.n;
	int columns = x->rank - a->x_contract.n,
	    axis = columns; /* the columns come after the axes of x */

	for (int i = 0; i < a->order.n; i++)
		if (a->order.at[i] == columns)
			axis = i;
	return n_columns == 1 ? added_vector(n, reader, axis) : NULL;
}

/* The axis along which a quantized operand may have scales: its last free axis, which is the axis of outputs of a
 * matrix. */
static int
dot_channel(const Node *n, int i)
{
	const DotAttr *a = n->attr;
	Ints axes = i ? free_axes(node_operand(n, 1)->type->rank, &a->y_batch, &a->y_contract)
	              : free_axes(node_operand(n, 0)->type->rank, &a->x_batch, &a->x_contract);

	return axes.n ? (int)axes.at[axes.n - 1] : -1;
}

static int
dot_sums(const Node *n, int i)
{
	const DotAttr *a = n->attr;
	const Ints *axes = i ? &a->y_contract : &a->x_contract;

	return axes->n == 1 ? (int)axes->at[0] : -1;
}

static const Sample dot_samples[] = {
	{"{x_contract = [1], y_contract = [0]}", "f64[3,5], f64[5,4]"},
	{"{x_contract = [1], y_contract = [1]}", "f64[9,17], f64[35,17]"},
	{"{x_batch = [0], y_batch = [1], x_contract = [2], y_contract = [0]}",
         "f64[12,3,4], f64[4,12,5]"},
	{"{x_batch = [0,2], y_batch = [1,0], x_contract = [1], y_contract = [2]}",
         "f64[2,5,3], f64[3,2,5,1]"},
	{"{x_contract = [0,2], y_contract = [2,0]}", "f64[2,3,4], f64[4,3,2]"},
	{"{x_contract = [0], y_contract = [0]}", "f64[5], f64[5]"},
	{"{}", "f64[3], f64[2]"},
	{"{x_contract = [1], y_contract = [0]}", "f64[2,0], f64[0,3]"},
	{"{x_contract = [1], y_contract = [0]}", "f64[1,300], f64[300,1]"},
	{"{x_batch = [0,1], y_batch = [0,1], x_contract = [3], y_contract = [2], order = [0,2,1,3]}",
         "f64[2,3,5,4], f64[2,3,4,7]"},
	{"{x_contract = [1], y_contract = [0], order = [1,0]}", "f64[9,5], f64[5,35]"},
	{"{x_contract = [1], y_contract = [0]}", "f64[1,385], f64[385,2]"},
	{"{x_contract = [0], y_contract = [0]}", "f64[768,2], f64[768,1]"},
	{"{x_contract = [0], y_contract = [0]}", "f64[12,8], f64[12,70]"},
	{"{x_contract = [1], y_contract = [1]}", "f64[2,20], f64[70,20]"},
	{"{x_contract = [1], y_contract = [0], dtype = f64, allow_tf32 = true}",
         "f32[3,5] eighths, f64[5,4]"},
	{"{x_contract = [1], y_contract = [0], dtype = s32}", "s8[9,17], u8[17,35]"},
	{"{x_contract = [1], y_contract = [0], dtype = bf16}",
         "f8e4m3[5,900] fixed, f8e5m2[900,3] fixed"},
	{0}};
static bool *
dot_allow_tf32(void *attr)
{
	return &((DotAttr *)attr)->allow_tf32;
}

const OpRow op_dot = {
	COLUMNS(dot, DotAttr, dot_fields, dot_grad, "tensor product, summed over contracted axes"),
	.operands = {{"x", OPERAND_REQUIRED}, {"y", OPERAND_REQUIRED}},
	.results = {"z"},
	.fuse = FUSE_OPAQUE,
	.bias = dot_bias,
	.allow_tf32 = dot_allow_tf32,
	.flops = dot_flops,
	.precision = PRECISION_LOW,
	.as_floats = OPERAND(0) | OPERAND(1),
	.leaves_range = true,
	.quantizes = OPERAND(0) | OPERAND(1),
	.channel = dot_channel,
	.sums = dot_sums,
	.adapts = OPERAND(0) | OPERAND(1),
	.partition = {.factors = dot_factors,
                      .doc = "every axis; along a contracted axis the results of parts are added"},
};
