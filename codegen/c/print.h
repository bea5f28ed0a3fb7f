/* Functions that the files of this folder share. Sections are named after the .c file. */
#ifndef GRADC_CODEGEN_C_PRINT_H
#define GRADC_CODEGEN_C_PRINT_H

#include "codegen/c/c.h"

/* ---- print.c */
extern const CDialect c_dialect;
/* a name from a model, without characters that could end the comment */
void c_print_comment(Text *out, const char *name);

/* ---- expressions.c */
void c_print_literal(CPrinter *p, DType t, double f, int64_t i);
/* v with all bits of its type: "v3", "(int64_t)v3" */
const char *c_value(CPrinter *p, LoopValue v);
/* v is an s64 number with at most this magnitude */
void c_set_most(CPrinter *p, LoopValue v, int64_t most);
int64_t c_affine_most(const CPrinter *p, const Affine *a); /* -1: a may need more than 32 bits */
/* Element `place` of a buffer, as a number of its compute type. */
void c_print_element(CPrinter *p, int buffer, const char *place);
void c_print_store(CPrinter *p, const LoopStatement *s, int at);

/* ---- loops.c */
/* Declares the variables of `depth` nested parallel loops, of which statement `at` is the
 * outermost. Their values are computed from the variable `part`. */
void c_print_parallel_variables(CPrinter *p, int at, int depth);
/* now: a C expression for the index of the partial sum that the loop adds to. For sums over a row
 * of a tile, an expression for the current column instead. */
void c_start_accumulators(CPrinter *p, const LoopStatement *s, const char *now);
void c_finish_accumulators(CPrinter *p, const LoopStatement *s);

/* ---- tiles.c: statements that all threads of a team run together */
void c_print_each(CPrinter *p, const LoopStatement *s, int at);
void c_print_mma(CPrinter *p, const LoopStatement *s, int at);
void c_print_copy(CPrinter *p, const LoopStatement *s, int at);

#endif
