/* Private header: reads and writes files of one value, as in ONNX's test data (TensorProto,
 * SequenceProto, OptionalProto). */
#ifndef GRADC_FRONTEND_FILE_TENSOR_FILE_H
#define GRADC_FRONTEND_FILE_TENSOR_FILE_H

#include "frontend/file/file.h"

/* ---- tensor_file.c */
/* A serialized TensorProto. path: the file's name in messages. */
Status tensor_proto_decode(Arena *arena, const char *path, const uint8_t *bytes, int64_t n,
                           DType *dtype, int *rank, int64_t dims[MAX_RANK], void **data);
uint8_t *tensor_proto_encode(Arena *arena, const char *name, DType dtype, int rank,
                             const int64_t *dims, const void *data, size_t *n);

#endif
