/* The pass `merge_sums`: computes sums over the same large tensor in one read of the tensor, where one sum needs the
 * result of another. Example: a batch norm sums x for the mean, and then (x - mean)^2 for the variance. Its gradient
 * sums dy, dy * (x - mean), and then a linear combination of both tensors. Here each of the two takes one read.
 *
 * Squares of distances. A row is all elements that are added to one sum; n is their number, m the mean of a row, and k
 * the element in the middle of the row:
 *
 *	e = x - k   s1 = sum(e)   s2 = sum(e^2)   sum(x) = n k + s1   sum((x - m)^2) = s2 - (m - k) (2 s1 - n (m - k))
 *
 * The error of this sum, relative to it, is at most 3 (c + 4) u (1 + (m - k)^2 / variance), where u is 2^-24 in f32, and
 * c additions follow one another. The error of m adds n (error of m)^2, as it does if distances are summed after m is
 * known. A mean that is large costs nothing; an element k that is far from the mean does. Of rows with a normal
 * distribution, 19 of 20 have (m - k)^2 < 4 variance. The most that a row can have is n - 1 times the variance.
 *
 * Linear combinations. If a, b and c do not change along a row: sum(a y + b (x - c)) = a sum(y) + b sum(x - c). Where c is
 * the mean m of the row, sum(x - m) = sum(x) - n m. Other centres stay inside the sum: if all of a row's elements are close
 * to c, sum(x) and n c are large numbers that are almost equal.
 *
 * Sums of rows that a kernel keeps in registers or team memory stay as they are, because such a kernel reads a row once
 * anyway. Takes linear time in the number of nodes. */
#include "codegen/codegen.h"
#include "codegen/legalize/rewrites.h"

enum { MOST_TERMS = 32 };

typedef struct {
	const Target *target;
	int64_t parts; /* parts that a large kernel should have */
	Arena *arena;
	/* By value id: how many long sums (is_long_sum) are computed one after the other before the value. A kernel
	 * that reads a tensor for a sum of depth d can compute other sums of depth d in the same read. */
	int *depth;
	int *place; /* by value id: the place of its node in the function */
	uint32_t
		n_values; /* later values, which this pass makes, have neither depth nor place, so they are no terms */
	IntMap *merged; /* by value id of x: its sum, which merge_squares computes in another way */
} Merge;
/* sum_{axes} x, as merge_squares computes it. */
typedef struct {
	Ints axes;
	Value *sum;
	int place; /* of the sum that it replaces */
} MergedSum;

static const Ints *
reduced_axes(const Node *sum)
{
	return &((const ReduceAttr *)sum->attr)->axes;
}

/* Number of elements that are added to one sum. */
static int64_t
row_elements(const Node *sum)
{
	int64_t sums = node_result(sum, 0)->type->n;

	return sums ? node_operand(sum, 0)->type->n / sums : 0;
}

static bool
sums_last_axes(const Node *sum)
{
	const Ints *axes = reduced_axes(sum);

	return axes->n > 0 && axes->at[0] == node_operand(sum, 0)->type->rank - axes->n;
}

/* Does one kernel compute whole rows, and keep each row near until all its sums are known? */
static bool
keeps_row_near(const Merge *s, const Node *sum)
{
	const ReduceTiles *tiles = &s->target->tuning->reduce;
	int64_t most = sums_last_axes(sum) ? tiles->long_row : tiles->near_row;

	return !reduce_is_by_column(sum) && row_elements(sum) <= most &&
	       node_result(sum, 0)->type->n >= reduce_rows_enough(s->target, sum, s->parts);
}

/* Is n a sum of f32 or f64 whose operand a kernel reads from memory only for this sum and others of the same depth? */
static bool
is_long_sum(const Merge *s, const Node *n)
{
	if (op_row(n)->fuse != FUSE_REDUCE || ((const ReduceAttr *)n->attr)->kind != REDUCE_SUM)
		return false;
	Type x = node_operand(n, 0)->type;
	return (x->dtype == F32 || x->dtype == F64) &&
	       x->n >= s->target->tuning->grains.large / 4 && !keeps_row_near(s, n);
}

static int
depth_of(const Merge *s, const Value *v)
{
	return v->id < s->n_values ? s->depth[v->id] : 0;
}

static void
place_node(Merge *s, const Node *n, int place)
{
	int most = 0;

	for (int i = 0; i < n->n_operands; i++)
		if (node_operand(n, i) && depth_of(s, node_operand(n, i)) > most)
			most = depth_of(s, node_operand(n, i));
	for (int i = 0; i < n->n_results; i++) {
		s->depth[node_result(n, i)->id] = most + is_long_sum(s, n);
		s->place[node_result(n, i)->id] = place;
	}
}

/* ---- values that do not change along a row: broadcasts along the reduced axes */
static bool
is_constant_along(const Value *v, const Ints *axes)
{
	if (!v->node || v->node->op != OP_broadcast)
		return false;
	const BroadcastAttr *a = v->node->attr;
	for (int i = 0; i < a->axes.n; i++)
		if (ints_has(axes, a->axes.at[i]))
			return false;
	return true;
}

/* One element of each row, with the shape of the sums. is_constant_along(v) is true. */
static Value *
element_of_rows(Builder *b, const Value *v, const Node *sum)
{
	Ints axes = ((const BroadcastAttr *)v->node->attr)->axes, kept = axes;

	for (int i = 0; i < axes.n; i++)
		for (int k = 0; k < axes.at[i]; k++)
			kept.at[i] -= ints_has(reduced_axes(sum), k);
	return b_broadcast(b, node_operand(v->node, 0), ints_of_type(node_result(sum, 0)->type),
	                   kept);
}

/* ---- squares of distances */
/* x - m, where m does not change along a row and is known only after another sum over x. NULL: v is something else. */
static const Node *
distance_from_mean(const Merge *s, const Value *v, const Ints *axes)
{
	const Node *square = v->node, *d;

	if (!square || square->op != OP_mul || node_operand(square, 0) != node_operand(square, 1))
		return NULL;
	d = node_operand(square, 0)->node;
	if (!d || d->op != OP_sub || !is_constant_along(node_operand(d, 1), axes) ||
	    depth_of(s, node_operand(d, 1)) <= depth_of(s, node_operand(d, 0)))
		return NULL;
	return d;
}

static bool
same_axes(const Ints *a, const Ints *b)
{
	bool same = a->n == b->n;

	for (int i = 0; same && i < a->n; i++)
		same = a->at[i] == b->at[i];
	return same;
}

static int
place_of(const Merge *s, const Value *v)
{
	return v->id < s->n_values ? s->place[v->id] : 0;
}

/* The sum of x over the same axes that comes before `later`. NULL: there is no such sum. */
static Node *
sum_before(const Merge *s, const Value *x, const Node *later)
{
	for_each_use(x, u) {
		Node *n = u->user;
		const Value *y = n->n_results ? node_result(n, 0) : NULL;
		if (y && y->id < s->n_values && is_long_sum(s, n) &&
		    same_axes(reduced_axes(n), reduced_axes(later)) &&
		    place_of(s, y) < place_of(s, node_result(later, 0)) &&
		    depth_of(s, y) < depth_of(s, node_result(later, 0)))
			return n;
	}
	return NULL;
}

/* The element in the middle of each row. The first one is a worse sample: at the border of an image, convolutions read
 * zeros. */
static Value *
middle_of_rows(Builder *b, Value *x, const Node *sum)
{
	Ints start = {.n = x->type->rank}, stop = ints_of_type(x->type),
	     step = {.n = x->type->rank};

	for (int i = 0; i < x->type->rank; i++) {
		step.at[i] = 1;
		if (!ints_has(reduced_axes(sum), i))
			continue;
		start.at[i] = x->type->dims[i] / 2;
		stop.at[i] = start.at[i] + 1;
	}
	return b_reshape(b, b_slice(b, x, start, stop, step),
	                 ints_of_type(node_result(sum, 0)->type));
}

/* Rewrites squares = sum((x - m)^2), and the sum of x that m depends on, to two sums of one read. */
static bool
merge_squares(const Merge *s, Node *squares)
{
	const Node *d = distance_from_mean(s, node_operand(squares, 0), reduced_axes(squares));
	Node *first = d ? sum_before(s, node_operand(d, 0), squares) : NULL;

	if (!first)
		return false;
	Builder b = builder_before(first);
	Value *x = node_operand(d, 0), *mean = node_operand(d, 1);
	double n = (double)row_elements(squares);
	Value *k = middle_of_rows(&b, x, first);
	Value *e = b_binary(&b, OP_sub, x, b_broadcast_back(&b, k, x->type, *reduced_axes(first)));
	Value *s1 = b_reduce(&b, REDUCE_SUM, e, *reduced_axes(first));
	Value *s2 = b_reduce(&b, REDUCE_SUM, b_binary(&b, OP_mul, e, e), *reduced_axes(first));
	Value *sum = b_binary(&b, OP_add, s1, b_with(&b, OP_mul, k, n));

	MergedSum *merged = NEW(s->arena, MergedSum);
	*merged = (MergedSum){*reduced_axes(first), sum, place_of(s, node_result(first, 0))};
	intmap_put(s->merged, x->id, (uint64_t)(uintptr_t)merged);
	value_replace_uses(node_result(first, 0), sum);
	node_erase(first);
	b = builder_before(squares);
	Value *m = element_of_rows(&b, mean, squares);
	Value *distance = b_binary(&b, OP_sub, m, k);
	Value *rest = b_binary(&b, OP_sub, b_binary(&b, OP_add, s1, s1),
	                       b_with(&b, OP_mul, distance, n));
	Value *y = b_binary(&b, OP_sub, s2, b_binary(&b, OP_mul, distance, rest));
	/* rounding may leave less than 0 */
	value_replace_uses(node_result(squares, 0),
	                   b_binary(&b, OP_max, y, b_number_like(&b, y, 0)));
	node_erase(squares);
	return true;
}

/* ---- sums of linear combinations */
typedef struct {
	const Merge *merge;
	Node *sum;
	Builder b;
	IntMap *sums; /* by value id: the sum of a term */
	int n_terms;
	/* the last node of a term, a factor or a known sum, and its place: sums can be computed after it */
	Node *last;
	int last_place;
	bool builds; /* false: only asks whether every term can be summed earlier than `sum` */
} Linear;

static Value *sum_of(Linear *l, Value *v);

static void
note_node(Linear *l, Node *n, int place)
{
	if (n && (!l->last || l->last_place < place)) {
		l->last = n;
		l->last_place = place;
	}
}

/* Takes note of a term or factor. */
static void
note_term(Linear *l, const Value *v)
{
	note_node(l, v->node, place_of(l->merge, v));
}

/* The sum of v that merge_squares has made. NULL: there is none over these axes. */
static const MergedSum *
merged_sum(const Linear *l, const Value *v)
{
	uint64_t known;

	if (!intmap_get(l->merge->merged, v->id, &known))
		return NULL;
	const MergedSum *m = (const MergedSum *)(uintptr_t)known;
	return same_axes(&m->axes, reduced_axes(l->sum)) ? m : NULL;
}

/* The value whose elements v has in another shape. */
static const Value *
before_reshapes(const Value *v)
{
	while (v->node && v->node->op == OP_reshape)
		v = node_operand(v->node, 0);
	return v;
}

/* Is c, which does not change along a row, the mean of x? */
static bool
is_mean_of(const Linear *l, const Value *c, const Value *x)
{
	const MergedSum *merged = merged_sum(l, x);
	const Node *mean = before_reshapes(node_operand(c->node, 0))->node;
	double n;

	return merged && mean && mean->op == OP_div &&
	       before_reshapes(node_operand(mean, 0)) == merged->sum &&
	       value_splat(node_operand(mean, 1), &n) && n == (double)row_elements(l->sum);
}

/* Is the sum of n, an addition or a difference, as exact if it comes from the sums of both operands? */
static bool
is_sum_of_terms(const Linear *l, const Node *n)
{
	const Value *x = node_operand(n, 0), *y = node_operand(n, 1);
	const Ints *axes = reduced_axes(l->sum);

	if (is_constant_along(y, axes))
		return n->op == OP_sub && is_mean_of(l, y, x);
	return !is_constant_along(x, axes);
}

/* The sum of op(x, y), from the sums of x and y. */
static Value *
sum_of_both(Linear *l, const Node *n)
{
	Value *x = sum_of(l, node_operand(n, 0)), *y = x ? sum_of(l, node_operand(n, 1)) : NULL;

	return x && y && l->builds ? b_binary(&l->b, n->op, x, y) : y;
}

/* The sum of op(v, c), where c does not change along a row. */
static Value *
sum_of_scaled(Linear *l, const Node *n, Value *v, const Value *c)
{
	Value *x = sum_of(l, v);

	note_term(l, c);
	return x && l->builds ? b_binary(&l->b, n->op, x, element_of_rows(&l->b, c, l->sum)) : x;
}

/* The sum of a term that is no combination of others. NULL: it is not known earlier than the whole sum. */
static Value *
sum_of_term(Linear *l, Value *v)
{
	const Merge *s = l->merge;
	const MergedSum *merged = merged_sum(l, v);

	note_term(l, v);
	if (is_constant_along(v, reduced_axes(l->sum)))
		return l->builds ? b_with(&l->b, OP_mul, element_of_rows(&l->b, v, l->sum),
		                          (double)row_elements(l->sum))
		                 : v;
	if (depth_of(s, v) + 1 >= depth_of(s, node_result(l->sum, 0)))
		return NULL;
	if (merged) {
		note_node(l, merged->sum->node, merged->place);
		return merged->sum;
	}
	return l->builds ? b_reduce(&l->b, REDUCE_SUM, v, *reduced_axes(l->sum)) : v;
}

static Value *
sum_by_op(Linear *l, Value *v)
{
	const Ints *axes = reduced_axes(l->sum);
	const Node *n = v->node;

	if (!n || is_constant_along(v, axes) || merged_sum(l, v))
		return sum_of_term(l, v);
	if (v->id >= l->merge->n_values)
		return NULL;
	if (n->op == OP_add || n->op == OP_sub)
		return is_sum_of_terms(l, n) ? sum_of_both(l, n) : sum_of_term(l, v);
	if ((n->op == OP_mul || n->op == OP_div) && is_constant_along(node_operand(n, 1), axes))
		return sum_of_scaled(l, n, node_operand(n, 0), node_operand(n, 1));
	if (n->op == OP_mul && is_constant_along(node_operand(n, 0), axes))
		return sum_of_scaled(l, n, node_operand(n, 1), node_operand(n, 0));
	if (n->op == OP_neg) {
		Value *x = sum_of(l, node_operand(n, 0));
		return x && l->builds ? b_unary(&l->b, OP_neg, x) : x;
	}
	return sum_of_term(l, v);
}

/* The sum of v along the rows of l->sum. NULL: v is no combination of terms that can be summed earlier. */
static Value *
sum_of(Linear *l, Value *v)
{
	uint64_t known;

	if (intmap_get(l->sums, v->id, &known))
		return (Value *)(uintptr_t)known;
	Value *y = ++l->n_terms <= MOST_TERMS ? sum_by_op(l, v) : NULL;
	intmap_put(l->sums, v->id, (uint64_t)(uintptr_t)y);
	return y;
}

static bool
merge_linear(const Merge *s, Node *sum)
{
	Linear l = {.merge = s, .sum = sum, .sums = intmap_new(s->arena)};
	Value *x = node_operand(sum, 0);

	if (!sum_of(&l, x))
		return false;
	/* Before the combination itself, so that the kernel that computes it can use its sum, too. */
	Builder b = builder_before(sum);
	b.before = l.last ? l.last->next : b.before;
	l = (Linear){.merge = s, .sum = sum, .b = b, .sums = intmap_new(s->arena), .builds = true};
	value_replace_uses(node_result(sum, 0), sum_of(&l, x));
	node_erase(sum);
	return true;
}

static bool
merge_sums(Merge *s, Function *f)
{
	bool changed = false;
	int place = 0;

	s->n_values = f->next_value_id;
	s->depth = NEW_ARRAY(s->arena, int, s->n_values);
	s->place = NEW_ARRAY(s->arena, int, s->n_values);
	s->merged = intmap_new(s->arena);
	for_each_node(f, n)
		place_node(s, n, place++);
	for_each_node(f, n)
		if (is_long_sum(s, n))
			changed |= merge_squares(s, n) || merge_linear(s, n);
	return changed;
}

static bool
run_merge_sums(Pass *p, Module *m)
{
	const TargetOptions *o = p->options;

	if (!pass_check_cores(p))
		return false;
	for_each_function(m, f) {
		const Target *target = pass_target(p, f);
		if (!target)
			return false;
		Merge s = {.target = target,
		           .parts = target_parts(target, o->cores),
		           .arena = p->scratch};
		if (target->tuning->reduce.merge_sums && f->kind == FUNCTION_PLAIN)
			p->changed |= merge_sums(&s, f);
	}
	return true;
}

const PassRow pass_merge_sums = {
	.name = "merge_sums",
	.help = "compute sums over the same tensor in one read of it, on GPUs",
	.takes = STAGE_TRAIN,
	.leaves = STAGE_ANY,
	.options = target_options,
	.options_size = sizeof(TargetOptions),
	.defaults = &target_defaults,
	.run = run_merge_sums};
