/* The pass `one_micro_batch` (--max-accumulate=1): no step has later micro-batches, so the stores of later micro-batches
 * are dropped.
 *
 *	%s = add @grad.w, %g
 *	store %g {state = @grad.w} when first     ->     store %g {state = @grad.w}
 *	store %s {state = @grad.w} when later
 *
 * `simplify` then drops what nothing reads. Otherwise the memory plan would have room for the old sum and for its addend. Sums of losses and counts stay: an evaluation adds them up over any number of micro-batches, and a count of NaN
 * stops a step whose rows cannot be read. */
#include "passes/pass.h"

static bool
run_one_micro_batch(Pass *p, Module *m)
{
	for_each_function(m, f)
		for_each_node(f, n) {
			const State *s = n->when == WHEN_ALWAYS ? NULL : stored_state(n);
			if (!s || s->kind != STATE_GRADIENT)
				continue;
			if (n->when == WHEN_LATER)
				node_erase(n);
			else
				n->when = WHEN_ALWAYS;
			p->changed = true;
		}
	return true;
}

const PassRow pass_one_micro_batch = {
	.name = "one_micro_batch",
	.help = "drop what later micro-batches of a step would add to gradients",
	.takes = STAGE_ANY,
	.until = STAGE_TRAIN,
	.leaves = STAGE_ANY,
	.when = PASS_WHEN_ASKED,
	.run = run_one_micro_batch};
