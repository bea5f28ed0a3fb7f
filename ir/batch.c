/* Which axis of each value counts the rows of a micro-batch: x[rows,k] y[k,j] has it as axis 0. Found forward along the
 * nodes, through the factors by which sharding cuts them. A sum over the rows has no batch axis, nor has a node whose
 * operands disagree: z[rows,k] z[rows,k] transposed counts rows along both axes. Linear in nodes. */
#include "ir/ir.h"

enum { NO_BATCH_AXIS = -1, DISAGREE = -2 };

/* An operand of p's node has the batch axis `axis`: that of the results follows. */
static void
propagate_axis(const Partition *p, int operand, int axis, int64_t rows, int *axes)
{
	const Factor *f = partition_of_operand(p, operand, axis);

	if (!f || !factor_divides(f, rows))
		return;
	for (int i = 0; i < p->node->n_results; i++) {
		int *at = &axes[node_result(p->node, i)->id];
		if (f->result[i].kind != SHARE_CUT)
			continue;
		*at = *at == NO_BATCH_AXIS || *at == f->result[i].axis ? f->result[i].axis
		                                                       : DISAGREE;
	}
}

int *
batch_axes(Arena *arena, const Function *f, int64_t *rows)
{
	int *axes = NEW_ARRAY(arena, int, f->next_value_id);
	Arena *scratch = arena_new();

	for (uint32_t i = 0; i < f->next_value_id; i++)
		axes[i] = NO_BATCH_AXIS;
	*rows = 0;
	for (int i = 0; i < f->params.n; i++) {
		const Value *v = f->params.at[i];
		if (!v->has_rows || (*rows && v->type->dims[0] != *rows))
			continue;
		axes[v->id] = 0;
		*rows = v->type->dims[0];
	}
	for_each_node(f, n) {
		bool any = false;
		for (int i = 0; i < n->n_operands; i++)
			any |= node_operand(n, i) && axes[node_operand(n, i)->id] >= 0;
		if (!any)
			continue;
		Partition p = node_partition(scratch, n);
		for (int i = 0; i < n->n_operands; i++)
			if (node_operand(n, i) && axes[node_operand(n, i)->id] >= 0)
				propagate_axis(&p, i, axes[node_operand(n, i)->id], *rows, axes);
		for (int i = 0; i < n->n_results; i++)
			if (axes[node_result(n, i)->id] == DISAGREE)
				axes[node_result(n, i)->id] = NO_BATCH_AXIS;
	}
	arena_free(scratch);
	return axes;
}
