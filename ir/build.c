/* Functions that build nodes of tensor IR (b_add and so on). The types of results are inferred. */
#include "ir/ir.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BUILD_RESULTS 4096
enum { FEW = 16 }; /* operands or results */

static void
build_failed(const Builder *b, OpKind op, const char *fault)
{
	Text place = {0};

	/* for the message; a location grad("exp") says that the gradient rule of node "exp" built
	 * this node */
	if (b->loc)
		loc_text(&place, b->loc);
	fprintf(stderr, "gradc: internal error: build %s for %s: %s\n", op_table[op]->name,
	        place.n ? place.at : "no node", fault);
	abort();
}

static Node *
build_with_types(Builder *b, OpKind op, int n, Value *const *operands, const void *attr,
                 Type *types, Type *results, int max_results)
{
	int n_results;

	for (int i = 0; i < n; i++)
		types[i] = operands[i] ? operands[i]->type : NULL;
	const char *fault = op_infer(b->m, b->m->arena, op, attr, n, types, &n_results, results,
	                             max_results);
	if (fault)
		build_failed(b, op, fault);
	Node *node = node_insert(b->f, b->before, op, n, operands, attr, n_results, results,
	                         b->loc);
	node->phase = b->phase;
	return node;
}

/* ---- nodes that were built before */
static uint64_t
hash_of(OpKind op, int n, Value *const *operands, const void *attr)
{
	uint64_t h = hash_mix(op, attr_hash(op_table[op], attr));

	for (int i = 0; i < n; i++)
		h = hash_mix(h, operands[i] ? operands[i]->id + 1 : 0);
	return h;
}

static bool
is_built_so(const Node *node, OpKind op, int n, Value *const *operands, const void *attr)
{
	if (node->op != op || node->n_operands != n)
		return false;
	for (int i = 0; i < n; i++)
		if (node_operand(node, i) != operands[i])
			return false;
	return attr_equal(op_table[op], node->attr, attr);
}

/* The equal node that was built before; NULL: no equal node was built, and *h is the place for it in b->known. */
static Node *
find_known(const Builder *b, OpKind op, int n, Value *const *operands, const void *attr,
           uint64_t *h)
{
	uint64_t found;

	*h = hash_of(op, n, operands, attr);
	for (; intmap_get(b->known, *h, &found); ++*h) {
		Node *node = (Node *)(uintptr_t)found;
		if (is_built_so(node, op, n, operands, attr))
			return node;
	}
	return NULL;
}

/* Is the node worth a place in b->known? */
static bool
repeats(OpKind op, int n, Value *const *operands)
{
	if (op_table[op]->fuse == FUSE_VIEW && operands[0]->kind == VALUE_STATE)
		return true;
	for (int i = 0; i < n; i++)
		if (operands[i] && operands[i]->type->rank > 0)
			return false;
	return true;
}

static Node *
build_few(Builder *b, OpKind op, int n, Value *const *operands, const void *attr)
{
	Type types[FEW], results[FEW];
	uint64_t h = 0;
	bool known = b->known && repeats(op, n, operands);
	Node *node = known ? find_known(b, op, n, operands, attr, &h) : NULL;

	if (node)
		return node;
	node = build_with_types(b, op, n, operands, attr, types, results, FEW);
	if (known)
		intmap_put(b->known, h, (uint64_t)(uintptr_t)node);
	return node;
}

Node *
build_node(Builder *b, OpKind op, int n, Value *const *operands, const void *attr)
{
	/* call, loop and cond have as many results as their functions */
	FuseClass fuse = op_table[op]->fuse;

	if (n <= FEW && fuse != FUSE_NONE && fuse != FUSE_CONTROL)
		return build_few(b, op, n, operands, attr);
	Type *types = memory_get(sizeof(Type) * ((size_t)n + MAX_BUILD_RESULTS));
	Node *node = build_with_types(b, op, n, operands, attr, types, types + n,
	                              MAX_BUILD_RESULTS);
	memory_free(types);
	return node;
}

Value *
build(Builder *b, OpKind op, int n, Value *const *operands, const void *attr)
{
	return node_result(build_node(b, op, n, operands, attr), 0);
}

Value *
b_unary(Builder *b, OpKind op, Value *x)
{
	return build(b, op, 1, &x, NULL);
}

Value *
b_binary(Builder *b, OpKind op, Value *x, Value *y)
{
	return build(b, op, 2, (Value *[]){x, y}, NULL);
}

Value *
b_select(Builder *b, Value *cond, Value *x, Value *y)
{
	return build(b, OP_select, 3, (Value *[]){cond, x, y}, NULL);
}

Value *
b_retyped(Builder *b, const Node *n, Value *const *operands)
{
	const OpRow *row = op_row(n);
	void *attr = row->attr_size ? arena_copy(b->m->arena, n->attr, row->attr_size) : NULL;

	for (const Field *f = row->fields; f && f->name; f++)
		if (f->kind == FIELD_DTYPE_IF_ANY)
			*(int *)((char *)attr + f->offset) = 0;
	return build(b, n->op, n->n_operands, operands, attr);
}

Value *
b_cast(Builder *b, Value *x, DType to)
{
	return x->type->dtype == to ? x : build(b, OP_cast, 1, &x, &(CastAttr){to});
}

Value *
b_constant(Builder *b, const Tensor *t)
{
	return build(b, OP_constant, 0, NULL, &(ConstantAttr){t});
}

Value *
b_splat(Builder *b, Type type, double value)
{
	Value *c = b_constant(b, tensor_splat(b->m, type_scalar(b->m, type->dtype), value));

	return b_broadcast(b, c, ints_of_type(type), (Ints){0});
}

/* Is it a float type of 16 bits? Models of such types are computed in f32 or f64, which keep more
 * digits of a number. */
static bool
rounds_much(DType d)
{
	return dtype_is_float(d) && dtype_info[d].bits == 16;
}

Value *
b_number(Builder *b, DType dtype, double value)
{
	Type type = type_scalar(b->m, dtype);

	if (rounds_much(dtype))
		return b_cast(b, b_number(b, F64, value), dtype);
	Value *sum = b_constant(b, tensor_splat(b->m, type, value));
	if (dtype != F32 || !isfinite(value))
		return sum;
	for (int i = 0; i < 2; i++) {
		value -= (double)(float)value;
		if (value == 0 || fabs(value) < 0x1p-126)
			break;
		sum = b_binary(b, OP_add, sum, b_constant(b, tensor_splat(b->m, type, value)));
	}
	return sum;
}

Value *
b_number_like(Builder *b, const Value *x, double value)
{
	return b_broadcast(b, b_number(b, x->type->dtype, value), ints_of_type(x->type), (Ints){0});
}

Value *
b_with(Builder *b, OpKind op, Value *x, double value)
{
	return b_binary(b, op, x, b_number_like(b, x, value));
}

Value *
b_reshape(Builder *b, Value *x, Ints shape)
{
	Ints old = ints_of_type(x->type);

	if (memcmp(&old, &shape, sizeof(old)) == 0)
		return x;
	return build(b, OP_reshape, 1, &x, &(ReshapeAttr){shape});
}

Value *
b_broadcast(Builder *b, Value *x, Ints shape, Ints axes)
{
	if (x->type->rank == shape.n)
		return x;
	return build(b, OP_broadcast, 1, &x, &(BroadcastAttr){shape, axes});
}

Value *
b_broadcast_to(Builder *b, Value *x, Ints shape)
{
	Type t = x->type;
	Ints kept = {0}, axes = {0};
	int lead = shape.n - t->rank;

	for (int i = 0; i < t->rank; i++) {
		if (t->dims[i] == 1 && shape.at[lead + i] != 1)
			continue;
		kept.at[kept.n++] = t->dims[i];
		axes.at[axes.n++] = lead + i;
	}
	return b_broadcast(b, b_reshape(b, x, kept), shape, axes);
}

Value *
b_spread(Builder *b, Value *v, Ints shape, Ints group)
{
	Ints split = {0}, axes = {0}, counts = {0}, whole = shape;

	for (int i = 0; i < shape.n; i++) {
		int64_t size = group.at[i], count = shape.at[i] ? (shape.at[i] - 1) / size + 1 : 0;
		bool is_cut = size > 1 && count > 1;
		if (count != 1) {
			axes.at[axes.n++] = split.n;
			counts.at[counts.n++] = count;
		}
		split.at[split.n++] = is_cut ? count : shape.at[i];
		if (is_cut) {
			split.at[split.n++] = size;
			whole.at[i] = count * size;
		}
	}
	v = b_reshape(b, v, counts);
	if (axes.n < split.n)
		v = b_broadcast(b, v, split, axes);
	v = b_reshape(b, v, whole);
	for (int i = 0; i < shape.n; i++)
		v = b_slice_axis(b, v, i, 0, shape.at[i]);
	return v;
}

/* x reduced over these axes, which keep size 1 */
static Value *
reduced_in_place(Builder *b, ReduceKind kind, Value *x, Ints axes)
{
	Ints shape = ints_of_type(x->type);

	for (int i = 0; i < axes.n; i++)
		shape.at[axes.at[i]] = 1;
	return b_reshape(b, b_reduce(b, kind, x, axes), shape);
}

void
b_dynamic_range(Builder *b, Value *x, Ints axes, Value **scale, Value **zero)
{
	Value *detached = b_unary(b, OP_stop_gradient, x);
	Value *low = b_with(b, OP_min, reduced_in_place(b, REDUCE_MIN, detached, axes), 0);
	Value *high = b_with(b, OP_max, reduced_in_place(b, REDUCE_MAX, detached, axes), 0);
	Value *range = b_binary(b, OP_sub, high, low);
	Value *is_empty = b_with(b, OP_eq, range, 0), *one = b_number_like(b, range, 1);

	*scale = b_select(b, is_empty, one, b_with(b, OP_div, range, 255));
	Value *at = b_unary(b, OP_neg, b_binary(b, OP_div, low, *scale));
	*zero = b_unary(b, OP_round, b_with(b, OP_min, b_with(b, OP_max, at, 0), 255));
}

Value *
b_broadcast_back(Builder *b, Value *y, Type x, Ints axes)
{
	Ints kept = {0};

	for (int i = 0; i < x->rank; i++)
		if (!ints_has(&axes, i))
			kept.at[kept.n++] = i;
	return b_broadcast(b, y, ints_of_type(x), kept);
}

Value *
b_transpose(Builder *b, Value *x, Ints order)
{
	bool identity = true;

	for (int i = 0; i < order.n; i++)
		identity &= order.at[i] == i;
	return identity ? x : build(b, OP_transpose, 1, &x, &(TransposeAttr){order});
}

Value *
b_slice(Builder *b, Value *x, Ints start, Ints stop, Ints step)
{
	return build(b, OP_slice, 1, &x, &(SliceAttr){start, stop, step});
}

Value *
b_slice_axis(Builder *b, Value *x, int axis, int64_t start, int64_t stop)
{
	SliceAttr a = {.start = {.n = x->type->rank},
	               .stop = ints_of_type(x->type),
	               .step = {.n = x->type->rank}};

	for (int i = 0; i < x->type->rank; i++)
		a.step.at[i] = 1;
	a.start.at[axis] = start;
	a.stop.at[axis] = stop;
	return start == 0 && stop == x->type->dims[axis] ? x : build(b, OP_slice, 1, &x, &a);
}

Value *
b_pad(Builder *b, Value *x, Ints low, Ints high, Ints interior, double value)
{
	return build(b, OP_pad, 1, &x, &(PadAttr){low, high, interior, value});
}

Value *
b_concat(Builder *b, int n, Value *const *x, int axis)
{
	return n == 1 ? x[0] : build(b, OP_concat, n, x, &(AxisAttr){axis});
}

Value *
b_reverse(Builder *b, Value *x, Ints axes)
{
	return axes.n ? build(b, OP_reverse, 1, &x, &(ReverseAttr){axes}) : x;
}

Value *
b_iota(Builder *b, DType dtype, Ints shape, int axis)
{
	return build(b, OP_iota, 0, NULL, &(IotaAttr){dtype, shape, axis});
}

Value *
b_reduce(Builder *b, ReduceKind kind, Value *x, Ints axes)
{
	return axes.n ? build(b, OP_reduce, 1, &x, &(ReduceAttr){kind, axes}) : x;
}

Value *
b_gather(Builder *b, Value *data, Value *indices, int axis)
{
	return build(b, OP_gather, 2, (Value *[]){data, indices}, &(AxisAttr){axis});
}

Value *
b_scatter(Builder *b, ScatterKind kind, Value *data, Value *indices, Value *updates, int axis)
{
	return build(b, OP_scatter, 3, (Value *[]){data, indices, updates},
	             &(ScatterAttr){kind, axis});
}

Value *
b_dot(Builder *b, Value *x, Value *y, Ints x_batch, Ints y_batch, Ints x_contract, Ints y_contract)
{
	return build(b, OP_dot, 2, (Value *[]){x, y},
	             &(DotAttr){x_batch, y_batch, x_contract, y_contract, .dtype = 0});
}

void
b_store(Builder *b, State *state, Value *v)
{
	build_node(b, OP_store, 1, &v, &(StoreAttr){state});
}

Value *
b_running_sum(Builder *b, State *state, Value *v)
{
	return b_binary(b, OP_add, function_state(b->f, state), v);
}

void
b_store_step(Builder *b, State *state, Value *first, Value *later)
{
	build_node(b, OP_store, 1, &first, &(StoreAttr){state})->when = WHEN_FIRST;
	build_node(b, OP_store, 1, &later, &(StoreAttr){state})->when = WHEN_LATER;
}

void
b_return(Builder *b, int n, Value *const *values)
{
	build_node(b, OP_return, n, values, NULL);
}
