/* Emits scatter for CPUs and for teams. A first kernel (the serving kernel) sorts the updates by
 * index. The sort is stable: updates of one index keep their order, follow each other and form a
 * segment. A slice is all elements of the result with one index. For each slice, the main kernel
 * combines the updates of the segment in order, and then combines the result with the old data.
 * All slices run in parallel and write to different places, so the bits do not depend on which
 * thread computes a slice. For scatter_sorted the order is known: the serving kernel only finds
 * where segments begin. */
#include "codegen/kernels/lines.h"
#include "ir/ops/ops.h"

/* The scratch (what the serving kernel leaves) begins with begin[i] for every index i: where the
 * segment of index i begins in the sorted order; begin[keys] is the end of all segments. Then
 * follows the order: the numbers of the updates, sorted by index. For scatter_sorted the order is
 * operand 3 instead. */
typedef struct {
	Lower *lw;
	const Node *node;
	/* keys: number of indices of the result; updates: number of updates */
	int64_t keys, updates;
	int scratch;
	bool sorted; /* scatter_sorted: the order is an operand */
} Segments;

static Segments
segments_of(Lower *lw, const Node *n)
{
	const ScatterAttr *a = n->attr;

	return (Segments){.lw = lw,
	                  .node = n,
	                  .keys = node_operand(n, 0)->type->dims[a->axis],
	                  .updates = node_operand(n, 1)->type->n,
	                  .scratch = lower_scratch(lw),
	                  .sorted = n->n_operands == 4};
}

static Type
scatter_scratch(Lower *lw, const Node *n)
{
	Segments s = segments_of(lw, n);
	int64_t size = s.keys + 1 + (s.sorted ? 0 : s.updates);

	return node_operand(n, 2)->type->n && node_operand(n, 0)->type->n
	               ? type_new(lw->m, S64, 1, &size)
	               : NULL;
}

/* The number in [0, n) that is nearest to x. */
static LoopValue
clamped(LoopBuilder *lb, LoopValue x, int64_t n)
{
	LoopValue c = lb_binary(lb, LOOP_min, lb_binary(lb, LOOP_max, x, lb_int(lb, S64, 0)),
	                        lb_int(lb, S64, n - 1));

	lb_within(lb, c, n);
	return c;
}

/* ---- the sort: part p sorts the indices from p * width on */
typedef struct {
	LoopValue first, count; /* range of the part's indices */
	int64_t width;
	Affine begin; /* of the part's begin[] in the scratch */
} Keys;

/* The index of update i minus the part's first index. Sets *own to the condition that the part
 * sorts this index. */
static LoopValue
key_of(const Segments *s, const Keys *k, LoopValue i, LoopValue *own)
{
	LoopBuilder *lb = s->lw->lb;
	const Value *indices = node_operand(s->node, 1);
	Index at;

	index_split(lb, indices->type, affine_scalar(lb, i), &at);
	LoopValue key = lb_cast(lb, S64, lower_element(s->lw, indices, &at));
	LoopValue rest = lb_binary(lb, LOOP_sub, key, k->first);
	LoopValue from = lb_compare(lb, LOOP_ge, rest, lb_int(lb, S64, 0));

	*own = lb_binary(lb, LOOP_and, from, lb_compare(lb, LOOP_lt, rest, k->count));
	return rest;
}

/* How many updates have a valid index that is less than the part's first index. */
static LoopValue
count_before(const Segments *s, const Keys *k)
{
	LoopBuilder *lb = s->lw->lb;
	LoopValue i = lb_for(lb, LOOP_VECTOR, s->updates), own;
	LoopValue key = lb_binary(lb, LOOP_add, key_of(s, k, i, &own), k->first);
	LoopValue before = lb_accumulator(lb, ACC_ADD, S64);
	LoopValue is = lb_binary(lb, LOOP_and, lb_compare(lb, LOOP_ge, key, lb_int(lb, S64, 0)),
	                         lb_compare(lb, LOOP_lt, key, k->first));

	lb_accumulate(lb, before, lb_select(lb, is, lb_int(lb, S64, 1), lb_int(lb, S64, 0)));
	lb_end(lb);
	return before;
}

/* Opens a loop over the part's own updates, from the last to the first. Returns the place of begin[] for the
 * index of update *i. */
static Affine
open_own(const Segments *s, const Keys *k, LoopValue *i)
{
	LoopBuilder *lb = s->lw->lb;
	LoopValue own;

	Affine later = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, s->updates));
	*i = lb_affine(lb, affine_plus(affine_scale(lb, later, -1), s->updates - 1));
	lb_within(lb, *i, s->updates);
	LoopValue key = key_of(s, k, *i, &own);
	lb_if(lb, own);
	return affine_add(lb, k->begin, affine_scalar(lb, clamped(lb, key, k->width)));
}

static void
close_own(const Segments *s)
{
	lb_end(s->lw->lb);
	lb_end(s->lw->lb);
}

/* Stores `end` as begin[keys]. The order has an entry for each update, so some are left over if
 * indices are invalid. These are set to 0; no kernel reads them. */
static void
close_order(const Segments *s, LoopValue end)
{
	LoopBuilder *lb = s->lw->lb;
	Affine left = affine_plus(affine_scale(lb, affine_scalar(lb, end), -1), s->updates);

	lb_store(lb, s->scratch, affine_constant(s->keys), end);
	LoopValue i = lb_for_below(lb, LOOP_PLAIN, s->updates, left);
	LoopValue at = lb_binary(lb, LOOP_add, end, i);
	Affine to = affine_plus(affine_scalar(lb, clamped(lb, at, s->updates)), s->keys + 1);
	lb_store(lb, s->scratch, to, lb_int(lb, S64, 0));
	lb_end(lb);
}

/* Counting sort (Knuth, TAOCP 5.2 algorithm D): counts the updates of each index, adds up where each segment
 * ends, and then goes from the last update to the first, filling each segment from its end. */
static void
scatter_prepare(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Segments s = segments_of(lw, n);
	const ScatterTiles *t = &lw->target->tuning->scatter;
	int64_t most = (s.keys + t->least_keys - 1) / t->least_keys;
	int64_t parts = most < t->most_sorting_parts ? most : t->most_sorting_parts;
	Keys k = {.width = (s.keys + parts - 1) / parts};
	int running = lb_local(lb, S64, 1);
	Affine zero = affine_constant(0);
	LoopValue i;

	parts = (s.keys + k.width - 1) / k.width;
	LoopValue part = lb_for(lb, LOOP_PARALLEL, parts);
	Affine first = affine_scale(lb, affine_scalar(lb, part), k.width);
	Affine left = affine_plus(affine_scale(lb, first, -1), s.keys);
	k.first = lb_affine(lb, first);
	k.count = lb_binary(lb, LOOP_min, lb_affine(lb, left), lb_int(lb, S64, k.width));
	k.begin = first;
	LoopValue j = lb_for_below(lb, LOOP_VECTOR, k.width, left);
	lb_store(lb, s.scratch, affine_add(lb, first, affine_scalar(lb, j)), lb_int(lb, S64, 0));
	lb_end(lb);
	Affine at = open_own(&s, &k, &i);
	LoopValue one_more = lb_binary(lb, LOOP_add, lb_load(lb, s.scratch, at),
	                               lb_int(lb, S64, 1));
	lb_store(lb, s.scratch, at, one_more);
	close_own(&s);
	lb_store(lb, running, zero, count_before(&s, &k));
	j = lb_for_below(lb, LOOP_PLAIN, k.width, left);
	Affine place = affine_add(lb, first, affine_scalar(lb, j));
	LoopValue end = lb_binary(lb, LOOP_add, lb_load(lb, running, zero),
	                          lb_load(lb, s.scratch, place));
	lb_store(lb, running, zero, end);
	lb_store(lb, s.scratch, place, end);
	lb_end(lb);
	lb_if(lb, lb_compare(lb, LOOP_eq, part, lb_int(lb, S64, parts - 1)));
	close_order(&s, lb_load(lb, running, zero));
	lb_end(lb);
	at = open_own(&s, &k, &i);
	LoopValue to = lb_binary(lb, LOOP_sub, lb_load(lb, s.scratch, at), lb_int(lb, S64, 1));
	to = clamped(lb, to, s.updates);
	lb_store(lb, s.scratch, affine_plus(affine_scalar(lb, to), s.keys + 1), i);
	lb_store(lb, s.scratch, at, to);
	close_own(&s);
	lb_end(lb);
}

/* ---- for sorted indices */
/* begin[key] = how many indices are less than key. Bisection: starts at 0 and tries to add powers
 * of two, from the largest on; a power is added if the index just before the new place is still
 * less than key. */
static void
find_begin(const Segments *s, Affine key, int count)
{
	LoopBuilder *lb = s->lw->lb;
	const Value *indices = node_operand(s->node, 1);
	Affine zero = affine_constant(0);
	int64_t steps = 1;
	Index at = {.rank = 1};

	while (1ll << steps <= s->updates)
		steps++;
	lb_store(lb, count, zero, lb_int(lb, S64, 0));
	LoopValue t = lb_for(lb, LOOP_PLAIN, steps), old = lb_load(lb, count, zero);
	LoopValue step = lb_binary(lb, LOOP_shr, lb_int(lb, S64, 1ll << (steps - 1)), t);
	LoopValue next = lb_binary(lb, LOOP_add, old, step);
	LoopValue is = lb_compare(lb, LOOP_le, next, lb_int(lb, S64, s->updates));
	at.at[0] = affine_plus(affine_scalar(lb, next), -1);
	LoopValue x = lb_cast(lb, S64, lower_element_inside(s->lw, indices, &at, is));
	LoopValue less = lb_compare(lb, LOOP_lt, x, lb_affine(lb, key));
	is = lb_binary(lb, LOOP_and, is, less);
	lb_store(lb, count, zero, lb_select(lb, is, next, old));
	lb_end(lb);
	lb_store(lb, s->scratch, key, lb_load(lb, count, zero));
}

/* Each member does one bisection: there is one for every index, and one for the end. */
static void
scatter_sorted_prepare(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Segments s = segments_of(lw, n);
	bool team = team_begin(lw);
	int64_t block = team ? lb->k->team[0] : lw->target->tuning->scatter.least_keys;
	int count = lines_number(lw);
	Spread lane;

	LoopValue part = lb_for(lb, LOOP_PARALLEL, ceil_div(s.keys + 1, block));
	Affine first = affine_scale(lb, affine_scalar(lb, part), block);
	Affine left = affine_plus(affine_scale(lb, first, -1), s.keys + 1);
	Affine own = lines_share(lw, block, &left, &lane);
	find_begin(&s, affine_add(lb, first, own), count);
	spread_close(&lane);
	lb_end(lb);
}

/* ---- the slices: [axes before, index, axes after] */
static LoopValue
combine(LoopBuilder *lb, ScatterKind kind, LoopValue x, LoopValue y)
{
	static const LoopOp ops[] = {[SCATTER_ADD] = LOOP_add,
	                             [SCATTER_MUL] = LOOP_mul,
	                             [SCATTER_MAX] = LOOP_max,
	                             [SCATTER_MIN] = LOOP_min};

	return kind == SCATTER_SET ? y : lb_binary(lb, ops[kind], x, y);
}

static LoopValue
identity(LoopBuilder *lb, ScatterKind kind, DType storage)
{
	static const AccumulateKind kinds[] = {[SCATTER_ADD] = ACC_ADD,
	                                       [SCATTER_MUL] = ACC_MUL,
	                                       [SCATTER_MAX] = ACC_MAX,
	                                       [SCATTER_MIN] = ACC_MIN};

	return kind == SCATTER_SET ? lb_number(lb, compute_type(storage), 0)
	                           : lb_identity(lb, kinds[kind], storage);
}

/* An element of the result: its number over the axes before the index, its index, and its number
 * over the axes after the index. */
typedef struct {
	Affine outer, key, inner;
} Place;

/* The element of update i for this element of the result. The updates have their own axes
 * instead of the index's axis. */
static LoopValue
update_element(const Segments *s, const Place *p, Affine i)
{
	LoopBuilder *lb = s->lw->lb;
	const ScatterAttr *a = s->node->attr;
	const Value *updates = node_operand(s->node, 2);
	Type t = updates->type;
	int rank = node_operand(s->node, 1)->type->rank, behind = (int)a->axis + rank;
	Index outer, given, inner, at = {.rank = t->rank};

	index_split(lb, type_new(s->lw->m, S64, (int)a->axis, t->dims), p->outer, &outer);
	index_split(lb, node_operand(s->node, 1)->type, i, &given);
	index_split(lb, type_new(s->lw->m, S64, t->rank - behind, t->dims + behind), p->inner,
	            &inner);
	for (int k = 0; k < t->rank; k++)
		at.at[k] = k < a->axis  ? outer.at[k]
		           : k < behind ? given.at[k - a->axis]
		                        : inner.at[k - behind];
	return lower_element(s->lw, updates, &at);
}

/* The number of the update at place begin + j of the sorted order. */
static Affine
sorted_update(const Segments *s, LoopValue begin, LoopValue j)
{
	LoopBuilder *lb = s->lw->lb;
	LoopValue at = clamped(lb, lb_binary(lb, LOOP_add, begin, j), s->updates), number;
	Affine place = affine_scalar(lb, at);

	if (s->sorted)
		number = lower_element(s->lw, node_operand(s->node, 3),
		                       &(Index){.rank = 1, .at = {place}});
	else
		number = lb_load(lb, s->scratch, affine_plus(place, s->keys + 1));
	return affine_scalar(lb, clamped(lb, number, s->updates));
}

/* Local arrays of a part: a slice of the result, and its combined updates. */
typedef struct {
	int slice, updates;
} Arrays;

/* Combines the updates of slice p in order in arrays->updates, then combines these with the old
 * data in arrays->slice. width: elements of the slice that this part has. */
static void
combine_segment(const Segments *s, Place p, int64_t width, const Arrays *arrays)
{
	LoopBuilder *lb = s->lw->lb;
	ScatterKind kind = ((const ScatterAttr *)s->node->attr)->kind;
	DType dtype = node_operand(s->node, 0)->type->dtype;
	LoopValue begin = lb_load(lb, s->scratch, p.key);
	LoopValue end = lb_load(lb, s->scratch, affine_plus(p.key, 1));
	LoopValue count = lb_binary(lb, LOOP_sub, end, begin);
	Affine first = p.inner;

	lb_if(lb, lb_compare(lb, LOOP_gt, count, lb_int(lb, S64, 0)));
	Spread lane = spread_open(s->lw, width, NULL);
	lb_store(lb, arrays->updates, spread_enter(&lane), identity(lb, kind, dtype));
	spread_close(&lane);
	LoopValue j = lb_for_below(lb, LOOP_PLAIN, s->updates, affine_scalar(lb, count));
	Affine i = sorted_update(s, begin, j);
	lane = spread_open(s->lw, width, NULL);
	Affine w = spread_enter(&lane);
	p.inner = affine_add(lb, first, w);
	LoopValue u = update_element(s, &p, i), x = lb_load(lb, arrays->updates, w);
	lb_store(lb, arrays->updates, w, combine(lb, kind, x, u));
	spread_close(&lane);
	lb_end(lb);
	lane = spread_open(s->lw, width, NULL);
	w = spread_enter(&lane);
	x = lb_load(lb, arrays->slice, w);
	lb_store(lb, arrays->slice, w, combine(lb, kind, x, lb_load(lb, arrays->updates, w)));
	spread_close(&lane);
	lb_end(lb);
}

/* Stores `width` elements of a slice, from p.inner on. The whole slice has `inner` elements. */
static void
make_slice(const Segments *s, Place p, int64_t width, int64_t inner, const Arrays *arrays)
{
	LoopBuilder *lb = s->lw->lb;
	const Value *data = node_operand(s->node, 0);
	Affine slice = affine_add(lb, affine_scale(lb, p.outer, s->keys), p.key);
	Affine first = affine_add(lb, affine_scale(lb, slice, inner), p.inner);
	Index at;

	Spread lane = spread_open(s->lw, width, NULL);
	Affine w = spread_enter(&lane);
	index_split(lb, data->type, affine_add(lb, first, w), &at);
	lb_store(lb, arrays->slice, w, lower_element(s->lw, data, &at));
	spread_close(&lane);
	combine_segment(s, p, width, arrays);
	lane = spread_open(s->lw, width, NULL);
	w = spread_enter(&lane);
	lb_store(lb, lower_buffer(s->lw, node_result(s->node, 0)), affine_add(lb, first, w),
	         lb_load(lb, arrays->slice, w));
	spread_close(&lane);
}

/* Copies the data, if there is nothing to combine. */
static void
copy_data(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	const Value *data = node_operand(n, 0);
	Affine i = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, data->type->n));
	Index at;

	index_split(lb, data->type, i, &at);
	lb_store(lb, lower_buffer(lw, node_result(n, 0)), i, lower_element(lw, data, &at));
	lb_end(lb);
}

/* How many elements of a slice a part has. */
static int64_t
width_of(const Lower *lw, int64_t slices, int64_t inner)
{
	const ScatterTiles *t = &lw->target->tuning->scatter;
	int64_t width = inner < t->most_width ? inner : t->most_width;
	int64_t pieces = slices ? (lw->parts + slices - 1) / slices : 1, even = inner / pieces;

	even = even < t->least_width ? t->least_width : even;
	return even < width ? even : width;
}

static void
scatter_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Segments s = segments_of(lw, n);
	Type data = node_operand(n, 0)->type;
	int64_t inner = 1, outer = 1, axis = ((const ScatterAttr *)n->attr)->axis;

	if (s.scratch < 0) {
		copy_data(lw, n);
		return;
	}
	for (int i = 0; i < data->rank; i++)
		*(i < axis ? &outer : &inner) *= i == axis ? 1 : data->dims[i];
	int64_t width = width_of(lw, outer * s.keys, inner);
	int64_t least = lw->target->tuning->scatter.least_elements;
	int64_t rows = width == inner && width < least ? least / width : 1;
	rows = rows < s.keys ? rows : s.keys;
	DType type = compute_type(data->dtype);
	team_begin_for(lw, width);
	Arrays arrays = {lb_local(lb, type, width), lb_local(lb, type, width)};
	Place p = {.outer = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, outer))};
	Affine block = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, (s.keys + rows - 1) / rows));
	Affine column = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, (inner + width - 1) / width));
	Affine first = affine_scale(lb, block, rows),
	       left = affine_plus(affine_scale(lb, first, -1), s.keys);
	LoopValue row = s.keys % rows ? lb_for_below(lb, LOOP_PLAIN, rows, left)
	                              : lb_for(lb, LOOP_PLAIN, rows);
	p.key = affine_add(lb, first, affine_scalar(lb, row));
	for (Pieces w = piece_of(lb, inner, width, column); w.size; pieces_next(&w)) {
		p.inner = affine_scale(lb, w.number, width);
		make_slice(&s, p, w.size, inner, &arrays);
	}
	for (int i = 0; i < 4; i++)
		lb_end(lb);
}

const Strategy strategy_scatter = {.op = OP_scatter,
                                   .kinds = ON_EVERY_KIND,
                                   .doc = "sorts updates; each slice combines its segment",
                                   .emit = scatter_kernel,
                                   .scratch = scatter_scratch,
                                   .prepare = scatter_prepare};

const Strategy strategy_scatter_sorted = {
	.op = OP_scatter_sorted,
	.kinds = ON_EVERY_KIND,
	.doc = "finds segments of sorted updates by bisection; each slice combines its segment",
	.emit = scatter_kernel,
	.scratch = scatter_scratch,
	.prepare = scatter_sorted_prepare};
