/* Private header: functions shared by the files of frontend/import. Sections are named after the .c
 * file. */
#ifndef GRADC_FRONTEND_IMPORT_WALK_H
#define GRADC_FRONTEND_IMPORT_WALK_H

#include "frontend/import/import.h"

/* ---- importers.c: the tables of the families. */
const ImportRow *importer_find(const FlatNode *n);

/* ---- import.c */
/* Imports one node into im->values. */
void import_node(Importer *im, const FlatNode *flat);
Value *weight_value(Importer *im, const Weight *w);

/* ---- scope.c */
Builder scope_program(const Importer *im); /* a builder of the program around all bodies */

/* ---- quantized.c */
typedef struct MarkedInputs MarkedInputs;
/* Makes the module's quantized operands, one for each tensor of --quantize. */
void quantized_open(Importer *im);
/* The inputs of the node that are quantized, or that hand a quantized weight on. NULL: none. */
const MarkedInputs *quantized_inputs(const Importer *im, const NodeProto *p);
/* Marks operands of the nodes that the importer of n has made, of which `first` is the first. NULL: it made none. */
void quantized_mark(OnnxNode *n, const MarkedInputs *inputs, Node *first);

/* ---- padded.c: values whose size depends on data */
/* The value that the operator reads for a padded input; NULL after reporting. */
Value *padded_input(OnnxNode *n, int i, const Bound *b);
/* Pads the outputs of a node that read a padded input. */
void padded_outputs(OnnxNode *n);

/* ---- list_ports.c: inputs and outputs that are sequences or optionals */
/* False if v is a tensor. */
bool import_list_input(Importer *im, ImportInfo *info, const ValueInfoProto *v);
/* Adds the list b; its elements are the function's results from `first` on. */
void add_output_list(Importer *im, ImportInfo *info, const char *name, const Bound *b, int first);

/* ---- ports.c, loss_graph.c */
int count_inputs(const Function *f);
/* Adds an input to the module, with its parameter. */
Value *bind_tensor_port(Importer *im, ImportInfo *info, const ImportPort *port);
void import_inputs(Importer *im, ImportInfo *info);
void import_outputs(Importer *im, ImportInfo *info); /* also ends the function */
/* the binding from --dim; NULL: --dim does not name it */
const DimBinding *find_dim(const Importer *im, const char *name);

/* ---- rows.c */
/* The axis that --batch binds if it is open; -1: --batch-axis says there is no such axis. */
int rows_axis_of(const ValueInfoProto *v, const BatchAxisOption *options, int n);
bool rows_axis_is_known(const ValueInfoProto *v, const BatchAxisOption *options, int n);
void rows_find_inputs(const Importer *im, ImportBinding *b);
void rows_find_outputs(const Importer *im, ImportBinding *b); /* for the function being built */

#endif
