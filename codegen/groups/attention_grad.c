/* The gradient of attention without score matrices. A part has one head. It goes through blocks of
 * keys, and for each through all blocks of queries: it computes the tile's scores and softmax
 * again, and adds the tile to the gradients of keys and values, which stay in arrays, and of
 * queries, which are summed in memory. All sums are in the order of blocks, so their bits do not
 * depend on threads. */
#include "codegen/groups/score_tiles.h"
#include "ir/groups/groups.h"

extern const GroupStrategy group_strategy_attention_grad;

enum { MOST_PRODUCTS = 4, MOST_MATRICES = 8 };

/* The nodes of the body: products that make scores, and those that consume them. */
typedef struct {
	Type shape; /* of the scores: batch, queries, keys */
	DType type;
	int n_products, n_consumers, n_tiles;
	ScoreProduct products[MOST_PRODUCTS];
	ScoreConsumer consumers[MOST_PRODUCTS];
	Value *tiles[MOST_PRODUCTS]; /* the values that consumers read */
	int tile_of[MOST_PRODUCTS];  /* by consumer */
	ScoreRange range;
} AttentionGrad;

static bool
is_consumer(const AttentionGrad *a, const Node *n)
{
	for (int i = 0; i < a->n_consumers; i++)
		if (a->consumers[i].dot == n)
			return true;
	return false;
}

static void
add_tile(AttentionGrad *a, int consumer)
{
	int i = 0;

	while (i < a->n_tiles && a->tiles[i] != a->consumers[consumer].tile)
		i++;
	a->tiles[i] = a->consumers[consumer].tile;
	a->n_tiles += i == a->n_tiles;
	a->tile_of[consumer] = i;
}

static bool
find_parts(const Function *f, AttentionGrad *a)
{
	const Node *ret = function_return(f);

	for (int i = 0; i < ret->n_operands; i++) {
		Value *v = node_operand(ret, i);
		while (v->node && (v->node->op == OP_reshape || v->node->op == OP_transpose))
			v = node_operand(v->node, 0);
		if (!v->node || v->node->op != OP_dot || i == MOST_PRODUCTS)
			return false;
		a->shape = i ? a->shape : node_operand(v->node, 0)->type;
		if (!score_consumer(node_operand(ret, i), a->shape, &a->consumers[i]))
			return false;
		a->n_consumers++;
		add_tile(a, i);
		a->type = compute_type(node_result(v->node, 0)->type->dtype);
		if (node_result(v->node, 0)->type->dtype != a->type)
			return false; /* sums lie in memory between blocks of keys */
	}
	for_each_node(f, n) {
		if (n->op != OP_dot || is_consumer(a, n))
			continue;
		if (a->n_products == MOST_PRODUCTS ||
		    !score_product(n, a->shape, &a->products[a->n_products++]))
			return false;
	}
	a->range = score_range(f, a->shape);
	return a->n_products > 0;
}

static bool
takes(const Target *t, const Function *body)
{
	const AttentionTiles *at = &t->tuning->attention;
	AttentionGrad a = {0};

	if (!find_parts(body, &a) || a.shape->n == 0 ||
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
} Block;

/* The array's copy of a matrix; declared at first use. */
static Copy *
copy_of(Block *b, const ScoreMatrix *m, bool across, int64_t rows)
{
	int i = 0;

	while (i < b->n_copies && !(b->copies[i].across == across &&
	                            score_matrix_equal(b->copies[i].matrix, m)))
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
		lower_give_element(lw, a->products[k].dot, &index, lb_load(lb, b->tiles[k], at));
	score_inside(&b->t, &a->range, &index);
	for (int k = 0; k < a->n_tiles; k++) {
		LoopValue x = lower_element(lw, a->tiles[k], &index);
		made[k] = lb_type(lb, x) == b->t.type ? x : lb_cast(lb, b->t.type, x);
	}
	for (int k = 0; k < a->n_tiles; k++)
		lb_store(lb, b->tiles[k], at, made[k]);
	lb_end(lb);
	lb_end(lb);
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
	Affine place = score_place(&b->t, c, w);
	int memory = lower_buffer(lw, c->result);
	if (how == LOADS)
		lb_store(lb, array, in_array, lb_load(lb, memory, place));
	else
		lb_store(lb, memory, place,
		         how == CLEARS ? lb_number(lb, b->t.type, 0) : lb_load(lb, array, in_array));
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
		TileView scores = by_query ? (TileView){from, pitch, 1} : (TileView){from, 1, pitch};
		TileView sums = {b->sums[i], score_padded(&b->t, c->width), 1};
		if (by_query)
			move_sums(b, i, first_query, n_queries, LOADS);
		score_multiply(&b->t, sums, true, -1, scores, copy_of(b, &c->matrix, false, 0)->view,
		               by_query ? n_queries : n_keys, c->width, by_query ? n_keys : n_queries);
		if (by_query)
			move_sums(b, i, first_query, n_queries, STORES);
	}
}

/* Opens loops over the axes of queries before the last one. Returns their number. */
static int
open_queries(Block *b, bool parallel)
{
	LoopBuilder *lb = b->t.lw->lb;
	int opened = 0;

	for (int i = 0; i < b->query; i++) {
		bool of_keys = false;
		const ScoreMatrix *keys = &b->a->products[0].keys;
		for (int k = 0; k < keys->value->type->rank; k++)
			of_keys |= keys->score_axis[k] == i;
		bool batch = of_keys || b->a->shape->dims[i] == 1;
		if (batch != parallel)
			continue;
		b->t.at[i] = affine_scalar(lb, lb_for(lb, parallel ? LOOP_PARALLEL : LOOP_PLAIN,
		                                      b->a->shape->dims[i]));
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
	LoopValue from = lb_affine(lb, first_key), to = lb_affine(lb, affine_plus(first_key, n_keys));

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
	int loops = open_queries(b, false);
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

static int64_t
smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
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
	for (int i = 0; i < a->n_consumers; i++) {
		const ScoreMatrix *m = &a->consumers[i].matrix;
		copy_of(b, m, false, m->has_keys ? keys : queries);
		b->sums[i] = lb_local(lb, b->t.type, (m->has_keys ? queries : keys) *
		                                             score_padded(&b->t, m->width));
	}
}

static void
emit_attention_grad(Lower *lw)
{
	const AttentionTiles *at = &lw->target->tuning->attention;
	LoopBuilder *lb = lw->lb;
	AttentionGrad a = {0};

	find_parts(lw->f, &a);
	int rank = a.shape->rank;
	int64_t queries = a.shape->dims[rank - 2], keys = a.shape->dims[rank - 1];
	Block b = {.a = &a, .query = rank - 2, .key = rank - 1};
	b.t = score_tiles(lw, a.shape, a.type);
	declare_arrays(&b, smaller(queries, at->grad_queries), smaller(keys, at->grad_keys));
	int loops = open_queries(&b, true);
	int inner = open_queries(&b, false);
	for (int i = 0; i < a.n_consumers; i++) {
		if (!a.consumers[i].matrix.has_keys)
			continue;
		move_sums(&b, i, affine_constant(0), queries, CLEARS);
	}
	close_loops(lb, inner);
	for (Pieces k = pieces(lb, keys, at->grad_keys); k.size; pieces_next(&k))
		key_block(&b, affine_scale(lb, k.number, at->grad_keys), k.size);
	close_loops(lb, loops);
}

const GroupStrategy group_strategy_attention_grad = {
	.group = &group_attention_grad,
	.kinds = ON(CPU),
	.doc = "a block of keys with one block of queries after the other",
	.takes = takes,
	.emit = emit_attention_grad};
