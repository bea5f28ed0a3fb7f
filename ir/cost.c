/* The cost of a node. The number of arithmetic operations comes from the column `flops` of its
 * op, the number of bytes from the types of its operands and results. */
#include "ir/ir.h"

int64_t
flops_none(const Node *n)
{
	(void)n;
	return 0;
}

int64_t
flops_one(const Node *n)
{
	return node_result(n, 0)->type->n;
}

int64_t
flops_two(const Node *n)
{
	return 2 * node_result(n, 0)->type->n;
}

int64_t
flops_per_operand(const Node *n)
{
	return node_operand(n, 0)->type->n;
}

/* Is operand i the same value as an earlier operand? Its bytes count once. */
static bool
is_repeated(const Node *n, int i)
{
	for (int k = 0; k < i; k++)
		if (node_operand(n, k) == node_operand(n, i))
			return true;
	return false;
}

Cost
node_cost(const Node *n)
{
	Cost c = {.flops = op_row(n)->flops(n)};

	for (int i = 0; i < n->n_operands; i++)
		if (node_operand(n, i) && !is_repeated(n, i))
			c.bytes += type_bytes(node_operand(n, i)->type);
	for (int i = 0; i < n->n_results; i++)
		c.bytes += type_bytes(node_result(n, i)->type);
	return c;
}

int64_t
function_flops(const Function *f)
{
	int64_t flops = 0;

	for_each_node(f, n)
		flops += op_row(n)->flops(n);
	return flops;
}

int64_t
first_micro_batch_flops(const Module *m)
{
	int64_t flops = 0;
	const Function *f = module_first(m, ROLE_ACCUMULATE);

	if (!f)
		return 0;
	for_each_node(f, n)
		if (when_runs(n->when) & when_runs(WHEN_FIRST))
			flops += node_cost(n).flops;
	return flops;
}
