/* The refresh function: what an optimizer estimates by labels that are drawn from the model (Sophia's curvature). After a step's update
 * the trainer runs @estimate over the step's micro-batches, which leaves their gradients where the step's were, and then this. Where
 * the estimate is not finite, or the training has failed, states keep their content to the bit. */
#include "passes/optimizer_impl.h"

/* Is the estimate one to learn from? bool[] */
static Value *
is_sound(Optimizer *o, const Counted *c)
{
	Builder *b = &o->b;
	Value *failed = function_state(o->f, module_state_of_kind(o->m, STATE_FAILED));
	Value *finite = is_finite(b, gradient_norm(o, c->gradient_scale, NULL));

	return b_binary(b, OP_and, b_binary(b, OP_and, c->counted, finite),
	                b_unary(b, OP_not, failed));
}

static int
refresh_parameter(Optimizer *o, const Trained *t, const Shared *shared, NewContent *out)
{
	const OptimizerRow *row = t->group->of.choice.row;
	bool in_row = !row->whole && !row->moment_type;
	Value *kept[MAX_MOMENTS] = {0};
	int n = 0;

	for (int i = 0; i < MAX_MOMENTS; i++)
		kept[i] = t->moment[i] ? content(o, t->moment[i], in_row) : NULL;
	Update up = open_update(o, t, shared, kept);
	row->refresh(&up);
	for (int i = 0; i < MAX_NUMBERS; i++)
		t->group->new_numbers[i] = up.new_numbers[i];
	for (int i = 0; i < MAX_MOMENTS; i++)
		if (kept[i] && up.new_moment[i])
			out[n++] = new_content(o, t->moment[i],
			                       without_subnormals(&o->b, up.new_moment[i]), kept[i],
			                       shared->go);
	return n;
}

static int
refresh_numbers(Optimizer *o, const Group *g, Value *go, NewContent *out)
{
	int n = 0;

	for (int i = 0; i < MAX_NUMBERS; i++) {
		if (!g->of.choice.row->refresh || !g->new_numbers[i])
			continue;
		Value *before = function_state(o->f, g->numbers[i]);
		out[n++] = (NewContent){g->numbers[i],
		                        b_select(&o->b, go, g->new_numbers[i], before)};
	}
	return n;
}

/* What @update built with the optimizer is left alone: this has a function and values of its own. */
void
refresh_build(Optimizer *o)
{
	Builder *b = &o->b;
	int n = 0, most = MAX_MOMENTS * o->trained.n + MAX_NUMBERS * o->groups.n + 1;
	NewContent *new = NEW_ARRAY(o->p->scratch, NewContent, most);

	o->f = program_new(o->m, FUNCTION_REFRESH, 0);
	*b = (Builder){
		.m = o->m, .f = o->f, .loc = loc_name(o->m, "optimizer"), .phase = PHASE_UPDATE};
	Counted c = read_loss(o);
	Value *updates = function_state(o->f, module_state_of_kind(o->m, STATE_UPDATES));
	Shared shared = {.scale = c.gradient_scale,
	                 .t = b_cast(b, updates, F64),
	                 .count = b_cast(b, c.count, F64),
	                 .go = is_sound(o, &c)};
	for (int i = 0; i < o->trained.n; i++)
		if (o->trained.at[i].group->of.choice.row->refresh)
			n += refresh_parameter(o, &o->trained.at[i], &shared, new + n);
	for (int i = 0; i < o->groups.n; i++)
		n += refresh_numbers(o, o->groups.at[i], shared.go, new + n);
	for (int i = 0; i < n; i++)
		new[i].value = b_reshape(b, new[i].value, ints_of_type(new[i].state->type));
	for (int i = 0; i < n; i++)
		b_store(b, new[i].state, new[i].value);
	b_return(b, 0, NULL);
	function_drop_unread(o->f);
}
