/* Emits matrix products c = a b for a team of GPU threads (members). Without blocks,
 * neighbouring members compute neighbouring columns of the result; each member has some rows,
 * with sums in private arrays. No operand is packed and k is not split, so every element is
 * summed in the order of k. */
#include "codegen/kernels/product/product.h"
#include "codegen/lower/lower.h"

/* Most rows of a member: each number of b is read once for all these rows. */
enum { MOST_ROWS = 4 };

typedef struct {
	Lower *lw;
	const Product *p;
	int64_t rows, width; /* rows and columns of a part */
	int sums;            /* private array of the member, by row */
} TeamProduct;

static int64_t
columns_of(const Product *p)
{
	int64_t n = 1;

	for (int i = 0; i < p->n.n; i++)
		n *= p->n.at[i];
	return n;
}

static TeamProduct
team_product(Lower *lw, const Product *p)
{
	TeamProduct e = {.lw = lw, .p = p, .rows = MOST_ROWS};

	while (p->m % e.rows)
		e.rows /= 2;
	e.width = lw->lb->k->n_team ? lw->lb->k->team[0] : 1;
	return e;
}

/* The shape of the parts: [batch, block of rows, block of columns]. */
static Type
parts_of(const TeamProduct *e)
{
	const Product *p = e->p;
	int64_t dims[] = {p->batch, p->m / e->rows, (columns_of(p) + e->width - 1) / e->width};

	return type_new(e->lw->m, S64, COUNT(dims), dims);
}

/* sums[row] += a(row, k) * b(k, column), for each row */
static void
add_products(const TeamProduct *e, Affine batch, Affine row, Affine column, Affine k)
{
	LoopBuilder *lb = e->lw->lb;
	const Product *p = e->p;
	LoopValue y = lb_cast(lb, p->type, p->b(e->lw, p, batch, k, column));
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_UNROLL, e->rows));
	LoopValue x = lb_cast(lb, p->type, p->a(e->lw, p, batch, affine_add(lb, row, i), k));
	LoopValue sum = lb_load(lb, e->sums, i);

	if (dtype_is_float(p->type))
		sum = lb_op(lb, LOOP_fma, p->type, (LoopValue[]){x, y, sum});
	else
		sum = lb_binary(lb, LOOP_add, sum, lb_binary(lb, LOOP_mul, x, y));
	lb_store(lb, e->sums, i, sum);
	lb_end(lb);
}

/* One member's work: a column of the part's rows. */
static void
one_column(const TeamProduct *e, Affine batch, Affine row, Affine column)
{
	LoopBuilder *lb = e->lw->lb;
	const Product *p = e->p;
	Tiling all = tile(&p->k, INT64_MAX);

	Affine i = affine_scalar(lb, lb_for(lb, LOOP_UNROLL, e->rows));
	lb_store(lb, e->sums, i, lb_number(lb, p->type, 0));
	lb_end(lb);
	if (all.count) {
		Affine k = open_block(lb, &all, all.count, LOOP_PLAIN);
		add_products(e, batch, row, column, k);
		close_block(lb, &all);
	}
	i = affine_scalar(lb, lb_for(lb, LOOP_UNROLL, e->rows));
	Affine place = p->c(e->lw, p, batch, affine_add(lb, row, i), column);
	LoopValue sum = result_of_sum(lb, p->node, lb_load(lb, e->sums, i));
	lb_store(lb, lower_buffer(e->lw, lower_stored(e->lw)), place,
	         lower_stored_element(e->lw, p->node, place, sum));
	lb_end(lb);
}

static void
one_part(TeamProduct *e, const Index *at)
{
	LoopBuilder *lb = e->lw->lb;
	Affine row = affine_scale(lb, at->at[1], e->rows);
	Affine column = affine_scale(lb, at->at[2], e->width);
	Affine left = affine_plus(affine_scale(lb, column, -1), columns_of(e->p));
	Spread lane;

	e->sums = lb_private(lb, e->p->type, e->rows);
	if (lb->k->n_team == 0) {
		one_column(e, at->at[0], row, column);
		return;
	}
	lane = spread_open(e->lw, e->width, columns_of(e->p) % e->width ? &left : NULL);
	lane.vector = 1; /* the member's code has loops */
	column = affine_add(lb, column, spread_enter(&lane));
	one_column(e, at->at[0], row, column);
	spread_close(&lane);
}

/* Emits a product. The parts are nested parallel loops, one per axis of `parts`, so that no
 * part's number has to be divided. */
static void
one_product(TeamProduct *e, Type parts)
{
	LoopBuilder *lb = e->lw->lb;
	Index at = {.rank = parts->rank};

	for (int i = 0; i < parts->rank; i++)
		at.at[i] = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, parts->dims[i]));
	one_part(e, &at);
	for (int i = 0; i < parts->rank; i++)
		lb_end(e->lw->lb);
}

/* ---- in blocks */
/* The number of splits, if the node's only product has blocks; otherwise 0. */
static int64_t
splits_of(Lower *lw, const Node *node, Product *list, int *n)
{
	bool whole_bytes = dtype_info[lower_stored(lw)->type->dtype].bits >= 8;

	*n = strategy_of(lw->target, node)->products(lw, node, list);
	return *n == 1 && lw->target->team > 1 && whole_bytes ? product_block_splits(lw, list) : 0;
}

Type
team_products_scratch(Lower *lw, const Node *node)
{
	Product list[MAX_PRODUCTS];
	int n;
	int64_t splits = splits_of(lw, node, list, &n);
	int64_t size = splits * node_result(node, 0)->type->n;

	return splits > 1 ? type_new(lw->m, list->type, 1, &size) : NULL;
}

void
team_products_prepare(Lower *lw, const Node *node)
{
	Product list[MAX_PRODUCTS];

	strategy_of(lw->target, node)->products(lw, node, list);
	lw->lb->k->flops = op_row(node)->flops(node);
	product_by_blocks(lw, list);
}

/* The sum of element `at` over the splits, in order. A short sum is unrolled, so that a member adds vectors. */
enum { MOST_IN_LINE = 32 }; /* most loads that are unrolled */
static LoopValue
sum_of_splits(Lower *lw, const Product *p, Affine at, int64_t splits)
{
	LoopBuilder *lb = lw->lb;
	int64_t n = node_result(p->node, 0)->type->n;
	LoopValue sum;

	if (splits > MOST_IN_LINE) {
		Affine s = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, splits));
		sum = lb_accumulator(lb, ACC_ADD, p->type);
		lb_accumulate(lb, sum,
		              lb_load(lb, lower_scratch(lw), affine_add_scaled(lb, at, s, n)));
		lb_end(lb);
		return sum;
	}
	sum = lb_load(lb, lower_scratch(lw), at);
	for (int64_t s = 1; s < splits; s++)
		sum = lb_binary(lb, LOOP_add, sum,
		                lb_load(lb, lower_scratch(lw), affine_plus(at, s * n)));
	return sum;
}

/* Adds up the sums of the splits. The serving kernel's operation count has the operations of the
 * product; this kernel's count has only the additions. */
static void
add_splits(Lower *lw, const Product *p, int64_t splits)
{
	LoopBuilder *lb = lw->lb;
	int64_t n = node_result(p->node, 0)->type->n;
	int64_t lanes = splits > MOST_IN_LINE ? 1 : lw->target->lanes;
	int team = lw->target->team;

	while (team > lw->target->tuning->reduce.row_members && n / (team * lanes) < lw->parts)
		team /= 2;
	lb_team(lb, 1, &team);
	int64_t block = team * lanes;
	Affine part = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, ceil_div(n, block)));
	Affine first = affine_scale(lb, part, block),
	       left = affine_plus(affine_scale(lb, first, -1), n);

	lb->k->flops += (splits - 1) * n - op_row(p->node)->flops(p->node);
	Spread lane = spread_open(lw, block, n % block ? &left : NULL);
	Affine at = affine_add(lb, first, spread_enter(&lane));
	LoopValue sum = sum_of_splits(lw, p, at, splits);
	sum = lower_stored_element(lw, p->node, at, result_of_sum(lb, p->node, sum));
	lb_store(lb, lower_buffer(lw, lower_stored(lw)), at, sum);
	spread_close(&lane);
	lb_end(lb);
}

void
products_by_team(Lower *lw, const Node *node)
{
	Product list[MAX_PRODUCTS];
	TeamProduct emits[MAX_PRODUCTS];
	Type shapes[MAX_PRODUCTS];
	int64_t all = 0;

	int n;
	int64_t splits = splits_of(lw, node, list, &n);

	team_begin(lw);
	if (splits > 1)
		add_splits(lw, &list[0], splits);
	else if (splits)
		product_by_blocks(lw, &list[0]);
	if (splits)
		return;
	for (int i = 0; i < n; i++) {
		emits[i] = team_product(lw, &list[i]);
		shapes[i] = parts_of(&emits[i]);
		all += shapes[i]->n;
	}
	if (n == 1) {
		one_product(&emits[0], shapes[0]);
		return;
	}
	PartSpaces parts = part_spaces(lw->lb, all);
	for (int i = 0; i < n; i++) {
		if (shapes[i]->n == 0)
			continue;
		Index at = part_space(&parts, shapes[i]);
		one_part(&emits[i], &at);
		part_space_end(&parts);
	}
	lb_end(lw->lb);
}
