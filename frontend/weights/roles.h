/* What the files that judge tensors share: roles.c asks in order, the others answer. */
#ifndef GRADC_ROLES_H
#define GRADC_ROLES_H

#include "frontend/weights/weights.h"

/* The tensor to be judged and all that read it. */
typedef struct {
	Repairs *r;
	Weight *w;
	const Reader *readers;
	int n;
} Case;

/* ---- places.c */
typedef enum {
	WEIGHT_PLACE,   /* a tensor there is a weight, whatever its size */
	STEERING_PLACE, /* it steers the operator */
	FILLING_PLACE,  /* data: a tensor of one value there is filling */
	FACTOR_PLACE,   /* it scales */
	TERM_PLACE,     /* it is added */
	JOINING_PLACE,  /* ones there are a mask that hides nothing */
	LAYER_PLACE,    /* a layer's input: zeros there are the first state of a recurrence */
	CHANNEL_PLACE,  /* a number for each channel of a layer: a bias or a norm's scale */
	STATE_PLACE,    /* a recurrence begins with it */
	STATISTIC_PLACE,
} PlaceKind;
bool in_place(const Reader *reader, PlaceKind kind);
/* Is every reader one of that kind, and is there one? Is any? */
bool all_in(const Case *c, PlaceKind kind);
bool any_in(const Case *c, PlaceKind kind);

/* ---- traces.c: where values come from and lead to */
/* A graph input behind casts, reshapes and other such constants. */
bool is_prepared_input(const Repairs *r, const char *name);
typedef struct {
	bool sine, cosine; /* some way leads there */
} Trigonometry;
/* Every way from the tensor leads into Sin or Cos, through a product with positions first. */
bool leads_to_trigonometry(const Case *c, Trigonometry *out);
/* GroupNorm as Reshape, InstanceNormalization with 1 and 0, Reshape, then the real scale. */
bool followed_by_scale(const Repairs *r, const NodeProto *norm);
/* Added behind a product with a weight, one number for each of its channels. */
bool is_bias_of_layer(const Case *c);
/* Some reader takes the tensor for a weight, or adds it as a bias. */
bool is_in_weights_place(const Case *c);
/* The integers of the file, made floats by Cast, that every reader joins it with: it is their scale or zero point. NULL: some
 * reader does otherwise. */
const char *codes_beside(const Case *c);
/* A table of coordinates that a layer takes: the other factor is the layer's weight. */
bool is_input_of_layers(const Case *c);

/* ---- numbers.c */
double number(const Case *c); /* the tensor's first */
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
/* PyTorch's files call by the module's name what the exporter did not make. */
bool is_named_by_module(const Repairs *r, const Weight *w);

/* ---- asked.c */
bool rule_asked_for(Case *c);
/* By --train=@GROUP: the last rule that names one of the groups; NULL: none trains them. */
const char *asked_for_group(const Case *c, const char *groups);

/* ---- doubts.c */
typedef struct {
	bool (*holds)(Case *c);
	Doubt doubt;
} DoubtRow; /* the first that holds is told; a list ends in an empty row */
extern const DoubtRow doubts_of_number[], doubts_of_waves[], doubts_of_ramp[], doubts_of_filter[],
	doubts_of_sequence[], doubts_of_mask[], doubts_of_state[], doubts_of_computed[],
	doubts_of_filling[], doubts_of_fixed[], doubts_of_fitted[], doubts_of_constant_node[],
	doubts_of_untold[], doubts_of_parameter[];
const Doubt *find_doubt(Case *c, const DoubtRow *row);

#endif
