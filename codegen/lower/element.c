/* Computes the element of a value at an index: emits the code of the nodes that compute it, from
 * loads of the kernel's inputs on. If code for the same element was emitted before and its scalar
 * is still visible (not defined in a closed loop), the scalar is used again. */
#include "codegen/lower/nest.h"
#include "codegen/strategy/strategy.h"

enum { MOST_ROUNDED_STEPS = 6 /* nodes from a number of 16 bits to an exp, with the exp */ };

struct MemoEntry {
	const Node *node;
	int rank;
	const Affine *at; /* by axis */
	LoopValue scalar;
};

Index
index_at(Lower *lw, Type t, Affine flat)
{
	Index at;

	index_split(lw->lb, t, flat, &at);
	return at;
}

static uint64_t
index_hash(const Node *n, const Index *at)
{
	uint64_t h = hash_mix(n->id, (uint64_t)at->rank);

	for (int i = 0; i < at->rank; i++) {
		h = hash_mix(h, (uint64_t)at->at[i].constant);
		for (int k = 0; k < at->at[i].n; k++)
			h = hash_mix(h, hash_mix((uint64_t)at->at[i].terms[k].coefficient,
			                         (uint64_t)at->at[i].terms[k].scalar));
	}
	return h;
}

static bool
is_at(const struct MemoEntry *e, const Index *at)
{
	for (int i = 0; i < e->rank && i < at->rank; i++)
		if (!affine_same(&e->at[i], &at->at[i]))
			return false;
	return e->rank == at->rank;
}

static LoopValue
memo_get(Lower *lw, const Node *n, const Index *at)
{
	struct LowerState *st = lw->state;
	uint64_t i;

	if (!intmap_get(st->memo, index_hash(n, at), &i))
		return -1;
	struct MemoEntry *e = &st->entries.at[i];
	bool alive = lw->lb->block_open.at[lw->lb->scopes.at[e->scalar]];
	return alive && e->node == n && is_at(e, at) ? e->scalar : -1;
}

static void
memo_put(Lower *lw, const Node *n, const Index *at, LoopValue scalar)
{
	struct LowerState *st = lw->state;
	if (lw->masked) /* the scalar is valid for this mask only */
		return;
	const Affine *axes = arena_copy(st->scratch, at->at, sizeof(Affine) * (size_t)at->rank);
	struct MemoEntry e = {n, at->rank, axes, scalar};

	intmap_put(st->memo, index_hash(n, at), (uint64_t)st->entries.n);
	vec_push(st->scratch, &st->entries, e);
}

static LoopValue
element_of_param(Lower *lw, const Value *v, const Index *at)
{
	LoopBuilder *lb = lw->lb;
	struct LowerState *st = lw->state;

	if (st->hyper[v->id] >= 0)
		return lb_scalar(lb, st->hyper[v->id]);
	Affine place = index_flat(lb, v->type, at);
	if (lw->masked)
		return lb_load_if(lb, st->buffers[v->id], place, lw->inside);
	for (int i = 0; i < st->n_brought; i++) {
		const Brought *b = &st->brought[i];
		if (b->buffer == st->buffers[v->id] && affine_same(&b->place, &place))
			return lb_load(lb, b->array, b->place_in_array);
	}
	return lb_load(lb, st->buffers[v->id], place);
}

static LoopValue
element_of_reduction(Lower *lw, const Node *n)
{
	struct LowerState *st = lw->state;

	LoopValue x = st->reduced[n->id] == REDUCED_SCALAR
	                      ? st->reduced_at[n->id]
	                      : lb_load(lw->lb, st->reduced_at[n->id], st->column);
	return lb_narrow(lw->lb, node_result(n, 0)->type->dtype, x);
}

static bool
is_small_float(DType d)
{
	return dtype_is_float(d) && dtype_info[d].bits <= 16;
}

/* Are all readers of v casts to floats of 16 bits or fewer, or has v such a type? */
static bool
is_rounded(const Value *v)
{
	bool any = false;

	if (is_small_float(v->type->dtype))
		return true;
	for_each_use(v, u) {
		const Value *y = u->user->n_results ? node_result(u->user, 0) : NULL;
		if (!y || value_cast_of(y) != v || !is_small_float(y->type->dtype))
			return false;
		any = true;
	}
	return any;
}

/* Is v computed from floats of 16 bits or fewer alone, and from constants, as logits less their maximum? */
static bool
is_from_rounded(const Value *v, int depth)
{
	const Node *n = v->node;
	double splat;

	if (is_small_float(v->type->dtype) || value_splat(v, &splat))
		return true;
	const ReduceAttr *reduce = n && op_row(n)->fuse == FUSE_REDUCE ? n->attr : NULL;
	if (!n || depth == 0 ||
	    !(op_row(n)->fuse == FUSE_ELEMENTWISE || op_row(n)->fuse == FUSE_VIEW ||
	      (reduce && (reduce->kind == REDUCE_MAX || reduce->kind == REDUCE_MIN))))
		return false;
	for (int i = 0; i < n->n_operands; i++) {
		const Value *x = node_operand(n, i);
		if (x && dtype_is_float(x->type->dtype) && !is_from_rounded(x, depth - 1))
			return false;
	}
	return true;
}

/* May the row's exp and tanh be fast (ADR 41)? */
static bool
is_fast(const Lower *lw, const Node *n)
{
	const Value *y = node_result(n, 0);

	return lw->target->kind == TARGET_TEAMS && dtype_is_float(y->type->dtype) &&
	       (is_rounded(y) || is_from_rounded(y, MOST_ROUNDED_STEPS));
}

static LoopValue
element_by_row(Lower *lw, const Node *n, const Index *at)
{
	const OpRow *row = op_row(n);
	LoopValue x[MAX_OPERANDS];
	DType dtype = node_result(n, 0)->type->dtype;
	Index inner;

	if (row->fuse == FUSE_VIEW) {
		inner.of = NULL;
		row->map(lw->lb, n, at, &inner);
		return lower_element(lw, node_operand(n, 0), &inner);
	}
	if (row->fuse == FUSE_REDUCE) { /* a reduction over axes of one element: a copy */
		Affine flat = index_flat(lw->lb, node_result(n, 0)->type, at);
		inner = index_at(lw, node_operand(n, 0)->type, flat);
		return lower_element(lw, node_operand(n, 0), &inner);
	}
	if (!row->scalar)
		return lb_narrow(lw->lb, dtype, row->element(lw, n, at));
	for (int i = 0; i < n->n_operands; i++)
		x[i] = lower_element(lw, node_operand(n, i), at);
	bool before = lw->lb->fast;
	lw->lb->fast |= is_fast(lw, n);
	LoopValue made = row->scalar(lw->lb, n, x);
	lw->lb->fast = before;
	return lb_narrow(lw->lb, dtype, made);
}

/* Has v an array for the current row, and is `at` the element at which the loop over the row
 * stands? */
static bool
is_kept(Lower *lw, const Value *v, const Index *at)
{
	const struct LowerState *st = lw->state;

	if (!st->cache || st->cache[v->id] < 0 || (lw->masked && lw->lb->k->n_team))
		return false;
	Affine flat = index_flat(lw->lb, v->type, at);
	return affine_same(&flat, &st->full_flat);
}

LoopValue
kernel_element(Lower *lw, const Value *v, const Index *at)
{
	struct LowerState *st = lw->state;
	const Node *n = v->node;

	if (n && st->reduced && st->reduced[n->id])
		return element_of_reduction(lw, n);
	LoopValue known = n ? memo_get(lw, n, at) : -1;
	if (known >= 0)
		return known;
	bool kept = is_kept(lw, v, at);
	LoopValue x = kept && st->cached[v->id] == 2
	                      ? lb_load(lw->lb, st->cache[v->id], st->inner_flat)
	              : n ? element_by_row(lw, n, at)
	                  : element_of_param(lw, v, at);
	if (kept && !st->cached[v->id]) {
		if (st->taken_from[v->id] >= 0)
			vec_push(st->scratch, &st->late, ((LateStore){st->cache[v->id], x}));
		else
			lb_store(lw->lb, st->cache[v->id], st->inner_flat, x);
		st->cached[v->id] = 1;
	}
	if (n)
		memo_put(lw, n, at, x);
	return x;
}

int
lower_buffer(Lower *lw, const Value *v)
{
	return lw->state->buffers[v->id];
}

int
lower_scratch(Lower *lw)
{
	return lw->state->kernel_scratch;
}

const Value *
lower_stored(const Lower *lw)
{
	return node_operand(function_return(lw->f), 0);
}

void
lower_give_element(Lower *lw, const Node *n, const Index *at, LoopValue x)
{
	memo_put(lw, n, at, lb_narrow(lw->lb, node_result(n, 0)->type->dtype, x));
}

LoopValue
lower_stored_element(Lower *lw, const Node *n, Affine place, LoopValue x)
{
	const Value *v = lower_stored(lw);

	if (v->node == n)
		return x;
	Index at = index_at(lw, v->type, place);
	lower_give_element(lw, n, &at, x);
	return lower_element(lw, v, &at);
}

/* The element at an index that may lie outside of the value, as for a window at the edge of an
 * image. `inside` says whether the index lies inside; all loads are masked with `inside`. */
LoopValue
kernel_element_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside)
{
	LoopBuilder *lb = lw->lb;
	bool masked = lw->masked;
	LoopValue outer = lw->inside;

	if (inside < 0)
		return lower_element(lw, v, at);
	if (masked)
		inside = lb_binary(lb, LOOP_and, outer, inside);
	lw->masked = true;
	lw->inside = inside;
	LoopValue x = lower_element(lw, v, at);
	lw->masked = masked;
	lw->inside = outer;
	int made = lb->definitions.at[x];
	const LoopStatement *s = made >= 0 ? &lb->k->body.at[made] : NULL;
	if (s && s->kind == LOOP_STATEMENT_LOAD && s->n_operands && s->operands[0] == inside)
		return x;
	/* The element was computed, not loaded: select 0 where the mask is false. */
	return lb_select(lb, inside, x, lb_number(lb, lb_type(lb, x), 0));
}
