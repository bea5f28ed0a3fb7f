/* Decides which nodes form a group, that is, share a kernel. A group has a domain: full values,
 * row values (results of reductions) and chunk values (reductions of row values), see fuse.h. */
#include "codegen/fuse/plan.h"
#include "codegen/fuse/spaces.h"

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
		if (here == ITER_NONE || here == ITER_COLUMNS || (s != ITER_NONE && here != s))
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
	    (of == ITER_ROWS && (d->columns.n || reduce_form_by_column(&d->reduction[ITER_FULL]))))
		return ITER_NONE;
	ReduceForm form = reduce_form_of(n);
	if (of == ITER_FULL && d->reduction[of].n && !reduce_form_equal(&form, &d->reduction[of]))
		return plan_space_beside(p, &p->groups.at[gi], &form);
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
	if (g->domain.columns.n && dtype_info[node_result(n, 0)->type->dtype].bits < 8)
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
	IterSpace of = (IterSpace)p->space[node_result(other, 0)->id];
	*space = space_reduced(p, gi, n, of == ITER_COLUMNS ? ITER_FULL : (IterSpace)(of - 1));
	return *space != ITER_NONE ? gi : -1;
}

/* The group of a reduction of v, perhaps through reshapes, if n, a reduction of as many elements, fits there, too; -1:
 * no reduction does. */
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

/* The group of a reduction of other partial results that the same kernel computes, if n fits there; -1: no group does.
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
		                 ? plan_reducing_reader(p, node_result(m, 0))
		                 : -1;
		if (gi <= latest || !has_room(&p->groups.at[gi], n))
			continue;
		*space = space_reduced(p, gi, n, ITER_FULL);
		if (*space != ITER_NONE)
			return gi;
	}
	return -1;
}

/* Adds the reduction n, whose result is in space s, to the group's domain. */
static void
add_reduction(StorePlan *p, Group *g, const Node *n, IterSpace s)
{
	Domain *d = &g->domain;
	ReduceForm form = reduce_form_of(n);

	if (s == ITER_COLUMNS) {
		domain_add_columns(d, n);
		return;
	}
	if (s == ITER_ROWS && d->reduction[ITER_FULL].n &&
	    !reduce_form_equal(&form, &d->reduction[ITER_FULL])) {
		d->columns = d->reduction[ITER_FULL];
		d->elements[ITER_COLUMNS] = d->elements[ITER_ROWS];
		plan_make_columns(p, g);
	}
	domain_add_reduction(d, (IterSpace)(s - 1), n);
}

static void
join(StorePlan *p, int gi, Node *n, IterSpace s)
{
	Group *g = &p->groups.at[gi];

	if (s > ITER_FULL && reduces(n))
		add_reduction(p, g, n, s);
	for (int i = 0; i < n->n_results; i++)
		p->space[node_result(n, i)->id] = (uint8_t)s;
	p->group[n->id] = gi;
	vec_push(p->arena, &g->members, n);
	g->weight += op_row(n)->weight;
	vec_push(p->arena, &p->nodes, n);
}

/* Could group gi's nodes join the earlier group `to`, as row values, of which `to` has n? Each operand must be in memory by then, or be the
 * number of the same row. */
static bool
could_be_rows(const StorePlan *p, int gi, int64_t n, int to)
{
	const Group *g = &p->groups.at[gi];

	if (g->opaque || g->closed || g->domain.reduction[ITER_FULL].n ||
	    g->domain.elements[ITER_FULL] != n)
		return false;
	for (int i = 0; i < g->members.n; i++) {
		const Node *m = g->members.at[i];
		if (dtype_info[node_result(m, 0)->type->dtype].bits < 8)
			return false;
		for (int k = 0; k < m->n_operands; k++) {
			Value *v = node_operand(m, k);
			int from = v ? plan_group_of(p, v) : -1;
			if ((from != gi && from > to) ||
			    (from == to && space_read(p, to, v) != ITER_ROWS))
				return false;
		}
	}
	return true;
}

/* Members of group `from` move to the earlier group `to`, where they compute values in space s. */
static void
move_members(StorePlan *p, int from, int to, IterSpace s)
{
	Group *a = &p->groups.at[from], *b = &p->groups.at[to];

	for (int i = 0; i < a->members.n; i++) {
		for (int k = 0; k < a->members.at[i]->n_results; k++)
			p->space[node_result(a->members.at[i], k)->id] = (uint8_t)s;
		vec_push(p->arena, &b->members, a->members.at[i]);
	}
	b->weight += a->weight;
	a->merged_into = to;
}

/* n reads values of two groups. If the later one computes a number for each row that the earlier one reduces, and from values that
 * the earlier group could read, too, the later group's nodes join the earlier group. Example: the gradient of a layer norm multiplies the
 * sum of a row by the third power of 1 / deviation, which is computed behind the sum. Returns n's latest group. */
static int
join_row_values(StorePlan *p, const Node *n, int latest)
{
	if (p->target->kind != TARGET_TEAMS || fuse_class_of(n) != FUSE_ELEMENTWISE)
		return latest;
	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		int gi = v ? plan_group_of(p, v) : -1;
		if (gi < 0 || gi == latest || !p->groups.at[gi].domain.reduction[ITER_FULL].n ||
		    space_read(p, gi, v) != ITER_ROWS)
			continue;
		const Group *g = &p->groups.at[gi], *later = &p->groups.at[latest];
		if (!plan_fit_together(g, later) ||
		    !could_be_rows(p, latest, g->domain.elements[ITER_ROWS], gi))
			continue;
		move_members(p, latest, gi, ITER_ROWS);
		return gi;
	}
	return latest;
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
	latest = join_row_values(p, n, latest);
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
