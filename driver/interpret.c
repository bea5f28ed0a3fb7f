/* `gradc run` and `gradc grad` with --engine=interp: the interpreter of ir/ computes the module, node
 * by node. For example, `gradc run m.onnx --input x=x.npy --output-dir out --engine=interp` reads
 * x.npy, interprets @forward, and writes out/y.npy. */
#include "driver/driver.h"

#include <math.h>
#include <string.h>

typedef struct {
	Session *s;
	NamedTensor *inputs;
	int n_inputs;
	Interp interp;
} Run;

static bool
read_inputs(Run *r)
{
	const StringList *list = &r->s->o->inputs;

	NamedTensor *elements;
	int n = list_elements(r->s, &elements);

	r->inputs = NEW_ARRAY(r->s->arena, NamedTensor, list->n + n);
	for (; r->n_inputs < n; r->n_inputs++)
		r->inputs[r->n_inputs] = elements[r->n_inputs];
	for (int i = 0; i < list->n; i++)
		if (!is_list_input(r->s, list->at[i]) &&
		    !input_read(r->s, list->at[i], &r->inputs[r->n_inputs++]))
			return false;
	return true;
}

/* Values of the hyperparameters that kernels read as scalars instead of function parameters. All
 * are 1, as in `arguments`. */
static const Scalar *
scalars_of_ones(Arena *arena)
{
	Scalar *scalars = NEW_ARRAY(arena, Scalar, N_SCALARS);

	for (int i = 0; i < N_SCALARS; i++)
		if (scalar_dtypes[i] == F64)
			scalars[i].f = 1;
	return scalars;
}

static void
init_states(Run *r)
{
	Module *m = r->s->m;

	r->interp = interp_new(m, r->s->arena, r->s->o->real);
	r->interp.scalars = scalars_of_ones(r->s->arena);
	for (int i = 0; i < m->states.n; i++) {
		State *st = m->states.at[i];
		r->interp.states[i] = st->data ? eval_tensor_from(r->s->arena, st->type,
		                                                  st->data->data)
		                               : eval_tensor_new(r->s->arena, st->type);
	}
}

static EvalTensor
ones(Run *r, Type type)
{
	EvalTensor t = eval_tensor_new(r->s->arena, type);

	for (int64_t k = 0; k < type->n; k++)
		t.f[k] = 1;
	return t;
}

/* Refuses a file for an input that f does not have: a misspelt name, or an initializer. */
static bool
inputs_are_taken(const Run *r, const Function *f)
{
	for (int i = 0; i < r->n_inputs; i++) {
		bool taken = false;
		for (int k = 0; k < f->params.n; k++)
			taken |= f->params.at[k]->name &&
			         strcmp(r->inputs[i].name, f->params.at[k]->name) == 0;
		if (!taken) {
			diag_error(r->s->diag, EXIT_USAGE,
			           "--input %s: the model has no input of this name",
			           r->inputs[i].name);
			return false;
		}
	}
	return true;
}

/* Sets the arguments of f: tensors of files, and ones for the hidden sample weights and the loss
 * scale. */
static bool
arguments(Run *r, const Function *f, EvalTensor *args)
{
	bool ok = inputs_are_taken(r, f);

	for (int i = 0; i < f->params.n; i++) {
		const Value *p = f->params.at[i];
		if (p->param == PARAM_HYPERPARAMETER &&
		    p->type->dtype == U64) /* seed, step, offset */
			args[i] = eval_tensor_new(r->s->arena, p->type);
		else if (p->param == PARAM_SAMPLE_WEIGHT || p->param == PARAM_HYPERPARAMETER)
			args[i] = ones(r, p->type);
		else
			ok &= input_for(r->s, r->inputs, r->n_inputs, p, &args[i]);
	}
	return ok;
}

static NamedTensor
named(Session *s, const char *name, const EvalTensor *t)
{
	NamedTensor n = {.name = name, .dtype = t->type->dtype, .rank = t->type->rank};
	void *data = arena_alloc(s->arena, (size_t)type_bytes(t->type));

	memcpy(n.dims, t->type->dims, sizeof(n.dims));
	eval_tensor_to(t, data);
	n.data = data;
	return n;
}

/* Converts a float result to the type that the graph declares. */
static void
declare(Session *s, NamedTensor *n, DType declared, const EvalTensor *t)
{
	DType to = result_dtype(n->dtype, declared);

	if (to == n->dtype)
		return;
	char *data = arena_alloc(s->arena, (size_t)dtype_bytes(to, t->type->n));
	for (int64_t i = 0; i < t->type->n; i++)
		dtype_store_float(to, data, i, t->f[i]);
	n->dtype = to;
	n->data = data;
}

bool
interpret_outputs(Session *s, Stage stage)
{
	Run run = {.s = s}, *r = &run;
	const Function *f;

	if (!session_stage(s, stage, false) || !read_inputs(r))
		return false;
	f = module_first(s->m, ROLE_FORWARD);
	int n = function_return(f)->n_operands;
	const ImportPorts *ports = &s->import->bindings.at[0].outputs;
	EvalTensor *args = NEW_ARRAY(s->arena, EvalTensor, f->params.n);
	EvalTensor *results = NEW_ARRAY(s->arena, EvalTensor, n);
	NamedTensor *out = NEW_ARRAY(s->arena, NamedTensor, n);
	if (!arguments(r, f, args))
		return false;
	init_states(r);
	interp_run(&r->interp, f, args, results);
	for (int i = 0; i < n; i++) {
		out[i] = named(s, f->result_names.at[i], &results[i]);
		if (i < ports->n)
			declare(s, &out[i], ports->at[i].dtype, &results[i]);
	}
	return !diag_status(s->diag, tensors_write(s->arena, s->o->output_dir, "", out, n,
	                                           options_write_pb(s->o))) &&
	       results_finish(s, s->o->output_dir, options_write_pb(s->o));
}

/* ---- gradients */
static double
state_scalar(const Run *r, StateKind kind)
{
	return r->interp.states[module_state_of_kind(r->s->m, kind)->id].f[0];
}

/* Runs @accumulate once, with all sums at zero before, and returns the loss. results: the gradients
 * of --wrt inputs. */
static double
interpret_loss(Run *r, const Function *f, const EvalTensor *args, EvalTensor *results)
{
	Module *m = r->s->m;

	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->lifetime == LIFE_STEP)
			r->interp.states[i] = eval_tensor_new(r->interp.arena,
			                                      m->states.at[i]->type);
	interp_run(&r->interp, f, args, results);
	return state_scalar(r, STATE_LOSS_SUM) / state_scalar(r, STATE_LOSS_COUNT);
}

static void
scale_gradient(EvalTensor *g, double scale)
{
	for (int64_t k = 0; k < g->type->n; k++)
		g->f[k] *= scale;
	eval_tensor_round(g);
}

static bool
write_gradients(Run *r, EvalTensor *of_inputs)
{
	Session *s = r->s;
	Module *m = s->m;
	NamedTensor *out = NEW_ARRAY(s->arena, NamedTensor, m->states.n + s->o->wrt.n + 1);
	double count = state_scalar(r, STATE_LOSS_COUNT);
	double scale = (double)m->targets / count;
	int n = 0;

	for (int i = 0; i < m->states.n; i++) {
		State *st = m->states.at[i];
		if (st->kind != STATE_GRADIENT)
			continue;
		scale_gradient(&r->interp.states[i], scale);
		out[n++] = named(s, st->of->name, &r->interp.states[i]);
	}
	for (int i = 0; i < s->o->wrt.n; i++) {
		scale_gradient(&of_inputs[i], scale);
		out[n++] = named(s, s->o->wrt.at[i], &of_inputs[i]);
	}
	if (diag_status(s->diag, tensors_write(s->arena, s->o->output_dir, "grad.", out, n, false)))
		return false;
	EvalTensor loss = eval_tensor_new(s->arena, module_state_of_kind(m, STATE_LOSS_SUM)->type);
	loss.f[0] = state_scalar(r, STATE_LOSS_SUM) / count;
	NamedTensor l = named(s, "loss", &loss);
	return !diag_status(s->diag, npy_write(path_join(s->arena, s->o->output_dir, "loss.npy"),
	                                       l.dtype, 0, NULL, l.data));
}

/* Context of the loss as a function of one element of a parameter. */
typedef struct {
	Run *r;
	const Function *f;
	const EvalTensor *args;
	EvalTensor *results;
	double *element;
} Moved;

static Status
loss_at(void *context, double x, double *loss)
{
	const Moved *m = context;

	*m->element = x;
	*loss = interpret_loss(m->r, m->f, m->args, m->results);
	return NULL;
}

/* The next random number from 0 to below 1. *state has 48 bits. The generator is that of POSIX's
 * erand48; erand48 itself reads multipliers that all threads share. */
static double
next_random(uint64_t *state)
{
	*state = (*state * 0x5DEECE66D + 0xB) & 0xFFFFFFFFFFFF;
	return ldexp((double)*state, -48);
}

/* Checks n random elements of a parameter, or all elements if the parameter has at most n. random:
 * the state of next_random. */
static WorstDifference
check_parameter(Run *r, const Function *f, const EvalTensor *args, const State *grad, int64_t n,
                uint64_t *random)
{
	EvalTensor *results = NEW_ARRAY(r->interp.arena, EvalTensor, r->s->o->wrt.n + 1);
	EvalTensor *x = &r->interp.states[grad->of->id];
	const EvalTensor g = r->interp.states[grad->id];
	double scale = (double)r->s->m->targets / state_scalar(r, STATE_LOSS_COUNT);
	WorstDifference worst = {0};

	for (int64_t i = 0; i < n && i < x->type->n; i++) {
		int64_t k = x->type->n <= n ? i
		                            : (int64_t)(next_random(random) * (double)x->type->n);
		Moved moved = {r, f, args, results, &x->f[k]};
		double old = x->f[k], own = g.f[k] * scale;
		Difference d;

		status_free(difference_check(loss_at, &moved, x->type->dtype, old, own, &d));
		x->f[k] = old;
		difference_add(&worst, &d, own, k);
	}
	return worst;
}

/* Checks the gradients of all parameters against differences. */
static void
check_gradients(Run *r, const Function *f, const EvalTensor *args, Gradients *out)
{
	Module *m = r->s->m;
	Arena *outer = r->interp.arena;

	uint64_t random = 0x330E; /* as srand48(0) begins */
	for (int i = 0; i < m->states.n; i++) {
		if (m->states.at[i]->kind != STATE_GRADIENT)
			continue;
		Interp saved = r->interp;
		EvalTensor *states = arena_copy(outer, r->interp.states,
		                                sizeof(EvalTensor) * (size_t)m->states.n);
		r->interp.arena = arena_new();
		WorstDifference worst = check_parameter(r, f, args, m->states.at[i],
		                                        r->s->o->check_gradients, &random);
		vec_push(outer, &out->checked, ((CheckedGradient){m->states.at[i]->of, worst}));
		arena_free(r->interp.arena);
		r->interp = saved;
		memcpy(r->interp.states, states, sizeof(EvalTensor) * (size_t)m->states.n);
	}
}

/* Does the module compute a loss and the gradients of the inputs of --wrt? Modules before
 * STAGE_TRAIN do not; neither do modules without the passes that build the loss and its gradients.
 * false after reporting. */
static bool
check_has_gradients(const Session *s)
{
	const Function *f = module_first(s->m, ROLE_ACCUMULATE);

	if (f && module_state_of_kind(s->m, STATE_LOSS_SUM) &&
	    function_return(f)->n_operands >= s->o->wrt.n)
		return true;
	diag_error(s->diag, EXIT_USAGE, "%s: this module has no loss or no gradients to interpret",
	           s->m->name);
	diag_hint(s->diag, "the passes loss and autograd build both, for --stage=train and later "
	                   "stages");
	return false;
}

bool
interpret_gradients(Session *s, Stage stage, Gradients *out)
{
	Run run = {.s = s}, *r = &run;

	*out = (Gradients){0};
	if (!session_stage(s, stage, false) || !check_has_gradients(s) || !read_inputs(r))
		return false;
	const Function *f = module_first(s->m, ROLE_ACCUMULATE);
	EvalTensor *args = NEW_ARRAY(s->arena, EvalTensor, f->params.n);
	if (!arguments(r, f, args))
		return false;
	init_states(r);
	EvalTensor *results = NEW_ARRAY(s->arena, EvalTensor, s->o->wrt.n + 1);
	out->loss = interpret_loss(r, f, args, results);
	if (s->o->check_gradients)
		check_gradients(r, f, args, out);
	return !s->o->output_dir || write_gradients(r, results);
}
