/* Private to fuse: makes a call of a fused function from a group of nodes; shared by fuse.c and
 * outline.c. */
#ifndef GRADC_CODEGEN_FUSE_OUTLINE_H
#define GRADC_CODEGEN_FUSE_OUTLINE_H

#include "codegen/fuse/store_plan.h"

/* The fused functions so far, for all functions of the module. */
typedef struct FusedBody FusedBody;
typedef struct {
	FusedBody *at;
	int n, cap;
	IntMap *by_hash;
} FusedBodies;

typedef struct {
	Module *m;
	Function *f;
	Arena *arena;
	FusedBodies *bodies;
	const StorePlan *plan;
	Value **stored; /* by value id: the call result that holds the value */
	int *reference; /* by value id, while a group becomes a call: see Outline */
} Fuse;

/* outline.c: inserts a call for the group. The callee is a new function, or an existing one with an equal
 * body. */
void fuse_outline_group(Fuse *fu, int gi, Node *before);

#endif
