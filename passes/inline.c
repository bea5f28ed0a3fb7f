/* Replaces a call by the callee's nodes. The nodes get the call's phase, and a location inlined(call, node). A call
 * with a custom gradient stays until autograd has run; then the pipeline runs the pass with option `final`. Time:
 * linear in the resulting nodes. */
#include "passes/pass.h"

static void
inline_call(Pass *p, Function *f, Node *call)
{
	const Function *callee = ((CallAttr *)call->attr)->callee;
	Value **map = NEW_ARRAY(p->scratch, Value *, callee->next_value_id);
	Node *ret = function_return(callee);

	for (int i = 0; i < callee->params.n; i++)
		map[callee->params.at[i]->id] = node_operand(call, i);
	Node *before = call->prev;
	function_clone_body(callee, f, call, map);
	for (Node *n = before ? before->next : f->first; n != call; n = n->next) {
		n->loc = loc_inline(f->module, call->loc, n->loc);
		n->phase = call->phase ? call->phase : n->phase;
		n->when = call->when ? call->when : n->when;
	}
	for (int i = 0; i < call->n_results; i++)
		value_replace_uses(node_result(call, i), map[node_operand(ret, i)->id]);
	node_erase(call);
	p->changed = true;
}

static bool
should_inline(const Pass *p, const Node *n)
{
	const Function *f = called_function(n);

	return f && f->kind == FUNCTION_PLAIN &&
	       (!((const CallAttr *)n->attr)->gradient ||
	        ((const InlineOptions *)p->options)->final);
}

static bool
run_inline(Pass *p, Module *m)
{
	bool again = true;

	/* A chain of calls has at most as many calls as there are functions. */
	for (int round = 0; again && round <= m->functions.n; round++) {
		again = false;
		for_each_function(m, f)
			for_each_node(f, n)
				if (should_inline(p, n)) {
					inline_call(p, f, n);
					again = true;
				}
	}
	return true;
}

static const PassOption inline_options[] = {{"final", "also inline calls with a custom gradient",
                                             OPTION_BOOL, offsetof(InlineOptions, final)},
                                            {0}};
const PassRow pass_inline = {.name = "inline",
                             .help = "put callees in place of calls",
                             .needed = true,
                             .takes = STAGE_ANY,
                             .leaves = STAGE_ANY,
                             .options = inline_options,
                             .options_size = sizeof(InlineOptions),
                             .run = run_inline};
