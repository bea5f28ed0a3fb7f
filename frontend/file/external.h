/* Private header: tensor data in external files, which the model names by a location, a path
 * relative to the model's folder. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_FILE_EXTERNAL_H
#define GRADC_FRONTEND_FILE_EXTERNAL_H

#include "frontend/file/file.h"

/* ---- external_location.c */
/* Sets *out to the location without its "." components. Returns NULL or what is wrong: a location
 * must be relative, without "..", empty components, backslashes or a drive letter. */
const char *external_location(Arena *arena, const char *location, const char **out);
/* The resolved path of the location's file. NULL with errno on a fault; ENOTUNIQ: two folders have
 * different files. */
const char *external_path(const Model *model, const char *location);
/* A descriptor of the location's file, or -1 with errno; EXDEV: the file lies in none of the
 * folders. */
int external_open_path(const Model *model, const char *location, const char **path);

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
