/* Groups that reduce rows and, beside that, sum the columns of blocks of rows (Domain.columns). Example: the gradient of a layer norm, with the
 * gradients of its weight and bias. Only teams do this (codegen/lower/block_columns.c). */
#include "codegen/fuse/plan.h"
#include "codegen/fuse/spaces.h"

/* Does m read a sum of its own group, perhaps through views? */
static bool
reads_own_sum(const StorePlan *p, const Node *m)
{
	for (int i = 0; i < m->n_operands; i++) {
		const Value *x = node_operand(m, i) ? behind_views(node_operand(m, i)) : NULL;
		if (x && x->node && p->space[x->id] == ITER_ROWS &&
		    plan_own_group(p, x->node) == plan_own_group(p, m))
			return true;
	}
	return false;
}

/* Does the group compute nothing from its sums of columns? */
static bool
only_reduces(const StorePlan *p, const Group *g)
{
	for (int i = 0; i < g->members.n; i++)
		if (reads_own_sum(p, g->members.at[i]))
			return false;
	return true;
}

static int
count_reductions(const Group *g, const ReduceForm *form)
{
	int n = 0;

	for (int i = 0; i < g->members.n; i++) {
		ReduceForm of = reduces(g->members.at[i]) ? reduce_form_of(g->members.at[i])
		                                          : (ReduceForm){0};
		n += of.n && reduce_form_equal(&of, form);
	}
	return n;
}

/* Do all members have results of whole bytes? Members of a team cannot share a byte. */
static bool
has_whole_bytes(const Group *g)
{
	for (int i = 0; i < g->members.n; i++)
		if (dtype_info[node_result(g->members.at[i], 0)->type->dtype].bits < 8)
			return false;
	return true;
}

/* May the group have `sums` sums of columns in this form, beside reductions of rows? There must be enough blocks of rows. */
static bool
takes_columns(const StorePlan *p, const Group *g, const ReduceForm *rows, const ReduceForm *columns,
              int sums)
{
	const Target *t = p->target;

	return t->kind == TARGET_TEAMS && !g->domain.reduction[ITER_ROWS].n && has_whole_bytes(g) &&
	       domain_takes_columns(rows, columns) && columns_fit(t, columns, sums) &&
	       columns_have_blocks(t, g->domain.elements[ITER_FULL], columns->extent[0], p->parts);
}

IterSpace
plan_space_beside(const StorePlan *p, const Group *g, const ReduceForm *form)
{
	const ReduceForm *first = &g->domain.reduction[ITER_FULL], *columns = &g->domain.columns;

	if (columns->n && !reduce_form_equal(form, columns))
		return ITER_NONE;
	if (takes_columns(p, g, first, form, 1 + count_reductions(g, form)))
		return ITER_COLUMNS;
	bool rows = !columns->n && takes_columns(p, g, form, first, count_reductions(g, first));
	return rows && only_reduces(p, g) ? ITER_ROWS : ITER_NONE;
}

void
plan_make_columns(StorePlan *p, const Group *g)
{
	for (int i = 0; i < g->members.n; i++) {
		uint8_t *space = &p->space[node_result(g->members.at[i], 0)->id];
		if (*space == ITER_ROWS)
			*space = ITER_COLUMNS;
	}
}

bool
plan_columns_merge(const StorePlan *p, const Group *a, const Group *b)
{
	const ReduceForm *form = &b->domain.columns;

	return form->n && a->domain.elements[ITER_FULL] == b->domain.elements[ITER_FULL] &&
	       reduce_form_equal(&a->domain.reduction[ITER_FULL], form) && only_reduces(p, a) &&
	       has_whole_bytes(a) &&
	       columns_fit(p->target, form, count_reductions(a, form) + count_reductions(b, form));
}
