/* The update function: the gradients' mean over the whole step, their norm, clipping, an update of each parameter, and the
 * commit of pending statistics. It decides by itself: where nothing was counted, or loss or norm is not finite, states
 * keep their content to the bit; after a loss or norm that is not finite no later step changes them either.
 *
 * A parameter's update takes its elements in a row, whatever its shape, so that `units` can make one of many. It is computed in f32,
 * or f64 where weights are of it; what is kept in fewer bits is widened before and rounded after. */
#include "passes/pass.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define OPTIMIZER(name) extern const OptimizerRow optimizer_##name;
#include "passes/optimizers/optimizer_list.def"
#undef OPTIMIZER
const OptimizerRow *const optimizer_table[] = {
#define OPTIMIZER(name) &optimizer_##name,
#include "passes/optimizers/optimizer_list.def"
#undef OPTIMIZER
	NULL,
};

const OptimizerRow *
optimizer_find(const char *name)
{
	for (int i = 0; optimizer_table[i]; i++)
		if (strcmp(optimizer_table[i]->name, name) == 0)
			return optimizer_table[i];
	return NULL;
}

/* Sets a hyperparameter among "lr=0.001 beta1=0.9 ..."; false: there is none of that name. */
static bool
set_default(OptimizerChoice *c, const char *key, const char *value, Arena *arena)
{
	size_t n = strlen(key);

	for (const char *at = c->defaults; at && *at; at = strchr(at, ' ')) {
		at += *at == ' ';
		if (strncmp(at, key, n) != 0 || at[n] != '=')
			continue;
		const char *end = at + strcspn(at, " ");
		c->defaults = arena_printf(arena, "%.*s%s=%s%s", (int)(at - c->defaults),
		                           c->defaults, key, value, end);
		return true;
	}
	return false;
}

static bool
is_own(const OptimizerRow *row, const char *name)
{
	for (const PassOption *o = row->options; o && o->name; o++)
		if (strcmp(o->name, name) == 0)
			return true;
	return false;
}

/* As the executable's options take them. */
static bool
is_in_range(const char *key, const char *value)
{
	double x, high = strncmp(key, "beta", 4) == 0 ? 1 : INFINITY;

	return parse_double(value, &x) && x >= 0 && x < high;
}

static bool
set_key(OptimizerChoice *c, char *word, void *settings, Arena *arena, Diag *diag)
{
	char *equals = strchr(word, '=');
	const char *owner = arena_printf(arena, "--optimizer=%s", c->row->name);

	if (equals)
		*equals = 0;
	const char *value = equals ? equals + 1 : "true";
	if (is_own(c->row, word)) {
		c->name = arena_printf(arena, "%s,%s=%s", c->name, word, value);
		return option_set(c->row->options, owner, settings, arena,
		                  &(OptionText){word, value}, diag);
	}
	if (!set_default(c, word, value, arena)) {
		diag_error(diag, EXIT_USAGE, "%s: %s=%s is none of its settings", owner, word,
		           value);
		diag_hint(diag, "it has %s; `gradc compile --help` lists them", c->row->defaults);
		return false;
	}
	if (is_in_range(word, value))
		return true;
	diag_error(diag, EXIT_USAGE, "%s: %s=%s is out of range", owner, word, value);
	return false;
}

bool
optimizer_parse(const char *text, OptimizerChoice *out, Arena *arena, Diag *diag)
{
	char *copy = arena_strdup(arena, text ? text : "adamw"), *save = NULL;
	char *name = strtok_r(copy, ",", &save);
	const OptimizerRow *row = name ? optimizer_find(name) : NULL;

	if (!row) {
		diag_error(diag, EXIT_USAGE, "--optimizer=%s: not supported in this build", text);
		return false;
	}
	char *settings = arena_alloc(arena, row->options_size + 1);
	if (row->settings)
		memcpy(settings, row->settings, row->options_size);
	*out = (OptimizerChoice){row, settings, row->name, row->defaults};
	for (char *word; (word = strtok_r(NULL, ",", &save));)
		if (!set_key(out, word, settings, arena, diag))
			return false;
	return true;
}

/* A parameter that is trained, and what the optimizer keeps for it. */
typedef struct {
	State *param, *grad, *moment[MAX_MOMENTS];
} Trained;

typedef struct {
	Pass *p;
	Module *m;
	Function *f;
	Builder b;
	const OptimizerRow *row;
	const void *settings;
	const DType *moments; /* NULL: of the type of the update */
	bool stochastic;      /* rounding to 16 bits */
	State *number;
	LossScale rule;
	LossScaling scaling;
	VEC(Trained) trained;
} Optimizer;

/* In which the update of a parameter is computed. */
static DType
update_dtype(const State *param)
{
	return param->type->dtype == F64 ? F64 : F32;
}

static State *
moment_state(Optimizer *o, State *param, int number)
{
	Module *m = o->m;
	const char *name = arena_printf(m->arena, "%s.%s", o->row->moments[number], param->name);
	Type type = type_with_dtype(m, param->type, o->moments ? *o->moments : update_dtype(param));
	State *s = state_new(m, module_fresh_name(m, name), type, STATE_MOMENT, LIFE_SAVED);

	s->of = param;
	s->number = number;
	s->loc = param->loc;
	return s;
}

static void
collect_trained(Optimizer *o)
{
	Module *m = o->m;
	int n = m->states.n;
	unsigned without = o->row->without ? o->row->without(o->settings) : 0;

	for (int i = 0; i < n; i++) {
		State *s = m->states.at[i];
		if (s->kind != STATE_GRADIENT || !s->of)
			continue;
		Trained t = {.param = s->of, .grad = s};
		for (int k = 0; k < MAX_MOMENTS && o->row->moments[k]; k++)
			if (!(without >> k & 1))
				t.moment[k] = moment_state(o, s->of, k);
		vec_push(o->p->scratch, &o->trained, t);
	}
}

/* ---- scalars: hyperparameters of the function */
static Value *
hyper(Optimizer *o, ScalarIndex index)
{
	return function_hyperparameter(o->f, index);
}

static Value *
number(Builder *b, double x)
{
	return b_splat(b, type_scalar(b->m, F64), x);
}

static Value *
spread(Builder *b, Value *scalar, Type like)
{
	return b_broadcast(b, b_cast(b, scalar, like->dtype), ints_of_type(like), (Ints){0});
}

/* The elements of a state, in a row. */
static Value *
elements(Optimizer *o, State *s)
{
	return b_reshape(&o->b, function_state(o->f, s), (Ints){.n = 1, .at = {s->type->n}});
}

/* The elements in the type of an update. */
static Value *
wide_elements(Optimizer *o, State *s)
{
	return b_cast(&o->b, elements(o, s), update_dtype(s));
}

/* Each element up or down by chance, so that its mean is v: an update of less than half a unit in the last place is not lost. The
 * random numbers are those of the element's place and the step, one stream for weights and one for each kind of moment. */
enum { WEIGHTS = 1, FIRST_MOMENT };
static Value *
rounded_by_chance(Optimizer *o, Value *v, const State *of)
{
	CastAttr how = {
		.to = of->type->dtype, .round = ROUND_STOCHASTIC, .counter = {.rows = v->type->n}};
	Value *operands[] = {v, hyper(o, SCALAR_SEED), hyper(o, SCALAR_STEP),
	                     hyper(o, SCALAR_SHARD_FIRST)};

	how.counter.stream = of->kind == STATE_PARAMETER ? WEIGHTS : FIRST_MOMENT + of->number;
	return build(&o->b, OP_cast, COUNT(operands), operands, &how);
}

/* Elements as the state keeps them. */
static Value *
stored(Optimizer *o, Value *v, const State *s)
{
	bool narrow = dtype_info[s->type->dtype].bits < dtype_info[v->type->dtype].bits;

	return narrow && o->stochastic ? rounded_by_chance(o, v, s)
	                               : b_cast(&o->b, v, s->type->dtype);
}

Value *
update_scalar(Update *u, ScalarIndex index)
{
	return function_hyperparameter(u->b->f, index);
}

Value *
update_spread(Update *u, Value *scalar)
{
	return spread(u->b, scalar, u->param->type);
}

Value *
update_number(Update *u, double x)
{
	return number(u->b, x);
}

Value *
update_times(Update *u, Value *x, Value *v)
{
	return b_binary(u->b, OP_mul, v, update_spread(u, x));
}

Value *
update_scaled(Update *u, double x, Value *v)
{
	return update_times(u, update_number(u, x), v);
}

Value *
update_decayed(Update *u)
{
	return b_binary(u->b, OP_add, u->grad, update_times(u, u->decay, u->param));
}

Value *
update_shrunk(Update *u)
{
	Value *less = b_binary(u->b, OP_mul, u->lr, u->decay);

	return update_times(u, b_binary(u->b, OP_sub, update_number(u, 1), less), u->param);
}

Value *
update_lerp(Update *u, Value *beta, Value *m, Value *x)
{
	Value *rest = b_binary(u->b, OP_sub, update_number(u, 1), beta);

	return b_binary(u->b, OP_add, m, update_times(u, rest, b_binary(u->b, OP_sub, x, m)));
}

Value *
update_average(Update *u, Value *beta, Value *m, Value *x)
{
	Value *rest = b_binary(u->b, OP_sub, update_number(u, 1), beta);

	return b_binary(u->b, OP_add, update_times(u, beta, m), update_times(u, rest, x));
}

/* 1 - beta^t = -(e^(t log beta) - 1): the difference would lose the digits of a beta near 1. */
Value *
update_bias_correction(Update *u, ScalarIndex beta)
{
	Builder *b = u->b;
	Value *power = b_binary(b, OP_mul, u->t, b_unary(b, OP_log, update_scalar(u, beta)));

	return b_unary(b, OP_neg, b_unary(b, OP_expm1, power));
}

/* ---- the function */

/* What the micro-batches added up, in f64. */
typedef struct {
	Value *sum, *count;    /* as the states have them */
	Value *counted;        /* count > 0 */
	Value *is_number;      /* count >= 0: not NaN, and no sum of negative weights */
	Value *loss;           /* sum / count */
	Value *gradient_scale; /* what turns the sum of their gradients into the step's mean */
} Counted;

static Counted
read_loss(Optimizer *o)
{
	Builder *b = &o->b;
	Counted c;

	c.sum = function_state(o->f, module_state_of_kind(o->m, STATE_LOSS_SUM));
	c.count = function_state(o->f, module_state_of_kind(o->m, STATE_LOSS_COUNT));
	Value *count = b_cast(b, c.count, F64);

	c.counted = b_binary(b, OP_gt, count, number(b, 0));
	c.is_number = b_binary(b, OP_ge, count, number(b, 0));
	count = b_select(b, c.counted, count, number(b, 1));
	c.loss = b_binary(b, OP_div, b_cast(b, c.sum, F64), count);
	Value *scale = function_state(o->f, loss_scale_state(o->m));
	Value *scaled = b_binary(b, OP_mul, count, scale);
	c.gradient_scale = b_binary(b, OP_div, number(b, (double)o->m->targets), scaled);
	return c;
}

static Value *
is_finite(Builder *b, Value *x)
{
	return b_binary(b, OP_eq, b_binary(b, OP_sub, x, x), number(b, 0));
}

static Value *
gradient_norm(Optimizer *o, Value *factor)
{
	Builder *b = &o->b;
	Value *total = NULL;

	for (int i = 0; i < o->trained.n; i++) {
		Value *g = wide_elements(o, o->trained.at[i].grad);
		Value *scaled = b_binary(b, OP_mul, g, spread(b, factor, g->type));
		Value *sum = b_reduce(b, REDUCE_SUM, b_binary(b, OP_mul, scaled, scaled),
		                      (Ints){.n = 1, .at = {0}});
		sum = b_cast(b, sum, F64);
		total = total ? b_binary(b, OP_add, total, sum) : sum;
	}
	return b_unary(b, OP_sqrt, total ? total : number(b, 0));
}

/* What a state gets: its elements in a row. */
typedef struct {
	State *state;
	Value *value;
} NewContent;

/* A moment whose gradients stay 0 (a dead unit, a row of an embedding that no batch has) decays by a factor a step and
 * never gets to 0: rounding keeps it at a subnormal number, with which CPUs compute many times as slowly. What
 * is below the normal numbers becomes 0; NaN stays. */
static Value *
without_subnormals(Builder *b, Value *moment)
{
	double smallest = moment->type->dtype == F64 ? DBL_MIN : FLT_MIN;
	Value *is_subnormal = b_binary(b, OP_lt, b_unary(b, OP_abs, moment),
	                               b_splat(b, moment->type, smallest));

	return b_select(b, is_subnormal, b_splat(b, moment->type, 0), moment);
}

/* What all parameters share. */
typedef struct {
	Value *scale;      /* of gradients: the mean's, clipped */
	Value *t;          /* f64[]: the number of this update */
	Value *go;         /* bool[]: it is made */
	Value *new_number; /* f64[]: of the optimizer; NULL: it has none */
} Shared;

/* Elements where the mask has it so, else those that were. */
static NewContent
new_content(Optimizer *o, State *s, Value *mask, Value *v, Value *before)
{
	return (NewContent){s, b_select(&o->b, mask, stored(o, v, s), before)};
}

static int
update_parameter(Optimizer *o, const Trained *t, Shared *shared, NewContent *out)
{
	Builder *b = &o->b;
	Value *before = elements(o, t->param), *kept[MAX_MOMENTS] = {0};
	Value *p = b_cast(b, before, update_dtype(t->param)), *g = wide_elements(o, t->grad);
	Value *lr = b_binary(b, OP_mul, hyper(o, SCALAR_LR), number(b, t->param->lr_scale));
	Value *decay = t->param->decay ? hyper(o, SCALAR_WEIGHT_DECAY) : number(b, 0);
	Update up = {.b = b,
	             .settings = o->settings,
	             .param = p,
	             .t = shared->t,
	             .lr = lr,
	             .decay = decay};
	int n = 0;

	up.grad = b_binary(b, OP_mul, g, spread(b, shared->scale, g->type));
	for (int i = 0; i < MAX_MOMENTS; i++) {
		if (!t->moment[i])
			continue;
		kept[i] = elements(o, t->moment[i]);
		up.moment[i] = b_cast(b, kept[i], p->type->dtype);
	}
	up.number = o->number ? function_state(o->f, o->number) : NULL;
	o->row->update(&up);
	shared->new_number = up.new_number;
	Value *mask = b_broadcast(b, shared->go, ints_of_type(p->type), (Ints){0});
	out[n++] = new_content(o, t->param, mask, up.new_param, before);
	for (int i = 0; i < MAX_MOMENTS; i++)
		if (t->moment[i])
			out[n++] = new_content(o, t->moment[i], mask,
			                       without_subnormals(b, up.new_moment[i]), kept[i]);
	return n;
}

/* The pending content is a sum over ranks, which had each their own batches: a float statistic gets the mean. Where each
 * rank counts the same, as batches in an integer, a rank's own is right. */
static NewContent
commit(Optimizer *o, State *pending, Value *go)
{
	Builder *b = &o->b;
	Value *next = elements(o, pending), *old = elements(o, pending->of);
	Type t = next->type;

	if (dtype_is_float(t->dtype))
		next = b_binary(b, OP_div, next, spread(b, hyper(o, SCALAR_RANKS), t));
	Value *mask = b_broadcast(b, go, ints_of_type(t), (Ints){0});
	return (NewContent){pending->of, b_select(b, mask, next, old)};
}

static bool
scale_changes(const Optimizer *o)
{
	return o->rule.interval > 0;
}

/* What becomes of a step. */
typedef struct {
	Value *made;   /* bool[]: parameters are updated */
	Value *failed; /* bool[]: they are not, now and later */
} Decision;

/* Is the update made? Nor after a failure: what steps there are behind it were begun before the host knew. Where a smaller loss scale
 * may help, a norm that is not finite is an overflow, which fails only at the least one. */
static Decision
decide(Optimizer *o, const Counted *c, Value *norm, NewContent **out)
{
	Builder *b = &o->b;
	State *state = state_new(o->m, module_fresh_name(o->m, "failed"), type_scalar(o->m, BOOL),
	                         STATE_FAILED, LIFE_DERIVED);
	Value *before = function_state(o->f, state);
	Value *fit = b_unary(b, OP_not, before);
	Value *loss = is_finite(b, c->loss), *gradients = is_finite(b, norm);
	Value *finite = b_binary(b, OP_and, loss, gradients);
	Value *unfit = b_binary(b, OP_and, c->counted,
	                        b_unary(b, OP_not, scale_changes(o) ? loss : finite));
	Value *fails = b_binary(b, OP_or, unfit, b_unary(b, OP_not, c->is_number));
	Decision d = {b_binary(b, OP_and, b_binary(b, OP_and, c->counted, finite), fit), NULL};

	if (scale_changes(o)) {
		LossScaling *s = &o->scaling;
		Value *overflow = b_binary(b, OP_and, b_binary(b, OP_and, c->counted, loss),
		                           b_unary(b, OP_not, gradients));
		fails = b_binary(b, OP_or, fails,
		                 b_binary(b, OP_and, overflow, loss_scale_is_least(b, s)));
		loss_scale_update(b, s, b_binary(b, OP_and, overflow, fit), d.made);
		*(*out)++ = (NewContent){s->scale, s->new_scale};
		*(*out)++ = (NewContent){s->good, s->new_good};
		*(*out)++ = (NewContent){s->hysteresis, s->new_hysteresis};
	}
	d.failed = b_binary(b, OP_or, before, fails);
	*(*out)++ = (NewContent){state, d.failed};
	return d;
}

/* The number of this update, in f64. */
static Value *
count_update(Optimizer *o, Value *go, NewContent *updates)
{
	Builder *b = &o->b;
	State *state = state_new(o->m, module_fresh_name(o->m, "updates"), type_scalar(o->m, S64),
	                         STATE_UPDATES, LIFE_SAVED);
	Value *before = function_state(o->f, state);
	Value *next = b_binary(b, OP_add, before, b_splat(b, before->type, 1));

	*updates = (NewContent){state, b_select(b, go, next, before)};
	return b_cast(b, next, F64);
}

/* factor * min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ */
static Value *
clipped(Optimizer *o, Value *factor, Value *norm)
{
	Builder *b = &o->b;
	Value *ratio = b_binary(b, OP_div, hyper(o, SCALAR_CLIP_NORM),
	                        b_binary(b, OP_add, norm, number(b, 1e-6)));

	return b_binary(b, OP_mul, factor, b_binary(b, OP_min, ratio, number(b, 1)));
}

enum { MOST_RESULTS = 6 };

/* What the function returns, for people and to say what became of the step. How many. The scale's place gets the next one. */
static int
name_results(Optimizer *o, const Counted *c, Value *norm, const Decision *d, Value **out)
{
	static const char *const names[MOST_RESULTS] = {"loss_sum",   "loss_count", "grad_norm",
	                                                "loss_scale", "made",       "failed"};
	Builder *b = &o->b;
	int n = 0;

	out[n++] = c->sum;
	out[n++] = c->count;
	out[n++] = norm;
	if (scale_changes(o)) {
		out[n++] = b_unary(b, OP_copy, function_state(o->f, o->scaling.scale));
		out[n++] = b_cast(b, d->made, F64);
		out[n++] = b_cast(b, d->failed, F64);
	}
	for (int i = 0; i < n; i++)
		function_name_result(o->f, names[i]);
	return n;
}

static void
build_update(Optimizer *o)
{
	Builder *b = &o->b;
	int n = 0, n_states = o->m->states.n;
	NewContent *new = NEW_ARRAY(o->p->scratch, NewContent, n_states + 6), *end = new;

	b->loc = loc_name(o->m, "optimizer");
	b->phase = PHASE_UPDATE;
	o->scaling = loss_scale_open(b, &o->rule);
	Counted c = read_loss(o);
	Value *norm = gradient_norm(o, c.gradient_scale);
	Decision d = decide(o, &c, norm, &end);
	n = (int)(end - new);
	Value *go = d.made;
	Shared shared = {.scale = clipped(o, c.gradient_scale, norm), .go = go};
	shared.t = count_update(o, go, &new[n++]);
	for (int i = 0; i < o->trained.n; i++)
		n += update_parameter(o, &o->trained.at[i], &shared, new + n);
	if (shared.new_number)
		new[n++] = (NewContent){o->number, b_select(b, go, shared.new_number,
		                                            function_state(o->f, o->number))};
	for (int i = 0; i < n_states; i++)
		if (o->m->states.at[i]->kind == STATE_PENDING)
			new[n++] = commit(o, o->m->states.at[i], go);
	for (int i = 0; i < n; i++)
		new[i].value = b_reshape(b, new[i].value, ints_of_type(new[i].state->type));
	Value *results[MOST_RESULTS];
	int n_results = name_results(o, &c, norm, &d, results);
	for (int i = 0; i < n; i++)
		b_store(b, new[i].state, new[i].value);
	b_return(b, n_results, results);
}

static bool
keeps_16_bits(const Optimizer *o)
{
	for (int i = 0; i < o->m->states.n; i++)
		if (o->m->states.at[i]->kind == STATE_GRADIENT &&
		    o->m->states.at[i]->of->type->dtype == BF16)
			return true;
	return o->moments != NULL;
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

static bool
run_optimizer(Pass *p, Module *m)
{
	const OptimizerOptions *options = p->options;
	OptimizerChoice choice;

	if (!optimizer_parse(options->name, &choice, p->scratch, p->diag))
		return false;
	Optimizer o = {.p = p, .m = m, .row = choice.row, .settings = choice.settings};
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
	if (!set_rounding(&o, options->rounding))
		return false;
	if (!loss_scale_parse(options->loss_scale ? options->loss_scale : "none", &o.rule,
	                      p->scratch, p->diag))
		return false;
	if (!module_state_of_kind(m, STATE_LOSS_COUNT)) {
		diag_error(p->diag, EXIT_USAGE, "%s: optimizer needs a loss", m->name);
		return false;
	}
	collect_trained(&o);
	if (o.row->number) {
		o.number = state_new(m, module_fresh_name(m, o.row->number), type_scalar(m, F64),
		                     STATE_NUMBER, LIFE_SAVED);
		o.number->init = INIT_ONES;
	}
	o.f = program_new(m, FUNCTION_UPDATE, 0);
	o.b = (Builder){.m = m, .f = o.f};
	build_update(&o);
	p->changed = true;
	return true;
}

static const PassOption optimizer_options[] = {
	{"name", "a row of optimizer_list.def, and settings behind it", OPTION_STRING,
         offsetof(OptimizerOptions, name)},
	{"moments", "their type, f32 (that of the parameters) or bf16", OPTION_STRING,
         offsetof(OptimizerOptions, moments)},
	{"rounding", "of weights and moments of 16 bits, nearest or stochastic", OPTION_STRING,
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
