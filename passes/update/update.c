/* Builds the update function: the mean of the gradients over the whole step, their norm, clipping, the update of each
 * parameter, and the commit of pending statistics. The function itself decides whether the update is made. If no target
 * was counted, or if the loss or the norm is not finite, states keep their content bit for bit. After a loss or norm
 * that is not finite, later steps do not change states either.
 *
 * A parameter's update works on a vector of its elements, whatever the parameter's shape, so that the pass `units` can
 * join many updates. The update is computed in f32, or in f64 for f64 weights. States of fewer bits are widened before
 * and rounded after the update. */
#include "passes/update/build.h"

#include <float.h>
#include <string.h>
#include <math.h>

/* ---- scalars: hyperparameters of the function */
static Value *
hyper(Optimizer *o, ScalarIndex index)
{
	return function_hyperparameter(o->f, index);
}

/* The elements of a state, as a vector. */
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

/* Stochastic rounding: rounds each element up or down by chance, so that the result is v on
 * average. So an update of less than half a unit in the last place is not always lost. The
 * element's place and the step select the random number. All weights that `units` may put into one
 * flat state share one stream of random numbers, in which each element has its own place. Each kind
 * of moment has its own stream, and so has each state of another shape. */
enum { WEIGHTS = 1, FIRST_MOMENT };
static Value *
rounded_by_chance(Optimizer *o, Value *v, const State *of)
{
	CastAttr how = {.to = of->type->dtype,
	                .round = ROUND_STOCHASTIC,
	                .counter = {.rows = v->type->rank ? v->type->dims[0] : 0}};
	Value *operands[] = {v, hyper(o, SCALAR_SEED), hyper(o, SCALAR_STEP),
	                     hyper(o, SCALAR_SHARD_FIRST)};

	how.counter.stream = of->kind == STATE_PARAMETER ? WEIGHTS : FIRST_MOMENT + of->number;
	if (v->type->rank != 1) /* `units` joins only vectors */
		how.counter.stream = (int64_t)hash_bytes(of->name, strlen(of->name),
		                                         how.counter.stream);
	return build(&o->b, OP_cast, COUNT(operands), operands, &how);
}

/* Elements in the type of their state. */
static Value *
stored(Optimizer *o, Value *v, const State *s)
{
	bool narrow = dtype_info[s->type->dtype].bits < dtype_info[v->type->dtype].bits;

	return narrow && o->stochastic ? rounded_by_chance(o, v, s)
	                               : b_cast(&o->b, v, s->type->dtype);
}

/* ---- the function */

Counted
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

Value *
is_finite(Builder *b, Value *x)
{
	return b_binary(b, OP_eq, b_binary(b, OP_sub, x, x), number(b, 0));
}

/* Clamps elements to [-limit, limit]. NaN stays; an infinite limit changes nothing. */
static Value *
clamped(Builder *b, Value *g, Value *limit)
{
	Value *high = spread(b, limit, g->type);
	Value *low = spread(b, b_unary(b, OP_neg, limit), g->type);

	g = b_select(b, b_binary(b, OP_gt, g, high), high, g);
	return b_select(b, b_binary(b, OP_lt, g, low), low, g);
}

/* The norm of the gradients times the factor, with elements clamped to the limit; limit NULL: no limit. */
Value *
gradient_norm(Optimizer *o, Value *factor, Value *limit)
{
	Builder *b = &o->b;
	Value *total = NULL;

	for (int i = 0; i < o->trained.n; i++) {
		Value *g = wide_elements(o, o->trained.at[i].grad);
		Value *scaled = b_binary(b, OP_mul, g, spread(b, factor, g->type));
		scaled = limit ? clamped(b, scaled, limit) : scaled;
		Value *sum = b_reduce(b, REDUCE_SUM, b_binary(b, OP_mul, scaled, scaled),
		                      (Ints){.n = 1, .at = {0}});
		sum = b_cast(b, sum, F64);
		total = total ? b_binary(b, OP_add, total, sum) : sum;
	}
	return b_unary(b, OP_sqrt, total ? total : number(b, 0));
}

/* A moment whose gradients stay 0 (a dead unit, a row of an embedding that no batch uses) decays by a factor per
 * step. Rounding keeps it from reaching 0: it stays at a subnormal number, with which CPUs compute many times as
 * slowly. So moments below the normal numbers become 0. NaN stays. */
static Value *
without_subnormals(Builder *b, Value *moment)
{
	double smallest = moment->type->dtype == F64 ? DBL_MIN : FLT_MIN;
	Value *is_subnormal = b_binary(b, OP_lt, b_unary(b, OP_abs, moment),
	                               b_splat(b, moment->type, smallest));

	return b_select(b, is_subnormal, b_splat(b, moment->type, 0), moment);
}

/* The content of a state: as a vector of elements if `units` may join the state with other states; else in the state's
 * shape. */
static Value *
content(Optimizer *o, State *s, bool in_row)
{
	return in_row ? elements(o, s) : function_state(o->f, s);
}

/* v if the update is made, else the old content. */
static NewContent
new_content(Optimizer *o, State *s, Value *v, Value *before, Value *go)
{
	Builder *b = &o->b;
	Ints shape = ints_of_type(before->type);
	Value *mask = b_broadcast(b, go, shape, (Ints){0});

	return (NewContent){s, b_select(b, mask, stored(o, b_reshape(b, v, shape), s), before)};
}

/* Sets the learning rate and weight decay of a parameter. */
static void
set_rates(Optimizer *o, const Trained *t, Update *up)
{
	Builder *b = &o->b;
	const OptimizerGroup *g = &t->group->of;
	Value *lr = hyper(o, g->is_fixed ? SCALAR_LR_FACTOR : SCALAR_LR);
	double scale = t->param->lr_scale * (g->is_fixed ? g->fixed[SCALAR_LR] : 1);

	up->decays = t->param->decay;
	up->lr = b_binary(b, OP_mul, lr, number(b, scale));
	up->group_lr = g->is_fixed ? b_binary(b, OP_mul, lr, number(b, g->fixed[SCALAR_LR])) : lr;
	up->decay = !up->decays   ? number(b, 0)
	            : g->is_fixed ? number(b, g->fixed[SCALAR_WEIGHT_DECAY])
	                          : hyper(o, SCALAR_WEIGHT_DECAY);
}

/* v, of the parameter's size, in the type and shape that the row's update takes. */
static Value *
operand(Optimizer *o, const Trained *t, Value *v)
{
	Ints shape = {.n = 1, .at = {v->type->n}};

	v = b_cast(&o->b, v, update_dtype(t->param));
	return b_reshape(&o->b, v,
	                 t->group->of.choice.row->whole ? ints_of_type(t->param->type) : shape);
}

/* Collects the inputs of a parameter's update. kept: the moments, as their states store them. */
static Update
open_update(Optimizer *o, const Trained *t, const Shared *shared, Value **kept)
{
	Builder *b = &o->b;
	const Group *g = t->group;
	const OptimizerRow *row = g->of.choice.row;
	Update up = {.b = b,
	             .settings = g->of.choice.settings,
	             .inputs_axis = t->inputs_axis,
	             .fixed = g->of.is_fixed ? g->of.fixed : NULL,
	             .param = operand(o, t, elements(o, t->param)),
	             .count = shared->count,
	             .t = shared->t};
	Value *grad = operand(o, t, elements(o, t->grad));

	up.grad = b_binary(b, OP_mul, grad, spread(b, shared->scale, grad->type));
	if (shared->limit)
		up.grad = clamped(b, up.grad, shared->limit);
	set_rates(o, t, &up);
	for (int i = 0; i < MAX_MOMENTS; i++)
		if (kept[i])
			up.moment[i] = row->moment_type ? function_state(o->f, t->moment[i])
			                                : operand(o, t, kept[i]);
	for (int i = 0; i < MAX_NUMBERS; i++)
		up.numbers[i] = g->numbers[i] ? function_state(o->f, g->numbers[i]) : NULL;
	return up;
}

void
new_contents(Optimizer *o, const Trained *t, const Shared *shared, void (*row)(Update *u),
             NewContents *out)
{
	const OptimizerRow *of = t->group->of.choice.row;
	bool in_row = !of->whole && !of->moment_type;
	Value *kept[MAX_MOMENTS] = {0};

	for (int i = 0; i < MAX_MOMENTS; i++)
		kept[i] = t->moment[i] ? content(o, t->moment[i], in_row) : NULL;
	Update up = open_update(o, t, shared, kept);
	row(&up);
	for (int i = 0; i < MAX_NUMBERS; i++)
		t->group->new_numbers[i] = up.new_numbers[i];
	if (up.new_param)
		vec_push(o->p->scratch, out,
		         new_content(o, t->param, up.new_param, content(o, t->param, in_row),
		                     shared->go));
	for (int i = 0; i < MAX_MOMENTS; i++) {
		Value *next = up.new_moment[i];
		if (!kept[i] || !next)
			continue;
		if (dtype_is_float(next->type->dtype))
			next = without_subnormals(&o->b, next);
		vec_push(o->p->scratch, out,
		         new_content(o, t->moment[i], next, kept[i], shared->go));
	}
}

/* The pending content of a float statistic is a sum over ranks, whose batches differ; the statistic gets the mean over
 * ranks. An integer, such as a count of batches, is the same on all ranks, so the rank's own content is right. */
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

/* The decision about a step: */
typedef struct {
	Value *made;   /* bool[]: parameters are updated */
	Value *failed; /* bool[]: training has failed: parameters are updated neither now nor later */
} Decision;

/* Decides whether the update is made. After a failure, later updates are not made either: the
 * host may have begun more steps before it learned of the failure. If a smaller loss scale may
 * help, a norm that is not finite is an overflow, and training fails only at the least scale. */
static Decision
decide(Optimizer *o, const Counted *c, Value *norm, NewContents *out)
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
		vec_push(o->p->scratch, out, ((NewContent){s->scale, s->new_scale}));
		vec_push(o->p->scratch, out, ((NewContent){s->good, s->new_good}));
		vec_push(o->p->scratch, out, ((NewContent){s->hysteresis, s->new_hysteresis}));
	}
	d.failed = b_binary(b, OP_or, before, fails);
	vec_push(o->p->scratch, out, ((NewContent){state, d.failed}));
	return d;
}

/* Returns the number of this update, in f64, and adds the new content of its state. */
static Value *
count_update(Optimizer *o, Value *go, NewContents *out)
{
	Builder *b = &o->b;
	State *state = module_updates(o->m);
	Value *before = function_state(o->f, state);
	Value *next = b_binary(b, OP_add, before, b_splat(b, before->type, 1));

	vec_push(o->p->scratch, out, ((NewContent){state, b_select(b, go, next, before)}));
	return b_cast(b, next, F64);
}

/* min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ */
static Value *
norm_ratio(Optimizer *o, Value *norm)
{
	Builder *b = &o->b;
	Value *ratio = b_binary(b, OP_div, hyper(o, SCALAR_CLIP_NORM),
	                        b_binary(b, OP_add, norm, number(b, 1e-6)));

	return b_binary(b, OP_min, ratio, number(b, 1));
}

/* Clips as torch.nn.utils.clip_grad_value_ and then clip_grad_norm_, whose norm is the norm of clamped gradients.
 * Gradients are first multiplied by the ratio and then clamped to the limit times the ratio. This gives the same
 * result with one product per element. */
static Shared
clip(Optimizer *o, Value *factor, Value *made)
{
	Builder *b = &o->b;
	Value *limit = hyper(o, SCALAR_CLIP_VALUE);
	Value *ratio = norm_ratio(o, gradient_norm(o, factor, limit));

	return (Shared){.scale = b_binary(b, OP_mul, factor, ratio),
	                .limit = b_binary(b, OP_mul, limit, ratio),
	                .go = made};
}

enum { MOST_RESULTS = 6 };

/* Collects the function's results, for people and for the runtime. Returns their number. The loss scale is copied,
 * because its state gets the next scale. */
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

void
new_numbers(Optimizer *o, Value *go, NewContents *out)
{
	for (int i = 0; i < o->groups.n; i++) {
		Group *g = o->groups.at[i];
		for (int k = 0; k < MAX_NUMBERS && g->new_numbers[k]; k++)
			vec_push(o->p->scratch, out,
			         ((NewContent){g->numbers[k],
			                       b_select(&o->b, go, g->new_numbers[k],
			                                function_state(o->f, g->numbers[k]))}));
	}
}

void
reshape_contents(Optimizer *o, const NewContents *new)
{
	for (int i = 0; i < new->n; i++)
		new->at[i].value = b_reshape(&o->b, new->at[i].value,
		                             ints_of_type(new->at[i].state->type));
}

void
store_contents(Optimizer *o, const NewContents *new)
{
	for (int i = 0; i < new->n; i++)
		b_store(&o->b, new->at[i].state, new->at[i].value);
}

void
update_build(Optimizer *o)
{
	Builder *b = &o->b;
	int n_states = o->m->states.n;
	NewContents new = {0};

	b->loc = loc_name(o->m, "optimizer");
	b->phase = PHASE_UPDATE;
	o->scaling = loss_scale_open(b, &o->rule);
	Counted c = read_loss(o);
	Value *norm = gradient_norm(o, c.gradient_scale, NULL);
	Decision d = decide(o, &c, norm, &new);
	Value *go = d.made;
	Shared shared = clip(o, c.gradient_scale, go);
	shared.count = b_cast(b, c.count, F64);
	shared.t = count_update(o, go, &new);
	for (int i = 0; i < o->trained.n; i++)
		new_contents(o, &o->trained.at[i], &shared,
		             o->trained.at[i].group->of.choice.row->update, &new);
	new_numbers(o, go, &new);
	for (int i = 0; i < n_states; i++)
		if (o->m->states.at[i]->kind == STATE_PENDING)
			vec_push(o->p->scratch, &new, commit(o, o->m->states.at[i], go));
	reshape_contents(o, &new);
	Value *results[MOST_RESULTS];
	int n_results = name_results(o, &c, norm, &d, results);
	store_contents(o, &new);
	b_return(b, n_results, results);
}
