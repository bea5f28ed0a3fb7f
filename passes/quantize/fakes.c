/* Builds the nodes that round a value to codes (small integers with a scale) and convert it back to floats, as the
 * exported model's QuantizeLinear and DequantizeLinear do. A weight's scale follows from its current values. An
 * activation's scale follows from a running range, from the tensor itself, or from each row. The computation of a
 * scale passes no gradient. For example a weight in s8, with a scale for each of 8 rows:
 *
 *	%1 = stop_gradient @w
 *	%2 = reduce (abs %1) {kind = max, axes = [1]} : f32[8]
 *	%3 = div %2, 127                                        (the scale)
 *	%4 = quantize @w, %3 {to = s8} : s8[8,16]
 *	%5 = mul (cast %4 {to = f32}), %3
 *
 * `straight_through` joins the last two. */
#include "passes/quantize/quantize.h"

#include <float.h>

static Ints
axes_between(int from, int to)
{
	Ints list = {0};

	for (int i = from; i < to; i++)
		list.at[list.n++] = i;
	return list;
}

/* ---- quantize and dequantize */
/* scale and zero have x's shape; zero NULL: the zero point is 0. */
static Value *
through_codes(Builder *b, Value *x, Value *scale, Value *zero, DType to)
{
	Value *operands[] = {x, scale, zero};
	Value *codes = build(b, OP_quantize, zero ? 3 : 2, operands, &(QuantizeAttr){.to = to});
	Value *y = b_cast(b, codes, F32);

	if (zero)
		y = b_binary(b, OP_sub, y, zero);
	return b_binary(b, OP_mul, y, scale);
}

/* Replaces the value by `otherwise` if the range is empty, that is, if the step between two codes
 * is too small. */
static Value *
unless_empty(Builder *b, Value *step, Value *value, double otherwise)
{
	return b_select(b, b_with(b, OP_lt, step, FLT_MIN), b_number_like(b, value, otherwise),
	                value);
}

/* ---- weights */
/* The largest magnitude in each group of elements that share a scale; results are in the order of
 * the scales. */
static Value *
largest_of_groups(FakeBuilder *f, const Place *at)
{
	Value *x = place_value(at);
	Ints shape = ints_of_type(x->type), split = {0}, inside = {0};
	Groups groups = {shape.n, shape.at, at->of->group.at};

	for (int i = 0; i < shape.n; i++) {
		int64_t count = groups_along(&groups, i), size = shape.at[i] / count;
		if (count > 1)
			split.at[split.n++] = count;
		if (count > 1 && size == 1)
			continue;
		inside.at[inside.n++] = split.n;
		split.at[split.n++] = size;
	}
	Value *size = b_unary(&f->b, OP_abs, b_unary(&f->b, OP_stop_gradient, x));
	return b_reduce(&f->b, REDUCE_MAX, b_reshape(&f->b, size, split), inside);
}

static Value *
weight_scale(FakeBuilder *f, const Place *at)
{
	const QuantizedOperand *q = at->of;
	double least, most;

	if (q->learned)
		return function_state(f->b.f, q->learned);
	dtype_range(q->type, &least, &most);
	if (dtype_info[q->type].bits >= 8)
		least = -most;
	Value *largest = largest_of_groups(f, at);
	Value *step = b_with(&f->b, OP_div, b_with(&f->b, OP_mul, largest, 2), most - least);
	return unless_empty(&f->b, step, step, 1);
}

static Value *
fake_weight(FakeBuilder *f, const Place *at)
{
	Value *x = place_value(at), *scale = weight_scale(f, at);

	scale = b_spread(&f->b, scale, ints_of_type(x->type), at->of->group);
	return through_codes(&f->b, x, scale, NULL, at->of->type);
}

/* ---- activations */
/* One end of an activation's range. In training the batch's range moves the stored range; while the
 * stored range is empty, the batch's range replaces it. */
static Value *
range_end(FakeBuilder *f, State *state, ReduceKind kind, OpKind bound, Value *x, Value *seen)
{
	Builder *b = &f->b;
	Value *old = function_state(b->f, state);
	Value *batch = b_reduce(b, kind, b_unary(b, OP_stop_gradient, x),
	                        axes_between(0, x->type->rank));

	batch = b_with(b, bound, batch, 0);
	if (!f->trains)
		return b_select(b, seen, old, batch);
	Value *next = b_binary(
		b, OP_add, old,
		b_with(b, OP_mul, b_binary(b, OP_sub, batch, old), f->options->averaging));

	next = b_select(b, seen, next, batch);
	if (f->options->freeze_after) {
		Value *updates = function_state(b->f, module_updates(b->m));
		Value *stays = b_binary(
			b, OP_and, seen,
			b_with(b, OP_ge, updates, (double)f->options->freeze_after));
		next = b_select(b, stays, old, next);
	}
	Builder end = *b;
	end.before = function_return(b->f);
	b_store(&end, state, next);
	return next;
}

/* Adds the learned shift to a zero point. The sum is rounded and clamped to the codes' type; its
 * gradient passes unchanged. */
static Value *
shifted_zero(Builder *b, const QuantizedOperand *q, Value *zero)
{
	double least, most;

	if (!q->zero_shift)
		return zero;
	dtype_range(q->type, &least, &most);
	zero = b_binary(b, OP_add, zero, function_state(b->f, q->zero_shift));
	Value *code = b_with(b, OP_min, b_with(b, OP_max, b_unary(b, OP_round, zero), least), most);
	return b_binary(b, OP_add, zero,
	                b_unary(b, OP_stop_gradient, b_binary(b, OP_sub, code, zero)));
}

/* Scale and zero point of a running range, as quantization_of computes them: in f64, since the zero
 * point is rounded. */
static Value *
fake_running(FakeBuilder *f, const Place *at)
{
	const QuantizedOperand *q = at->of;
	Builder *b = &f->b;
	Value *x = place_value(at);
	Value *seen = b_binary(b, OP_ne, function_state(b->f, q->low),
	                       function_state(b->f, q->high));
	Value *low = range_end(f, q->low, REDUCE_MIN, OP_min, x, seen);
	Value *high = range_end(f, q->high, REDUCE_MAX, OP_max, x, seen);
	Ints shape = ints_of_type(x->type);
	double least, most;

	dtype_range(q->type, &least, &most);
	Value *range = b_cast(b, b_binary(b, OP_sub, high, low), F64);
	Value *step = b_with(b, OP_div, range, most - least);
	Value *zero = b_binary(b, OP_sub, b_number_like(b, step, least),
	                       b_binary(b, OP_div, b_cast(b, low, F64), step));
	zero = unless_empty(b, step, b_unary(b, OP_round, zero), 0);
	Value *scale = b_cast(b, unless_empty(b, step, step, 1), F32);
	if (q->scale_shift)
		scale = b_binary(b, OP_add, scale, function_state(b->f, q->scale_shift));
	zero = shifted_zero(b, q, b_cast(b, zero, F32));
	return through_codes(b, x, b_broadcast_to(b, scale, shape), b_broadcast_to(b, zero, shape),
	                     q->type);
}

/* A vector is one row. */
static Value *
fake_dynamic(FakeBuilder *f, const Place *at)
{
	Value *x = place_value(at), *scale, *zero;
	int rank = x->type->rank;
	bool by_row = at->of->scales == SCALES_TOKEN && rank > 1;
	Ints axes = axes_between(by_row ? rank - 1 : 0, rank), shape = ints_of_type(x->type);

	b_dynamic_range(&f->b, x, axes, &scale, &zero);
	return through_codes(&f->b, x, b_broadcast_to(&f->b, scale, shape),
	                     b_broadcast_to(&f->b, zero, shape), U8);
}

Value *
fake_build(FakeBuilder *f, const Place *at)
{
	static Value *(*const builders[N_SCALE_SOURCES])(FakeBuilder *, const Place *) = {
		[SCALES_TENSOR] = fake_weight,   [SCALES_CHANNEL] = fake_weight,
		[SCALES_BLOCK] = fake_weight,    [SCALES_RUNNING] = fake_running,
		[SCALES_DYNAMIC] = fake_dynamic, [SCALES_TOKEN] = fake_dynamic};

	return builders[at->of->scales](f, at);
}
