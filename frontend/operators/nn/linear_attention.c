/* LinearAttention, whose memory is a matrix per head, and CausalConvWithState, the convolution used
 * before it. */
#include "frontend/operators/nn/attention.h"

#include <math.h>
#include <string.h>

/* ---- https://onnx.ai/onnx/operators/onnx__CausalConvWithState.html */
static bool
causal_conv_fits(OnnxNode *n, const Value *x, const Value *w)
{
	const int64_t *a = x->type->dims, *b = w->type->dims;

	if (x->type->rank == 3 && w->type->rank == 3 && b[0] == a[1] && b[1] == 1 && b[2] >= 1 &&
	    a[1] >= 1)
		return true;
	report_invalid(n, "input of rank %d and weight of rank %d, need [B, C, L] and [C, 1, k]",
	               x->type->rank, w->type->rank);
	return false;
}

/* The k - 1 positions before x: the given state, or zeros. */
static Value *
places_before(OnnxNode *n, Value *x, int64_t count)
{
	Ints shape = shape_of(x);

	shape.at[2] = count;
	if (!has_input(n, 3))
		return e_splat(n, x->type->dtype, shape, 0);
	Value *past = want_input(n, 3);
	if (!past)
		return NULL;
	Ints given = shape_of(past);
	if (!memcmp(&given, &shape, sizeof(shape)) && past->type->dtype == x->type->dtype)
		return past;
	report_invalid(n, "past_state is no %s[%lld, %lld, %lld]", dtype_info[x->type->dtype].name,
	               (long long)shape.at[0], (long long)shape.at[1], (long long)count);
	return NULL;
}

static void
import_causal_conv(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *w = want_input(n, 1);
	const char *activation = want_word(n, "activation", "none silu swish");

	if (!x || !w || !causal_conv_fits(n, x, w))
		return;
	int64_t channels = x->type->dims[1], k = w->type->dims[2], length = x->type->dims[2];
	Value *padded = e_concat(n, 2, (Value *[]){places_before(n, x, k - 1), x}, 2);
	Ints one = {.n = 1, .at = {1}}, zero = {.n = 1};
	ConvAttr a = {
		.stride = one, .low = zero, .high = zero, .dilation = one, .groups = channels};
	Value *y = e_op(n, OP_conv, 2, (Value *[]){padded, w}, &a);
	if (has_input(n, 2))
		y = e_binary(n, OP_add, y, e_channel(n, want_input(n, 2), x, 1));
	if (y && strcmp(activation, "none")) /* computed in f32 or wider */
		y = e_cast(n, e_silu(n, e_cast(n, y, at_least_f32(x->type->dtype))),
		           x->type->dtype);
	set_output(n, 0, y);
	set_output(n, 1, padded ? e_slice_axis(n, padded, 2, length, length + k - 1) : NULL);
}

/* Decays below LEAST_DECAY are set to LEAST_DECAY: after a factor of e^-40 nothing is left. */
enum { LEAST_DECAY = -40 };

/* ---- https://onnx.ai/onnx/operators/onnx__LinearAttention.html
 *
 *	S[t] = e^g[t] S[t-1] + k[t] w[t]'
 *	w[t] = v[t], or with the delta rule
 *	w[t] = beta[t] (v[t] - (e^g[t] S[t-1])' k[t])
 *	o[t] = scale S[t]' q[t]
 *
 * g is the input decay. q is [B, H, T, D], k and g [B, Hkv, T, D], v [B, Hkv, T, Dv], S [B, Hkv, D, Dv];
 * g may be [B, Hkv, T, 1], beta is [B, Hkv or 1, T, 1]. */
typedef struct {
	Value *q, *k, *v, *g, *beta, *state; /* g, beta: NULL if the rule has none */
	double scale;
	DType wide;
} Linear;

/* Input i, split into `heads` heads: [B, heads, T, numbers per head]. */
static Value *
linear_heads(OnnxNode *n, Linear *l, int i, int64_t heads)
{
	Value *x = want_float_input(n, i);

	return x ? e_split_heads(n, e_cast(n, x, l->wide), heads, i) : NULL;
}

/* g and beta must be given exactly if the rule uses them. */
static bool
gate_fits(OnnxNode *n, int i, bool needed)
{
	if (has_input(n, i) == needed)
		return true;
	report_invalid(n, "input %d is %s", i,
	               needed ? "missing, but update_rule uses it"
	                      : "given, but update_rule does not use it");
	return false;
}

static bool
same_tokens(OnnxNode *n, const Value *x, const Value *q, int input)
{
	if (x->type->dims[0] == q->type->dims[0] && x->type->dims[2] == q->type->dims[2])
		return true;
	report_invalid(n,
	               "input %d has %lld samples of %lld tokens, the query %lld of %lld: need "
	               "equal numbers",
	               input, (long long)x->type->dims[0], (long long)x->type->dims[2],
	               (long long)q->type->dims[0], (long long)q->type->dims[2]);
	return false;
}

/* decay (g) has per token and head either a single number, or one number per element of the key.
 * beta has per token one number per head, or a single number for all heads. */
static bool
linear_gates(OnnxNode *n, Linear *l, bool gated, bool delta)
{
	int64_t heads = l->k->type->dims[1];

	if (!gate_fits(n, 4, gated) || !gate_fits(n, 5, delta))
		return false;
	Value *beta = delta ? want_float_input(n, 5) : NULL;
	l->g = gated ? linear_heads(n, l, 4, heads) : NULL;
	if (l->g)
		l->g = e_at_least(n, l->g, e_number(n, l->g, LEAST_DECAY));
	l->beta = beta ? linear_heads(n, l, 5,
	                              beta->type->rank == 3 && beta->type->dims[2] == 1 ? 1 : heads)
	               : NULL;
	if ((gated && !l->g) || (delta && !l->beta))
		return false;
	if (l->g && l->g->type->dims[3] != 1 && l->g->type->dims[3] != l->k->type->dims[3]) {
		report_invalid(n, "decay has %lld numbers a head, needs 1 or %lld",
		               (long long)l->g->type->dims[3], (long long)l->k->type->dims[3]);
		return false;
	}
	if (l->beta && l->beta->type->dims[3] != 1) {
		report_invalid(n, "beta has %lld numbers a head, needs 1",
		               (long long)l->beta->type->dims[3]);
		return false;
	}
	return (!l->g || same_tokens(n, l->g, l->q, 4)) &&
	       (!l->beta || same_tokens(n, l->beta, l->q, 5));
}

static bool
linear_state(OnnxNode *n, Linear *l)
{
	const int64_t *k = l->k->type->dims;
	Ints shape = {.n = 4, .at = {k[0], k[1], k[3], l->v->type->dims[3]}};
	Value *given = has_input(n, 3) ? want_float_input(n, 3) : NULL;

	if (!has_input(n, 3)) {
		l->state = e_splat(n, l->wide, shape, 0);
		return l->state;
	}
	if (!given)
		return false;
	Ints have = shape_of(given);
	if (memcmp(&have, &shape, sizeof(shape))) {
		report_invalid(n, "past_state does not have the shape [%lld, %lld, %lld, %lld]",
		               (long long)shape.at[0], (long long)shape.at[1],
		               (long long)shape.at[2], (long long)shape.at[3]);
		return false;
	}
	l->state = e_cast(n, given, l->wide);
	return l->state;
}

static bool
linear_inputs(OnnxNode *n, Linear *l, bool gated, bool delta)
{
	Value *q = want_float_input(n, 0);

	if (!q)
		return false;
	l->wide = at_least_f32(q->type->dtype);
	l->q = linear_heads(n, l, 0, want_int(n, "q_num_heads", 0));
	l->k = linear_heads(n, l, 1, want_int(n, "kv_num_heads", 0));
	l->v = linear_heads(n, l, 2, want_int(n, "kv_num_heads", 0));
	if (!l->q || !l->k || !l->v || !attention_fits(n, l->q, l->k, l->v) ||
	    !same_tokens(n, l->k, l->q, 1))
		return false;
	int64_t size = l->q->type->dims[3];
	l->scale = want_float(n, "scale", 0);
	if (l->scale == 0)
		l->scale = size ? 1 / sqrt((double)size) : 1;
	return linear_gates(n, l, gated, delta) && linear_state(n, l);
}

/* ---- A chunk is a sequence of tokens that is computed by matrix products rather than token by
 * token. Let G[t] = g[1] + .. + g[t], and for j <= t
 * P(x)[t,j] = sum over d of x[t,d] k[j,d] e^(G[t,d] - G[j,d]), else 0. Then
 * o = scale (P(q) w + (q e^G) S0),   S = e^G[T] S0 + (k e^(G[T] - G))' w,
 * and with the delta rule (1 + A) w = beta (v - (k e^G) S0), A = beta P(k) below the diagonal. */

/* Rows of a chunk that are multiplied with its keys. Queries of all heads that share a key head are
 * stacked. */
typedef struct {
	Value *x, *sum; /* [B, Hkv, rows, D], and G of these rows; sum NULL: no decay */
} Rows;

/* Repeats y [B, Hkv, T, *] for each group: [B, Hkv, groups * T, *]. */
static Value *
for_groups(OnnxNode *n, Value *y, int64_t groups)
{
	if (!y || groups == 1)
		return y;
	const int64_t *d = y->type->dims;
	Ints thin = {.n = 5, .at = {d[0], d[1], 1, d[2], d[3]}}, wide = thin;
	wide.at[2] = groups;
	return e_reshape(n, e_broadcast(n, e_reshape(n, y, thin), wide),
	                 (Ints){.n = 4, .at = {d[0], d[1], groups * d[2], d[3]}});
}

/* bool[groups * T, T]: is the key not after the row's token? before: is it before the token? */
static Value *
keys_until(OnnxNode *n, int64_t groups, int64_t tokens, bool before)
{
	Ints shape = {.n = 3, .at = {groups, tokens, tokens}},
	     flat = {.n = 2, .at = {groups * tokens, tokens}};
	Value *row = e_iota(n, S64, shape, 1), *key = e_iota(n, S64, shape, 2);

	return e_reshape(n, e_binary(n, before ? OP_gt : OP_ge, row, key), flat);
}

/* P of the rows, [B, Hkv, rows, T]. For hidden keys the exponent is set to -inf before exp, because
 * without this exp could overflow. */
static Value *
faded_products(OnnxNode *n, const Linear *l, const Rows *r, Value *sum, Value *seen)
{
	if (!sum)
		return e_mask(n, e_scores(n, r->x, l->k), seen, 0);
	if (!r->x || !r->sum)
		return NULL;
	const int64_t *d = r->sum->type->dims;
	int64_t tokens = sum->type->dims[2];
	Ints row = {.n = 5, .at = {d[0], d[1], d[2], 1, d[3]}},
	     key = {.n = 5, .at = {d[0], d[1], 1, tokens, d[3]}};
	Ints wide = {.n = 5, .at = {1, 1, d[2], tokens, 1}},
	     flat = {.n = 4, .at = {d[0], d[1], d[2], tokens}};
	Value *between = e_binary(n, OP_sub, e_reshape(n, r->sum, row), e_reshape(n, sum, key));
	Value *fade = e_unary(n, OP_exp, e_mask(n, between, e_reshape(n, seen, wide), -HUGE_VAL));
	if (d[3] == 1 && l->k->type->dims[3] != 1)
		return e_binary(n, OP_mul, e_scores(n, r->x, l->k), e_reshape(n, fade, flat));
	Value *x = e_binary(n, OP_mul, e_reshape(n, r->x, row), e_reshape(n, l->k, key));
	return e_reduce(n, REDUCE_SUM, e_binary(n, OP_mul, x, fade), (Ints){.n = 1, .at = {4}},
	                false);
}

/* (x e^G) S0 */
static Value *
from_start(OnnxNode *n, const Linear *l, const Rows *r)
{
	Value *x = r->sum ? e_binary(n, OP_mul, r->x, e_unary(n, OP_exp, r->sum)) : r->x;

	return e_weigh(n, x, l->state);
}

/* (1 + A)^-1, with A zero on and above the diagonal, by doubling. X holds the inverses of diagonal
 * blocks, at first of single elements. Each step joins two neighbouring diagonal blocks. With M
 * the block of A in the rows of the second and the columns of the first block, the inverse of the
 * joined block is X - X M X. */
static Value *
inverse_below(OnnxNode *n, Value *a)
{
	if (!a)
		return NULL;
	int64_t tokens = a->type->dims[2];
	Ints shape = {.n = 2, .at = {tokens, tokens}};
	Value *row = e_iota(n, S64, shape, 0), *column = e_iota(n, S64, shape, 1);
	Value *x = e_cast(n, e_binary(n, OP_eq, row, column), a->type->dtype);

	x = x ? e_broadcast(n, x, shape_of(a)) : NULL;
	for (int64_t size = 1; size < tokens; size *= 2) {
		Value *r = e_with(n, OP_div, row, (double)size),
		      *c = e_with(n, OP_div, column, (double)size);
		Value *odd = e_with(n, OP_eq, e_with(n, OP_rem, r, 2), 1);
		Value *below = e_binary(n, OP_and, odd,
		                        e_binary(n, OP_eq, c, e_with(n, OP_sub, r, 1)));
		Value *m = e_mask(n, a, below, 0);
		x = e_binary(n, OP_sub, x, e_weigh(n, x, e_weigh(n, m, x)));
	}
	return x;
}

/* The values that the tokens write: v; with the delta rule, a part of the difference between v and
 * the state's value. */
static Value *
writes(OnnxNode *n, const Linear *l, Value *sum)
{
	Rows keys = {l->k, sum};

	if (!l->beta)
		return l->v;
	Value *before = keys_until(n, 1, l->k->type->dims[2], true);
	Value *a = e_binary(n, OP_mul, faded_products(n, l, &keys, sum, before), l->beta);
	Value *rest = e_binary(n, OP_mul, e_binary(n, OP_sub, l->v, from_start(n, l, &keys)),
	                       l->beta);
	return e_weigh(n, inverse_below(n, a), rest);
}

static void
linear_chunk(OnnxNode *n, const Linear *l, Value **y, Value **state)
{
	const int64_t *q = l->q->type->dims, *k = l->k->type->dims;
	int64_t tokens = k[2], groups = q[1] / k[1];
	DotAttr over_tokens = {.x_batch = ints_range(0, 2),
	                       .y_batch = ints_range(0, 2),
	                       .x_contract = {.n = 1, .at = {2}},
	                       .y_contract = {.n = 1, .at = {2}}};
	CumulateAttr along = {.kind = REDUCE_SUM, .axis = 2};
	Value *sum = l->g ? e_op(n, OP_cumulate, 1, (Value *const *)&l->g, &along) : NULL;
	Rows queries = {
		e_reshape(n, l->q, (Ints){.n = 4, .at = {q[0], k[1], groups * tokens, q[3]}}),
		for_groups(n, sum, groups)};
	Value *w = writes(n, l, sum), *keys = l->k, *start = l->state;
	Value *p = faded_products(n, l, &queries, sum, keys_until(n, groups, tokens, false));

	*y = e_binary(n, OP_add, e_weigh(n, p, w), from_start(n, l, &queries));
	*y = e_reshape(n, *y, (Ints){.n = 4, .at = {q[0], q[1], tokens, l->v->type->dims[3]}});
	if (sum && tokens) {
		Value *all = e_slice_axis(n, sum, 2, tokens - 1, tokens);
		keys = e_binary(n, OP_mul, keys, e_unary(n, OP_exp, e_binary(n, OP_sub, all, sum)));
		Value *fade = e_transpose(n, e_unary(n, OP_exp, all),
		                          (Ints){.n = 4, .at = {0, 1, 3, 2}});
		start = e_binary(n, OP_mul, start, fade);
	}
	*state = e_binary(n, OP_add, start, e_dot(n, keys, w, &over_tokens));
}

/* ---- more tokens: a loop over chunks, which carries the state */
/* [B, H, T, D] -> [T / chunk, B, H, chunk, D]: one row per iteration of the loop. Tokens of zeros
 * are appended to fill the last chunk; they do not change the state. */
static Value *
chunks_first(OnnxNode *n, Value *x, int64_t chunk)
{
	if (!x)
		return NULL;
	const int64_t *d = x->type->dims;
	int64_t count = (d[2] + chunk - 1) / chunk;
	Ints shape = {.n = 5, .at = {d[0], d[1], count, chunk, d[3]}};
	Ints low = {.n = 4}, high = {.n = 4, .at = {0, 0, count * chunk - d[2], 0}};
	Ints order = {.n = 5, .at = {2, 0, 1, 3, 4}};
	return e_transpose(n, e_reshape(n, e_pad(n, x, low, high, 0), shape), order);
}

/* The function @linear_chunk(i, state, q, k, v, g, beta) -> (true, state, o) */
static Function *
linear_body(OnnxNode *n, int n_rows, Value *const *rows, const Linear *l)
{
	Module *m = n->b->m;
	Builder outer = *n->b;
	Function *f = function_new(m, module_fresh_name(m, "linear_chunk"));
	Linear in = {.wide = l->wide};
	Value **to[] = {&in.q, &in.k, &in.v, l->g ? &in.g : &in.beta, &in.beta}, *y, *state;

	*n->b = (Builder){.m = m, .f = f, .loc = outer.loc, .phase = outer.phase};
	function_param(f, type_scalar(m, S64), "i");
	in.state = function_param(f, l->state->type, "state");
	for (int i = 0; i < n_rows; i++)
		*to[i] = function_param(f, type_drop_axis(m, rows[i]->type, 0),
		                        arena_printf(m->arena, "x%d", i));
	linear_chunk(n, &in, &y, &state);
	if (y && state)
		b_return(n->b, 3, (Value *[]){e_scalar(n, BOOL, 1), state, y});
	*n->b = outer;
	return y && state ? f : NULL;
}

static void
linear_loop(OnnxNode *n, const Linear *l, int64_t chunk, Value **y, Value **state)
{
	Value *rows[] = {l->q, l->k, l->v, l->g ? l->g : l->beta, l->beta},
	      *operands[6] = {l->state};
	int n_rows = 3 + (l->g != NULL) + (l->beta != NULL);

	for (int i = 0; i < n_rows; i++) {
		rows[i] = operands[1 + i] = chunks_first(n, rows[i], chunk);
		if (!rows[i])
			return;
	}
	LoopAttr a = {.bound = rows[0]->type->dims[0], .carried = 1, .sliced = n_rows};
	a.body = linear_body(n, n_rows, rows, l);
	Value *last = a.body ? e_op(n, OP_loop, 1 + n_rows, operands, &a) : NULL;
	if (!last)
		return;
	const int64_t *q = l->q->type->dims;
	Ints shape = {.n = 4, .at = {q[0], q[1], a.bound * chunk, l->v->type->dims[3]}};
	Value *all = e_transpose(n, node_result(last->node, 1),
	                         (Ints){.n = 5, .at = {1, 2, 0, 3, 4}});
	*state = last;
	all = e_reshape(n, all, shape);
	*y = all ? e_slice_axis(n, all, 2, 0, q[2]) : NULL;
}

/* If each number of a key has its own decay, P cannot be a matrix product: it makes and sums T * T * D
 * elements for T tokens, so chunks are short. With the delta rule the inverse takes T^3 operations:
 * a chunk is at most as long as a key. */
static int64_t
chunk_tokens(const Linear *l, int64_t most)
{
	enum { SHORT = 16 };
	int64_t size = l->k->type->dims[3], longest = most;

	if (l->g && l->g->type->dims[3] != 1)
		longest = SHORT;
	else if (l->beta)
		longest = size > SHORT ? size : SHORT;
	return longest < most ? longest : most;
}

static void
import_linear_attention(OnnxNode *n)
{
	const char *rule = want_word(n, "update_rule", "gated_delta linear gated delta");
	bool delta = strstr(rule, "delta"), gated = !strncmp(rule, "gated", 5);
	int64_t chunk = want_int(n, "chunk_size", 64);
	Linear l = {0};
	Value *y = NULL, *state = NULL;

	if (chunk < 1)
		report_invalid(n, "chunk_size is %lld, needs 1 or more", (long long)chunk);
	if (chunk < 1 || !linear_inputs(n, &l, gated, delta))
		return;
	chunk = chunk_tokens(&l, chunk);
	if (l.k->type->dims[2] > chunk)
		linear_loop(n, &l, chunk, &y, &state);
	else
		linear_chunk(n, &l, &y, &state);
	Value *q = want_input(n, 0), *past = has_input(n, 3) ? want_input(n, 3) : q;
	y = e_with(n, OP_mul, y, l.scale);
	set_output(n, 0, y ? e_join_heads(n, e_cast(n, y, q->type->dtype)) : NULL);
	set_output(n, 1, e_cast(n, state, past->type->dtype));
}

const ImportRow import_linear_attention_rows[] = {
	/* name                 from  to  importer  extra */
	{"LinearAttention", 27, 0, import_linear_attention, {0}, NULL},
	{"CausalConvWithState", 27, 0, import_causal_conv, .facts = {.weights = INPUTS(1, 2)}},
	{0},
};
