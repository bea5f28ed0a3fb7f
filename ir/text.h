/* Declarations that the printers and parsers of .gir, the text form of modules, share. */
#ifndef GRADC_IR_TEXT_IMPL_H
#define GRADC_IR_TEXT_IMPL_H

#include "ir/ir.h"
#include "ir/loop/loop.h"

extern const char *const region_texts[], *const param_kind_texts[];
void loc_print(Text *out, Loc loc, const PrintOptions *options);
void symbol_print(Text *out, char sigil, const char *name); /* @name, or @"a name" */

/* The reader of .gir: text_lex.c. It reports faults with FILE:LINE, at most one per line. After a fault the reader
 * skips to the next line. */
typedef struct {
	const char *file, *at, *line_start;
	int line;
	Diag *diag;
	int faults;
	int fault_line;
	Module *m;
	const StrMap *data;
	Function *f;
	StrMap *values; /* %name -> Value of f */
} Reader;

void PRINTF(2, 3) read_fault(Reader *r, const char *fmt, ...);
void read_space(Reader *r); /* skips blanks, and comments up to the end of the line */
void read_lines(Reader *r); /* skips line ends, too */
bool read_word(Reader *r, const char *word); /* takes the word if it is next */
bool read_char(Reader *r, char c);
bool read_expect(Reader *r, char c); /* reports if the character is not next */
const char *read_name(Reader *r);    /* an identifier; NULL: no identifier is next */
/* @name or %name, perhaps in quotes. NULL: no symbol is next, or a fault was reported */
const char *read_symbol(Reader *r, char sigil);
bool read_int(Reader *r, int64_t *out);
bool read_double(Reader *r, double *out);
bool read_list(Reader *r, Ints *list); /* [1,2,3]; false after reporting */
/* An integer from 0 to `most`; false after reporting. */
bool read_small(Reader *r, int64_t most, int64_t *out);
int read_enum(Reader *r, const char *const *names); /* -1 after reporting */
bool read_dtype_word(Reader *r, DType *out);
Type read_type(Reader *r);            /* NULL after reporting */
Loc read_loc(Reader *r);              /* after the word `loc`; NULL after reporting */
const Tensor *read_tensor(Reader *r); /* NULL after reporting */
bool read_attrs(Reader *r, const OpRow *row, void *attr);
void read_skip_line(Reader *r);
bool read_at_line_end(Reader *r);

void read_kernel(Reader *r);  /* loop/parse.c: after the word `kernel` */
void read_program(Reader *r); /* programs/parse.c: after the word `program` */
/* loop/library.c: reads KIND {FIELD = ..., ...}; NULL after reporting. */
const LibraryCall *read_library(Reader *r, const Kernel *k);
void kernel_print_library(Text *out, const Kernel *k);

#endif
