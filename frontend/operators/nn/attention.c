/* Imports Attention and FlexAttention as products of heads with a softmax between:
 * https://onnx.ai/onnx/operators/onnx__Attention.html */
#include "frontend/operators/nn/attention.h"
#include "frontend/operators/control/control.h"

#include <math.h>
#include <string.h>

static Ints
dims4(int64_t a, int64_t b, int64_t c, int64_t d)
{
	return (Ints){.n = 4, .at = {a, b, c, d}};
}

static const Ints swap_heads = {.n = 4, .at = {0, 2, 1, 3}};

Value *
e_split_heads(OnnxNode *n, Value *x, int64_t heads, int input)
{
	if (!x)
		return NULL;
	const int64_t *d = x->type->dims;
	if (x->type->rank != 3 || heads < 1 || d[2] % heads) {
		report_invalid(n,
		               "input %d has rank %d and %lld numbers a token, needs rank 3 "
		               "and a multiple of %lld heads",
		               input, x->type->rank,
		               x->type->rank ? (long long)d[x->type->rank - 1] : 0LL,
		               (long long)heads);
		return NULL;
	}
	return e_transpose(n, e_reshape(n, x, dims4(d[0], d[1], heads, d[2] / heads)), swap_heads);
}

Value *
e_join_heads(OnnxNode *n, Value *x)
{
	if (!x)
		return NULL;
	const int64_t *d = x->type->dims;
	Ints shape = {.n = 3, .at = {d[0], d[2], d[1] * d[3]}};
	return e_reshape(n, e_transpose(n, x, swap_heads), shape);
}

bool
attention_fits(OnnxNode *n, const Value *q, const Value *k, const Value *v)
{
	const int64_t *a = q->type->dims, *b = k->type->dims, *c = v->type->dims;

	if (q->type->rank != 4 || k->type->rank != 4 || v->type->rank != 4) {
		report_invalid(n, "query, key and value have rank %d, %d and %d, need 4",
		               q->type->rank, k->type->rank, v->type->rank);
		return false;
	}
	if (b[1] < 1 || a[1] % b[1] || b[1] != c[1]) {
		report_invalid(n,
		               "query, key and value have %lld, %lld and %lld heads: key and "
		               "value need equal numbers, which divide the query's",
		               (long long)a[1], (long long)b[1], (long long)c[1]);
		return false;
	}
	if (a[0] != b[0] || b[0] != c[0] || a[3] != b[3] || b[2] != c[2]) {
		report_invalid(
			n,
			"query [%lld, ., ., %lld], key [%lld, ., %lld, %lld] and value [%lld, ., %lld, .] "
			"do not fit",
			(long long)a[0], (long long)a[3], (long long)b[0], (long long)b[2],
			(long long)b[3], (long long)c[0], (long long)c[2]);
		return false;
	}
	return true;
}

/* x [B, H, S, K] times y. The rows of all heads of x that share a head of y are stacked, so one
 * product per head of y computes them. */
static Value *
grouped_product(OnnxNode *n, Value *x, Value *y, int y_contract)
{
	if (!x || !y)
		return NULL;
	const int64_t *a = x->type->dims, *b = y->type->dims;
	DotAttr dot = {.x_batch = ints_range(0, 2),
	               .y_batch = ints_range(0, 2),
	               .x_contract = {.n = 1, .at = {3}},
	               .y_contract = {.n = 1, .at = {y_contract}}};
	Value *rows = e_reshape(n, x, dims4(a[0], b[1], a[1] / b[1] * a[2], a[3]));
	return e_reshape(n, e_dot(n, rows, y, &dot), dims4(a[0], a[1], a[2], b[5 - y_contract]));
}

Value *
e_scores(OnnxNode *n, Value *q, Value *k)
{
	return grouped_product(n, q, k, 3);
}

Value *
e_scaled_scores(OnnxNode *n, Value *q, Value *k, double scale)
{
	double root = sqrt(fabs(scale));

	return e_scores(n, e_with(n, OP_mul, q, copysign(root, scale)), e_with(n, OP_mul, k, root));
}

/* p v is computed in the wider of the two types. */
Value *
e_weigh(OnnxNode *n, Value *p, Value *v)
{
	if (!p || !v)
		return NULL;
	DType t = p->type->dtype,
	      wide = dtype_info[v->type->dtype].bits > dtype_info[t].bits ? v->type->dtype : t;
	return e_cast(n, grouped_product(n, e_cast(n, p, wide), e_cast(n, v, wide), 2), t);
}

Value *
e_softcap(OnnxNode *n, Value *x, double cap)
{
	return cap == 0 ? x
	                : e_with(n, OP_mul, e_unary(n, OP_tanh, e_with(n, OP_div, x, cap)), cap);
}

Value *
e_mask(OnnxNode *n, Value *x, Value *seen, double hidden)
{
	return x ? e_select(n, seen, x, e_number(n, x, hidden)) : NULL;
}

Value *
e_causal(OnnxNode *n, int64_t queries, int64_t keys, int64_t past)
{
	Ints shape = {.n = 2, .at = {queries, keys}};
	Value *row = e_iota(n, S64, shape, 0), *column = e_iota(n, S64, shape, 1);

	return e_binary(n, OP_ge, past ? e_with(n, OP_add, row, (double)past) : row, column);
}

Value *
e_below_lengths(OnnxNode *n, Value *lengths, int64_t keys)
{
	if (!lengths)
		return NULL;
	Value *column = e_iota(n, lengths->type->dtype, dims4(1, 1, 1, keys), 3);
	return e_binary(n, OP_lt, column, e_reshape(n, lengths, dims4(lengths->type->n, 1, 1, 1)));
}

/* ---- Attention */
typedef struct {
	Value *q, *k, *v, *mask, *lengths;
	int64_t past; /* number of keys in the past */
	DType t;
} Attention;

/* An input with heads: a 4-D tensor, or a 3-D tensor that is split into the attribute's number of
 * heads. */
static Value *
want_heads(OnnxNode *n, int i, const char *attribute)
{
	Value *x = want_float_input(n, i);
	int64_t heads = want_int(n, attribute, 0);

	if (!x || x->type->rank != 4)
		return e_split_heads(n, x, heads, i);
	if (has_attribute(n, attribute) && heads != x->type->dims[1]) {
		report_invalid(n, "%s is %lld, but input %d has %lld heads", attribute,
		               (long long)heads, i, (long long)x->type->dims[1]);
		return NULL;
	}
	return x;
}

/* Concatenates the past of a cache with x, along the tokens. */
static Value *
with_past(OnnxNode *n, int i, Value *x)
{
	if (!has_input(n, i))
		return x;
	Value *past = want_input(n, i);
	if (!past || !x)
		return NULL;
	const int64_t *a = past->type->dims, *b = x->type->dims;
	if (past->type->rank != 4 || past->type->dtype != x->type->dtype || a[0] != b[0] ||
	    a[1] != b[1] || a[3] != b[3]) {
		report_invalid(n, "input %d does not fit as the past of the new keys or values", i);
		return NULL;
	}
	return e_concat(n, 2, (Value *[]){past, x}, 2);
}

/* A mask of bools, or of numbers that are added. From opset 24 on the mask may have fewer columns
 * than there are keys: the missing keys are hidden. */
static Value *
want_mask(OnnxNode *n, int64_t keys)
{
	Value *mask = has_input(n, 3) ? want_input(n, 3) : NULL;

	if (!mask)
		return NULL;
	DType t = mask->type->dtype;
	int rank = mask->type->rank;
	if (t != BOOL && !dtype_is_float(t)) {
		report_unsupported(n, "attn_mask is %s, only booleans and floats are supported",
		                   dtype_info[t].name);
		return NULL;
	}
	if (rank < 1 || rank > 4) {
		report_invalid(n, "attn_mask has rank %d, needs 1 to 4", rank);
		return NULL;
	}
	Ints low = {.n = rank}, high = low;
	high.at[rank - 1] = keys - mask->type->dims[rank - 1];
	if (!n->extra->flag || high.at[rank - 1] <= 0)
		return mask;
	if (t == BOOL)
		return e_cast(n, e_pad(n, e_cast(n, mask, U8), low, high, 0), BOOL);
	return e_pad(n, mask, low, high, -HUGE_VAL);
}

static bool
attention_inputs(OnnxNode *n, Attention *a)
{
	a->q = want_heads(n, 0, "q_num_heads");
	a->k = want_heads(n, 1, "kv_num_heads");
	a->v = want_heads(n, 2, "kv_num_heads");
	if (has_input(n, 4) != has_input(n, 5))
		report_invalid(n, "past_key and past_value must be given together, one is missing");
	if (!a->q || !a->k || !a->v)
		return false;
	int64_t own = a->k->type->dims[2];
	a->k = with_past(n, 4, a->k);
	a->v = with_past(n, 5, a->v);
	if (!a->k || !a->v || !attention_fits(n, a->q, a->k, a->v))
		return false;
	if (a->q->type->dtype != a->k->type->dtype) {
		report_invalid(n, "Q is %s and K is %s, need one type",
		               dtype_info[a->q->type->dtype].name,
		               dtype_info[a->k->type->dtype].name);
		return false;
	}
	a->t = a->q->type->dtype;
	a->past = a->k->type->dims[2] - own;
	a->mask = want_mask(n, a->k->type->dims[2]);
	return !n->failed;
}

/* Reads input 6, s64[B]: the number of valid keys per sample. */
static bool
nonpad_lengths(OnnxNode *n, Attention *a)
{
	if (!has_input(n, 6))
		return true;
	Value *lengths = want_input(n, 6);
	if (!lengths)
		return false;
	if (lengths->type->rank != 1 || lengths->type->dtype != S64 ||
	    lengths->type->n != a->q->type->dims[0]) {
		report_invalid(
			n,
			"nonpad_kv_seqlen is %s of rank %d with %lld elements, needs int64[%lld]",
			dtype_info[lengths->type->dtype].name, lengths->type->rank,
			(long long)lengths->type->n, (long long)a->q->type->dims[0]);
		return false;
	}
	if (has_input(n, 4)) {
		report_invalid(n, "nonpad_kv_seqlen and past_key exclude each other");
		return false;
	}
	a->lengths = lengths;
	return true;
}

/* Adds the mask, hides keys after the token, and hides keys beyond the lengths. A hidden score is
 * -inf. */
static Value *
masked_scores(OnnxNode *n, const Attention *a, Value *x)
{
	Ints shape = shape_of(x);

	if (a->mask && a->mask->type->dtype == BOOL)
		x = e_mask(n, x, e_broadcast(n, a->mask, shape), -HUGE_VAL);
	else if (a->mask)
		x = e_binary(n, OP_add, x, e_broadcast(n, e_cast(n, a->mask, a->t), shape));
	if (want_int(n, "is_causal", 0))
		x = e_mask(n, x, e_causal(n, shape.at[2], shape.at[3], a->past), -HUGE_VAL);
	return a->lengths ? e_mask(n, x, e_below_lengths(n, a->lengths, shape.at[3]), -HUGE_VAL)
	                  : x;
}

static bool
softmax_type(OnnxNode *n, DType otherwise, DType *out)
{
	*out = otherwise;
	if (!has_attribute(n, "softmax_precision"))
		return true;
	if (!want_dtype(n, want_int(n, "softmax_precision", 0), out))
		return false;
	if (dtype_is_float(*out) && dtype_info[*out].bits >= 16)
		return true;
	report_invalid(n, "softmax_precision is %s, needs a float type of 16 bits or more",
	               dtype_info[*out].name);
	return false;
}

static double
default_scale(const Value *q)
{
	int64_t head = q->type->dims[3];

	return head ? 1 / sqrt((double)head) : 1;
}

/* The softmax along the keys. If a mask hides all keys of a query, the row of x is all -inf; then the
 * standard wants a result of 0, and the gradients are 0, too. Other rows with NaN stay NaN. */
static Value *
softmax_of_seen(OnnxNode *n, const Attention *a, Value *x)
{
	Ints keys = ints_range(3, 4);

	if (!x || (!a->mask && !a->lengths))
		return x ? e_softmax(n, x, keys, false) : NULL;
	Value *blind = e_with(n, OP_eq, e_reduce(n, REDUCE_MAX, x, keys, true), -HUGE_VAL);
	Value *p = e_softmax(n, e_select(n, blind, e_number(n, x, 0), x), keys, false);
	return p ? e_select(n, blind, e_number(n, p, 0), p) : NULL;
}

/* softmax(softcap(sqrt(scale) Q (sqrt(scale) K)') + mask) V. The optional output of probabilities
 * (mode 3) has NaN for a query without keys. */
static void
import_attention(OnnxNode *n)
{
	Attention a = {0};
	int64_t mode = want_int(n, "qk_matmul_output_mode", 0);
	DType precision;

	if (mode < 0 || mode > 3)
		report_invalid(n, "qk_matmul_output_mode is %lld, needs 0 to 3", (long long)mode);
	if (!attention_inputs(n, &a) || !nonpad_lengths(n, &a) || !softmax_type(n, a.t, &precision))
		return;
	Value *stages[4];
	stages[0] = e_scaled_scores(n, a.q, a.k, want_float(n, "scale", default_scale(a.q)));
	stages[1] = e_softcap(n, stages[0], want_float(n, "softcap", 0));
	stages[2] = stages[1] ? masked_scores(n, &a, stages[1]) : NULL;
	Value *x = e_cast(n, stages[2], precision);
	stages[3] = mode == 3 && x ? e_cast(n, e_softmax(n, x, ints_range(3, 4), false), a.t)
	                           : NULL;
	Value *y = e_weigh(n, e_cast(n, softmax_of_seen(n, &a, x), a.t), a.v);
	set_output(n, 0,
	           has_input(n, 0) && want_input(n, 0)->type->rank == 3 ? e_join_heads(n, y) : y);
	set_output(n, 1, a.k);
	set_output(n, 2, a.v);
	set_output(n, 3, stages[mode]);
}

/* ---- https://onnx.ai/onnx/operators/onnx_aionnxpreview_FlexAttention.html */
/* The graph in the attribute, applied to x; x if there is no such graph. */
static Value *
modified(OnnxNode *n, const char *attribute, Value *x)
{
	const AttributeProto *a = node_attribute(n->proto, attribute);

	if (!a || !x)
		return x;
	const GraphProto *g = a->g;
	if (!g || g->n_input != 1 || g->n_output != 1) {
		report_invalid(n, "%s has %zu inputs and %zu outputs, needs one each", attribute,
		               g ? g->n_input : 0, g ? g->n_output : 0);
		return NULL;
	}
	set_graph_value(n, g, 0, x);
	if (!n->failed)
		import_subgraph(n, g);
	Bound *b = n->failed ? NULL : graph_output(n, g, 0);
	Value *y = b && !b->sequence ? b->value : NULL;
	if (y && y->type != x->type) {
		report_invalid(n, "%s changes the type or the shape of its input", attribute);
		return NULL;
	}
	n->failed |= !y;
	return y;
}

/* prob_mod(softmax(score_mod(scale Q K'))) V; from the scores on, in f32 or wider */
static void
import_flex_attention(OnnxNode *n)
{
	Value *q = want_float_input(n, 0), *k = want_float_input(n, 1), *v = want_float_input(n, 2);
	DType wide;

	if (!q || !k || !v || !attention_fits(n, q, k, v))
		return;
	DType t = q->type->dtype;
	if (t != k->type->dtype || t != v->type->dtype) {
		report_invalid(n, "Q is %s, K %s and V %s, need one type", dtype_info[t].name,
		               dtype_info[k->type->dtype].name, dtype_info[v->type->dtype].name);
		return;
	}
	if (!softmax_type(n, dtype_info[t].bits < 32 ? F32 : t, &wide))
		return;
	Value *scores = e_scaled_scores(n, q, k, want_float(n, "scale", default_scale(q)));
	scores = modified(n, "score_mod", e_cast(n, scores, wide));
	Value *p = modified(n, "prob_mod", e_softmax(n, scores, ints_range(3, 4), false));
	set_output(n, 0, e_cast(n, e_weigh(n, p, e_cast(n, v, wide)), t));
}

const ImportRow import_attention_rows[] = {
	/* name        from  to  importer  extra (flag: a mask may have fewer columns than keys) */
	{"Attention", 23, 23, import_attention, {0}, NULL},
	{"Attention", 24, 0, import_attention, {.flag = true}, NULL},
	{"FlexAttention", 1, 0, import_flex_attention, {0}, "ai.onnx.preview"},
	{0},
};
