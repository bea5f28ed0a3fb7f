/* Grouping: which nodes share a kernel's iteration space. */
#include "codegen/fuse_impl.h"

enum { MAX_GROUP_NODES = 400 };

static const ReduceForm *
keep_form(Fuse *fu, const ReduceForm *form)
{
	return form->n ? arena_copy(fu->arena, form, sizeof(*form)) : NULL;
}

static int
group_new(Fuse *fu, const Node *n)
{
	Group g = {.opaque = fuse_class_of(n) == FUSE_OPAQUE,
	           .root = fuse_class_of(n) == FUSE_ROOT,
	           .n = node_result(n, 0)->type->n,
	           .merged_into = -1};

	if (fuse_class_of(n) == FUSE_REDUCE) {
		Ints shape = ints_of_type(node_operand(n, 0)->type);
		g.n = node_operand(n, 0)->type->n;
		ReduceForm form = reduce_form(&shape, &((ReduceAttr *)n->attr)->axes);
		g.form = keep_form(fu, &form);
		g.rows = reduce_form_kept(&form);
	}
	vec_push(fu->arena, &fu->groups, g);
	return fu->groups.n - 1;
}

/* How an operand that group g computes is reached: by the same element, by repeating row values along
 * what the group's reductions sum over, or in some other way. */
typedef enum { REACH_SAME, REACH_REPEAT, REACH_OTHER } Reach;

static Reach
reach_of(const Group *g, Value *v)
{
	Value *x = behind_reshapes(v);

	if (!x->node || x->node->op != OP_broadcast)
		return x->node && fuse_class_of(x->node) == FUSE_VIEW ? REACH_OTHER : REACH_SAME;
	const BroadcastAttr *a = x->node->attr;
	Ints fresh = {0};
	for (int i = 0; i < a->shape.n; i++)
		if (!ints_has(&a->axes, i))
			fresh.at[fresh.n++] = i;
	ReduceForm form = reduce_form(&a->shape, &fresh);
	Value *base = behind_reshapes(node_operand(x->node, 0));
	if (base->node && fuse_class_of(base->node) == FUSE_VIEW)
		return REACH_OTHER;
	return g->form && reduce_form_equal(&form, g->form) && base->type->n == g->rows
	               ? REACH_REPEAT
	               : REACH_OTHER;
}

static bool
elementwise_fits(const Fuse *fu, int gi, const Node *n)
{
	const Group *g = &fu->groups.at[gi];
	int64_t size = node_result(n, 0)->type->n;
	bool at_rows = g->form && size == g->rows, at_chunks = g->outer && size == g->chunks;

	if (size != g->n && !at_rows && !at_chunks)
		return false;
	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		if (fuse_group_of(fu, v) != gi)
			continue;
		Reach reach = reach_of(g, v);
		if (reach == REACH_OTHER || (reach == REACH_REPEAT && size != g->n))
			return false;
		if (reach == REACH_SAME && behind_reshapes(v)->type->n != size)
			return false;
	}
	return true;
}

static bool
reduce_fits(Fuse *fu, int gi, const Node *n)
{
	Group *g = &fu->groups.at[gi];
	Value *x = node_operand(n, 0);
	Ints shape = ints_of_type(x->type);
	ReduceForm form = reduce_form(&shape, &((ReduceAttr *)n->attr)->axes);

	if (fuse_group_of(fu, x) == gi && reach_of(g, x) != REACH_SAME)
		return false;
	if (x->type->n == g->n) {
		if (g->form)
			return reduce_form_equal(&form, g->form);
		g->form = keep_form(fu, &form);
		g->rows = reduce_form_kept(&form);
		return true;
	}
	/* Row values once more: blocks of rows, the rows of a block next to each other. */
	if (!g->form || x->type->n != g->rows || reduce_form_by_column(g->form))
		return false;
	if (g->outer)
		return reduce_form_equal(&form, g->outer);
	int kept_runs = 0;
	for (int i = 0; i < g->form->n; i++)
		kept_runs += !g->form->reduced[i];
	if (kept_runs != 1 || form.n > 2 || (form.n == 2 && form.reduced[0]) ||
	    (form.n == 1 && !form.reduced[0]))
		return false;
	int64_t chunks = reduce_form_kept(&form);
	if (g->n >= LARGE_KERNEL && chunks < fu->parts) /* chunks are the parts */
		return false;
	g->outer = keep_form(fu, &form);
	g->chunks = chunks;
	return true;
}

/* An opaque node's kernel may store what a bias gives with it. The bias lies in memory: kernels and libraries read
 * it as it is there. */
static bool
bias_fits(const Fuse *fu, int gi, const Node *n)
{
	const Group *g = &fu->groups.at[gi];
	Value *v = g->opaque && g->members.n == 1 ? bias_of(n) : NULL;
	const Node *from = v ? behind_reshapes(v)->node : NULL;
	return v && !(from && fuse_is_copied(fu, from));
}

static bool
fuse_node_fits(Fuse *fu, int gi, const Node *n)
{
	const Group *g = &fu->groups.at[gi];

	if (bias_fits(fu, gi, n))
		return true;
	if (g->opaque || g->root || g->members.n >= MAX_GROUP_NODES || g->n == 0)
		return false;
	switch (fuse_class_of(n)) {
	case FUSE_ELEMENTWISE: return elementwise_fits(fu, gi, n);
	case FUSE_REDUCE: return reduce_fits(fu, gi, n);
	default: return false;
	}
}

/* A reduction that opens a group may instead join one that reads the same operand. */
static int
sibling_of(Fuse *fu, const Node *n, int latest)
{
	if (fuse_class_of(n) != FUSE_REDUCE)
		return -1;
	for_each_use(node_operand(n, 0), u) {
		int gi = fuse_class_of(u->user) == FUSE_REDUCE
		                 ? fuse_group_of(fu, node_result(u->user, 0))
		                 : -1;
		if (u->user != n && gi > latest && fuse_node_fits(fu, gi, n))
			return gi;
	}
	return -1;
}

void
fuse_place_node(Fuse *fu, Node *n)
{
	int latest = -1, gi = -1;

	for (int i = 0; i < n->n_operands; i++) {
		int g = node_operand(n, i) ? fuse_group_of(fu, node_operand(n, i)) : -1;
		latest = g > latest ? g : latest;
	}
	if (latest >= 0 && fuse_node_fits(fu, latest, n))
		gi = latest;
	if (gi < 0)
		gi = sibling_of(fu, n, latest);
	if (gi < 0)
		gi = group_new(fu, n);
	fu->group[n->id] = gi;
	vec_push(fu->arena, &fu->groups.at[gi].members, n);
	vec_push(fu->arena, &fu->nodes, n);
}

/* ---- siblings */
static bool
blocks_merge(const Fuse *fu, const Node *reader, int ctx)
{
	if (fuse_class_of(reader) == FUSE_NONE)
		return false;
	int g = fuse_own_group(fu, reader);
	if (g == fu->merge_from) /* recomputed by its readers, it makes them read what it reads */
		return fu->pulled[node_result(reader, 0)->id] &&
		       fuse_any_reader(fu, node_result(reader, 0), blocks_merge, ctx);
	return g <= fu->merge_to;
}

static bool
may_merge(Fuse *fu, int from, int to)
{
	const Group *a = &fu->groups.at[from], *b = &fu->groups.at[to];

	if (from >= to || a->opaque || a->root || a->n != b->n || !a->form || !b->form ||
	    a->outer || b->outer || !reduce_form_equal(a->form, b->form))
		return false;
	fu->merge_from = from;
	fu->merge_to = to;
	for (int i = 0; i < a->members.n; i++)
		if (fuse_any_reader(fu, node_result(a->members.at[i], 0), blocks_merge, 0))
			return false;
	return true;
}

static void
forget_readers(Fuse *fu, const Group *g)
{
	for (int i = 0; i < g->members.n; i++)
		for (int k = 0; k < g->members.at[i]->n_results; k++)
			fu->readers[node_result(g->members.at[i], k)->id] = 0;
}

static void
merge(Fuse *fu, int from, int to)
{
	Group *a = &fu->groups.at[from], *b = &fu->groups.at[to];

	forget_readers(fu, a);
	forget_readers(fu, b);
	a->merged_into = to;
	for (int i = 0; i < b->members.n; i++)
		vec_push(fu->arena, &a->members, b->members.at[i]);
	b->members.at = a->members.at;
	b->members.n = a->members.n;
	b->members.cap = a->members.cap;
}

static void
merge_readers_of(Fuse *fu, Value *x, int to)
{
	int seen = 0;

	for_each_use(x, u) {
		if (++seen > 16 || fuse_class_of(u->user) == FUSE_NONE ||
		    fuse_is_copied(fu, u->user))
			continue;
		int from = fuse_group_of(fu, node_result(u->user, 0));
		if (from >= 0 && from != to && may_merge(fu, from, to))
			merge(fu, from, to);
	}
}

/* Merges earlier column reductions that read the same stored values into the group. */
void
fuse_merge_siblings(Fuse *fu, int gi)
{
	const Group g = fu->groups.at[gi]; /* its members before any merge */

	if (g.merged_into >= 0 || !g.form || !reduce_form_by_column(g.form))
		return;
	for (int i = 0; i < g.members.n; i++)
		for (int k = 0; k < g.members.at[i]->n_operands; k++)
			merge_readers_of(fu, behind_views(node_operand(g.members.at[i], k)), gi);
}
