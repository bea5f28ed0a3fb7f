/* A newer opset for a model whose operators mean the same there. */
#include "frontend/frontend_impl.h"

#include <string.h>

/* Operators that changed their meaning, not their inputs or attributes: until opset 12 they flatten, and take axis 1. */
static bool
changed_silently(const char *op, int from, int to)
{
	static const char *const ops[] = {"Softmax", "LogSoftmax", "Hardmax"};

	for (int i = 0; i < COUNT(ops); i++)
		if (!strcmp(ops[i], op))
			return from < 13 && to >= 13;
	return false;
}

/* Does the operator mean the same in both opsets? Of others with the same inputs, outputs and attributes newer versions add types. */
static bool
means_the_same(const NodeProto *p, int from, int to)
{
	const SchemaRow *a = schema_find(p->op_type, from), *b = schema_find(p->op_type, to);

	if (*domain_of(p->domain) || a == b)
		return true;
	return !changed_silently(p->op_type, from, to) &&
	       (a && b && a->min_in == b->min_in && a->max_in == b->max_in &&
	        a->max_out == b->max_out && a->required == b->required &&
	        !strcmp(a->attributes, b->attributes));
}

bool
model_raise_opset(Model *model, int to, Diag *diag)
{
	ModelProto *m = model->proto;
	int before = diag_errors(diag);

	if (to < model->opset || to > NEWEST_OPSET) {
		diag_error(diag, EXIT_USAGE, "--opset=%d: need %d, the model's, to %d", to,
		           model->opset, NEWEST_OPSET);
		return false;
	}
	for (int i = 0; i < model->nodes.n && to != model->opset; i++) {
		const FlatNode *n = &model->nodes.at[i];
		if (!means_the_same(n->proto, model->opset, to))
			node_error(model, diag, n, EXIT_UNSUPPORTED,
			           "opset %d has another %s: convert the model first", to,
			           n->proto->op_type);
	}
	if (m->n_functions && to != model->opset)
		model_error(model, diag, EXIT_UNSUPPORTED,
		            "--opset: the model has functions of its own");
	for (size_t i = 0; i < m->n_opset_import; i++)
		if (!*domain_of(m->opset_import[i]->domain))
			m->opset_import[i]->version = to;
	return diag_errors(diag) == before;
}
