/* Tables that training does not change, recognized by their values and readers. */
#include "frontend/weights/judge.h"
#include "frontend/weights/roles.h"
#include "frontend/weights/values.h"

/* Has the tensor the shape [batch, 1, rows, columns]? A mask is the same for all heads of an
 * attention, a learned bias is not. */
static bool
is_mask_shaped(const TensorData *t)
{
	return t->rank == 4 && t->dims[1] == 1;
}

/* Filling: all elements are equal, and either the readers use the tensor as data, or the exporter
 * made the tensor. The exporter made it if its name says so, or if parameters do not start with
 * this value at this place:
 * - a factor with several long axes is not a scale per channel;
 * - an all-ones tensor in a joining place is a mask that hides nothing;
 * - zeros as a layer's input are a first state;
 * - added zeros are a mask that hides nothing. */
bool
rule_filling(Case *c)
{
	double value;

	if (!tensor_constant_valued(&c->w->data, &value))
		return false;
	if (all_in(c, FILLING_PLACE))
		return !weight_is_named(c->r, c->w);
	if (!weight_made_by_exporter(c->r, c->w))
		return false;
	if (name_is_creation(c->w->name))
		return true;
	if (!values_are_wide(&c->w->data))
		return false;
	return all_in(c, FACTOR_PLACE) || (value == 1 && all_in(c, JOINING_PLACE)) ||
	       (value == 0 && any_in(c, LAYER_PLACE)) ||
	       (value == 0 && (c->w->constant || is_mask_shaped(&c->w->data)) &&
	        all_in(c, TERM_PLACE));
}

bool
rule_plain_norm(Case *c)
{
	double value;

	if (!tensor_constant_valued(&c->w->data, &value) || c->n == 0)
		return false;
	for (int i = 0; i < c->n; i++) {
		const Reader *reader = &c->readers[i];
		bool instance = is_op(reader->node->proto, "InstanceNormalization");
		bool layer = is_op(reader->node->proto, "LayerNormalization");

		if ((!instance && !layer) || reader->input < 1 || value != 2 - reader->input)
			return false;
		if (layer ? !weight_made_by_exporter(c->r, c->w)
		          : !followed_by_scale(c->r, reader->node->proto) &&
		                    name_is_like_parameter(c->w->name))
			return false;
	}
	return true;
}

bool
rule_frequencies(Case *c)
{
	Trigonometry ends;

	return leads_to_trigonometry(c, &ends);
}

bool
rule_waves(Case *c)
{
	return values_are_waves(&c->w->data, !weight_made_by_exporter(c->r, c->w));
}

bool
rule_ramp(Case *c)
{
	return values_are_ramps(&c->w->data) && all_in(c, TERM_PLACE);
}

bool
rule_window(Case *c)
{
	return values_are_window(&c->w->data);
}

bool
rule_basis(Case *c)
{
	return values_are_basis(&c->w->data);
}

bool
rule_filter_bank(Case *c)
{
	return values_are_filter_bank(&c->w->data);
}

/* Is the tensor 0, 1, 2 ...? Numbers per channel of a layer do not count, because a test model may
 * have such a bias. */
bool
rule_sequence(Case *c)
{
	return values_are_sequence(&c->w->data) && !any_in(c, CHANNEL_PLACE) &&
	       !is_bias_of_layer(c);
}

/* Anchors, strides, coordinates of a grid: at least 32 numbers that are added or multiplied. A
 * convolution's kernel of whole numbers is only a doubt. */
bool
rule_whole(Case *c)
{
	enum { LEAST = 32 };

	return c->w->data.n >= LEAST && values_are_whole(&c->w->data) && !is_in_weights_place(c);
}

/* A first state of zeros; a learned one has other numbers. */
bool
rule_first_state(Case *c)
{
	double value;

	return all_in(c, STATE_PLACE) && tensor_constant_valued(&c->w->data, &value) && value == 0;
}

bool
rule_mask(Case *c)
{
	return values_are_mask(&c->w->data) || values_are_triangle(&c->w->data) ||
	       (values_are_wide(&c->w->data) && values_are_binary(&c->w->data) &&
	        all_in(c, FACTOR_PLACE));
}

bool
rule_input_norm(Case *c)
{
	for (int i = 0; i < c->n; i++) {
		const FlatNode *n = c->readers[i].node;
		if (c->readers[i].input != 1 ||
		    (!is_op(n->proto, "Sub") && !is_op(n->proto, "Div")) ||
		    !is_prepared_input(c->r, n->proto->input[0]))
			return false;
	}
	return c->n > 0;
}

/* A tensor in a Constant node was a constant of the traced model, unless its name or place speaks
 * for a weight. */
bool
rule_written_down(Case *c)
{
	double value;

	return c->w->constant && !weight_is_named(c->r, c->w) &&
	       (!is_in_weights_place(c) || is_input_of_layers(c) ||
	        (tensor_constant_valued(&c->w->data, &value) && c->r->exporter->keeps_constants));
}
