/* One input: its files, its rows as the files have them, its values. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_DATA_SOURCES_H
#define GRADC_RUNTIME_DATA_SOURCES_H

#include "runtime/data/data.h"

/* ---- files.c: opening what --data and its kin name. */
Status tokens_open(Arena *arena, const char *path, bool text, FileSet *out);

/* ---- source.c */
Status source_read_files(Source *s, int64_t row, int64_t n, char *to);
Status source_read_constant(Source *s, int64_t row, int64_t n, char *to);
/* Reads the source's files into memory where they are few, their rows are small, and together they are not more than
 * *left bytes, which it counts down. Rows of other sources may lie in the same files. */
Status source_keep(Arena *arena, Source *s, int64_t *left);
/* EXIT_DATA when a file that is kept is no longer as long as it was. */
Status source_check_kept(const Source *s);

/* ---- decode.c: values of a file -> values of a port. */
/* n whole samples. */
void decode(const Source *s, DType from, const void *raw, int64_t n, void *to);
/* Makes s->bytes where the files hold bytes that are scaled. */
void decode_prepare(Arena *arena, Source *s, DType from);

/* ---- validate.c: values as the files hold them. */
Status validate_values(const Source *s, const DataFile *file, int64_t row, int64_t n,
                       const void *raw);
/* May a file of this type feed this port? */
bool validate_dtype(const PortRecord *port, DType file, bool scaled);

/* ---- fill.c: inputs that need no data. */
Status fill_parse(Arena *arena, const Format *f, const PortRecord *port, const char *text,
                  char **constant);
const char *fill_default(const char *input); /* NULL: none */

/* ---- bind.c: which source feeds which port of a binding. */
typedef struct {
	Gradc *run;
	const DataOptions *options;
	FileSet *data;  /* of options->data, same order; a name's first place has all its files */
	FileSet tokens; /* no files: not given */
} Files;
const FileSet *bind_set(const Files *files, const char *name); /* of --data; NULL: none */

/* ---- pick_binding.c: sets the program and its binding, for the role and the files. */
Status binding_pick(Gradc *run, Role role, const Files *files, Dataset *d);
/* Does the binding have the shapes of the files? */
bool bind_matches(const Files *files, const ProgramRecord *p);
Status bind_sources(const Files *files, Dataset *d);
/* The input that the token stream feeds; NULL when there is none or more than one. */
const PortRecord *bind_token_port(const Files *files, const ProgramRecord *p);

/* ---- order.c: a permutation of [0, n) that needs no memory. */
typedef struct {
	int64_t n;
	bool shuffle;
	int half_bits;
	uint32_t keys[4];
} Order;
Order order_new(int64_t n, bool shuffle, uint64_t seed, int64_t epoch);
int64_t order_at(const Order *order, int64_t index);

#endif
