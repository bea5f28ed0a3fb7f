/* Decides what a float tensor is, from metadata, its readers, its values and its name. The rules are
 * tried in order; the first that holds decides and gives the reason. Rules that need more than
 * metadata are in asked.c, exporters.c, numbers.c and tables.c. */
#include "frontend/weights/roles.h"
#include "frontend/weights/judge.h"
#include "frontend/weights/origins.h"
#include "frontend/weights/values.h"

#include <string.h>

static bool
rule_unused(Case *c)
{
	return c->n == 0;
}

/* Fresh weights may equal fresh statistics; then the exporter merges the two. */
static bool
rule_statistic(Case *c)
{
	if (!any_in(c, STATISTIC_PLACE))
		return false;
	c->w->why = "running statistics of BatchNormalization";
	if (all_in(c, STATISTIC_PLACE))
		return true;
	c->w->why = "running statistics of BatchNormalization, which other nodes read, too";
	diag_warning(c->r->diag,
	             "%s: %s holds running statistics of BatchNormalization, and other nodes read "
	             "it, too: it is not trained",
	             c->r->model->path, quoted(c->r->model, c->w->name));
	diag_hint(c->r->diag,
	          "the exporter's optimizer joins equal tensors; where one of them is a weight, "
	          "export with optimize=False to train it");
	return true;
}

static bool
is_said_to_train(const Case *c)
{
	return origin_is(c->w, ORIGIN_PARAMETER) ||
	       (c->w->origin && c->w->origin->from.n && !c->w->origin->guessed);
}

/* Sinusoidal tables. Some models, such as Whisper, declare such a table as a parameter but do not
 * train it; the file does not show that it is not trained. */
static bool
rule_fixed_waves(Case *c)
{
	return is_said_to_train(c) && values_are_waves(&c->w->data, true);
}

/* Random frequencies of diffusion models are parameters that are not trained, either. Their sines
 * and cosines are used. A network that uses only sines learns its frequencies. */
static bool
rule_fixed_frequencies(Case *c)
{
	Trigonometry ends;

	return is_said_to_train(c) && leads_to_trigonometry(c, &ends) && ends.sine && ends.cosine;
}

/* A basis with more than one kernel. A single kernel for all channels may be an interpolation that
 * is learned and has its first values. */
static bool
is_basis_of_several(Case *c)
{
	const TensorData *t = &c->w->data;

	return rule_basis(c) && (t->rank < 3 || (t->dims[0] > 1 && !values_repeat(t, 0)));
}

/* Bases of spectra, mel filters and bins of a detector's distribution are often
 * Parameter(requires_grad=False). */
static bool
rule_fixed_filter(Case *c)
{
	return is_said_to_train(c) && !rule_sequence(c) &&
	       (rule_window(c) || is_basis_of_several(c) || rule_filter_bank(c));
}

/* A fresh weight is never 0, 1, 2 ... */
static bool
rule_fixed_bins(Case *c)
{
	return is_said_to_train(c) && any_in(c, WEIGHT_PLACE) && rule_sequence(c) &&
	       values_are_whole(&c->w->data);
}

static bool
rule_declared_parameter(Case *c)
{
	return origin_is(c->w, ORIGIN_PARAMETER);
}

static bool
rule_declared_buffer(Case *c)
{
	return origin_is(c->w, ORIGIN_BUFFER) || origin_is(c->w, ORIGIN_CONSTANT);
}

/* Computed from the values of parameters, not only from their sizes. */
static bool
rule_computed(Case *c)
{
	double value;

	if (!c->w->origin || c->w->origin->from.n == 0 || c->w->origin->guessed)
		return false;
	if (c->w->data.n == 1 && !origin_is_all_there_is(c->r, c->w))
		return false;
	if (tensor_constant_valued(&c->w->data, &value) && name_is_creation(c->w->name))
		return false;
	c->w->why = origin_text(c->r, c->w);
	return true;
}

static bool
rule_computed_of_none(Case *c)
{
	return c->w->origin && c->w->origin->folded && c->w->origin->from.n == 0 &&
	       !(c->w->origin->unknown && is_in_weights_place(c));
}

static bool
rule_steering(Case *c)
{
	return all_in(c, STEERING_PLACE);
}

static bool
rule_codes(Case *c)
{
	return c->w->codes != NULL;
}

/* Codes that do not train stay in the file's few bits. */
static bool
rule_frozen_codes(Case *c)
{
	if (!c->w->codes)
		return false;
	c->w->kind = WEIGHT_PARAMETER;
	c->w->groups = "codes";
	return c->r->options->forward_only || weight_is_frozen(c->r, c->w);
}

/* Floats of 8 bits or less are codes, too: training them would lose updates to rounding. */
static bool
rule_small_floats(Case *c)
{
	return dtype_info[c->w->data.dtype].bits <= 8 && !c->w->codes;
}

static bool
rule_scale(Case *c)
{
	bool all = c->n > 0;

	for (int i = 0; i < c->n; i++)
		all &= reads_scale(c->r, &c->readers[i]);
	return all || strmap_get(c->r->scales, c->w->name);
}

/* A scale of codes that pass through Cast and so do not train. Trained alone, the scale would try
 * to make up for the codes. */
static bool
rule_scale_of_cast(Case *c)
{
	c->w->beside_cast = codes_beside(c);
	return c->w->beside_cast;
}

static bool
rule_generated_copy(Case *c)
{
	return !repair_enabled(c->r->options, "transposes") && c->w->data.rank == 2 &&
	       name_is_generated(c->w->name);
}

typedef struct {
	bool (*holds)(Case *c);
	WeightKind kind;
	bool as_constant;
	const char *group;  /* NULL: these tensors have no group */
	const char *why;    /* NULL: the rule sets it itself */
	const char *repair; /* repair whose absence disables the rule */
	const DoubtRow *doubts;
} Rule;
#define TABLE(rule, group, why, doubts)                                 \
	{                                                               \
		rule, WEIGHT_TABLE, false, group, why, "tables", doubts \
	}
#define CONSTANT_TABLE(rule, group, why, doubts)                       \
	{                                                              \
		rule, WEIGHT_TABLE, true, group, why, "tables", doubts \
	}
#define WHY_FILTER "a fixed filter: a window, a basis of sines, symmetric rows or a filter bank"
#define WHY_SEQUENCE "evenly spaced or geometric numbers"
#define WHY_FREQUENCIES "frequencies: meets positions, then Sin and Cos"
static const Rule rules[] = {
	{rule_unused, WEIGHT_CONSTANT, false, NULL, "not read", NULL, NULL},
	{rule_statistic, WEIGHT_STATISTIC, false, NULL, NULL, NULL, NULL},
	{rule_small_floats, WEIGHT_QUANTIZED, true, "codes", "codes of 8 bits or less", NULL, NULL},
	{rule_frozen_codes, WEIGHT_QUANTIZED, true, "codes", "codes, frozen", NULL, NULL},
	{rule_scale, WEIGHT_QUANTIZED, false, "scales", "a scale of codes", NULL, NULL},
	{rule_scale_of_cast, WEIGHT_QUANTIZED, false, "scales",
         "beside codes that Cast makes floats", NULL, NULL},
	{rule_asked_for, WEIGHT_PARAMETER, false, NULL, "--train", NULL, NULL},
	{rule_codes, WEIGHT_PARAMETER, false, "codes", "codes with a scale", NULL, NULL},
	TABLE(rule_fixed_waves, "positions", "sines and cosines of positions", doubts_of_fixed),
	TABLE(rule_fixed_frequencies, "frequencies", WHY_FREQUENCIES, doubts_of_fixed),
	TABLE(rule_fixed_filter, "filters", WHY_FILTER, doubts_of_fixed),
	TABLE(rule_fixed_bins, "sequences", WHY_SEQUENCE, doubts_of_fixed),
	{rule_declared_parameter, WEIGHT_PARAMETER, false, NULL, "a parameter, says its metadata",
         NULL, NULL},
	{rule_computed, WEIGHT_PARAMETER, false, NULL, NULL, NULL, NULL},
	TABLE(rule_declared_buffer, "buffers", "a buffer, says its metadata", NULL),
	TABLE(rule_power_iteration, "buffers", "a buffer of spectral_norm", NULL),
	{rule_empty, WEIGHT_CONSTANT, true, NULL, "holds no numbers", NULL, NULL},
	{rule_scalar, WEIGHT_CONSTANT, true, "numbers", "one number", NULL, doubts_of_number},
	TABLE(rule_computed_of_none, "computed", "computed from no parameter, say its metadata",
              doubts_of_computed),
	CONSTANT_TABLE(rule_steering, "steering", "steers an operator", NULL),
	TABLE(rule_fitted, "fitted", "scikit-learn computes it without gradients",
              doubts_of_fitted),
	CONSTANT_TABLE(rule_plain_norm, "fillings", "ones and zeros of a plain normalization",
                       NULL),
	TABLE(rule_frequencies, "frequencies", WHY_FREQUENCIES, NULL),
	TABLE(rule_waves, "positions", "sines and cosines of positions", doubts_of_waves),
	TABLE(rule_ramp, "positions", "ramps along positions", doubts_of_ramp),
	TABLE(rule_window, "filters", "a window", doubts_of_filter),
	TABLE(rule_sequence, "sequences", WHY_SEQUENCE, doubts_of_sequence),
	TABLE(rule_basis, "filters", "a basis of sines, or symmetric rows", doubts_of_filter),
	TABLE(rule_filter_bank, "filters", "a filter bank: one bump a line, in order",
              doubts_of_filter),
	TABLE(rule_whole, "sequences", "whole numbers and halves only", doubts_of_sequence),
	TABLE(rule_first_state, "states", "zeros that a recurrence begins with", doubts_of_state),
	TABLE(rule_mask, "masks", "a mask", doubts_of_mask),
	TABLE(rule_input_norm, "norms", "normalizes an input", NULL),
	CONSTANT_TABLE(rule_filling, "fillings", "one value that fills", doubts_of_filling),
	TABLE(rule_written_down, "written", "in a Constant node, in no weight's place",
              doubts_of_constant_node),
	TABLE(rule_untold, "untold", "of no parameter, by the metadata of the others",
              doubts_of_untold),
	{rule_generated_copy, WEIGHT_TABLE, false, NULL, "--no-repair=transposes", NULL, NULL},
};

/* A name for messages that people who know the module recognize: "blocks.0/qkv" rather than
 * onnx::MatMul_403. */
static const char *
path_of(const Case *c)
{
	const Origin *o = c->w->origin;
	const char *path;

	if (o && o->folded && o->from.n == 1)
		return o->from.at[0];
	if (c->n == 0)
		return NULL;
	size_t n = node_module(c->readers[0].node->proto, &path);
	if (n == 0) {
		path = node_location(c->readers[0].node->proto);
		n = strlen(path);
	}
	size_t slash = *path == '/';
	return arena_strndup(c->r->arena, path + slash, n - slash);
}

/* Applies the rule's verdict, unless an option trains the tensor's group. */
static void
apply_rule(Case *c, const Rule *rule)
{
	Weight *w = c->w;
	const char *asked;

	w->kind = rule->kind;
	w->as_constant = rule->as_constant;
	w->why = rule->why ? rule->why : w->why;
	w->doubt = find_doubt(c, rule->doubts);
	w->groups = rule->group;
	if (w->doubt)
		w->groups = rule->group ? arena_printf(c->r->arena, "%s doubtful", rule->group)
		                        : "doubtful";
	bool is_table = w->kind == WEIGHT_TABLE || (w->kind == WEIGHT_CONSTANT && rule->group);
	if (!is_table || !(asked = asked_for_group(c, w->groups)))
		return;
	w->kind = WEIGHT_PARAMETER;
	w->as_constant = false;
	w->is_asked_for = true;
	w->why = arena_printf(c->r->arena, "--train=%s", asked);
}

void
weight_judge(Repairs *r, Weight *w)
{
	Case c = {.r = r, .w = w};

	c.n = all_readers(r, w->value, &c.readers);
	w->path = path_of(&c);
	w->is_read = c.n > 0;
	w->is_asked_for = rule_asked_for(&c);
	for (int i = 0; i < COUNT(rules); i++) {
		const Rule *rule = &rules[i];
		if ((rule->repair && !repair_enabled(r->options, rule->repair)) || !rule->holds(&c))
			continue;
		apply_rule(&c, rule);
		return;
	}
	w->kind = WEIGHT_PARAMETER;
	w->doubt = find_doubt(&c, doubts_of_parameter);
	w->groups = w->doubt ? "doubtful" : NULL;
	w->why = arena_printf(r->arena, "read by %.100s",
	                      c.n ? c.readers[0].node->proto->op_type : "the outputs");
}
