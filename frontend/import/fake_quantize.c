/* Fake quantization for --quantize: an input of a product is rounded to codes (small integers with
 * a scale) and converted back to floats, as the exported model's QuantizeLinear and
 * DequantizeLinear do it. So training sees the rounding. A weight's scale follows from its current
 * values. An activation's scale follows from a running range, from the tensor itself, or from each
 * row. The computation of a scale passes no gradient. For example a weight in s8, with a scale for
 * each of 8 rows:
 *   %1 = stop_gradient @w
 *   %2 = reduce (abs %1) {kind = max, axes = [1]} : f32[8]
 *   %3 = div %2, 127                                        (the scale)
 *   %4 = quantize @w, %3 {to = s8} : s8[8,16]
 *   %5 = mul (cast %4 {to = f32}), %3
 * `straight_through` joins the last two. */
#include "frontend/import/walk.h"

#include <float.h>
#include <math.h>

/* ---- quantized inputs */
static uint64_t
reader_key(const void *node, int input)
{
	return (uint64_t)(uintptr_t)node +
	       (uint64_t)input; /* unique: a NodeProto has more bytes than quantized inputs */
}

static State *
new_state(Importer *im, ImportInfo *info, const QuantizedTensor *t, const char *ending, Type type,
          StateKind kind)
{
	const char *name = arena_printf(im->m->arena, "%s%s", t->name, ending);
	State *s = state_new(im->m, module_fresh_name(im->m, name), type, kind, LIFE_SAVED);

	s->lr_scale = 1;
	s->loc = loc_name(im->m, t->node);
	vec_push(im->m->arena, &info->base.state_sources, (StateSource){type->dtype});
	return s;
}

static State *
new_parameter(Importer *im, ImportInfo *info, const QuantizedTensor *t, const char *ending,
              Type type, const void *numbers, const char *why)
{
	State *s = new_state(im, info, t, ending, type, STATE_PARAMETER);

	s->init = INIT_DATA;
	s->data = tensor_borrow(im->m, type, numbers);
	s->trainable = true;
	s->why = why;
	return s;
}

/* Makes the scales parameters. Each group begins with the paper's scale, 2 mean(|w|) / sqrt(Q)
 * (arXiv:1902.08153, 2.1). */
static void
learn_scale(Importer *im, ImportInfo *info, QuantizedTensor *t)
{
	Groups groups = quantized_groups(t);
	Type type = type_new(im->m, F32, 1, (int64_t[]){t->n_scales});
	double *sums = NEW_ARRAY(im->arena, double, t->n_scales), least, most;
	int64_t *counts = NEW_ARRAY(im->arena, int64_t, t->n_scales);
	float *scale = NEW_ARRAY(im->m->arena, float, t->n_scales);

	dtype_range(t->type, &least, &most);
	for (GroupWalk w = group_walk(&groups); w.i < t->n; group_next(&w)) {
		sums[w.group] += fabs(t->numbers[w.i]);
		counts[w.group]++;
	}
	for (int64_t g = 0; g < t->n_scales; g++)
		scale[g] = (float)fmax(2 * sums[g] / (double)counts[g] / sqrt(most), LEAST_SCALE);
	t->learned = new_parameter(im, info, t, "_scale",
	                           t->n_scales > 1 ? type : type_scalar(im->m, F32), scale,
	                           "a scale of codes, learned");
}

static void
open_range(Importer *im, ImportInfo *info, QuantizedTensor *t)
{
	static const float none = 0;
	const FakeQuantization *q = im->options->quantize;
	Type number = type_scalar(im->m, F32);

	t->low = new_state(im, info, t, ".low", number, STATE_STATISTIC);
	t->high = new_state(im, info, t, ".high", number, STATE_STATISTIC);
	t->low->why = t->high->why = "the range of an activation in codes";
	if (q->learn_scales)
		t->scale_shift = new_parameter(im, info, t, ".scale_shift", number, &none,
		                               "added to a scale of codes");
	if (q->learn_zeros)
		t->zero_shift = new_parameter(im, info, t, ".zero_shift", number, &none,
		                              "added to a zero point of codes");
}

/* Can the weight's state be quantized? It cannot if the state holds only one copy of an expanded
 * tensor, or if the weight is an Identity of another parameter's tensor. Such a weight stays in
 * floats. */
static bool
stands_for_itself(const Importer *im, const QuantizedTensor *t)
{
	const Weight *w = repairs_weight(im->repairs, t->name);

	for (int k = 0; k < t->readers.n; k++) {
		const NodeProto *p = t->readers.at[k].node;
		const Weight *made = p->n_output == 1 ? repairs_weight(im->repairs, p->output[0])
		                                      : NULL;
		if (made && made->identity == p)
			return false;
	}
	return !w || !w->expanded_to;
}

void
fake_quantize_open(Importer *im, ImportInfo *info)
{
	const FakeQuantization *q = im->options->quantize;

	if (!q)
		return;
	im->quantized = intmap_new(im->arena);
	for (int i = 0; i < q->tensors.n; i++) {
		QuantizedTensor *t = q->tensors.at[i];
		if (t->kind == QUANTIZED_WEIGHT && !stands_for_itself(im, t)) {
			diag_warning(
				im->diag,
				"weight %s of node %s is not quantized: the exporter merged or repeated "
				"it",
				quoted(im->model, t->name), quoted(im->model, t->node));
			t->readers.n = 0;
			continue;
		}
		for (int k = 0; k < t->readers.n; k++)
			intmap_put(im->quantized,
			           reader_key(t->readers.at[k].node, t->readers.at[k].input),
			           (uint64_t)(uintptr_t)t);
		if (t->kind == QUANTIZED_WEIGHT && q->learn_scales)
			learn_scale(im, info, t);
		if (t->kind == QUANTIZED_ACTIVATION && t->activations == ACTIVATIONS_STATIC)
			open_range(im, info, t);
	}
}

/* ---- quantize and dequantize */
/* scale and zero have x's shape; zero NULL: the zero point is 0. */
static Value *
through_codes(OnnxNode *n, Value *x, Value *scale, Value *zero, DType to)
{
	Value *operands[] = {x, scale, zero};
	Value *codes = scale ? e_op(n, OP_quantize, zero ? 3 : 2, operands,
	                            &(QuantizeAttr){.to = to})
	                     : NULL;
	Value *y = e_cast(n, codes, F32);

	if (zero)
		y = e_binary(n, OP_sub, y, zero);
	return e_binary(n, OP_mul, y, scale);
}

/* Replaces the value by `otherwise` if the range is empty, that is, if the step between two codes
 * is too small. */
static Value *
unless_empty(OnnxNode *n, Value *step, Value *value, double otherwise)
{
	return e_select(n, e_with(n, OP_lt, step, FLT_MIN), e_number(n, value, otherwise), value);
}

/* ---- weights */
/* The largest magnitude in each group of elements that share a scale; results are in the order of
 * the scales. */
static Value *
largest_of_groups(OnnxNode *n, const QuantizedTensor *t, Value *x)
{
	Groups groups = quantized_groups(t);
	Ints split = {0}, inside = {0};

	for (int i = 0; i < t->shape.n; i++) {
		int64_t count = groups_along(&groups, i), size = t->shape.at[i] / count;
		if (count > 1)
			split.at[split.n++] = count;
		if (count > 1 && size == 1)
			continue;
		if (split.n == MAX_RANK) {
			report_unsupported(n, "blocks in a weight of rank %d", t->shape.n);
			return NULL;
		}
		inside.at[inside.n++] = split.n;
		split.at[split.n++] = size;
	}
	Value *size = e_unary(n, OP_abs, e_unary(n, OP_stop_gradient, x));
	return e_reduce(n, REDUCE_MAX, e_reshape(n, size, split), inside, false);
}

static Value *
weight_scale(OnnxNode *n, const QuantizedTensor *t, Value *x)
{
	double least, most;

	if (t->learned)
		return function_state(n->b->f, t->learned);
	dtype_range(t->type, &least, &most);
	if (dtype_info[t->type].bits >= 8)
		least = -most;
	Value *step = e_with(n, OP_div, e_with(n, OP_mul, largest_of_groups(n, t, x), 2),
	                     most - least);
	return unless_empty(n, step, step, 1);
}

static Value *
fake_weight(OnnxNode *n, const QuantizedTensor *t, Value *x)
{
	Value *scale = weight_scale(n, t, x);

	return through_codes(n, x, scale ? b_spread(n->b, scale, t->shape, t->group) : NULL, NULL,
	                     t->type);
}

/* ---- activations */
/* One end of an activation's range. In training the batch's range moves the stored range; while the
 * stored range is empty, the batch's range replaces it. */
static Value *
range_end(OnnxNode *n, State *state, ReduceKind kind, OpKind bound, Value *x, Value *seen)
{
	Importer *im = n->im;
	const FakeQuantization *q = im->options->quantize;
	Value *old = function_state(n->b->f, state);
	Value *batch = e_reduce(n, kind, e_unary(n, OP_stop_gradient, x),
	                        ints_range(0, x->type->rank), false);

	batch = e_with(n, bound, batch, 0);
	if (im->inference)
		return e_select(n, seen, old, batch);
	Value *next = e_binary(n, OP_add, old,
	                       e_with(n, OP_mul, e_binary(n, OP_sub, batch, old), q->averaging));

	next = e_select(n, seen, next, batch);
	if (q->freeze_after) {
		Value *updates = function_state(n->b->f, module_updates(im->m));
		Value *stays = e_binary(n, OP_and, seen,
		                        e_with(n, OP_ge, updates, (double)q->freeze_after));
		next = e_select(n, stays, old, next);
	}
	importer_store_at_end(im, state, next);
	im->differs = true;
	return next;
}

/* Adds the learned shift to a zero point. The sum is rounded and clamped to the codes' type; its
 * gradient passes unchanged. */
static Value *
shifted_zero(OnnxNode *n, const QuantizedTensor *t, Value *zero)
{
	double least, most;

	if (!t->zero_shift)
		return zero;
	dtype_range(t->type, &least, &most);
	zero = e_binary(n, OP_add, zero, function_state(n->b->f, t->zero_shift));
	Value *code = e_with(n, OP_min, e_with(n, OP_max, e_unary(n, OP_round, zero), least), most);
	return e_binary(n, OP_add, zero,
	                e_unary(n, OP_stop_gradient, e_binary(n, OP_sub, code, zero)));
}

/* Scale and zero point of a static range, as quantization_of computes them: in f64, since the zero
 * point is rounded. */
static Value *
fake_static(OnnxNode *n, const QuantizedTensor *t, Value *x)
{
	Value *seen = e_binary(n, OP_ne, function_state(n->b->f, t->low),
	                       function_state(n->b->f, t->high));
	Value *low = range_end(n, t->low, REDUCE_MIN, OP_min, x, seen);
	Value *high = range_end(n, t->high, REDUCE_MAX, OP_max, x, seen);
	Ints shape = shape_of(x);
	double least, most;

	dtype_range(t->type, &least, &most);
	Value *range = e_cast(n, e_binary(n, OP_sub, high, low), F64);
	Value *step = e_with(n, OP_div, range, most - least);
	Value *zero = e_binary(n, OP_sub, e_number(n, step, least),
	                       e_binary(n, OP_div, e_cast(n, low, F64), step));
	zero = unless_empty(n, step, e_unary(n, OP_round, zero), 0);
	Value *scale = e_cast(n, unless_empty(n, step, step, 1), F32);
	if (t->scale_shift)
		scale = e_binary(n, OP_add, scale, function_state(n->b->f, t->scale_shift));
	zero = shifted_zero(n, t, e_cast(n, zero, F32));
	return through_codes(n, x, e_broadcast(n, scale, shape), e_broadcast(n, zero, shape),
	                     t->type);
}

static Value *
fake_dynamic(OnnxNode *n, QuantizedTensor *t, Value *x)
{
	int rank = x->type->rank;

	if (rank == 1)
		quantized_is_vector(t);
	bool by_row = t->activations == ACTIVATIONS_TOKEN;
	Ints axes = ints_range(by_row ? rank - 1 : 0, rank), shape = shape_of(x);
	Value *scale, *zero;

	e_dynamic_range(n, x, axes, &scale, &zero);
	return through_codes(n, x, e_broadcast(n, scale, shape), e_broadcast(n, zero, shape), U8);
}

static Value *
fake(OnnxNode *n, QuantizedTensor *t, Value *x)
{
	if (t->kind == QUANTIZED_WEIGHT)
		return fake_weight(n, t, x);
	return t->activations == ACTIVATIONS_STATIC ? fake_static(n, t, x) : fake_dynamic(n, t, x);
}

Value *
fake_quantized(OnnxNode *n, int i, Value *v)
{
	uint64_t found, made = 0;

	if (!v || !n->im->quantized || n->im->scope ||
	    !intmap_get(n->im->quantized, reader_key(n->proto, i), &found))
		return v;
	if (intmap_get(n->im->fakes, found, &made))
		return (Value *)(uintptr_t)made;
	QuantizedTensor *t = (QuantizedTensor *)(uintptr_t)found;
	if (v->type->dtype != F32) {
		report_unsupported(n, "input %d is %s: only f32 is quantized", i,
		                   dtype_info[v->type->dtype].name);
		return NULL;
	}
	Value *y = v->type->n && v->type->rank ? fake(n, t, v) : v;
	intmap_put(n->im->fakes, found, (uint64_t)(uintptr_t)y);
	return y;
}
