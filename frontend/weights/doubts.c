/* Doubtful tensors: neither metadata nor an option tells whether the tensor is a parameter, for
 * example a single number 1. Finds the reasons for and against, which the user reads before
 * training. */
#include "frontend/weights/judge.h"
#include "frontend/weights/roles.h"
#include "frontend/weights/values.h"

static bool
is_all(Case *c)
{
	return c->w->data.n > 1;
}

static bool
is_named_tensor(Case *c)
{
	return c->w->data.n > 1 && weight_is_named(c->r, c->w);
}

static bool
is_named_number(Case *c)
{
	return weight_is_named(c->r, c->w) && !is_root_of_size(number(c)) &&
	       !all_in(c, STEERING_PLACE);
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

/* Is it a number with a name that a person gave, such as `gate`? Names such as `embed_scale`, which
 * code uses for fixed factors, do not count. Nor do numbers that only steer nodes, such as a bound
 * of Clip. */
static bool
is_number_with_own_name(Case *c)
{
	return !c->w->constant && !weight_made_by_exporter(c->r, c->w) && name_is_own(c->w->name) &&
	       !(name_is_of_scaling(c->w->name) && is_root_of_size(number(c))) &&
	       !all_in(c, STEERING_PLACE);
}

/* Equal numbers that may be a class, mask or distillation token or a first state, which the
 * exporter repeated over the rows. Tokens are concatenated with the model's data, but so are values
 * that only pad. Tokens do not begin as ones or as the numbers of a mask. */
static bool
is_like_token(Case *c)
{
	double value;

	if (c->w->data.n < 2 || !tensor_constant_valued(&c->w->data, &value) || value == 1 ||
	    value <= -1e4 || name_is_creation(c->w->name) ||
	    (c->w->constant && c->r->exporter->keeps_constants))
		return false;
	return all_in(c, FILLING_PLACE) || (value == 0 && any_in(c, LAYER_PLACE));
}

/* PyTorch's TorchScript exporter folds tensors computed from parameters and buffers into
 * initializers, and other computed tensors into Constant nodes. */
static bool
is_nameless(Case *c)
{
	/* An exporter that keeps names would have kept a bias's name. */
	bool is_bias = !c->r->exporter->keeps_names && is_bias_of_layer(c);

	return weight_made_by_exporter(c->r, c->w) && !c->w->constant && !c->r->tells_folding &&
	       !any_in(c, WEIGHT_PLACE) && !is_bias;
}

/* Exporters that keep no names write learned numbers like numbers of the code. A number is doubtful
 * if code seldom contains it, or if it scales by 1, as a fresh learned scale does. */
static bool
is_odd_number(Case *c)
{
	bool scales = any_in(c, FACTOR_PLACE);

	return !c->r->exporter->keeps_names && name_is_generated(c->w->name) &&
	       (scales || any_in(c, TERM_PLACE)) &&
	       (!is_number_of_code(number(c)) || (scales && number(c) == 1));
}

static bool
is_nameless_number(Case *c)
{
	return is_nameless(c) && !is_root_of_size(number(c));
}

/* Equal numbers with a name that the TorchScript exporter kept: `cls_token`, `final_logits_bias`.
 * Modules of layers use `weight` and `bias`. */
static bool
is_of_one_value(Case *c)
{
	double value;

	return is_named_by_module(c->r, c->w) && !c->w->constant && !c->r->tells_folding &&
	       c->w->data.n > 1 && tensor_constant_valued(&c->w->data, &value) &&
	       !name_is_of_layer(c->w->name) && !any_in(c, WEIGHT_PLACE);
}

/* tf2onnx folds wherever possible. A batch norm becomes a factor and a term, or part of the convolution's
 * weight and bias; the slope of PReLU is negated. A kernel that tf2onnx only transposed has a
 * generated name. */
static bool
is_computed_by_tensorflow(Case *c)
{
	return c->r->exporter->names_operations && !name_is_variable_or_view(c->w->name) &&
	       c->w->data.n > 1 && !(name_is_generated(c->w->name) && any_in(c, WEIGHT_PLACE));
}

static bool
is_in_constant_node(Case *c)
{
	return c->w->constant && c->w->data.n > 1 && c->r->exporter->keeps_constants;
}

/* Sines over positions that do not start at 0, or over few positions. */
static bool
has_values_of_waves(Case *c)
{
	return values_are_waves(&c->w->data, false) || values_are_short_waves(&c->w->data);
}

static bool
has_values_of_cosine_transform(Case *c)
{
	return values_are_cosine_transform(&c->w->data);
}

/* A blur, a derivative, or a fresh learned interpolation. */
static bool
is_symmetric_kernel(Case *c)
{
	bool convolves = c->n > 0;

	for (int i = 0; i < c->n; i++)
		convolves &= c->readers[i].input == 1 &&
		             (is_op(c->readers[i].node->proto, "Conv") ||
		              is_op(c->readers[i].node->proto, "ConvTranspose"));
	return convolves && values_are_symmetric_kernel(&c->w->data);
}

static bool
is_guessed(Case *c)
{
	return c->w->origin && c->w->origin->guessed && !is_in_weights_place(c);
}

static bool
is_of_unknown(Case *c)
{
	return c->w->data.n > 1 && c->w->origin->unknown;
}

static bool
has_whole_values(Case *c)
{
	return values_are_whole(&c->w->data);
}

static bool
has_name_of_table(Case *c)
{
	return c->w->data.n > 1 && name_is_of_table(c->w->name);
}

static bool
is_written_down(Case *c)
{
	double value;

	return c->w->data.n > 1 && !tensor_constant_valued(&c->w->data, &value);
}

#define NUMBER_OF_CODE "in a Constant node, as numbers of the model's code are"
const DoubtRow doubts_of_number[] = {
	{is_computed,
         {"computed from parameters", "maybe from their sizes only: they are in the file, too"}},
	{is_nameless_number,
         {"computed by the exporter, as from a learned number", "one number whose name is lost"}},
	{is_named_number, {"its name", "one number"}},
	{is_odd_number, {"code seldom writes such a number", "one number without a name"}},
	{is_number_with_own_name,
         {"it has a name of its own", "one number, and learned numbers have other names"}},
	{0},
};
const DoubtRow doubts_of_waves[] = {
	{is_named_tensor, {"its name", "its values are sines and cosines of positions"}}, {0}};
const DoubtRow doubts_of_ramp[] = {
	{is_named_tensor, {"its name", "its values rise evenly, as ALiBi's do"}}, {0}};
const DoubtRow doubts_of_filter[] = {
	{is_named_tensor, {"its name", "its values are those of a fixed filter"}}, {0}};
const DoubtRow doubts_of_sequence[] = {
	{is_named_tensor,
         {"its name", "its values follow a rule: training does not leave such values"}},
	{0}};
const DoubtRow doubts_of_computed[] = {
	{is_of_unknown,
         {"the file has lost what it was computed from", "no source has a parameter's name"}},
	{0}};
const DoubtRow doubts_of_state[] = {
	{is_named_tensor, {"its name, as of a first state that is learned", "zeros"}}, {0}};
const DoubtRow doubts_of_mask[] = {
	{is_named_tensor, {"its name", "its values are those of a mask"}}, {0}};
const DoubtRow doubts_of_filling[] = {
	{is_named_tensor, {"its name", "one value everywhere, as a fill value"}},
	{is_like_token,
         {"joined with what the model computes, as a token or a first state that began as zeros",
          "one value everywhere, as a fill value"}},
	{0},
};
const DoubtRow doubts_of_fixed[] = {
	{is_all, {"its metadata call it one", "modules keep such tables without a gradient"}}, {0}};
const DoubtRow doubts_of_fitted[] = {
	{is_all, {"a node reads it", "no coefficient or intercept, by its name"}}, {0}};
const DoubtRow doubts_of_constant_node[] = {
	{is_written_down, {"its values differ", NUMBER_OF_CODE}}, {0}};
const DoubtRow doubts_of_untold[] = {
	{is_all, {"a layer reads it", "the metadata name parameters, but not this tensor"}}, {0}};
const DoubtRow doubts_of_parameter[] = {
	{is_guessed,
         {"computed from a tensor with a parameter's name",
          "the file does not say what that tensor was: maybe a buffer"}},
	{has_values_of_waves, {"a node reads it", "its values are sines and cosines"}},
	{has_values_of_cosine_transform,
         {"a node reads it", "its values are those of a discrete cosine transform"}},
	{is_symmetric_kernel,
         {"a layer reads it", "one symmetric kernel for all channels, as a blur is"}},
	{has_whole_values,
         {"a node reads it",
          "whole numbers and halves only: training does not leave such numbers"}},
	{has_name_of_table, {"a node reads it", "computed tables have such names"}},
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

const Doubt *
find_doubt(Case *c, const DoubtRow *row)
{
	for (; row && row->holds; row++)
		if (row->holds(c))
			return &row->doubt;
	return NULL;
}
