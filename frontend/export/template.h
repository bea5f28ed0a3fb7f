/* Private header: the template of an exported model while it is written. Sections are named after the
 * .c files. */
#ifndef GRADC_FRONTEND_EXPORT_TEMPLATE_H
#define GRADC_FRONTEND_EXPORT_TEMPLATE_H

#include "frontend/export/branches.h"
#include "frontend/import/import.h"

typedef struct PreprocessedInput PreprocessedInput;
typedef struct {
	ProtobufCBuffer buffer; /* must be first: protobuf-c appends through it */
	const Module *m;
	FormatWriter *w;
	Model *model;
	const ImportInfo *info;
	/* for --quantize: address of an initializer -> QuantizedPart; NULL: not quantized */
	const IntMap *parts;
	Diag *diag;
	Arena *arena;
	IntMap *holes;    /* address of raw data -> Weight */
	IntMap *branches; /* for adapters: address of an initializer -> ExportRecord */
	/* address of bytes that a template has already -> their offset in the literal section */
	IntMap *known;
	ExportedModel which;
	ExportForm form;
	VEC(PreprocessedInput *) inputs; /* of --export-preprocessing */
	const char *not_preprocessed;    /* other float inputs, each with the reason; NULL: none */
	/* the preprocessings under which records are written now; input 0: always */
	uint32_t input, when;
	bool failed;            /* reported: a node's external data cannot be read */
	uint32_t file;          /* the file that is written: 0 or 1 */
	int64_t data_bytes;     /* size of the external file so far */
	int64_t pending, start; /* number and start of literal bytes without a record */
} Export;

/* A length that depends on the data file's name: base + times * length of the name. */
typedef struct {
	int64_t base;
	uint32_t times;
} Length;

/* ---- template.c: records, and tags and lengths packed by hand */
void template_open(Export *e); /* sets e->buffer */
void put_record(Export *e, ExportRecord r);
void put_literal(Export *e, const void *bytes, size_t n);
void flush_literal(Export *e); /* makes a record of the pending bytes */
/* The hole for a weight's bytes. */
void tensor_hole(Export *e, const Weight *w);
void pack_message(Export *e, const void *message);
/* Bytes of a field: tag, length, content. */
Length field_length(int number, Length content);
void put_header(Export *e, int number, Length content);
/* The same for the graph, whose length depends on the preprocessings. */
void put_graph_header(Export *e, int number, Length content);

/* ---- export_tensors.c */
typedef struct TensorPlan TensorPlan;
/* Returns w if its content comes from a state, else NULL. */
const Weight *weight_trained(const Weight *w);
/* Does the Identity's parameter have a state of its own? If it shares the state of its input, the
 * node stays. */
bool weight_stands_alone(const Weight *w);
/* A copy of the tensor, without its data. */
void tensor_clear_data(TensorProto *t);
/* Plans the initializers: first the file's initializers in order, then one initializer for each
 * Identity node that becomes a parameter again. NULL after reporting. */
TensorPlan *plan_initializers(Export *e, const GraphProto *g, int *n);
/* Length of the fields of all initializers. */
Length initializers_length(const TensorPlan *plans, int n);
void put_initializers(Export *e, const TensorPlan *plans, int n);
/* Writes the second file: external tensors in the order of the first file. */
void put_data(Export *e, const TensorPlan *plans, int n);

/* ---- preprocess.c */
/* Sets e->inputs and e->not_preprocessed. */
void preprocess_find(Export *e, const GraphProto *g);
/* Makes the nodes of g, a copy, read the computed floats. */
void preprocess_readers(Export *e, GraphProto *g);
/* Do the bytes stand for the name of an input? Then puts the names, each under its condition. */
bool preprocess_put_name(Export *e, const void *bytes);
void preprocess_put_nodes(Export *e);
void preprocess_put_operands(Export *e);
/* Length of the fields of all inputs of the graph. */
Length preprocess_inputs_length(const GraphProto *g);
void preprocess_put_inputs(Export *e, const GraphProto *g);

#endif
