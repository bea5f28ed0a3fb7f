/* Emits cumulate (running sums along lines) for teams of GPU threads (members), with the same
 * order of additions as on CPUs. Each member has a line, or a block of a line. If neighbouring
 * elements belong to different lines, members read their lines directly. Otherwise members would
 * read memory far apart. So the team works in steps: it loads some elements of all its lines or
 * blocks into team memory, each member adds along its own row there, and the team stores the
 * results. Neighbouring members then load and store neighbouring elements:
 *
 *	for v1 < 3 {                              ; 128 elements of a block of 384
 *	  for v2 < 32 { team v3 < 32 { ... } }      ; load them, of 32 blocks
 *	  barrier
 *	  team v4 < 32 { for v5 < 128 { ... } }     ; each member adds along its block
 *	  barrier
 *	  for v6 < 32 { team v7 < 32 { ... } }      ; store them */
#include "codegen/kernels/cumulate.h"
#include "codegen/kernels/lines.h"

/* ---- columns: members read their lines directly */
typedef struct {
	Affine line, block;
	Index at; /* of the line */
	Spread lane;
} Column;

static Column
open_column(const Cumulate *c, int64_t blocks)
{
	LoopBuilder *lb = c->lw->lb;
	int64_t members = columns_begin(c->lw, c->lines->n);
	Column own = {.block = affine_constant(0)};

	LoopValue group = lb_for(lb, LOOP_PARALLEL, ceil_div(c->lines->n, members));
	if (c->blocks > 1)
		own.block = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, blocks));
	own.line = columns_open(c->lw, c->lines->n, affine_scalar(lb, group), &own.lane);
	index_split(lb, c->lines, own.line, &own.at);
	return own;
}

static void
close_column(const Cumulate *c, Column *own)
{
	spread_close(&own->lane);
	lb_end(c->lw->lb);
	if (c->blocks > 1)
		lb_end(c->lw->lb);
}

/* ---- rows: each member's line or block is a row of the team's memory */
typedef struct {
	const Cumulate *c;
	/* members: rows of a part; count: rows of all parts along the second parallel loop */
	int64_t members, count;
	int64_t near;        /* elements of each row that lie in team memory at a time (a chunk) */
	Affine outer, first; /* the line, if rows are blocks; the part's first row */
	int tile, sum;       /* array [members, near] in team memory; private sum of a member */
} Rows;

static Rows
open_rows(const Cumulate *c, int64_t blocks)
{
	Lower *lw = c->lw;
	LoopBuilder *lb = lw->lb;
	int64_t near = lw->target->tuning->lines.near, outer = c->blocks > 1 ? c->lines->n : 1;
	Rows r = {.c = c, .count = c->blocks > 1 ? blocks : c->lines->n};

	team_begin_for(lw, 0);
	r.members = lb->k->team[0];
	r.near = c->block < near ? c->block : near;
	r.outer = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, outer));
	LoopValue part = lb_for(lb, LOOP_PARALLEL, ceil_div(r.count, r.members));
	r.first = affine_scale(lb, affine_scalar(lb, part), r.members);
	r.tile = lb_padded(
		lb, "near",
		type_new(lw->m, compute_type(c->x->dtype), 2, (int64_t[]){r.members, r.near}), 1);
	r.sum = lb_private(lb, c->type, 1);
	return r;
}

static void
close_rows(const Rows *r)
{
	lb_end(r->c->lw->lb);
	lb_end(r->c->lw->lb);
}

/* The line and block of row `row` of the part. */
static void
row_of(const Rows *r, Affine row, Affine *line, Affine *block)
{
	Affine at = affine_add(r->c->lw->lb, r->first, row);

	*line = r->c->blocks > 1 ? r->outer : at;
	*block = r->c->blocks > 1 ? at : affine_constant(0);
}

/* The number of rows from the part's first row to the end of all rows. */
static Affine
rows_left(const Rows *r)
{
	return affine_plus(affine_scale(r->c->lw->lb, r->first, -1), r->count);
}

/* Opens a loop, shared by the team, over the elements of row `row` in this chunk. Returns the
 * element's number in the line. Elements beyond the line's end are left out. */
static Affine
open_elements(const Rows *r, Affine row, Affine chunk, bool straight, Spread *lane)
{
	const Cumulate *c = r->c;
	LoopBuilder *lb = c->lw->lb;
	Affine line, block;

	row_of(r, row, &line, &block);
	Affine first = affine_scale(lb, block, c->block);
	first = affine_add_scaled(lb, first, chunk, r->near);
	Affine left = affine_plus(affine_scale(lb, first, -1), c->size);
	bool whole = c->size % c->block == 0 && c->block % r->near == 0 &&
	             (c->blocks == 1 || r->count % r->members == 0);
	*lane = spread_open(c->lw, r->near, whole ? NULL : &left);
	if (!straight)
		lane->vector = 1;
	return affine_add(lb, first, spread_enter(lane));
}

/* Moves a chunk of all rows: from memory into `tile`, or with `store` from `tile` to the result. */
static void
move_chunk(const Rows *r, Affine chunk, bool store)
{
	const Cumulate *c = r->c;
	LoopBuilder *lb = c->lw->lb;
	bool beyond = store && c->block % r->near; /* some elements belong to the next block */
	int out = lower_buffer(c->lw, node_result(c->node, 0));
	Affine line, block;
	Spread lane;
	Index at;

	LoopValue number = c->blocks == 1 && r->count % r->members
	                           ? lb_for_below(lb, LOOP_PLAIN, r->members, rows_left(r))
	                           : lb_for(lb, LOOP_PLAIN, r->members);
	Affine row = affine_scalar(lb, number);
	row_of(r, row, &line, &block);
	index_split(lb, c->lines, line, &at);
	Affine j = open_elements(r, row, chunk, !beyond, &lane);
	Index full = cumulate_index(c, &at, j);
	Affine own = affine_add_scaled(lb, j, block, -c->block);
	Affine place = affine_add_scaled(lb, own, chunk, -r->near);
	place = affine_add_scaled(lb, place, row, r->near);
	if (beyond)
		lb_if(lb, lb_compare(lb, LOOP_lt, lb_affine(lb, own), lb_int(lb, S64, c->block)));
	if (store)
		lb_store(lb, out, index_flat(lb, c->x, &full), lb_load(lb, r->tile, place));
	else
		lb_store(lb, r->tile, place, lower_element(c->lw, node_operand(c->node, 0), &full));
	if (beyond)
		lb_end(lb);
	spread_close(&lane);
	lb_end(lb);
}

/* Opens the loop over members that have a row. */
static Affine
open_members(const Rows *r, Spread *lane)
{
	Affine left = rows_left(r);

	*lane = spread_open(r->c->lw, r->members, r->count % r->members ? &left : NULL);
	return spread_enter(lane);
}

/* Each member adds along its row's elements in team memory. */
static void
add_chunk(const Rows *r, Affine chunk, bool store)
{
	const Cumulate *c = r->c;
	LoopBuilder *lb = c->lw->lb;
	Affine line, block;
	Spread lane;

	Affine row = open_members(r, &lane);
	row_of(r, row, &line, &block);
	Affine line_left = affine_plus(affine_scale(lb, block, -c->block), c->size);
	LoopValue size = lb_binary(lb, LOOP_min, lb_affine(lb, line_left),
	                           lb_int(lb, S64, c->block));
	Affine left = affine_add_scaled(lb, affine_scalar(lb, size), chunk, -r->near);
	LoopValue t = lb_for_below(lb, LOOP_PLAIN, r->near, left);
	Affine place = affine_add_scaled(lb, affine_scalar(lb, t), row, r->near);
	LoopValue old = lb_load(lb, r->sum, affine_constant(0));
	LoopValue y = cumulate_step(c, r->sum, old, lb_load(lb, r->tile, place));
	if (store)
		lb_store(lb, r->tile, place, y);
	lb_end(lb);
	spread_close(&lane);
}

static void
add_rows(const Rows *r, bool store)
{
	const Cumulate *c = r->c;
	LoopBuilder *lb = c->lw->lb;

	Affine chunk = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, ceil_div(c->block, r->near)));
	lb_barrier(lb); /* the previous chunk is stored */
	move_chunk(r, chunk, false);
	lb_barrier(lb);
	add_chunk(r, chunk, store);
	if (store) {
		lb_barrier(lb);
		move_chunk(r, chunk, true);
	}
	lb_end(lb);
}

/* ---- the kernels */
static void
cumulate_prepare(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Cumulate c = cumulate_of(lw, n);
	Affine zero = affine_constant(0), line, block;
	Spread lane;

	lb->k->flops = cumulate_prepare_flops(&c);
	if (lines_are_columns(lw, c.x, c.attr->axis)) {
		Column own = open_column(&c, c.blocks - 1);
		cumulate_sum_block(&c, own.line, own.block, &own.at);
		close_column(&c, &own);
		return;
	}
	Rows r = open_rows(&c, c.blocks - 1);
	open_members(&r, &lane);
	lb_store(lb, r.sum, zero, lb_number(lb, c.type, c.attr->kind == REDUCE_PROD));
	spread_close(&lane);
	add_rows(&r, false);
	row_of(&r, open_members(&r, &lane), &line, &block);
	lb_store(lb, lower_scratch(lw), cumulate_sum_place(&c, line, block),
	         lb_load(lb, r.sum, zero));
	spread_close(&lane);
	close_rows(&r);
}

static void
cumulate_team_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Cumulate c = cumulate_of(lw, n);
	Affine line, block;
	Spread lane;

	if (c.x->n == 0 || lines_are_columns(lw, c.x, c.attr->axis)) {
		Column own = open_column(&c, c.blocks);
		cumulate_block(&c, own.line, own.block, &own.at, lb_private(lb, c.type, 1));
		close_column(&c, &own);
		return;
	}
	Rows r = open_rows(&c, c.blocks);
	row_of(&r, open_members(&r, &lane), &line, &block);
	lb_store(lb, r.sum, affine_constant(0), cumulate_sum_before(&c, line, block));
	spread_close(&lane);
	add_rows(&r, true);
	close_rows(&r);
}

const Strategy strategy_cumulate_team = {.op = OP_cumulate,
                                         .kinds = ON(TEAMS),
                                         .doc = "one member adds up each line, in order",
                                         .takes = team_stores,
                                         .emit = cumulate_team_kernel,
                                         .scratch = cumulate_scratch,
                                         .prepare = cumulate_prepare};
