/* From @forward, of each binding, to what training runs: @accumulate (one micro-batch: forward and loss, added to @loss.sum
 * and @loss.count) and @eval (the inference form, with the hits for accuracy). @forward keeps the graph's
 * outputs and loses its stores. The module's `targets` are those of the first binding: gradients are seeded
 * with 1/targets whatever the binding. The losses themselves are rows in losses/. */
#include "passes/pass.h"

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

typedef struct {
	Pass *p;
	Module *m;
	const LossOptions *options;
	const LossRow *row;       /* NULL: the graph computes its own */
	int output, count_output; /* among the results of @forward; -1: none */
	int target_param;         /* -1: a new input */
	Type target_type;
	int class_axis;
	State *sum, *count, *correct;
} LossPass;

/* The line number of a name in the newline-separated list of outputs; -1: not there. */
static int
output_index(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (int i = 0; list && *list; i++) {
		const char *end = strchr(list, '\n');
		size_t len = end ? (size_t)(end - list) : strlen(list);
		if (len == n && strncmp(list, name, n) == 0)
			return i;
		list = end ? end + 1 : NULL;
	}
	return -1;
}

static bool PRINTF(2, 3) refuse(LossPass *lp, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	diag_error(lp->p->diag, EXIT_USAGE, "%s: --loss: %s", lp->m->name,
	           arena_vprintf(lp->p->scratch, fmt, args));
	va_end(args);
	return false;
}

static bool
find_output(LossPass *lp, const char *name, int *index)
{
	*index = name ? output_index(lp->options->outputs, name) : 0;
	if (*index >= 0)
		return true;
	refuse(lp, "the model has no output \"%s\"", name);
	diag_hint(lp->p->diag, "`gradc check` lists the outputs");
	return false;
}

/* Which axis of the output the labels lack: given, or the last of [B,T,V], or 1 of [N,C,H,W]. */
static bool
choose_class_axis(LossPass *lp, Type output, Type labels)
{
	int rank = output->rank, axis = (int)lp->options->axis, fits = -1;

	if (axis >= rank || (axis < 0 && axis != -1))
		return refuse(lp, "axis %d of a rank-%d output", axis, rank);
	if (axis < 0 && !labels)
		axis = rank > 3 ? 1 : rank - 1;
	for (int i = rank - 1; axis < 0 && labels && i >= 0; i--) {
		Type left = type_drop_axis(lp->m, output, i);
		if (type_same_shape(left, labels))
			fits = i;
	}
	lp->class_axis = axis >= 0 ? axis : fits;
	if (lp->class_axis < 0)
		return refuse(lp, "the target fits no axis of the output");
	return true;
}

static bool
check_class_weight(LossPass *lp, Type output)
{
	const Tensor *w = lp->options->class_weight;

	if (!w)
		return true;
	if (w->type->rank != 1 || w->type->dims[0] != output->dims[lp->class_axis])
		return refuse(lp, "--class-weight has %lld numbers, the output %lld classes",
		              (long long)w->type->n, (long long)output->dims[lp->class_axis]);
	return true;
}

static bool
prepare_target(LossPass *lp, const Function *f, Type output)
{
	const char *name = lp->options->target;
	Type given = NULL;

	lp->target_param = -1;
	for (int i = 0; name && i < f->params.n; i++)
		if (strcmp(f->params.at[i]->name, name) == 0)
			lp->target_param = i;
	if (lp->target_param >= 0)
		given = f->params.at[lp->target_param]->type;
	if (output->rank < 1 || !dtype_is_float(output->dtype))
		return refuse(
			lp,
			"the output is %s and of rank %d; a loss needs floats of rank 1 or more",
			dtype_info[output->dtype].name, output->rank);
	if (!lp->row->class_targets) {
		lp->target_type = output;
		if (given && given != output)
			return refuse(lp, "target \"%s\" does not have the output's type", name);
		return true;
	}
	if (output->rank < 2)
		return refuse(lp, "class losses need an output of rank 2 or more");
	if (!choose_class_axis(lp, output, given) || !check_class_weight(lp, output))
		return false;
	Type labels = type_drop_axis(lp->m, output, lp->class_axis);
	lp->target_type = given ? given : type_with_dtype(lp->m, labels, S64);
	if (!type_same_shape(lp->target_type, labels) ||
	    (lp->target_type->dtype != S64 && lp->target_type->dtype != S32))
		return refuse(lp,
		              "target \"%s\" is no s64 or s32 of the output's shape without "
		              "axis %d",
		              name ? name : "labels", lp->class_axis);
	return true;
}

static bool
prepare(LossPass *lp, const Function *f)
{
	const LossOptions *o = lp->options;

	lp->count_output = -1;
	if (!find_output(lp, o->output, &lp->output))
		return false;
	Type output = function_result(f, lp->output)->type;
	if (lp->row)
		return prepare_target(lp, f, output);
	if (o->count && !find_output(lp, o->count, &lp->count_output))
		return false;
	if (output->n != 1 || !dtype_is_float(output->dtype))
		return refuse(lp, "output \"%s\" is no float scalar", o->output ? o->output : "");
	return true;
}

/* ---- building */
static Value *
scalar_of(Builder *b, Value *v, DType d)
{
	return b_reshape(b, b_cast(b, v, d), (Ints){0});
}

/* The graph's own loss: a mean over `count` targets adds value * n and n, n a constant. */
static void
own_loss(LossPass *lp, Loss *l, Value *const *results)
{
	Builder *b = l->b;
	Value *value = results[lp->output];
	DType d = value->type->dtype;

	l->count = lp->count_output < 0 ? b_splat(b, type_scalar(b->m, d), 1)
	                                : scalar_of(b, results[lp->count_output], d);
	l->count = b_unary(b, OP_stop_gradient, l->count);
	l->sum = b_binary(b, OP_mul, scalar_of(b, value, d), l->count);
	l->targets = 1;
}

static State *
loss_state(LossPass *lp, const char *name, DType d)
{
	State *s = module_state(lp->m, name);

	return s ? s : state_new(lp->m, name, type_scalar(lp->m, d), STATE_SCALAR, LIFE_STEP);
}

static void
drop_stores(Function *f)
{
	for_each_node_reverse(f, n)
		if (n->op == OP_store)
			node_erase(n);
}

/* A copy of `from` under a new name, with the loss behind it. */
static void
build_program(LossPass *lp, const Function *from, const char *role, int binding)
{
	Module *m = lp->m;
	Function *f = function_new(m, program_name(m, role, binding));
	bool train = strcmp(role, "accumulate") == 0;
	Value **map = NEW_ARRAY(lp->p->scratch, Value *, from->next_value_id);
	Node *ret = function_return(from);
	Value **results = NEW_ARRAY(lp->p->scratch, Value *, ret->n_operands);
	Builder b = {.m = m, .f = f, .loc = loc_name(m, "loss")};
	Loss l = {.b = &b, .options = lp->options, .class_axis = lp->class_axis};

	for (int i = 0; i < from->params.n; i++) {
		const Value *v = from->params.at[i];
		map[v->id] = function_param(f, v->type, v->name);
	}
	function_clone_body(from, f, NULL, map);
	if (!train)
		drop_stores(f);
	for (int i = 0; i < ret->n_operands; i++)
		results[i] = map[node_operand(ret, i)->id];
	b.before = function_stores(f);
	l.output = results[lp->output];
	if (lp->row) {
		int64_t rows = lp->target_type->dims[0];
		l.target = lp->target_param >= 0 ? f->params.at[lp->target_param]
		                                 : function_param(f, lp->target_type, "labels");
		l.weight = function_param(f, type_new(m, l.output->type->dtype, 1, &rows),
		                          "sample_weight");
		lp->row->build(&l);
	} else {
		own_loss(lp, &l, results);
	}
	lp->sum = loss_state(lp, "loss.sum", l.sum->type->dtype);
	lp->count = loss_state(lp, "loss.count", l.sum->type->dtype);
	Value *sum = b_running_sum(&b, lp->sum, l.sum);
	Value *count = b_running_sum(&b, lp->count, l.count);
	Value *correct = NULL;
	if (!train && l.correct) {
		lp->correct = loss_state(lp, "metric.correct", l.correct->type->dtype);
		correct = b_running_sum(&b, lp->correct, l.correct);
	}
	b.before = NULL;
	b_store_sum(&b, lp->sum, l.sum, sum);
	b_store_sum(&b, lp->count, l.count, count);
	if (correct)
		b_store_sum(&b, lp->correct, l.correct, correct);
	b_return(&b, 0, NULL);
	m->targets = binding ? m->targets : l.targets;
}

static bool
build_programs(LossPass *lp, Function *forward, int binding)
{
	Function *inference = module_program(lp->m, "inference", binding);

	if (!prepare(lp, forward))
		return false;
	build_program(lp, forward, "accumulate", binding);
	build_program(lp, inference ? inference : forward, "eval", binding);
	drop_stores(forward);
	if (inference)
		function_remove(inference);
	return true;
}

static bool
run_loss(Pass *p, Module *m)
{
	const LossOptions *o = p->options;
	LossPass lp = {.p = p, .m = m, .options = o};
	Function *forward = module_function(m, "forward");

	if (!forward) {
		diag_error(p->diag, EXIT_USAGE, "%s: loss needs @forward", m->name);
		return false;
	}
	for (int i = 0; loss_table[i]; i++)
		if (o->kind && strcmp(loss_table[i]->name, o->kind) == 0)
			lp.row = loss_table[i];
	if (!lp.row && (!o->kind || strcmp(o->kind, "output") != 0))
		return refuse(&lp, "unknown loss `%s`", o->kind ? o->kind : "");
	for (int b = 0; (forward = module_program(m, "forward", b)); b++)
		if (!build_programs(&lp, forward, b))
			return false;
	p->changed = true;
	return true;
}

static const PassOption loss_options[] = {
	{"kind", "a row of loss_list.def, or output", OPTION_STRING, offsetof(LossOptions, kind)},
	{"output", "output of the model", OPTION_STRING, offsetof(LossOptions, output)},
	{"target", "input that holds the target", OPTION_STRING, offsetof(LossOptions, target)},
	{"count", "output that counts targets", OPTION_STRING, offsetof(LossOptions, count)},
	{"axis", "class axis, -1 where shapes tell", OPTION_INT, offsetof(LossOptions, axis)},
	{"label_smoothing", "for class losses", OPTION_DOUBLE,
         offsetof(LossOptions, label_smoothing)},
	{"outputs", "names of the outputs", OPTION_STRING, offsetof(LossOptions, outputs)},
	{0}};
static const LossOptions loss_defaults = {.axis = -1};
const PassRow pass_loss = {.name = "loss",
                           .help = "build @accumulate and @eval from @forward",
                           .takes = STAGE_FORWARD,
                           .leaves = STAGE_ANY,
                           .when = PASS_WITH_LOSS,
                           .options = loss_options,
                           .options_size = sizeof(LossOptions),
                           .defaults = &loss_defaults,
                           .run = run_loss};
