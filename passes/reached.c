/* Finds, before autograd runs, the trained parameters on which some program's loss depends. To find them, copies of the
 * programs are differentiated. */
#include "passes/pass.h"

static void
mark_reached(Function *f, Arena *arena, bool *reached)
{
	Module *m = f->module;
	const Node *store = function_store_of(f, module_state_of_kind(m, STATE_LOSS_SUM));
	VEC(State *) params = {0};
	VEC(Value *) wanted = {0};

	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (s->kind != STATE_PARAMETER || !s->trainable)
			continue;
		vec_push(arena, &params, s);
		vec_push(arena, &wanted, function_state(f, s));
	}
	Builder b = {.m = m, .f = f, .before = function_stores(f)};
	Value *sum = store ? node_operand(store, 0) : NULL;
	Value **out = NEW_ARRAY(arena, Value *, wanted.n + 1);
	GradSeed seed = {sum, sum ? b_splat(&b, sum->type, 1) : NULL};
	/* If an op has no gradient, count every parameter as reached: autograd reports the op later. */
	bool built = sum && gradient_build(&b, 1, &seed, wanted.n, wanted.at, out, NULL);
	for (int i = 0; i < params.n; i++)
		reached[params.at[i]->id] |= !built || out[i];
}

bool *
parameters_reached(Module *m, Arena *arena)
{
	bool *reached = NEW_ARRAY(arena, bool, m->states.n + 1);

	if (!module_first(m, ROLE_ACCUMULATE)) /* no loss yet: every trained parameter counts */
		for (int i = 0; i < m->states.n; i++)
			reached[i] = m->states.at[i]->kind == STATE_PARAMETER &&
			             m->states.at[i]->trainable;
	for_each_of_role(m, ROLE_ACCUMULATE, f) {
		Function *copy = function_clone(f, module_fresh_name(m, "reached"));
		mark_reached(copy, arena, reached);
		function_remove(copy);
	}
	return reached;
}
