/* Builds the refresh function, for optimizers that estimate something from labels drawn from the model (Sophia's
 * curvature). After a step's update the trainer runs @estimate over the step's micro-batches. @estimate stores its
 * gradients in place of the step's gradients. Then the trainer runs @refresh. If the estimate is not finite, or
 * training has failed, states keep their content bit for bit. */
#include "passes/update/build.h"

#include <string.h>

/* bool[]: may the optimizer learn from the estimate? */
static Value *
is_sound(Optimizer *o, const Counted *c)
{
	Builder *b = &o->b;
	Value *failed = function_state(o->f, module_state_of_kind(o->m, STATE_FAILED));
	Value *finite = is_finite(b, gradient_norm(o, c->gradient_scale, NULL));

	return b_binary(b, OP_and, b_binary(b, OP_and, c->counted, finite),
	                b_unary(b, OP_not, failed));
}

/* Builds @refresh. Uses the Optimizer that has built @update, and overwrites its function,
 * builder and new numbers. */
void
refresh_build(Optimizer *o)
{
	Builder *b = &o->b;
	NewContents new = {0};

	o->f = program_new(o->m, ROLE_REFRESH, 0);
	*b = (Builder){
		.m = o->m, .f = o->f, .loc = loc_name(o->m, "optimizer"), .phase = PHASE_UPDATE};
	Counted c = read_loss(o);
	Value *updates = function_state(o->f, module_state_of_kind(o->m, STATE_UPDATES));
	Shared shared = {.scale = c.gradient_scale,
	                 .t = b_cast(b, updates, F64),
	                 .count = b_cast(b, c.count, F64),
	                 .go = is_sound(o, &c)};
	for (int i = 0; i < o->groups.n; i++)
		memset(o->groups.at[i]->new_numbers, 0, sizeof(o->groups.at[i]->new_numbers));
	for (int i = 0; i < o->trained.n; i++) {
		const Trained *t = &o->trained.at[i];
		if (t->group->of.choice.row->refresh)
			new_contents(o, t, &shared, t->group->of.choice.row->refresh, &new);
	}
	new_numbers(o, shared.go, &new);
	reshape_contents(o, &new);
	store_contents(o, &new);
	b_return(b, 0, NULL);
	function_drop_unread(o->f);
}
