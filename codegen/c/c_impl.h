/* What the files that print C share. Sections are named after the .c files. */
#ifndef GRADC_CODEGEN_C_IMPL_H
#define GRADC_CODEGEN_C_IMPL_H

#include "codegen/codegen.h"

typedef struct {
	Text *out;
	Arena *arena;
	ScalarFunctions *functions;
	StrMap *printed; /* scalar functions that stand in this file, by name */
	const Kernel *k;
	DType *types; /* by scalar */
	const char **
		accumulated; /* by accumulator scalar: where it takes now, "v2" or "v2_lanes[lane]" */
	int depth;
	int n_open;                          /* team loops around */
	const LoopStatement *open[MAX_TEAM]; /* outermost first */
	int *declared;                       /* by array: team loops around its declaration */
} CPrinter;

/* ---- print.c */
void c_indent(CPrinter *p);
void c_print_block(CPrinter *p, int from, int to);

/* ---- expressions.c */
extern const char *const c_compute_names[N_DTYPES];
extern const char *const c_storage_names[N_DTYPES];
static inline bool
is_packed(DType d) /* several elements in a byte */
{
	return dtype_info[d].bits < 8;
}
void c_print_literal(Text *out, DType t, double f, int64_t i);
const char *c_affine(CPrinter *p, const Affine *a);
/* Element `place` of a buffer, as number of its compute type. */
void c_print_element(CPrinter *p, int buffer, const char *place);
const char *c_name(CPrinter *p, int buffer); /* "x0", "y1", "local3" */
/* The same; "private3[v1]" of a member's share. */
const char *c_array(CPrinter *p, int buffer);
/* "load_s4": how memory's bits become a number, and back; NULL: as C converts them. */
const ScalarFunction *c_storage_function(CPrinter *p, const char *name, DType storage);
void c_print_definition(CPrinter *p, const LoopStatement *s);
void c_print_store(CPrinter *p, const LoopStatement *s);

/* ---- loops.c */
void c_print_for(CPrinter *p, const LoopStatement *s, int at);
/* now: the number of the partial that takes, or of a row's column. */
void c_start_accumulators(CPrinter *p, const LoopStatement *s, const char *now);
void c_finish_accumulators(CPrinter *p, const LoopStatement *s);
void c_print_accumulate(CPrinter *p, const LoopStatement *s);

/* ---- tiles.c: what a team does together */
void c_print_each(CPrinter *p, const LoopStatement *s, int at);
void c_print_mma(CPrinter *p, const LoopStatement *s);
void c_print_copy(CPrinter *p, const LoopStatement *s);

#endif
