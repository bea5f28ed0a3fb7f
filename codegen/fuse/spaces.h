/* The spaces that the nodes of a kernel run over. Sections are named after the .c file. */
#ifndef GRADC_CODEGEN_FUSE_SPACES_H
#define GRADC_CODEGEN_FUSE_SPACES_H

#include "codegen/fuse/fuse.h"

/* ---- domain.c */
ReduceForm reduce_form(const Ints *shape, const Ints *reduced_axes);
ReduceForm reduce_form_of(const Node *reduce);
bool reduce_form_equal(const ReduceForm *a, const ReduceForm *b);
Domain domain_full(Type t); /* domain of a kernel that computes values of type t */
bool domain_equal(const Domain *a, const Domain *b);
/* Records in the domain that values of space s are reduced in the way in which n reduces its
 * operand: sets reduction[s], and elements of the next space. */
void domain_add_reduction(Domain *d, IterSpace s, const Node *n);
/* The space over which a node reads v, where v is a value in space `base`, or a chain of views of
 * one. With only reshapes in between, this is `base`. A broadcast that repeats row values along
 * the reduced axes gives ITER_FULL. Any other view gives ITER_NONE. */
IterSpace domain_reached(const Domain *d, Value *v, IterSpace base);

/* ---- epilogue.c */
/* Is n a GELU of a product, or a GELU derivative times a product, and can the product's library apply it?
 * Then n has a kernel of its own. */
bool epilogue_alone(const Target *t, const Node *n);

#endif
