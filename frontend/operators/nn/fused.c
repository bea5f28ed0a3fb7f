/* Imports onnxruntime's fused operators as the ordinary operators that they combine:
 * https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. Fused operators with
 * products are in matmul.c, conv.c, fused_attention.c and experts.c. */
#include "frontend/import/import.h"

#include <string.h>

/* x plus input i, one number per index of the last axis; x if there is no input i. */
static Value *
with_bias(OnnxNode *n, Value *x, int i)
{
	if (!x || !has_input(n, i))
		return x;
	if (x->type->rank < 1) {
		report_invalid(n, "a bias needs an axis, the input is a scalar");
		return NULL;
	}
	return e_binary(n, OP_add, x, e_channel(n, want_input(n, i), x, x->type->rank - 1));
}

/* ---- Gelu and its relatives */
static void
import_fused_gelu(OnnxNode *n)
{
	Value *x = with_bias(n, want_float_input(n, 0), 1);

	set_output(n, 0, x ? e_gelu(n, x, n->extra->flag) : NULL);
}

/* x sigmoid(alpha x) */
static void
import_quick_gelu(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	double alpha = want_float(n, "alpha", 1.702f);

	set_output(n, 0,
	           e_binary(n, OP_mul, x, e_unary(n, OP_sigmoid, e_with(n, OP_mul, x, alpha))));
}

/* ---- operators that add, then normalize the last axis */
typedef struct {
	Value *y, *mean, *inverse; /* mean: NULL if the operator does not subtract it */
} Normalized;

/* y = (x - mean) * inverse * gamma + beta; `means` false: without mean. Statistics are f32 or wider. */
static Normalized
normalize_last(OnnxNode *n, Value *x, int gamma, int beta, bool means)
{
	Normalized out = {0};
	double epsilon = want_float(n, "epsilon", 1e-12f);

	if (!x)
		return out;
	if (x->type->rank < 1) {
		report_invalid(n, "the input is a scalar");
		return out;
	}
	int last = x->type->rank - 1;
	Ints axes = {.n = 1, .at = {last}};
	Value *wide = e_cast(n, x, at_least_f32(x->type->dtype));
	if (means) {
		out.y = e_normalize(n, wide, axes, epsilon, &out.mean, &out.inverse);
	} else {
		Value *square = e_mean(n, e_binary(n, OP_mul, wide, wide), axes, true);
		out.inverse = e_unary(n, OP_rsqrt, e_with(n, OP_add, square, epsilon));
		out.y = e_binary(n, OP_mul, wide, out.inverse);
	}
	Value *y = e_cast(n, out.y, x->type->dtype);
	out.y = with_bias(n, e_binary(n, OP_mul, y, e_channel(n, want_input(n, gamma), x, last)),
	                  beta);
	return out;
}

/* Has `skip` x's shape? For [batch, tokens, hidden] its batch may be 1 or missing. */
static bool
skip_fits(OnnxNode *n, const Value *x, const Value *skip)
{
	int rank = x->type->rank, own = skip->type->rank;
	bool fits = own == rank || (rank == 3 && own == 2);

	for (int i = 1; fits && i <= own; i++) {
		int64_t size = skip->type->dims[own - i];
		fits = size == x->type->dims[rank - i] || (rank == 3 && i == 3 && size == 1);
	}
	if (!fits)
		report_invalid(n, "input 0 is %s, input 1 %s: need one shape",
		               type_text(n, x->type), type_text(n, skip->type));
	return fits;
}

/* Normalizes x + skip + bias. flag: SkipSimplifiedLayerNormalization, which has no mean and no beta. */
static void
import_skip_norm(OnnxNode *n)
{
	bool means = !n->extra->flag;
	Value *x = want_float_input(n, 0), *skip = want_input(n, 1);

	if (!x || !skip || !skip_fits(n, x, skip))
		return;
	Value *sum = e_binary(n, OP_add, x, e_broadcast(n, skip, shape_of(x)));
	sum = with_bias(n, sum, means ? 4 : 3);
	Normalized norm = normalize_last(n, sum, 2, means ? 3 : n_inputs(n), means);
	if (!means && has_output(n, 1))
		report_unsupported(n, "a mean, which this operator does not subtract");
	set_output(n, 0, norm.y);
	set_output(n, 1, norm.mean);
	set_output(n, 2, norm.inverse);
	set_output(n, 3, sum);
}

/* ---- EmbedLayerNormalization */
/* Rows of the table in input `table`, at the indices in input i, [B, S] or [1, S]. */
static Value *
rows_at(OnnxNode *n, int table, int i)
{
	Value *rows = want_float_input(n, table), *at = want_input(n, i);

	if (!rows || !at)
		return NULL;
	if (rows->type->rank != 2 || at->type->rank != 2) {
		report_invalid(n, "input %d has rank %d and input %d rank %d, need 2", table,
		               rows->type->rank, i, at->type->rank);
		return NULL;
	}
	at = e_indices(n, at, rows->type->dims[0], rows->kind == VALUE_STATE);
	return e_gather(n, rows, at, 0);
}

/* The first rows of the table of positions, or the rows that input 8 names. */
static Value *
position_rows(OnnxNode *n, int64_t tokens)
{
	if (has_input(n, 8))
		return rows_at(n, 3, 8);
	Value *rows = want_float_input(n, 3);
	if (!rows)
		return NULL;
	if (rows->type->rank == 2 && rows->type->dims[0] >= tokens)
		return e_slice_axis(n, rows, 0, 0, tokens);
	report_invalid(n,
	               "a table of positions has rank %d and %lld rows, needs rank 2 and a "
	               "row for each of %lld tokens",
	               rows->type->rank, rows->type->rank ? (long long)rows->type->dims[0] : 0LL,
	               (long long)tokens);
	return NULL;
}

/* The number of tokens per sample by the mask in input 7; 0 without a mask. */
static Value *
mask_counts(OnnxNode *n, const Value *ids)
{
	Ints shape = {.n = 1, .at = {ids->type->dims[0]}}, tokens = {.n = 1, .at = {1}};

	if (!has_input(n, 7))
		return e_splat(n, S32, shape, 0);
	Value *mask = want_input(n, 7);
	if (mask && !type_same_shape(mask->type, ids->type)) {
		report_invalid(n, "the mask does not have the shape of input_ids");
		return NULL;
	}
	Value *ones = mask ? e_cast(n, e_with(n, OP_eq, mask, 1), S32) : NULL;
	return e_reduce(n, REDUCE_SUM, ones, tokens, false);
}

static void
import_embed_norm(OnnxNode *n)
{
	Value *ids = want_input(n, 0), *sum = rows_at(n, 2, 0);

	if (!ids || !sum)
		return;
	Value *positions = position_rows(n, ids->type->dims[1]);
	sum = positions ? e_binary(n, OP_add, sum, e_broadcast(n, positions, shape_of(sum))) : NULL;
	if (has_input(n, 1) && sum) {
		Value *segments = rows_at(n, 4, 1);
		sum = segments ? e_binary(n, OP_add, sum, e_broadcast(n, segments, shape_of(sum)))
		               : NULL;
	}
	set_output(n, 0, normalize_last(n, sum, 5, 6, true).y);
	if (has_output(n, 1))
		set_output(n, 1, mask_counts(n, ids));
	set_output(n, 2, sum);
}

/* ---- GroupNorm and SkipGroupNorm */
static bool
groups_fit(OnnxNode *n, const Value *x, int64_t groups, int axis)
{
	if (x->type->rank >= 3 && groups >= 1 && x->type->dims[axis] % groups == 0)
		return true;
	report_invalid(n,
	               "%lld groups do not fit an input of rank %d with %lld channels: need "
	               "rank 3 or more, and groups that divide the channels",
	               (long long)groups, x->type->rank,
	               x->type->rank > axis && axis >= 0 ? (long long)x->type->dims[axis] : 0LL);
	return false;
}

/* [N, L, G, C/G] of an input whose channels are last, else [N, G, C/G, L]; normalized over all axes
 * but N and G. */
static Value *
normalize_groups(OnnxNode *n, Value *x, int64_t groups, bool last)
{
	const int64_t *d = x->type->dims;
	int64_t channels = d[last ? x->type->rank - 1 : 1], places = 1;
	Ints axes = {.n = 2, .at = {last ? 1 : 2, 3}}, shape = {.n = 4, .at = {d[0]}};
	Value *mean, *inverse;

	for (int i = 1; i < x->type->rank; i++)
		places *= i == (last ? x->type->rank - 1 : 1) ? 1 : d[i];
	shape.at[1] = last ? places : groups;
	shape.at[2] = last ? groups : channels / groups;
	shape.at[3] = last ? channels / groups : places;
	Value *y = e_reshape(n, e_cast(n, x, at_least_f32(x->type->dtype)), shape);
	y = y ? e_normalize(n, y, axes, want_float(n, "epsilon", 1e-5f), &mean, &inverse) : NULL;
	return e_reshape(n, y, shape_of(x));
}

/* Input 3: in the shape of x, or one number per sample and channel. */
static Value *
want_skip(OnnxNode *n, const Value *x, int axis)
{
	Value *skip = want_input(n, 3);
	Ints shape = shape_of(x);

	if (!skip)
		return NULL;
	if (skip->type->rank == 2) {
		Ints thin = {.n = shape.n};
		for (int i = 0; i < shape.n; i++)
			thin.at[i] = i == 0 || i == axis ? shape.at[i] : 1;
		skip = e_reshape(n, skip, thin);
	}
	return skip ? e_broadcast(n, skip, shape) : NULL;
}

static void
import_fused_group_norm(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	bool last = want_int(n, "channels_last", 1), silu = want_int(n, "activation", 0);
	int64_t groups = want_int(n, "groups", 0);

	if (!x)
		return;
	int axis = last ? x->type->rank - 1 : 1;
	if (!groups_fit(n, x, groups, axis))
		return;
	if (n->extra->flag) {
		x = e_binary(n, OP_add, x, want_skip(n, x, axis));
		if (x && has_input(n, 4))
			x = e_binary(n, OP_add, x, e_channel(n, want_input(n, 4), x, axis));
		set_output(n, 1, x);
	}
	Value *y = x ? normalize_groups(n, x, groups, last) : NULL, *gamma = want_input(n, 1),
	      *beta = want_input(n, 2);
	if (!y || !gamma || !beta)
		return;
	DType wide = y->type->dtype;
	y = e_binary(n, OP_mul, y, e_channel(n, e_cast(n, gamma, wide), x, axis));
	y = e_binary(n, OP_add, y, e_channel(n, e_cast(n, beta, wide), x, axis));
	y = silu ? e_silu(n, y) : y;
	set_output(n, 0, e_cast(n, y, x->type->dtype));
}

#define MICROSOFT "com.microsoft"
/* clang-format off */
const ImportRow import_fused_rows[] = {
	/* name      from  to  importer  extra  domain */
	{"Gelu", 1, 0, import_fused_gelu, {0}, MICROSOFT},
	{"BiasGelu", 1, 0, import_fused_gelu, {0}, MICROSOFT, .facts = {.weights = INPUT(1)}},
	{"FastGelu", 1, 0, import_fused_gelu, {.flag = true}, MICROSOFT,
	 .facts = {.weights = INPUT(1)}},
	{"QuickGelu", 1, 0, import_quick_gelu, {0}, MICROSOFT},
	{"SkipLayerNormalization", 1, 0, import_skip_norm, {0}, MICROSOFT,
	 .facts = {.weights = INPUTS(2, 4)}},
	{"SkipSimplifiedLayerNormalization", 1, 0, import_skip_norm, {.flag = true}, MICROSOFT,
	 .facts = {.weights = INPUTS(2, 3)}},
	{"EmbedLayerNormalization", 1, 0, import_embed_norm, {0}, MICROSOFT,
	 .facts = {.weights = INPUTS(2, 6)}},
	{"GroupNorm", 1, 0, import_fused_group_norm, {0}, MICROSOFT,
	 .facts = {.weights = INPUTS(1, 2)}},
	{"SkipGroupNorm", 1, 0, import_fused_group_norm, {.flag = true}, MICROSOFT,
	 .facts = {.weights = INPUTS(1, 2) | INPUT(4)}},
	{0},
};
/* clang-format on */
