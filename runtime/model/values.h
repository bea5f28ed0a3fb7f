/* Private to runtime/model: files named after tensors, outputs, random numbers, 4-bit weights. Sections are named after the .c
 * files. */
#ifndef GRADC_RUNTIME_MODEL_VALUES_H
#define GRADC_RUNTIME_MODEL_VALUES_H

#include "base/files/files.h"
#include "runtime/data/data.h"

#include <jansson.h>

/* ---- named.c: files named after tensors, and their list */
typedef struct {
	Arena *arena;
	const char *folder;
	StrMap *taken;
	json_t *json;
} NamedFiles;
Status named_open(Arena *arena, const char *folder, NamedFiles *out);
Status named_write(NamedFiles *n, const char *name, const char *prefix, const NpyInfo *type,
                   const void *data);
/* Writes names.json unless status is a fault; returns the first fault. */
Status named_close(NamedFiles *n, Status status);

/* ---- outputs.c */
Status outputs_write_port(Gradc *run, NamedFiles *files, const PortRecord *port, double factor);
Status outputs_write_gradients(Gradc *run, NamedFiles *files, double loss, double factor);

/* ---- preprocess.c */
typedef struct {
	uint32_t chosen; /* one bit of export_preprocessing */
	DType from;      /* type of the data files */
	Source source;   /* its numbers, unless NO_PREPROCESSING is chosen */
} PreprocessedPort;
/* The choices for the inputs of a template. more_bytes: how many bytes longer they make the graph. */
typedef struct {
	PreprocessedPort *at;
	int n;
	int64_t more_bytes;
} Preprocessing;
/* Checks --export-preprocessing before training. */
Status preprocess_check(const Format *f, const GradcOptions *o);
Status preprocess_open(Gradc *run, ExportedModel which, ExportForm form, Preprocessing *out);
bool preprocess_writes(const Preprocessing *p, const ExportRecord *e);
/* The ONNX type of the input. */
/* Adds "; \"image\" takes u8" for each input that the export preprocesses. */
void preprocess_describe(const Gradc *run, Text *out);
uint8_t preprocess_type(const Format *f, const Preprocessing *p, const ExportRecord *e);
/* The numbers of a record EXPORT_MUL to EXPORT_STD, in the arena. */
Status preprocess_numbers(Arena *arena, const Preprocessing *p, const ExportRecord *e,
                          double **out);

/* ---- philox.c */
double philox_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0, 1) */
double philox_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* ---- four_bit.c */
/* Contents of the states of a 4-bit weight. nested and offset are NULL if absmax is f32. */
typedef struct {
	const void *codes, *absmax, *nested, *offset;
} FourBitBytes;
/* Decodes the weight to numbers of its dtype. The axes have the model's order; the codes are stored in another order. */
char *four_bit_weight(Arena *arena, const Format *f, const FourBitRecord *r,
                      const FourBitBytes *bytes);

#endif
