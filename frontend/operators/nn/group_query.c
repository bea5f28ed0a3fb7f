/* GroupQueryAttention:
 * https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention.
 * Each sample has its own number of earlier tokens. seqlens_k is the number of all tokens of a
 * sample, earlier and new ones, minus 1. */
#include "frontend/operators/nn/fused_attention.h"

#include <math.h>
#include <string.h>

typedef struct {
	Value *q, *k, *v; /* heads of the new tokens */
	Value *before;    /* s64[B, 1, 1]: number of tokens in the past; NULL: no past */
	int64_t tokens, keys;
} GroupQuery;

static bool
group_inputs(OnnxNode *n, GroupQuery *g)
{
	int64_t heads = want_int(n, "num_heads", 0), kv = want_int(n, "kv_num_heads", 0);
	Value *query = want_float_input(n, 0), *x[3] = {query, NULL, NULL};

	if (heads < 1 || kv < 1 || heads % kv || heads > MAX_ELEMENTS) {
		report_invalid(n,
		               "num_heads is %lld and kv_num_heads %lld: need 1 or more, and "
		               "num_heads a multiple of kv_num_heads",
		               (long long)heads, (long long)kv);
		return false;
	}
	if (has_input(n, 1) != has_input(n, 2))
		report_invalid(n, "key and value must be given together, one is missing");
	if (!query || n->failed)
		return false;
	int last = query->type->rank - 1;
	int64_t all = last == 2 ? query->type->dims[2] : 0, size = all / (heads + 2 * kv);
	if (!has_input(n, 1) && size * (heads + 2 * kv) != all) {
		report_invalid(
			n,
			"%lld numbers a token do not divide into %lld heads of the query and "
			"%lld each of key and value",
			(long long)all, (long long)heads, (long long)kv);
		return false;
	}
	for (int i = 1; i < 3; i++)
		x[i] = has_input(n, 1) ? want_float_input(n, i)
		       : last == 2
		               ? e_part(n, query, (i == 1 ? heads : heads + kv) * size, kv * size)
		               : query;
	if (!has_input(n, 1) && last == 2)
		x[0] = e_part(n, query, 0, heads * size);
	g->q = e_split_heads(n, x[0], heads, 0);
	g->k = e_split_heads(n, x[1], kv, 1);
	g->v = e_split_heads(n, x[2], kv, 2);
	return g->q && g->k && g->v && attention_fits(n, g->q, g->k, g->v);
}

/* Reads the number of keys, and the number of earlier tokens per sample. */
static bool
group_lengths(OnnxNode *n, GroupQuery *g)
{
	Value *last = want_input(n, 5);
	int64_t total, samples = g->q->type->dims[0];
	Ints shape = {.n = 3, .at = {samples, 1, 1}};

	if (!last || !want_constant_int(n, 6, &total))
		return false;
	g->tokens = g->q->type->dims[2];
	if (last->type->n != samples || last->type->dtype != S32 || total < g->tokens ||
	    total > MAX_ELEMENTS || g->k->type->dims[2] != g->tokens) {
		report_invalid(n,
		               "%lld tokens, %lld new keys, %lld keys in all, %lld elements in "
		               "seqlens_k: need a new key for each token, at least as many in all, "
		               "and an s32 for each sample",
		               (long long)g->tokens, (long long)g->k->type->dims[2],
		               (long long)total, (long long)last->type->n);
		return false;
	}
	g->keys = total;
	if (total == g->tokens)
		return true;
	Value *count = e_reshape(n, e_cast(n, last, S64), shape);
	g->before = e_with(n, OP_sub, count, (double)(g->tokens - 1));
	return g->before;
}

/* Positions of the tokens: [B, S], or [1, S] if all samples have no past. Without a past only the
 * first element of position_ids counts. */
static Value *
token_places(OnnxNode *n, const GroupQuery *g)
{
	Ints shape = {.n = 2, .at = {g->before ? g->q->type->dims[0] : 1, g->tokens}};
	Value *place = e_iota(n, S64, shape, 1);

	Value *given = has_input(n, 9) ? want_input(n, 9) : NULL;
	if (has_input(n, 9) && (!given || g->before))
		return given;
	if (given &&
	    (given->type->rank != 2 || given->type->dims[0] < 1 || given->type->dims[1] < 1)) {
		report_invalid(n,
		               "position_ids has rank %d and %lld elements, needs rank 2 and "
		               "1 or more",
		               given->type->rank, (long long)given->type->n);
		return NULL;
	}
	if (given)
		given = e_slice_axis(n, e_slice_axis(n, e_cast(n, given, S64), 0, 0, 1), 1, 0, 1);
	if (!g->before)
		return given ? e_binary(n, OP_add, place, given) : place;
	return e_binary(n, OP_add, place,
	                e_reshape(n, g->before, (Ints){.n = 2, .at = {shape.at[0], 1}}));
}

/* cos or sin at the positions, [B or 1, 1, S, K] */
static Value *
group_angles(OnnxNode *n, const GroupQuery *g, int i)
{
	Value *table = want_float_input(n, i), *place = token_places(n, g);

	if (!table || !place)
		return NULL;
	if (table->type->rank != 2 || place->type->rank != 2 || place->type->dims[1] != g->tokens ||
	    2 * table->type->dims[1] > g->q->type->dims[3]) {
		report_invalid(
			n,
			"input %d has rank %d and the positions rank %d: need 2, a position for "
			"each token, and at most half of a head's %lld numbers in a row of the "
			"input",
			i, table->type->rank, place->type->rank, (long long)g->q->type->dims[3]);
		return NULL;
	}
	Ints shape = {.n = 4, .at = {place->type->dims[0], 1, g->tokens, table->type->dims[1]}};
	place = e_indices(n, place, table->type->dims[0], false);
	return e_reshape(n, e_gather(n, table, place, 0), shape);
}

static bool
rotate_groups(OnnxNode *n, GroupQuery *g)
{
	bool interleaved = want_int(n, "rotary_interleaved", 0);

	if (!want_int(n, "do_rotary", 0))
		return true;
	Value *cos = group_angles(n, g, 7), *sin = group_angles(n, g, 8);
	if (!cos || !sin)
		return false;
	if (cos->type != sin->type) {
		report_invalid(n, "cos_cache and sin_cache have different types or shapes");
		return false;
	}
	g->q = e_rotate(n, g->q, cos, sin, interleaved);
	g->k = e_rotate(n, g->k, cos, sin, interleaved);
	return g->q && g->k;
}

/* The new cache per sample: its tokens of the past, then the new tokens, then zeros. Gathers rows of
 * [past, new]; row -1 is zeros. */
static Value *
present(OnnxNode *n, const GroupQuery *g, int i, Value *fresh)
{
	Value *past = has_input(n, i) ? want_input(n, i) : NULL;

	if (has_input(n, i) && !past)
		return NULL;
	const int64_t *d = fresh->type->dims, *p = past ? past->type->dims : NULL;
	if (past && (past->type->rank != 4 || past->type->dtype != fresh->type->dtype ||
	             p[0] != d[0] || p[1] != d[1] || p[3] != d[3])) {
		report_invalid(n, "input %d does not fit as the past of the new keys or values", i);
		return NULL;
	}
	int64_t before = past ? p[2] : 0, most = before > g->keys ? before : g->keys,
		rows = before + d[2];
	if (g->before && !past) {
		report_invalid(n, "%lld keys in all, more than there are tokens, need a past",
		               (long long)g->keys);
		return NULL;
	}
	Ints shape = {.n = 3, .at = {d[0], d[1], most}},
	     flat = {.n = 2, .at = {d[0] * d[1] * rows, d[3]}};
	Value *t = e_iota(n, S64, shape, 2), *start = g->before ? g->before : e_scalar(n, S64, 0);
	Value *own = e_binary(n, OP_sub, t, start), *zero = e_number(n, t, 0);
	Value *row = e_select(n, e_binary(n, OP_lt, own, zero), t,
	                      e_with(n, OP_add, own, (double)before));
	Value *head = e_with(n, OP_mul, e_iota(n, S64, shape, 0), (double)d[1]);
	head = e_with(n, OP_mul, e_binary(n, OP_add, head, e_iota(n, S64, shape, 1)), (double)rows);
	row = e_select(n, e_with(n, OP_lt, own, (double)d[2]), e_binary(n, OP_add, head, row),
	               e_number(n, t, -1));
	Value *both = past ? e_concat(n, 2, (Value *[]){past, fresh}, 2) : fresh;
	return most == rows && !g->before ? both : e_gather(n, e_reshape(n, both, flat), row, 0);
}

/* bool[B or 1, 1, S, T]: is the key visible? A key must not follow the token, and must lie in the
 * window if the operator has a window. */
static Value *
group_seen(OnnxNode *n, const GroupQuery *g, int64_t keys)
{
	Ints shape = {.n = 4, .at = {g->before ? g->q->type->dims[0] : 1, 1, g->tokens, keys}};
	Value *token = e_iota(n, S64, shape, 2), *key = e_iota(n, S64, shape, 3);
	int64_t window = want_int(n, "local_window_size", -1);

	if (g->before)
		token = e_binary(
			n, OP_add, token,
			e_reshape(n, g->before, (Ints){.n = 4, .at = {shape.at[0], 1, 1, 1}}));
	Value *seen = e_binary(n, OP_ge, token, key);
	if (window < 0)
		return seen;
	Value *near = e_with(n, OP_lt, e_binary(n, OP_sub, token, key), (double)window);
	return e_binary(n, OP_and, seen, near);
}

/* Input 11; with smooth_softmax a sink of score 0; NULL: no sink. */
static Value *
want_sink(OnnxNode *n, int64_t heads)
{
	Ints shape = {.n = 1, .at = {heads}};

	if (!has_input(n, 11))
		return want_int(n, "smooth_softmax", -1) == 1 ? e_splat(n, F32, shape, 0) : NULL;
	Value *sink = want_float_input(n, 11);
	if (sink && (sink->type->rank != 1 || sink->type->n != heads))
		report_invalid(n,
		               "head_sink has %lld elements, needs one for each of %lld "
		               "heads along a single axis",
		               (long long)sink->type->n, (long long)heads);
	return sink;
}

/* The bias, padded if it covers fewer keys than the cache: the other keys are hidden anyway. */
static Value *
group_bias(OnnxNode *n, int64_t keys)
{
	Value *bias = has_input(n, 10) ? want_float_input(n, 10) : NULL;
	Ints low = {.n = 4}, high = low;

	if (!bias || bias->type->rank != 4)
		return bias;
	high.at[3] = keys - bias->type->dims[3];
	return high.at[3] > 0 ? e_pad(n, bias, low, high, 0) : bias;
}

static void
refuse_codes(OnnxNode *n)
{
	static const char *const names[] = {"k_quant_type", "v_quant_type"};

	for (int i = 0; i < 2; i++)
		if (strcmp(want_string(n, names[i], "NONE"), "NONE"))
			report_unsupported(n, "%s: caches of codes are not supported", names[i]);
}

static void
import_group_query_attention(OnnxNode *n)
{
	int64_t wanted = want_int(n, "qk_output", 0), window = want_int(n, "local_window_size", -1);
	GroupQuery g = {0};

	refuse_codes(n);
	if (wanted < 0 || wanted > 2 || window < -1 || window == 0)
		report_invalid(n,
		               "qk_output is %lld, needs 0 to 2, and local_window_size %lld, "
		               "needs -1, or 1 or more",
		               (long long)wanted, (long long)window);
	if (n->failed || !group_inputs(n, &g) || !group_lengths(n, &g) || !rotate_groups(n, &g))
		return;
	Heads h = {.q = g.q,
	           .k = present(n, &g, 3, g.k),
	           .v = present(n, &g, 4, g.v),
	           .scale = want_scale(n, g.q)};
	if (!h.k || !h.v)
		return;
	int64_t keys = h.k->type->dims[2];
	h.softcap = want_float(n, "softcap", 0);
	h.seen = group_seen(n, &g, keys);
	h.added[1] = group_bias(n, keys);
	h.sink = want_sink(n, g.q->type->dims[1]);
	if (n->failed)
		return;
	set_output(n, 0, attend(n, &h));
	set_output(n, 1, h.k);
	set_output(n, 2, h.v);
	if (has_output(n, 3)) /* 0 for hidden keys */
		set_output(n, 3,
		           e_cast(n, wanted == 2 ? h.p : e_mask(n, h.scores, h.seen, 0),
		                  g.q->type->dtype));
}

/* clang-format off */
const ImportRow import_group_query_rows[] = {
	/* name                 from  to  importer  extra  domain */
	{"GroupQueryAttention", 1, 0, import_group_query_attention, {0}, "com.microsoft",
	 .facts = {.steering = INPUTS(7, 8)}},
	{0},
};
/* clang-format on */
