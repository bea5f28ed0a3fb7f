/* Splits the sort of a long line: short runs are sorted, then merged two by two. Each step is a
 * kernel with many parallel parts, and writes its result to memory.
 *
 *	sort f32[1000]   =   sort_runs {from = 1, to = 256}, {from = 256, to = 512}, {from = 512, to = 1024}
 *
 * from, to: lengths of the sorted runs before and after the step. */
#include "codegen/legalize/rewrites.h"

/* Lines longer than LONG_LINE are split, first into runs of RUN elements. Longer runs would cost
 * more: a sorting network takes more steps per element the longer the run is. Lines longer than
 * LONGEST_SPLIT are not split: only up to that length it is proven that the indices of a pair of
 * runs stay within the line (ir/loop/place.c). */
enum { LONG_LINE = 512, RUN = 256 };

static void
split(Node *n)
{
	const SortAttr *a = n->attr;
	Builder b = {.m = n->function->module,
	             .f = n->function,
	             .before = n,
	             .loc = n->loc,
	             .phase = n->phase};
	Type x = node_operand(n, 0)->type;
	SortRunsAttr runs = {a->axis, 1, RUN, a->descending};
	Value *sorted[2] = {node_operand(n, 0), b_iota(&b, S64, ints_of_type(x), (int)a->axis)};

	for (;;) {
		const Node *step = build(&b, OP_sort_runs, 2, sorted, &runs)->node;
		sorted[0] = node_result(step, 0);
		sorted[1] = node_result(step, 1);
		if (runs.to >= x->dims[a->axis])
			break;
		runs.from = runs.to;
		runs.to *= 2;
	}
	for (int i = 0; i < 2; i++)
		value_replace_uses(node_result(n, i), sorted[i]);
	node_erase(n);
}

void
sorts_split(Function *f)
{
	for_each_node(f, n) {
		Type x = n->op == OP_sort ? node_operand(n, 0)->type : NULL;
		int64_t size = x && x->n ? x->dims[((const SortAttr *)n->attr)->axis] : 0;
		if (size > LONG_LINE && size <= LONGEST_SPLIT)
			split(n);
	}
}
