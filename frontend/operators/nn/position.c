/* Imports operators that use positions of tokens: RotaryEmbedding rotates numbers by angles that
 * depend on the position, and TensorScatter writes tokens into a cache at given positions. */
#include "frontend/operators/nn/attention.h"

#include <string.h>

/* The two numbers of each of `pairs` pairs, from x [a, b, c, 2 pairs]. */
static void
split_pairs(OnnxNode *n, Value *x, int64_t pairs, bool interleaved, Value *out[2])
{
	Ints shape = shape_of(x), flat = shape;

	if (!interleaved) {
		for (int i = 0; i < 2; i++)
			out[i] = e_slice_axis(n, x, 3, i * pairs, (i + 1) * pairs);
		return;
	}
	shape.at[3] = flat.at[3] = pairs;
	shape.at[shape.n++] = 2;
	x = e_reshape(n, x, shape);
	for (int i = 0; i < 2; i++)
		out[i] = e_reshape(n, e_slice_axis(n, x, 4, i, i + 1), flat);
}

static Value *
join_pairs(OnnxNode *n, Value *const parts[2], bool interleaved)
{
	Value *part[2] = {parts[0], parts[1]};

	if (!part[0] || !part[1])
		return NULL;
	Ints shape = shape_of(part[0]), thin = shape;
	shape.at[3] *= 2;
	thin.at[thin.n++] = 1;
	for (int i = 0; i < 2 && interleaved; i++)
		part[i] = e_reshape(n, part[i], thin);
	return e_reshape(n, e_concat(n, 2, part, interleaved ? 4 : 3), shape);
}

Value *
e_rotate(OnnxNode *n, Value *x, Value *cos, Value *sin, bool interleaved)
{
	Value *pair[2], *turned[2];

	if (!x || !cos || !sin)
		return NULL;
	int64_t pairs = cos->type->dims[3], head = x->type->dims[3];
	Value *rest = e_slice_axis(n, x, 3, 2 * pairs, head);
	x = e_slice_axis(n, x, 3, 0, 2 * pairs);
	if (!x)
		return NULL;
	split_pairs(n, x, pairs, interleaved, pair);
	turned[0] = e_binary(n, OP_sub, e_binary(n, OP_mul, pair[0], cos),
	                     e_binary(n, OP_mul, pair[1], sin));
	turned[1] = e_binary(n, OP_add, e_binary(n, OP_mul, pair[0], sin),
	                     e_binary(n, OP_mul, pair[1], cos));
	Value *y = join_pairs(n, turned, interleaved);
	return 2 * pairs == head ? y : e_concat(n, 2, (Value *[]){y, rest}, 3);
}

/* Angles from input i: [positions, pairs] is read at each token's position; [B, S, pairs] is used
 * directly. */
static Value *
want_angles(OnnxNode *n, int i, Value *positions, int64_t pairs)
{
	Value *cache = want_float_input(n, i);

	if (!cache)
		return NULL;
	int rank = cache->type->rank, needed = positions ? 2 : 3;
	if (rank != needed || cache->type->dims[rank - 1] != pairs) {
		report_invalid(
			n,
			"input %d has rank %d and %lld numbers at the end, needs rank %d and %lld",
			i, rank, rank ? (long long)cache->type->dims[rank - 1] : 0LL, needed,
			(long long)pairs);
		return NULL;
	}
	if (!positions)
		return cache;
	return e_gather(n, cache, e_indices(n, positions, cache->type->dims[0], false), 0);
}

/* How many numbers of a head are rotated; 0 after reporting. */
static int64_t
rotary_size(OnnxNode *n, int64_t head)
{
	int64_t size = want_int(n, "rotary_embedding_dim", 0);

	size = size ? size : head;
	if (size > 0 && size <= head && size % 2 == 0)
		return size;
	report_invalid(n,
	               "a rotation of %lld numbers in a head of %lld: needs an even number, "
	               "at most the head's",
	               (long long)size, (long long)head);
	return 0;
}

/* x [B, S, numbers] or [B, H, S, D], rotated by the angles in inputs `cos` and cos + 1. */
static Value *
rotated(OnnxNode *n, Value *x, int64_t heads, Value *positions, int cos)
{
	Ints shape = shape_of(x), angles = {.n = 4};
	int tokens = shape.n == 3 ? 1 : 2;

	if (shape.n == 3 && (heads < 1 || shape.at[2] % heads)) {
		report_invalid(n, "%lld heads do not divide %lld numbers a token", (long long)heads,
		               (long long)shape.at[2]);
		return NULL;
	}
	if (shape.n == 3)
		x = e_reshape(n, x,
		              (Ints){.n = 4,
		                     .at = {shape.at[0], shape.at[1], heads, shape.at[2] / heads}});
	const int64_t *at = positions ? positions->type->dims : NULL;
	if (at && (positions->type->rank != 2 || at[1] != shape.at[tokens] ||
	           (at[0] != 1 && at[0] != shape.at[0]))) {
		report_invalid(n, "positions are %s, need [%lld, %lld]",
		               type_text(n, positions->type), (long long)shape.at[0],
		               (long long)shape.at[tokens]);
		return NULL;
	}
	int64_t size = rotary_size(n, x->type->dims[3]);
	Value *c = size ? want_angles(n, cos, positions, size / 2) : NULL;
	Value *s = size ? want_angles(n, cos + 1, positions, size / 2) : NULL;
	if (!c || !s)
		return NULL;
	Type tables[] = {want_input(n, cos)->type, want_input(n, cos + 1)->type};
	if (!type_same_shape(tables[0], tables[1])) {
		report_invalid(n, "its cosines are %s, its sines %s: need one shape",
		               type_text(n, tables[0]), type_text(n, tables[1]));
		return NULL;
	}
	angles.at[0] = c->type->dims[0] == 1 ? 1 : shape.at[0];
	angles.at[1] = angles.at[2] = 1;
	angles.at[tokens] = shape.at[tokens];
	angles.at[3] = size / 2;
	Value *y = e_rotate(n, x, e_reshape(n, c, angles), e_reshape(n, s, angles),
	                    want_int(n, "interleaved", 0));
	return e_reshape(n, y, shape);
}

static bool
rotary_rank(OnnxNode *n, const Value *x)
{
	if (x->type->rank == 3 || x->type->rank == 4)
		return true;
	report_invalid(n, "input of rank %d, needs 3 or 4", x->type->rank);
	return false;
}

/* RotaryEmbedding: https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html. Tokens are axis 1 of a
 * 3-D input, with all heads in the last axis, and axis 2 of a 4-D input. */
static void
import_rotary_embedding(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *positions = has_input(n, 3) ? want_input(n, 3) : NULL;

	if (x && rotary_rank(n, x) && (positions || !has_input(n, 3)))
		set_output(n, 0, rotated(n, x, want_int(n, "num_heads", 0), positions, 1));
}

/* com.microsoft.RotaryEmbedding:
 * https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.RotaryEmbedding.
 * A single position is the first token's. Without num_heads the tables give the size of a head. */
static void
import_fused_rotary(OnnxNode *n)
{
	Value *x = want_float_input(n, 0), *at = want_input(n, 1), *cos = want_float_input(n, 2);
	int64_t heads = want_int(n, "num_heads", 0);

	if (!x || !at || !cos || !rotary_rank(n, x))
		return;
	int64_t tokens = x->type->dims[x->type->rank == 3 ? 1 : 2];
	int64_t head = cos->type->rank == 2 ? 2 * cos->type->dims[1] : 0;
	if (at->type->rank == 1 && at->type->n == 1) {
		Ints shape = {.n = 2, .at = {1, tokens}};
		at = e_binary(n, OP_add, e_iota(n, at->type->dtype, shape, 1), at);
	}
	if (heads == 0 && want_int(n, "rotary_embedding_dim", 0)) {
		report_invalid(n, "rotary_embedding_dim without num_heads");
		return;
	}
	if (heads == 0 && x->type->rank == 3 && head)
		heads = x->type->dims[2] / head;
	set_output(n, 0, at ? rotated(n, x, heads, at, 2) : NULL);
}

/* ---- https://onnx.ai/onnx/operators/onnx__TensorScatter.html */
typedef struct {
	/* samples, rows of tokens per sample, capacity of the cache, tokens in the update */
	int64_t batch, prefixes, most, count;
} CacheSizes;

static bool
cache_sizes(OnnxNode *n, const Value *past, const Value *update, int axis, CacheSizes *s)
{
	Type a = past->type, b = update->type;
	bool fits = a->rank == b->rank && a->dtype == b->dtype;

	for (int i = 0; fits && i < a->rank; i++)
		fits = i == axis ? b->dims[i] <= a->dims[i] : b->dims[i] == a->dims[i];
	if (!fits || axis == 0) {
		report_invalid(n, "the update does not fit into the cache along axis %d", axis);
		return false;
	}
	*s = (CacheSizes){
		.batch = a->dims[0], .prefixes = 1, .most = a->dims[axis], .count = b->dims[axis]};
	for (int i = 1; i < axis; i++)
		s->prefixes *= a->dims[i];
	return true;
}

/* The positions to write to: input 2, s64[B], or 0. Constants are checked. */
static Value *
write_places(OnnxNode *n, const CacheSizes *s, bool circular)
{
	Ints shape = {.n = 1, .at = {s->batch}};

	if (!has_input(n, 2))
		return e_splat(n, S64, shape, 0);
	Value *at = want_input(n, 2);
	if (!at)
		return NULL;
	if (at->type->rank != 1 || at->type->dtype != S64 || at->type->n != s->batch) {
		report_invalid(
			n, "write_indices is %s of rank %d with %lld elements, needs int64[%lld]",
			dtype_info[at->type->dtype].name, at->type->rank, (long long)at->type->n,
			(long long)s->batch);
		return NULL;
	}
	const Tensor *t = value_constant(at);
	for (int64_t i = 0; t && !circular && i < s->batch; i++)
		if (tensor_int(t, i) < 0 || tensor_int(t, i) > s->most - s->count) {
			report_invalid(n,
			               "%lld tokens from place %lld on do not fit into a "
			               "cache of %lld",
			               (long long)s->count, (long long)tensor_int(t, i),
			               (long long)s->most);
			return NULL;
		}
	return at;
}

/* The row of each token in the cache, as [batch * prefixes * most] rows. A computed position outside
 * of the cache gives row -1, and is not written; in a circular cache it wraps instead. */
static Value *
cache_rows(OnnxNode *n, Value *at, const CacheSizes *s, bool circular)
{
	Ints shape = {.n = 3, .at = {s->batch, s->prefixes, s->count}},
	     thin = {.n = 3, .at = {s->batch, 1, 1}};
	Value *place = e_binary(n, OP_add, e_iota(n, S64, shape, 2), e_reshape(n, at, thin));
	Value *prefix = e_with(n, OP_mul, e_iota(n, S64, shape, 0), (double)s->prefixes);

	prefix = e_binary(n, OP_add, prefix, e_iota(n, S64, shape, 1));
	Value *first = e_with(n, OP_mul, prefix, (double)s->most);
	if (circular && s->most)
		place = e_mod(n, place, e_scalar(n, S64, (double)s->most));
	Value *row = e_binary(n, OP_add, first, place);
	Value *inside = e_binary(n, OP_and, e_with(n, OP_ge, place, 0),
	                         e_with(n, OP_lt, place, (double)s->most));
	return circular ? row : e_select(n, inside, row, e_number(n, row, -1));
}

static void
import_tensor_scatter(OnnxNode *n)
{
	Value *past = want_input(n, 0), *update = want_input(n, 1);
	bool circular = !strcmp(want_word(n, "mode", "linear circular"), "circular");
	int axis = past ? want_axis(n, want_int(n, "axis", -2), past->type->rank) : -1;
	CacheSizes s;

	if (axis < 0 || !update || !cache_sizes(n, past, update, axis, &s))
		return;
	Value *rows = cache_rows(n, write_places(n, &s, circular), &s, circular);
	Ints cache = {.n = 2, .at = {s.batch * s.prefixes * s.most, 1}}, fresh = cache;
	for (int i = axis + 1; i < past->type->rank; i++)
		cache.at[1] *= past->type->dims[i];
	fresh.at[0] = s.batch * s.prefixes * s.count;
	fresh.at[1] = cache.at[1];
	Value *operands[] = {e_reshape(n, past, cache), e_flat(n, rows),
	                     e_reshape(n, update, fresh)};
	Value *y = e_op(n, OP_scatter, 3, operands, &(ScatterAttr){SCATTER_SET, 0});
	set_output(n, 0, e_reshape(n, y, shape_of(past)));
}

/* clang-format off */
const ImportRow import_position_rows[] = {
	/* name             from  to  importer  extra */
	{"RotaryEmbedding", 23, 0, import_rotary_embedding, .facts = {.steering = INPUTS(1, 2)}},
	{"RotaryEmbedding", 1, 0, import_fused_rotary, {0}, "com.microsoft",
	 .facts = {.steering = INPUTS(2, 3)}},
	{"TensorScatter", 24, 0, import_tensor_scatter, {0}, NULL},
	{0},
};
/* clang-format on */
