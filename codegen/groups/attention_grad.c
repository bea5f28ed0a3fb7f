/* The gradient of attention without score matrices. A part has one head. It goes through blocks of
 * keys, and for each through all blocks of queries: it computes the tile's scores and softmax
 * again, and adds the tile to the gradients of keys and values, which stay in arrays, and of
 * queries, which are summed in memory. All sums are in the order of blocks, so their bits do not
 * depend on threads. */
#include "codegen/groups/attention_parts.h"
#include "ir/groups/groups.h"

extern const GroupStrategy group_strategy_attention_grad;

static bool
takes(const Target *t, const Function *body)
{
	const AttentionTiles *at = &t->tuning->attention;
	AttentionGrad a = {0};

	if (!attention_grad_parts(body, &a, false) || a.shape->n == 0 ||
	    a.shape->dims[a.shape->rank - 1] < at->least_keys)
		return false;
	for (int i = 0; i < a.n_products; i++)
		if (a.products[i].queries.width > at->most_width)
			return false;
	for (int i = 0; i < a.n_consumers; i++)
		if (a.consumers[i].width > at->most_width)
			return false;
	return true;
}

/* A copy of a block of a matrix. */
typedef struct {
	const ScoreMatrix *matrix;
	bool across;
	int array;
	TileView view;
} Copy;

typedef struct {
	const AttentionGrad *a;
	ScoreTiles t;
	int query, key; /* axes of the scores */
	int n_copies;
	Copy copies[2 * MOST_MATRICES];
	int tiles[MOST_PRODUCTS];
	int sums[MOST_PRODUCTS]; /* by consumer: array of its sums, of the block of keys or of a tile */
	int sum_tiles[MOST_SUMS]; /* by sum over keys: what is summed */
} Block;

/* The array's copy of a matrix; declared at first use. */
static Copy *
copy_of(Block *b, const ScoreMatrix *m, bool across, int64_t rows)
{
	int i = 0;

	while (i < b->n_copies &&
	       !(b->copies[i].across == across && score_matrix_equal(b->copies[i].matrix, m)))
		i++;
	if (i < b->n_copies)
		return &b->copies[i];
	int64_t pitch = score_padded(&b->t, across ? rows : m->width);
	int array = lb_local(b->t.lw->lb, b->t.type, (across ? m->width : rows) * pitch);
	b->copies[b->n_copies++] = (Copy){.matrix = m, .across = across, .array = array};
	return &b->copies[i];
}

/* Copies the blocks of all matrices whose rows are keys, or are queries. */
static void
fill_copies(Block *b, bool keys, Affine first, int64_t n)
{
	for (int i = 0; i < b->n_copies; i++) {
		Copy *c = &b->copies[i];
		if (c->matrix->has_keys == keys)
			c->view = score_copy(&b->t, c->matrix, keys ? b->key : b->query, first, n,
			                     c->array, c->across);
	}
}

/* Adds x, an element of the sum's tile, to the sum in memory. */
static void
add_to_sum(Block *b, const ScoreSum *s, LoopValue x)
{
	LoopBuilder *lb = b->t.lw->lb;
	int memory = lower_buffer(b->t.lw, s->to.result);
	Affine place = score_sum_place(&b->t, s);

	lb_store(lb, memory, place, lb_binary(lb, LOOP_add, lb_load(lb, memory, place), x));
}

/* Adds a tile in an array to a sum over keys. */
static void
add_tile_to_sum(Block *b, const ScoreSum *s, int array, Affine first_query, int64_t n_queries,
                Affine first_key, int64_t n_keys)
{
	LoopBuilder *lb = b->t.lw->lb;
	bool all_keys = !s->kept[b->key];
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, n_queries));
	Affine j = affine_scalar(lb, lb_for(lb, all_keys ? LOOP_VECTOR : LOOP_PLAIN, n_keys));
	LoopValue sum = all_keys ? lb_accumulator(lb, ACC_ADD, b->t.type) : -1;
	LoopValue x = lb_load(lb, array, affine_add_scaled(lb, j, i, score_padded(&b->t, n_keys)));

	b->t.at[b->query] = affine_add(lb, first_query, i);
	b->t.at[b->key] = affine_add(lb, first_key, j);
	if (all_keys) {
		lb_accumulate(lb, sum, x);
		lb_end(lb);
		b->t.at[b->key] = affine_constant(0);
	}
	add_to_sum(b, s, all_keys ? sum : x);
	if (!all_keys)
		lb_end(lb);
	lb_end(lb);
}

/* The elementwise part: the tiles of the products become the tiles that consumers read. */
static void
make_tiles(Block *b, Affine first_query, int64_t n_queries, Affine first_key, int64_t n_keys)
{
	Lower *lw = b->t.lw;
	LoopBuilder *lb = lw->lb;
	const AttentionGrad *a = b->a;
	LoopValue made[MOST_PRODUCTS];
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, n_queries));
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, n_keys));
	Affine at = affine_add_scaled(lb, j, i, score_padded(&b->t, n_keys));

	b->t.at[b->query] = affine_add(lb, first_query, i);
	b->t.at[b->key] = affine_add(lb, first_key, j);
	Index index = score_index(&b->t);
	for (int k = 0; k < a->n_products; k++)
		score_give(lw, a->products[k].dot, &index, lb_load(lb, b->tiles[k], at));
	score_inside(&b->t, &a->range, &index);
	for (int k = 0; k < a->n_tiles; k++) {
		LoopValue x = lower_element(lw, a->tiles[k], &index);
		made[k] = lb_type(lb, x) == b->t.type ? x : lb_cast(lb, b->t.type, x);
	}
	for (int k = 0; k < a->n_sums; k++) {
		LoopValue x = lower_element(lw, a->sums[k].tile, &index);
		if (a->sums[k].summed[b->key])
			lb_store(lb, b->sum_tiles[k], at, x);
		else
			add_to_sum(b, &a->sums[k], x);
	}
	for (int k = 0; k < a->n_tiles; k++)
		lb_store(lb, b->tiles[k], at, made[k]);
	lb_end(lb);
	lb_end(lb);
	for (int k = 0; k < a->n_sums; k++)
		if (a->sums[k].summed[b->key])
			add_tile_to_sum(b, &a->sums[k], b->sum_tiles[k], first_query, n_queries,
			                first_key, n_keys);
}

/* Moves a block of a consumer's sums between memory and its array. How: from memory to the array,
 * back, or zeros to memory. */
typedef enum { LOADS, STORES, CLEARS } Move;
static void
move_sums(Block *b, int consumer, Affine first, int64_t n, Move how)
{
	Lower *lw = b->t.lw;
	LoopBuilder *lb = lw->lb;
	const ScoreConsumer *c = &b->a->consumers[consumer];
	int axis = c->matrix.has_keys ? b->query : b->key, array = b->sums[consumer];
	int64_t pitch = score_padded(&b->t, c->width);
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, n));

	b->t.at[axis] = affine_add(lb, first, i);
	Affine w = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, c->width));
	Affine in_array = affine_add_scaled(lb, w, i, pitch);
	Affine place = score_place(&b->t, &c->to, w);
	int memory = lower_buffer(lw, c->to.result);
	if (how == LOADS)
		lb_store(lb, array, in_array, lb_load(lb, memory, place));
	else
		lb_store(lb, memory, place,
		         how == CLEARS ? lb_number(lb, b->t.type, 0)
		                       : lb_load(lb, array, in_array));
	lb_end(lb);
	lb_end(lb);
}

static void
clear_array(Block *b, int array, int64_t n)
{
	LoopBuilder *lb = b->t.lw->lb;
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, n));

	lb_store(lb, array, i, lb_number(lb, b->t.type, 0));
	lb_end(lb);
}

static void
add_products(Block *b, Affine first_query, int64_t n_queries, Affine first_key, int64_t n_keys)
{
	const AttentionGrad *a = b->a;
	int64_t pitch = score_padded(&b->t, n_keys);

	for (int i = 0; i < a->n_products; i++) {
		const ScoreProduct *p = &a->products[i];
		TileView keys = copy_of(b, &p->keys, true, 0)->view;
		score_multiply(&b->t, (TileView){b->tiles[i], pitch, 1}, false, -1,
		               copy_of(b, &p->queries, false, 0)->view,
		               (TileView){keys.array, keys.column, 1}, n_queries, n_keys,
		               p->queries.width);
	}
	make_tiles(b, first_query, n_queries, first_key, n_keys);
	for (int i = 0; i < a->n_consumers; i++) {
		const ScoreConsumer *c = &a->consumers[i];
		int from = b->tiles[a->tile_of[i]];
		bool by_query = c->matrix.has_keys;
		TileView scores = by_query ? (TileView){from, pitch, 1}
		                           : (TileView){from, 1, pitch};
		TileView sums = {b->sums[i], score_padded(&b->t, c->width), 1};
		if (by_query)
			move_sums(b, i, first_query, n_queries, LOADS);
		score_multiply(
			&b->t, sums, true, -1, scores, copy_of(b, &c->matrix, false, 0)->view,
			by_query ? n_queries : n_keys, c->width, by_query ? n_keys : n_queries);
		if (by_query)
			move_sums(b, i, first_query, n_queries, STORES);
	}
}

/* The loops over the scores' axes before queries and keys. Parts run over the axes that q and k have
 * in common (batch, heads), unless a sum of tiles runs over them; then they are loops around the
 * blocks of keys. Axes that only q has (heads that share their keys) are loops inside these. */
typedef enum { OVER_PARTS, OVER_SUMS, OVER_QUERIES } Over;
static Over
loop_over(const AttentionGrad *a, int axis)
{
	const ScoreMatrix *keys = &a->products[0].keys;
	bool of_keys = a->shape->dims[axis] == 1, summed = false;

	for (int k = 0; k < keys->value->type->rank; k++)
		of_keys |= keys->score_axis[k] == axis;
	for (int k = 0; k < a->n_sums; k++)
		summed |= a->sums[k].summed[axis];
	return !of_keys ? OVER_QUERIES : summed ? OVER_SUMS : OVER_PARTS;
}

/* Opens the loops of one kind. Returns their number. */
static int
open_loops(Block *b, Over over)
{
	LoopBuilder *lb = b->t.lw->lb;
	LoopMode mode = over == OVER_PARTS ? LOOP_PARALLEL : LOOP_PLAIN;
	int opened = 0;

	for (int i = 0; i < b->query; i++)
		if (loop_over(b->a, i) == over) {
			b->t.at[i] = affine_scalar(lb, lb_for(lb, mode, b->a->shape->dims[i]));
			opened++;
		}
	return opened;
}

static void
close_loops(LoopBuilder *lb, int n)
{
	while (n-- > 0)
		lb_end(lb);
}

/* Opens a condition: some query of a block sees some key of a block. */
static void
if_seen(Block *b, Affine first_query, int64_t n_queries, Affine first_key, int64_t n_keys)
{
	LoopBuilder *lb = b->t.lw->lb;
	KeysSeen seen = score_keys_seen(&b->t, &b->a->range, b->query, first_query, n_queries);
	LoopValue from = lb_affine(lb, first_key),
		  to = lb_affine(lb, affine_plus(first_key, n_keys));

	lb_if(lb, lb_binary(lb, LOOP_and, lb_compare(lb, LOOP_lt, seen.begin, to),
	                    lb_compare(lb, LOOP_gt, seen.end, from)));
}

static void
key_block(Block *b, Affine first, int64_t n)
{
	LoopBuilder *lb = b->t.lw->lb;
	const AttentionTiles *at = &b->t.lw->target->tuning->attention;
	const AttentionGrad *a = b->a;

	fill_copies(b, true, first, n);
	for (int i = 0; i < a->n_consumers; i++)
		if (!a->consumers[i].matrix.has_keys)
			clear_array(b, b->sums[i], n * score_padded(&b->t, a->consumers[i].width));
	int loops = open_loops(b, OVER_QUERIES);
	for (Pieces q = pieces(lb, a->shape->dims[b->query], at->grad_queries); q.size;
	     pieces_next(&q)) {
		Affine first_query = affine_scale(lb, q.number, at->grad_queries);
		if (a->range.select)
			if_seen(b, first_query, q.size, first, n);
		fill_copies(b, false, first_query, q.size);
		add_products(b, first_query, q.size, first, n);
		if (a->range.select)
			lb_end(lb);
	}
	close_loops(lb, loops);
	for (int i = 0; i < a->n_consumers; i++)
		if (!a->consumers[i].matrix.has_keys)
			move_sums(b, i, first, n, STORES);
}

/* Stores zeros to the part of a sum that a part of the kernel computes. */
static void
clear_sum(Block *b, const ScoreSum *s)
{
	LoopBuilder *lb = b->t.lw->lb;
	int loops = 0;

	for (int i = 0; i <= b->key; i++) {
		if (i < b->query && loop_over(b->a, i) == OVER_PARTS)
			continue;
		b->t.at[i] = affine_constant(0);
		if (!s->kept[i])
			continue;
		LoopMode mode = i == b->key && !s->summed[i] ? LOOP_VECTOR : LOOP_PLAIN;
		b->t.at[i] = affine_scalar(lb, lb_for(lb, mode, b->a->shape->dims[i]));
		loops++;
	}
	lb_store(lb, lower_buffer(b->t.lw, s->to.result), score_sum_place(&b->t, s),
	         lb_number(lb, b->t.type, 0));
	close_loops(lb, loops);
}

static void
declare_arrays(Block *b, int64_t queries, int64_t keys)
{
	LoopBuilder *lb = b->t.lw->lb;
	const AttentionGrad *a = b->a;
	int n_tiles = a->n_tiles > a->n_products ? a->n_tiles : a->n_products;

	for (int i = 0; i < a->n_products; i++) {
		copy_of(b, &a->products[i].queries, false, queries);
		copy_of(b, &a->products[i].keys, true, keys);
	}
	for (int i = 0; i < n_tiles; i++)
		b->tiles[i] = lb_local(lb, b->t.type, queries * score_padded(&b->t, keys));
	for (int i = 0; i < a->n_sums; i++)
		if (a->sums[i].summed[b->key])
			b->sum_tiles[i] = lb_local(lb, b->t.type,
			                           queries * score_padded(&b->t, keys));
	for (int i = 0; i < a->n_consumers; i++) {
		const ScoreMatrix *m = &a->consumers[i].matrix;
		copy_of(b, m, false, m->has_keys ? keys : queries);
		b->sums[i] = lb_local(lb, b->t.type,
		                      (m->has_keys ? queries : keys) *
		                              score_padded(&b->t, m->width));
	}
}

static void
emit_attention_grad(Lower *lw)
{
	const AttentionTiles *at = &lw->target->tuning->attention;
	LoopBuilder *lb = lw->lb;
	AttentionGrad a = {0};

	attention_grad_parts(lw->f, &a, false);
	int rank = a.shape->rank;
	int64_t queries = a.shape->dims[rank - 2], keys = a.shape->dims[rank - 1];
	Block b = {.a = &a, .query = rank - 2, .key = rank - 1};
	b.t = score_tiles(lw, a.shape, a.type);
	declare_arrays(&b, score_least(queries, at->grad_queries),
	               score_least(keys, at->grad_keys));
	int parts = open_loops(&b, OVER_PARTS);
	for (int i = 0; i < a.n_sums; i++)
		clear_sum(&b, &a.sums[i]);
	int summed = open_loops(&b, OVER_SUMS), inner = open_loops(&b, OVER_QUERIES);
	for (int i = 0; i < a.n_consumers; i++)
		if (a.consumers[i].matrix.has_keys)
			move_sums(&b, i, affine_constant(0), queries, CLEARS);
	close_loops(lb, inner);
	for (Pieces k = pieces(lb, keys, at->grad_keys); k.size; pieces_next(&k))
		key_block(&b, affine_scale(lb, k.number, at->grad_keys), k.size);
	close_loops(lb, parts + summed);
}

const GroupStrategy group_strategy_attention_grad = {
	.group = &group_attention_grad,
	.kinds = ON(CPU),
	.doc = "a block of keys with one block of queries after the other",
	.takes = takes,
	.emit = emit_attention_grad};
