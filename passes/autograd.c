/* Appends the backward pass to the accumulate function of each binding. It starts with
 * loss_scale/targets as the gradient of the summed loss. The gradient of each trainable parameter
 * goes to a gradient state: the first micro-batch of a step stores its gradient there, and later
 * micro-batches add their gradients. Gradients of the inputs numbered by `wrt` are returned. A
 * parameter on which no program's loss depends becomes a constant. Time: linear in nodes. */
#include "passes/pass.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The store of the first micro-batch to the state of that kind. */
static Node *
find_store(const Function *f, StateKind kind)
{
	for (Node *n = f->last; n; n = n->prev)
		if (n->when == WHEN_FIRST && stored_state(n) && stored_state(n)->kind == kind)
			return n;
	return NULL;
}

static void
mark_phases(const Function *f)
{
	for_each_node(f, n)
		n->phase = PHASE_FORWARD;
}

typedef VEC(Value *) Values;
typedef VEC(State *) StateList;
typedef VEC(Function *) FunctionList;

/* The parameter of f for input `number` of the model; if the input is the loss's target, the parameter for the
 * labels. */
static Value *
find_input(const Function *f, long number)
{
	if (number < 0 || number > INT_MAX)
		return NULL;
	Value *found = function_find_param(f, PARAM_INPUT, (int)number);
	return found ? found : function_find_param(f, PARAM_LABELS, (int)number);
}

/* Finds the inputs whose numbers are in the option `wrt`. */
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

State *
loss_scale_state(Module *m)
{
	State *s = module_state_of_kind(m, STATE_LOSS_SCALE);

	if (!s) {
		s = state_new(m, module_fresh_name(m, "loss_scale"), type_scalar(m, F64),
		              STATE_LOSS_SCALE, LIFE_SAVED);
		s->init = INIT_DATA;
		s->data = tensor_splat(m, s->type, 1);
	}
	return s;
}

/* loss_scale / targets, computed in f64 and rounded once. */
static Value *
loss_seed(Builder *b, Type type)
{
	Value *scale = function_state(b->f, loss_scale_state(b->m));
	Value *mean = b_splat(b, scale->type, 1.0 / (double)b->m->targets);

	return b_reshape(b, b_cast(b, b_binary(b, OP_mul, scale, mean), type->dtype),
	                 ints_of_type(type));
}

/* ---- gradients of 16 bits */
/* The gradient without the roundings to 16 bits on its way to an f32 weight. If the gradient is a
 * sum, as for a weight that is used twice, the terms lose their roundings, too. */
static Value *
whole_gradient(Builder *b, Value *g)
{
	Value *x = value_cast_of(g);
	Node *n = g->node;

	if (x && g->type->dtype == F32 && value_is_narrow(x)) {
		Value *whole = gradient_unrounded(b, x);
		return whole == x ? g : whole_gradient(b, whole);
	}
	for (int i = 0; n && i < n->n_operands; i++) {
		Value *part = node_operand(n, i);
		if (part && part->type == g->type && value_used_once(part))
			node_set_operand(n, i, whole_gradient(b, part));
	}
	return g;
}

/* g in type d. If g is the result of a cast from type d, the value before that cast; otherwise a
 * new cast of g. */
static Value *
as_type(Builder *b, Value *g, DType d)
{
	Value *before = value_cast_of(g);

	return before && before->type->dtype == d ? before : b_cast(b, g, d);
}

/* ---- programs */
/* The backward of one program. */
typedef struct {
	Builder b;
	Values wanted; /* parameters, then the inputs numbered by `wrt` */
	Value **grads; /* gradient of each wanted value; NULL: the loss does not depend on the value */
	int n_params;
} Backward;

static bool
build_backward(Pass *p, Function *f, const StateList *params, Backward *w)
{
	Module *m = f->module;
	Node *store = find_store(f, STATE_LOSS_SUM);

	if (!store || m->targets == 0)
		return needs_loss(p, m);
	*w = (Backward){.b = {.m = m,
	                      .f = f,
	                      .before = function_stores(f),
	                      .phase = PHASE_BACKWARD,
	                      .loc = loc_name(m, "loss")},
	                .n_params = params->n};
	for (int i = 0; i < params->n; i++)
		vec_push(p->scratch, &w->wanted, function_state(f, params->at[i]));
	if (f->role == ROLE_ACCUMULATE && !find_inputs(p, f, &w->wanted))
		return false;
	mark_phases(f);
	Value *sum = node_operand(store, 0);
	GradSeed seed = {sum, loss_seed(&w->b, sum->type)};
	w->grads = NEW_ARRAY(p->scratch, Value *, w->wanted.n + 1);
	if (!gradient_build(&w->b, 1, &seed, w->wanted.n, w->wanted.at, w->grads, p->diag))
		return false;
	gradient_widen(&w->b, w->wanted.n, w->grads);
	return true;
}

/* A zero gradient, if this program's loss does not depend on a value on which another program's loss depends. */
static Value *
gradient_of(Backward *w, int i)
{
	if (!w->grads[i])
		w->grads[i] = b_splat(&w->b, w->wanted.at[i]->type, 0);
	return w->grads[i];
}

/* If a micro-batch has no targets, its mean loss is 0/0, and so are its gradients g. With the
 * option `skips_empty` they become 0 instead. */
static Value *
unless_empty(const Pass *p, Builder *b, Value *g)
{
	const Node *store = find_store(b->f, STATE_LOSS_COUNT);
	Value *count = store ? node_operand(store, 0) : NULL;

	double always;
	if (!((const AutogradOptions *)p->options)->skips_empty || !count ||
	    value_splat(count, &always))
		return g;
	Value *any = b_binary(b, OP_gt, count, b_splat(b, count->type, 0));
	return b_select(b, b_broadcast(b, any, ints_of_type(g->type), (Ints){0}), g,
	                b_splat(b, g->type, 0));
}

static void
store_gradients(Pass *p, Backward *w, State *const *gradient)
{
	Value **sums = NEW_ARRAY(p->scratch, Value *, w->n_params + 1);
	Builder *b = &w->b;

	for (int i = 0; i < w->n_params; i++) {
		if (!gradient[i])
			continue;
		b->loc = gradient[i]->loc;
		Value *g = as_type(b, gradient_of(w, i), gradient[i]->type->dtype);
		w->grads[i] = unless_empty(p, b, value_is_narrow(g) ? g : whole_gradient(b, g));
		sums[i] = b_running_sum(b, gradient[i], w->grads[i]);
	}
	for (int i = w->n_params; i < w->wanted.n; i++) /* before the stores */
		w->grads[i] = unless_empty(p, b, gradient_of(w, i));
	for (int i = 0; i < w->n_params; i++) {
		if (!gradient[i])
			continue;
		b->loc = gradient[i]->loc;
		b_store_step(b, gradient[i], w->grads[i], sums[i]);
	}
	for (int i = w->n_params; i < w->wanted.n; i++)
		function_name_result(b->f, w->wanted.at[i]->name);
	if (w->wanted.n > w->n_params)
		return_values(b->f, w->wanted.n - w->n_params, w->grads + w->n_params);
}

/* A gradient state is f32, also for 16-bit weights, unless the option says bf16. It is f64 for f64 weights. */
static State *
gradient_state(const Pass *p, Module *m, State *param)
{
	const AutogradOptions *o = p->options;
	bool narrow = o->gradients && strcmp(o->gradients, "bf16") == 0;
	DType d = param->type->dtype == F64 ? F64 : narrow ? BF16 : F32;
	State *g = state_new(m,
	                     module_fresh_name(m, arena_printf(m->arena, "grad.%s", param->name)),
	                     type_with_dtype(m, param->type, d), STATE_GRADIENT, LIFE_STEP);

	g->of = param;
	g->loc = loc_gradient(m, param->loc);
	return g;
}

/* Freezes a parameter on which the loss does not depend: it keeps its value, without weight
 * decay. PyTorch does the same, since the parameter's gradient is None there. */
static void
freeze_unreached(State *param)
{
	param->trainable = false;
	param->lifetime = LIFE_CONSTANT;
	param->why = "the loss does not reach it";
}

/* The gradient states by parameter. The programs of all bindings add to the same gradients. */
static State **
gradient_states(Pass *p, Module *m, const StateList *params, const Backward *programs,
                int n_programs)
{
	State **gradient = NEW_ARRAY(p->scratch, State *, params->n + 1);

	for (int i = 0; i < params->n; i++) {
		bool reached = false;
		for (int k = 0; k < n_programs; k++)
			reached |= programs[k].grads[i] != NULL;
		if (reached)
			gradient[i] = gradient_state(p, m, params->at[i]);
		else
			freeze_unreached(params->at[i]);
	}
	return gradient;
}

static bool
check_type_of_gradients(const Pass *p)
{
	const AutogradOptions *o = p->options;

	if (!o->gradients || strcmp(o->gradients, "f32") == 0 || strcmp(o->gradients, "bf16") == 0)
		return true;
	diag_error(p->diag, EXIT_USAGE, "pass autograd: gradients=%s is not f32 or bf16",
	           o->gradients);
	return false;
}

/* All functions that get a backward pass: first those of role accumulate, then those of role
 * estimate. *n_first: number of functions of role accumulate. */
static void
find_programs(const Module *m, Arena *arena, FunctionList *out, int *n_first)
{
	static const Role roles[] = {ROLE_ACCUMULATE, ROLE_ESTIMATE};

	for (int r = 0; r < COUNT(roles); r++) {
		for_each_of_role(m, roles[r], f)
			vec_push(arena, out, f);
		*n_first = r ? *n_first : out->n;
	}
}

static bool
run_autograd(Pass *p, Module *m)
{
	StateList params = {0};
	FunctionList functions = {0};
	int n_first;

	if (!check_type_of_gradients(p))
		return false;
	find_programs(m, p->scratch, &functions, &n_first);
	if (n_first == 0)
		return needs_loss(p, m);
	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->kind == STATE_PARAMETER && m->states.at[i]->trainable)
			vec_push(p->scratch, &params, m->states.at[i]);
	Backward *programs = NEW_ARRAY(p->scratch, Backward, functions.n);
	for (int i = 0; i < functions.n; i++)
		if (!build_backward(p, functions.at[i], &params, &programs[i]))
			return false;
	State **gradient = gradient_states(p, m, &params, programs, n_first);
	for (int i = 0; i < functions.n; i++)
		store_gradients(p, &programs[i], gradient);
	p->changed = true;
	return true;
}

static const PassOption autograd_options[] = {
	{"wrt", "numbers of the inputs whose gradients are returned", OPTION_STRING,
         offsetof(AutogradOptions, wrt)},
	{"gradients", "type of gradients of parameters below f64: f32 or bf16", OPTION_STRING,
         offsetof(AutogradOptions, gradients)},
	{"skips_empty", "a micro-batch whose count is 0 has no gradients", OPTION_BOOL,
         offsetof(AutogradOptions, skips_empty)},
	{0}};
const PassRow pass_autograd = {.name = "autograd",
                               .help = "append the backward of the loss to accumulate",
                               .needed = true,
                               .takes = STAGE_FORWARD,
                               .leaves = STAGE_ANY,
                               .when = PASS_WITH_LOSS,
                               .options = autograd_options,
                               .options_size = sizeof(AutogradOptions),
                               .run = run_autograd};
