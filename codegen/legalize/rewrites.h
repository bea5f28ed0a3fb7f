/* The rewrites that legalize calls. Sections are named after the .c file. */
#ifndef GRADC_CODEGEN_LEGALIZE_REWRITES_H
#define GRADC_CODEGEN_LEGALIZE_REWRITES_H

#include "codegen/target/target.h"

/* ---- split_reduce.c */
/* Rewrites the large reductions of f that would have less than so many parts. */
void reduces_split(Function *f, const Target *t, int64_t parts, Arena *scratch);

/* ---- split_sort.c */
enum { LONGEST_SPLIT = 1 << 30 };
/* Rewrites the sorts of f over long lines, up to that. */
void sorts_split(Function *f);

/* ---- beside_readers.c */
void compute_beside_readers(Function *f, Arena *arena);

/* ---- sort_scatter.c */
/* Sorts the indices of f's scatters where the target does that in many parts. */
void scatters_sort(Function *f, const Target *t);

#endif
