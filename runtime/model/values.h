/* Private to runtime/model: files named after tensors, outputs, random numbers, 4-bit weights. Sections are named after the .c
 * files. */
#ifndef GRADC_RUNTIME_MODEL_VALUES_H
#define GRADC_RUNTIME_MODEL_VALUES_H

#include "base/files/files.h"
#include "runtime/run/run.h"

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
