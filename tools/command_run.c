/* The subcommands `gradc run`, which computes a model's outputs, and `gradc grad`, which computes
 * gradients or checks them against differences. */
#include "tools/tools.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
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

static bool
as_pb(const Session *s)
{
	return s->o->output_format && strcmp(s->o->output_format, "pb") == 0;
}

static bool
interpret_forward(Run *r)
{
	Session *s = r->s;
	const Function *f;
	Stage stage = STAGE_TRAIN;

	if ((s->o->stage && !parse_stage(s->o->stage, &stage, s->diag)) ||
	    !session_stage(s, stage, false) || !read_inputs(r))
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
	return !diag_status(s->diag,
	                    tensors_write(s->arena, s->o->output_dir, "", out, n, as_pb(s))) &&
	       results_finish(s, s->o->output_dir, as_pb(s));
}

static bool
by_interpreter(const Options *o)
{
	return o->engine && strcmp(o->engine, "interp") == 0;
}

static bool
check_options(const Options *o, Diag *diag)
{
	if (o->real && !by_interpreter(o)) {
		diag_error(diag, EXIT_USAGE, "--real needs --engine=interp: kernels round");
		return false;
	}
	if (o->output_dir || o->check_gradients)
		return true;
	diag_error(diag, EXIT_USAGE, "no output folder: give --output-dir DIR");
	return false;
}

/* `run` shows a loss that is a result of the graph; other losses are for training. */
static bool
check_run_loss(const Session *s)
{
	if (!s->has_loss || !loss_find(s->loss_kind))
		return true;
	diag_error(s->diag, EXIT_USAGE, "--loss=%s: has no meaning for `gradc run`", s->o->loss);
	diag_hint(s->diag,
	          "`gradc grad` computes it; `run` shows losses of output:NAME and onnx:FILE");
	return false;
}

static void
warn_training_form(const Session *s)
{
	if (!s->import->computes_training_form)
		return;
	diag_warning(s->diag, "the outputs are in training form, as the model is: %s",
	             training_form_text(s));
	diag_hint(s->diag, "%s", TRAINING_FORM_HINT);
}

int
command_run(Options *o, Arena *arena, Diag *diag)
{
	Session s = {0};
	Run r = {.s = &s};
	int code = EXIT_OK;

	if (!check_options(o, diag))
		return EXIT_USAGE;
	o->forward_only = !o->loss;
	if (session_open(&s, o, OPEN_DIMS_FROM_INPUTS, arena, diag) && check_run_loss(&s)) {
		if (by_interpreter(o)) { /* a compiled program warns by itself */
			warn_training_form(&s);
			interpret_forward(&r);
		} else
			code = run_compiled(&s, false);
	}
	session_close(&s);
	return code ? code : diag_exit_code(diag);
}

/* ---- grad */
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

static void
print_worst(Arena *arena, const char *parameter, const WorstDifference *w)
{
	printf("  %-44s ", plain_text(arena, parameter));
	if (w->kinks == w->checked)
		printf("%lld of %lld entries at kinks of the loss, which have no slope\n",
		       (long long)w->kinks, (long long)w->checked);
	else
		printf("%10.2e  at %-8lld gradient %-14.8g difference %.8g%s\n", w->error,
		       (long long)w->at, w->derivative, w->slope,
		       w->kinks ? arena_printf(arena, "  (without %lld at kinks)",
		                               (long long)w->kinks)
		                : "");
}

/* Reports a gradient or difference that is not finite: such a number cannot confirm the
 * gradient. */
static void
report_not_finite(const Session *s, const char *parameter, double error)
{
	if (!isfinite(error))
		diag_error(s->diag, EXIT_NON_FINITE,
		           "parameter \"%s\": the gradient or a difference is not finite",
		           parameter);
}

static void
print_check_title(const Session *s)
{
	printf("gradients against central differences, worst of %lld entries each\n",
	       (long long)s->o->check_gradients);
}

static json_t *
worst_json(const State *parameter, const WorstDifference *w)
{
	return json_pack("{s:s,s:f,s:I,s:f,s:f,s:I,s:I}", "name", parameter->name, "error",
	                 w->error, "at", (json_int_t)w->at, "gradient", w->derivative, "difference",
	                 w->slope, "checked", (json_int_t)w->checked, "kinks",
	                 (json_int_t)w->kinks);
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

/* Checks n random elements of a parameter, or all elements if the parameter has at most n. */
static WorstDifference
check_parameter(Run *r, const Function *f, const EvalTensor *args, const State *grad, int64_t n)
{
	EvalTensor *results = NEW_ARRAY(r->interp.arena, EvalTensor, r->s->o->wrt.n + 1);
	EvalTensor *x = &r->interp.states[grad->of->id];
	const EvalTensor g = r->interp.states[grad->id];
	double scale = (double)r->s->m->targets / state_scalar(r, STATE_LOSS_COUNT);
	WorstDifference worst = {0};

	for (int64_t i = 0; i < n && i < x->type->n; i++) {
		int64_t k = x->type->n <= n ? i : (int64_t)(drand48() * (double)x->type->n);
		Moved moved = {r, f, args, results, &x->f[k]};
		double old = x->f[k], own = g.f[k] * scale;
		Difference d;

		status_free(difference_check(loss_at, &moved, x->type->dtype, old, own, &d));
		x->f[k] = old;
		difference_add(&worst, &d, own, k);
	}
	return worst;
}

static void
print_json(json_t *results)
{
	json_dumpf(results, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	printf("\n");
	json_decref(results);
}

static void
check_gradients(Run *r, const Function *f, const EvalTensor *args)
{
	Module *m = r->s->m;
	Arena *outer = r->interp.arena;

	json_t *list = json_array();

	srand48(0);
	if (!r->s->o->json)
		print_check_title(r->s);
	for (int i = 0; i < m->states.n; i++) {
		if (m->states.at[i]->kind != STATE_GRADIENT)
			continue;
		Interp saved = r->interp;
		EvalTensor *states = arena_copy(outer, r->interp.states,
		                                sizeof(EvalTensor) * (size_t)m->states.n);
		r->interp.arena = arena_new();
		WorstDifference worst = check_parameter(r, f, args, m->states.at[i],
		                                        r->s->o->check_gradients);
		report_not_finite(r->s, m->states.at[i]->of->name, worst.error);
		if (r->s->o->json)
			json_array_append_new(list, worst_json(m->states.at[i]->of, &worst));
		else
			print_worst(r->s->arena, m->states.at[i]->of->name, &worst);
		arena_free(r->interp.arena);
		r->interp = saved;
		memcpy(r->interp.states, states, sizeof(EvalTensor) * (size_t)m->states.n);
	}
	if (r->s->o->json)
		print_json(json_pack("{s:O}", "parameters", list));
	json_decref(list);
}

static void
print_loss(const Session *s, double loss)
{
	if (s->o->json)
		print_json(json_pack("{s:f}", "loss", loss));
	else
		printf("loss %.17g\n", loss);
}

static bool
interpret_gradients(Run *r)
{
	Session *s = r->s;

	Stage stage = STAGE_TRAIN; /* --stage=lowered: the kernels' loops are interpreted */
	if ((s->o->stage && !parse_stage(s->o->stage, &stage, s->diag)) ||
	    !session_stage(s, stage, false) || !read_inputs(r))
		return false;
	const Function *f = module_first(s->m, ROLE_ACCUMULATE);
	EvalTensor *args = NEW_ARRAY(s->arena, EvalTensor, f->params.n);
	if (!arguments(r, f, args))
		return false;
	init_states(r);
	EvalTensor *results = NEW_ARRAY(s->arena, EvalTensor, s->o->wrt.n + 1);
	double loss = interpret_loss(r, f, args, results);
	if (s->o->check_gradients)
		check_gradients(r, f, args);
	else
		print_loss(s, loss);
	return !s->o->output_dir || write_gradients(r, results);
}

/* Prints the loss that the compiled program wrote. */
static bool
print_written_loss(Session *s)
{
	const char *file = arena_printf(s->arena, "loss=%s/loss.%s", s->o->output_dir,
	                                as_pb(s) ? "pb" : "npy");
	NamedTensor loss;

	if (!input_read(s, file, &loss))
		return false;
	print_loss(s, dtype_load_float(loss.dtype, loss.data, 0));
	return true;
}

static double
number_of(const json_t *entry, const char *key)
{
	const json_t *value = json_object_get(entry, key);

	return json_is_number(value) ? json_number_value(value) : NAN;
}

static void
print_checked(Session *s)
{
	size_t i;
	json_t *entry;

	json_array_foreach(s->gradients, i, entry)
		report_not_finite(s, json_string_value(json_object_get(entry, "name")),
		                  number_of(entry, "error"));
	if (s->o->json) {
		print_json(json_pack("{s:o}", "parameters", s->gradients));
		return;
	}
	print_check_title(s);
	json_array_foreach(s->gradients, i, entry) {
		WorstDifference worst = {
			.error = number_of(entry, "error"),
			.derivative = number_of(entry, "gradient"),
			.slope = number_of(entry, "difference"),
			.at = json_integer_value(json_object_get(entry, "at")),
			.checked = json_integer_value(json_object_get(entry, "checked")),
			.kinks = json_integer_value(json_object_get(entry, "kinks"))};
		print_worst(s->arena, json_string_value(json_object_get(entry, "name")), &worst);
	}
	json_decref(s->gradients);
}

int
command_grad(Options *o, Arena *arena, Diag *diag)
{
	Session s = {0};
	Run r = {.s = &s};
	int code = EXIT_OK;

	if (!check_options(o, diag))
		return EXIT_USAGE;
	if (o->check_gradients && !o->precision)
		o->precision = "f64";
	if (o->check_gradients && !by_interpreter(o))
		o->eval_mode = "as-exported"; /* the differences are of @eval */
	if (session_open(&s, o, OPEN_DIMS_FROM_INPUTS, arena, diag) &&
	    (s.has_loss || session_parse_loss(&s, "cross_entropy"))) {
		if (by_interpreter(o))
			interpret_gradients(&r);
		else
			code = run_compiled(&s, true);
		bool ok = code == EXIT_OK && diag_errors(diag) == 0, ran = ok && !by_interpreter(o);
		if (ok)
			session_warn_idle_rules(&s);
		if (ran && s.gradients)
			print_checked(&s);
		else if (ran)
			print_written_loss(&s);
	}
	session_close(&s);
	return code ? code : diag_exit_code(diag);
}
