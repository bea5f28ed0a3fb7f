/* Makes the functions that training runs from the forward function of each binding. The
 * accumulate function runs one micro-batch: forward and loss, added to the loss's sum and count.
 * The eval function does the same with the inference form, and also counts correct predictions.
 * The forward function keeps the graph's outputs, but its stores are removed. With the option
 * `infers`, it becomes the inference form. The module's
 * `targets` is the number of targets in a full micro-batch of the first binding; the backward
 * pass of every binding begins with 1/targets. The losses themselves are rows of tables in
 * losses/. */
#include "passes/losses/loss_pass.h"

#include <string.h>

#define LOSS(name) extern const LossRow loss_##name;
#include "passes/losses/loss_list.def"
#undef LOSS
const LossRow *const loss_table[] = {
#define LOSS(name) &loss_##name,
#include "passes/losses/loss_list.def"
#undef LOSS
	NULL,
};

const LossRow *
loss_find(const char *name)
{
	for (int i = 0; loss_table[i]; i++)
		if (strcmp(loss_table[i]->name, name) == 0)
			return loss_table[i];
	return NULL;
}

const void *
loss_settings(const LossRow *row, const char *text, Arena *arena, Diag *diag)
{
	char *settings = arena_alloc(arena, row->options_size + 1), *save = NULL;
	char *copy = arena_strdup(arena, text ? text : "");
	const char *owner = arena_printf(arena, "loss %s", row->name);

	if (row->defaults)
		memcpy(settings, row->defaults, row->options_size);
	for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		char *equals = strchr(word, '=');
		if (equals)
			*equals = 0;
		OptionText option = {word, equals ? equals + 1 : "true"};
		if (!option_set(row->options, owner, settings, arena, &option, diag))
			return NULL;
	}
	return settings;
}

bool
loss_refuse(LossPass *lp, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	diag_error(lp->p->diag, EXIT_USAGE, "%s: --loss: %s", lp->m->name,
	           arena_vprintf(lp->p->scratch, fmt, args));
	va_end(args);
	return false;
}

const char *
loss_output_name(LossPass *lp, const Function *forward, int64_t i)
{
	return i < forward->result_names.n
	               ? arena_printf(lp->p->scratch, "output \"%s\"", forward->result_names.at[i])
	               : arena_printf(lp->p->scratch, "output %lld", (long long)i);
}

const char *
loss_shape_text(LossPass *lp, Type t)
{
	const char *text = "[";

	for (int i = 0; i < t->rank; i++)
		text = arena_printf(lp->p->scratch, "%s%s%lld", text, i ? "," : "",
		                    (long long)t->dims[i]);
	return arena_printf(lp->p->scratch, "%s]", text);
}

static bool
check_output(LossPass *lp, const Function *forward, int64_t i)
{
	int n = function_return(forward)->n_operands;

	if (i >= 0 && i < n)
		return true;
	return loss_refuse(lp, "the model has no output %lld, but %d", (long long)i, n);
}

static bool
check_estimates(LossPass *lp)
{
	const char *name = lp->options->estimates_for;

	if (!name || (lp->row && lp->row->class_targets))
		return true;
	diag_error(lp->p->diag, EXIT_UNSUPPORTED,
	           "%s: the optimizer %s draws labels from class logits, and the loss %s has none",
	           lp->m->name, name, lp->options->kind);
	diag_hint(lp->p->diag,
	          "it works with --loss=cross_entropy and nll; adamw works with all losses");
	return false;
}

static bool
prepare(LossPass *lp, Function *forward)
{
	const LossOptions *o = lp->options;

	if (!check_estimates(lp))
		return false;
	if (!check_output(lp, forward, o->output))
		return false;
	Type output = function_result(forward, (int)o->output)->type;
	if (lp->row)
		return loss_check_output(lp, forward) && loss_find_rows(lp, forward) &&
		       loss_prepare_target(lp, forward);
	if (o->count >= 0 && !check_output(lp, forward, o->count))
		return false;
	if (output->n != 1 || !dtype_is_float(output->dtype))
		return loss_refuse(lp, "%s is no float scalar",
		                   loss_output_name(lp, forward, o->output));
	return true;
}

/* ---- building */
static State *
loss_state(LossPass *lp, StateKind kind, const char *name, DType d)
{
	Module *m = lp->m;
	State *s = module_state_of_kind(m, kind);

	return s ? s : state_new(m, module_fresh_name(m, name), type_scalar(m, d), kind, LIFE_STEP);
}

static void
drop_stores(Function *f)
{
	for_each_node_reverse(f, n)
		if (stored_state(n))
			node_erase(n);
}

/* Adds an input of f for the target, if the model has no such input. */
static Value *
add_target(LossPass *lp, Function *f)
{
	Value *v = function_param_as(f, lp->target_type, "labels", PARAM_LABELS, -1);

	v->has_rows = true;
	v->rows_axis = lp->target_rows;
	return v;
}

/* Copies the parameters of `from`. The target may come in another shape; the graph reads it reshaped. Returns the
 * target's parameter. */
static Value *
copy_params(LossPass *lp, const Function *from, Builder *b, Value **map)
{
	Value *target = NULL;

	for (int i = 0; i < from->params.n; i++) {
		const Value *v = from->params.at[i];
		bool is_target = lp->row && v->param == PARAM_INPUT &&
		                 v->number == lp->options->target;
		Type type = is_target ? lp->target_type : v->type;
		Value *to = function_param_as(b->f, type, v->name, v->param, v->number);
		map[v->id] = is_target ? b_reshape(b, to, ints_of_type(v->type)) : to;
		to->has_rows = v->has_rows;
		to->rows_axis = v->rows_axis;
		if (!is_target)
			continue;
		target = to;
		to->param = PARAM_LABELS;
		to->has_rows = true;
		to->rows_axis = lp->target_rows;
	}
	return target;
}

/* Adds the inputs that the loss of f reads in addition to the graph's outputs. */
static void
add_inputs(LossPass *lp, Value *target, Loss *l)
{
	Type weight = type_new(lp->m, l->output->type->dtype, 1, &lp->n_rows);

	target = target ? target : add_target(lp, l->b->f);
	l->target = loss_target_value(lp, l->b, target);
	l->weight = function_param_as(l->b->f, weight, "sample_weight", PARAM_SAMPLE_WEIGHT, 0);
}

/* Stream of random numbers for drawn labels; no op of a model has this stream. */
enum { LABELS_STREAM = 0x6c6162656c73 };

/* Noise with Gumbel's distribution, one number for each element of the output. The element's
 * place in the step's whole batch selects its random number. */
static Value *
gumbel(const Loss *l)
{
	Builder *b = l->b;
	Type like = l->output->type;
	Function *f = b->f;
	RandomAttr draw = {.dtype = like->dtype,
	                   .shape = ints_of_type(like),
	                   .counter = {.stream = LABELS_STREAM,
	                               .axis = l->rows.axis,
	                               .rows = l->weight->type->n}};
	Value *operands[] = {function_hyperparameter(f, SCALAR_SEED),
	                     function_hyperparameter(f, SCALAR_STEP),
	                     function_hyperparameter(f, SCALAR_OFFSET)};
	Value *u = build(b, OP_random, COUNT(operands), operands, &draw);
	Value *exponential = b_unary(b, OP_neg, b_unary(b, OP_log, u));

	return b_unary(b, OP_neg, b_unary(b, OP_log, exponential));
}

/* Classes drawn from the softmax of the output: the largest of its elements plus noise. Targets with weight 0 stay
 * unchanged. */
static Value *
drawn_target(const Loss *l)
{
	Builder *b = l->b;
	Value *noisy = b_binary(b, OP_add, l->output, gumbel(l));
	AxisAttr axis = {l->class_axis};
	Value *drawn = b_cast(b, build(b, OP_argmax, 1, &noisy, &axis), l->target->type->dtype);
	Value *counts = b_binary(b, OP_ge, l->target, b_splat(b, l->target->type, 0));

	return b_select(b, counts, drawn, l->target);
}

/* Makes a copy of `from`, followed by the loss. */
static void
build_program(LossPass *lp, const Function *from, Role role, int binding)
{
	Module *m = lp->m;
	Function *f = program_new(m, role, binding);
	bool train = role == ROLE_ACCUMULATE, estimate = role == ROLE_ESTIMATE;
	LossOptions plain = *lp->options;
	Value **map = NEW_ARRAY(lp->p->scratch, Value *, from->next_value_id);
	Node *ret = function_return(from);
	Value **results = NEW_ARRAY(lp->p->scratch, Value *, ret->n_operands);
	Builder b = {.m = m, .f = f, .loc = loc_name(m, "loss")};
	Loss l = {.b = &b,
	          .options = lp->options,
	          .class_weight = lp->class_weight,
	          .settings = lp->settings,
	          .class_axis = lp->class_axis,
	          .rows = lp->rows};
	Value *target = copy_params(lp, from, &b, map);

	function_clone_body(from, f, NULL, map);
	if (train)
		statistics_make_pending(f, lp->p->scratch);
	else
		drop_stores(f);
	for (int i = 0; i < ret->n_operands; i++)
		results[i] = map[node_operand(ret, i)->id];
	b.before = function_stores(f);
	l.output = results[lp->options->output];
	if (lp->row) {
		add_inputs(lp, target, &l);
		if (estimate) { /* the loss is minus the logarithm of the drawn class's probability */
			plain.label_smoothing = 0;
			l.options = &plain;
			l.class_weight = NULL;
			l.target = drawn_target(&l);
		}
		lp->row->build(&l);
	} else {
		loss_build_own(lp, &l, results);
	}
	lp->sum = loss_state(lp, STATE_LOSS_SUM, "loss.sum", l.sum->type->dtype);
	lp->count = loss_state(lp, STATE_LOSS_COUNT, "loss.count", l.sum->type->dtype);
	Value *sum = b_running_sum(&b, lp->sum, l.sum);
	Value *count = b_running_sum(&b, lp->count, l.count);
	Value *correct = NULL;
	if (role == ROLE_EVAL && l.correct) {
		lp->correct = loss_state(lp, STATE_CORRECT, "metric.correct",
		                         l.correct->type->dtype);
		correct = b_running_sum(&b, lp->correct, l.correct);
	}
	b.before = NULL;
	b_store_step(&b, lp->sum, l.sum, sum);
	b_store_step(&b, lp->count, l.count, count);
	if (correct)
		b_store_step(&b, lp->correct, l.correct, correct);
	b_return(&b, 0, NULL);
	m->targets = binding ? m->targets : l.targets;
}

/* Makes the inference form the function of role forward. */
static void
replace_forward(Function *forward, Function *inference)
{
	const char *name = forward->name;

	function_remove(forward);
	function_rename(inference, name);
	inference->role = ROLE_FORWARD;
}

static bool
build_programs(LossPass *lp, Function *forward)
{
	Function *inference = function_beside(forward, ROLE_INFERENCE);
	int binding = forward->binding;

	if (!prepare(lp, forward))
		return false;
	if (lp->row && binding == 0)
		loss_check_form(lp, forward);
	build_program(lp, forward, ROLE_ACCUMULATE, binding);
	if (lp->options->estimates_for)
		build_program(lp, forward, ROLE_ESTIMATE, binding);
	build_program(lp, inference ? inference : forward, ROLE_EVAL, binding);
	drop_stores(forward);
	if (inference && lp->options->infers)
		replace_forward(forward, inference);
	else if (inference)
		function_remove(inference);
	return true;
}

int64_t
loss_said(int64_t axis, int64_t given)
{
	return given < 0 ? given : axis;
}

static bool
run_loss(Pass *p, Module *m)
{
	const LossOptions *o = p->options;
	LossPass lp = {.p = p, .m = m, .options = o};

	if (!module_first(m, ROLE_FORWARD)) {
		diag_error(p->diag, EXIT_USAGE, "%s: loss needs a function of role forward",
		           m->name);
		return false;
	}
	lp.row = o->kind ? loss_find(o->kind) : NULL;
	if (!lp.row && (!o->kind || strcmp(o->kind, "output") != 0))
		return loss_refuse(&lp, "unknown loss `%s`", o->kind ? o->kind : "");
	if (lp.row && !(lp.settings = loss_settings(lp.row, o->settings, p->scratch, p->diag)))
		return false;
	VEC(Function *) forwards = {0}; /* building programs removes functions of the module */
	for_each_of_role(m, ROLE_FORWARD, f)
		vec_push(p->scratch, &forwards, f);
	for (int i = 0; i < forwards.n; i++)
		if (!build_programs(&lp, forwards.at[i]))
			return false;
	p->changed = true;
	return true;
}

static const PassOption loss_options[] = {
	{"kind", "a row of loss_list.def, or output", OPTION_STRING, offsetof(LossOptions, kind)},
	{"output", "output of the model, from 0", OPTION_INT, offsetof(LossOptions, output)},
	{"target", "number of the input that holds the target, -1: a new one", OPTION_INT,
         offsetof(LossOptions, target)},
	{"count",
         "output that counts targets, -1: the graph's divisor, -2: all micro-batches count the same",
         OPTION_INT, offsetof(LossOptions, count)},
	{"axis", "class axis; -1: found from the shapes", OPTION_INT, offsetof(LossOptions, axis)},
	{"rows", "axis of the output that counts rows; -1: found from the graph", OPTION_INT,
         offsetof(LossOptions, rows)},
	{"rows_known", "the file or an option says which axes of inputs count rows", OPTION_BOOL,
         offsetof(LossOptions, rows_known)},
	{"class_weight", "name of the constant state with class weights", OPTION_STRING,
         offsetof(LossOptions, class_weight)},
	{"infers", "forward becomes the inference form, which @eval computes", OPTION_BOOL,
         offsetof(LossOptions, infers)},
	{"label_smoothing", "for class losses", OPTION_DOUBLE,
         offsetof(LossOptions, label_smoothing)},
	{"estimates_for", "the optimizer that needs functions of role estimate", OPTION_STRING,
         offsetof(LossOptions, estimates_for)},
	{"settings", "NAME=VALUE of the kind's own options, spaces between", OPTION_STRING,
         offsetof(LossOptions, settings)},
	{0}};
static const LossOptions loss_defaults = {.target = -1, .count = -1, .axis = -1, .rows = -1};
const PassRow pass_loss = {.name = "loss",
                           .help = "build accumulate and eval from forward",
                           .needed = true,
                           .takes = STAGE_FORWARD,
                           .leaves = STAGE_ANY,
                           .when = PASS_WITH_LOSS,
                           .options = loss_options,
                           .options_size = sizeof(LossOptions),
                           .defaults = &loss_defaults,
                           .run = run_loss};
