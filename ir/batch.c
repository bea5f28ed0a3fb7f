/* Which axis of each value counts the rows of a micro-batch: forward along the nodes, through the factors by which
 * sharding cuts them. A reduction over the rows, a mixture of them, or a value without them ends it. Linear. */
#include "ir/ir.h"

static void
follow(const Partition *p, int operand, int axis, int64_t rows, int *axes)
{
	const Factor *f = partition_of_operand(p, operand, axis);

	if (!f || f->combine != COMBINE_JOIN || !factor_divides(f, rows))
		return;
	for (int i = 0; i < p->node->n_results; i++)
		if (f->result[i].kind == SHARE_CUT)
			axes[node_result(p->node, i)->id] = f->result[i].axis;
}

int *
batch_axes(Arena *arena, const Function *f, int64_t rows, const bool *has_rows)
{
	int *axes = NEW_ARRAY(arena, int, f->next_value_id);
	Arena *scratch = arena_new();

	for (uint32_t i = 0; i < f->next_value_id; i++)
		axes[i] = -1;
	for (int i = 0; i < f->params.n; i++)
		if (has_rows[i])
			axes[f->params.at[i]->id] = 0;
	for_each_node(f, n) {
		bool any = false;
		for (int i = 0; i < n->n_operands; i++)
			any |= node_operand(n, i) && axes[node_operand(n, i)->id] >= 0;
		if (!any)
			continue;
		Partition p = node_partition(scratch, n);
		for (int i = 0; i < n->n_operands; i++)
			if (node_operand(n, i) && axes[node_operand(n, i)->id] >= 0)
				follow(&p, i, axes[node_operand(n, i)->id], rows, axes);
	}
	arena_free(scratch);
	return axes;
}
