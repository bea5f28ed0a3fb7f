/* Finds states that share storage: a unit (the states of a layer block, stored together) shares
 * storage with each of its members. */
#include "codegen/schedule/order.h"

static const Value *
value_of(const Function *f, const State *s)
{
	return s && s->id < f->by_state.n ? f->by_state.at[s->id] : NULL;
}

/* The list of the states in a unit, made at the first call. */
static StateValues *
members_of(Arena *arena, Storage *storage, const State *unit)
{
	uint64_t i;

	if (!intmap_get(storage->members, unit->id, &i)) {
		i = (uint64_t)storage->lists.n;
		intmap_put(storage->members, unit->id, i);
		vec_push(arena, &storage->lists, ((StateValues){0}));
	}
	return &storage->lists.at[i];
}

Storage
storage_of(Arena *arena, const Function *f)
{
	Storage storage = {.f = f, .members = intmap_new(arena)};

	for (int i = 0; i < f->states.n; i++) {
		const State *unit = f->states.at[i]->state->unit;
		for (; unit; unit = unit->unit)
			vec_push(arena, members_of(arena, &storage, unit), f->states.at[i]);
	}
	return storage;
}

bool
storage_any_value(const Storage *storage, const State *s,
                  bool (*visit)(void *ctx, const Value *old), void *ctx)
{
	uint64_t list;

	for (const State *around = s; around; around = around->unit) {
		const Value *v = value_of(storage->f, around);
		if (v && visit(ctx, v))
			return true;
	}
	if (!intmap_get(storage->members, s->id, &list))
		return false;
	const StateValues *members = &storage->lists.at[list];
	for (int i = 0; i < members->n; i++)
		if (visit(ctx, members->at[i]))
			return true;
	return false;
}
