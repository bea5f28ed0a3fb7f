/* For GPU targets: replaces a scatter by a sort of its indices and a scatter_sorted, because the
 * sort runs in many parallel parts. The sort is stable, so the updates of one index stay in their
 * order. Indices out of range come before and after all valid ones.
 *
 *	scatter x, i, u   =   scatter_sorted x, sorted, u, order   where   sorted, order = sort i */
#include "codegen/fuse/fuse.h"
#include "codegen/legalize/rewrites.h"

/* Are the indices 0, 1, 2 ..., as in the gradient of position embeddings? Then no sort is needed. */
static bool
counts_up(Value *indices)
{
	Value *v = behind_reshapes(indices);
	const IotaAttr *a = v->node && v->node->op == OP_iota ? v->node->attr : NULL;

	return a && v->type->dims[a->axis] == v->type->n;
}

static void
sort_updates(Node *n)
{
	const ScatterAttr *a = n->attr;
	Builder b = {.m = n->function->module,
	             .f = n->function,
	             .before = n,
	             .loc = n->loc,
	             .phase = n->phase};
	Value *data = node_operand(n, 0), *indices = node_operand(n, 1);
	int64_t count = indices->type->n;
	Ints shape = ints_of_type(data->type), line = {.n = 1, .at = {count}};
	Value *sorted = b_reshape(&b, indices, line), *order;

	if (counts_up(indices)) {
		order = b_iota(&b, S64, line, 0);
	} else {
		const Node *sort = build(&b, OP_sort, 1, &sorted, &(SortAttr){.axis = 0})->node;
		sorted = node_result(sort, 0);
		order = node_result(sort, 1);
	}
	shape.at[a->axis] = count;
	Value *operands[] = {data, sorted, b_reshape(&b, node_operand(n, 2), shape), order};
	value_replace_uses(node_result(n, 0), build(&b, OP_scatter_sorted, 4, operands, a));
	node_erase(n);
}

void
scatters_sort(Function *f, const Target *t)
{
	int64_t least = t->tuning->scatter.least_sorted;

	for_each_node(f, n) {
		int64_t count = n->op == OP_scatter ? node_operand(n, 1)->type->n : 0;
		if (least && count >= least && count <= LONGEST_SPLIT && node_result(n, 0)->type->n)
			sort_updates(n);
	}
}
