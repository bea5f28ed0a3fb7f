/* Applies --train, --freeze, --decay, --no-decay, --lr-scale and --init, which decide which parameters are trained,
 * which decay, how fast they learn, and with which numbers they begin. If two options name a parameter, the later one
 * counts. A frozen parameter becomes a constant. */
#include "passes/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Can a tensor of that type hold the number? */
static bool
fits(DType d, double x)
{
	return isfinite(x) && (d == F64 || (isfinite((float)x) && (x == 0 || (float)x != 0)));
}

static bool
is_distribution(bool normal, DType d, double a, double b)
{
	return fits(d, a) && fits(d, b) && fits(d, b - a) && (normal ? b >= 0 : a <= b);
}

static bool
apply_init(Pass *p, const ParameterRule *r, State *s)
{
	int end = 0;
	double a, b;

	if (strcmp(r->value, "zeros") == 0)
		s->init = INIT_ZEROS;
	else if (strcmp(r->value, "ones") == 0)
		s->init = INIT_ONES;
	else if ((sscanf(r->value, "normal(%lf,%lf)%n", &a, &b, &end) == 2 ||
	          sscanf(r->value, "uniform(%lf,%lf)%n", &a, &b, &end) == 2) &&
	         end > 0 && !r->value[end] &&
	         is_distribution(r->value[0] == 'n', s->type->dtype, a, b)) {
		s->init = r->value[0] == 'n' ? INIT_NORMAL : INIT_UNIFORM;
		s->init_a = a;
		s->init_b = b;
	} else {
		diag_error(p->diag, EXIT_USAGE,
		           "--init %s=%s: need normal(MEAN,STD), "
		           "uniform(A,B) of finite numbers of %s, zeros or ones",
		           r->glob, r->value, dtype_info[s->type->dtype].name);
		return false;
	}
	s->data = NULL;
	s->init_given = true;
	return true;
}

/* A weight with an adapter must not be trained: else --export-adapter would lack a part of the training. The weight
 * must keep the file's numbers if codes, or the adapter's first numbers, were made from these numbers. */
static bool
check_adapter(Pass *p, const ParameterRule *r, const Module *m, const State *s)
{
	const Adapter *a = module_adapter(m, s);
	bool trains = r->verb == RULE_TRAIN, begins = r->verb == RULE_INIT;
	bool is_made = a && (a->magnitude || a->pissa || module_four_bit(m, s));

	if (!a || (a->weight != s && !(begins && a->pissa)) || (!trains && !(begins && is_made)))
		return true;
	diag_error(p->diag, EXIT_USAGE,
	           "--%s=%s: \"%s\" has an adapter (%s): choose one of the two options",
	           rule_verbs[r->verb], r->glob, s->name, s->why);
	return false;
}

static bool
apply_rule(Pass *p, const ParameterRule *r, State *s)
{
	switch (r->verb) {
	case RULE_TRAIN:
	case RULE_FREEZE:
		s->trainable = r->verb == RULE_TRAIN;
		s->why = arena_printf(p->scratch, "--%s=%s", rule_verbs[r->verb], r->glob);
		break;
	case RULE_DECAY:
	case RULE_NO_DECAY: s->decay = r->verb == RULE_DECAY; break;
	case RULE_LR_SCALE:
		if (parse_double(r->value, &s->lr_scale) && fits(F32, s->lr_scale) &&
		    s->lr_scale >= 0)
			break;
		diag_error(p->diag, EXIT_USAGE, "--lr-scale %s=%s: need a number of f32, from 0",
		           r->glob, r->value);
		return false;
	case RULE_INIT: return apply_init(p, r, s);
	}
	return true;
}

/* A rule that fits no parameter is a typing error. */
static bool
apply_everywhere(Pass *p, const ParameterRule *r, Module *m)
{
	bool ok = true;
	int n = 0;

	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (s->kind != STATE_PARAMETER || !state_matches(s, r->glob))
			continue;
		DType dtype = state_weight_type(m, s)->dtype;
		if (r->verb == RULE_TRAIN && !dtype_is_float(dtype))
			continue;
		n++;
		ok &= check_adapter(p, r, m, s) && apply_rule(p, r, s);
		if (s->why)
			s->why = arena_strdup(m->arena, s->why);
	}
	/* All states of a group may be constants: then there is nothing to freeze. */
	if (n == 0 && *r->glob == '@' && r->verb == RULE_FREEZE)
		return ok;
	if (n == 0) {
		diag_error(p->diag, EXIT_USAGE, "--%s=%s fits no parameter", rule_verbs[r->verb],
		           r->glob);
		hint_nearest_states(m, r->glob, p->diag);
		return false;
	}
	return ok;
}

static bool
has_value(Pass *p, const ParameterRule *r)
{
	bool needs = rule_takes_value(r->verb);

	if (needs && !*r->value)
		diag_error(p->diag, EXIT_USAGE, "--%s %s: the value is missing: need GLOB=%s",
		           rule_verbs[r->verb], r->glob, r->verb == RULE_LR_SCALE ? "X" : "HOW");
	return !needs || *r->value;
}

/* The option has one rule per line: VERB GLOB, or VERB GLOB=VALUE. */
static bool
run_trainable(Pass *p, Module *m)
{
	const TrainableOptions *o = p->options;
	char *rules = arena_strdup(p->scratch, o->rules ? o->rules : ""), *save = NULL;
	bool ok = !o->scales || scales_train(m, p->diag) > 0;

	if (!ok) {
		diag_error(
			p->diag, EXIT_USAGE,
			"--scale-learning: the model holds no scale of codes that may be learned");
		diag_hint(
			p->diag,
			"scales of 32-bit codes, scales of floats, computed scales and scales of 0 cannot be learned; `gradc quantize` makes a model with scales");
	}
	for (char *line = strtok_r(rules, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		ParameterRule rule;
		if (!rule_parse(p->scratch, line, &rule)) {
			diag_error(p->diag, EXIT_USAGE, "pass trainable: rule `%s`: unknown verb",
			           line);
			ok = false;
			continue;
		}
		ok &= has_value(p, &rule) && apply_everywhere(p, &rule, m);
	}
	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (s->kind == STATE_PARAMETER)
			s->lifetime = s->trainable ? LIFE_SAVED : LIFE_CONSTANT;
	}
	p->changed = true;
	return ok;
}

static const PassOption trainable_options[] = {{"rules", "VERB GLOB[=VALUE], one a line",
                                                OPTION_STRING, offsetof(TrainableOptions, rules)},
                                               {"scales", "scales of codes are trained, too",
                                                OPTION_BOOL, offsetof(TrainableOptions, scales)},
                                               {0}};
const PassRow pass_trainable = {.name = "trainable",
                                .help = "which parameters are trained, which decay; first values",
                                .needed = true,
                                .takes = STAGE_IMPORT,
                                .leaves = STAGE_FORWARD,
                                .options = trainable_options,
                                .options_size = sizeof(TrainableOptions),
                                .run = run_trainable};
