/* The gradient of attention without score matrices on teams. No two parts add to the same result, so there
 * are kernels of three kinds (attention_grad_split.c): the gradients of keys and values, whose parts
 * have a block of keys and go through the blocks of queries; the gradient of queries, whose parts have a
 * block of queries and go through the blocks of keys; and gradients of what was added to the scores or
 * multiplied with them, whose parts have a block of both and go through the axes that are summed, such as
 * the batch. All compute scores again: seven products, without those of the last kind, where one kernel
 * that adds in memory has five (Dao 2023, arXiv:2307.08691, section 3). The order of sums does not depend
 * on when parts run.
 *
 *	rows of the part's block    copied once
 *	for each block of the other rows:
 *	  tiles of the products; the elementwise nodes turn them into tiles that products consume
 *	  these tiles times matrices of the other rows are added to the sums */
#include "codegen/groups/team_scores.h"
#include "ir/groups/groups.h"

extern const GroupStrategy group_strategy_attention_grad_team;

/* A part while its loops are emitted. */
typedef struct {
	const AttentionGrad *a;
	TeamScores t;
	bool by_keys; /* has the part a block of keys, and goes it through blocks of queries? */
	Affine first; /* of sums of tiles: the first key */
	int n_panels;
	TeamPanel panels[MOST_MATRICES];
	int tiles[MOST_PRODUCTS]; /* by product */
	int made[MOST_PRODUCTS];  /* by tile that is consumed, of the type of the matrices */
	int sums[MOST_PRODUCTS];  /* by consumer, or by sum of tiles */
} Part;

/* ---- which bodies */
/* Do all results sum over the same rows? Sets *by_keys. */
static bool
is_of_rows(const AttentionGrad *a, bool *by_keys)
{
	*by_keys = !a->consumers[0].matrix.has_keys;
	for (int i = 1; i < a->n_consumers; i++)
		if (a->consumers[i].matrix.has_keys == *by_keys)
			return false;
	return a->n_sums == 0 && a->n_consumers > 0;
}

/* Are all results sums of tiles over the same axes, neither queries nor keys? */
static bool
is_of_sums(const AttentionGrad *a)
{
	int rank = a->shape->rank;

	for (int i = 0; i < a->n_sums; i++)
		for (int axis = 0; axis < rank; axis++) {
			const ScoreSum *s = &a->sums[i];
			bool summed = s->summed[axis];
			if (summed != a->sums[0].summed[axis] || (summed && s->kept[axis]) ||
			    (summed && axis >= rank - 2))
				return false;
		}
	return a->n_consumers == 0 && a->n_sums > 0;
}

static int64_t
widest(const AttentionGrad *a)
{
	int64_t most = 0;

	for (int i = 0; i < a->n_products; i++)
		most = a->products[i].queries.width > most ? a->products[i].queries.width : most;
	for (int i = 0; i < a->n_consumers; i++)
		most = a->consumers[i].width > most ? a->consumers[i].width : most;
	return most;
}

static bool
has_type(const ScoreMatrix *m, DType d)
{
	return m->value->type->dtype == d;
}

static DType
stored_type(const AttentionGrad *a)
{
	DType d = a->n_consumers ? a->consumers[0].tile->type->dtype
	                         : a->products[0].keys.value->type->dtype;
	bool same = dtype_info[d].bits == 16;

	for (int i = 0; i < a->n_products; i++)
		same &= has_type(&a->products[i].queries, d) && has_type(&a->products[i].keys, d);
	for (int i = 0; i < a->n_consumers; i++)
		same &= has_type(&a->consumers[i].matrix, d) &&
		        a->consumers[i].tile->type->dtype == d;
	return same ? d : a->type;
}

static void
add_panel(Part *p, const ScoreMatrix *m)
{
	for (int i = 0; i < p->n_panels; i++)
		if (score_matrix_equal(p->panels[i].m, m))
			return;
	p->panels[p->n_panels++] = (TeamPanel){.m = m};
}

/* Without code: what the part needs. False: the target has no block for it. */
static bool
plan(const Target *target, const AttentionGrad *a, Part *p)
{
	const TeamAttention *at = &target->tuning->team_attention;
	int rank = a->shape->rank;

	*p = (Part){.a = a};
	if (a->shape->n == 0 || !target->matrices ||
	    (!is_of_sums(a) && !is_of_rows(a, &p->by_keys)))
		return false;
	p->t = (TeamScores){.s = {.scores = a->shape, .type = a->type},
	                    .stored = stored_type(a),
	                    .tf32 = ((const DotAttr *)a->products[0].dot->attr)->allow_tf32,
	                    .query = rank - 2,
	                    .key = rank - 1,
	                    .outer = p->by_keys ? rank - 1 : rank - 2,
	                    .inner = p->by_keys ? rank - 2 : rank - 1};
	for (int i = 0; i < a->n_products; i++) {
		add_panel(p, &a->products[i].queries);
		add_panel(p, &a->products[i].keys);
	}
	for (int i = 0; i < a->n_consumers; i++)
		add_panel(p, &a->consumers[i].matrix);
	const ScoreMatrix *all[MOST_MATRICES];
	for (int i = 0; i < p->n_panels; i++)
		all[i] = p->panels[i].m;
	return team_choose_block(&p->t, p->by_keys ? at->by_keys : at->by_queries, at->most_bytes,
	                         widest(a), p->n_panels, all);
}

bool
attention_grad_is_one_kernel(const Target *target, const AttentionGrad *a)
{
	Part p;

	return plan(target, a, &p);
}

static bool
takes(const Target *target, const Function *body)
{
	AttentionGrad a = {0};

	return attention_grad_parts(body, &a, true) && attention_grad_is_one_kernel(target, &a);
}

/* ---- the code of a part */
static const TeamPanel *
panel_of(const Part *p, const ScoreMatrix *m)
{
	int i = 0;

	while (!score_matrix_equal(p->panels[i].m, m))
		i++;
	return &p->panels[i];
}

static void
bring(Part *p, int axis, Affine stage, Affine first)
{
	for (int i = 0; i < p->n_panels; i++)
		if (p->panels[i].m->has_keys == (axis == p->t.key))
			team_panel_bring(&p->t, &p->panels[i], stage, first);
}

/* The place of the matrix's current block. */
static Affine
current(const Part *p, const TeamPanel *panel, Affine arrived)
{
	return team_stage_place(p->t.s.lw->lb, panel,
	                        panel->stages == 1 ? affine_constant(0) : arrived);
}

/* Rows of the tiles belong to the outer axis: with a block of keys, scores are k q. */
static void
multiply(Part *p, Affine arrived)
{
	LoopBuilder *lb = p->t.s.lw->lb;

	for (int i = 0; i < p->a->n_products; i++) {
		const ScoreProduct *s = &p->a->products[i];
		const TeamPanel *rows = panel_of(p, p->by_keys ? &s->keys : &s->queries);
		const TeamPanel *columns = panel_of(p, p->by_keys ? &s->queries : &s->keys);
		Affine left = current(p, rows, arrived), right = current(p, columns, arrived);
		LoopWindow windows[] = {team_rows(rows, &left), team_columns(columns, &right)};
		team_fill(lb, p->tiles[i], 0);
		lb_mma(lb, p->tiles[i], windows, rows->width, p->t.tf32);
	}
}

/* Opens the element of the tiles, if it exists, and gives the products' elements to the emitter. */
static Index
open_scores(Part *p, const TileElement *e, Affine first, int *loops)
{
	LoopBuilder *lb = p->t.s.lw->lb;

	*loops = team_open_element(&p->t, e, first);
	Index index = score_index(&p->t.s);
	for (int i = 0; i < p->a->n_products; i++)
		score_give(p->t.s.lw, p->a->products[i].dot, &index,
		           lb_load(lb, p->tiles[i], e->place));
	return index;
}

/* The tiles of the products become tiles that products consume. Scores of queries and keys beyond the last ones
 * become zeros. */
static void
make_tiles(Part *p, Affine first)
{
	Lower *lw = p->t.s.lw;
	LoopBuilder *lb = lw->lb;
	const AttentionGrad *a = p->a;
	TileElement e = lb_each(lb, p->tiles[0]);
	int loops;

	if (team_has_edges(&p->t))
		for (int i = 0; i < a->n_tiles; i++)
			lb_store(lb, p->made[i], e.place, lb_number(lb, p->t.s.type, 0));
	Index index = open_scores(p, &e, first, &loops);
	score_inside(&p->t.s, &a->range, &index);
	for (int i = 0; i < a->n_tiles; i++) {
		LoopValue made = lower_element(lw, a->tiles[i], &index);
		made = lb_type(lb, made) == p->t.s.type ? made : lb_cast(lb, p->t.s.type, made);
		lb_store(lb, p->made[i], e.place, made);
	}
	team_close(lb, loops + 1);
}

static void
add_to_sums(Part *p, Affine arrived)
{
	LoopBuilder *lb = p->t.s.lw->lb;

	for (int i = 0; i < p->a->n_consumers; i++) {
		const TeamPanel *m = panel_of(p, &p->a->consumers[i].matrix);
		Affine place = current(p, m, arrived);
		LoopWindow windows[] = {{.buffer = p->made[p->a->tile_of[i]]},
		                        team_rows(m, &place)};
		lb_mma(lb, p->sums[i], windows, m->rows, p->t.tf32);
	}
}

static void
store_sums(Part *p)
{
	LoopBuilder *lb = p->t.s.lw->lb;

	for (int i = 0; i < p->a->n_consumers; i++) {
		TileElement e = lb_each(lb, p->sums[i]);
		LoopValue x = lb_load(lb, p->sums[i], e.place);
		team_store(&p->t, &e, &p->a->consumers[i].to, x);
	}
}

static void
declare(Part *p)
{
	LoopBuilder *lb = p->t.s.lw->lb;
	int64_t rows = team_rows_of(&p->t, p->t.outer), columns = team_rows_of(&p->t, p->t.inner);

	for (int i = 0; i < p->n_panels; i++)
		team_panel_declare(&p->t, &p->panels[i],
		                   p->panels[i].m->has_keys ? "of_keys" : "of_queries");
	for (int i = 0; i < p->a->n_tiles; i++)
		p->made[i] = lb_tile(lb, "made", p->t.stored, rows, columns);
	for (int i = 0; i < p->a->n_products; i++)
		p->tiles[i] = lb_tile(lb, "scores", p->t.s.type, rows, columns);
	for (int i = 0; i < p->a->n_consumers; i++)
		p->sums[i] = lb_tile(lb, "sum", p->t.s.type, rows, p->a->consumers[i].width);
	for (int i = 0; i < p->a->n_sums; i++)
		p->sums[i] = lb_tile(lb, "sum", p->t.s.type, rows, columns);
}

/* The part's heads, if several heads of queries share its keys. */
static bool
is_shared(const Part *p, int axis)
{
	const ScoreMatrix *keys = &p->a->products[0].keys;

	for (int k = 0; k < keys->value->type->rank; k++)
		if (keys->score_axis[k] == axis)
			return false;
	return p->by_keys && p->a->shape->dims[axis] > 1;
}

static void
go_through(Part *p)
{
	LoopBuilder *lb = p->t.s.lw->lb;
	bool some = p->a->range.select != NULL;
	KeysSeen seen;
	int loops = 0;

	for (int i = 0; i < p->t.query; i++)
		if (is_shared(p, i)) {
			LoopValue v = lb_for(lb, LOOP_PLAIN, p->a->shape->dims[i]);
			p->t.s.at[i] = affine_scalar(lb, v);
			loops++;
		}
	if (some)
		seen = team_seen(&p->t, &p->a->range);
	TeamBlocks blocks = team_blocks_open(&p->t, some ? &seen : NULL);
	bring(p, p->t.inner, blocks.stage, blocks.next);
	team_blocks_work(&p->t, &blocks);
	multiply(p, blocks.arrived);
	make_tiles(p, blocks.first);
	add_to_sums(p, blocks.arrived);
	team_blocks_close(&p->t, &blocks);
	team_close(lb, loops);
}

/* ---- sums of tiles */
/* Adds the tiles of the current rows to the sums. */
static void
add_tiles(Part *p)
{
	Lower *lw = p->t.s.lw;
	LoopBuilder *lb = lw->lb;
	const AttentionGrad *a = p->a;
	TileElement e = lb_each(lb, p->tiles[0]);
	int loops;
	Index index = open_scores(p, &e, p->first, &loops);

	for (int i = 0; i < a->n_sums; i++) {
		LoopValue sum = lb_load(lb, p->sums[i], e.place);
		LoopValue y = lower_element(lw, a->sums[i].tile, &index);
		lb_store(lb, p->sums[i], e.place, lb_binary(lb, LOOP_add, sum, y));
	}
	team_close(lb, loops + 1);
}

static void
store_tiles(Part *p)
{
	Lower *lw = p->t.s.lw;
	LoopBuilder *lb = lw->lb;

	for (int i = 0; i < p->t.query; i++)
		if (p->a->sums[0].summed[i])
			p->t.s.at[i] = affine_constant(0);
	for (int i = 0; i < p->a->n_sums; i++) {
		const ScoreSum *s = &p->a->sums[i];
		TileElement e = lb_each(lb, p->sums[i]);
		LoopValue x = lb_load(lb, p->sums[i], e.place);
		int loops = team_open_element(&p->t, &e, p->first);
		lb_store(lb, lower_buffer(lw, s->to.result), score_sum_place(&p->t.s, s), x);
		team_close(lb, loops + 1);
	}
}

static void
go_through_summed(Part *p)
{
	LoopBuilder *lb = p->t.s.lw->lb;
	Affine zero = affine_constant(0);
	int loops = 0;

	for (int i = 0; i < p->t.query; i++)
		if (p->a->sums[0].summed[i]) {
			LoopValue v = lb_for(lb, LOOP_PLAIN, p->a->shape->dims[i]);
			p->t.s.at[i] = affine_scalar(lb, v);
			loops++;
		}
	lb_barrier(lb);
	bring(p, p->t.outer, zero, p->t.first);
	bring(p, p->t.inner, zero, p->first);
	lb_commit(lb);
	lb_wait(lb, 0);
	lb_barrier(lb);
	multiply(p, zero);
	add_tiles(p);
	team_close(lb, loops);
}

/* ---- parts */
static bool
is_part_axis(const Part *p, int axis)
{
	return p->a->n_sums ? !p->a->sums[0].summed[axis] : !is_shared(p, axis);
}

static void
emit_part(Lower *lw)
{
	LoopBuilder *lb = lw->lb;
	AttentionGrad a = {0};
	Part p;
	int loops = 1;

	attention_grad_parts(lw->f, &a, true);
	plan(lw->target, &a, &p);
	p.t.s.lw = lw;
	lb->fast = tile_in_registers(p.t.stored); /* operands of products are rounded */
	for (int i = 0; i < p.n_panels; i++)
		p.panels[i] = team_panel(&p.t, p.panels[i].m);
	lb_team(lb, 1, &p.t.block.team);
	for (int i = 0; i < p.t.query; i++)
		if (is_part_axis(&p, i)) {
			LoopValue v = lb_for(lb, LOOP_PARALLEL, a.shape->dims[i]);
			p.t.s.at[i] = affine_scalar(lb, v);
			loops++;
		}
	p.t.first = team_open_blocks(&p.t, p.t.outer);
	if (a.n_sums) {
		p.first = team_open_blocks(&p.t, p.t.inner);
		loops++;
	}
	declare(&p);
	for (int i = 0; i < a.n_consumers + a.n_sums; i++)
		team_fill(lb, p.sums[i], 0);
	if (a.n_sums) {
		go_through_summed(&p);
		store_tiles(&p);
	} else {
		bring(&p, p.t.outer, affine_constant(0), p.t.first);
		go_through(&p);
		store_sums(&p);
	}
	team_close(lb, loops);
}

const GroupStrategy group_strategy_attention_grad_team = {
	.group = &group_attention_grad,
	.kinds = ON(TEAMS),
	.doc = "gradients of keys and values, of queries, or of what is added to scores, in tiles",
	.takes = takes,
	.emit = emit_part};
