/* Attention without score matrices. A part has a block of queries of one head. It goes through
 * blocks of keys and keeps, for each query, the largest logit so far, the sum of exponentials, and
 * the sums of o, which it scales down whenever a larger logit appears (Milakov and Gimelshein
 * 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135). In a tile, vectors run along
 * queries, so that a query's largest logit and sum need no reduction of a vector.
 *
 * Logits and weights are elementwise in the scores, so masks, bias and dropout of any form are
 * computed where they are needed. */
#include "codegen/groups/attention_parts.h"
#include "ir/groups/groups.h"

#include <math.h>

extern const GroupStrategy group_strategy_attention;

static bool
takes(const Target *t, const Function *body)
{
	const AttentionTiles *at = &t->tuning->attention;
	Attention a = {0};

	if (!attention_parts(body, &a))
		return false;
	int64_t keys = a.shape->dims[a.shape->rank - 1];
	return a.shape->n > 0 && keys >= at->least_keys && a.scores.keys.width <= at->most_width &&
	       a.output.width <= at->most_width;
}

/* A block of queries while its loops are emitted. */
typedef struct {
	const Attention *a;
	ScoreTiles t;
	int64_t n;      /* queries */
	int64_t pitch;  /* queries in whole vectors */
	Affine first;   /* the first query */
	int query, key; /* axes of the scores */
	/* arrays: [pitch] the largest logit, the one to subtract, the largest logit of the tile, the
	 * sum, the scale of what was summed before */
	int most, shift, tile_most, sum, scale;
	int q, k, v, tile, o;
} Block;

static Affine
vector_of_queries(Block *b)
{
	LoopBuilder *lb = b->t.lw->lb;
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, b->n));

	b->t.at[b->query] = affine_add(lb, b->first, i);
	return i;
}

static LoopValue
is_minus_infinity(LoopBuilder *lb, LoopValue x)
{
	return lb_compare(lb, LOOP_eq, x, lb_number(lb, lb_type(lb, x), -INFINITY));
}

/* Opens two loops over the tile: keys, queries. Returns the query's number in the block; *at: the place in the tile. */
static Affine
open_tile(Block *b, int64_t n_keys, Affine first_key, Affine *at)
{
	LoopBuilder *lb = b->t.lw->lb;
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, n_keys));

	b->t.at[b->key] = affine_add(lb, first_key, j);
	Affine i = vector_of_queries(b);
	*at = affine_add_scaled(lb, i, j, b->pitch);
	return i;
}

/* The logits of the tile, and the largest one of each query so far. */
static void
make_logits(Block *b, int64_t n_keys, Affine first_key)
{
	LoopBuilder *lb = b->t.lw->lb;
	Affine at, i = open_tile(b, n_keys, first_key, &at);
	Index index = score_index(&b->t);
	score_give(b->t.lw, b->a->scores.dot, &index, lb_load(lb, b->tile, at));
	score_inside(&b->t, &b->a->range, &index);
	LoopValue x = lower_element(b->t.lw, b->a->logits, &index);
	lb_store(lb, b->tile, at, x);
	lb_store(lb, b->tile_most, i, lb_binary(lb, LOOP_max, lb_load(lb, b->tile_most, i), x));
	lb_end(lb);
	lb_end(lb);
}

/* After the largest logits of all tiles so far are known: scales down what was summed so far. A query whose logits
 * are all -inf so far has sum 0. */
static void
rescale(Block *b)
{
	LoopBuilder *lb = b->t.lw->lb;
	Affine i = vector_of_queries(b);
	LoopValue before = lb_load(lb, b->most, i);
	LoopValue most = lb_binary(lb, LOOP_max, before, lb_load(lb, b->tile_most, i));
	LoopValue shift = lb_select(lb, is_minus_infinity(lb, most), lb_number(lb, b->t.type, 0),
	                            most);
	LoopValue scale = lb_unary(lb, LOOP_exp, lb_binary(lb, LOOP_sub, before, shift));

	lb_store(lb, b->most, i, most);
	lb_store(lb, b->shift, i, shift);
	lb_store(lb, b->scale, i, scale);
	lb_store(lb, b->sum, i, lb_binary(lb, LOOP_mul, lb_load(lb, b->sum, i), scale));
	lb_end(lb);
}

/* exp(logit - most), added to the sum; then the weights, which are linear in the softmax. */
static void
make_weights(Block *b, int64_t n_keys, Affine first_key)
{
	LoopBuilder *lb = b->t.lw->lb;
	Affine at, i = open_tile(b, n_keys, first_key, &at);
	LoopValue d = lb_binary(lb, LOOP_sub, lb_load(lb, b->tile, at), lb_load(lb, b->shift, i));
	LoopValue e = lb_unary(lb, LOOP_exp, d);
	Index index = score_index(&b->t);
	lb_store(lb, b->sum, i, lb_binary(lb, LOOP_add, lb_load(lb, b->sum, i), e));
	lower_give_element(b->t.lw, b->a->p->node, &index, e);
	LoopValue w = lower_element(b->t.lw, b->a->output.tile, &index);
	lb_store(lb, b->tile, at, lb_type(lb, w) == b->t.type ? w : lb_cast(lb, b->t.type, w));
	lb_end(lb);
	lb_end(lb);
}

static void
key_block(Block *b, Affine first, int64_t n)
{
	const Attention *a = b->a;
	TileView q = {b->q, 1, b->pitch}, tile = {b->tile, b->pitch, 1};
	TileView by_query = {b->tile, 1, b->pitch};
	int64_t width = score_padded(&b->t, a->output.width);
	TileView k = score_copy(&b->t, &a->scores.keys, b->key, first, n, b->k, false);
	TileView v = score_copy(&b->t, &a->output.matrix, b->key, first, n, b->v, false);

	/* element (d, query) of q, which lies across */
	score_multiply(&b->t, tile, false, -1, k, (TileView){q.array, q.column, 1}, n, b->n,
	               a->scores.keys.width);
	make_logits(b, n, first);
	rescale(b);
	make_weights(b, n, first);
	score_multiply(&b->t, (TileView){b->o, width, 1}, true, b->scale, by_query, v, b->n,
	               a->output.width, n);
}

/* The loops' numbers before the first block of keys. */
static void
begin(Block *b)
{
	LoopBuilder *lb = b->t.lw->lb;
	int64_t width = score_padded(&b->t, b->a->output.width);
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, b->pitch));

	lb_store(lb, b->most, i, lb_number(lb, b->t.type, -INFINITY));
	lb_store(lb, b->tile_most, i, lb_number(lb, b->t.type, -INFINITY));
	lb_store(lb, b->sum, i, lb_number(lb, b->t.type, 0));
	lb_end(lb);
	i = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, b->n));
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, width));
	lb_store(lb, b->o, affine_add_scaled(lb, j, i, width), lb_number(lb, b->t.type, 0));
	lb_end(lb);
	lb_end(lb);
}

static Affine
row_place(Block *b)
{
	Index at = score_index(&b->t);

	at.rank--;
	return index_flat(b->t.lw->lb, b->a->most->type, &at);
}

/* Stores the rows' largest logits and sums. A row whose logits are all -inf is NaN, as
 * exp(-inf - -inf) is, or 0. */
static void
store_rows(Block *b)
{
	Lower *lw = b->t.lw;
	LoopBuilder *lb = lw->lb;
	Affine i = vector_of_queries(b), place = row_place(b);
	LoopValue most = lb_load(lb, b->most, i), sum = lb_load(lb, b->sum, i);

	LoopValue hidden = is_minus_infinity(lb, most);
	LoopValue instead = lb_number(lb, b->t.type, b->a->zero_rows ? INFINITY : NAN);

	sum = lb_select(lb, hidden, instead, sum);
	if (b->a->zero_rows)
		most = lb_select(lb, hidden, lb_number(lb, b->t.type, 0), most);
	lb_store(lb, lower_buffer(lw, b->a->most), place, most);
	lb_store(lb, lower_buffer(lw, b->a->sum), place, sum);
	lb_store(lb, b->sum, i, sum);
	lb_end(lb);
}

static void
store_output(Block *b)
{
	Lower *lw = b->t.lw;
	LoopBuilder *lb = lw->lb;
	const ScoreConsumer *out = &b->a->output;
	int64_t width = score_padded(&b->t, out->width);
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, b->n));
	LoopValue sum = lb_load(lb, b->sum, i);

	b->t.at[b->query] = affine_add(lb, b->first, i);
	Affine w = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, out->width));
	LoopValue x = lb_load(lb, b->o, affine_add_scaled(lb, w, i, width));
	x = lb_binary(lb, LOOP_div, x, sum);
	if (b->a->guarded)
		x = lb_select(lb, lb_op(lb, LOOP_is_nan, BOOL, &sum), lb_number(lb, b->t.type, 0),
		              x);
	lb_store(lb, lower_buffer(lw, out->to.result), score_place(&b->t, &out->to, w), x);
	lb_end(lb);
	lb_end(lb);
}

/* The blocks of keys that some query of the block sees. */
static void
seen_blocks(Block *b, int64_t keys, int64_t size)
{
	LoopBuilder *lb = b->t.lw->lb;
	int64_t whole = keys / size, rest = keys % size;
	KeysSeen seen = score_keys_seen(&b->t, &b->a->range, b->query, b->first, b->n);
	LoopValue width = lb_int(lb, S64, size);

	if (whole) {
		LoopValue first = lb_binary(lb, LOOP_max, seen.begin, lb_int(lb, S64, 0));
		first = lb_binary(lb, LOOP_div, first, width);
		LoopValue end = lb_binary(lb, LOOP_add, seen.end, lb_int(lb, S64, size - 1));
		end = lb_binary(lb, LOOP_min, lb_binary(lb, LOOP_div, end, width),
		                lb_int(lb, S64, whole));
		Affine n = affine_scalar(lb, lb_binary(lb, LOOP_sub, end, first));
		Affine k = affine_scalar(lb, lb_for_below(lb, LOOP_PLAIN, whole, n));
		LoopValue number = lb_affine(lb, affine_add(lb, k, affine_scalar(lb, first)));
		number = lb_binary(lb, LOOP_min, number, lb_int(lb, S64, whole - 1));
		lb_within(lb, number, whole);
		key_block(b, affine_scale(lb, affine_scalar(lb, number), size), size);
		lb_end(lb);
	}
	if (rest) {
		lb_if(lb, lb_compare(lb, LOOP_gt, seen.end, lb_int(lb, S64, whole * size)));
		key_block(b, affine_constant(whole * size), rest);
		lb_end(lb);
	}
}

static void
query_block(Block *b, const AttentionTiles *at)
{
	LoopBuilder *lb = b->t.lw->lb;
	int64_t keys = b->a->shape->dims[b->key];

	b->pitch = score_padded(&b->t, b->n);
	score_copy(&b->t, &b->a->scores.queries, b->query, b->first, b->n, b->q, true);
	begin(b);
	if (b->a->range.select)
		seen_blocks(b, keys, at->keys);
	else
		for (Pieces k = pieces(lb, keys, at->keys); k.size; pieces_next(&k))
			key_block(b, affine_scale(lb, k.number, at->keys), k.size);
	store_rows(b);
	store_output(b);
}

static void
declare_arrays(Block *b, int64_t queries, int64_t keys)
{
	LoopBuilder *lb = b->t.lw->lb;
	DType type = b->t.type;
	const Attention *a = b->a;
	int64_t pitch = score_padded(&b->t, queries), width = score_padded(&b->t, a->output.width);
	int *rows[] = {&b->most, &b->shift, &b->tile_most, &b->sum, &b->scale};

	for (int i = 0; i < COUNT(rows); i++)
		*rows[i] = lb_local(lb, type, pitch);
	b->q = lb_local(lb, type, pitch * a->scores.queries.width);
	b->k = lb_local(lb, type, keys * score_padded(&b->t, a->scores.keys.width));
	b->v = lb_local(lb, type, keys * width);
	b->tile = lb_local(lb, type, keys * pitch);
	b->o = lb_local(lb, type, queries * width);
}

static void
emit_attention(Lower *lw)
{
	const AttentionTiles *at = &lw->target->tuning->attention;
	LoopBuilder *lb = lw->lb;
	Attention a = {0};

	attention_parts(lw->f, &a);
	int rank = a.shape->rank, n_loops = 0;
	int64_t queries = a.shape->dims[rank - 2], keys = a.shape->dims[rank - 1];
	Block b = {.a = &a, .query = rank - 2, .key = rank - 1};
	b.t = score_tiles(lw, a.shape, compute_type(a.logits->type->dtype));
	declare_arrays(&b, score_least(queries, at->queries), score_least(keys, at->keys));
	for (int i = 0; i < rank - 2; i++, n_loops++)
		b.t.at[i] = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, a.shape->dims[i]));
	int64_t blocks = (queries + at->queries - 1) / at->queries;
	Affine number = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, blocks));
	for (Pieces p = piece_of(lb, queries, at->queries, number); p.size; pieces_next(&p)) {
		b.n = p.size;
		b.first = affine_scale(lb, p.number, at->queries);
		query_block(&b, at);
	}
	for (int i = 0; i <= n_loops; i++)
		lb_end(lb);
}

const GroupStrategy group_strategy_attention = {
	.group = &group_attention,
	.kinds = ON(CPU),
	.doc = "a block of queries with one block of keys after the other",
	.takes = takes,
	.emit = emit_attention};
