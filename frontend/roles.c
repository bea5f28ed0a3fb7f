/* What a float tensor is, told from who reads it, from its values and from its name. The rules are
 * tried in order; the first that fits decides, and says why. */
#include "frontend/frontend_impl.h"

#include <string.h>
#include <strings.h>

enum { MAX_READERS = 64, MAX_STEPS = 16 };

typedef struct {
	const char *op;
	unsigned inputs; /* bit i: input i */
} Place;

/* Inputs where a tensor is a weight, whatever its size. */
static const Place weight_roles[] = {
	{"Conv", 6},
	{"ConvTranspose", 6},
	{"Gemm", 7},
	{"MatMul", 3},
	{"BatchNormalization", 6},
	{"LayerNormalization", 6},
	{"InstanceNormalization", 6},
	{"GroupNormalization", 6},
	{"RMSNormalization", 2},
	{"PRelu", 2},
	{"Einsum", 7},
	{"Gather", 1},
};
/* Inputs that steer an operator. */
static const Place steering_roles[] = {
	{"Resize", 14},
	{"Upsample", 2},
	{"Pow", 2},
	{"Clip", 6},
	{"Range", 7},
	{"Pad", 4},
	{"OneHot", 6},
	{"Mod", 2},
	{"Equal", 3},
	{"Less", 3},
	{"Greater", 3},
	{"LessOrEqual", 3},
	{"GreaterOrEqual", 3},
	{"IsNaN", 1},
	{"IsInf", 1},
	{"Dropout", 2},
	{"Shape", 1},
	{"Size", 1},
	{"CastLike", 2},
	{"ConstantOfShape", 1},
	{"EyeLike", 1},
	{"Max", 3},
	{"Min", 3},
	{"SoftmaxCrossEntropyLoss", 4},
	{"NegativeLogLikelihoodLoss", 4},
};
/* Inputs that take data: a tensor of one value there is filling. */
static const Place filling_roles[] = {
	{"Concat", ~0u}, {"Where", 6},  {"ScatterElements", 5}, {"ScatterND", 5},
	{"Scatter", 5},  {"Expand", 1}, {"GatherElements", 1},  {"GatherND", 1},
};
/* Inputs that scale, and those that are added. */
static const Place factor_roles[] = {{"Mul", 3}, {"Div", 3}};
static const Place term_roles[] = {{"Add", 3}, {"Sub", 3}};
/* Inputs that a layer takes: zeros there are the first state of a recurrence, whatever else reads them. */
static const Place layer_roles[] = {{"MatMul", 1}, {"Gemm", 1}};

static bool
in_role(const Place *roles, int n, const Reader *reader)
{
	for (int i = 0; i < n; i++)
		if (reader->input >= 0 && roles[i].inputs >> (reader->input & 31) & 1 &&
		    node_is(reader->node, roles[i].op))
			return true;
	return false;
}

typedef struct {
	Repairs *r;
	Weight *w;
	Reader readers[MAX_READERS];
	int n;
} Case;

static bool
all_in(const Case *c, const Place *roles, int n)
{
	for (int i = 0; i < c->n; i++)
		if (!in_role(roles, n, &c->readers[i]))
			return false;
	return c->n > 0;
}

static bool
any_in(const Case *c, const Place *roles, int n)
{
	for (int i = 0; i < c->n; i++)
		if (in_role(roles, n, &c->readers[i]))
			return true;
	return false;
}

static bool
has_word(const char *name, const char *word)
{
	size_t n = strlen(word);

	for (; *name; name++)
		if (!strncasecmp(name, word, n))
			return true;
	return false;
}

/* The word alone, or with a number behind it; no word: a number. */
static bool
is_numbered(const char *name, const char *word)
{
	size_t n = strlen(word);

	return !strncasecmp(name, word, n) && name[n + strspn(name + n, "0123456789")] == 0;
}

bool
name_is_generated(const char *name)
{
	static const char *const words[] = {"",        "val_", "const_", "constant",
	                                    "tensor_", "t_",   "v_"};

	if (!strncmp(name, "onnx::", 6) || strstr(name, "_output_") || strstr(name, "Constant_"))
		return true;
	for (int i = 0; i < COUNT(words); i++)
		if (is_numbered(name, words[i]))
			return true;
	return false;
}

/* dynamo's exporter names a value after the function that made it. */
static bool
named_by_creation(const char *name)
{
	static const char *const words[] = {"zeros",      "ones",      "full",
	                                    "new_zeros",  "new_ones",  "new_full",
	                                    "zeros_like", "ones_like", "full_like"};

	for (int i = 0; i < COUNT(words); i++)
		if (!strcmp(name, words[i]) ||
		    (!strncmp(name, words[i], strlen(words[i])) && name[strlen(words[i])] == '_' &&
		     is_numbered(name + strlen(words[i]) + 1, "")))
			return true;
	return false;
}

/* As people name what they train: a path, or with a word for it. */
static bool
named_like_parameter(const char *name)
{
	static const char *const words[] = {"weight", "bias",  "scale",       "gamma",
	                                    "beta",   "alpha", "temperature", "kernel"};

	if (name_is_generated(name))
		return false;
	for (int i = 0; i < COUNT(words); i++)
		if (has_word(name, words[i]))
			return true;
	return strchr(name, '.') && !strchr(name, '/');
}

static bool
from_pytorch(const Repairs *r)
{
	const char *producer = r->model->proto->producer_name;

	return producer && !strcmp(producer, "pytorch");
}

bool
weight_made_by_exporter(const Repairs *r, const Weight *w)
{
	if (!from_pytorch(r) || w->spec)
		return false;
	for (int i = 0; i < r->list.n; i++)
		if (r->list.at[i]->spec)
			return true;
	return w->constant || name_is_generated(w->name);
}

/* PyTorch's files call by the module's name what the exporter did not make. */
static bool
named_by_module(const Case *c)
{
	return from_pytorch(c->r) && !weight_made_by_exporter(c->r, c->w) &&
	       !strpbrk(c->w->name, "/:");
}

/* ---- where values come from and lead to */
static bool
node_is_any(const FlatNode *n, const char *const *ops, int n_ops)
{
	for (int k = 0; k < n_ops; k++)
		if (node_is(n, ops[k]))
			return true;
	return false;
}

/* Made of integers, shapes and scalars: positions. */
static bool
is_position(const Repairs *r, const char *name, int depth)
{
	const TensorProto *t = strmap_get(r->model->initializers, name);
	const Weight *w = repairs_weight(r, name);
	const ValueInfoProto *input = strmap_get(r->inputs, name);
	const FlatNode *n = strmap_get(r->producers, name);

	if (!*name)
		return true;
	if (w)
		return w->data.n <= 1;
	if (t)
		return !is_float_type(t->data_type);
	if (input)
		return input->type &&
		       input->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE &&
		       !is_float_type(input->type->tensor_type->elem_type);
	if (!n || depth == 0)
		return false;
	if (node_is(n, "Shape") || node_is(n, "Size") || node_is(n, "Constant"))
		return true;
	for (size_t i = 0; i < n->proto->n_input; i++)
		if (!is_position(r, n->proto->input[i], depth - 1))
			return false;
	return true;
}

/* A graph input behind casts, reshapes and other such constants. */
static bool
is_prepared_input(const Repairs *r, const char *name, int depth)
{
	static const char *const ways[] = {"Cast",     "Transpose", "Reshape",
	                                   "Identity", "Unsqueeze", "Squeeze",
	                                   "Sub",      "Div",       "Mul"};
	const FlatNode *n = strmap_get(r->producers, name);

	if (strmap_get(r->inputs, name))
		return true;
	return n && depth && node_is_any(n, ways, COUNT(ways)) &&
	       is_prepared_input(r, n->proto->input[0], depth - 1);
}

/* What the value meets on its way: positions, or an input element by element. A matrix that an input is multiplied with
 * may be a layer with a sine behind it. */
static bool
meets_positions(const Repairs *r, const FlatNode *n, const char *name)
{
	for (size_t k = 0; k < n->proto->n_input; k++) {
		const char *other = n->proto->input[k];

		if (strcmp(other, name) && !is_position(r, other, MAX_STEPS) &&
		    !(node_is(n, "Mul") && is_prepared_input(r, other, 6)))
			return false;
	}
	return true;
}

/* Every way from the value leads into Sin and Cos, through a product with positions first; what follows may be joined
 * with other such products. */
static bool
leads_to_trigonometry(const Repairs *r, const char *name, bool met, int depth)
{
	static const char *const products[] = {"Mul", "MatMul", "Einsum", "Div"};
	static const char *const views[] = {"Concat",    "Identity", "Transpose", "Reshape",
	                                    "Unsqueeze", "Squeeze",  "Expand",    "Cast",
	                                    "Slice",     "Tile",     "Flatten",   "CastLike"};
	Readers list = readers_of(r, name);

	for (int i = 0; i < list.n; i++) {
		const FlatNode *n = list.at[i].node;
		bool product = node_is_any(n, products, COUNT(products));
		if (node_is(n, "Sin") || node_is(n, "Cos"))
			continue;
		if (depth == 0 || n->proto->n_output != 1 ||
		    (!product && !node_is_any(n, views, COUNT(views))) ||
		    (!met && !meets_positions(r, n, name)))
			return false;
		if (!leads_to_trigonometry(r, n->proto->output[0], met || product, depth - 1))
			return false;
	}
	return list.n > 0;
}

/* ---- the rules */
static bool
rule_unused(Case *c)
{
	return c->n == 0;
}

static bool
rule_statistic(Case *c)
{
	static const Place running[] = {{"BatchNormalization", 24}};

	return any_in(c, running, 1);
}

static bool
rule_declared_parameter(Case *c)
{
	return c->w->spec && !strcmp(c->w->spec, "PARAMETER");
}

static bool
rule_declared_buffer(Case *c)
{
	return c->w->spec && c->w->data.n > 1 &&
	       (!strcmp(c->w->spec, "BUFFER") || !strcmp(c->w->spec, "CONSTANT_TENSOR"));
}

/* By --train, which names it: a pattern is for what are parameters already. */
static bool
rule_asked_for(Case *c)
{
	const char *const *name = c->r->options->trained;

	while (name && *name && strcmp(*name, c->w->name))
		name++;
	return name && *name;
}

/* One element: a parameter in a weight's place, by its name, or added to a product. */
static bool
rule_scalar(Case *c)
{
	if (c->w->data.n > 1 ||
	    (!c->w->constant && (named_like_parameter(c->w->name) || named_by_module(c))))
		return false;
	if (c->w->data.rank > 0 && any_in(c, weight_roles, COUNT(weight_roles)))
		return false;
	for (int i = 0; i < c->n && c->w->data.rank > 0; i++) {
		const NodeProto *p = c->readers[i].node->proto;
		if (!node_is(c->readers[i].node, "Add") || p->n_input != 2)
			continue;
		const FlatNode *other = strmap_get(c->r->producers, p->input[!c->readers[i].input]);
		if (other && node_is(other, "MatMul"))
			return false;
	}
	return true;
}

static bool
rule_steering(Case *c)
{
	return all_in(c, steering_roles, COUNT(steering_roles));
}

/* [batch, 1, rows, columns]: one for all heads of an attention, as a learned bias is not. */
static bool
is_mask_shaped(const TensorData *t)
{
	return t->rank == 4 && t->dims[1] == 1;
}

/* Of one value: read as data; or made by the exporter, and either said to be by its name, or no parameter as it began. A
 * scale of each channel has one long axis, so what scales and has more is none; zeros that a layer takes as its input are
 * a first state; zeros that are added hide nothing. */
static bool
rule_filling(Case *c)
{
	double value;

	if (!tensor_constant_valued(&c->w->data, &value))
		return false;
	if (all_in(c, filling_roles, COUNT(filling_roles)))
		return !named_like_parameter(c->w->name);
	if (!weight_made_by_exporter(c->r, c->w))
		return false;
	if (named_by_creation(c->w->name))
		return true;
	if (!values_are_wide(&c->w->data))
		return false;
	return all_in(c, factor_roles, COUNT(factor_roles)) ||
	       (value == 0 && any_in(c, layer_roles, COUNT(layer_roles))) ||
	       (value == 0 && (c->w->constant || is_mask_shaped(&c->w->data)) &&
	        all_in(c, term_roles, COUNT(term_roles)));
}

/* GroupNorm as Reshape, InstanceNormalization with 1 and 0, Reshape, then the real scale. */
static bool
followed_by_scale(const Repairs *r, const NodeProto *norm)
{
	Reader readers[MAX_READERS];
	int n = final_readers(r, norm->output[0], readers, MAX_READERS);

	for (int i = 0; i < n; i++) {
		const NodeProto *p = readers[i].node->proto;
		for (size_t k = 0; node_is(readers[i].node, "Mul") && k < p->n_input; k++)
			if (repairs_weight(r, p->input[k]))
				return true;
	}
	return false;
}

static bool
rule_plain_norm(Case *c)
{
	double value;

	if (!tensor_constant_valued(&c->w->data, &value) || c->n == 0)
		return false;
	for (int i = 0; i < c->n; i++) {
		const Reader *reader = &c->readers[i];
		bool instance = node_is(reader->node, "InstanceNormalization");
		bool layer = node_is(reader->node, "LayerNormalization");

		if ((!instance && !layer) || reader->input < 1 || value != 2 - reader->input)
			return false;
		if (layer ? !weight_made_by_exporter(c->r, c->w)
		          : !followed_by_scale(c->r, reader->node->proto) &&
		                    named_like_parameter(c->w->name))
			return false;
	}
	return true;
}

static bool
rule_frequencies(Case *c)
{
	return leads_to_trigonometry(c->r, c->w->name, false, MAX_STEPS);
}

static bool
rule_waves(Case *c)
{
	return values_are_waves(&c->w->data, !weight_made_by_exporter(c->r, c->w));
}

static bool
rule_ramp(Case *c)
{
	return values_are_ramps(&c->w->data) && all_in(c, term_roles, COUNT(term_roles));
}

static bool
rule_mask(Case *c)
{
	return values_are_mask(&c->w->data) || values_are_triangle(&c->w->data) ||
	       (values_are_wide(&c->w->data) && values_are_binary(&c->w->data) &&
	        all_in(c, factor_roles, COUNT(factor_roles)));
}

static bool
rule_input_norm(Case *c)
{
	for (int i = 0; i < c->n; i++) {
		const FlatNode *n = c->readers[i].node;
		if (c->readers[i].input != 1 || (!node_is(n, "Sub") && !node_is(n, "Div")) ||
		    !is_prepared_input(c->r, n->proto->input[0], 6))
			return false;
	}
	return c->n > 0;
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
	const char *why;
	const char *repair; /* that switches the rule off */
} Rule;
static const Rule rules[] = {
	{rule_unused, WEIGHT_CONSTANT, false, "not read", NULL},
	{rule_statistic, WEIGHT_STATISTIC, false, "running statistics of BatchNormalization", NULL},
	{rule_asked_for, WEIGHT_PARAMETER, false, "--train", NULL},
	{rule_declared_parameter, WEIGHT_PARAMETER, false, "a parameter, says its metadata", NULL},
	{rule_scalar, WEIGHT_CONSTANT, true, "one number", NULL},
	{rule_declared_buffer, WEIGHT_TABLE, false, "a buffer, says its metadata", "tables"},
	{rule_steering, WEIGHT_TABLE, true, "steers an operator", "tables"},
	{rule_plain_norm, WEIGHT_TABLE, true, "ones and zeros of a plain normalization", "tables"},
	{rule_frequencies, WEIGHT_TABLE, false, "frequencies: meets positions, then Sin and Cos",
         "tables"},
	{rule_waves, WEIGHT_TABLE, false, "sines and cosines of positions", "tables"},
	{rule_ramp, WEIGHT_TABLE, false, "ramps along positions", "tables"},
	{rule_mask, WEIGHT_TABLE, false, "a mask", "tables"},
	{rule_input_norm, WEIGHT_TABLE, false, "normalizes an input", "tables"},
	{rule_filling, WEIGHT_TABLE, true, "one value that fills", "tables"},
	{rule_generated_copy, WEIGHT_TABLE, false, "--no-repair=transposes", NULL},
};

void
weight_judge(Repairs *r, Weight *w)
{
	Case c = {.r = r, .w = w};

	c.n = final_readers(r, w->name, c.readers, MAX_READERS);
	for (int i = 0; i < COUNT(rules); i++) {
		const Rule *rule = &rules[i];
		if ((rule->repair && !repair_enabled(r->options, rule->repair)) || !rule->holds(&c))
			continue;
		w->kind = rule->kind;
		w->as_constant = rule->as_constant;
		w->why = rule->why;
		return;
	}
	w->kind = WEIGHT_PARAMETER;
	w->why = arena_printf(r->arena, "read by %.100s",
	                      c.n ? c.readers[0].node->proto->op_type : "the outputs");
}
