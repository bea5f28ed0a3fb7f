/* Private header of the files that judge whether a tensor is a parameter, a statistic, a table or a
 * constant. roles.c applies a list of rules in order; the other files define the rules. */
#ifndef GRADC_FRONTEND_WEIGHTS_ROLES_H
#define GRADC_FRONTEND_WEIGHTS_ROLES_H

#include "frontend/weights/weights.h"

/* The tensor to be judged and all its readers. */
typedef struct {
	Repairs *r;
	Weight *w;
	const Reader *readers;
	int n;
} Case;

/* ---- places.c: what operators do with a tensor at their inputs, by their facts */
typedef enum {
	WEIGHT_PLACE,
	STEERING_PLACE,
	FILLING_PLACE,
	FACTOR_PLACE,
	TERM_PLACE,
	JOINING_PLACE,
	LAYER_PLACE,
	CHANNEL_PLACE,
	STATE_PLACE,
	STATISTIC_PLACE,
} PlaceKind;
bool in_place(const Repairs *r, const Reader *reader, PlaceKind kind);
/* all_in: is there a reader, and do all readers use the tensor in places of this kind? any_in: does
 * any reader? */
bool all_in(const Case *c, PlaceKind kind);
bool any_in(const Case *c, PlaceKind kind);

/* ---- traces.c: where values come from and lead to */
/* Is the value a graph input, or computed from one by casts, reshapes and arithmetic? */
bool is_prepared_input(const Repairs *r, const char *name);
typedef struct {
	bool sine, cosine; /* some path leads to Sin; some path leads to Cos */
} Trigonometry;
/* Do all paths from the tensor lead to Sin or Cos, through a product with positions first? */
bool leads_to_trigonometry(const Case *c, Trigonometry *out);
/* Is the norm a GroupNorm written as Reshape, InstanceNormalization with 1 and 0, Reshape, then the
 * real scale? */
bool followed_by_scale(const Repairs *r, const NodeProto *norm);
/* Is the tensor added to a product with a weight, with one number per channel? */
bool is_bias_of_layer(const Case *c);
/* Does some reader use the tensor as a weight, or add it as a bias? */
bool is_in_weights_place(const Case *c);
/* If all readers combine the tensor with integers of the file that Cast made floats, the tensor is
 * the scale or zero point of these codes. Returns the integers' name; NULL: some reader does
 * otherwise. */
const char *codes_beside(const Case *c);
/* Is the tensor a table of coordinates that layers multiply by their weights? */
bool is_input_of_layers(const Case *c);

/* ---- numbers.c */
double number(const Case *c); /* the tensor's first number */
bool is_root_of_size(double x);
bool is_number_of_code(double x);
bool rule_empty(Case *c);
bool rule_scalar(Case *c);

/* ---- tables.c */
bool rule_plain_norm(Case *c);
bool rule_filling(Case *c);
bool rule_frequencies(Case *c);
bool rule_waves(Case *c);
bool rule_ramp(Case *c);
bool rule_window(Case *c);
bool rule_basis(Case *c);
bool rule_filter_bank(Case *c);
bool rule_sequence(Case *c);
bool rule_whole(Case *c);
bool rule_first_state(Case *c);
bool rule_mask(Case *c);
bool rule_input_norm(Case *c);
bool rule_written_down(Case *c);

/* ---- exporters.c */
bool rule_power_iteration(Case *c);
bool rule_fitted(Case *c);
bool rule_untold(Case *c);
/* Is the tensor named by the module? PyTorch's files keep the module's names for tensors that the
 * exporter did not compute. */
bool is_named_by_module(const Repairs *r, const Weight *w);

/* ---- asked.c */
bool rule_asked_for(Case *c);
/* The last --train=@GROUP rule that names one of the groups; NULL: no rule trains them. */
const char *asked_for_group(const Case *c, const char *groups);

/* ---- doubts.c */
typedef struct {
	bool (*holds)(Case *c);
	Doubt doubt;
} DoubtRow; /* the first row that holds gives the doubt; an empty row ends the list */
extern const DoubtRow doubts_of_number[], doubts_of_waves[], doubts_of_ramp[], doubts_of_filter[],
	doubts_of_sequence[], doubts_of_mask[], doubts_of_state[], doubts_of_computed[],
	doubts_of_filling[], doubts_of_fixed[], doubts_of_fitted[], doubts_of_constant_node[],
	doubts_of_untold[], doubts_of_parameter[];
const Doubt *find_doubt(Case *c, const DoubtRow *row);

#endif
