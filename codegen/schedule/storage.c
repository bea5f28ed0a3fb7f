/* Finds states that share storage: a unit (the states of a layer block, stored together) shares
 * storage with each of its members. */
#include "codegen/schedule/order.h"

static const Value *
value_of(const Function *f, const State *s)
{
	return s && s->id < f->by_state.n ? f->by_state.at[s->id] : NULL;
}

static bool
lies_in(const State *s, const State *unit)
{
	for (s = s->unit; s && s != unit; s = s->unit)
		;
	return s != NULL;
}

bool
storage_any_value(const Function *f, const State *s, bool (*visit)(void *ctx, const Value *old),
                  void *ctx)
{
	for (const State *around = s; around; around = around->unit) {
		const Value *v = value_of(f, around);
		if (v && visit(ctx, v))
			return true;
	}
	for (int i = 0; i < f->states.n; i++)
		if (lies_in(f->states.at[i]->state, s) && visit(ctx, f->states.at[i]))
			return true;
	return false;
}
