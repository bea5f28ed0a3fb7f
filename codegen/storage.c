/* States that share storage. */
#include "codegen/codegen.h"

static const Value *
value_of(const Function *f, const State *s)
{
	return s && s->id < f->by_state.n ? f->by_state.at[s->id] : NULL;
}

bool
storage_any_value(const Function *f, const State *s, bool (*visit)(void *ctx, const Value *old),
                  void *ctx)
{
	const Value *own = value_of(f, s), *unit = value_of(f, s->unit);

	if ((own && visit(ctx, own)) || (unit && visit(ctx, unit)))
		return true;
	for (int i = 0; i < f->states.n; i++)
		if (f->states.at[i]->state->unit == s && visit(ctx, f->states.at[i]))
			return true;
	return false;
}
