/* Private to legalize: the rewrites of tensor IR that the pass calls. Each section is named
 * after its .c file. */
#ifndef GRADC_CODEGEN_LEGALIZE_REWRITES_H
#define GRADC_CODEGEN_LEGALIZE_REWRITES_H

#include "codegen/target/target.h"

/* Builds nodes in front of n, with its place in the source and its phase. */
static inline Builder
builder_before(Node *n)
{
	return (Builder){.m = n->function->module,
	                 .f = n->function,
	                 .before = n,
	                 .loc = n->loc,
	                 .phase = n->phase};
}

/* ---- split_reduce.c */
/* Splits large reductions of f that would otherwise run in fewer than `parts` parallel parts. */
void reduces_split(Function *f, const Target *t, int64_t parts, Arena *scratch);
/* Is the last axis kept? Then the elements that are added to one result are not adjacent in memory. */
bool reduce_is_by_column(const Node *n);
/* A reduction whose rows are read again is not split if it has at least this many rows. */
int64_t reduce_rows_enough(const Target *t, const Node *n, int64_t parts);

/* ---- split_sort.c */
enum { LONGEST_SPLIT = 1 << 30 };
/* Splits sorts of f whose lines are long, but have at most LONGEST_SPLIT elements. */
void sorts_split(Function *f);

/* ---- beside_readers.c */
void compute_beside_readers(Function *f, Arena *arena);

/* ---- sort_scatter.c */
/* Sorts the indices of f's scatters, if the target computes sorted scatters in many parts. */
void scatters_sort(Function *f, const Target *t);

#endif
