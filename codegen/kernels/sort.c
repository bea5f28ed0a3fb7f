/* Emits sort and sort_runs. A line is all elements along the sorted axis; a run is a range of a
 * line that is sorted by itself. Lines and runs are sorted in parallel. A short run is sorted in
 * local arrays by a network (a fixed list of exchanges). Two sorted runs are merged in blocks of
 * the result, which run in parallel; each block first finds where it begins in both runs.
 *
 * On GPUs a team of threads (members) shares a run, because the exchanges of one step touch
 * different elements. If lines are short, its members share several lines. When runs are merged,
 * each member merges a few elements of a block. */
#include "codegen/kernels/lines.h"
#include "ir/ops/ops.h"

typedef struct {
	Lower *lw;
	const Node *node;
	DType type; /* type in which elements are compared */
	bool descending;
	int64_t axis, size; /* of a line */
	Type lines;
	int values, places; /* local arrays of the run in the network */
} Sorter;

static Sorter
sorter_of(Lower *lw, const Node *n, int64_t axis, bool descending)
{
	Type x = node_operand(n, 0)->type;

	return (Sorter){.lw = lw,
	                .node = n,
	                .type = compute_type(x->dtype),
	                .descending = descending,
	                .axis = axis,
	                .size = x->dims[axis],
	                .lines = type_drop_axis(lw->m, x, (int)axis)};
}

/* Must x stand before y in the sorted line? False if they are equal. NaN counts as larger than
 * every number. */
static LoopValue
stands_before(const Sorter *s, LoopValue x, LoopValue y)
{
	LoopBuilder *lb = s->lw->lb;
	LoopValue before = lb_compare(lb, s->descending ? LOOP_gt : LOOP_lt, x, y);

	if (!dtype_is_float(s->type))
		return before;
	LoopValue last = s->descending ? x : y, first = s->descending ? y : x;
	LoopValue is_last = lb_op(lb, LOOP_is_nan, BOOL, &last);
	LoopValue other = lb_unary(lb, LOOP_not, lb_op(lb, LOOP_is_nan, BOOL, &first));
	return lb_binary(lb, LOOP_or, before, lb_binary(lb, LOOP_and, is_last, other));
}

static LoopValue
operand_at(const Sorter *s, int i, const Index *line, Affine at)
{
	Index full = index_of_line(line, s->axis);

	full.at[s->axis] = at;
	return lower_element(s->lw, node_operand(s->node, i), &full);
}

static void
store_result(const Sorter *s, int i, const Index *line, Affine at, LoopValue x)
{
	const Value *y = node_result(s->node, i);
	Index full = index_of_line(line, s->axis);

	full.at[s->axis] = at;
	lb_store(s->lw->lb, lower_buffer(s->lw, y), index_flat(s->lw->lb, y->type, &full), x);
}

/* ---- the network */
/* Exchanges elements lo and hi of the local arrays if hi must stand before lo. */
static void
sort_exchange(const Sorter *s, LoopValue lo, LoopValue hi)
{
	LoopBuilder *lb = s->lw->lb;
	Affine l = affine_scalar(lb, lo), h = affine_scalar(lb, hi);
	LoopValue a = lb_load(lb, s->values, l), b = lb_load(lb, s->values, h);
	LoopValue i = lb_load(lb, s->places, l), j = lb_load(lb, s->places, h);
	LoopValue same = lb_unary(lb, LOOP_not, stands_before(s, a, b));
	LoopValue tie = lb_binary(lb, LOOP_and, same, lb_compare(lb, LOOP_gt, i, j));
	LoopValue swap = lb_binary(lb, LOOP_or, stands_before(s, b, a), tie);

	lb_store(lb, s->values, l, lb_select(lb, swap, b, a));
	lb_store(lb, s->values, h, lb_select(lb, swap, a, b));
	lb_store(lb, s->places, l, lb_select(lb, swap, j, i));
	lb_store(lb, s->places, h, lb_select(lb, swap, i, j));
}

/* Batcher's odd-even merge sort of n elements, for any n: exchanges with hi >= n are left out. Knuth, TAOCP
 * 5.2.2 algorithm M. */
static void
sort_network(const Sorter *s, int64_t n)
{
	LoopBuilder *lb = s->lw->lb;
	int64_t top = 1;

	while (top * 2 < n)
		top *= 2;
	for (int64_t p = top; n > 1 && p > 0; p /= 2) {
		int64_t q = top, r = 0, d = p;
		for (;;) {
			LoopValue i = lb_for(lb, LOOP_PLAIN, n - d);
			LoopValue bit = lb_binary(lb, LOOP_and, i, lb_int(lb, S64, p));
			lb_if(lb, lb_compare(lb, LOOP_eq, bit, lb_int(lb, S64, r)));
			sort_exchange(s, i, lb_affine(lb, affine_plus(affine_scalar(lb, i), d)));
			lb_end(lb);
			lb_end(lb);
			if (q == p)
				break;
			d = q - p;
			q /= 2;
			r = p;
		}
	}
}

/* Batcher's sort for a team. All steps are iterations of two loops: over rounds t = 0, 1, ... and
 * over steps u = 0 .. t of a round. Step u of round t exchanges elements i and i + d for all i
 * with (i & p) == r, where
 *
 *	p = top >> t
 *	u = 0:    d = p                      r = 0
 *	u > 0:    d = (2 * top >> u) - p     r = p
 *
 * Exchanges of one step touch different elements, so members share them. */
static void
share_network(const Sorter *s, int64_t n)
{
	LoopBuilder *lb = s->lw->lb;
	int64_t top = 1, rounds = 1;
	Spread lane;

	for (; top * 2 < n; top *= 2)
		rounds++;
	if (n < 2)
		return;
	LoopValue t = lb_for(lb, LOOP_PLAIN, rounds);
	Affine steps = affine_plus(affine_scalar(lb, t), 1);
	LoopValue u = lb_for_below(lb, LOOP_PLAIN, rounds, steps), zero = lb_int(lb, S64, 0);
	LoopValue p = lb_binary(lb, LOOP_shr, lb_int(lb, S64, top), t);
	LoopValue q = lb_binary(lb, LOOP_shr, lb_int(lb, S64, 2 * top), u);
	LoopValue first = lb_compare(lb, LOOP_eq, u, zero), r = lb_select(lb, first, zero, p);
	LoopValue d = lb_select(lb, first, p, lb_binary(lb, LOOP_sub, q, p));
	lb_barrier(lb);
	LoopValue i = lb_affine(lb, lines_share(s->lw, n - 1, NULL, &lane));
	LoopValue j = lb_binary(lb, LOOP_add, i, d);
	LoopValue is = lb_compare(lb, LOOP_eq, lb_binary(lb, LOOP_and, i, p), r);
	lb_if(lb, lb_binary(lb, LOOP_and, is, lb_compare(lb, LOOP_lt, j, lb_int(lb, S64, n))));
	j = lb_binary(lb, LOOP_min, j, lb_int(lb, S64, n - 1));
	lb_within(lb, j, n);
	sort_exchange(s, i, j);
	lb_end(lb);
	spread_close(&lane);
	lb_end(lb);
	lb_end(lb);
	lb_barrier(lb);
}

/* Sorts the run of n elements of the line from `first` on, together with their indices. The
 * indices are operand 1 of the node, or the elements' positions if there is no operand 1. */
static void
sort_run(const Sorter *s, const Index *line, Affine first, int64_t n)
{
	LoopBuilder *lb = s->lw->lb;
	Spread lane;

	Affine at = lines_share(s->lw, n, NULL, &lane);
	lb_store(lb, s->values, at, operand_at(s, 0, line, affine_add(lb, first, at)));
	lb_store(lb, s->places, at, lb_affine(lb, at));
	spread_close(&lane);
	if (lb->k->n_team)
		share_network(s, n);
	else
		sort_network(s, n);
	at = lines_share(s->lw, n, NULL, &lane);
	LoopValue place = lb_load(lb, s->places, at);
	store_result(s, 0, line, affine_add(lb, first, at), lb_load(lb, s->values, at));
	if (s->node->n_operands > 1) {
		lb_within(lb, place, n);
		place = operand_at(s, 1, line, affine_add(lb, first, affine_scalar(lb, place)));
	}
	store_result(s, 1, line, affine_add(lb, first, at), place);
	spread_close(&lane);
}

static void
open_arrays(Sorter *s, int64_t run)
{
	s->values = lb_local(s->lw->lb, s->type, run);
	s->places = lb_local(s->lw->lb, S64, run);
}

/* How many members have an exchange in each step. */
static int64_t
exchanging_members(int64_t run)
{
	int64_t members = 1;

	while (2 * members < run)
		members *= 2;
	return members;
}

/* For lines too short to keep all members busy: divides the team into groups (outer members),
 * each with a line of its own. False: lines are longer, or there is no team. */
static bool
sort_short_lines(Sorter *s)
{
	LoopBuilder *lb = s->lw->lb;
	Index line;

	if (!lines_divide(s->lw, exchanging_members(s->size)))
		return false;
	Affine at = lines_open(s->lw, s->lines->n);
	open_arrays(s, s->size);
	index_split(lb, s->lines, at, &line);
	sort_run(s, &line, affine_constant(0), s->size);
	lines_close(s->lw);
	return true;
}

/* Sorts runs of `run` elements; the last run of a line may be shorter. */
static void
sort_by_network(Sorter *s, int64_t run)
{
	LoopBuilder *lb = s->lw->lb;
	int64_t runs = ceil_div(s->size, run);
	Affine number = affine_constant(0);
	Index line;

	team_begin_for(s->lw, exchanging_members(run) * s->lw->target->lanes);
	open_arrays(s, run);
	LoopValue at = lb_for(lb, LOOP_PARALLEL, s->lines->n);
	if (runs > 1)
		number = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, runs));
	index_split(lb, s->lines, affine_scalar(lb, at), &line);
	for (Pieces p = piece_of(lb, s->size, run, number); p.size; pieces_next(&p))
		sort_run(s, &line, affine_scale(lb, p.number, run), p.size);
	lb_end(lb);
	if (runs > 1)
		lb_end(lb);
}

static void
sort_kernel(Lower *lw, const Node *n)
{
	const SortAttr *a = n->attr;
	Sorter s = sorter_of(lw, n, a->axis, a->descending);

	if (s.size == 0 || !sort_short_lines(&s))
		sort_by_network(&s, s.size ? s.size : 1);
}

/* ---- merging pairs of runs of `from` elements; the last run of a line may be shorter or missing */
typedef struct {
	const Sorter *s;
	const Index *line;
	Affine first; /* of the first run */
	int64_t from;
	LoopValue sizes[2];
} Pair;

/* Element i of run number `run` (0 or 1) of the pair; 0 where the condition `inside` is false. */
static LoopValue
pair_element(const Pair *p, int run, LoopValue i, LoopValue inside)
{
	const Sorter *s = p->s;
	LoopBuilder *lb = s->lw->lb;
	Index full = index_of_line(p->line, s->axis);

	full.at[s->axis] = affine_add(lb, affine_plus(p->first, run * p->from),
	                              affine_scalar(lb, i));
	return lower_element_inside(s->lw, node_operand(s->node, 0), &full, inside);
}

/* x clamped to [0, n]. */
static LoopValue
clamped(LoopBuilder *lb, LoopValue x, LoopValue n)
{
	return lb_binary(lb, LOOP_min, lb_binary(lb, LOOP_max, x, lb_int(lb, S64, 0)), n);
}

/* How many of the first `before` elements of the merged pair come from the first run. If i of
 * them do, before - i come from the second run. Bisection finds the smallest i for which element
 * i of the first run stands after element before - i - 1 of the second run. Green, McColl and
 * Bader, "GPU Merge Path", 2012. */
static LoopValue
taken_before(const Pair *p, LoopValue before)
{
	LoopBuilder *lb = p->s->lw->lb;
	int low = lines_number(p->s->lw), high = lines_number(p->s->lw);
	Affine zero = affine_constant(0);
	LoopValue one = lb_int(lb, S64, 1);
	int64_t steps = 1;

	while (1ll << steps <= p->from)
		steps++;
	LoopValue behind = lb_binary(lb, LOOP_sub, before, p->sizes[1]);
	lb_store(lb, low, zero, lb_binary(lb, LOOP_max, behind, lb_int(lb, S64, 0)));
	lb_store(lb, high, zero, lb_binary(lb, LOOP_min, before, p->sizes[0]));
	lb_for(lb, LOOP_PLAIN, steps);
	LoopValue from = lb_load(lb, low, zero), to = lb_load(lb, high, zero);
	LoopValue open = lb_compare(lb, LOOP_lt, from, to);
	LoopValue sum = lb_binary(lb, LOOP_add, from, to);
	LoopValue middle = lb_binary(lb, LOOP_div, sum, lb_int(lb, S64, 2));
	LoopValue other = lb_binary(lb, LOOP_sub, lb_binary(lb, LOOP_sub, before, one), middle);
	LoopValue x = pair_element(p, 0, middle, open), y = pair_element(p, 1, other, open);
	LoopValue right = lb_unary(lb, LOOP_not, stands_before(p->s, y, x));
	LoopValue up = lb_binary(lb, LOOP_and, open, right);
	LoopValue down = lb_binary(lb, LOOP_and, open, lb_unary(lb, LOOP_not, right));
	lb_store(lb, low, zero, lb_select(lb, up, lb_binary(lb, LOOP_add, middle, one), from));
	lb_store(lb, high, zero, lb_select(lb, down, middle, to));
	lb_end(lb);
	return lb_load(lb, low, zero);
}

/* Merges `count` elements of the result, from element number `before` of the merged pair on. If
 * only `left` elements remain, fewer. */
static void
merge_block(const Pair *p, Affine before, int64_t count, Affine left)
{
	const Sorter *s = p->s;
	LoopBuilder *lb = s->lw->lb;
	int next[2] = {lines_number(s->lw), lines_number(s->lw)};
	Affine zero = affine_constant(0);
	LoopValue all = lb_binary(lb, LOOP_add, p->sizes[0], p->sizes[1]);
	LoopValue start = clamped(lb, lb_affine(lb, before), all);
	LoopValue taken = taken_before(p, start), one = lb_int(lb, S64, 1);

	lb_store(lb, next[0], zero, taken);
	lb_store(lb, next[1], zero, lb_binary(lb, LOOP_sub, start, taken));
	LoopValue o = lb_for_below(lb, LOOP_PLAIN, count, left);
	LoopValue i = lb_load(lb, next[0], zero), j = lb_load(lb, next[1], zero);
	LoopValue has_x = lb_compare(lb, LOOP_lt, i, p->sizes[0]);
	LoopValue has_y = lb_compare(lb, LOOP_lt, j, p->sizes[1]);
	LoopValue x = pair_element(p, 0, i, has_x), y = pair_element(p, 1, j, has_y);
	LoopValue first = lb_binary(lb, LOOP_or, lb_unary(lb, LOOP_not, has_x),
	                            stands_before(s, y, x));
	/* is the element of the second run taken? */
	LoopValue second = lb_binary(lb, LOOP_and, has_y, first);
	LoopValue other = lb_binary(lb, LOOP_add, j, lb_int(lb, S64, p->from));
	LoopValue at = lb_select(lb, second, other, i);
	Affine to = affine_add(lb, affine_add(lb, p->first, before), affine_scalar(lb, o));
	store_result(s, 0, p->line, to, lb_select(lb, second, y, x));
	lb_within(lb, at, 2 * p->from);
	store_result(s, 1, p->line, to,
	             operand_at(s, 1, p->line, affine_add(lb, p->first, affine_scalar(lb, at))));
	LoopValue i_next = lb_select(lb, second, i, lb_binary(lb, LOOP_add, i, one));
	LoopValue j_next = lb_select(lb, second, lb_binary(lb, LOOP_add, j, one), j);
	lb_store(lb, next[0], zero, i_next);
	lb_store(lb, next[1], zero, j_next);
	lb_end(lb);
}

/* Elements of the result in a part that one thread merges: a divisor of the elements of a pair. */
static int64_t
merged_block(const Sorter *s, int64_t to)
{
	const LineTiles *t = &s->lw->target->tuning->lines;
	int64_t wanted = s->lines->n * s->size / s->lw->parts, block = to;

	wanted = wanted < t->least_merged  ? t->least_merged
	         : wanted > t->most_merged ? t->most_merged
	                                   : wanted;
	while (block > wanted && block % 2 == 0)
		block /= 2;
	return block;
}

/* How a part's elements are shared. */
typedef struct {
	int64_t members, each; /* elements that each member merges */
} Merging;

/* All members merge the same number of elements; if there are too few elements for that, one
 * member merges all elements. Small sorts have one element per member. */
static Merging
merging_of(const Sorter *s, int64_t to)
{
	Lower *lw = s->lw;
	const Tuning *t = lw->target->tuning;
	bool large = s->lines->n * s->size >= t->grains.large;
	int64_t most = large ? t->lines.merged_by_member : 1;
	Merging m = {.members = 1, .each = 1};

	if (lw->target->kind == TARGET_CPU)
		return (Merging){1, merged_block(s, to)};
	while (2 * m.each <= most && to % (2 * m.each) == 0)
		m.each *= 2;
	while (m.members < lw->target->team && to % (2 * m.members * m.each) == 0)
		m.members *= 2;
	if (m.members == 1 || !team_begin(lw))
		return (Merging){1, merged_block(s, to)};
	lb_team(lw->lb, 1, &(int){(int)m.members});
	return m;
}

static void
merge_runs(Sorter *s, int64_t from)
{
	LoopBuilder *lb = s->lw->lb;
	int64_t to = 2 * from, pairs = ceil_div(s->size, to);
	Merging m = merging_of(s, to);
	int64_t block = m.members * m.each;
	Index line;
	Spread lane;

	LoopValue at = lb_for(lb, LOOP_PARALLEL, s->lines->n);
	Affine pair = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, pairs));
	Affine number = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, to / block));
	index_split(lb, s->lines, affine_scalar(lb, at), &line);
	Pair p = {s, &line, affine_scale(lb, pair, to), from, {0}};
	Affine before = affine_scale(lb, number, block);
	Affine left = affine_plus(affine_scale(lb, p.first, -1), s->size);
	LoopValue run = lb_int(lb, S64, from);
	p.sizes[0] = clamped(lb, lb_affine(lb, left), run);
	p.sizes[1] = clamped(lb, lb_affine(lb, affine_plus(left, -from)), run);
	if (m.members > 1) {
		Affine member = lines_share(s->lw, m.members, NULL, &lane);
		before = affine_add_scaled(lb, before, member, m.each);
	}
	merge_block(&p, before, m.each, affine_add(lb, left, affine_scale(lb, before, -1)));
	if (m.members > 1)
		spread_close(&lane);
	for (int i = 0; i < 3; i++)
		lb_end(lb);
}

static void
sort_runs_kernel(Lower *lw, const Node *n)
{
	const SortRunsAttr *a = n->attr;
	Sorter s = sorter_of(lw, n, a->axis, a->descending);

	if (a->from == 1)
		sort_by_network(&s, a->to < s.size || s.size == 0 ? a->to : s.size);
	else
		merge_runs(&s, a->from);
}

const Strategy strategy_sort = {.op = OP_sort,
                                .kinds = ON_EVERY_KIND,
                                .doc = "each line in a merge network",
                                .emit = sort_kernel};

const Strategy strategy_sort_runs = {
	.op = OP_sort_runs,
	.kinds = ON_EVERY_KIND,
	.doc = "short runs in a merge network, long ones merged in blocks",
	.emit = sort_runs_kernel};
