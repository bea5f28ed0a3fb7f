/* @accumulate gets its backward: the summed loss is seeded with 1/targets, and every trainable parameter's
 * gradient is added to its gradient state; those of the inputs named by `wrt` are returned. Linear in nodes. */
#include "passes/pass.h"

#include <string.h>

static Node *
find_store(const Function *f, const char *state)
{
	for (Node *n = f->last; n; n = n->prev)
		if (n->op == OP_store && strcmp(((StoreAttr *)n->attr)->state->name, state) == 0)
			return n;
	return NULL;
}

static Node *
first_store(const Function *f)
{
	Node *n = f->last;

	while (n->prev && n->prev->op == OP_store)
		n = n->prev;
	return n;
}

static State *
gradient_state(Module *m, State *param)
{
	const char *name = module_fresh_name(m, arena_printf(m->arena, "grad.%s", param->name));
	State *g = state_new(m, name, param->type, STATE_GRADIENT, LIFE_STEP);

	g->of = param;
	g->loc = loc_derive(m, "grad", param->loc);
	return g;
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

static void
return_values(Function *f, int n, Value *const *values)
{
	Builder b = {.m = f->module, .f = f};

	node_erase(function_return(f));
	b_return(&b, n, values);
}

static bool
run_autograd(Pass *p, Module *m)
{
	Function *f = module_function(m, "accumulate");
	Node *store = f ? find_store(f, "loss.sum") : NULL;
	Values wanted = {0};
	VEC(State *) params = {0};

	if (!store || m->targets == 0) {
		diag_error(p->diag, EXIT_USAGE, "%s: autograd needs @accumulate with a loss",
		           m->name);
		return false;
	}
	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (s->kind != STATE_PARAMETER || !s->trainable)
			continue;
		vec_push(p->scratch, &params, s);
		vec_push(p->scratch, &wanted, function_state(f, s));
	}
	if (!find_inputs(p, f, &wanted))
		return false;
	mark_phases(f);
	/* store @loss.sum, add(@loss.sum, sum) */
	Value *sum = node_operand(node_operand(store, 0)->node, 1);
	Builder b = {.m = m,
	             .f = f,
	             .before = first_store(f),
	             .phase = PHASE_BACKWARD,
	             .loc = loc_name(m, "loss")};
	GradSeed seed = {sum, b_splat(&b, sum->type, 1.0 / (double)m->targets)};
	Value **grads = NEW_ARRAY(p->scratch, Value *, wanted.n + 1);
	if (!gradient_build(&b, 1, &seed, wanted.n, wanted.at, grads, p->diag))
		return false;
	Value **sums = NEW_ARRAY(p->scratch, Value *, params.n + 1);
	State **states = NEW_ARRAY(p->scratch, State *, params.n + 1);
	for (int i = 0; i < params.n; i++) {
		states[i] = gradient_state(m, params.at[i]);
		b.loc = states[i]->loc;
		sums[i] = b_binary(&b, OP_add, function_state(f, states[i]), grads[i]);
	}
	for (int i = 0; i < params.n; i++) {
		b.loc = states[i]->loc;
		b_store(&b, states[i], sums[i]);
	}
	if (wanted.n > params.n)
		return_values(f, wanted.n - params.n, grads + params.n);
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
