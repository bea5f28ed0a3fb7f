/* Blocks of matrices and of scores of a team, and loops over blocks. */
#include "codegen/groups/team_scores.h"

enum { STAGES = 2, STEP = 16 /* most numbers that a matrix unit takes along k */ };

int64_t
team_padded(int64_t width)
{
	return (width + STEP - 1) / STEP * STEP;
}

int64_t
team_rows_of(const TeamScores *t, int axis)
{
	return axis == t->query ? t->block.queries : t->block.keys;
}

/* ---- blocks of matrices */
static int
axis_of(const TeamScores *t, const ScoreMatrix *m)
{
	return m->has_keys ? t->key : t->query;
}

static int
stages_of(const TeamScores *t, const ScoreMatrix *m)
{
	return axis_of(t, m) == t->outer ? 1 : STAGES;
}

/* Bytes of team memory that a block of the matrix takes, with all its stages. */
static int64_t
bytes_of(const TeamScores *t, const ScoreMatrix *m)
{
	int64_t rows = team_rows_of(t, axis_of(t, m)), width = team_padded(m->width);

	return dtype_bytes(t->stored, stages_of(t, m) * (rows + PAD) * (width + PAD));
}

bool
team_choose_block(TeamScores *t, const TeamScoreBlock *list, int64_t most_bytes, int64_t width,
                  int n, const ScoreMatrix *const *matrices)
{
	for (; list->most_width; list++) {
		t->block = *list;
		int64_t bytes = 0;
		if (!tile_in_registers(t->stored))
			bytes += dtype_bytes(t->stored, (int64_t)list->queries * list->keys);
		for (int i = 0; i < n; i++)
			bytes += bytes_of(t, matrices[i]);
		if (list->most_width >= width && bytes <= most_bytes)
			return true;
	}
	return false;
}

TeamPanel
team_panel(TeamScores *t, const ScoreMatrix *m)
{
	LoopBuilder *lb = t->s.lw->lb;
	int axis = axis_of(t, m), mark = lb->k->body.n, rank = t->s.scores->rank;
	int64_t rows = t->s.scores->dims[axis];
	TeamPanel p = {.m = m,
	               .rows = team_rows_of(t, axis),
	               .width = team_padded(m->width),
	               .stages = stages_of(t, m),
	               .unit = 1};
	LoopValue row = -1;

	/* the code of one element, to see how elements lie */
	for (int i = 0; i < rank; i++) {
		LoopValue v = lb_for(lb, LOOP_PLAIN, t->s.scores->dims[i]);
		t->s.at[i] = affine_scalar(lb, v);
		row = i == axis ? v : row;
	}
	LoopValue w = lb_for(lb, LOOP_PLAIN, m->width);
	const LoopStatement *load = lower_load(lb, score_element(&t->s, m, affine_scalar(lb, w)));
	if (load && lb->k->buffers.at[load->buffer].type->dtype == t->stored) {
		int by_width = lower_contiguous(lb, load, w, m->width);
		int by_rows = lower_contiguous(lb, load, row, rows);
		int unit = by_rows > by_width ? by_rows : by_width;
		p.copied = dtype_bytes(t->stored, unit) >= LEAST_COPY_BYTES;
		p.across = by_rows > by_width;
		p.unit = p.copied ? unit : 1;
	}
	for (int i = 0; i <= rank; i++)
		lb_end(lb);
	lb_forget(lb, mark);
	return p;
}

void
team_panel_declare(TeamScores *t, TeamPanel *p, const char *name)
{
	LoopBuilder *lb = t->s.lw->lb;
	int64_t dims[] = {p->stages, p->rows, p->width};

	if (p->across) {
		dims[1] = p->width;
		dims[2] = p->rows;
	}
	p->array = lb_padded(lb, name, type_new(lb->m, t->stored, COUNT(dims), dims),
	                     COPY_BYTES / dtype_bytes(t->stored, 1));
}

Affine
team_stage_place(LoopBuilder *lb, const TeamPanel *p, Affine stage)
{
	return affine_scale(lb, stage, p->rows * p->width);
}

static void
and_below(LoopBuilder *lb, Affine place, int64_t end, LoopValue *inside)
{
	LoopValue below = lb_compare(lb, LOOP_lt, lb_affine(lb, place), lb_int(lb, S64, end));

	*inside = *inside < 0 ? below : lb_binary(lb, LOOP_and, *inside, below);
}

/* One unit of the block: row `row` of the matrix, from number w on. */
static void
bring_unit(TeamScores *t, const TeamPanel *p, Affine place, Affine row, Affine w)
{
	LoopBuilder *lb = t->s.lw->lb;
	int axis = axis_of(t, p->m);
	bool edge = t->s.scores->dims[axis] % p->rows != 0, wide = p->width != p->m->width;
	int64_t end = t->s.scores->dims[axis];

	t->s.at[axis] = row;
	if (!p->copied) {
		if (edge || wide)
			lb_store(lb, p->array, place, lb_number(lb, t->s.type, 0));
		t->s.at[axis] = edge ? lb_open_below(lb, row, end) : row;
		w = wide ? lb_open_below(lb, w, p->m->width) : w;
		lb_store(lb, p->array, place, score_element(&t->s, p->m, w));
		team_close(lb, edge + wide);
		return;
	}
	LoopValue inside = -1;
	if (edge)
		and_below(lb, row, end, &inside);
	if (wide)
		and_below(lb, w, p->m->width, &inside);
	const LoopStatement *load = lower_load(lb, score_element(&t->s, p->m, w));
	int from = load->buffer;
	Affine source = *load->place;
	lb_copy(lb, p->array, place, from, source, p->unit, inside);
}

void
team_panel_bring(TeamScores *t, const TeamPanel *p, Affine stage, Affine first)
{
	LoopBuilder *lb = t->s.lw->lb;
	int64_t line = p->across ? p->rows : p->width, lines = p->across ? p->width : p->rows;
	int64_t in_line = line / p->unit, all = lines * in_line, team = t->block.team;
	int64_t own = (all + team - 1) / team;
	int axis = axis_of(t, p->m);
	Affine before = t->s.at[axis];
	Index at;

	LoopValue member = lb_for(lb, LOOP_TEAM, team);
	Affine u = affine_scalar(
		lb, lb_for(lb, own <= MAX_UNROLL && p->copied ? LOOP_UNROLL : LOOP_PLAIN, own));
	Affine number = affine_add(lb, affine_scale(lb, u, team), affine_scalar(lb, member));
	if (all % team)
		number = lb_open_below(lb, number, all);
	bool whole = team % in_line == 0; /* all members together bring whole lines */
	int64_t at_once = whole ? team / in_line : lines;
	index_split(lb, type_new(lb->m, S64, 2, (int64_t[]){at_once, in_line}),
	            whole ? affine_scalar(lb, member) : number, &at);
	if (whole)
		at.at[0] = affine_add_scaled(lb, at.at[0], u, at_once);
	at.at[1] = affine_scale(lb, at.at[1], p->unit);
	Affine place = affine_add_scaled(lb, team_stage_place(lb, p, stage), number, p->unit);
	Affine row = at.at[p->across], w = at.at[!p->across];
	bring_unit(t, p, place, affine_add(lb, first, row), w);
	team_close(lb, 2 + (all % team != 0));
	t->s.at[axis] = before;
}

LoopWindow
team_rows(const TeamPanel *p, const Affine *place)
{
	return p->across ? (LoopWindow){p->array, place, 1, p->rows}
	                 : (LoopWindow){p->array, place, p->width, 1};
}

LoopWindow
team_columns(const TeamPanel *p, const Affine *place)
{
	LoopWindow w = team_rows(p, place);

	return (LoopWindow){w.buffer, w.place, w.column, w.row};
}

/* ---- elements of tiles */
static int
open_along(TeamScores *t, int axis, Affine at)
{
	int64_t end = t->s.scores->dims[axis];
	bool edge = end % team_rows_of(t, axis) != 0;

	t->s.at[axis] = edge ? lb_open_below(t->s.lw->lb, at, end) : at;
	return edge;
}

int
team_open_row(TeamScores *t, LoopValue row)
{
	LoopBuilder *lb = t->s.lw->lb;

	return open_along(t, t->outer, affine_add(lb, t->first, affine_scalar(lb, row)));
}

int
team_open_element(TeamScores *t, const TileElement *e, Affine first)
{
	LoopBuilder *lb = t->s.lw->lb;
	int n = team_open_row(t, e->row);
	Affine column = affine_add(lb, first, affine_scalar(lb, e->column));

	return n + open_along(t, t->inner, column);
}

void
team_close(LoopBuilder *lb, int n)
{
	while (n-- > 0)
		lb_end(lb);
}

void
team_store(TeamScores *t, const TileElement *e, const ScoreResult *to, LoopValue x)
{
	LoopBuilder *lb = t->s.lw->lb;
	int loops = team_open_row(t, e->row);

	lb_store(lb, lower_buffer(t->s.lw, to->result),
	         score_place(&t->s, to, affine_scalar(lb, e->column)), x);
	team_close(lb, loops + 1);
}

bool
team_has_edges(const TeamScores *t)
{
	return t->s.scores->dims[t->query] % t->block.queries != 0 ||
	       t->s.scores->dims[t->key] % t->block.keys != 0;
}

Affine
team_open_blocks(TeamScores *t, int axis)
{
	LoopBuilder *lb = t->s.lw->lb;
	int64_t size = team_rows_of(t, axis);
	int64_t blocks = (t->s.scores->dims[axis] + size - 1) / size;
	Affine number = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, blocks));

	return blocks == 1 ? affine_constant(0) : affine_scale(lb, number, size);
}

void
team_fill(LoopBuilder *lb, int tile, double x)
{
	TileElement e = lb_each(lb, tile);

	lb_store(lb, tile, e.place, lb_number(lb, lb->k->buffers.at[tile].type->dtype, x));
	lb_end(lb);
}

/* ---- loops over blocks */
/* The first query and the end of the queries that see some key of the part's block. */
static KeysSeen
queries_seeing(TeamScores *t, const ScoreRange *range)
{
	LoopBuilder *lb = t->s.lw->lb;
	int64_t queries = t->s.scores->dims[t->query], team = t->block.team;
	Affine before = t->s.at[t->query];
	LoopValue first = lb_affine(lb, t->first),
		  end = lb_affine(lb, affine_plus(t->first, t->block.keys));
	LoopValue member = lb_for(lb, LOOP_TEAM, team);
	KeysSeen seen = {lb_accumulator(lb, ACC_MIN, S64), lb_accumulator(lb, ACC_MAX, S64)};
	LoopValue u = lb_for(lb, LOOP_PLAIN, (queries + team - 1) / team);
	Affine q = affine_add_scaled(lb, affine_scalar(lb, member), affine_scalar(lb, u), team);

	q = queries % team ? lb_open_below(lb, q, queries) : q;
	t->s.at[t->query] = q;
	Index at = score_index(&t->s);
	at.rank--;
	LoopValue from = lb_cast(lb, S64, lower_element(t->s.lw, range->begin, &at));
	LoopValue to = lb_cast(lb, S64, lower_element(t->s.lw, range->end, &at));
	LoopValue sees = lb_binary(lb, LOOP_and, lb_compare(lb, LOOP_lt, from, end),
	                           lb_compare(lb, LOOP_gt, to, first));
	LoopValue number = lb_affine(lb, q), next = lb_affine(lb, affine_plus(q, 1));
	lb_accumulate(lb, seen.begin, lb_select(lb, sees, number, lb_int(lb, S64, queries)));
	lb_accumulate(lb, seen.end, lb_select(lb, sees, next, lb_int(lb, S64, 0)));
	team_close(lb, 2 + (queries % team != 0));
	t->s.at[t->query] = before;
	return seen;
}

KeysSeen
team_seen(TeamScores *t, const ScoreRange *range)
{
	return t->outer == t->key
	               ? queries_seeing(t, range)
	               : score_keys_seen(&t->s, range, t->query, t->first, t->block.queries);
}

/* The number of a block as a place; the caller knows that it is inside. */
static Affine
block_place(LoopBuilder *lb, const TeamBlocks *b, LoopValue number)
{
	if (b->count == 1)
		return affine_constant(0);
	number = lb_binary(lb, LOOP_min, number, lb_int(lb, S64, b->count - 1));
	number = lb_binary(lb, LOOP_max, number, lb_int(lb, S64, 0));
	lb_within(lb, number, b->count);
	return affine_scale(lb, affine_scalar(lb, number), b->size);
}

/* Sets begin and n: blocks with a row that matters. */
static void
find_seen(LoopBuilder *lb, TeamBlocks *b, const KeysSeen *seen)
{
	LoopValue size = lb_int(lb, S64, b->size), all = lb_int(lb, S64, b->count);
	LoopValue first = lb_binary(lb, LOOP_max, seen->begin, lb_int(lb, S64, 0));
	LoopValue end = lb_binary(lb, LOOP_add, seen->end, lb_int(lb, S64, b->size - 1));

	b->begin = lb_binary(lb, LOOP_div, first, size);
	end = lb_binary(lb, LOOP_min, lb_binary(lb, LOOP_div, end, size), all);
	b->n = lb_binary(lb, LOOP_sub, end, b->begin);
	b->n = lb_binary(lb, LOOP_max, b->n, lb_int(lb, S64, 0));
}

TeamBlocks
team_blocks_open(TeamScores *t, const KeysSeen *seen)
{
	LoopBuilder *lb = t->s.lw->lb;
	int64_t rows = t->s.scores->dims[t->inner], size = team_rows_of(t, t->inner);
	TeamBlocks b = {.size = size, .count = (rows + size - 1) / size, .begin = -1, .n = -1};
	LoopValue one = lb_int(lb, S64, 1), n = lb_int(lb, S64, b.count), number;

	if (seen) {
		find_seen(lb, &b, seen);
		n = b.n;
		Affine bound = affine_scalar(lb, lb_binary(lb, LOOP_add, n, one));
		b.s = lb_for_below(lb, LOOP_PLAIN, b.count + 1, bound);
	} else {
		b.s = lb_for(lb, LOOP_PLAIN, b.count + 1);
	}
	lb_wait(lb, 0);
	lb_barrier(lb);
	LoopValue odd = lb_binary(lb, LOOP_and, b.s, one);
	lb_within(lb, odd, STAGES);
	b.stage = affine_scalar(lb, odd);
	b.arrived = affine_plus(affine_scale(lb, b.stage, -1), 1);
	number = seen ? lb_binary(lb, LOOP_add, b.begin, b.s) : b.s;
	b.next = block_place(lb, &b, number);
	b.first = block_place(lb, &b, lb_binary(lb, LOOP_sub, number, one));
	lb_if(lb, lb_compare(lb, LOOP_lt, b.s, n));
	return b;
}

void
team_blocks_work(TeamScores *t, TeamBlocks *b)
{
	LoopBuilder *lb = t->s.lw->lb;

	lb_end(lb);
	lb_commit(lb);
	lb_if(lb, lb_compare(lb, LOOP_ge, b->s, lb_int(lb, S64, 1)));
}

void
team_blocks_close(TeamScores *t, TeamBlocks *b)
{
	(void)b;
	team_close(t->s.lw->lb, 2);
	lb_wait(t->s.lw->lb, 0); /* for the part's own copies, if it went through no block */
}
