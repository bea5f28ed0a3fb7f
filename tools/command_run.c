/* The subcommands `gradc run`, which computes a model's outputs, and `gradc grad`, which computes
 * gradients or checks them against differences. */
#include "tools/tools.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* The stage of the module that is interpreted: --stage=lowered interprets the kernels' loops. */
static bool
interpreted_stage(const Session *s, Stage *stage)
{
	*stage = STAGE_TRAIN;
	return !s->o->stage || parse_stage(s->o->stage, stage, s->diag);
}

int
command_run(Options *o, Arena *arena, Diag *diag)
{
	Session s = {0};
	Stage stage;
	int code = EXIT_OK;

	if (!check_options(o, diag))
		return EXIT_USAGE;
	o->forward_only = !o->loss;
	o->forward_as_exported = true;
	if (session_open(&s, o, OPEN_DIMS_FROM_INPUTS, arena, diag) && check_run_loss(&s)) {
		if (by_interpreter(o)) { /* a compiled program warns by itself */
			warn_training_form(&s);
			if (interpreted_stage(&s, &stage))
				interpret_outputs(&s, stage);
		} else
			code = run_compiled(&s, false);
	}
	session_close(&s);
	return code ? code : diag_exit_code(diag);
}

/* ---- grad */
static void
print_worst(Arena *arena, const char *parameter, const WorstDifference *w)
{
	printf("  ");
	print_cut(parameter, 44);
	printf(" ");
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

static void
print_json(json_t *results)
{
	json_dumpf(results, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	printf("\n");
	json_decref(results);
}

/* Prints the gradients that the interpreter checked. */
static void
print_interpreted(const Session *s, const Gradients *g)
{
	json_t *list = json_array();

	if (!s->o->json)
		print_check_title(s);
	for (int i = 0; i < g->checked.n; i++) {
		const CheckedGradient *c = &g->checked.at[i];
		report_not_finite(s, c->parameter->name, c->worst.error);
		if (s->o->json)
			json_array_append_new(list, worst_json(c->parameter, &c->worst));
		else
			print_worst(s->arena, c->parameter->name, &c->worst);
	}
	if (s->o->json)
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

/* Prints the loss that the compiled program wrote. */
static bool
print_written_loss(Session *s)
{
	const char *file = arena_printf(s->arena, "loss=%s/loss.%s", s->o->output_dir,
	                                options_write_pb(s->o) ? "pb" : "npy");
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

static void
grad_by_interpreter(Session *s)
{
	Gradients gradients;
	Stage stage;

	if (!interpreted_stage(s, &stage) || !interpret_gradients(s, stage, &gradients))
		return;
	if (s->o->check_gradients)
		print_interpreted(s, &gradients);
	else
		print_loss(s, gradients.loss);
}

int
command_grad(Options *o, Arena *arena, Diag *diag)
{
	Session s = {0};
	int code = EXIT_OK;

	if (!check_options(o, diag))
		return EXIT_USAGE;
	o->forward_as_exported = true;
	if (o->check_gradients && !o->precision)
		o->precision = "f64";
	if (o->check_gradients && !by_interpreter(o))
		o->eval_mode = "as-exported"; /* the differences are of @eval */
	if (session_open(&s, o, OPEN_DIMS_FROM_INPUTS, arena, diag) && session_default_loss(&s)) {
		if (by_interpreter(o))
			grad_by_interpreter(&s);
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
