/* Replaces a call by the callee's nodes. The nodes get the call's phase, and a location inlined(call, node). A call
 * with a custom gradient stays until autograd has run; then the pipeline runs the pass with option `final`. Time:
 * linear in the resulting nodes. */
#include "passes/pass.h"

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
					call_inline(n);
					again = p->changed = true;
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
