/* Merges groups that reduce shared operands. An earlier group moves to a later one, so nothing in between may need its results. */
#include "codegen/fuse/plan.h"
#include "codegen/fuse/spaces.h"

int
plan_reducing_reader(const StorePlan *p, const Value *v)
{
	for_each_use(v, u) {
		Value *y = u->user->n_results ? node_result(u->user, 0) : NULL;
		int gi = reduces(u->user)               ? plan_own_group(p, u->user)
		         : y && behind_reshapes(y) != y ? plan_reducing_reader(p, y)
		                                        : -1;
		if (gi >= 0)
			return gi;
	}
	return -1;
}

/* Must the reader run before group merge_to ends? inside: merge_to itself may read the value, which has an element for each iteration. */
static bool
blocks_merge(const StorePlan *p, const Node *reader, int inside)
{
	if (fuse_class_of(reader) == FUSE_NONE)
		return false;
	int g = plan_own_group(p, reader);
	/* its readers compute the value again, so they read the value's operands */
	if (g == p->merge_from)
		return p->recomputed[node_result(reader, 0)->id] &&
		       plan_any_reader(p, node_result(reader, 0), blocks_merge, inside);
	return inside ? g < p->merge_to : g <= p->merge_to;
}

static bool
may_merge(StorePlan *p, int from, int to)
{
	const Group *a = &p->groups.at[from], *b = &p->groups.at[to];

	if (from >= to || a->opaque || a->closed || !a->domain.reduction[ITER_FULL].n ||
	    a->domain.reduction[ITER_ROWS].n || !plan_fit_together(a, b))
		return false;
	bool columns = plan_columns_merge(p, a, b);
	if (!columns && (b->domain.columns.n || !domain_equal(&a->domain, &b->domain)))
		return false;
	p->merge_from = from;
	p->merge_to = to;
	for (int i = 0; i < a->members.n; i++) {
		Value *v = node_result(a->members.at[i], 0);
		if (plan_any_reader(p, v, blocks_merge, columns && p->space[v->id] == ITER_FULL))
			return false;
	}
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
	if (b->domain.columns.n)
		plan_make_columns(p, a);
	a->merged_into = to;
	b->weight += a->weight;
	for (int i = 0; i < b->members.n; i++)
		vec_push(p->arena, &a->members, b->members.at[i]);
	b->members.at = a->members.at;
	b->members.n = a->members.n;
	b->members.cap = a->members.cap;
}

/* Group a's sums of columns are about to move to group `to`, behind the groups that add up a's sums. Those groups move, too: to the group
 * that adds up the sums of `to`. */
static void
merge_second_stages(StorePlan *p, const Group *a, int to)
{
	const Group *b = &p->groups.at[to];

	for (int i = 0; i < a->members.n; i++) {
		const Node *m = a->members.at[i];
		int first = reduces(m) ? plan_reducing_reader(p, node_result(m, 0)) : -1;
		for (int k = 0; k < b->members.n && first >= 0 && first < to; k++) {
			Value *v = node_result(b->members.at[k], 0);
			int second = p->space[v->id] == ITER_COLUMNS ? plan_reducing_reader(p, v)
			                                             : -1;
			if (second > to && may_merge(p, first, second)) {
				merge(p, first, second);
				break;
			}
		}
	}
}

static void
merge_readers_of(StorePlan *p, Value *x, int to)
{
	int seen = 0;

	for_each_use(x, u) {
		if (++seen > 16 || fuse_class_of(u->user) == FUSE_NONE)
			continue;
		if (plan_is_copied(p, u->user)) {
			if (p->groups.at[to].domain.columns.n)
				merge_readers_of(p, node_result(u->user, 0), to);
			continue;
		}
		int from = plan_group_of(p, node_result(u->user, 0));
		if (from < 0 || from == to)
			continue;
		if (from < to && plan_columns_merge(p, &p->groups.at[from], &p->groups.at[to]))
			merge_second_stages(p, &p->groups.at[from], to);
		if (may_merge(p, from, to))
			merge(p, from, to);
	}
}

void
plan_merge_siblings(StorePlan *p, int gi)
{
	/* a copy, because merges change the group's list of members */
	const Group g = p->groups.at[gi];

	if (g.merged_into >= 0 ||
	    !(g.domain.columns.n || reduce_form_by_column(&g.domain.reduction[ITER_FULL])))
		return;
	for (int i = 0; i < g.members.n; i++)
		for (int k = 0; k < g.members.at[i]->n_operands; k++)
			merge_readers_of(p, behind_views(node_operand(g.members.at[i], k)), gi);
}
