/* The iteration space of a fused kernel, shared by fuse (may these nodes share one?) and lower (loops
 * over it). */
#ifndef GRADC_CODEGEN_DOMAIN_H
#define GRADC_CODEGEN_DOMAIN_H

#include "ir/ir.h"
#include "ir/loop.h"

/* Which runs of a shape's axes a reduction keeps and which it sums over. Neighbouring axes of the same
 * kind are joined and axes of one element left out, so that equal forms mean equal index maps. */
typedef struct {
	int n; /* 0: nothing is reduced */
	int64_t extent[MAX_RANK];
	bool reduced[MAX_RANK];
} ReduceForm;
ReduceForm reduce_form(const Ints *shape, const Ints *reduced_axes);
bool reduce_form_equal(const ReduceForm *a, const ReduceForm *b);
int64_t reduce_form_kept(const ReduceForm *f); /* elements of the result */
/* Is the innermost run kept? Then lanes run along results, else along what is summed. */
bool reduce_form_by_column(const ReduceForm *f);

/* v behind reshapes: the same elements in the same order. */
Value *behind_reshapes(Value *v);

#endif
