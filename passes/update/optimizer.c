/* Decides which optimizer updates each trained parameter, makes the optimizer's states, and then builds the update
 * function (update.c). */
#include "passes/update/build.h"

#include <string.h>

DType
update_dtype(const State *param)
{
	return param->type->dtype == F64 ? F64 : F32;
}

/* Type of a parameter's moment; NULL: the parameter has no such moment. */
static Type
moment_type(Optimizer *o, const Trained *t, int i)
{
	const OptimizerChoice *c = &t->group->of.choice;
	Type type = type_with_dtype(o->m, t->param->type, update_dtype(t->param));

	if (!c->row->moments[i] || (c->row->without && c->row->without(c->settings) >> i & 1))
		return NULL;
	if (c->row->moment_type)
		return c->row->moment_type(o->m, c->settings, type, i);
	return o->moments ? type_with_dtype(o->m, type, *o->moments) : type;
}

static State *
moment_state(Optimizer *o, const Trained *t, int number)
{
	Module *m = o->m;
	Type type = moment_type(o, t, number);
	const char *kind = t->group->of.choice.row->moments[number];

	if (!type)
		return NULL;
	const char *name = arena_printf(m->arena, "%s.%s", kind, t->param->name);
	State *s = state_new(m, module_fresh_name(m, name), type, STATE_MOMENT, LIFE_SAVED);

	s->of = t->param;
	s->number = number;
	s->loc = t->param->loc;
	if (t->group->of.choice.row->starts_as_parameter >> number & 1)
		s->init = INIT_COPY;
	return s;
}

/* If the row names a moment (`gradient_at`), @accumulate reads the moment instead of the parameter. */
static void
move_point(Optimizer *o, const Trained *t)
{
	for_each_of_role(o->m, ROLE_ACCUMULATE, f)
		for (int k = 0; k < MAX_MOMENTS; k++)
			if (t->group->of.choice.row->gradient_at >> k & 1)
				value_replace_uses(
					function_state(f, t->param),
					b_cast(&(Builder){.m = o->m, .f = f, .before = f->first},
				               function_state(f, t->moment[k]),
				               t->param->type->dtype));
}

/* ---- the optimizer of each parameter */
static Group *
group_new(Optimizer *o, const OptimizerGroup *of)
{
	Group *g = arena_alloc(o->p->scratch, sizeof(*g));

	g->of = *of;
	vec_push(o->p->scratch, &o->groups, g);
	return g;
}

/* The group of parameters that `taken` does not update: its optimizer is the row's `fallback`. NULL after
 * reporting. */
static Group *
rest_of(Optimizer *o, Group *taken)
{
	const OptimizerChoice *c = &taken->of.choice;
	const char *settings = c->row->fallback(c->settings, o->p->scratch);
	const char *text = arena_printf(o->p->scratch, "*=%s", settings);
	OptimizerGroup rest;

	if (!taken->rest && optimizer_group_parse(text, &rest, o->p->scratch, o->p->diag))
		taken->rest = group_new(o, &rest);
	return taken->rest;
}

/* The last group whose glob fits the parameter. NULL after reporting. */
static Group *
group_of(Optimizer *o, const State *param)
{
	Group *g = o->groups.at[0];

	for (int i = 1; i < o->given; i++)
		if (state_matches(param, o->groups.at[i]->of.glob)) {
			g = o->groups.at[i];
			g->fits = true;
		}
	const OptimizerRow *row = g->of.choice.row;
	if (row->takes && !row->takes(o->m, param))
		return rest_of(o, g);
	g->taken = true;
	return g;
}

static bool
take_groups(Optimizer *o, const OptimizerOptions *options)
{
	OptimizerGroup whole = {.choice = options->choice};

	if (!whole.choice.row && !optimizer_parse(NULL, &whole.choice, o->p->scratch, o->p->diag))
		return false;
	group_new(o, &whole);
	for (int i = 0; i < options->groups.n; i++)
		group_new(o, &options->groups.at[i]);
	o->given = o->groups.n;
	return true;
}

/* Makes the states that a group's optimizer has for all its parameters. */
static void
make_numbers(Optimizer *o, Group *g)
{
	const OptimizerRow *row = g->of.choice.row;

	for (int i = 0; i < MAX_NUMBERS && row->numbers[i].name; i++) {
		Type f64 = type_scalar(o->m, F64);
		State *s = state_new(o->m, module_fresh_name(o->m, row->numbers[i].name), f64,
		                     STATE_NUMBER, LIFE_SAVED);
		s->init = INIT_DATA;
		s->data = tensor_splat(o->m, f64, row->numbers[i].first);
		g->numbers[i] = s;
	}
}

static bool
check_groups(const Optimizer *o)
{
	bool ok = true;

	for (int i = 1; i < o->given; i++) {
		if (o->groups.at[i]->fits)
			continue;
		diag_error(o->p->diag, EXIT_USAGE,
		           "--optimizer-for=%s: it fits no trained parameter",
		           o->groups.at[i]->of.glob);
		hint_nearest_states(o->m, o->groups.at[i]->of.glob, o->p->diag);
		ok = false;
	}
	for (int i = 0; i < o->given; i++) {
		const Group *g = o->groups.at[i];
		if (g->rest && !g->taken)
			diag_warning(
				o->p->diag, "%s takes none of the parameters%s%s: they have %s",
				g->of.choice.row->name, g->of.glob ? " of --optimizer-for=" : "",
				g->of.glob ? g->of.glob : "", g->rest->of.choice.row->name);
	}
	return ok;
}

static bool
refuse_moments(const Optimizer *o, const OptimizerRow *row)
{
	if (!o->moments || !row->moment_type)
		return true;
	diag_error(o->p->diag, EXIT_USAGE,
	           "--moments=%s: the optimizer %s keeps its moments in types of its own",
	           dtype_info[*o->moments].name, row->name);
	return false;
}

/* The axis of v, of rank 2, over which the first product that reads v sums; -1: no product reads v. */
static int
summed_axis(const Value *v)
{
	for_each_use(v, u) {
		const Node *n = u->user;
		const DotAttr *dot = n->op == OP_dot ? n->attr : NULL;
		const Ints *over = dot && use_index(u) ? &dot->y_contract
		                   : dot               ? &dot->x_contract
		                                       : NULL;
		if (over && over->n == 1)
			return (int)over->at[0];
		const TransposeAttr *turned = n->op == OP_transpose ? n->attr : NULL;
		int axis = n->op == OP_cast || turned ? summed_axis(node_result(n, 0)) : -1;
		if (axis >= 0)
			return turned ? (int)turned->order.at[axis] : axis;
	}
	return -1;
}

static int
inputs_axis(const Optimizer *o, const State *param)
{
	const Function *f = module_first(o->m, ROLE_FORWARD);

	const Value *v = f && param->id < f->by_state.n ? f->by_state.at[param->id] : NULL;

	return v && param->type->rank == 2 ? summed_axis(v) : -1;
}

static bool
collect_trained(Optimizer *o)
{
	Module *m = o->m;
	int n = m->states.n;

	for (int i = 0; i < n; i++) {
		State *s = m->states.at[i];
		if (s->kind != STATE_GRADIENT || !s->of)
			continue;
		Trained t = {.group = group_of(o, s->of),
		             .param = s->of,
		             .grad = s,
		             .inputs_axis = inputs_axis(o, s->of)};
		if (!t.group || !refuse_moments(o, t.group->of.choice.row))
			return false;
		for (int k = 0; k < MAX_MOMENTS; k++)
			t.moment[k] = moment_state(o, &t, k);
		move_point(o, &t);
		vec_push(o->p->scratch, &o->trained, t);
	}
	for (int i = 0; i < o->groups.n; i++)
		make_numbers(o, o->groups.at[i]);
	return check_groups(o);
}

static bool
keeps_16_bits(const Optimizer *o)
{
	for (int i = 0; i < o->m->states.n; i++) {
		const State *s = o->m->states.at[i];
		bool trained = s->kind == STATE_PARAMETER && s->trainable;
		if ((trained || s->kind == STATE_MOMENT) && s->type->dtype == BF16)
			return true;
	}
	return false;
}

static bool
set_rounding(Optimizer *o, const char *text)
{
	Diag *diag = o->p->diag;

	o->stochastic = text && strcmp(text, "stochastic") == 0;
	if (text && !o->stochastic && strcmp(text, "nearest") != 0) {
		diag_error(diag, EXIT_USAGE, "--rounding=%s: need nearest or stochastic", text);
		return false;
	}
	if (!o->stochastic || keeps_16_bits(o))
		return true;
	diag_error(diag, EXIT_USAGE,
	           "--rounding=stochastic: no weights or moments of 16 bits are kept");
	diag_hint(diag,
	          "--master=off keeps weights in bf16, --moments=bf16 the optimizer's moments");
	return false;
}

/* All optimizers estimate at the same steps. Sets *out to the number of steps between; 0: no estimates. */
static bool
check_every(const Optimizer *o, int64_t *out)
{
	int64_t first = 0;

	for (int i = 0; i < o->given; i++) {
		int64_t every = optimizer_every(&o->groups.at[i]->of.choice);
		if (every && first && every != first) {
			diag_error(
				o->p->diag, EXIT_USAGE,
				"--optimizer-for=%s: every=%lld, and every=%lld of another: they must agree",
				o->groups.at[i]->of.glob, (long long)every, (long long)first);
			return false;
		}
		first = first ? first : every;
	}
	*out = first;
	return true;
}

/* A group's learning rate follows the program's schedule relative to the program's learning rate, which must not
 * be 0. */
static bool
check_rates(const Optimizer *o)
{
	const OptimizerChoice *c = &o->groups.at[0]->of.choice;
	bool others = o->given > 1 || c->row->fallback;

	if (!others || !strstr(c->defaults, "lr=0 "))
		return true;
	diag_error(o->p->diag, EXIT_USAGE,
	           "--optimizer=%s,lr=0: the learning rates of other optimizers follow it to 0",
	           c->row->name);
	diag_hint(o->p->diag, "--freeze=GLOB excludes parameters from training");
	return false;
}

static bool
run_optimizer(Pass *p, Module *m)
{
	const OptimizerOptions *options = p->options;
	Optimizer o = {.p = p, .m = m};

	if (!take_groups(&o, options))
		return false;
	DType moments;
	if (options->moments && strcmp(options->moments, "f32") != 0) {
		if (strcmp(options->moments, "bf16") != 0 ||
		    !dtype_parse(options->moments, &moments)) {
			diag_error(p->diag, EXIT_USAGE, "--moments=%s: need f32 or bf16",
			           options->moments);
			return false;
		}
		o.moments = &moments;
	}
	if (!loss_scale_parse(options->loss_scale ? options->loss_scale : "none", &o.rule,
	                      p->scratch, p->diag))
		return false;
	if (!module_state_of_kind(m, STATE_LOSS_COUNT)) {
		diag_error(p->diag, EXIT_USAGE, "%s: optimizer needs a loss", m->name);
		return false;
	}
	int64_t every;
	if (!check_every(&o, &every) || !check_rates(&o))
		return false;
	if (every > 0 && !module_first(m, ROLE_ESTIMATE)) {
		diag_error(p->diag, EXIT_USAGE,
		           "%s: the optimizer needs the pass loss with estimates_for", m->name);
		return false;
	}
	if (!collect_trained(&o) || !set_rounding(&o, options->rounding))
		return false;
	o.f = program_new(m, ROLE_UPDATE, 0);
	o.b = (Builder){.m = m, .f = o.f, .known = intmap_new(p->scratch)};
	update_build(&o);
	if (every > 0)
		refresh_build(&o);
	p->changed = true;
	return true;
}

static const PassOption optimizer_options[] = {
	{"name", "a row of optimizer_list.def, followed by settings", OPTION_PARSED,
         offsetof(OptimizerOptions, choice), .parser = &optimizer_choice_parser},
	{"groups", "GLOB=NAME,KEY=VALUE of other optimizers, one a line", OPTION_PARSED,
         offsetof(OptimizerOptions, groups), .parser = &optimizer_groups_parser},
	{"moments", "type of the moments, f32 (as the parameters) or bf16", OPTION_STRING,
         offsetof(OptimizerOptions, moments)},
	{"rounding", "rounding of 16-bit weights and moments: nearest or stochastic", OPTION_STRING,
         offsetof(OptimizerOptions, rounding)},
	{"loss_scale", "none, torch, megatron, deepspeed with settings, or a number", OPTION_STRING,
         offsetof(OptimizerOptions, loss_scale)},
	{0}};
const PassRow pass_optimizer = {.name = "optimizer",
                                .help = "build update",
                                .needed = true,
                                .takes = STAGE_FORWARD,
                                .leaves = STAGE_TRAIN,
                                .when = PASS_WITH_OPTIMIZER,
                                .options = optimizer_options,
                                .options_size = sizeof(OptimizerOptions),
                                .run = run_optimizer};
