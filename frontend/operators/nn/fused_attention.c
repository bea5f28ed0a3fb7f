/* MultiHeadAttention and Attention of onnxruntime:
 * https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MultiHeadAttention.
 * Masks hide keys by adding large negative numbers to scores. Keys after a token are excluded from
 * the softmax entirely. */
#include "frontend/operators/nn/fused_attention.h"

#include <math.h>
#include <string.h>

/* Softmax along the keys with one more score per row, the sink. The sink takes a share of the sum
 * of 1, but has no value to add to the result. */
static Value *
softmax_with_sink(OnnxNode *n, Value *x, Value *sink)
{
	if (!x || !sink)
		return x ? e_softmax(n, x, ints_range(3, 4), false) : NULL;
	Ints column = shape_of(x);
	int64_t keys = column.at[3];
	column.at[3] = 1;
	Value *extra = e_reshape(n, e_cast(n, sink, x->type->dtype),
	                         (Ints){.n = 4, .at = {1, column.at[1], 1, 1}});
	Value *both = extra ? e_concat(n, 2, (Value *[]){x, e_broadcast(n, extra, column)}, 3)
	                    : NULL;
	return both ? e_slice_axis(n, e_softmax(n, both, ints_range(3, 4), false), 3, 0, keys)
	            : NULL;
}

Value *
attend(OnnxNode *n, Heads *h)
{
	DType t = h->q->type->dtype;
	Value *x = e_with(n, OP_mul, e_scores(n, h->q, h->k), h->scale);

	x = x ? e_softcap(n, e_cast(n, x, at_least_f32(t)), h->softcap) : NULL;
	for (int i = 0; i < 2 && x; i++)
		if (h->added[i])
			x = e_binary(n, OP_add, x,
			             e_broadcast(n, e_cast(n, h->added[i], x->type->dtype),
			                         shape_of(x)));
	h->scores = h->seen ? e_mask(n, x, h->seen, -HUGE_VAL) : x;
	h->p = softmax_with_sink(n, h->scores, h->sink);
	Value *y = e_join_heads(n, e_weigh(n, h->p, h->v));
	return e_cast(n, y, t);
}

double
want_scale(OnnxNode *n, const Value *q)
{
	double scale = want_float(n, "scale", 0);
	int64_t size = q->type->dims[3];

	return scale != 0 ? scale : size ? 1 / sqrt((double)size) : 1;
}

Value *
e_part(OnnxNode *n, Value *x, int64_t from, int64_t count)
{
	if (!x)
		return NULL;
	int last = x->type->rank - 1;
	if (from + count <= x->type->dims[last])
		return e_slice_axis(n, x, last, from, from + count);
	report_invalid(n, "%lld numbers where %lld to %lld are needed",
	               (long long)x->type->dims[last], (long long)from, (long long)(from + count));
	return NULL;
}

/* x [B, S, count] plus numbers [from, from + count) of the vector in input i. */
static Value *
plus_part(OnnxNode *n, Value *x, int i, int64_t from)
{
	if (!x || !has_input(n, i))
		return x;
	Value *bias = want_input(n, i);
	if (bias && bias->type->rank != 1) {
		report_invalid(n, "input %d has rank %d, needs 1", i, bias->type->rank);
		return NULL;
	}
	return e_binary(n, OP_add, x, e_part(n, bias, from, x->type->dims[2]));
}

/* ---- masks */
/* Numbers to add to scores: 0 for seen keys, mask_filter_value for others. */
static Value *
filter_where(OnnxNode *n, Value *seen)
{
	if (!seen)
		return NULL;
	double filter = want_float(n, "mask_filter_value", -10000.0f);
	Ints shape = shape_of(seen);
	return e_select(n, seen, e_splat(n, F32, shape, 0), e_splat(n, F32, shape, filter));
}

/* The mask is lengths [B], or ends [B] followed by starts [B]: keys start..end-1 are seen. */
static Value *
seen_between(OnnxNode *n, Value *mask, int64_t samples, int64_t keys)
{
	bool starts = mask->type->n == 2 * samples;
	Value *end = e_slice_axis(n, mask, 0, 0, samples);
	Value *seen = e_below_lengths(n, end, keys);

	if (!starts)
		return seen;
	Value *before = e_below_lengths(n, e_slice_axis(n, mask, 0, samples, 2 * samples), keys);
	return e_binary(n, OP_and, seen, e_unary(n, OP_not, before));
}

/* The filter from the mask in input i: lengths, [B, T], [B, S, T] or [B, 1, M, M], of which only the
 * rows of the new tokens are used. */
static Value *
want_filter(OnnxNode *n, int i, const Value *q, int64_t keys, int64_t past)
{
	Value *mask = has_input(n, i) ? want_input(n, i) : NULL;
	int64_t samples = q->type->dims[0], tokens = q->type->dims[2];

	if (!mask)
		return NULL;
	const int64_t *d = mask->type->dims;
	int rank = mask->type->rank;
	if (dtype_is_float(mask->type->dtype) || mask->type->dtype == BOOL) {
		report_invalid(n, "the mask is %s, needs integers",
		               dtype_info[mask->type->dtype].name);
		return NULL;
	}
	if (rank == 1 && (d[0] == samples || d[0] == 2 * samples))
		return filter_where(n, seen_between(n, mask, samples, keys));
	Ints shape = {.n = 4, .at = {rank ? d[0] : 0, 1, 1, keys}};
	if (rank == 2 && d[0] == samples && d[1] == keys) {
		mask = e_reshape(n, mask, shape);
	} else if (rank == 3 && d[0] == samples && d[1] == tokens && d[2] == keys) {
		shape.at[2] = tokens;
		mask = e_reshape(n, mask, shape);
	} else if (rank == 4 && d[0] == samples && d[1] == 1 && d[2] >= past + tokens &&
	           d[3] >= keys) {
		mask = e_slice_axis(n, e_slice_axis(n, mask, 2, past, past + tokens), 3, 0, keys);
	} else {
		report_unsupported(
			n,
			"a mask of rank %d with %lld elements does not fit %lld samples of %lld "
			"tokens and %lld keys",
			rank, (long long)mask->type->n, (long long)samples, (long long)tokens,
			(long long)keys);
		return NULL;
	}
	return filter_where(n, e_with(n, OP_gt, mask, 0));
}

static void
causal_where_asked(OnnxNode *n, Heads *h, int64_t past)
{
	if (want_int(n, "unidirectional", 0))
		h->seen = e_causal(n, h->q->type->dims[2], h->k->type->dims[2], past);
}

/* ---- Attention, which contains the projections */
/* Sets the sizes of q, k and v in the projection's result; false after reporting. */
static bool
qkv_sizes(OnnxNode *n, int64_t all, Ints *sizes)
{
	if (!want_ints(n, "qkv_hidden_sizes", sizes))
		*sizes = (Ints){.n = 3, .at = {all / 3, all / 3, all / 3}};
	int64_t sum = 0;
	bool positive = sizes->n == 3;
	for (int i = 0; i < sizes->n && positive; i++) {
		positive = sizes->at[i] > 0 && sizes->at[i] <= all;
		sum += positive ? sizes->at[i] : 0;
	}
	if (positive && sum == all && sizes->at[0] == sizes->at[1])
		return true;
	report_invalid(n,
	               "%lld columns of weights do not divide into query, key and value, of "
	               "which query and key need equal sizes",
	               (long long)all);
	return false;
}

/* Concatenates past [2, B, N, P, D] and x; which: 0 keys, 1 values. */
static Value *
behind_past(OnnxNode *n, Value *past, int which, Value *x)
{
	if (!past || !x)
		return x;
	const int64_t *p = past->type->dims, *d = x->type->dims;
	if (past->type->rank != 5 || p[0] != 2 || p[1] != d[0] || p[2] != d[1] || p[4] != d[3] ||
	    past->type->dtype != x->type->dtype) {
		report_invalid(n, "the past of rank %d does not belong to these keys and values",
		               past->type->rank);
		return NULL;
	}
	Ints shape = {.n = 4, .at = {p[1], p[2], p[3], p[4]}};
	Value *half = e_reshape(n, e_slice_axis(n, past, 0, which, which + 1), shape);
	return half ? e_concat(n, 2, (Value *[]){half, x}, 2) : NULL;
}

/* Stacks keys and values: [2, B, N, T, D]. */
static Value *
stacked(OnnxNode *n, Value *k, Value *v)
{
	if (!k || !v)
		return NULL;
	if (!type_same_shape(k->type, v->type)) {
		report_invalid(n, "present needs keys and values of one size");
		return NULL;
	}
	Ints shape = {.n = 5, .at = {1}};
	memcpy(shape.at + 1, k->type->dims, 4 * sizeof(*shape.at));
	return e_concat(n, 2, (Value *[]){e_reshape(n, k, shape), e_reshape(n, v, shape)}, 0);
}

static void
refuse_flags(OnnxNode *n, const char *const *names)
{
	for (; *names; names++)
		if (want_int(n, *names, 0))
			report_unsupported(n, "%s is %lld, only 0 is supported", *names,
			                   (long long)want_int(n, *names, 0));
}

static void
import_projecting_attention(OnnxNode *n)
{
	static const char *const refused[] = {"do_rotary", "past_present_share_buffer", NULL};
	Value *x = want_float_input(n, 0), *w = want_float_input(n, 1),
	      *past = has_input(n, 4) ? want_input(n, 4) : NULL;
	int64_t heads = want_int(n, "num_heads", 0);
	Heads h = {0};
	Ints sizes;

	refuse_flags(n, refused);
	if (!x || !w || n->failed)
		return;
	if (w->type->rank != 2 || x->type->rank != 3) {
		report_invalid(n, "input of rank %d and weights of rank %d, need 3 and 2",
		               x->type->rank, w->type->rank);
		return;
	}
	Value *all = e_matmul(n, x, w);
	all = plus_part(n, all, 2, 0);
	if (!all || !qkv_sizes(n, w->type->dims[1], &sizes))
		return;
	h.q = e_split_heads(n, e_part(n, all, 0, sizes.at[0]), heads, 0);
	h.k = e_split_heads(n, e_part(n, all, sizes.at[0], sizes.at[1]), heads, 0);
	h.v = e_split_heads(n, e_part(n, all, sizes.at[0] + sizes.at[1], sizes.at[2]), heads, 0);
	int64_t own = x->type->dims[1];
	h.k = behind_past(n, past, 0, h.k);
	h.v = behind_past(n, past, 1, h.v);
	if (!h.q || !h.k || !h.v)
		return;
	int64_t keys = h.k->type->dims[2];
	h.added[0] = want_filter(n, 3, h.q, keys, keys - own);
	h.added[1] = has_input(n, 5) ? want_float_input(n, 5) : NULL;
	causal_where_asked(n, &h, keys - own);
	h.scale = want_scale(n, h.q);
	set_output(n, 0, n->failed ? NULL : attend(n, &h));
	if (has_output(n, 1))
		set_output(n, 1, stacked(n, h.k, h.v));
}

/* ---- MultiHeadAttention */
/* Tensor number `which` of the `count` tensors packed in x [B, S, N, count, D]: [B, S, N D]. */
static Value *
packed_part(OnnxNode *n, Value *x, int64_t heads, int64_t count, int which)
{
	if (!x)
		return NULL;
	const int64_t *d = x->type->dims;
	if (x->type->rank != 5 || d[2] != heads || d[3] != count) {
		report_invalid(n, "a packed input of rank %d, needs [., ., %lld, %lld, .]",
		               x->type->rank, (long long)heads, (long long)count);
		return NULL;
	}
	Ints flat = {.n = 3, .at = {d[0], d[1], d[2] * d[4]}};
	return e_reshape(n, e_slice_axis(n, x, 3, which, which + 1), flat);
}

/* Reads query, key and value into x, each as [B, S, numbers]; key and value may also be heads that
 * were computed before, [B, N, S, D]. */
static void
multi_head_inputs(OnnxNode *n, int64_t heads, Value *x[3])
{
	bool key = has_input(n, 1), value = has_input(n, 2);
	Value *query = want_float_input(n, 0), *pair = key ? want_float_input(n, 1) : NULL;

	if (key && value) {
		x[0] = query;
		x[1] = pair;
		x[2] = want_float_input(n, 2);
		return;
	}
	if (value) {
		report_invalid(n, "a value without a key");
		return;
	}
	for (int i = 0; i < 3; i++)
		x[i] = !key ? packed_part(n, query, heads, 3, i)
		       : i  ? packed_part(n, pair, heads, 2, i - 1)
		            : query;
}

/* Concatenates the cache in input 6 + i and the heads x, along the tokens. */
static Value *
behind_cache(OnnxNode *n, int i, Value *x)
{
	Value *past = has_input(n, i) ? want_input(n, i) : NULL;

	if (!has_input(n, i) || !x)
		return x;
	if (!past)
		return NULL;
	const int64_t *p = past->type->dims, *d = x->type->dims;
	if (past->type->rank == 4 && past->type->dtype == x->type->dtype && p[0] == d[0] &&
	    p[1] == d[1] && p[3] == d[3])
		return e_concat(n, 2, (Value *[]){past, x}, 2);
	report_invalid(n, "input %d does not fit as the past of the new keys or values", i);
	return NULL;
}

/* The heads of x plus the bias. x is input i: 0 the query, 1 the key, 2 the value. A 4-D key or
 * value is heads already and gets no bias. */
static Value *
biased_heads(OnnxNode *n, Value *x, int i, int64_t heads, int64_t from)
{
	if (x && x->type->rank == 4 && i > 0)
		return x;
	if (x && x->type->rank != 3) {
		report_invalid(n, "input %d has rank %d, needs 3", i, x->type->rank);
		return NULL;
	}
	return e_split_heads(n, plus_part(n, x, 3, from), heads, i);
}

static bool
multi_heads(OnnxNode *n, Heads *h, int64_t *past)
{
	int64_t heads = want_int(n, "num_heads", 0), from = 0;
	Value *x[3] = {0}, *made[3];

	if (heads < 1)
		report_invalid(n, "num_heads is %lld, needs 1 or more", (long long)heads);
	if (has_input(n, 8) || has_input(n, 9))
		report_unsupported(n,
		                   "past_sequence_length and cache_indirection are not supported");
	if (n->failed)
		return false;
	multi_head_inputs(n, heads, x);
	for (int i = 0; i < 3; i++) {
		made[i] = biased_heads(n, x[i], i, heads, from);
		from += made[i] ? made[i]->type->dims[1] * made[i]->type->dims[3] : 0;
	}
	int64_t own = made[1] ? made[1]->type->dims[2] : 0;
	h->q = made[0];
	h->k = behind_cache(n, 6, made[1]);
	h->v = behind_cache(n, 7, made[2]);
	if (!h->q || !h->k || !h->v || !attention_fits(n, h->q, h->k, h->v))
		return false;
	*past = h->k->type->dims[2] - own;
	return true;
}

static void
import_multi_head_attention(OnnxNode *n)
{
	Heads h = {0};
	int64_t past = 0;

	if (!multi_heads(n, &h, &past))
		return;
	h.added[0] = want_filter(n, 4, h.q, h.k->type->dims[2], past);
	h.added[1] = has_input(n, 5) ? want_float_input(n, 5) : NULL;
	causal_where_asked(n, &h, past);
	h.scale = want_scale(n, h.q);
	set_output(n, 0, n->failed ? NULL : attend(n, &h));
	set_output(n, 1, h.k);
	set_output(n, 2, h.v);
	set_output(n, 3, e_cast(n, h.scores, h.q->type->dtype));
}

#define MICROSOFT "com.microsoft"
/* clang-format off */
const ImportRow import_fused_attention_rows[] = {
	/* name                 from  to  importer  extra  domain */
	{"Attention", 1, 0, import_projecting_attention, {0}, MICROSOFT,
	 .facts = {.weights = INPUTS(1, 2)}},
	{"MultiHeadAttention", 1, 0, import_multi_head_attention, {0}, MICROSOFT,
	 .facts = {.weights = INPUT(3)}},
	{0},
};
/* clang-format on */
