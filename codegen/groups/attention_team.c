/* Attention without score matrices on teams. A part has a block of queries of one head, and goes through
 * blocks of keys: while one block is multiplied, the next block of k and v is copied. A tile of scores
 * and the sums of o are tiles of loop IR; a warp has whole rows of them, so that each row's largest
 * logit and sum are combined by shuffles. What attention.c says of logits and weights holds here, too. */
#include "codegen/groups/team_scores.h"
#include "ir/groups/groups.h"

#include <math.h>

extern const GroupStrategy group_strategy_attention_team;

/* A block of queries while its loops are emitted. */
typedef struct {
	const Attention *a;
	TeamScores t;
	TeamPanel q, k, v;
	int scores, weights /* the latter in team memory */, o;
	/* of rows: the largest logit, the one to subtract, the largest logit of the tile, the sum, the
	 * tile's sum, the scale of what was summed before */
	int most, shift, tile_most, sum, tile_sum, scale;
} Block;

/* The type of 16 bits that all operands of products have; else the type of sums. */
static DType
stored_type(const Attention *a, DType sums)
{
	DType d = a->output.tile->type->dtype;
	bool same = dtype_info[d].bits == 16 && a->output.matrix.value->type->dtype == d &&
	            a->scores.queries.value->type->dtype == d &&
	            a->scores.keys.value->type->dtype == d;

	return same ? d : sums;
}

static int64_t
widest(const Attention *a)
{
	int64_t k = a->scores.keys.width, v = a->output.width;

	return k > v ? k : v;
}

/* What a part needs. False: the target has no block for it. */
static bool
plan(const Target *target, const Attention *a, TeamScores *t)
{
	const TeamAttention *at = &target->tuning->team_attention;
	int rank = a->shape->rank;

	*t = (TeamScores){.s = {.scores = a->shape, .type = compute_type(a->logits->type->dtype)},
	                  .tf32 = ((const DotAttr *)a->scores.dot->attr)->allow_tf32,
	                  .query = rank - 2,
	                  .key = rank - 1,
	                  .outer = rank - 2,
	                  .inner = rank - 1};
	if (a->shape->n == 0 || !target->matrices)
		return false;
	t->stored = stored_type(a, t->s.type);
	const ScoreMatrix *all[] = {&a->scores.queries, &a->scores.keys, &a->output.matrix};
	return team_choose_block(t, at->forward, at->most_bytes, widest(a), COUNT(all), all);
}

static bool
takes(const Target *target, const Function *body)
{
	Attention a = {0};
	TeamScores t;

	return attention_parts(body, &a) && plan(target, &a, &t);
}

static LoopValue
is_minus_infinity(LoopBuilder *lb, LoopValue x)
{
	return lb_compare(lb, LOOP_eq, x, lb_number(lb, lb_type(lb, x), -INFINITY));
}

/* Scores become logits; the largest one of each row goes to tile_most. Logits of queries and keys
 * beyond the last ones are -inf. */
static void
make_logits(Block *b, Affine first_key)
{
	LoopBuilder *lb = b->t.s.lw->lb;
	TileElement e = lb_each(lb, b->scores);
	LoopValue most = lb_row_accumulator(lb, ACC_MAX, b->tile_most);
	LoopValue x = lb_load(lb, b->scores, e.place);

	if (team_has_edges(&b->t))
		lb_store(lb, b->scores, e.place, lb_number(lb, b->t.s.type, -INFINITY));
	int loops = team_open_element(&b->t, &e, first_key);
	Index index = score_index(&b->t.s);
	score_give(b->t.s.lw, b->a->scores.dot, &index, x);
	score_inside(&b->t.s, &b->a->range, &index);
	lb_store(lb, b->scores, e.place, lower_element(b->t.s.lw, b->a->logits, &index));
	team_close(lb, loops);
	lb_accumulate(lb, most, lb_load(lb, b->scores, e.place));
	lb_end(lb);
}

/* The rows' largest logits so far, and the scale of what was summed before. */
static void
update_rows(Block *b)
{
	LoopBuilder *lb = b->t.s.lw->lb;
	DType type = b->t.s.type;
	TileElement e = lb_each(lb, b->most);
	LoopValue before = lb_load(lb, b->most, e.place);
	LoopValue most = lb_binary(lb, LOOP_max, before, lb_load(lb, b->tile_most, e.place));
	LoopValue shift = lb_select(lb, is_minus_infinity(lb, most), lb_number(lb, type, 0), most);

	lb_store(lb, b->most, e.place, most);
	lb_store(lb, b->shift, e.place, shift);
	lb_store(lb, b->scale, e.place,
	         lb_unary(lb, LOOP_exp, lb_binary(lb, LOOP_sub, before, shift)));
	lb_end(lb);
}

/* Logits become exponentials, whose sums go to tile_sum, and weights. */
static void
make_weights(Block *b, Affine first_key)
{
	LoopBuilder *lb = b->t.s.lw->lb;
	TileElement e = lb_each(lb, b->scores);
	LoopValue sum = lb_row_accumulator(lb, ACC_ADD, b->tile_sum);
	LoopValue d = lb_binary(lb, LOOP_sub, lb_load(lb, b->scores, e.place),
	                        lb_load(lb, b->shift, affine_scalar(lb, e.row)));
	LoopValue p = lb_unary(lb, LOOP_exp, d);

	lb_accumulate(lb, sum, p);
	if (team_has_edges(&b->t))
		lb_store(lb, b->weights, e.place, lb_number(lb, b->t.s.type, 0));
	int loops = team_open_element(&b->t, &e, first_key);
	Index index = score_index(&b->t.s);
	lower_give_element(b->t.s.lw, b->a->p->node, &index, p);
	/* a row with a NaN has the sum NaN, and its o is replaced in the end */
	for_each_use(b->a->p, u)
		if (u->user->op == OP_is_nan)
			lower_give_element(b->t.s.lw, u->user, &index, lb_int(lb, BOOL, 0));
	LoopValue w = lower_element(b->t.s.lw, b->a->output.tile, &index);
	lb_store(lb, b->weights, e.place,
	         lb_type(lb, w) == b->t.s.type ? w : lb_cast(lb, b->t.s.type, w));
	team_close(lb, loops);
	lb_end(lb);
}

/* Scales down sums of rows and of o, and adds the tile's sums of rows. */
static void
rescale(Block *b)
{
	LoopBuilder *lb = b->t.s.lw->lb;
	TileElement e = lb_each(lb, b->sum);
	LoopValue x[] = {lb_load(lb, b->sum, e.place), lb_load(lb, b->scale, e.place),
	                 lb_load(lb, b->tile_sum, e.place)};

	lb_store(lb, b->sum, e.place, lb_op(lb, LOOP_fma, b->t.s.type, x));
	lb_end(lb);
	e = lb_each(lb, b->o);
	LoopValue o = lb_load(lb, b->o, e.place);
	LoopValue scale = lb_load(lb, b->scale, affine_scalar(lb, e.row));
	lb_store(lb, b->o, e.place, lb_binary(lb, LOOP_mul, o, scale));
	lb_end(lb);
}

static void
key_block(Block *b, Affine stage, Affine first_key)
{
	LoopBuilder *lb = b->t.s.lw->lb;
	Affine zero = affine_constant(0), k = team_stage_place(lb, &b->k, stage),
	       v = team_stage_place(lb, &b->v, stage);
	LoopWindow logits[] = {team_rows(&b->q, &zero), team_columns(&b->k, &k)};
	LoopWindow output[] = {{.buffer = b->weights}, team_rows(&b->v, &v)};

	team_fill(lb, b->scores, 0);
	lb_mma(lb, b->scores, logits, b->k.width, b->t.tf32);
	make_logits(b, first_key);
	update_rows(b);
	make_weights(b, first_key);
	rescale(b);
	lb_mma(lb, b->o, output, b->t.block.keys, b->t.tf32);
}

static Affine
row_place(Block *b)
{
	Index at = score_index(&b->t.s);

	at.rank--;
	return index_flat(b->t.s.lw->lb, b->a->most->type, &at);
}

/* As attention.c's. */
static void
store_rows(Block *b)
{
	Lower *lw = b->t.s.lw;
	LoopBuilder *lb = lw->lb;
	DType type = b->t.s.type;
	TileElement e = lb_each(lb, b->sum);
	LoopValue most = lb_load(lb, b->most, e.place), sum = lb_load(lb, b->sum, e.place);
	LoopValue hidden = is_minus_infinity(lb, most);
	LoopValue instead = lb_number(lb, type, b->a->zero_rows ? INFINITY : NAN);

	sum = lb_select(lb, hidden, instead, sum);
	if (b->a->zero_rows)
		most = lb_select(lb, hidden, lb_number(lb, type, 0), most);
	lb_store(lb, b->sum, e.place, sum);
	int loops = team_open_row(&b->t, e.row);
	Affine place = row_place(b);
	lb_store(lb, lower_buffer(lw, b->a->most), place, most);
	lb_store(lb, lower_buffer(lw, b->a->sum), place, sum);
	team_close(lb, loops + 1);
}

static void
store_output(Block *b)
{
	LoopBuilder *lb = b->t.s.lw->lb;
	const ScoreConsumer *out = &b->a->output;
	TileElement e = lb_each(lb, b->o);
	LoopValue sum = lb_load(lb, b->sum, affine_scalar(lb, e.row));
	LoopValue x = lb_binary(lb, LOOP_div, lb_load(lb, b->o, e.place), sum);

	if (b->a->guarded)
		x = lb_select(lb, lb_op(lb, LOOP_is_nan, BOOL, &sum), lb_number(lb, b->t.s.type, 0),
		              x);
	team_store(&b->t, &e, &out->to, x);
}

static void
declare(Block *b)
{
	LoopBuilder *lb = b->t.s.lw->lb;
	DType type = b->t.s.type;
	int64_t queries = b->t.block.queries, keys = b->t.block.keys;
	struct {
		int *tile;
		const char *name;
	} rows[] = {{&b->most, "most"}, {&b->shift, "shift"}, {&b->tile_most, "tile_most"},
	            {&b->sum, "sum"},   {&b->scale, "scale"}, {&b->tile_sum, "tile_sum"}};

	team_panel_declare(&b->t, &b->q, "q");
	team_panel_declare(&b->t, &b->k, "k");
	team_panel_declare(&b->t, &b->v, "v");
	b->weights = lb_tile(lb, "weights", b->t.stored, queries, keys);
	b->scores = lb_tile(lb, "scores", type, queries, keys);
	b->o = lb_tile(lb, "o", type, queries, b->a->output.width);
	for (int i = 0; i < COUNT(rows); i++)
		*rows[i].tile = lb_row_tile(lb, rows[i].name, type, queries);
}

static void
query_block(Block *b)
{
	LoopBuilder *lb = b->t.s.lw->lb;
	KeysSeen seen;
	bool some = b->a->range.select != NULL;

	declare(b);
	team_panel_bring(&b->t, &b->q, affine_constant(0), b->t.first);
	team_fill(lb, b->most, -INFINITY);
	team_fill(lb, b->sum, 0);
	team_fill(lb, b->o, 0);
	if (some)
		seen = team_seen(&b->t, &b->a->range);
	TeamBlocks blocks = team_blocks_open(&b->t, some ? &seen : NULL);
	team_panel_bring(&b->t, &b->k, blocks.stage, blocks.next);
	team_panel_bring(&b->t, &b->v, blocks.stage, blocks.next);
	team_blocks_work(&b->t, &blocks);
	key_block(b, blocks.arrived, blocks.first);
	team_blocks_close(&b->t, &blocks);
	store_rows(b);
	store_output(b);
}

static void
emit_attention(Lower *lw)
{
	LoopBuilder *lb = lw->lb;
	Attention a = {0};
	Block b = {.a = &a};

	attention_parts(lw->f, &a);
	plan(lw->target, &a, &b.t);
	b.t.s.lw = lw;
	lb->fast = tile_in_registers(b.t.stored); /* weights are rounded */
	b.q = team_panel(&b.t, &a.scores.queries);
	b.k = team_panel(&b.t, &a.scores.keys);
	b.v = team_panel(&b.t, &a.output.matrix);
	lb_team(lb, 1, &b.t.block.team);
	for (int i = 0; i < b.t.query; i++)
		b.t.s.at[i] = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, a.shape->dims[i]));
	b.t.first = team_open_blocks(&b.t, b.t.query);
	query_block(&b);
	team_close(lb, b.t.query + 1);
}

const GroupStrategy group_strategy_attention_team = {
	.group = &group_attention,
	.kinds = ON(TEAMS),
	.doc = "a block of queries with one block of keys after the other, in tiles",
	.takes = takes,
	.emit = emit_attention};
