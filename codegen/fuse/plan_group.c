/* Decides which nodes form a group, that is, share a kernel. A group has a domain: full values,
 * row values (results of reductions) and chunk values (reductions of row values), see fuse.h. */
#include "codegen/fuse/plan.h"
#include "codegen/fuse/spaces.h"

/* The most nodes of a kernel, and the largest sum of their OpRow.weight. Without limits, LLVM
 * would take too long: more than twice the time for twice the code. */
enum { MAX_GROUP_NODES = 400, MAX_GROUP_WEIGHT = 600 };

static int
group_new(StorePlan *p, const Node *n)
{
	FuseClass class = fuse_class_of(n);
	Group g = {.opaque = class == FUSE_OPAQUE || class == FUSE_CONTROL,
	           .closed = class == FUSE_ROOT || class == FUSE_CONTROL ||
	                     (class == FUSE_REDUCE && !reduces(n)) || epilogue_alone(p->target, n),
	           .domain = domain_full(node_result(n, 0)->type),
	           .merged_into = -1};

	if (reduces(n))
		domain_add_reduction(&g.domain, ITER_FULL, n);
	vec_push(p->arena, &p->groups, g);
	return p->groups.n - 1;
}

/* The space of group gi over which n would read its operand v. ITER_NONE: v would have to be
 * read from memory. */
static IterSpace
space_read(const StorePlan *p, int gi, Value *v)
{
	IterSpace base = p->space[behind_views(v)->id];

	return domain_reached(&p->groups.at[gi].domain, v, base);
}

/* The space over which the elementwise node n would read the operands that group gi computes. If n
 * joins the group, its result is in the same space. ITER_NONE: n does not fit. */
static IterSpace
space_elementwise(const StorePlan *p, int gi, const Node *n)
{
	IterSpace s = ITER_NONE;

	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		if (plan_group_of(p, v) != gi)
			continue;
		IterSpace here = space_read(p, gi, v);
		if (here == ITER_NONE || (s != ITER_NONE && here != s))
			return ITER_NONE;
		s = here;
	}
	return s;
}

/* May n be the first reduction of row values in group gi? Each result of n must sum a block of
 * neighbouring rows (a chunk), and there must be enough chunks. */
static bool
opens_chunks(const StorePlan *p, int gi, const Node *n)
{
	const Domain *d = &p->groups.at[gi].domain;
	const ReduceForm *rows = &d->reduction[ITER_FULL];
	ReduceForm form = reduce_form_of(n);
	int kept_runs = 0;

	for (int i = 0; i < rows->n; i++)
		kept_runs += !rows->reduced[i];
	if (kept_runs != 1 || form.n > 2 || (form.n == 2 && form.reduced[0]) ||
	    (form.n == 1 && !form.reduced[0]))
		return false;
	bool large = d->elements[ITER_FULL] >= p->target->tuning->grains.large;
	/* each chunk is one part, so there must be enough */
	return !large || node_result(n, 0)->type->n >= p->parts;
}

/* The space of a reduction's result in group gi, if its operand is in space `of`. ITER_NONE: the
 * reduction does not fit. */
static IterSpace
space_reduced(const StorePlan *p, int gi, const Node *n, IterSpace of)
{
	const Domain *d = &p->groups.at[gi].domain;

	if (!reduces(n) || (of != ITER_FULL && of != ITER_ROWS) ||
	    (of == ITER_ROWS && reduce_form_by_column(&d->reduction[ITER_FULL])))
		return ITER_NONE;
	ReduceForm form = reduce_form_of(n);
	bool fits = d->reduction[of].n ? reduce_form_equal(&form, &d->reduction[of])
	                               : of == ITER_FULL || opens_chunks(p, gi, n);
	return fits ? (IterSpace)(of + 1) : ITER_NONE;
}

/* May the opaque node's kernel add n's bias to its result? The bias must lie in memory, because kernels and
 * libraries load it. */
static bool
bias_fits(const StorePlan *p, int gi, const Node *n)
{
	const Group *g = &p->groups.at[gi];
	Value *v = g->opaque && !g->closed && g->members.n == 1 ? bias_of(p->target, n) : NULL;
	const Node *from = v ? behind_reshapes(v)->node : NULL;
	const Strategy *s = v ? strategy_of(p->target, g->members.at[0]) : NULL;

	if (s && s->takes_bias && !s->takes_bias(p->target, g->members.at[0]))
		return false;
	return v && !(from && plan_is_copied(p, from));
}

/* How many values the loop carries whose body is f; 0: f is no loop's body. */
static int64_t
carried_by(const Function *f)
{
	for_each_function(f->module, g)
		for_each_node(g, n)
			if (n->op == OP_loop && ((LoopAttr *)n->attr)->body == f)
				return ((LoopAttr *)n->attr)->carried;
	return 0;
}

/* Is f a loop's body, in which n's result takes the place of the carried value v? */
static bool
replaces(const Value *v, const Node *n)
{
	const Function *f = n->function;
	const Node *ret = function_return(f);

	for (int i = 1; i < f->params.n && i < ret->n_operands; i++)
		if (f->params.at[i] == v && node_operand(ret, i) == node_result(n, 0))
			return i <= carried_by(f);
	return false;
}

/* Is v in memory, and free after n has read it? */
static bool
ends_in(const StorePlan *p, Value *v, const Node *n)
{
	int gi = v->node ? plan_group_of(p, v) : -1;

	return v->node ? gi >= 0 && p->groups.at[gi].opaque && value_used_once(v) : replaces(v, n);
}

/* May the opaque node's kernel add its result to a sum that n replaces? */
static bool
sum_fits(const StorePlan *p, int gi, const Node *n)
{
	const Group *g = &p->groups.at[gi];
	bool alone = g->opaque && !g->closed && g->members.n == 1;
	const Strategy *s = alone ? strategy_of(p->target, g->members.at[0]) : NULL;
	Value *sum = s && s->adds ? added_to_product(n, g->members.at[0]) : NULL;

	return sum && ends_in(p, sum, n);
}

/* Has the group room for n's code? */
static bool
has_room(const Group *g, const Node *n)
{
	return g->members.n < MAX_GROUP_NODES && g->weight + op_row(n)->weight <= MAX_GROUP_WEIGHT;
}

/* The space that n's result would have in group gi, which computes some of n's operands.
 * ITER_NONE: n does not fit. */
static IterSpace
space_in(const StorePlan *p, int gi, const Node *n)
{
	const Group *g = &p->groups.at[gi];

	if (bias_fits(p, gi, n) || sum_fits(p, gi, n))
		return ITER_FULL;
	if (g->opaque || g->closed || !has_room(g, n) || g->domain.elements[ITER_FULL] == 0)
		return ITER_NONE;
	switch (fuse_class_of(n)) {
	case FUSE_ELEMENTWISE: return space_elementwise(p, gi, n);
	case FUSE_REDUCE: return space_reduced(p, gi, n, space_read(p, gi, node_operand(n, 0)));
	default: return ITER_NONE;
	}
}

/* The group of the reduction `other`, if n, another reduction, fits there instead of opening a group; -1: it does not. */
static int
group_beside(const StorePlan *p, const Node *other, const Node *n, int latest, IterSpace *space)
{
	if (other == n || !reduces(other))
		return -1;
	int gi = plan_group_of(p, node_result(other, 0));
	if (gi <= latest || !has_room(&p->groups.at[gi], n))
		return -1;
	*space = space_reduced(p, gi, n, (IterSpace)(p->space[node_result(other, 0)->id] - 1));
	return *space != ITER_NONE ? gi : -1;
}

/* The group of a reduction of v, perhaps through reshapes, if n, a reduction of as many elements, fits there, too; -1:
 * there is none. */
static int
sibling_of(const StorePlan *p, const Value *v, const Node *n, int latest, IterSpace *space)
{
	bool beside = node_operand(n, 0)->type == v->type;

	for_each_use(v, u) {
		Value *y = u->user->n_results ? node_result(u->user, 0) : NULL;
		int gi = -1;
		if (beside)
			gi = group_beside(p, u->user, n, latest, space);
		else if (y && behind_reshapes(y) != y)
			gi = sibling_of(p, y, n, latest, space);
		if (gi >= 0)
			return gi;
	}
	return -1;
}

/* The group of a reduction of other partial results that the same kernel computes, if n fits there; -1: there is none.
 * Example: the kernels that add up two sums of chunks are one. */
static int
partials_group(const StorePlan *p, const Node *n, int latest, IterSpace *space)
{
	const Value *v = behind_reshapes(node_operand(n, 0));

	if (!p->target->tuning->reduce.merge_sums || !v->node || !reduces(v->node) || latest < 0)
		return -1;
	const Group *from = &p->groups.at[latest];
	for (int i = 0; i < from->members.n; i++) {
		const Node *m = from->members.at[i];
		int gi = reduces(m) && node_result(m, 0)->type == v->type
		                 ? sibling_of(p, node_result(m, 0), n, latest, space)
		                 : -1;
		if (gi >= 0)
			return gi;
	}
	return -1;
}

static void
join(StorePlan *p, int gi, Node *n, IterSpace s)
{
	Group *g = &p->groups.at[gi];

	if (s > ITER_FULL && reduces(n))
		domain_add_reduction(&g->domain, (IterSpace)(s - 1), n);
	for (int i = 0; i < n->n_results; i++)
		p->space[node_result(n, i)->id] = (uint8_t)s;
	p->group[n->id] = gi;
	vec_push(p->arena, &g->members, n);
	g->weight += op_row(n)->weight;
	vec_push(p->arena, &p->nodes, n);
}

void
plan_place_node(StorePlan *p, Node *n)
{
	int latest = -1, gi = -1;
	IterSpace s = ITER_NONE;

	for (int i = 0; i < n->n_operands; i++) {
		int g = node_operand(n, i) ? plan_group_of(p, node_operand(n, i)) : -1;
		latest = g > latest ? g : latest;
	}
	if (latest >= 0 && !epilogue_alone(p->target, n))
		s = space_in(p, latest, n);
	if (s != ITER_NONE)
		gi = latest;
	else if (reduces(n))
		gi = sibling_of(p, node_operand(n, 0), n, latest, &s);
	if (gi < 0 && reduces(n))
		gi = partials_group(p, n, latest, &s);
	if (gi < 0) {
		gi = group_new(p, n);
		s = reduces(n) ? ITER_ROWS : ITER_FULL;
	}
	join(p, gi, n, s);
}

/* ---- siblings */
static bool
blocks_merge(const StorePlan *p, const Node *reader, int ctx)
{
	if (fuse_class_of(reader) == FUSE_NONE)
		return false;
	int g = plan_own_group(p, reader);
	/* its readers compute the value again, so they read the value's operands */
	if (g == p->merge_from)
		return p->recomputed[node_result(reader, 0)->id] &&
		       plan_any_reader(p, node_result(reader, 0), blocks_merge, ctx);
	return g <= p->merge_to;
}

static bool
may_merge(StorePlan *p, int from, int to)
{
	const Group *a = &p->groups.at[from], *b = &p->groups.at[to];

	if (from >= to || a->opaque || a->closed || !a->domain.reduction[ITER_FULL].n ||
	    a->domain.reduction[ITER_ROWS].n || !domain_equal(&a->domain, &b->domain))
		return false;
	p->merge_from = from;
	p->merge_to = to;
	for (int i = 0; i < a->members.n; i++)
		if (plan_any_reader(p, node_result(a->members.at[i], 0), blocks_merge, 0))
			return false;
	return true;
}

static void
forget_readers(StorePlan *p, const Group *g)
{
	for (int i = 0; i < g->members.n; i++)
		for (int k = 0; k < g->members.at[i]->n_results; k++)
			p->readers[node_result(g->members.at[i], k)->id] = 0;
}

static void
merge(StorePlan *p, int from, int to)
{
	Group *a = &p->groups.at[from], *b = &p->groups.at[to];

	forget_readers(p, a);
	forget_readers(p, b);
	a->merged_into = to;
	for (int i = 0; i < b->members.n; i++)
		vec_push(p->arena, &a->members, b->members.at[i]);
	b->members.at = a->members.at;
	b->members.n = a->members.n;
	b->members.cap = a->members.cap;
}

static void
merge_readers_of(StorePlan *p, Value *x, int to)
{
	int seen = 0;

	for_each_use(x, u) {
		if (++seen > 16 || fuse_class_of(u->user) == FUSE_NONE ||
		    plan_is_copied(p, u->user))
			continue;
		int from = plan_group_of(p, node_result(u->user, 0));
		if (from >= 0 && from != to && may_merge(p, from, to))
			merge(p, from, to);
	}
}

/* Merges earlier groups that reduce the same stored values by column into group gi. */
void
plan_merge_siblings(StorePlan *p, int gi)
{
	/* a copy, because merges change the group's list of members */
	const Group g = p->groups.at[gi];

	if (g.merged_into >= 0 || !reduce_form_by_column(&g.domain.reduction[ITER_FULL]))
		return;
	for (int i = 0; i < g.members.n; i++)
		for (int k = 0; k < g.members.at[i]->n_operands; k++)
			merge_readers_of(p, behind_views(node_operand(g.members.at[i], k)), gi);
}
