/* Puts the nodes of a called function in place of the call. */
#include "ir/ir.h"

void
call_inline(Node *call)
{
	Function *f = call->function;
	const Function *callee = called_function(call);
	Arena *scratch = arena_new();
	Value **map = NEW_ARRAY(scratch, Value *, callee->next_value_id);
	Node *ret = function_return(callee), *before = call->prev;

	for (int i = 0; i < callee->params.n; i++)
		map[callee->params.at[i]->id] = node_operand(call, i);
	function_clone_body(callee, f, call, map);
	for (Node *n = before ? before->next : f->first; n != call; n = n->next) {
		n->loc = loc_inline(f->module, call->loc, n->loc);
		n->phase = call->phase ? call->phase : n->phase;
		n->when = call->when ? call->when : n->when;
	}
	for (int i = 0; i < call->n_results; i++)
		value_replace_uses(node_result(call, i), map[node_operand(ret, i)->id]);
	node_erase(call);
	arena_free(scratch);
}
