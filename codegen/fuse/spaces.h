/* The spaces that the nodes of a kernel run over. Sections are named after the .c file. */
#ifndef GRADC_CODEGEN_FUSE_SPACES_H
#define GRADC_CODEGEN_FUSE_SPACES_H

#include "codegen/fuse/fuse.h"

/* ---- domain.c */
ReduceForm reduce_form(const Ints *shape, const Ints *reduced_axes);
ReduceForm reduce_form_of(const Node *reduce);
bool reduce_form_equal(const ReduceForm *a, const ReduceForm *b);
bool domain_equal(const Domain *a, const Domain *b);

/* ---- epilogue.c */
/* Is n a GELU of a product, or a GELU derivative times a product, and can the product's library apply it?
 * Then n has a kernel of its own. */
bool epilogue_alone(const Target *t, const Node *n);

#endif
