/* Private to runtime/data: the source of one input (its files, or a constant), and the conversion of its values. Sections are
 * named after the .c files. */
#ifndef GRADC_RUNTIME_DATA_SOURCES_H
#define GRADC_RUNTIME_DATA_SOURCES_H

#include "runtime/data/data.h"

/* ---- files.c: opens the files of --data and --tokens */
Status tokens_open(Arena *arena, const char *path, bool text, FileSet *out);

/* ---- source.c */
/* Bytes of a sample in the image. */
int64_t source_sample_bytes(const Source *s);
/* Reads n whole samples, at most `chunk` where the source has rows, and converts them to the port's dtype, unless the source
 * is raw. raw: room for them in the files' type. */
Status source_read(const Source *s, int64_t row, int64_t n, char *to, char *raw);
/* Reads the source's files into memory if they are few, their rows are small, and their size is at most *left bytes. Subtracts
 * the size from *left. Several sources may share a file. */
Status source_keep(Arena *arena, Source *s, int64_t *left);
/* EXIT_DATA if a kept file has become shorter. */
Status source_check_kept(const Source *s);

/* ---- decode.c: values of a file become values of a port */
/* Converts n values. n is a multiple of the sample's size. */
void decode(const Source *s, DType from, const void *raw, int64_t n, void *to);
/* Makes the table s->bytes if the files hold bytes that are scaled. */
void decode_prepare(Arena *arena, Source *s, DType from);
/* For a source with such a table: the look-up that converts n bytes, without the addresses `to` and `from`. */
LookUp decode_look_up(const Source *s, int64_t n);
bool decode_is_finite(const Source *s); /* all entries of the table */

/* ---- validate.c: checks values before conversion */
Status validate_values(const Source *s, const DataFile *file, int64_t row, int64_t n,
                       const void *raw);
/* Can a file with elements of this type be the source of this port? */
bool validate_dtype(const PortRecord *port, DType file, bool scaled);

/* ---- fill.c: constants for inputs without data */
Status fill_parse(Arena *arena, const Format *f, const PortRecord *port, const char *text,
                  char **constant);
const char *fill_default(const char *input); /* NULL if the input has no customary fill */

/* ---- bind.c: picks the source of each port of a binding */
typedef struct {
	Gradc *run;
	const DataOptions *options;
	/* one entry per pair of options->data; if pairs have the same name, the first pair's entry has all files of that
	 * name */
	FileSet *data;
	FileSet tokens; /* empty without --tokens */
} Files;
/* files of --data; NULL if not given */
const FileSet *bind_set(const Files *files, const char *name);

/* ---- pick_binding.c: picks the program and binding for a role and the files */
Status binding_pick(Gradc *run, Role role, const Files *files, Dataset *d);

/* ---- bind.c */
/* Does the binding have the shapes of the files? */
bool bind_matches(const Files *files, const ProgramRecord *p);
Status bind_sources(const Files *files, Dataset *d);
/* The input that takes the token stream; NULL if there is no such input, or more than one. */
const PortRecord *bind_token_port(const Files *files, const ProgramRecord *p);

/* ---- order.c: a permutation of [0, n) that needs no memory */
typedef struct {
	int64_t n;
	bool shuffle;
	int half_bits;
	uint32_t keys[4];
} Order;
Order order_new(int64_t n, bool shuffle, uint64_t seed, int64_t epoch);
int64_t order_at(const Order *order, int64_t index);

#endif
