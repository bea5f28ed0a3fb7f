/* Puts a loop over chunks of rows in place of a call. Example: a function with x[1024,768] cut along axis 0 into 4
 * chunks, w whole, dx[1024,768] cut, and dw combined by a sum:
 *
 *	dw0, dx0 = the nodes of the function, with slice x [0:256], w
 *	xs = reshape (slice x [256:1024])                    f32[3,256,768]
 *	dw, dxs = loop {body, bound = 3} dw0, xs, w          the body adds a chunk's dw to the carried one
 *	dx = concat dx0, reshape dxs                         f32[1024,768]
 *
 * The first chunk stands before the loop, so no sum begins with zeros. If the chunks do not divide the rows, a
 * smaller chunk follows the loop. */
#include "codegen/groups/chunks.h"

#include <math.h>

typedef struct {
	const Chunks *c;
	const Node *call;
	Builder b;
	Value **carried; /* by result: what the chunks so far make of it; NULL: nothing */
	Value **rows; /* by result: rows of the chunks so far, with the outer levels' axes in front; NULL: none */
} Expansion;
/* Chunks of equal size: units from..to of the last level, for every part of the outer levels. */
typedef struct {
	Function *part; /* computes a chunk */
	int64_t from, to, count, chunks;
} Range;

static const ChunkLevel *
last_level(const Chunks *c)
{
	return &c->levels[c->n - 1];
}

static const ValueCut *
cut_of_param(const ChunkLevel *l, int i)
{
	return &l->cut.of[l->f->params.at[i]->id];
}

static const ValueCut *
cut_of_result(const ChunkLevel *l, int i)
{
	return &l->cut.of[function_result(l->f, i)->id];
}

/* Is parameter i the same for all chunks? */
static bool
is_invariant(const Chunks *c, int i)
{
	for (int k = 0; k < c->n; k++)
		if (cut_of_param(&c->levels[k], i)->known)
			return false;
	return true;
}

/* Does each chunk have a part of the whole result i? */
static bool
is_carried(const Chunks *c, int i)
{
	for (int k = 0; k < c->n; k++)
		if (cut_of_result(&c->levels[k], i)->axis >= 0)
			return false;
	return true;
}

/* ---- axes. A value in several parts has axes for the parts in front, and then the axes of a part. */
/* Moves axis `from` of v to place `to`. */
static Value *
move_axis(Builder *b, Value *v, int from, int to)
{
	Ints order = {.n = v->type->rank};
	Ints dims = order;
	bool moves = false; /* not if it passes axes of one element only */
	int at = 0;

	for (int i = 0; i < order.n; i++) {
		if (at == from)
			at++;
		order.at[i] = i == to ? from : at++;
		dims.at[i] = v->type->dims[order.at[i]];
	}
	for (int i = from < to ? from : to; i <= (from < to ? to : from); i++)
		moves |= i != from && v->type->dims[i] != 1;
	return moves ? b_transpose(b, v, order) : b_reshape(b, v, dims);
}

/* Cuts axis `axis` of v into `count` pieces, which get the axis `lead`. */
static Value *
split_axis(Builder *b, Value *v, int lead, int axis, int64_t count)
{
	Ints dims = {.n = v->type->rank + 1};

	for (int i = 0; i < dims.n; i++)
		dims.at[i] = i < axis        ? v->type->dims[i]
		             : i == axis     ? count
		             : i == axis + 1 ? v->type->dims[axis] / count
		                             : v->type->dims[i - 1];
	return move_axis(b, b_reshape(b, v, dims), axis, lead);
}

/* Joins the pieces along axis `lead` to the axis that then is `axis`. */
static Value *
join_axis(Builder *b, Value *v, int lead, int axis)
{
	Value *x = move_axis(b, v, lead, axis);
	Ints dims = {.n = v->type->rank - 1};

	for (int i = 0; i < dims.n; i++)
		dims.at[i] = i < axis    ? x->type->dims[i]
		             : i == axis ? x->type->dims[i] * x->type->dims[i + 1]
		                         : x->type->dims[i + 1];
	return b_reshape(b, x, dims);
}

/* Repeats v along a new axis. */
static Value *
repeat(Builder *b, Value *v, int axis, int64_t count)
{
	Ints dims = {.n = v->type->rank + 1}, axes = {.n = v->type->rank};

	for (int i = 0; i < dims.n; i++)
		dims.at[i] = i < axis ? v->type->dims[i] : i == axis ? count : v->type->dims[i - 1];
	for (int i = 0; i < axes.n; i++)
		axes.at[i] = i + (i >= axis);
	return count == 1 ? b_reshape(b, v, dims) : b_broadcast(b, v, dims, axes);
}

static Ints
with_count(int64_t count, Type part)
{
	Ints dims = {.n = part->rank + 1, .at = {count}};

	for (int i = 0; i < part->rank; i++)
		dims.at[i + 1] = part->dims[i];
	return dims;
}

/* Argument i in the chunks of the range: [chunks, part]. */
static Value *
stack_of(Expansion *e, const Range *r, int i)
{
	Value *v = node_operand(e->call, i);

	for (int k = 0; k < e->c->n; k++) {
		const ChunkLevel *l = &e->c->levels[k];
		const ValueCut *of = cut_of_param(l, i);
		bool last = k == e->c->n - 1;
		int64_t count = last ? r->count : l->count;
		if (!of->known) {
			v = repeat(&e->b, v, k, count);
			continue;
		}
		int axis = k + of->axis;
		int64_t unit = v->type->dims[axis] / l->cut.units;
		if (last && r->to - r->from < l->cut.units)
			v = b_slice_axis(&e->b, v, axis, r->from * unit, r->to * unit);
		v = split_axis(&e->b, v, k, axis, count);
	}
	return b_reshape(&e->b, v, with_count(r->chunks, r->part->params.at[i]->type));
}

/* ---- results */
static double
neutral_of(Combine how)
{
	return how == COMBINE_SUM    ? 0
	       : how == COMBINE_PROD ? 1
	       : how == COMBINE_MAX  ? -INFINITY
	                             : INFINITY;
}

static ReduceKind
reduce_of(Combine how)
{
	static const ReduceKind kinds[] = {[COMBINE_SUM] = REDUCE_SUM,
	                                   [COMBINE_PROD] = REDUCE_PROD,
	                                   [COMBINE_MAX] = REDUCE_MAX,
	                                   [COMBINE_MIN] = REDUCE_MIN};

	return kinds[how];
}

static Value *
combine(Builder *b, Combine how, Value *x, Value *y)
{
	return b_binary(b, reduce_pair[reduce_of(how)], x, y);
}

/* The type in which parts of a result are combined: sums of many parts in 16 bits would lose digits. */
static DType
carried_dtype(DType d)
{
	return dtype_is_float(d) && dtype_info[d].bits < 32 ? F32 : d;
}

/* Combines the parts that lie along an axis of v. */
static Value *
combine_axis(Builder *b, Combine how, Value *v, int axis)
{
	return b_reduce(b, reduce_of(how), b_cast(b, v, carried_dtype(v->type->dtype)),
	                (Ints){.n = 1, .at = {axis}});
}

/* Adds the rows of the range to those of earlier ranges. rows: [chunks, part] */
static void
add_rows(Expansion *e, const Range *r, int i, Value *rows)
{
	const Chunks *c = e->c;
	const ValueCut *of = cut_of_result(last_level(c), i);
	Type part = function_result(r->part, i)->type;
	Ints dims = {0};
	int lead = c->n - 1;

	for (int k = 0; k < lead; k++)
		dims.at[dims.n++] = c->levels[k].count;
	dims.at[dims.n++] = r->count;
	for (int k = 0; k < part->rank; k++)
		dims.at[dims.n++] = part->dims[k];
	Value *v = b_reshape(&e->b, rows, dims);
	if (of->axis >= 0) {
		v = join_axis(&e->b, v, lead, lead + of->axis);
		e->rows[i] = e->rows[i] ? b_concat(&e->b, 2, (Value *[]){e->rows[i], v},
		                                   lead + of->axis)
		                        : v;
		return;
	}
	v = combine_axis(&e->b, of->combine, v, lead);
	e->rows[i] = e->rows[i] ? combine(&e->b, of->combine, e->rows[i], v) : v;
}

/* The whole result i, from its rows. */
static Value *
join_rows(Expansion *e, int i)
{
	Value *v = e->rows[i];

	for (int k = e->c->n - 2; k >= 0; k--) {
		const ValueCut *of = cut_of_result(&e->c->levels[k], i);
		v = of->axis >= 0 ? join_axis(&e->b, v, k, k + of->axis)
		                  : combine_axis(&e->b, of->combine, v, k);
	}
	return v;
}

/* ---- the loop */
typedef struct {
	VEC(Value *) carried, stacks, whole; /* operands of the loop */
	VEC(int) which;                      /* the results that are carried */
} LoopOperands;

static Function *
loop_body(Expansion *e, const Range *r, const LoopOperands *o)
{
	Module *m = e->b.m;
	Arena *arena = e->c->arena;
	const char *name = arena_printf(m->arena, "%s.loop", e->c->levels[0].f->name);
	Function *f = function_new(m, module_fresh_name(m, name));
	Value **map = NEW_ARRAY(arena, Value *, r->part->next_value_id);
	Builder b = {.m = m, .f = f, .loc = e->call->loc, .phase = e->call->phase};
	VEC(Value *) results = {0};

	function_param(f, type_scalar(m, S64), "chunk");
	for (int i = 0; i < o->carried.n; i++)
		function_param(f, o->carried.at[i]->type, "sum");
	for (int stacks = 1; stacks >= 0; stacks--)
		for (int i = 0; i < r->part->params.n; i++)
			if (is_invariant(e->c, i) == !stacks)
				map[r->part->params.at[i]->id] = function_param(
					f, r->part->params.at[i]->type,
					r->part->params.at[i]->name);
	function_clone_body(r->part, f, NULL, map);
	vec_push(arena, &results, b_constant(&b, tensor_splat(m, type_scalar(m, BOOL), 1)));
	for (int i = 0; i < o->which.n; i++) {
		const Value *part = function_result(r->part, o->which.at[i]);
		Value *sum = f->params.at[1 + i];
		vec_push(arena, &results,
		         combine(&b, cut_of_result(last_level(e->c), o->which.at[i])->combine, sum,
		                 b_cast(&b, map[part->id], sum->type->dtype)));
	}
	for (int i = 0; i < e->call->n_results; i++)
		if (!is_carried(e->c, i))
			vec_push(arena, &results, map[function_result(r->part, i)->id]);
	b_return(&b, results.n, results.at);
	return f;
}

/* What the loop's first part of result i is combined with. */
static Value *
beginning(Expansion *e, int i)
{
	Type t = node_result(e->call, i)->type;
	Type carried = type_new(e->b.m, carried_dtype(t->dtype), t->rank, t->dims);

	if (e->carried[i])
		return e->carried[i];
	return b_splat(&e->b, carried, neutral_of(cut_of_result(last_level(e->c), i)->combine));
}

/* Adds what a range with one chunk makes of result i: its part, or a piece of its rows. */
static void
add_part(Expansion *e, const Range *r, int i, Value *part)
{
	if (!is_carried(e->c, i)) {
		add_rows(e, r, i, b_reshape(&e->b, part, with_count(1, part->type)));
		return;
	}
	Value *v = b_cast(&e->b, part, carried_dtype(part->type->dtype));
	Combine how = cut_of_result(last_level(e->c), i)->combine;
	e->carried[i] = e->carried[i] ? combine(&e->b, how, e->carried[i], v) : v;
}

/* Computes the only chunk of a range without a loop. */
static void
add_nodes(Expansion *e, const Range *r)
{
	Function *f = e->b.f;
	Value **map = NEW_ARRAY(e->c->arena, Value *, r->part->next_value_id);

	for (int i = 0; i < e->call->n_operands; i++) {
		Value *v = node_operand(e->call, i);
		const Value *p = r->part->params.at[i];
		if (!is_invariant(e->c,
		                  i)) /* a library needs the rows without other rows around them */
			v = b_unary(&e->b, OP_copy,
			            b_reshape(&e->b, stack_of(e, r, i), ints_of_type(p->type)));
		map[p->id] = v;
	}
	function_clone_body(r->part, f, e->b.before, map);
	for (int i = 0; i < e->call->n_results; i++)
		add_part(e, r, i, map[function_result(r->part, i)->id]);
}

static void
add_loop(Expansion *e, const Range *r)
{
	Arena *arena = e->c->arena;
	LoopOperands o = {0};
	VEC(Value *) all = {0};

	for (int i = 0; i < e->call->n_results; i++)
		if (is_carried(e->c, i)) {
			vec_push(arena, &o.carried, beginning(e, i));
			vec_push(arena, &o.which, i);
		}
	for (int i = 0; i < e->call->n_operands; i++) {
		if (is_invariant(e->c, i))
			vec_push(arena, &o.whole, node_operand(e->call, i));
		else
			vec_push(arena, &o.stacks, stack_of(e, r, i));
	}
	for (int i = 0; i < o.carried.n; i++)
		vec_push(arena, &all, o.carried.at[i]);
	for (int i = 0; i < o.stacks.n; i++)
		vec_push(arena, &all, o.stacks.at[i]);
	for (int i = 0; i < o.whole.n; i++)
		vec_push(arena, &all, o.whole.at[i]);
	LoopAttr attr = {.body = loop_body(e, r, &o),
	                 .bound = r->chunks,
	                 .carried = o.carried.n,
	                 .sliced = o.stacks.n,
	                 .always = true};
	Node *loop = build_node(&e->b, OP_loop, all.n, all.at, &attr);
	int rows = o.carried.n;
	for (int i = 0; i < o.which.n; i++)
		e->carried[o.which.at[i]] = node_result(loop, i);
	for (int i = 0; i < e->call->n_results; i++)
		if (!is_carried(e->c, i))
			add_rows(e, r, i, node_result(loop, rows++));
}

static void
add_range(Expansion *e, int64_t from, int64_t count, int64_t units)
{
	const ChunkLevel *l = last_level(e->c);
	Range r = {.part = function_part(l->f, &l->cut, units),
	           .from = from,
	           .to = from + count * units,
	           .count = count,
	           .chunks = count};

	for (int k = 0; k < e->c->n - 1; k++)
		r.chunks *= e->c->levels[k].count;
	if (r.chunks == 1)
		add_nodes(e, &r);
	else
		add_loop(e, &r);
	function_remove(r.part);
}

/* May the first chunk stand before the loop, so that its parts of whole results need no zeros? The loop's operands are then
 * pieces of the call's, which are copied: not if an operand, such as the targets of a squared error, is about as large
 * as the product. */
static bool
begins_apart(const Chunks *c, const Node *call)
{
	bool carried = false;

	for (int i = 0; i < call->n_results; i++)
		carried |= is_carried(c, i);
	for (int i = 0; i < call->n_operands; i++)
		if (!is_invariant(c, i) && node_operand(call, i)->type->n > c->elements / 2)
			return false;
	return c->n == 1 && carried;
}

void
chunks_expand(const Chunks *c, Node *call)
{
	const ChunkLevel *l = last_level(c);
	int64_t first = begins_apart(c, call), done = l->count * l->units;
	Expansion e = {.c = c,
	               .call = call,
	               .b = {.m = call->function->module,
	                     .f = call->function,
	                     .before = call,
	                     .loc = call->loc,
	                     .phase = call->phase},
	               .carried = NEW_ARRAY(c->arena, Value *, call->n_results),
	               .rows = NEW_ARRAY(c->arena, Value *, call->n_results)};

	if (first)
		add_range(&e, 0, 1, l->units);
	if (l->count > first)
		add_range(&e, first * l->units, l->count - first, l->units);
	if (done < l->cut.units)
		add_range(&e, done, 1, l->cut.units - done);
	for (int i = 0; i < call->n_results; i++) {
		Value *old = node_result(call, i);
		Value *v = is_carried(c, i) ? e.carried[i] : join_rows(&e, i);
		value_replace_uses(old, b_cast(&e.b, v, old->type->dtype));
	}
	node_erase(call);
}
