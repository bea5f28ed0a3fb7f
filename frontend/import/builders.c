/* Builders of IR nodes for importers: a builder given NULL returns NULL. Operands that type
 * inference would refuse by an assertion are reported as the user's fault, with the ONNX node. */
#include "frontend/import/import.h"

#include <string.h>

enum { MAX_EMIT = 4096 }; /* most operands of one concat */

Ints
shape_of(const Value *v)
{
	return ints_of_type(v->type);
}

Ints
ints_range(int from, int to)
{
	Ints list = {0};

	for (int i = from; i < to; i++)
		list.at[list.n++] = i;
	return list;
}

Ints
ints_without(Ints list, int at)
{
	for (int i = at; i + 1 < list.n; i++)
		list.at[i] = list.at[i + 1];
	list.at[--list.n] = 0;
	return list;
}

bool
is_float(const Value *v)
{
	return dtype_is_float(v->type->dtype);
}

DType
at_least_f32(DType t)
{
	return dtype_info[t].bits < 32 ? F32 : t;
}

bool
shape_fits(OnnxNode *n, Ints shape)
{
	int64_t count = 1;

	for (int i = 0; i < shape.n; i++) {
		if (shape.at[i] < 0) {
			report_invalid(n, "dimension %d of the result is %lld, needs 0 or more", i,
			               (long long)shape.at[i]);
			return false;
		}
		if (!size_mul(count, shape.at[i] ? shape.at[i] : 1, &count) ||
		    count > MAX_ELEMENTS) {
			report_invalid(n, "the result has more than %lld elements: over the budget",
			               (long long)MAX_ELEMENTS);
			return false;
		}
	}
	return true;
}

Value *
e_op(OnnxNode *n, OpKind op, int n_operands, Value *const *operands, const void *attr)
{
	Arena *arena = n->im->arena;
	Type results[8];
	int n_results;

	if (n_operands > MAX_EMIT) {
		report_unsupported(n, "more than %d operands", MAX_EMIT);
		return NULL;
	}
	Type *types = NEW_ARRAY(arena, Type, n_operands);
	for (int i = 0; i < n_operands; i++) {
		if (!operands[i])
			return NULL;
		types[i] = operands[i]->type;
	}
	const char *why = op_infer(n->b->m, arena, op, attr, n_operands, types, &n_results, results,
	                           COUNT(results));
	if (why) {
		report_invalid(n, "%s", why);
		return NULL;
	}
	return build(n->b, op, n_operands, operands, attr);
}

Value *
e_unary(OnnxNode *n, OpKind op, Value *x)
{
	return e_op(n, op, 1, &x, NULL);
}

bool
broadcast_shapes(OnnxNode *n, Ints *shape, Ints other)
{
	Ints out = {.n = shape->n > other.n ? shape->n : other.n};

	for (int i = 0; i < out.n; i++) {
		int a = i - (out.n - shape->n), b = i - (out.n - other.n);
		int64_t x = a < 0 ? 1 : shape->at[a], y = b < 0 ? 1 : other.at[b];
		if (x != y && x != 1 && y != 1) {
			report_invalid(
				n, "shapes do not broadcast: axis %d has %lld and %lld elements", i,
				(long long)x, (long long)y);
			return false;
		}
		out.at[i] = x == 1 ? y : x;
	}
	*shape = out;
	return shape_fits(n, out);
}

Value *
e_broadcast(OnnxNode *n, Value *x, Ints shape)
{
	Ints common = shape;

	if (!x)
		return NULL;
	if (x->type->rank > shape.n) {
		report_invalid(n, "the operand has rank %d, more than the result's %d",
		               x->type->rank, shape.n);
		return NULL;
	}
	if (!broadcast_shapes(n, &common, shape_of(x)))
		return NULL;
	if (memcmp(&common, &shape, sizeof(common))) {
		report_invalid(n, "a dimension of the operand is larger than the result's");
		return NULL;
	}
	return b_broadcast_to(n->b, x, shape);
}

Value *
e_broadcast_axes(OnnxNode *n, Value *x, Ints shape, Ints axes)
{
	if (!x || !shape_fits(n, shape))
		return NULL;
	if (x->type->rank == shape.n)
		return x;
	return e_op(n, OP_broadcast, 1, &x, &(BroadcastAttr){shape, axes});
}

Value *
e_binary(OnnxNode *n, OpKind op, Value *x, Value *y)
{
	if (!x || !y)
		return NULL;
	if (x->type->dtype != y->type->dtype) {
		report_invalid(n, "operands are %s and %s, need one type",
		               dtype_info[x->type->dtype].name, dtype_info[y->type->dtype].name);
		return NULL;
	}
	Ints shape = shape_of(x);
	if (!broadcast_shapes(n, &shape, shape_of(y)))
		return NULL;
	Value *operands[] = {b_broadcast_to(n->b, x, shape), b_broadcast_to(n->b, y, shape)};
	return e_op(n, op, 2, operands, NULL);
}

Value *
e_select(OnnxNode *n, Value *cond, Value *x, Value *y)
{
	if (!cond || !x || !y)
		return NULL;
	if (x->type->dtype != y->type->dtype || cond->type->dtype != BOOL) {
		report_invalid(n,
		               "condition is %s, operands are %s and %s; need bool and "
		               "operands of one type",
		               dtype_info[cond->type->dtype].name, dtype_info[x->type->dtype].name,
		               dtype_info[y->type->dtype].name);
		return NULL;
	}
	Ints shape = shape_of(x);
	if (!broadcast_shapes(n, &shape, shape_of(y)) ||
	    !broadcast_shapes(n, &shape, shape_of(cond)))
		return NULL;
	return b_select(n->b, b_broadcast_to(n->b, cond, shape), b_broadcast_to(n->b, x, shape),
	                b_broadcast_to(n->b, y, shape));
}

Value *
e_cast(OnnxNode *n, Value *x, DType to)
{
	return !x ? NULL : x->type->dtype == to ? x : e_op(n, OP_cast, 1, &x, &(CastAttr){to});
}

Value *
e_reshape(OnnxNode *n, Value *x, Ints shape)
{
	Ints old = x ? shape_of(x) : shape;

	if (!x || !shape_fits(n, shape))
		return NULL;
	if (memcmp(&old, &shape, sizeof(old)) == 0)
		return x;
	return e_op(n, OP_reshape, 1, &x, &(ReshapeAttr){shape});
}

Value *
e_flat(OnnxNode *n, Value *x)
{
	return x ? e_reshape(n, x, (Ints){.n = 1, .at = {x->type->n}}) : NULL;
}

Value *
e_column(OnnxNode *n, Value *x, int rank)
{
	Ints shape = {.n = rank};

	if (!x)
		return NULL;
	for (int i = 0; i < rank; i++)
		shape.at[i] = i == 0 ? x->type->n : 1;
	return e_reshape(n, x, shape);
}

Value *
e_transpose(OnnxNode *n, Value *x, Ints order)
{
	bool same = true;

	for (int i = 0; i < order.n; i++)
		same &= order.at[i] == i;
	if (!x || (same && order.n == x->type->rank))
		return x;
	return e_op(n, OP_transpose, 1, &x, &(TransposeAttr){order});
}

Value *
e_reduce(OnnxNode *n, ReduceKind kind, Value *x, Ints axes, bool keep)
{
	if (!x)
		return NULL;
	Ints shape = shape_of(x);
	Value *y = axes.n ? e_op(n, OP_reduce, 1, &x, &(ReduceAttr){kind, axes}) : x;
	if (!keep || !y)
		return y;
	for (int i = 0; i < axes.n; i++)
		shape.at[axes.at[i]] = 1;
	return e_reshape(n, y, shape);
}

Value *
e_mean(OnnxNode *n, Value *x, Ints axes, bool keep)
{
	int64_t count = 1;

	for (int i = 0; x && i < axes.n; i++)
		count *= x->type->dims[axes.at[i]];
	return e_with(n, OP_div, e_reduce(n, REDUCE_SUM, x, axes, keep), (double)count);
}

Value *
e_slice(OnnxNode *n, Value *x, Ints start, Ints stop, Ints step)
{
	return e_op(n, OP_slice, 1, &x, &(SliceAttr){start, stop, step});
}

Value *
e_slice_axis(OnnxNode *n, Value *x, int axis, int64_t start, int64_t stop)
{
	if (!x || (start == 0 && stop == x->type->dims[axis]))
		return x;
	SliceAttr a = {
		.start = {.n = x->type->rank}, .stop = shape_of(x), .step = {.n = x->type->rank}};
	for (int i = 0; i < x->type->rank; i++)
		a.step.at[i] = 1;
	a.start.at[axis] = start;
	a.stop.at[axis] = stop;
	return e_op(n, OP_slice, 1, &x, &a);
}

Value *
e_pad(OnnxNode *n, Value *x, Ints low, Ints high, double value)
{
	Ints shape, none = {.n = low.n};
	bool any = false;

	if (!x)
		return NULL;
	shape = shape_of(x);
	for (int i = 0; i < low.n; i++) {
		any |= low.at[i] || high.at[i];
		if (!size_add(shape.at[i], low.at[i], &shape.at[i]) ||
		    !size_add(shape.at[i], high.at[i], &shape.at[i]) || low.at[i] > MAX_ELEMENTS) {
			report_invalid(n, "pads of %lld and %lld are too large",
			               (long long)low.at[i], (long long)high.at[i]);
			return NULL;
		}
	}
	if (!any)
		return x;
	if (!shape_fits(n, shape))
		return NULL;
	return e_op(n, OP_pad, 1, &x, &(PadAttr){low, high, none, value});
}

Value *
e_concat(OnnxNode *n, int count, Value *const *x, int axis)
{
	if (count == 1)
		return x[0];
	for (int i = 0; i < count; i++)
		if (!x[i])
			return NULL;
	return e_op(n, OP_concat, count, x, &(AxisAttr){axis});
}

Value *
e_iota(OnnxNode *n, DType dtype, Ints shape, int axis)
{
	return shape_fits(n, shape) ? e_op(n, OP_iota, 0, NULL, &(IotaAttr){dtype, shape, axis})
	                            : NULL;
}

Value *
e_gather(OnnxNode *n, Value *data, Value *indices, int axis)
{
	if (!data || !indices)
		return NULL;
	if (data->type->rank + indices->type->rank - 1 > MAX_RANK) {
		report_unsupported(n, "a result of rank above %d", MAX_RANK);
		return NULL;
	}
	Ints shape = {0};
	for (int i = 0; i < data->type->rank; i++) {
		for (int k = 0; i == axis && k < indices->type->rank; k++)
			shape.at[shape.n++] = indices->type->dims[k];
		if (i != axis)
			shape.at[shape.n++] = data->type->dims[i];
	}
	if (!shape_fits(n, shape))
		return NULL;
	return e_op(n, OP_gather, 2, (Value *[]){data, indices}, &(AxisAttr){axis});
}

Value *
e_dot(OnnxNode *n, Value *x, Value *y, const DotAttr *a)
{
	Ints shape = {0};

	if (!x || !y)
		return NULL;
	if (x->type->rank + y->type->rank - a->x_batch.n - 2 * a->x_contract.n > MAX_RANK) {
		report_unsupported(n, "a result of rank above %d", MAX_RANK);
		return NULL;
	}
	for (int i = 0; i < x->type->rank; i++)
		if (!ints_has(&a->x_contract, i))
			shape.at[shape.n++] = x->type->dims[i];
	for (int i = 0; i < y->type->rank; i++)
		if (!ints_has(&a->y_contract, i) && !ints_has(&a->y_batch, i))
			shape.at[shape.n++] = y->type->dims[i];
	return shape_fits(n, shape) ? e_op(n, OP_dot, 2, (Value *[]){x, y}, a) : NULL;
}

Value *
e_scalar(OnnxNode *n, DType dtype, double value)
{
	return b_number(n->b, dtype, value);
}

Value *
e_vector(OnnxNode *n, DType dtype, int count, const double *at)
{
	Module *m = n->b->m;
	int64_t dims[] = {count};
	Type type = type_new(m, dtype, 1, dims);
	char *hi = arena_alloc(n->im->arena, (size_t)dtype_bytes(dtype, count));
	char *lo = arena_alloc(n->im->arena, (size_t)dtype_bytes(dtype, count));
	bool exact = true;

	if (dtype_is_float(dtype) && dtype_info[dtype].bits == 16)
		return b_cast(n->b, e_vector(n, F64, count, at), dtype);
	for (int i = 0; i < count; i++) {
		dtype_store_float(dtype, hi, i, at[i]);
		double rest = at[i] - dtype_load_float(dtype, hi, i);
		dtype_store_float(dtype, lo, i, rest);
		exact &= rest == 0;
	}
	Value *v = b_constant(n->b, tensor_new(m, type, hi));
	return exact ? v : b_binary(n->b, OP_add, v, b_constant(n->b, tensor_new(m, type, lo)));
}

Value *
e_splat(OnnxNode *n, DType dtype, Ints shape, double value)
{
	return e_broadcast_axes(n, e_scalar(n, dtype, value), shape, (Ints){0});
}

Value *
e_number(OnnxNode *n, Value *x, double value)
{
	return x ? b_number_like(n->b, x, value) : NULL;
}

Value *
e_with(OnnxNode *n, OpKind op, Value *x, double value)
{
	return x ? e_op(n, op, 2, (Value *[]){x, e_number(n, x, value)}, NULL) : NULL;
}

Value *
e_constant_ints(OnnxNode *n, int count, const int64_t *at)
{
	Module *m = n->b->m;
	int64_t dims[] = {count};

	return b_constant(n->b, tensor_new(m, type_new(m, S64, 1, dims), at));
}

/* Is v made of iotas, shapes and other numbers >= 0, by operators that keep numbers >= 0? */
static bool
never_negative(const Value *v, int depth)
{
	const Tensor *t = value_constant(v);

	if (t) {
		for (int64_t i = 0; i < t->type->n; i++)
			if (dtype_is_float(t->type->dtype) || tensor_int(t, i) < 0)
				return false;
		return true;
	}
	if (v->kind != VALUE_RESULT || depth == 0)
		return false;
	const Node *n = v->node;
	const OpRow *row = op_row(n);
	bool keeps = row->fuse == FUSE_VIEW || n->op == OP_concat || n->op == OP_add ||
	             n->op == OP_mul || n->op == OP_max || n->op == OP_min;
	if (n->op == OP_iota)
		return true;
	if (n->op == OP_gather)
		return never_negative(node_operand(n, 0), depth - 1);
	for (int i = 0; keeps && i < n->n_operands; i++)
		keeps = never_negative(node_operand(n, i), depth - 1);
	return keeps;
}

/* Makes negative indices positive. Constant indices are replaced by new constants, token ids are
 * known to be positive, and all other indices pass through a select. */
Value *
e_indices(OnnxNode *n, Value *indices, int64_t size, bool trusted)
{
	if (!indices)
		return NULL;
	if (indices->type->dtype != S64 && indices->type->dtype != S32) {
		report_invalid(n, "indices are %s, need int64 or int32",
		               dtype_info[indices->type->dtype].name);
		return NULL;
	}
	if (trusted && indices->kind == VALUE_PARAM)
		return indices;
	const Tensor *t = value_constant(indices);
	if (!t && never_negative(indices, 12))
		return indices;
	if (!t) {
		Value *below = e_with(n, OP_lt, indices, 0);
		return e_select(n, below, e_with(n, OP_add, indices, (double)size), indices);
	}
	int64_t *at = NEW_ARRAY(n->im->arena, int64_t, t->type->n);
	for (int64_t k = 0; k < t->type->n; k++) {
		int64_t index = tensor_int(t, k);
		if (index < -size || index >= size) {
			report_invalid(n, "index %lld is outside of an axis of %lld elements",
			               (long long)index, (long long)size);
			return NULL;
		}
		at[k] = index < 0 ? index + size : index;
	}
	return b_constant(n->b, tensor_new(n->b->m, type_with_dtype(n->b->m, t->type, S64), at));
}
