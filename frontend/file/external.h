/* Data in files beside the model. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_FILE_EXTERNAL_H
#define GRADC_FRONTEND_FILE_EXTERNAL_H

#include "frontend/file/file.h"

/* ---- external_location.c */
/* A location without its "." components; a fault or NULL. Relative, no "..", no empty component, no
 * backslash or drive letter. */
const char *external_location(Arena *arena, const char *location, const char **out);
/* The resolved path of a location's file; NULL and errno: ENOTUNIQ where two folders have different ones. */
const char *external_path(const Model *model, const char *location);
/* A descriptor of that file, or -1 and errno: EXDEV where it lies in none of the folders. */
int external_open_path(const Model *model, const char *location, const char **path);

/* ---- external.c: data beside the model, never outside its folders. */
typedef struct {
	const char *location, *checksum;
	int64_t offset, length; /* length -1: to the end of the file */
} ExternalData;
/* Reads and checks the five known keys. */
bool external_parse(const Model *model, const TensorProto *t, ExternalData *out, Diag *diag);
/* Opens (once) and checks that the range lies inside. *fd is the model's. */
bool external_open(Model *model, const TensorProto *t, const ExternalData *e, int64_t bytes,
                   int *fd, Diag *diag);

/* ---- sha1.c */
void sha1_hex(const void *bytes, size_t n, char hex[41]);

#endif
