/* Finds groups, nodes that are computed as a whole such as attention, and puts a call of a function
 * in their place (ir/groups/groups.h). Two passes: `recognize` runs before autograd, because its groups have
 * gradients of their own; `recognize_backward` runs after autograd.
 * Changes numbers by rounding only. Time: linear in nodes, because recognizers look at a bounded
 * number of nodes. */
#include "ir/groups/groups.h"
#include "passes/pass.h"

/* By value id: the floats of f that depend on a trained parameter. What a function that others call
 * gets as an argument may. */
static bool *
trained_values(Pass *p, const Function *f)
{
	bool *trained = NEW_ARRAY(p->scratch, bool, f->next_value_id);

	for (int i = 0; i < f->states.n; i++)
		trained[f->states.at[i]->id] = f->states.at[i]->state->trainable;
	for (int i = 0; i < f->params.n; i++)
		trained[f->params.at[i]->id] = f->params.at[i]->param == PARAM_ARGUMENT;
	for_each_node(f, n) {
		bool any = false;
		for (int i = 0; i < n->n_operands; i++)
			any |= node_operand(n, i) && trained[node_operand(n, i)->id];
		for (int i = 0; i < n->n_results; i++)
			trained[node_result(n, i)->id] =
				any && dtype_is_float(node_result(n, i)->type->dtype);
	}
	return trained;
}

static bool
recognize(Recognition *r, bool backward, Node *n)
{
	for (int i = 0; group_table[i]; i++)
		if (group_table[i]->recognize && group_table[i]->spans_backward == backward &&
		    group_table[i]->recognize(r, n))
			return true;
	return false;
}

/* backward: looks for groups that span the forward and the backward pass; else for other groups */
static bool
find_groups(Pass *p, Module *m, bool backward)
{
	Recognition r = {.m = m,
	                 .scratch = p->scratch,
	                 .diag = p->diag,
	                 .by_hash = intmap_new(p->scratch),
	                 .said = strmap_new(p->scratch)};
	int n_functions = m->functions.n;

	for (int i = 0; i < n_functions; i++) {
		bool changed = false;
		r.f = m->functions.at[i];
		if (r.f->kind != FUNCTION_PLAIN)
			continue;
		r.trained = trained_values(p, r.f);
		r.n_values = r.f->next_value_id;
		for_each_node(r.f, n)
			changed |= recognize(&r, backward, n);
		if (changed)
			function_drop_unread(r.f);
		p->changed |= changed;
	}
	return true;
}

static PassFinding
finding(int i, bool backward)
{
	for (int k = 0; group_table[k]; k++)
		if (group_table[k]->spans_backward == backward && i-- == 0)
			return (PassFinding){group_table[k]->name, group_table[k]->doc};
	return (PassFinding){0};
}

static bool
run_recognize(Pass *p, Module *m)
{
	return find_groups(p, m, false);
}

static PassFinding
group_finding(int i)
{
	return finding(i, false);
}

const PassRow pass_recognize = {.name = "recognize",
                                .help = "find groups: nodes that are computed as a whole",
                                .takes = STAGE_ANY,
                                .until = STAGE_TRAIN,
                                .leaves = STAGE_ANY,
                                .finding = group_finding,
                                .run = run_recognize};

static bool
run_recognize_backward(Pass *p, Module *m)
{
	return find_groups(p, m, true);
}

static PassFinding
backward_finding(int i)
{
	return finding(i, true);
}

const PassRow pass_recognize_backward = {
	.name = "recognize_backward",
	.help = "find groups that span the forward and the backward pass",
	.when = PASS_WITH_LOSS,
	.takes = STAGE_TRAIN,
	.leaves = STAGE_ANY,
	.finding = backward_finding,
	.run = run_recognize_backward};
