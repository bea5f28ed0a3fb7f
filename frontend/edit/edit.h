/* Edits of a file's graph: what is quantized, batch norms folded, other opsets. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_EDIT_EDIT_H
#define GRADC_FRONTEND_EDIT_EDIT_H

#include "frontend/file/file.h"

/* ---- quantize_find.c */
/* The axes of a product's second operand, of that rank, that are its outputs and that are added up; false: no product. */
bool product_axes(const NodeProto *p, int rank, int *channel, int *inputs);
/* Which of a quantized tensor's initializers. */
typedef struct {
	enum { QUANTIZED_CODES, QUANTIZED_SCALE, QUANTIZED_ZERO } part;
	const QuantizedTensor *tensor;
} QuantizedPart;
/* The model's messages with what is quantized, in its arena; the graph is `graph`. */
typedef struct {
	ModelProto proto;
	GraphProto graph;
	IntMap *parts; /* address of an initializer -> QuantizedPart */
} QuantizedModel;
/* opset 0: its own. */
void model_quantize_edit(Model *model, QuantizedTensors *list, int opset, QuantizedModel *out);

/* ---- opsets.c */
/* Operators that mean another thing there are reported. */
bool model_raise_opset(Model *model, int to, Diag *diag);

#endif
