/* Shared by the files of `fuse`. */
#ifndef GRADC_CODEGEN_FUSE_IMPL_H
#define GRADC_CODEGEN_FUSE_IMPL_H

#include "codegen/fuse/store_plan.h"

/* The fused functions so far, of all functions of the module. */
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
	Value **stored; /* by value id: the call result that holds it */
	int *reference; /* by value id: while a group is outlined */
} Fuse;

/* fuse/outline.c: inserts the group's call, of a new function or of one that computes the same. */
void fuse_outline_group(Fuse *fu, int gi, Node *before);

#endif
