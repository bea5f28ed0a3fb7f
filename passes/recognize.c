/* Finds groups, nodes that are computed as a whole such as attention, and puts a call of a function
 * in their place (ir/groups/groups.h). A group has its own gradient, so this runs before autograd; groups that span both
 * passes are found by `ungroup`. Changes numbers by rounding only. Time: linear in nodes, because recognizers look at a
 * bounded number of nodes. */
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
run_recognize(Pass *p, Module *m)
{
	Recognition r = {.m = m,
	                 .scratch = p->scratch,
	                 .diag = p->diag,
	                 .by_hash = intmap_new(p->scratch),
	                 .said = strmap_new(p->scratch)};
	int n_functions = m->functions.n;

	for (int i = 0; i < n_functions; i++) {
		r.f = m->functions.at[i];
		if (r.f->kind != FUNCTION_PLAIN)
			continue;
		r.trained = trained_values(p, r.f);
		r.n_values = r.f->next_value_id;
		p->changed |= groups_recognize(&r);
	}
	return true;
}

static PassFinding
group_finding(int i)
{
	const GroupRow *row = group_row(i, false);

	return row ? (PassFinding){row->name, row->doc} : (PassFinding){0};
}

const PassRow pass_recognize = {.name = "recognize",
                                .help = "find groups: nodes that are computed as a whole",
                                .takes = STAGE_ANY,
                                .until = STAGE_TRAIN,
                                .leaves = STAGE_ANY,
                                .finding = group_finding,
                                .run = run_recognize};
