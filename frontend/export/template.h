/* Private header: the template of an exported model while it is written. Sections are named after the
 * .c files. */
#ifndef GRADC_FRONTEND_EXPORT_TEMPLATE_H
#define GRADC_FRONTEND_EXPORT_TEMPLATE_H

#include "frontend/export/branches.h"
#include "frontend/import/import.h"

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

#endif
