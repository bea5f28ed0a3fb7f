/* Elements at places that may lie outside of a value, as windows have at an image's edge: whatever is loaded for them is
 * loaded under a mask. */
#include "codegen/codegen.h"

LoopValue
lower_element_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside)
{
	LoopBuilder *lb = lw->lb;
	bool masked = lw->masked;
	LoopValue outer = lw->inside;

	if (inside < 0)
		return lower_element(lw, v, at);
	if (masked)
		inside = lb_binary(lb, LOOP_and, outer, inside);
	lw->masked = true;
	lw->inside = inside;
	LoopValue x = lower_element(lw, v, at);
	lw->masked = masked;
	lw->inside = outer;
	int made = lb->definitions.at[x];
	const LoopStatement *s = made >= 0 ? &lb->k->body.at[made] : NULL;
	if (s && s->kind == LOOP_STATEMENT_LOAD && s->n_operands && s->operands[0] == inside)
		return x;
	/* Computed, not loaded. */
	return lb_select(lb, inside, x, lb_number(lb, lb_type(lb, x), 0));
}
