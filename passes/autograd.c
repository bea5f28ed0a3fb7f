/* The accumulate function of each binding gets its backward: the summed loss is seeded with loss_scale/targets, and
 * every trainable parameter's gradient is stored to its gradient state by a step's first micro-batch and added by later
 * ones; those of the inputs numbered by `wrt` are returned. Linear in nodes. */
#include "passes/pass.h"

#include <limits.h>
#include <stdlib.h>

/* What the first micro-batch stores there. */
static Node *
find_store(const Function *f, StateKind kind)
{
	for (Node *n = f->last; n; n = n->prev)
		if (n->op == OP_store && n->when == WHEN_FIRST &&
		    ((StoreAttr *)n->attr)->state->kind == kind)
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
		g->loc = loc_gradient(m, param->loc);
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

/* It may be the loss's target. */
static Value *
find_input(const Function *f, long number)
{
	if (number < 0 || number > INT_MAX)
		return NULL;
	Value *found = function_find_param(f, PARAM_INPUT, (int)number);
	return found ? found : function_find_param(f, PARAM_LABELS, (int)number);
}

/* The inputs numbered by the option. */
static bool
find_inputs(Pass *p, Function *f, Values *out)
{
	const AutogradOptions *o = p->options;
	const char *at = o->wrt ? o->wrt : "";
	bool ok = true;

	for (char *end; *at; at = end) {
		long number = strtol(at, &end, 10);
		if (end == at) {
			diag_error(p->diag, EXIT_USAGE, "autograd: wrt: \"%s\" is no number", at);
			return false;
		}
		Value *found = find_input(f, number);
		if (found && dtype_is_float(found->type->dtype)) {
			vec_push(p->scratch, out, found);
			continue;
		}
		diag_error(p->diag, EXIT_USAGE,
		           found ? "%s: autograd: wrt %s: only floats have gradients"
		                 : "%s: autograd: wrt %s: no such input of the model",
		           f->module->name,
		           found ? found->name : arena_printf(p->scratch, "%ld", number));
		ok = false;
	}
	return ok;
}

static bool
needs_loss(Pass *p, const Module *m)
{
	diag_error(p->diag, EXIT_USAGE,
	           "%s: autograd needs a function of role accumulate, with a loss", m->name);
	return false;
}

static void
return_values(Function *f, int n, Value *const *values)
{
	Builder b = {.m = f->module, .f = f};

	node_erase(function_return(f));
	b_return(&b, n, values);
}

/* loss_scale / targets, computed in f64 and rounded once. */
static Value *
loss_seed(Builder *b, Type type)
{
	Value *scale = function_hyperparameter(b->f, SCALAR_LOSS_SCALE);
	Value *mean = b_splat(b, scale->type, 1.0 / (double)b->m->targets);

	return b_reshape(b, b_cast(b, b_binary(b, OP_mul, scale, mean), type->dtype),
	                 ints_of_type(type));
}

static bool
add_backward(Pass *p, Function *f, State *const *gradient, int n_states)
{
	Module *m = f->module;
	Node *store = find_store(f, STATE_LOSS_SUM);
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
	GradSeed seed = {sum, loss_seed(&b, sum->type)};
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
	for (int i = states.n; i < wanted.n; i++)
		function_name_result(f, wanted.at[i]->name);
	if (wanted.n > states.n)
		return_values(f, wanted.n - states.n, grads + states.n);
	return true;
}

static bool
run_autograd(Pass *p, Module *m)
{
	int n_states = m->states.n;
	Function *f = module_program(m, FUNCTION_ACCUMULATE, 0);

	if (!f)
		return needs_loss(p, m);
	State **gradient = gradient_states(m, p->scratch);
	for (int b = 0; (f = module_program(m, FUNCTION_ACCUMULATE, b)); b++)
		if (!add_backward(p, f, gradient, n_states))
			return false;
	p->changed = true;
	return true;
}

static const PassOption autograd_options[] = {{"wrt",
                                               "numbers of the inputs whose gradients are returned",
                                               OPTION_STRING, offsetof(AutogradOptions, wrt)},
                                              {0}};
const PassRow pass_autograd = {.name = "autograd",
                               .help = "append the backward of the loss to accumulate",
                               .takes = STAGE_FORWARD,
                               .leaves = STAGE_ANY,
                               .when = PASS_WITH_LOSS,
                               .options = autograd_options,
                               .options_size = sizeof(AutogradOptions),
                               .run = run_autograd};
