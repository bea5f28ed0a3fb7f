/* @accumulate gets its backward: the summed loss is seeded with 1/targets, and every trainable parameter's
 * gradient is stored to its gradient state by a step's first micro-batch and added by later ones; those of the inputs named by `wrt` are returned. Linear in nodes. */
#include "passes/pass.h"

#include <string.h>

/* What the first micro-batch stores there. */
static Node *
find_store(const Function *f, const char *state)
{
	for (Node *n = f->last; n; n = n->prev)
		if (n->op == OP_store && n->when == WHEN_FIRST &&
		    strcmp(((StoreAttr *)n->attr)->state->name, state) == 0)
			return n;
	return NULL;
}

/* By parameter: the programs of all bindings add to the same gradients. */
static State **
gradient_states(Module *m, Arena *arena)
{
	int n = m->states.n;
	State **by_param = NEW_ARRAY(arena, State *, n + 1);

	for (int i = 0; i < n; i++) {
		State *param = m->states.at[i], *g;
		if (param->kind != STATE_PARAMETER || !param->trainable)
			continue;
		g = state_new(m,
		              module_fresh_name(m, arena_printf(m->arena, "grad.%s", param->name)),
		              param->type, STATE_GRADIENT, LIFE_STEP);
		g->of = param;
		g->loc = loc_derive(m, "grad", param->loc);
		by_param[i] = g;
	}
	return by_param;
}

static void
mark_phases(const Function *f)
{
	for_each_node(f, n)
		n->phase = PHASE_FORWARD;
}

typedef VEC(Value *) Values;

/* The inputs named by the option, one a line. */
static bool
find_inputs(Pass *p, Function *f, Values *out)
{
	const AutogradOptions *o = p->options;
	char *names = arena_strdup(p->scratch, o->wrt ? o->wrt : ""), *save = NULL;
	bool ok = true;

	for (char *name = strtok_r(names, "\n", &save); name; name = strtok_r(NULL, "\n", &save)) {
		Value *found = NULL;
		for (int i = 0; i < f->params.n; i++)
			if (strcmp(f->params.at[i]->name, name) == 0)
				found = f->params.at[i];
		if (found && dtype_is_float(found->type->dtype)) {
			vec_push(p->scratch, out, found);
			continue;
		}
		diag_error(p->diag, EXIT_USAGE, "%s: --wrt %s: %s", f->module->name, name,
		           found ? "only floats have gradients" : "no such input");
		ok = false;
	}
	return ok;
}

static bool
needs_loss(Pass *p, const Module *m)
{
	diag_error(p->diag, EXIT_USAGE, "%s: autograd needs @accumulate with a loss", m->name);
	return false;
}

static void
return_values(Function *f, int n, Value *const *values)
{
	Builder b = {.m = f->module, .f = f};

	node_erase(function_return(f));
	b_return(&b, n, values);
}

static bool
add_backward(Pass *p, Function *f, State *const *gradient, int n_states)
{
	Module *m = f->module;
	Node *store = find_store(f, "loss.sum");
	Values wanted = {0};
	VEC(State *) states = {0};

	if (!store || m->targets == 0)
		return needs_loss(p, m);
	for (int i = 0; i < n_states; i++) {
		if (!gradient[i])
			continue;
		vec_push(p->scratch, &states, gradient[i]);
		vec_push(p->scratch, &wanted, function_state(f, gradient[i]->of));
	}
	if (!find_inputs(p, f, &wanted))
		return false;
	mark_phases(f);
	Value *sum = node_operand(store, 0);
	Builder b = {.m = m,
	             .f = f,
	             .before = function_stores(f),
	             .phase = PHASE_BACKWARD,
	             .loc = loc_name(m, "loss")};
	GradSeed seed = {sum, b_splat(&b, sum->type, 1.0 / (double)m->targets)};
	Value **grads = NEW_ARRAY(p->scratch, Value *, wanted.n + 1);
	if (!gradient_build(&b, 1, &seed, wanted.n, wanted.at, grads, p->diag))
		return false;
	Value **sums = NEW_ARRAY(p->scratch, Value *, states.n + 1);
	for (int i = 0; i < states.n; i++) {
		b.loc = states.at[i]->loc;
		sums[i] = b_running_sum(&b, states.at[i], grads[i]);
	}
	for (int i = 0; i < states.n; i++) {
		b.loc = states.at[i]->loc;
		b_store_sum(&b, states.at[i], grads[i], sums[i]);
	}
	if (wanted.n > states.n)
		return_values(f, wanted.n - states.n, grads + states.n);
	return true;
}

static bool
run_autograd(Pass *p, Module *m)
{
	int n_states = m->states.n;
	Function *f = module_function(m, "accumulate");

	if (!f)
		return needs_loss(p, m);
	State **gradient = gradient_states(m, p->scratch);
	for (int b = 0; (f = module_program(m, "accumulate", b)); b++)
		if (!add_backward(p, f, gradient, n_states))
			return false;
	p->changed = true;
	return true;
}

static const PassOption autograd_options[] = {{"wrt", "inputs whose gradients are returned",
                                               OPTION_STRING, offsetof(AutogradOptions, wrt)},
                                              {0}};
const PassRow pass_autograd = {.name = "autograd",
                               .help = "append the backward of the loss to @accumulate",
                               .takes = STAGE_FORWARD,
                               .leaves = STAGE_ANY,
                               .when = PASS_WITH_LOSS,
                               .options = autograd_options,
                               .options_size = sizeof(AutogradOptions),
                               .run = run_autograd};
