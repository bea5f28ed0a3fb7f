/* Edits of an ONNX graph that stays ONNX: quantizes it, folds batch norms, raises its opset.
 * Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_EDIT_EDIT_H
#define GRADC_FRONTEND_EDIT_EDIT_H

#include "frontend/file/file.h"

/* ---- quantize_find.c */
/* What an initializer that quantization added holds, and of which tensor. */
typedef struct {
	enum { QUANTIZED_CODES, QUANTIZED_SCALE, QUANTIZED_ZERO } part;
	const QuantizedTensor *tensor;
} QuantizedPart;
/* The protobuf messages of the quantized model. They lie in the model's arena. */
typedef struct {
	ModelProto proto;
	GraphProto graph;
	IntMap *parts; /* address of an initializer -> QuantizedPart */
} QuantizedModel;

/* ---- quantize_write.c */
/* Sets *out to the model with the tensors of the list quantized, in the given opset. opset 0: the
 * model's own opset. */
void model_quantize_edit(Model *model, QuantizedTensors *list, int opset, QuantizedModel *out);

/* ---- inference_form.c */
/* How many nodes were in training form. */
typedef struct {
	int norms, dropouts;
} InferenceForm;
/* Brings a copy of the model to inference form: m without its graph, and g, a copy of its main graph.
 * Subgraphs and the bodies of functions included. Nodes that stay as they are keep their addresses.
 * Everything else is copied into the arena. */
InferenceForm model_inference_edit(Model *model, ModelProto *m, GraphProto *g, Arena *arena,
                                   Diag *diag);

/* ---- opsets.c */
/* Raises the model's opset to `to`. false after reporting operators whose meaning differs in the
 * new opset. */
bool model_raise_opset(Model *model, int to, Diag *diag);

#endif
