/* Private header: tensor data in external files, which the model names by a location, a path
 * relative to the model's folder. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_FILE_EXTERNAL_H
#define GRADC_FRONTEND_FILE_EXTERNAL_H

#include "frontend/file/file.h"

/* ---- external.c */
typedef struct {
	const char *location, *checksum;
	int64_t offset, length; /* length -1: to the end of the file */
} ExternalData;
/* Reads and checks the tensor's keys for external data: location, offset, length, checksum. */
bool external_parse(const Model *model, const TensorProto *t, ExternalData *out, Diag *diag);
/* Opens the file (once) and checks that the tensor's range lies inside. The model owns *fd. */
bool external_open(Model *model, const TensorProto *t, const ExternalData *e, int64_t bytes,
                   int *fd, Diag *diag);

/* ---- sha1.c */
void sha1_hex(const void *bytes, size_t n, char hex[41]);

#endif
