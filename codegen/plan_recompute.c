/* Sinking: a cheap elementwise value is computed again by the groups that read it, instead of being
 * stored for them. */
#include "codegen/store_plan_impl.h"

enum { MAX_ARITHMETIC = 12 };

static bool
needs_memory(const StorePlan *p, const Node *reader, int gi)
{
	if (fuse_class_of(reader) == FUSE_NONE)
		return true;
	int g = plan_group_of(p, node_result(reader, 0));
	return g != gi && (p->groups.at[g].opaque || fuse_class_of(reader) == FUSE_INDEX);
}

/* What computing a value again takes: arithmetic, in additions, and stored values of full size to load. */
typedef struct {
	int arithmetic, loads;
} PullCost;

/* Adds the cost of v from stored values. Row values that it needs are cheap to store. */
static void
add_pull_cost(const StorePlan *p, Value *v, int gi, int depth, int64_t full, PullCost *c)
{
	Value *x = behind_views(v);
	Node *n = x->node;

	if (n && plan_is_copied(p, n))
		return;
	bool recomputed = n && p->recomputed[x->id] && plan_group_of(p, x) != gi;
	if (!recomputed && (!n || plan_group_of(p, x) != gi || (depth && plan_is_stored(p, x)) ||
	                    fuse_class_of(n) == FUSE_REDUCE)) {
		c->loads += x->type->n >= full;
		return;
	}
	if (fuse_class_of(n) != FUSE_ELEMENTWISE || depth > MAX_ARITHMETIC) {
		c->arithmetic = MAX_ARITHMETIC + 1;
		return;
	}
	c->arithmetic += op_row(n)->weight ? op_row(n)->weight : 1;
	for (int i = 0; i < n->n_operands && c->arithmetic <= MAX_ARITHMETIC; i++)
		add_pull_cost(p, node_operand(n, i), gi, depth + 1, full, c);
}

/* Groups other than gi that read v, counted up to 4. */
static int
outside_readers(const StorePlan *p, const Value *v, int gi, int *seen, int n)
{
	for_each_use(v, u) {
		Node *reader = u->user;
		if (plan_is_copied(p, reader)) {
			n = outside_readers(p, node_result(reader, 0), gi, seen, n);
			continue;
		}
		int g = fuse_class_of(reader) == FUSE_NONE
		                ? -1
		                : plan_group_of(p, node_result(reader, 0));
		bool known = g == gi;
		for (int i = 0; i < n; i++)
			known |= seen[i] == g;
		if (!known && n < 4)
			seen[n++] = g;
	}
	return n;
}

static void
pull(StorePlan *p, Value *v, int gi, int depth)
{
	Value *x = behind_views(v);
	Node *n = x->node;

	if (!n || plan_is_copied(p, n) || plan_group_of(p, x) != gi ||
	    (depth && plan_is_stored(p, x)))
		return;
	if (fuse_class_of(n) == FUSE_REDUCE) {
		p->kept[x->id] = true;
		return;
	}
	p->recomputed[x->id] = true;
	for (int i = 0; i < n->n_operands; i++)
		pull(p, node_operand(n, i), gi, depth + 1);
}

void
plan_recompute_node(StorePlan *p, Node *n)
{
	Value *v = node_result(n, 0);
	int gi = plan_group_of(p, v);

	if (fuse_class_of(n) != FUSE_ELEMENTWISE || v->type->n < 256 || p->kept[v->id] ||
	    !(plan_readers(p, v, gi) & READ_OUTSIDE) || plan_any_reader(p, v, needs_memory, gi))
		return;
	/* Stored, it is written once and read by R groups; recomputed, they read what it is made of. */
	PullCost c = {0};
	int seen[4], readers = outside_readers(p, v, gi, seen, 0);
	add_pull_cost(p, v, gi, 0, v->type->n, &c);
	if (c.arithmetic <= MAX_ARITHMETIC && c.loads * readers <= 1 + readers)
		pull(p, v, gi, 0);
}
