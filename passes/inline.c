/* Calls become the callee's nodes. Custom gradients have done their work by then; the driver runs it
 * behind autograd. Linear in the nodes that result. */
#include "passes/pass.h"

static void
inline_call(Pass *p, Function *f, Node *call)
{
	const Function *callee = ((CallAttr *)call->attr)->callee;
	Value **map = NEW_ARRAY(p->scratch, Value *, callee->next_value_id);
	Node *ret = function_return(callee);

	for (int i = 0; i < callee->params.n; i++)
		map[callee->params.at[i]->id] = node_operand(call, i);
	function_clone_body(callee, f, call, map);
	for (int i = 0; i < call->n_results; i++)
		value_replace_uses(node_result(call, i), map[node_operand(ret, i)->id]);
	node_erase(call);
	p->changed = true;
}

static bool
run_inline(Pass *p, Module *m)
{
	bool again = true;

	for (int round = 0; again && round < 100; round++) {
		again = false;
		for_each_function(m, f)
			for_each_node(f, n)
				if (n->op == OP_call &&
				    ((CallAttr *)n->attr)->callee->kind == FUNCTION_PLAIN) {
					inline_call(p, f, n);
					again = true;
				}
	}
	return true;
}

const PassRow pass_inline = {.name = "inline",
                             .help = "put callees in place of calls",
                             .takes = STAGE_ANY,
                             .leaves = STAGE_ANY,
                             .run = run_inline};
