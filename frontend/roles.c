/* What a float tensor is, told from who reads it, from its values and from its name. The rules are
 * tried in order; the first that fits decides, and says why. */
#include "frontend/frontend_impl.h"

#include <math.h>
#include <string.h>

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
/* Inputs where ones are a mask that hides nothing. */
static const Place joining_roles[] = {{"Einsum", 7}, {"Where", 6}, {"Mul", 3}};
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
is_produced_by(const Repairs *r, const char *exporter)
{
	const char *producer = r->model->proto->producer_name;

	return producer && !strcmp(producer, exporter);
}

static bool
from_pytorch(const Repairs *r)
{
	return is_produced_by(r, "pytorch");
}

bool
weight_made_by_exporter(const Repairs *r, const Weight *w)
{
	if (!from_pytorch(r) || (w->origin && w->origin->kind))
		return false;
	for (int i = 0; i < r->list.n; i++)
		if (r->list.at[i]->origin)
			return true;
	return w->constant || name_is_generated(w->name);
}

/* PyTorch's files call by the module's name what the exporter did not make. */
static bool
is_named_by_module(const Repairs *r, const Weight *w)
{
	return from_pytorch(r) && !weight_made_by_exporter(r, w) && !strpbrk(w->name, "/:");
}

bool
weight_is_named(const Repairs *r, const Weight *w)
{
	return name_is_like_parameter(w->name) || is_named_by_module(r, w);
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
	static const char *const ways[] = {"Cast",      "Transpose", "Reshape", "Identity",
	                                   "Unsqueeze", "Squeeze",   "Sub",     "Div",
	                                   "Mul",       "Log"};
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

/* Fresh weights may be equal to fresh statistics: the exporter then joins the two. */
static bool
rule_statistic(Case *c)
{
	static const Place running[] = {{"BatchNormalization", 24}};

	if (!any_in(c, running, COUNT(running)))
		return false;
	c->w->why = "running statistics of BatchNormalization";
	if (all_in(c, running, COUNT(running)))
		return true;
	c->w->why = "running statistics of BatchNormalization and a weight, in one tensor: "
		    "export with optimize=False to train it";
	diag_warning(c->r->diag,
	             "%s: %s holds running statistics of BatchNormalization, and other nodes read "
	             "it, too: it is not trained",
	             c->r->model->path, quoted(c->r->model, c->w->name));
	diag_hint(c->r->diag, "the exporter merged equal tensors; export with optimize=False");
	return true;
}

static bool
is_said_to_train(const Case *c)
{
	return origin_is(c->w, ORIGIN_PARAMETER) || (c->w->origin && c->w->origin->from.n);
}

/* Whisper and its like make parameters of them and train them not; that is not in the file. */
static bool
rule_fixed_waves(Case *c)
{
	return is_said_to_train(c) && values_are_waves(&c->w->data, true);
}

/* So do models of diffusion with random frequencies. */
static bool
rule_fixed_frequencies(Case *c)
{
	return is_said_to_train(c) && leads_to_trigonometry(c->r, c->w->name, false, MAX_STEPS);
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

/* Made of parameters, not only of their sizes. */
static bool
rule_computed(Case *c)
{
	double value;

	if (!c->w->origin || c->w->origin->from.n == 0)
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
	return c->w->origin && c->w->origin->folded && c->w->origin->from.n == 0;
}

/* What stands behind the verb in a rule; NULL: it has another one. */
static const char *
rule_glob(const char *rule, const char *verb)
{
	size_t n = strlen(verb);

	return !strncmp(rule, verb, n) && rule[n] == ' ' ? rule + n + 1 : NULL;
}

/* By --train, which names it: a pattern is for what are parameters already. */
static bool
rule_asked_for(Case *c)
{
	const char *const *rule = c->r->options->rules;

	for (; rule && *rule; rule++) {
		const char *name = rule_glob(*rule, "train");
		if (name && !strcmp(name, c->w->name))
			return true;
	}
	return false;
}

static bool
weight_matches(const Weight *w, const char *glob)
{
	return glob_match(glob, w->name) || (w->path && glob_match(glob, w->path));
}

bool
weight_is_frozen(const Repairs *r, const Weight *w)
{
	const char *const *rule = r->options->rules;
	bool frozen = w->kind != WEIGHT_PARAMETER;

	for (; rule && *rule; rule++) {
		const char *train = rule_glob(*rule, "train"), *freeze = rule_glob(*rule, "freeze");
		if ((train || freeze) && weight_matches(w, train ? train : freeze))
			frozen = freeze != NULL;
	}
	return frozen;
}

/* Added to a product, as the bias of one channel. */
static bool
is_bias(const Case *c)
{
	for (int i = 0; i < c->n; i++) {
		const NodeProto *p = c->readers[i].node->proto;
		if (!node_is(c->readers[i].node, "Add") || p->n_input != 2)
			continue;
		const FlatNode *other = strmap_get(c->r->producers, p->input[!c->readers[i].input]);
		if (other && node_is(other, "MatMul"))
			return true;
	}
	return false;
}

static double
number(const Case *c)
{
	return c->w->data.data ? dtype_load_float(c->w->data.dtype, c->w->data.data, 0) : 0;
}

/* Root of a whole number, or of one over it, as attention and embeddings are scaled by. Of larger numbers than a layer
 * has channels f32 can't tell the whole ones. */
static bool
is_root_of_size(double x)
{
	double size = fabs(x) > 1 ? x * x : 1 / (x * x);

	return size > 1.5 && size < 1 << 16 && fabs(size - round(size)) < 1e-6 * size;
}

/* One element that nothing calls a parameter: it is in no weight's place, and its name is none of a learned number. */
static bool
rule_scalar(Case *c)
{
	const Weight *w = c->w;

	if (w->data.n > 1)
		return false;
	if (w->data.rank > 0 && !name_is_private(w->name) &&
	    (any_in(c, weight_roles, COUNT(weight_roles)) || is_bias(c)))
		return false;
	return w->constant || w->origin || !name_is_learned_number(w->name) ||
	       (name_is_scale(w->name) && is_root_of_size(number(c)));
}

/* spectral_norm's vectors: `weight_u` and `weight_v` beside `weight_orig`, `_u` and `_v` under `parametrizations`. */
static bool
rule_power_iteration(Case *c)
{
	const char *name = c->w->name;
	size_t n = strlen(name);

	if (!from_pytorch(c->r) || n < 2 ||
	    (strcmp(name + n - 2, "_u") && strcmp(name + n - 2, "_v")))
		return false;
	const char *original = arena_printf(c->r->arena, "%.*s_orig", (int)n - 2, name);
	return (name_is_private(name) && strstr(name, "parametrizations.")) ||
	       repairs_weight(c->r, original);
}

/* Of what scikit-learn's exporter writes, SGD makes coefficients and intercepts; decompositions, means and scales it
 * computes in other ways. */
static bool
rule_fitted(Case *c)
{
	return is_produced_by(c->r, "skl2onnx") && strncmp(c->w->name, "coef", 4) &&
	       strncmp(c->w->name, "intercept", 9);
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

static bool
is_named(const Case *c)
{
	return weight_is_named(c->r, c->w);
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
		return !is_named(c);
	if (!weight_made_by_exporter(c->r, c->w))
		return false;
	if (name_is_creation(c->w->name))
		return true;
	if (!values_are_wide(&c->w->data))
		return false;
	return all_in(c, factor_roles, COUNT(factor_roles)) ||
	       (value == 1 && all_in(c, joining_roles, COUNT(joining_roles))) ||
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
		                    name_is_like_parameter(c->w->name))
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

/* The tensor of the file that the value is, or is a view of. */
static const Weight *
weight_behind(const Repairs *r, const char *name, int depth)
{
	static const char *const views[] = {"Transpose", "Identity", "Reshape", "Cast"};
	const Weight *w = repairs_weight(r, name);
	const FlatNode *n = strmap_get(r->producers, name);

	if (w || !n || depth == 0 || !node_is_any(n, views, COUNT(views)))
		return w;
	return weight_behind(r, n->proto->input[0], depth - 1);
}

/* A table of coordinates that a layer takes: the other factor is the layer's weight. */
static bool
is_input_of_layers(const Case *c)
{
	for (int i = 0; i < c->n; i++) {
		const NodeProto *p = c->readers[i].node->proto;
		if (!in_role(layer_roles, COUNT(layer_roles), &c->readers[i]) || p->n_input < 2)
			return false;
		const Weight *other = weight_behind(c->r, p->input[1], MAX_STEPS);
		if (!other || other->constant)
			return false;
	}
	return c->n > 0;
}

/* What stands in a Constant node was a number or a table where the model was traced, if nothing else speaks for it. */
static bool
rule_written_down(Case *c)
{
	double value;

	return c->w->constant && !is_named(c) &&
	       (!any_in(c, weight_roles, COUNT(weight_roles)) || is_input_of_layers(c) ||
	        (tensor_constant_valued(&c->w->data, &value) && from_pytorch(c->r)));
}

/* The exporter says what it computed from parameters, and of this nothing. Rewritten layers are in weights' places. */
static bool
rule_untold(Case *c)
{
	return c->r->tells_folding && !c->w->origin && from_pytorch(c->r) &&
	       !any_in(c, weight_roles, COUNT(weight_roles));
}

/* ---- doubts: where neither metadata nor a person has said what the tensor is */
typedef struct {
	bool (*holds)(Case *c);
	Doubt doubt;
} DoubtRow; /* the first that holds is told; a list ends in an empty row */

static bool
is_all(Case *c)
{
	return c->w->data.n > 1;
}

static bool
is_named_tensor(Case *c)
{
	return c->w->data.n > 1 && is_named(c);
}

static bool
is_named_number(Case *c)
{
	return is_named(c) && !is_root_of_size(number(c));
}

static bool
is_learned_number(Case *c)
{
	return c->w->data.n == 1 && name_is_learned_number(c->w->name) &&
	       !name_is_variable(c->w->name);
}

static bool
is_computed(Case *c)
{
	return c->w->origin && c->w->origin->from.n > 0;
}

/* Called by a name that somebody gave it: `gate`. Numbers of an attention's or an embedding's code are called by what
 * they do. What only steers nodes, as a bound of Clip, is no such number. */
static bool
is_number_with_own_name(Case *c)
{
	return !c->w->constant && !weight_made_by_exporter(c->r, c->w) && name_is_own(c->w->name) &&
	       !(name_is_of_scaling(c->w->name) && is_root_of_size(number(c))) &&
	       !all_in(c, steering_roles, COUNT(steering_roles));
}

/* Zeros, as class, mask and distillation tokens and first states begin, which an exporter has repeated over the rows:
 * these values join what the model computes, and so do those that only fill. Ones and the numbers of masks do not begin so. */
static bool
is_like_token(Case *c)
{
	double value;

	if (c->w->data.n < 2 || !tensor_constant_valued(&c->w->data, &value) || value == 1 ||
	    value <= -1e4 || name_is_creation(c->w->name) || (c->w->constant && from_pytorch(c->r)))
		return false;
	return all_in(c, filling_roles, COUNT(filling_roles)) ||
	       (value == 0 && any_in(c, layer_roles, COUNT(layer_roles)));
}

/* PyTorch's TorchScript exporter folds what it computes from parameters and buffers into initializers, the rest into
 * Constant nodes. */
static bool
is_nameless(Case *c)
{
	return weight_made_by_exporter(c->r, c->w) && !c->w->constant && !c->r->tells_folding &&
	       !any_in(c, weight_roles, COUNT(weight_roles));
}

/* 0.5, 1e-6, 1 / 6: of at most four digits, or one over a small whole number; and what formulas are made of. */
static bool
is_number_of_code(double x)
{
	static const double known[] = {0.044715,          0.7978845608028654, 3.141592653589793,
	                               6.283185307179586, 0.6931471805599453, 1.4426950408889634};
	double size = fabs(x);

	if (size == 0 || is_root_of_size(x))
		return true;
	for (int i = 0; i < COUNT(known); i++)
		if (fabs(size - known[i]) < 1e-6 * size)
			return true;
	double digits = size * pow(10, 3 - floor(log10(size))), over = 1 / size;
	return fabs(digits - round(digits)) < 1e-6 * digits ||
	       (over < 1000 && fabs(over - round(over)) < 1e-6 * over);
}

/* Exporters that know no names write learned numbers and those of the code alike: one that code seldom writes, or that
 * scales by 1, as a learned scale may begin. */
static bool
is_odd_number(Case *c)
{
	bool scales = any_in(c, factor_roles, COUNT(factor_roles));

	return !from_pytorch(c->r) && name_is_generated(c->w->name) &&
	       (scales || any_in(c, term_roles, COUNT(term_roles))) &&
	       (!is_number_of_code(number(c)) || (scales && number(c) == 1));
}

static bool
is_nameless_number(Case *c)
{
	return is_nameless(c) && !is_root_of_size(number(c));
}

/* What TorchScript's exporter calls `cls_token` or `final_logits_bias`; modules of layers call theirs `weight`, `bias`. */
static bool
is_of_one_value(Case *c)
{
	double value;

	return is_named_by_module(c->r, c->w) && !c->w->constant && !c->r->tells_folding &&
	       c->w->data.n > 1 && tensor_constant_valued(&c->w->data, &value) &&
	       !name_is_of_layer(c->w->name) && !any_in(c, weight_roles, COUNT(weight_roles));
}

/* tf2onnx folds what it can: a batch norm is a factor and a term, or the convolution's weight and bias; the slope of a PReLU
 * is negated. A kernel that it only transposed has a number for a name. */
static bool
is_computed_by_tensorflow(Case *c)
{
	return is_produced_by(c->r, "tf2onnx") && !name_is_variable_or_view(c->w->name) &&
	       c->w->data.n > 1 &&
	       !(name_is_generated(c->w->name) && any_in(c, weight_roles, COUNT(weight_roles)));
}

static bool
is_in_constant_node(Case *c)
{
	return c->w->constant && c->w->data.n > 1 && from_pytorch(c->r);
}

static bool
is_written_down(Case *c)
{
	double value;

	return c->w->data.n > 1 && !tensor_constant_valued(&c->w->data, &value);
}

#define NUMBER_OF_CODE "in a Constant node, as numbers of the model's code are"
static const DoubtRow doubts_of_number[] = {
	{is_computed,
         {"computed from parameters", "maybe from their sizes only: they are in the file, too"}},
	{is_nameless_number,
         {"computed by the exporter, as from a learned number", "one number whose name is lost"}},
	{is_named_number, {"its name", "one number"}},
	{is_odd_number, {"code seldom writes such a number", "one number without a name"}},
	{is_number_with_own_name,
         {"it has a name of its own",
          "one number, and its name is none that learned numbers have"}},
	{0},
};
#define DOUBTS_OF_NAMED(values)                          \
	{                                                \
		{is_named_tensor, {"its name", values}}, \
		{                                        \
			0                                \
		}                                        \
	}
static const DoubtRow doubts_of_waves[] = DOUBTS_OF_NAMED(
	"its values are sines and cosines of positions");
static const DoubtRow doubts_of_ramp[] = DOUBTS_OF_NAMED("its values rise evenly, as ALiBi's do");
static const DoubtRow doubts_of_mask[] = DOUBTS_OF_NAMED("its values are those of a mask");
static const DoubtRow doubts_of_filling[] = {
	{is_named_tensor, {"its name", "one value everywhere, as what fills"}},
	{is_like_token,
         {"joined with what the model computes, as a token or a first state that began as zeros",
          "one value everywhere, as what fills"}},
	{0},
};
static const DoubtRow doubts_of_fixed[] = {
	{is_all, {"its metadata call it one", "modules keep such tables without a gradient"}}, {0}};
static const DoubtRow doubts_of_fitted[] = {
	{is_all, {"a node reads it", "no coefficient or intercept, by its name"}}, {0}};
static const DoubtRow doubts_of_constant_node[] = {
	{is_written_down, {"its values differ", NUMBER_OF_CODE}}, {0}};
static const DoubtRow doubts_of_untold[] = {
	{is_all, {"a layer reads it", "the metadata tell of parameters, and not of this one"}},
	{0}};
static const DoubtRow doubts_of_parameter[] = {
	{is_nameless,
         {"computed by the exporter, as from a parameter",
          "maybe from a buffer: its name is lost"}},
	{is_in_constant_node, {"in a weight's place", NUMBER_OF_CODE}},
	{is_learned_number, {"its name", "one number"}},
	{is_computed_by_tensorflow,
         {"a layer reads it",
          "computed when exported, maybe from several parameters: trains as one tensor"}},
	{is_of_one_value, {"its name", "one value everywhere, as a buffer may have"}},
	{0},
};

static const Doubt *
find_doubt(Case *c, const DoubtRow *row)
{
	for (; row && row->holds; row++)
		if (row->holds(c))
			return &row->doubt;
	return NULL;
}

typedef struct {
	bool (*holds)(Case *c);
	WeightKind kind;
	bool as_constant;
	const char *why;    /* NULL: the rule says it itself */
	const char *repair; /* that switches the rule off */
	const DoubtRow *doubts;
} Rule;
#define TABLE(rule, why, doubts)                                 \
	{                                                        \
		rule, WEIGHT_TABLE, false, why, "tables", doubts \
	}
#define CONSTANT_TABLE(rule, why, doubts)                       \
	{                                                       \
		rule, WEIGHT_TABLE, true, why, "tables", doubts \
	}
static const Rule rules[] = {
	{rule_unused, WEIGHT_CONSTANT, false, "not read", NULL, NULL},
	{rule_statistic, WEIGHT_STATISTIC, false, NULL, NULL, NULL},
	{rule_asked_for, WEIGHT_PARAMETER, false, "--train", NULL, NULL},
	TABLE(rule_fixed_waves, "sines and cosines of positions", doubts_of_fixed),
	TABLE(rule_fixed_frequencies, "frequencies: meets positions, then Sin and Cos",
              doubts_of_fixed),
	{rule_declared_parameter, WEIGHT_PARAMETER, false, "a parameter, says its metadata", NULL,
         NULL},
	{rule_computed, WEIGHT_PARAMETER, false, NULL, NULL, NULL},
	TABLE(rule_declared_buffer, "a buffer, says its metadata", NULL),
	TABLE(rule_power_iteration, "a buffer of spectral_norm", NULL),
	{rule_scalar, WEIGHT_CONSTANT, true, "one number", NULL, doubts_of_number},
	TABLE(rule_computed_of_none, "computed from no parameter, say its metadata", NULL),
	CONSTANT_TABLE(rule_steering, "steers an operator", NULL),
	TABLE(rule_fitted, "scikit-learn computes it without gradients", doubts_of_fitted),
	CONSTANT_TABLE(rule_plain_norm, "ones and zeros of a plain normalization", NULL),
	TABLE(rule_frequencies, "frequencies: meets positions, then Sin and Cos", NULL),
	TABLE(rule_waves, "sines and cosines of positions", doubts_of_waves),
	TABLE(rule_ramp, "ramps along positions", doubts_of_ramp),
	TABLE(rule_mask, "a mask", doubts_of_mask),
	TABLE(rule_input_norm, "normalizes an input", NULL),
	CONSTANT_TABLE(rule_filling, "one value that fills", doubts_of_filling),
	TABLE(rule_written_down, "in a Constant node, in no weight's place",
              doubts_of_constant_node),
	TABLE(rule_untold, "of no parameter, by the metadata of the others", doubts_of_untold),
	{rule_generated_copy, WEIGHT_TABLE, false, "--no-repair=transposes", NULL, NULL},
};

/* "blocks.0/qkv" for people who know the module, and not onnx::MatMul_403. */
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

void
weight_judge(Repairs *r, Weight *w)
{
	Case c = {.r = r, .w = w};

	c.n = final_readers(r, w->name, c.readers, MAX_READERS);
	w->path = path_of(&c);
	w->is_read = c.n > 0;
	w->is_asked_for = rule_asked_for(&c);
	for (int i = 0; i < COUNT(rules); i++) {
		const Rule *rule = &rules[i];
		if ((rule->repair && !repair_enabled(r->options, rule->repair)) || !rule->holds(&c))
			continue;
		w->kind = rule->kind;
		w->as_constant = rule->as_constant;
		w->why = rule->why ? rule->why : w->why;
		w->doubt = find_doubt(&c, rule->doubts);
		return;
	}
	w->kind = WEIGHT_PARAMETER;
	w->doubt = find_doubt(&c, doubts_of_parameter);
	w->why = arena_printf(r->arena, "read by %.100s",
	                      c.n ? c.readers[0].node->proto->op_type : "the outputs");
}
