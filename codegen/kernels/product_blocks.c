/* The blocked product for a team: a part is a block of the result, whose sums are a tile. BlockedProduct of both operands along k go to
 * arrays of the team, of two stages: the next block is on its way while this one is multiplied.
 *
 *	for s < blocks of k + 1:
 *	  wait, barrier             block s - 1 is here, and nobody reads block s - 2 any more
 *	  copies of block s, or loads into private arrays
 *	  mma of block s - 1
 *	  private arrays are stored to the stage of block s
 *
 * An operand whose elements are loads is copied, 16 bytes at once where it lies so; what is computed goes through private arrays.
 * Each element is summed in the order of k: where blocks do not divide k, the last mma adds what is left, and no zeros. Beyond
 * the last row and column arrays hold zeros, or what lies there, and nothing is stored. */
#include "codegen/kernels/product_impl.h"
#include "codegen/team.h"

enum { LEFT, RIGHT, N_SIDES, STAGES = 2, COPY_BYTES = 16, LEAST_COPY_BYTES = 4, UNIT_DEPTH = 16 };

/* One operand. */
typedef struct {
	int64_t extent;  /* rows or columns of the product */
	int64_t across;  /* of them in a block */
	DType type;      /* of the array */
	bool along_k;    /* [stage, across, k], else [stage, k, across] */
	bool copied;     /* else through private arrays */
	int unit;        /* elements that a copy brings */
	int array, held; /* the team's; a member's elements on their way, -1 */
} Side;

typedef struct {
	Lower *lw;
	const Product *p;
	TeamBlock block;
	int64_t k, depth; /* of the product; of a block */
	Side sides[N_SIDES];
	int sums;
	Affine batch;
	Affine first[N_SIDES]; /* row and column of the part */
} BlockedProduct;

static int64_t
size_of(const Ints *shape)
{
	int64_t n = 1;

	for (int i = 0; i < shape->n; i++)
		n *= shape->at[i];
	return n;
}

static int64_t
blocks_of(int64_t n, int64_t size)
{
	return (n + size - 1) / size;
}

/* ---- how operands lie */
static LoopValue
element_of(const BlockedProduct *e, int side, Affine batch, Affine across, Affine k)
{
	const Product *p = e->p;

	return side == LEFT ? p->a(e->lw, p, batch, across, k) : p->b(e->lw, p, batch, k, across);
}

/* The load from an input that gives x; NULL: it is computed. */
static const LoopStatement *
load_of(const LoopBuilder *lb, LoopValue x)
{
	const LoopStatement *s = &lb->k->body.at[lb->definitions.at[x]];
	bool load = s->kind == LOOP_STATEMENT_LOAD &&
	            lb->k->buffers.at[s->buffer].kind == BUFFER_IN;

	return load ? s : NULL;
}

static bool
depends_on(const LoopBuilder *lb, LoopValue x, LoopValue variable)
{
	const LoopStatement *s = &lb->k->body.at[lb->definitions.at[x]];
	const Affine *places[MAX_PLACES];

	if (x == variable || s->kind > LOOP_STATEMENT_LOAD)
		return x == variable;
	for (int i = 0; i < s->n_operands; i++)
		if (depends_on(lb, s->operands[i], variable))
			return true;
	for (int p = statement_places(s, places) - 1; p >= 0; p--)
		for (int i = 0; i < places[p]->n; i++)
			if (depends_on(lb, places[p]->terms[i].scalar, variable))
				return true;
	return false;
}

/* Elements along `variable` that lie side by side and can be brought at once: their places start at multiples of so many.
 * 0: not side by side. */
static int
elements_at_once(const LoopBuilder *lb, const LoopStatement *load, LoopValue variable,
                 int64_t extent)
{
	const Affine *a = load->place;
	int64_t bits = dtype_info[lb->k->buffers.at[load->buffer].type->dtype].bits;
	int64_t n = COPY_BYTES * 8 / bits;
	bool beside = false;

	while (n > 1 && (extent % n || a->constant % n || load->n_operands))
		n /= 2;
	for (int i = 0; i < a->n; i++) {
		AffineTerm t = a->terms[i];
		if (t.scalar == variable && t.coefficient == 1) {
			beside = true;
			continue;
		}
		if (depends_on(lb, t.scalar, variable))
			return 0;
		while (n > 1 && t.coefficient % n)
			n /= 2;
	}
	return beside ? (int)n : 0;
}

/* Numbers of 16 bits stay as they are for matrix units; others have the type of the sums. */
static DType
array_type(const BlockedProduct *e, const LoopStatement *made)
{
	const LoopBuilder *lb = e->lw->lb;
	DType stored = e->p->type;

	if (made->kind == LOOP_STATEMENT_LOAD)
		stored = lb->k->buffers.at[made->buffer].type->dtype;
	else if (made->kind == LOOP_STATEMENT_CAST)
		stored = (DType)made->i;
	return e->p->type == F32 && (stored == BF16 || stored == F16) ? stored : e->p->type;
}

/* Asks for an element in loops over all of the operand, and looks at what it is. */
static void
find_side(BlockedProduct *e, int number)
{
	LoopBuilder *lb = e->lw->lb;
	Side *side = &e->sides[number];
	int mark = lb->k->body.n;
	LoopValue batch = lb_for(lb, LOOP_PLAIN, e->p->batch);
	LoopValue across = lb_for(lb, LOOP_PLAIN, side->extent);
	LoopValue k = lb_for(lb, LOOP_PLAIN, e->k);
	LoopValue x = element_of(e, number, affine_scalar(lb, batch), affine_scalar(lb, across),
	                         affine_scalar(lb, k));
	const LoopStatement *load = load_of(lb, x);

	side->type = array_type(e, &lb->k->body.at[lb->definitions.at[x]]);
	side->along_k = number == LEFT ? e->p->a_along_k : e->p->b_along_k;
	side->unit = 1;
	if (load) {
		int by_k = elements_at_once(lb, load, k, e->k);
		int by_others = elements_at_once(lb, load, across, side->extent);
		if (by_k || by_others) {
			side->along_k = by_k >= by_others;
			side->unit = side->along_k ? by_k : by_others;
		}
		side->copied = lb->k->buffers.at[load->buffer].type->dtype == side->type &&
		               dtype_bytes(side->type, side->unit) >= LEAST_COPY_BYTES;
	}
	if (!side->copied)
		side->unit = 1;
	for (int i = 0; i < 3; i++)
		lb_end(lb);
	lb_forget(lb, mark);
}

/* ---- which block */
static bool
has_matrix_unit(const BlockedProduct *e)
{
	return e->sides[LEFT].type == e->sides[RIGHT].type &&
	       dtype_info[e->sides[LEFT].type].bits == 16;
}

static int64_t
parts_of(const BlockedProduct *e, const TeamBlock *b)
{
	return e->p->batch * blocks_of(e->sides[LEFT].extent, b->rows) *
	       blocks_of(e->sides[RIGHT].extent, b->columns);
}

/* Time of a product with that block, in multiply-adds of a member that all do at the same time. */
static double
cost_of(const BlockedProduct *e, const TeamTiles *t, const TeamBlock *b)
{
	double multiply = (double)b->rows * b->columns / (has_matrix_unit(e) ? t->unit_speed : 1);
	double bring = (double)(b->rows + b->columns) * t->bring;

	return (double)blocks_of(parts_of(e, b), t->parts) * (multiply + bring);
}

static void
choose_block(BlockedProduct *e, const TeamTiles *t)
{
	double least = 0;

	for (const TeamBlock *b = t->blocks; b->rows; b++) {
		double cost = cost_of(e, t, b);
		int64_t sums = (int64_t)b->rows * b->columns / b->team;
		if (dtype_bytes(e->p->type, sums) > t->most_sums ||
		    (e->block.rows && cost >= least))
			continue;
		least = cost;
		e->block = *b;
	}
	e->depth = has_matrix_unit(e) ? 2 * t->depth : t->depth;
	e->sides[LEFT].across = e->block.rows;
	e->sides[RIGHT].across = e->block.columns;
	for (int i = 0; i < N_SIDES; i++) /* each member brings as many units */
		while (e->sides[i].across * e->depth / e->sides[i].unit < e->block.team)
			e->sides[i].unit /= 2;
}

/* ---- arrays */
static int64_t
row_of(const BlockedProduct *e, const Side *s)
{
	return s->along_k ? e->depth : s->across;
}

static int64_t
stage_of(const BlockedProduct *e, const Side *s)
{
	return s->across * e->depth;
}

/* What a member brings of a block. */
static int64_t
units_of(const BlockedProduct *e, const Side *s)
{
	return stage_of(e, s) / s->unit / e->block.team;
}

/* Rows that members of a warp read at the same time lie in different banks: eight rows of a matrix of 16 bits, or eight
 * numbers of one k. */
static int64_t
pad_of(const Side *s)
{
	int bits = dtype_info[s->type].bits;

	return s->along_k || bits == 16 ? COPY_BYTES * 8 / bits : 0;
}

static void
declare_arrays(BlockedProduct *e)
{
	LoopBuilder *lb = e->lw->lb;
	static const char *const names[] = {"left", "right"};

	for (int i = 0; i < N_SIDES; i++) {
		Side *s = &e->sides[i];
		int64_t row = row_of(e, s), dims[] = {STAGES, stage_of(e, s) / row, row};
		s->array = lb_padded(lb, names[i], type_new(lb->m, s->type, COUNT(dims), dims),
		                     pad_of(s));
		s->held = s->copied ? -1 : lb_private(lb, s->type, units_of(e, s));
	}
	e->sums = lb_tile(lb, "sum", e->p->type, e->block.rows, e->block.columns);
}

/* ---- a block of k comes */
/* A unit that a member brings: the first element's number in the stage, row or column of the product, and k. */
typedef struct {
	Affine place, across, k;
} Unit;

/* Unit u of the member is unit u * team + member of the stage. */
static Unit
unit_of(const BlockedProduct *e, int number, Affine u, LoopValue member, Affine first_k)
{
	LoopBuilder *lb = e->lw->lb;
	const Side *s = &e->sides[number];
	int64_t units = row_of(e, s) / s->unit, rows = e->block.team / units;
	Affine all = affine_add(lb, affine_scale(lb, u, e->block.team), affine_scalar(lb, member));
	Index at;

	index_split(lb, type_new(lb->m, S64, 2, (int64_t[]){rows, units}),
	            affine_scalar(lb, member), &at);
	Affine row = affine_add(lb, affine_scale(lb, u, rows), at.at[0]);
	Affine in_row = affine_scale(lb, at.at[1], s->unit);
	return (Unit){.place = affine_scale(lb, all, s->unit),
	              .across = affine_add(lb, e->first[number], s->along_k ? row : in_row),
	              .k = affine_add(lb, first_k, s->along_k ? in_row : row)};
}

static bool
has_edge(const Side *s)
{
	return s->extent % s->across != 0;
}

static void
and_below(LoopBuilder *lb, Affine place, int64_t end, LoopValue *inside)
{
	LoopValue below = lb_compare(lb, LOOP_lt, lb_affine(lb, place), lb_int(lb, S64, end));

	*inside = *inside < 0 ? below : lb_binary(lb, LOOP_and, *inside, below);
}

static void
copy_unit(const BlockedProduct *e, int number, const Unit *u, Affine stage)
{
	LoopBuilder *lb = e->lw->lb;
	const Side *s = &e->sides[number];
	LoopValue inside = -1;

	if (has_edge(s))
		and_below(lb, u->across, s->extent, &inside);
	if (e->k % e->depth)
		and_below(lb, u->k, e->k, &inside);
	LoopValue x = element_of(e, number, e->batch, u->across, u->k);
	const LoopStatement *load = load_of(lb, x);
	int from = load->buffer;
	Affine source = *load->place;
	if (load->n_operands)
		inside = inside < 0 ? load->operands[0]
		                    : lb_binary(lb, LOOP_and, inside, load->operands[0]);
	lb_copy(lb, s->array, affine_add(lb, stage, u->place), from, source, s->unit, inside);
}

/* An iteration that is done where `place` is below `end`, 0 of a loop that is open then. */
static Affine
open_below(LoopBuilder *lb, Affine place, int64_t end)
{
	Affine left = affine_plus(affine_scale(lb, place, -1), end);

	return affine_scalar(lb, lb_for_below(lb, LOOP_PLAIN, 1, left));
}

static void
hold_unit(const BlockedProduct *e, int number, const Unit *u, Affine held)
{
	LoopBuilder *lb = e->lw->lb;
	const Side *s = &e->sides[number];
	Affine across = u->across, k = u->k;
	bool edge = has_edge(s), last = e->k % e->depth != 0;

	if (edge || last)
		lb_store(lb, s->held, held, lb_number(lb, e->p->type, 0));
	if (edge)
		across = affine_add(lb, across, open_below(lb, across, s->extent));
	if (last)
		k = affine_add(lb, k, open_below(lb, k, e->k));
	LoopValue x = element_of(e, number, e->batch, across, k);
	lb_store(lb, s->held, held, lb_cast(lb, e->p->type, x));
	for (int i = 0; i < edge + last; i++)
		lb_end(lb);
}

/* Where the array's stage begins. */
static Affine
stage_place(const BlockedProduct *e, int number, Affine stage)
{
	return affine_scale(e->lw->lb, stage, stage_of(e, &e->sides[number]));
}

static bool
has_copies(const BlockedProduct *e)
{
	return e->sides[LEFT].copied || e->sides[RIGHT].copied;
}

static bool
has_held(const BlockedProduct *e)
{
	return !e->sides[LEFT].copied || !e->sides[RIGHT].copied;
}

/* Copies of block `s` of k begin, or its elements are loaded into private arrays. */
static void
bring_block(const BlockedProduct *e, Affine s, Affine stage, bool copies)
{
	LoopBuilder *lb = e->lw->lb;
	LoopValue member = lb_for(lb, LOOP_TEAM, e->block.team);
	Affine first_k = affine_scale(lb, s, e->depth);

	for (int i = 0; i < N_SIDES; i++) {
		if (e->sides[i].copied != copies)
			continue;
		Affine u = affine_scalar(lb, lb_for(lb, LOOP_UNROLL, units_of(e, &e->sides[i])));
		Unit unit = unit_of(e, i, u, member, first_k);
		if (copies)
			copy_unit(e, i, &unit, stage_place(e, i, stage));
		else
			hold_unit(e, i, &unit, u);
		lb_end(lb);
	}
	lb_end(lb);
}

/* What private arrays hold is stored to the stage. */
static void
put_block(const BlockedProduct *e, Affine stage)
{
	LoopBuilder *lb = e->lw->lb;
	LoopValue member = lb_for(lb, LOOP_TEAM, e->block.team);

	for (int i = 0; i < N_SIDES; i++) {
		const Side *s = &e->sides[i];
		if (s->copied)
			continue;
		Affine u = affine_scalar(lb, lb_for(lb, LOOP_UNROLL, units_of(e, s)));
		Affine place = affine_add(lb, affine_scale(lb, u, e->block.team),
		                          affine_scalar(lb, member));
		lb_store(lb, s->array, affine_add(lb, stage_place(e, i, stage), place),
		         lb_load(lb, s->held, u));
		lb_end(lb);
	}
	lb_end(lb);
}

/* ---- and is multiplied */
static void
multiply(const BlockedProduct *e, Affine stage, int64_t from, int64_t depth)
{
	LoopBuilder *lb = e->lw->lb;
	const Side *a = &e->sides[LEFT], *b = &e->sides[RIGHT];
	int64_t a_k = a->along_k ? 1 : a->across, b_k = b->along_k ? 1 : b->across;
	Affine left = affine_plus(stage_place(e, LEFT, stage), from * a_k);
	Affine right = affine_plus(stage_place(e, RIGHT, stage), from * b_k);
	LoopWindow windows[] = {
		{a->array, &left, a->along_k ? e->depth : 1, a_k},
		{b->array, &right, b_k, b->along_k ? e->depth : 1},
	};

	if (depth)
		lb_mma(lb, e->sums, windows, depth);
}

/* The last block of k, which is shorter: what matrix units take, and the rest. */
static void
multiply_rest(const BlockedProduct *e, int64_t block)
{
	LoopBuilder *lb = e->lw->lb;
	Affine stage = affine_constant(block % STAGES);
	int64_t rest = e->k % e->depth;
	int64_t by_unit = has_matrix_unit(e) ? rest / UNIT_DEPTH * UNIT_DEPTH : 0;

	if (has_copies(e))
		lb_wait(lb, 0);
	lb_barrier(lb);
	multiply(e, stage, 0, by_unit);
	multiply(e, stage, by_unit, rest - by_unit);
}

/* Block `at` of k is on its way to the stage, and one before it is multiplied. */
static void
add_block(const BlockedProduct *e, Affine at, LoopValue number, Affine stage)
{
	LoopBuilder *lb = e->lw->lb;
	int64_t blocks = blocks_of(e->k, e->depth);
	bool more = e->k % e->depth == 0; /* the last iteration brings nothing */
	Affine comes = more ? affine_add(lb, at, open_below(lb, at, blocks)) : at;

	if (has_copies(e)) {
		bring_block(e, comes, stage, true);
		lb_commit(lb);
	}
	if (has_held(e))
		bring_block(e, comes, stage, false);
	if (more)
		lb_end(lb);
	if (e->k >= e->depth) {
		lb_if(lb, lb_compare(lb, LOOP_ge, number, lb_int(lb, S64, 1)));
		multiply(e, affine_plus(affine_scale(lb, stage, -1), 1), 0, e->depth);
		lb_end(lb);
	}
	if (has_held(e)) {
		if (more)
			open_below(lb, at, blocks);
		put_block(e, stage);
		if (more)
			lb_end(lb);
	}
}

/* sums += all of k */
static void
add_blocks(const BlockedProduct *e)
{
	LoopBuilder *lb = e->lw->lb;
	int64_t whole = e->k / e->depth, rest = e->k % e->depth;
	LoopValue s = lb_for(lb, LOOP_PLAIN, whole + 1);
	LoopValue odd = lb_binary(lb, LOOP_and, s, lb_int(lb, S64, 1));

	if (has_copies(e))
		lb_wait(lb, 0);
	lb_barrier(lb);
	add_block(e, affine_scalar(lb, s), s, affine_scalar(lb, odd));
	lb_end(lb);
	if (rest)
		multiply_rest(e, whole);
}

/* ---- the result */
static void
start_sums(const BlockedProduct *e)
{
	LoopBuilder *lb = e->lw->lb;
	TileElement at = lb_each(lb, e->sums);

	lb_store(lb, e->sums, at.place, lb_number(lb, e->p->type, 0));
	lb_end(lb);
}

static void
store_sums(const BlockedProduct *e)
{
	LoopBuilder *lb = e->lw->lb;
	TileElement at = lb_each(lb, e->sums);
	Affine place[] = {affine_add(lb, e->first[LEFT], affine_scalar(lb, at.row)),
	                  affine_add(lb, e->first[RIGHT], affine_scalar(lb, at.column))};
	int open = 0;

	for (int i = 0; i < N_SIDES; i++) {
		if (!has_edge(&e->sides[i]))
			continue;
		place[i] = affine_add(lb, place[i], open_below(lb, place[i], e->sides[i].extent));
		open++;
	}
	Affine to = e->p->c(e->lw, e->p, e->batch, place[LEFT], place[RIGHT]);
	LoopValue sum = result_of_sum(lb, e->p->node, lb_load(lb, e->sums, at.place));
	lb_store(lb, lower_buffer(e->lw, lower_stored(e->lw)), to,
	         lower_stored_element(e->lw, e->p->node, to, sum));
	for (int i = 0; i <= open; i++)
		lb_end(lb);
}

/* A product with few rows reads each number of b once for all of them where a member has a column; so it does not pay to bring
 * b to the team's memory, unless its numbers lie along k. */
static bool
pays(const BlockedProduct *e, const TeamTiles *t)
{
	const Product *p = e->p;
	bool thin = p->m <= t->few_rows && !p->b_along_k;
	bool empty = p->batch == 0 || p->m == 0 || e->sides[RIGHT].extent == 0 || e->k == 0;

	return dtype_is_float(p->type) && !empty && !thin;
}

static void
one_part(BlockedProduct *e)
{
	declare_arrays(e);
	start_sums(e);
	add_blocks(e);
	store_sums(e);
}

bool
product_by_blocks(Lower *lw, const Product *p)
{
	LoopBuilder *lb = lw->lb;
	const TeamTiles *t = lw->target->tiles;
	BlockedProduct e = {.lw = lw, .p = p, .k = size_of(&p->k)};
	Affine at[1 + N_SIDES];

	e.sides[LEFT].extent = p->m;
	e.sides[RIGHT].extent = size_of(&p->n);
	if (!t || !lb->k->n_team || !pays(&e, t))
		return false;
	find_side(&e, LEFT);
	find_side(&e, RIGHT);
	choose_block(&e, t);
	lb_team(lb, 1, &e.block.team);
	int64_t parts[] = {p->batch, blocks_of(p->m, e.block.rows),
	                   blocks_of(e.sides[RIGHT].extent, e.block.columns)};
	for (int i = 0; i < COUNT(parts); i++)
		at[i] = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, parts[i]));
	e.batch = at[0];
	e.first[LEFT] = affine_scale(lb, at[1], e.block.rows);
	e.first[RIGHT] = affine_scale(lb, at[2], e.block.columns);
	one_part(&e);
	for (int i = 0; i < COUNT(parts); i++)
		lb_end(lb);
	return true;
}
