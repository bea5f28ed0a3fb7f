/* Private header: functions shared by the files of frontend/weights. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_WEIGHTS_JUDGE_H
#define GRADC_FRONTEND_WEIGHTS_JUDGE_H

#include "frontend/weights/weights.h"

/* Origin of an initializer, by the exporter's metadata. */
#define ORIGIN_PARAMETER "PARAMETER"
#define ORIGIN_BUFFER "BUFFER"
#define ORIGIN_CONSTANT "CONSTANT_TENSOR"

/* ---- exporters.c: facts about the files of each exporter */
/* The row for a producer; a row without facts if the producer is NULL or unknown. */
const Exporter *exporter_find(const char *producer);

/* ---- repairs.c, ties.c, roles.c: decide what each float tensor of the graph is */
Readers readers_of(const Repairs *r, const char *name);
/* At most `max` readers of a value. The readers of a reshape, transpose or other view of the value
 * take the place of the view. */
int final_readers(const Repairs *r, const char *name, Reader *out, int max);
/* Sets kind, why and doubt. */
void weight_judge(Repairs *r, Weight *w);

/* ---- asked.c: options that name tensors */
/* Reports options of --train, --freeze and so on that match only constants, which have no state. */
void asked_check(const Repairs *r);
/* Reports options that name a tensor that shares the state of another. */
void asked_check_ties(const Repairs *r);

/* ---- exporters.c */
/* Did PyTorch's exporter compute the tensor from constants and perhaps parameters? The TorchScript
 * exporter puts tensors computed from constants alone into Constant nodes. The dynamo exporter marks
 * every parameter. */
bool weight_made_by_exporter(const Repairs *r, const Weight *w);
/* Does the tensor have a name that the module or a person gave it? */
bool weight_is_named(const Repairs *r, const Weight *w);

/* ---- ties/ */
void repairs_tie(Repairs *r);

/* ---- codes.c */
/* The codes of an integer tensor; NULL: it is not a weight, or its scales are not in the file. */
const Codes *codes_find(Repairs *r, const char *name, const TensorData *data);
/* Does the node use the input as a scale or zero point of codes? */
bool reads_scale(const Repairs *r, const Reader *reader);
Groups codes_groups(const Codes *c);

/* ---- names.c */
/* Exporters name a value after the function or operator that made it. Creation: zeros_3, new_full,
 * /m/ConstantOfShape_output_0. Expansion: expand, repeat_1; also embedding, if it repeats the row of
 * one token. */
bool name_is_creation(const char *name);
bool name_is_expansion(const char *name);
/* tf2onnx names a tensor after the operation that made it: dense/MatMul/ReadVariableOp:0 is a
 * variable, conv/Squeeze:0 a view of a variable, batchnorm/mul:0 a computed tensor. */
bool name_is_variable(const char *name);
bool name_is_variable_or_view(const char *name);
/* Is it a usual name of a parameter: a path, or with a usual word? */
bool name_is_like_parameter(const char *name);
bool
name_is_learned_number(const char *name); /* the same for a single number: logit_scale, act.alpha */
bool name_is_scale(const char *name);
/* Is it a usual name of a number that scales by a size: embed_scale, dpa_scale_0, scaling, sqrt_d? */
bool name_is_of_scaling(const char *name);
/* Did a person or a module give the name? Neither an exporter nor an operation did. */
bool name_is_own(const char *name);
bool name_is_of_layer(const char *name); /* fc.weight, fc.bias; not final_logits_bias */
bool name_is_private(const char *name);  /* the last part begins with _, as names of buffers may */
/* The last part of a path: "weight" of "blocks.0.weight" or "blocks/0/weight:0". */
const char *name_last_part(const char *name);
/* Length of the path of the tensor's module: of "blocks.0" in "blocks.0.weight"; 0: the root module. */
size_t name_module_length(const char *name);
/* Is it a usual name of a computed table: forward_basis_buffer, inv_freq, window? */
bool name_is_of_table(const char *name);

/* ---- inner_weights.c: tensors in subgraphs of the main graph's nodes */
void repairs_add_inner(Repairs *r);

/* ---- repairs.c */
/* Adds a candidate; value: the name that its readers use. NULL after reporting. */
Weight *repairs_add_weight(Repairs *r, const char *name, const char *value, const TensorProto *t);

#endif
