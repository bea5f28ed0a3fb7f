/* Imports TfIdfVectorizer of numbers: https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html.
 * Strings are not supported. Counts how often each n-gram of a pool occurs in a row. Up to
 * max_skip_count other items may stand between two items of an n-gram.
 *   count[row, g] = sum over distance s and position p: x[row, p + s j] == g[j] for all j
 * The result at index ngram_indexes[g] is the count, or 1 if the count is positive, times a weight.
 * As in ONNX's reference, weights belong to indexes; 1-grams are counted for one distance only; and
 * of equal n-grams in the pool the last one counts. */
#include "frontend/import/import.h"

#include <string.h>

enum { MAX_SKIPS = 1024 };

typedef struct {
	int64_t min, max, skips; /* lengths of n-grams; most items between two items of an n-gram */
	const AttributeProto *pool, *counts, *indexes;
	int64_t places;
} Grams;
/* N-grams of one length: pool[first ...], with indexes from indexes[id] on. */
typedef struct {
	int64_t size, n, first, id;
} GramsOfSize;

static bool
read_lengths(OnnxNode *n, Grams *g)
{
	g->min = want_int(n, "min_gram_length", 0);
	g->max = want_int(n, "max_gram_length", 0);
	g->skips = want_int(n, "max_skip_count", 0);
	if (g->min < 1 || g->max < g->min || g->skips < 0)
		report_invalid(n,
		               "n-grams of %lld to %lld items with at most %lld skipped: "
		               "need 1 or more items, a maximum not below the minimum, and 0 "
		               "or more skipped",
		               (long long)g->min, (long long)g->max, (long long)g->skips);
	else if (g->skips > MAX_SKIPS)
		report_unsupported(n, "max_skip_count %lld, at most %d is supported",
		                   (long long)g->skips, MAX_SKIPS);
	return !n->failed;
}

static bool
read_pool(OnnxNode *n, Grams *g)
{
	g->pool = node_attribute(n->proto, "pool_int64s");
	g->counts = node_attribute(n->proto, "ngram_counts");
	g->indexes = node_attribute(n->proto, "ngram_indexes");
	if (has_attribute(n, "pool_strings"))
		report_unsupported(n, "a pool of strings");
	else if (!g->pool || !g->counts || !g->indexes || !g->pool->n_ints || !g->indexes->n_ints)
		report_invalid(n, "needs pool_int64s, ngram_counts and ngram_indexes");
	if (n->failed)
		return false;
	for (size_t i = 0; i < g->indexes->n_ints; i++) {
		int64_t place = g->indexes->ints[i];
		if (place < 0 || place >= MAX_ELEMENTS) {
			report_invalid(n,
			               "ngram_indexes has %lld, which is negative or too "
			               "large",
			               (long long)place);
			return false;
		}
		g->places = place >= g->places ? place + 1 : g->places;
	}
	return true;
}

/* The next length of n-grams; false: no more, or after reporting. */
static bool
next_size(OnnxNode *n, const Grams *g, GramsOfSize *s)
{
	int64_t total = (int64_t)g->pool->n_ints, end = total;

	s->id += s->n;
	if (s->size == (int64_t)g->counts->n_ints)
		return false;
	s->first = g->counts->ints[s->size++];
	if (s->size < (int64_t)g->counts->n_ints)
		end = g->counts->ints[s->size];
	if (s->first < 0 || end < s->first || end > total) {
		report_invalid(n,
		               "ngram_counts has %lld and then %lld: need ascending places "
		               "in a pool of %lld items",
		               (long long)s->first, (long long)end, (long long)total);
		return false;
	}
	s->n = (end - s->first) / s->size;
	if (s->id + s->n > (int64_t)g->indexes->n_ints)
		report_invalid(n, "%zu ngram_indexes, the pool has more n-grams",
		               g->indexes->n_ints);
	return !n->failed;
}

static const int64_t *
gram(const Grams *g, const GramsOfSize *s, int64_t k)
{
	return g->pool->ints + s->first + k * s->size;
}

static bool
is_same(const Grams *g, const GramsOfSize *s, int64_t i, int64_t k)
{
	return !memcmp(gram(g, s, i), gram(g, s, k), sizeof(int64_t) * (size_t)s->size);
}

/* Does an equal n-gram follow in the pool? last: hash -> the last n-gram with it. */
static bool
is_repeated(const Grams *g, const GramsOfSize *s, int64_t k, IntMap *last)
{
	uint64_t found = 0;

	intmap_get(last, hash_bytes(gram(g, s, k), sizeof(int64_t) * (size_t)s->size, 0), &found);
	if ((int64_t)found == k)
		return false;
	for (int64_t i = is_same(g, s, (int64_t)found, k) ? (int64_t)found : k + 1; i < s->n; i++)
		if (is_same(g, s, i, k))
			return true;
	return false;
}

/* Collects the n-grams that count as columns of `at`, with their indexes; returns their number. */
static int
columns(OnnxNode *n, const Grams *g, const GramsOfSize *s, int64_t **at, int64_t *places)
{
	IntMap *last = intmap_new(n->im->arena);
	int kept = 0;

	for (int64_t k = 0; k < s->n; k++)
		intmap_put(last, hash_bytes(gram(g, s, k), sizeof(int64_t) * (size_t)s->size, 0),
		           (uint64_t)k);
	for (int64_t i = 0; i < s->size; i++)
		at[i] = NEW_ARRAY(n->im->arena, int64_t, s->n);
	for (int64_t k = 0; k < s->n; k++) {
		if (is_repeated(g, s, k, last))
			continue;
		for (int64_t i = 0; i < s->size; i++)
			at[i][kept] = gram(g, s, k)[i];
		places[kept++] = g->indexes->ints[s->id + k];
	}
	return kept;
}

/* x: s64[rows, items] -> f32[rows, count]: counts for one distance; NULL: the rows are too short. */
static Value *
count_at_distance(OnnxNode *n, Value *x, int64_t size, int count, int64_t **at, int64_t distance)
{
	int64_t span = distance * (size - 1), starts = x->type->dims[1] - span;
	Value *all = NULL;

	if (starts <= 0)
		return NULL;
	for (int64_t j = 0; j < size; j++) {
		Value *items = e_slice_axis(n, x, 1, j * distance, j * distance + starts);
		Ints shape = {.n = 3, .at = {x->type->dims[0], starts, 1}};
		Value *same = e_binary(n, OP_eq, e_reshape(n, items, shape),
		                       e_constant_ints(n, count, at[j]));
		all = all ? e_binary(n, OP_and, all, same) : same;
	}
	return e_reduce(n, REDUCE_SUM, e_cast(n, all, F32), (Ints){.n = 1, .at = {1}}, false);
}

/* sum, plus the counts of n-grams of one length at their indexes. */
static Value *
add_counts(OnnxNode *n, Value *sum, Value *x, const Grams *g, const GramsOfSize *s)
{
	int64_t **at = NEW_ARRAY(n->im->arena, int64_t *, s->size);
	int64_t *places = NEW_ARRAY(n->im->arena, int64_t, s->n + 1);
	int count = columns(n, g, s, at, places);
	Value *counts = NULL;

	for (int64_t distance = 1; distance <= (s->size == 1 ? 1 : g->skips + 1); distance++) {
		Value *more = count_at_distance(n, x, s->size, count, at, distance);
		if (!more)
			break;
		counts = counts ? e_binary(n, OP_add, counts, more) : more;
	}
	if (!counts)
		return sum;
	Value *operands[] = {sum, e_constant_ints(n, count, places), counts};
	return e_op(n, OP_scatter, 3, operands, &(ScatterAttr){SCATTER_ADD, 1});
}

static Value *
weighted(OnnxNode *n, Value *y, const Grams *g)
{
	const char *mode = want_word(n, "mode", "TF IDF TFIDF");
	const AttributeProto *weights = node_attribute(n->proto, "weights");

	if (strcmp(mode, "TF") == 0 || !y)
		return y;
	if (strcmp(mode, "IDF") == 0)
		y = e_cast(n, e_with(n, OP_gt, y, 0), F32);
	if (!weights || !weights->n_floats)
		return y;
	if ((int64_t)weights->n_floats < g->places) {
		report_invalid(n,
		               "%zu weights, needs one for each of the result's %lld numbers "
		               "a row",
		               weights->n_floats, (long long)g->places);
		return NULL;
	}
	Type type = type_new(n->b->m, F32, 1, &g->places);
	return e_binary(n, OP_mul, y,
	                b_constant(n->b, tensor_borrow(n->b->m, type, weights->floats)));
}

static void
import_tfidf(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Grams g = {0};
	GramsOfSize s = {0};

	if (!read_lengths(n, &g) || !read_pool(n, &g) || !x)
		return;
	if (x->type->rank > 2 || (x->type->dtype != S32 && x->type->dtype != S64)) {
		report_invalid(n, "input of %s and rank %d, needs rows of s32 or s64",
		               dtype_info[x->type->dtype].name, x->type->rank);
		return;
	}
	bool batch = x->type->rank == 2;
	int64_t rows = batch ? x->type->dims[0] : 1, items = batch ? x->type->dims[1] : x->type->n;
	Value *flat = e_reshape(n, e_cast(n, x, S64), (Ints){.n = 2, .at = {rows, items}});
	Value *y = e_splat(n, F32, (Ints){.n = 2, .at = {rows, g.places}}, 0);
	while (flat && y && next_size(n, &g, &s))
		if (s.n && s.size >= g.min && s.size <= g.max)
			y = add_counts(n, y, flat, &g, &s);
	y = weighted(n, y, &g);
	if (!n->failed)
		set_output(n, 0, batch ? y : e_flat(n, y));
}

const ImportRow import_tfidf_rows[] = {
	/* name             from  to  importer  extra */
	{"TfIdfVectorizer", 9, 0, import_tfidf,
         .facts = {.no_gradient = true, .typed_by = NO_INPUT}},
	{0},
};
