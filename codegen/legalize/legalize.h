/* What later passes ask about a module after the pass `legalize`: which functions loops and
 * branches run, and which target each program is for. Each section is named after its .c file. */
#ifndef GRADC_CODEGEN_LEGALIZE_LEGALIZE_H
#define GRADC_CODEGEN_LEGALIZE_LEGALIZE_H

#include "codegen/target/target.h"

/* ---- bodies.c */
/* Gives each loop and branch of the module's programs functions that no other node runs, in the
 * form that the executable's instructions need. False after reporting a node that is nested too
 * deep or may run too often. */
bool bodies_own(Module *m, Arena *scratch, Diag *diag);
/* The functions that some node of the module calls or runs, as keys. */
IntMap *functions_run_by_others(const Module *m, Arena *arena);
/* n's attributes; NULL: n is not a loop. */
const LoopAttr *loop_of(const Node *n);
/* The functions that a loop or branch runs: a loop's body, or a branch's functions for a true and a false
 * condition. */
void node_bodies(const Node *n, Function *bodies[2]);

/* ---- versions.c */
/* The targets of a module's programs, and the kernels that each target needs. A program without
 * a target is for all targets. A kernel that no program launches is for all targets, too. */
typedef struct {
	/* names of targets in the order of their first programs; a single "" if no program has a target */
	StringList names;
	/* by target, by kernel index: does a program for the target launch the kernel? */
	bool **needs;
} Versions;
Versions module_versions(Arena *arena, const Module *m);
/* index of the target in `names`; -1: not there */
int version_index(const Versions *v, const char *target);

#endif
