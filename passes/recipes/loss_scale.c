/* Loss scaling for 16-bit gradients: the backward pass is seeded with a scale, and @update
 * divides by it. The scale grows while gradients stay finite, and shrinks when they overflow; the
 * update of such a step is not made. Three rules are in use:
 *
 *	torch       torch.amp.GradScaler
 *	megatron    Megatron-LM's DynamicGradScaler (core/optimizer/grad_scaler.py)
 *	deepspeed   DeepSpeed's FP16_Optimizer (runtime/fp16/fused_optimizer.py)
 *
 * s is the scale, g the number of good steps (without overflow) since it changed, h the number of
 * overflows until it shrinks. At each step:
 *
 *	overflow    h > 1: h = h - 1             else: s = max(s / 2, least);    g = 0
 *	good        g = g + 1; at `interval` + `restart`: s = 2 s, g = `restart`, h = `hysteresis`
 *	            with `consecutive`: h = `hysteresis` after each good step */
#include "passes/pass.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* DeepSpeed's interval ends one good step later, and the good step that lets the scale grow is also the first of the
 * next interval. torch has no least scale; here the smallest positive number of f32 is the least scale. */
#define COMMON .growth = 2, .backoff = 0.5
static const LossScaleRow rows[] = {
	{"torch",
         "2^16, doubled after 2000 good steps, halved at each overflow: torch.amp.GradScaler",
         {COMMON, .init = 1 << 16, .interval = 2000, .hysteresis = 1, .least = FLT_MIN}},
	{"megatron",
         "2^32, doubled after 1000 good steps, halved from the second overflow on: Megatron-LM",
         {COMMON, .init = 4294967296.0, .interval = 1000, .hysteresis = 2, .least = 1}},
	{"deepspeed",
         "2^16, doubled after 1000 good steps and one more, halved from the second overflow on: DeepSpeed",
         {COMMON, .init = 1 << 16, .interval = 1000, .restart = 1, .hysteresis = 2, .least = 1}},
	{0}};
#undef COMMON
const LossScaleRow *const loss_scale_table = rows;

static const PassOption settings[] = {
	{"init", "the first scale", OPTION_DOUBLE, offsetof(LossScale, init)},
	{"growth", "factor of the scale when it grows", OPTION_DOUBLE, offsetof(LossScale, growth)},
	{"backoff", "factor of the scale when it shrinks", OPTION_DOUBLE,
         offsetof(LossScale, backoff)},
	{"interval", "good steps until it grows", OPTION_INT, offsetof(LossScale, interval)},
	{"hysteresis", "the scale shrinks from this overflow on: 1 = the first, 2 = the second",
         OPTION_INT, offsetof(LossScale, hysteresis)},
	{"consecutive", "count only consecutive overflows", OPTION_BOOL,
         offsetof(LossScale, consecutive)},
	{"least", "the smallest scale", OPTION_DOUBLE, offsetof(LossScale, least)},
	{0}};

static const LossScaleRow *
find(const char *name)
{
	for (const LossScaleRow *r = rows; r->name; r++)
		if (strcmp(r->name, name) == 0)
			return r;
	return NULL;
}

enum { MOST_STEPS = 1 << 30 };

static bool
is_sound(const LossScale *s)
{
	return s->init > 0 && s->init <= FLT_MAX && s->growth >= 1 && isfinite(s->growth) &&
	       s->backoff > 0 && s->backoff < 1 && s->interval > 0 && s->interval < MOST_STEPS &&
	       s->hysteresis > 0 && s->hysteresis < MOST_STEPS && s->least > 0 &&
	       s->least <= s->init;
}

/* A scale that never changes. */
static bool
parse_fixed(const char *text, LossScale *out)
{
	double x;

	*out = (LossScale){.init = 1};
	if (!parse_double(text, &x) || !(x > 0) || x > FLT_MAX)
		return false;
	out->init = x;
	return true;
}

bool
loss_scale_parse(const char *text, LossScale *out, Arena *arena, Diag *diag)
{
	char *copy = arena_strdup(arena, text), *save = NULL;
	char *name = strtok_r(copy, ",", &save);
	const LossScaleRow *row = name ? find(name) : NULL;

	*out = row ? row->scale : (LossScale){.init = 1};
	if (name && !row && (strcmp(text, "none") == 0 || parse_fixed(text, out)))
		return true;
	if (!row) {
		diag_error(
			diag, EXIT_USAGE,
			"--loss-scale=%s: must be none, torch, megatron, deepspeed or a number above 0 that f32 holds",
			text);
		return false;
	}
	size_t n;
	const char *twice = save && *save ? text_key_twice(save, &n) : NULL;
	if (twice) {
		diag_error(diag, EXIT_USAGE, "--loss-scale=%s: %.*s is given twice", text, (int)n,
		           twice);
		return false;
	}
	for (char *word; (word = strtok_r(NULL, ",", &save));) {
		char *equals = strchr(word, '=');
		if (equals)
			*equals = 0;
		OptionText option = {word, equals ? equals + 1 : ""};
		if (!option_set(settings, "--loss-scale", out, arena, &option, diag))
			return false;
	}
	if (!is_sound(out))
		diag_error(
			diag, EXIT_USAGE,
			"--loss-scale=%s: init, least and backoff must be above 0; least must not "
			"exceed init; backoff must be below 1; growth, interval and hysteresis "
			"must be at least 1",
			text);
	return is_sound(out);
}

/* ---- in @update */
static State *
counter(Module *m, const char *name, StateKind kind, int64_t first)
{
	State *s = state_new(m, module_fresh_name(m, name), type_scalar(m, S64), kind, LIFE_SAVED);

	s->init = INIT_DATA;
	s->data = tensor_splat(m, s->type, (double)first);
	return s;
}

static Value *
whole(Builder *b, int64_t x)
{
	return b_splat(b, type_scalar(b->m, S64), (double)x);
}

static Value *
number(Builder *b, double x)
{
	return b_splat(b, type_scalar(b->m, F64), x);
}

/* Makes the states of the scale, with their first values. */
LossScaling
loss_scale_open(Builder *b, const LossScale *rule)
{
	Module *m = b->m;
	LossScaling s = {.rule = rule, .scale = loss_scale_state(m)};

	s.scale->data = tensor_splat(m, s.scale->type, rule->init);
	if (rule->interval == 0 && rule->init != 1)
		s.scale->lifetime = LIFE_CONSTANT; /* the option decides, not a checkpoint */
	if (rule->interval == 0)
		return s;
	s.good = counter(m, "good_steps", STATE_GOOD_STEPS, 0);
	s.hysteresis = counter(m, "hysteresis", STATE_HYSTERESIS, rule->hysteresis);
	return s;
}

/* Is the scale so small already that an overflow would not make it smaller? */
Value *
loss_scale_is_least(Builder *b, const LossScaling *s)
{
	Value *last = b_binary(b, OP_le, function_state(b->f, s->hysteresis), whole(b, 1));
	Value *least = b_binary(b, OP_le, function_state(b->f, s->scale),
	                        number(b, s->rule->least));

	return b_binary(b, OP_and, last, least);
}

void
loss_scale_update(Builder *b, LossScaling *s, Value *overflow, Value *made)
{
	const LossScale *r = s->rule;
	Value *scale = function_state(b->f, s->scale), *good = function_state(b->f, s->good);
	Value *left = function_state(b->f, s->hysteresis);
	Value *next = b_select(b, made, b_binary(b, OP_add, good, whole(b, 1)), good);
	Value *grows = b_binary(b, OP_and, made,
	                        b_binary(b, OP_ge, next, whole(b, r->interval + r->restart)));
	Value *shrinks = b_binary(b, OP_and, overflow, b_binary(b, OP_le, left, whole(b, 1)));
	Value *less = b_binary(b, OP_max, b_binary(b, OP_mul, scale, number(b, r->backoff)),
	                       number(b, r->least));
	Value *more = b_binary(b, OP_mul, scale, number(b, r->growth));
	Value *fewer = b_binary(b, OP_max, b_binary(b, OP_sub, left, whole(b, 1)), whole(b, 1));

	more = b_select(b, b_binary(b, OP_le, more, number(b, FLT_MAX)), more, scale);
	next = b_select(b, grows, whole(b, r->restart), next);
	s->new_scale = b_select(b, shrinks, less, b_select(b, grows, more, scale));
	s->new_good = b_select(b, overflow, whole(b, 0), next);
	s->new_hysteresis = b_select(
		b, overflow, fewer,
		b_select(b, r->consecutive ? made : grows, whole(b, r->hysteresis), left));
}
