/* Values that the backward pass reads are computed again there where that is cheap and makes the forward pass keep
 * less: chains of elementwise nodes and views over a kept value, such as GELU over a product or a softmax over its
 * scores. The copies read what was kept through `barrier`, so that `fuse` leaves them where they stand.
 *
 * Chen et al. 2016, arXiv:1604.06174, has the idea; PyTorch's partitioner chooses by a minimum cut. This is the case
 * that needs no search: one large leaf, already kept for others or smaller than all that it replaces together, and
 * a kernel of the backward pass that loads it anyway.
 *
 * Keeps: every value bit for bit. Needs the phases that autograd gives. Linear in nodes: a chain's size is bounded. */
#include "passes/pass.h"

enum {
	MAX_ARITHMETIC =
		48, /* of a chain for one element, in additions: some transcendentals and what goes with them */
	MAX_NODES = 64,     /* of a chain */
	MAX_LEAVES = 2,     /* large ones */
	LEAST_BYTES = 4096, /* of a value that is worth it */
	SMALL = 4,          /* what is this many times smaller than the value is kept at no cost */
};

typedef struct {
	Function *f;
	bool *late;      /* by node id: it waits for the backward pass */
	bool *read_late; /* by value id: a late node reads it, perhaps through views */
	bool *fusible;   /* by value id: a link or reduction among these may compute it itself */
	bool *kept;      /* by value id: in memory until then */
	bool *again;     /* by value id: computed again */
	Value **leaf;    /* by value id: what would have to be kept for it */
	bool *loaded;    /* by value id: a kernel of the backward pass would read this leaf */
	int64_t *demand; /* by value id: bytes that keeping this leaf saves */
	Value **copies;  /* by value id: what late nodes read instead */
} Remat;

/* Part of a chain: each element is computed from a few others. */
static bool
is_link(const Node *n)
{
	FuseClass c = op_row(n)->fuse;

	return c == FUSE_ELEMENTWISE || c == FUSE_VIEW;
}

/* The gradient of the loss itself depends on the forward pass alone: what reads no product of the backward pass is
 * not late. */
static bool
is_late(const Remat *r, const Node *n)
{
	FuseClass c = op_row(n)->fuse;

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

static void
mark_late(Remat *r)
{
	for_each_node(r->f, n) {
		r->late[n->id] = is_late(r, n);
		for (int i = 0; r->late[n->id] && i < n->n_operands; i++) {
			Value *x = node_operand(n, i);
			uint32_t id = x ? behind_views(x)->id : 0;
			if (x) {
				r->read_late[id] = true;
				r->fusible[id] |= is_link(n) || op_row(n)->fuse == FUSE_REDUCE;
			}
		}
	}
}

/* What a value is computed from. */
typedef struct {
	int nodes, arithmetic, n;
	int64_t elements; /* of the value */
	Value *leaves[MAX_LEAVES];
} Chain;

/* Where the chain of a value of so many elements ends; a product's bias comes with it. */
static bool
is_leaf(const Remat *r, const Value *v, int64_t elements)
{
	return !v->node || !is_link(v->node) || r->kept[v->id] || bias_of(v->node) ||
	       v->type->n * SMALL <= elements;
}

/* Parameters and states are there anyway. */
static bool
add_leaf(Chain *c, Value *v)
{
	if (!v->node || v->type->n * SMALL <= c->elements)
		return true;
	for (int i = 0; i < c->n; i++)
		if (c->leaves[i] == v)
			return true;
	if (c->n == MAX_LEAVES)
		return false;
	c->leaves[c->n++] = v;
	return true;
}

/* false: too long or from too much */
static bool
add_links(const Remat *r, Value *v, Chain *c)
{
	const Node *n = v->node;

	if (c->nodes && is_leaf(r, v, c->elements))
		return add_leaf(c, v);
	if (c->nodes++ == MAX_NODES)
		return false;
	if (op_row(n)->fuse == FUSE_ELEMENTWISE)
		c->arithmetic += op_row(n)->weight ? op_row(n)->weight : 1;
	for (int i = 0; i < n->n_operands; i++)
		if (!add_links(r, node_operand(n, i), c))
			return false;
	return c->arithmetic <= MAX_ARITHMETIC;
}

/* Either all leaves are kept, or one is missing that others may want, too. */
static void
consider(Remat *r, Value *v)
{
	Chain c = {.elements = v->type->n};
	int64_t bytes = type_bytes(v->type);
	Value *missing = NULL;
	int n_missing = 0;

	if (bytes < LEAST_BYTES || !add_links(r, v, &c) || c.n == 0) {
		r->kept[v->id] = true;
		return;
	}
	for (int i = 0; i < c.n; i++)
		if (!r->kept[c.leaves[i]->id]) {
			missing = c.leaves[i];
			n_missing++;
		}
	if (n_missing > 0 && c.n > 1) {
		r->kept[v->id] = true;
		return;
	}
	r->leaf[v->id] = missing ? missing : c.leaves[0];
	r->demand[r->leaf[v->id]->id] += bytes;
	r->loaded[r->leaf[v->id]->id] |= r->fusible[v->id];
}

static bool
pays(const Remat *r, const Value *v)
{
	const Value *leaf = r->leaf[v->id];

	return leaf && r->loaded[leaf->id] &&
	       (r->kept[leaf->id] || r->demand[leaf->id] > type_bytes(leaf->type));
}

static void
choose(Remat *r)
{
	for_each_node(r->f, n)
		for (int i = 0; !r->late[n->id] && i < n->n_results; i++) {
			Value *v = node_result(n, i);
			if (!r->read_late[v->id])
				continue;
			if (op_row(n)->fuse == FUSE_ELEMENTWISE && !bias_of(n))
				consider(r, v);
			else
				r->kept[v->id] = true;
		}
	for_each_node(r->f, n)
		if (n->n_results == 1)
			r->again[node_result(n, 0)->id] = pays(r, node_result(n, 0));
}

/* What a late node reads instead of v, part of the chain of a value of so many elements, made before it: the first that
 * asks is the first in order. */
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
	if (is_leaf(r, v, elements))
		return r->copies[v->id] = b_unary(&b, OP_barrier, v);
	for (int i = 0; i < n->n_operands; i++)
		operands[i] = copy_of(r, node_operand(n, i), before, elements);
	return r->copies[v->id] = build(&b, n->op, n->n_operands, operands, n->attr);
}

static bool
copy_for_late(Remat *r, uint32_t n_old)
{
	bool changed = false;

	for_each_node(r->f, n)
		for (int i = 0; n->id < n_old && r->late[n->id] && i < n->n_operands; i++) {
			Value *x = node_operand(n, i);
			if (!x || !r->again[behind_views(x)->id])
				continue;
			node_set_operand(n, i, copy_of(r, x, n, behind_views(x)->type->n));
			changed = true;
		}
	return changed;
}

static bool
run_rematerialize(Pass *p, Module *m)
{
	for_each_function(m, f) {
		uint32_t nodes = f->next_node_id, values = f->next_value_id;
		Remat r = {.f = f,
		           .late = NEW_ARRAY(p->scratch, bool, nodes),
		           .read_late = NEW_ARRAY(p->scratch, bool, values),
		           .fusible = NEW_ARRAY(p->scratch, bool, values),
		           .kept = NEW_ARRAY(p->scratch, bool, values),
		           .again = NEW_ARRAY(p->scratch, bool, values),
		           .leaf = NEW_ARRAY(p->scratch, Value *, values),
		           .loaded = NEW_ARRAY(p->scratch, bool, values),
		           .demand = NEW_ARRAY(p->scratch, int64_t, values),
		           .copies = NEW_ARRAY(p->scratch, Value *, values)};

		mark_late(&r);
		choose(&r);
		p->changed |= copy_for_late(&r, nodes);
	}
	return true;
}

const PassRow pass_rematerialize = {
	.name = "rematerialize",
	.help = "compute again in the backward pass what is cheap",
	.takes = STAGE_TRAIN,
	.leaves = STAGE_TRAIN,
	.when = PASS_WITH_LOSS,
	.run = run_rematerialize,
};
