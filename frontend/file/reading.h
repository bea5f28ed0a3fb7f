/* Reading a file, before its messages are unpacked. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_FILE_READING_H
#define GRADC_FRONTEND_FILE_READING_H

#include "frontend/file/file.h"

/* ---- check.c, check_node.c: check the structure of the graph and report all faults. */
void check_node(Model *model, const FlatNode *n, bool in_function, Diag *diag);

/* ---- schema.c: ONNX's schemas of operators; for other domains, onnxruntime's. */
/* As schema_find, for any domain. NULL for most operators of other domains. */
const SchemaRow *schema_of(const char *domain, const char *name, int opset);

/* ---- tensor.c */
void check_sparse(const Model *model, const Onnx__SparseTensorProto *s, const char *what,
                  Diag *diag);
/* Decodes a TensorProto without external data. Returns NULL or what is wrong, with its exit code. */
const char *tensor_decode(Arena *arena, const TensorProto *t, TensorData *out, int *exit_code);

/* ---- read.c: reads the file as far as the scan needs it. A large raw_data is read last, straight
 * into its tensor. */
/* Reads on until the bytes below `end` are in memory. */
Status model_file_need(ModelFile *f, int64_t end);
/* Does not read the n bytes of a raw_data now, which begin at `offset` of the file; false: n is too
 * small for this to pay. In place of the n bytes, the buffer holds their offset in the file and zeros. */
bool model_file_set_aside(ModelFile *f, int64_t offset, int64_t n);

/* ---- scan.c: checks that the bytes are a well-formed ModelProto, before unpacking. */
/* The same check for a TensorProto. */
Status scan_tensor(const uint8_t *bytes, int64_t n);
/* The same check for a SequenceProto or an OptionalProto. */
Status scan_list(const uint8_t *bytes, int64_t n, bool optional);

#endif
