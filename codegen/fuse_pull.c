/* Sinking: a cheap elementwise value is computed again by the groups that read it, instead of being
 * stored for them. */
#include "codegen/fuse_impl.h"

enum { MAX_SINK_COST = 12 };

static bool
needs_memory(const Fuse *fu, const Node *reader, int gi)
{
	if (fuse_class_of(reader) == FUSE_NONE)
		return true;
	int g = fuse_group_of(fu, node_result(reader, 0));
	return g != gi && (fu->groups.at[g].opaque || fuse_class_of(reader) == FUSE_INDEX);
}

/* What computing a value again takes: arithmetic, in additions, and stored values of full size to load. */
typedef struct {
	int arithmetic, loads;
} PullCost;

/* Adds the cost of v from stored values. Row values that it needs are cheap to store. */
static void
add_pull_cost(const Fuse *fu, Value *v, int gi, int depth, int64_t full, PullCost *c)
{
	Value *x = behind_views(v);
	Node *n = x->node;

	if (n && fuse_is_copied(fu, n))
		return;
	bool pulled = n && fu->pulled[x->id] && fuse_group_of(fu, x) != gi;
	if (!pulled && (!n || fuse_group_of(fu, x) != gi || (depth && fuse_is_stored(fu, x)) ||
	                fuse_class_of(n) == FUSE_REDUCE)) {
		c->loads += x->type->n >= full;
		return;
	}
	if (fuse_class_of(n) != FUSE_ELEMENTWISE || depth > MAX_SINK_COST) {
		c->arithmetic = MAX_SINK_COST + 1;
		return;
	}
	c->arithmetic += op_row(n)->weight ? op_row(n)->weight : 1;
	for (int i = 0; i < n->n_operands && c->arithmetic <= MAX_SINK_COST; i++)
		add_pull_cost(fu, node_operand(n, i), gi, depth + 1, full, c);
}

/* Groups other than gi that read v, counted up to 4. */
static int
outside_readers(const Fuse *fu, const Value *v, int gi, int *seen, int n)
{
	for_each_use(v, u) {
		Node *reader = u->user;
		if (fuse_is_copied(fu, reader)) {
			n = outside_readers(fu, node_result(reader, 0), gi, seen, n);
			continue;
		}
		int g = fuse_class_of(reader) == FUSE_NONE
		                ? -1
		                : fuse_group_of(fu, node_result(reader, 0));
		bool known = g == gi;
		for (int i = 0; i < n; i++)
			known |= seen[i] == g;
		if (!known && n < 4)
			seen[n++] = g;
	}
	return n;
}

static void
pull(Fuse *fu, Value *v, int gi, int depth)
{
	Value *x = behind_views(v);
	Node *n = x->node;

	if (!n || fuse_is_copied(fu, n) || fuse_group_of(fu, x) != gi ||
	    (depth && fuse_is_stored(fu, x)))
		return;
	if (fuse_class_of(n) == FUSE_REDUCE) {
		fu->kept[x->id] = true;
		return;
	}
	fu->pulled[x->id] = true;
	for (int i = 0; i < n->n_operands; i++)
		pull(fu, node_operand(n, i), gi, depth + 1);
}

void
fuse_sink_node(Fuse *fu, Node *n)
{
	Value *v = node_result(n, 0);
	int gi = fuse_group_of(fu, v);

	if (fuse_class_of(n) != FUSE_ELEMENTWISE || v->type->n < 256 || fu->kept[v->id] ||
	    !(fuse_readers(fu, v, gi) & READ_OUTSIDE) || fuse_any_reader(fu, v, needs_memory, gi))
		return;
	/* Stored, it is written once and read by R groups; pulled, they read what it is made of. */
	PullCost c = {0};
	int seen[4], readers = outside_readers(fu, v, gi, seen, 0);
	add_pull_cost(fu, v, gi, 0, v->type->n, &c);
	if (c.arithmetic <= MAX_SINK_COST && c.loads * readers <= 1 + readers)
		pull(fu, v, gi, 0);
}
