/* Freezes weights on which no loss depends, and warns of options that match only such weights.
 * `gradc check`, which runs no autograd, needs this, too. */
#include "driver/driver.h"

#include <string.h>

/* Runs the pass straight_through, which has not run because there is no loss. Only after this pass
 * do gradients pass through quantized weights (integer codes). */
static void
pass_codes(Session *s)
{
	Pipeline p = {0};
	PassManagerOptions o = {0};

	vec_push(s->arena, &p, pass_call(s->arena, &pass_straight_through));
	pipeline_run(&p, s->m, &s->stage, &o, s->diag);
}

/* A loss reads all outputs, or the output that --loss names. A weight that these outputs do not
 * depend on cannot be trained. */
void
session_freeze_unreached(Session *s)
{
	if (!s->has_loss)
		pass_codes(s);
	Function *f = module_first(s->m, ROLE_FORWARD);
	Function *d = function_clone(f, module_fresh_name(s->m, "reached"));
	Node *ret = function_return(d);
	Builder b = {.m = s->m, .f = d, .before = ret};
	GradSeed *seeds = NEW_ARRAY(s->arena, GradSeed, ret->n_operands);
	VEC(State *) params = {0};
	VEC(Value *) wanted = {0};
	int n = 0;

	for (int i = 0; i < ret->n_operands; i++) {
		Value *v = node_operand(ret, i);
		if (dtype_is_float(v->type->dtype) && (!s->has_loss || s->loss.output == i))
			seeds[n++] = (GradSeed){v, b_splat(&b, v->type, 1)};
	}
	for (int i = 0; i < s->m->states.n; i++) {
		State *state = s->m->states.at[i];
		if (state->kind != STATE_PARAMETER || !state->trainable)
			continue;
		vec_push(s->arena, &params, state);
		vec_push(s->arena, &wanted, function_state(d, state));
	}
	Value **out = NEW_ARRAY(s->arena, Value *, wanted.n + 1);
	bool built = n > 0 && gradient_build(&b, n, seeds, wanted.n, wanted.at, out, NULL);
	for (int i = 0; built && i < params.n; i++)
		if (!out[i]) {
			params.at[i]->trainable = false;
			params.at[i]->why = s->has_loss ? "the loss does not reach it"
			                                : "no gradient reaches it";
		}
	function_remove(d);
}

void
session_warn_idle_rules(const Session *s)
{
	bool any = false;

	for (int k = 0; k < s->m->states.n; k++)
		any |= s->m->states.at[k]->kind == STATE_PARAMETER && s->m->states.at[k]->trainable;
	if (!any)
		diag_warning(s->diag, "%s: nothing is trained: no parameter is trainable",
		             s->o->input);
	for (int i = 0; i < s->o->rules.n; i++) {
		const ParameterRule *rule = &s->o->rules.at[i];
		const State *taken = NULL;
		bool trains = rule->verb == RULE_FREEZE || rule->verb == RULE_INIT;
		for (int k = 0; k < s->m->states.n; k++) {
			const State *state = s->m->states.at[k];
			if (state->kind != STATE_PARAMETER || !state_matches(state, rule->glob))
				continue;
			taken = taken ? taken : state;
			trains |= state->trainable;
		}
		if (trains || !taken)
			continue;
		diag_warning(s->diag,
		             "--%s=%s: no parameter that it matches is trained (\"%s\": %s)",
		             rule_verbs[rule->verb], rule->glob, taken->name,
		             taken->why ? taken->why : "frozen");
	}
}
