/* The pass `rematerialize`: a value that `fuse` would store for the backward pass is computed
 * again there, if that is cheap and the forward pass then keeps fewer bytes. Such values are
 * chains of elementwise nodes and views over a kept value, such as GELU over a product, or a
 * softmax over its scores. The copied chain reads the kept value through a node `barrier`, so
 * that `fuse` does not join it to kernels of the forward pass. After this pass the module has a
 * stage of its own (STAGE_REMATERIALIZED), in which passes that merge equal nodes leave these
 * copies apart.
 *
 * The idea is from Chen et al. 2016, arXiv:1604.06174; PyTorch's partitioner chooses by a minimum
 * cut. This pass handles the case that needs no search: a chain over one large leaf (a value in
 * memory from which the chain is computed). A kernel of the backward pass loads this leaf anyway,
 * and the leaf either stays in memory for other readers anyway, or is smaller than all values
 * together that are computed again from it. recompute.h judges the cost.
 *
 * Changes no number, except where a sum moves to another kernel and its additions are done in
 * another order. Needs the phases that autograd sets. Takes linear time in the number of nodes,
 * because the size of a chain is bounded. */
#include "codegen/codegen.h"
#include "codegen/fuse/recompute.h"
#include "codegen/fuse/spaces.h"
#include "codegen/fuse/store_plan.h"
#include "ir/groups/groups.h"

/* Groups of the backward pass that have loops. */
typedef VEC(int) Kernels;

/* The leaves that a value would be computed again from. */
typedef struct {
	int n; /* number of leaves; 0: the value is not computed again */
	Value *leaves[MAX_LEAVES];
	Value *missing; /* the only leaf, if nothing else keeps it; NULL: all leaves are kept */
} Source;

typedef struct {
	Arena *scratch;
	Function *f;
	const Target *target;
	const StorePlan *plan;
	/* by node id: is the node late, that is, does it run in the backward pass? */
	bool *late;
	bool *read_late; /* by value id: is it in memory, and does a late node read it? */
	bool *by_product; /* by value id: does a late node with loops of its own, such as a product, read it from memory? */
	/* by value id: groups that load the value, or that would load the value in order to
	 * compute others again from it */
	Kernels *kernels;
	IntMap *loaded; /* has kernel_key of each value and each group of `kernels` */
	bool *kept;     /* by value id: does it stay in memory until the backward pass? */
	bool *again;    /* by value id: is it computed again? */
	Source *source; /* by value id */
	/* by value id of a leaf: bytes of the values that need not be kept if this leaf is kept */
	int64_t *demand;
	int *order;         /* by node id */
	Node **first_loops; /* by value id: see find_order */
	Value **copies;     /* by value id: the copy that late nodes read */
} Remat;

/* Can n be part of a chain? Each element must be computed from a few others. */
static bool
is_link(const Node *n)
{
	FuseClass c = op_row(n)->fuse;

	return c == FUSE_ELEMENTWISE || c == FUSE_VIEW;
}

/* Is n late, that is, in the backward pass? The gradient of the loss itself consists of
 * elementwise nodes and reductions that read only values of the forward pass; these do not count
 * as late. */
static bool
is_late(const Remat *r, const Node *n)
{
	FuseClass c = node_fuse_class(n);

	if (c == FUSE_NONE || n->phase != PHASE_BACKWARD)
		return false;
	if (!is_link(n) && c != FUSE_REDUCE && n->n_operands)
		return true;
	for (int i = 0; i < n->n_operands; i++) {
		const Value *x = node_operand(n, i);
		if (x && x->node && r->late[x->node->id])
			return true;
	}
	return false;
}

static uint64_t
kernel_key(const Value *v, int group)
{
	return (uint64_t)v->id << 32 | (uint32_t)group;
}

static bool
loads(const Remat *r, const Value *v, int group)
{
	return intmap_get(r->loaded, kernel_key(v, group), NULL);
}

static void
add_kernel(Remat *r, const Value *v, int group)
{
	if (loads(r, v, group))
		return;
	intmap_put(r->loaded, kernel_key(v, group), 1);
	vec_push(r->scratch, &r->kernels[v->id], group);
}

/* Notes that the late node n (a node of the backward pass) reads v, directly or through values that
 * n's kernel computes again anyway. group: n's group, if it has loops; else -1. */
static void
mark_read(Remat *r, Value *v, const Node *n, int group)
{
	Value *x = behind_views(v);
	bool again = x->node && r->plan->recomputed[x->id] &&
	             recompute_matters(r->target, x, KEPT_FOR_BACKWARD);

	if (again || (x->node && plan_is_copied(r->plan, x->node))) {
		r->again[x->id] |= again && !r->late[x->node->id];
		for (int i = 0; i < x->node->n_operands; i++)
			mark_read(r, node_operand(x->node, i), n, group);
		return;
	}
	r->read_late[x->id] = true;
	r->by_product[x->id] |= group < 0 && node_fuse_class(n) == FUSE_OPAQUE;
	if (group >= 0)
		add_kernel(r, x, group);
}

/* n's group if it has loops; -1: it has none. */
static int
loops_of(const Remat *r, const Node *n)
{
	FuseClass c = op_row(n)->fuse;
	bool loops = c == FUSE_ELEMENTWISE || c == FUSE_REDUCE;

	return loops && !epilogue_alone(r->target, n) ? plan_own_group(r->plan, n) : -1;
}

static void
mark_late(Remat *r)
{
	for_each_node(r->f, n) {
		r->late[n->id] = is_late(r, n);
		for (int i = 0; r->late[n->id] && i < n->n_operands; i++)
			if (node_operand(n, i))
				mark_read(r, node_operand(n, i), n, loops_of(r, n));
	}
}

/* The context of source_in_chain. elements: number of elements of the value that the chain
 * computes. */
typedef struct {
	const Remat *r;
	int64_t elements;
} InChain;

/* A sum of a product and its bias counts as memory: the product's kernel stores it. */
static RecomputeSource
source_in_chain(const void *ctx, const Value *v)
{
	const InChain *c = ctx;
	const Node *n = v->node;

	if (n && n->n_operands == 0)
		return FROM_NOTHING;
	return !n || op_row(n)->fuse != FUSE_ELEMENTWISE || c->r->kept[v->id] ||
	                       bias_of(c->r->target, n) || v->type->n * SMALL_VALUE <= c->elements
	               ? FROM_MEMORY
	               : FROM_LINK;
}

/* The leaves from which v would be computed again. Either all leaves are kept in memory, or there
 * is exactly one leaf and nothing keeps it yet. Keeping this leaf may pay, because other values may
 * be computed from the same leaf. Parameters and states are not listed: they are kept anyway. */
static Source
source_of(const Remat *r, Value *v)
{
	InChain chain = {r, v->type->n};
	RecomputeCost c;
	Source s = {0};
	int64_t bytes = type_bytes(v->type);

	if (!recompute_matters(r->target, v, KEPT_FOR_BACKWARD) ||
	    !recompute_cost(v, source_in_chain, &chain, &c))
		return s;
	/* loaded is 0: pays() requires a kernel that loads the leaves anyway */
	if (!recompute_pays(r->target, &c, 0, 2 * bytes, KEPT_FOR_BACKWARD))
		return s;
	for (int i = 0; i < c.n_leaves; i++)
		if (c.leaves[i]->node)
			s.leaves[s.n++] = c.leaves[i];
	for (int i = 0; i < s.n; i++)
		if (!r->kept[s.leaves[i]->id])
			s.missing = s.leaves[i];
	return s.missing && s.n > 1 ? (Source){0} : s;
}

static void
consider(Remat *r, Value *v)
{
	bool written_again = r->by_product[v->id] && !r->target->tuning->recompute.for_products;
	Source s = written_again ? (Source){0} : source_of(r, v);

	r->source[v->id] = s;
	r->kept[v->id] = s.n == 0;
	if (s.n != 1)
		return;
	/* If v is computed again, the kernels that would load v load its leaf instead. */
	r->demand[s.leaves[0]->id] += type_bytes(v->type);
	for (int i = 0; i < r->kernels[v->id].n; i++)
		add_kernel(r, s.leaves[0], r->kernels[v->id].at[i]);
}

/* The leaf that the fewest kernels load. */
static const Value *
least_loaded(const Remat *r, const Source *s)
{
	const Value *least = s->leaves[0];

	for (int i = 1; i < s->n; i++)
		if (r->kernels[s->leaves[i]->id].n < r->kernels[least->id].n)
			least = s->leaves[i];
	return least;
}

/* Is there a kernel of the backward pass that loads all leaves anyway? */
static bool
is_loaded(const Remat *r, const Source *s)
{
	const Kernels *some = &r->kernels[least_loaded(r, s)->id];

	for (int i = 0; i < some->n; i++) {
		bool all = true;
		for (int k = 0; k < s->n; k++)
			all &= loads(r, s->leaves[k], some->at[i]);
		if (all)
			return true;
	}
	return false;
}

static bool
pays(const Remat *r, const Value *v)
{
	const Source *s = &r->source[v->id];
	const Value *leaf = s->missing;

	return s->n && is_loaded(r, s) && (!leaf || r->demand[leaf->id] > type_bytes(leaf->type));
}

static void
choose(Remat *r)
{
	for_each_node(r->f, n)
		for (int i = 0; !r->late[n->id] && i < n->n_results; i++) {
			Value *v = node_result(n, i);
			if (!r->read_late[v->id])
				continue;
			if (op_row(n)->fuse == FUSE_ELEMENTWISE && !bias_of(r->target, n))
				consider(r, v);
			else
				r->kept[v->id] = true;
		}
	for_each_node(r->f, n) {
		Value *v = n->n_results == 1 ? node_result(n, 0) : NULL;
		if (v && r->again[v->id])
			r->source[v->id] = source_of(r, v);
		else if (v && r->source[v->id].n)
			r->again[v->id] = pays(r, v);
		if (v && r->read_late[v->id])
			r->kept[v->id] = !r->again[v->id];
	}
}

/* The copy of v that late nodes read instead of v; made at the first call, before node `before`.
 * elements: number of elements of the value whose chain contains v. */
static Value *
copy_of(Remat *r, Value *v, Node *before, int64_t elements)
{
	const Node *n = v->node;
	Value *operands[MAX_OPERANDS];

	if (!n || n->n_operands == 0)
		return v;
	if (r->copies[v->id])
		return r->copies[v->id];
	Builder b = {.m = r->f->module,
	             .f = r->f,
	             .before = before,
	             .loc = n->loc,
	             .phase = PHASE_BACKWARD};
	InChain chain = {r, elements};
	bool view = op_row(n)->fuse == FUSE_VIEW;
	if (!view && source_in_chain(&chain, v) == FROM_MEMORY)
		return r->copies[v->id] = b_unary(&b, OP_barrier, v);
	for (int i = 0; i < n->n_operands; i++)
		operands[i] = copy_of(r, node_operand(n, i), before, elements);
	return r->copies[v->id] = build(&b, n->op, n->n_operands, operands, n->attr);
}

/* An operand of n that is computed again; NULL: n has none. */
static Value *
read_again(const Remat *r, const Node *n)
{
	for (int i = 0; r->late[n->id] && i < n->n_operands; i++) {
		Value *x = node_operand(n, i) ? behind_views(node_operand(n, i)) : NULL;
		if (x && r->again[x->id])
			return x;
	}
	return NULL;
}

static Value *
first_leaf(const Remat *r, const Value *v)
{
	return r->source[v->id].n ? r->source[v->id].leaves[0] : NULL;
}

/* Numbers the nodes in order. Also finds, for each leaf, the first node that reads a value
 * recomputed from the leaf and whose group has loops. */
static void
find_order(Remat *r)
{
	int at = 0;

	for_each_node(r->f, n) {
		r->order[n->id] = at++;
		const Value *x = loops_of(r, n) >= 0 ? read_again(r, n) : NULL;
		const Value *leaf = x ? first_leaf(r, x) : NULL;
		if (leaf && !r->first_loops[leaf->id])
			r->first_loops[leaf->id] = n;
	}
}

/* n reads the recomputed value x. Returns the node behind which n should move; NULL: n stays where
 * it is. The kernel of the returned node loads x's leaves anyway, so it can store x for n. Without
 * the move, a kernel for x alone would load the leaves once more. */
static Node *
waits_for(const Remat *r, const Node *n, const Value *x)
{
	const Value *leaf = first_leaf(r, x);
	Node *g = leaf ? r->first_loops[leaf->id] : NULL;

	if (!g || loops_of(r, n) >= 0 || r->order[g->id] <= r->order[n->id])
		return NULL;
	for (int i = 0; i < n->n_results; i++)
		for_each_use(node_result(n, i), u)
			if (r->order[u->user->id] <= r->order[g->id])
				return NULL;
	return g;
}

static bool
copy_for_late(Remat *r, uint32_t n_old)
{
	bool changed = false;

	for_each_node(r->f, n) {
		const Value *again = n->id < n_old ? read_again(r, n) : NULL;
		Node *g = again ? waits_for(r, n, again) : NULL;
		if (g) {
			r->order[n->id] = r->order[g->id];
			node_move(n, g->next);
			continue;
		}
		for (int i = 0; again && i < n->n_operands; i++) {
			Value *x = node_operand(n, i);
			if (!x || !r->again[behind_views(x)->id])
				continue;
			node_set_operand(n, i, copy_of(r, x, n, behind_views(x)->type->n));
			changed = true;
		}
	}
	return changed;
}

static bool
has_backward(const Function *f)
{
	for_each_node(f, n)
		if (n->phase == PHASE_BACKWARD)
			return true;
	return false;
}

static bool
run_rematerialize(Pass *p, Module *m)
{
	const TargetOptions *o = p->options;

	if (!pass_check_cores(p))
		return false;
	for_each_function(m, f) {
		uint32_t nodes = f->next_node_id, values = f->next_value_id;
		const Target *target = pass_target(p, f);
		if (!target)
			return false;
		if (!has_backward(f))
			continue;
		Remat r = {.scratch = p->scratch,
		           .f = f,
		           .target = target,
		           .plan = store_plan(f, target, o->cores, p->scratch),
		           .late = NEW_ARRAY(p->scratch, bool, nodes),
		           .read_late = NEW_ARRAY(p->scratch, bool, values),
		           .by_product = NEW_ARRAY(p->scratch, bool, values),
		           .kernels = NEW_ARRAY(p->scratch, Kernels, values),
		           .loaded = intmap_new(p->scratch),
		           .kept = NEW_ARRAY(p->scratch, bool, values),
		           .again = NEW_ARRAY(p->scratch, bool, values),
		           .source = NEW_ARRAY(p->scratch, Source, values),
		           .demand = NEW_ARRAY(p->scratch, int64_t, values),
		           .order = NEW_ARRAY(p->scratch, int, nodes),
		           .first_loops = NEW_ARRAY(p->scratch, Node *, values),
		           .copies = NEW_ARRAY(p->scratch, Value *, values)};

		mark_late(&r);
		choose(&r);
		find_order(&r);
		p->changed |= copy_for_late(&r, nodes);
	}
	return true;
}

const PassRow pass_rematerialize = {
	.name = "rematerialize",
	.help = "compute cheap values again in the backward pass",
	.takes = STAGE_TRAIN,
	.leaves = STAGE_REMATERIALIZED,
	.when = PASS_WITH_LOSS,
	.options = target_options,
	.options_size = sizeof(TargetOptions),
	.defaults = &target_defaults,
	.run = run_rematerialize,
};
