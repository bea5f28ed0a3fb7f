/* What holds behind legalize: functions of loops and branches, and who runs which program. Sections are named after the .c file. */
#ifndef GRADC_CODEGEN_LEGALIZE_LEGALIZE_H
#define GRADC_CODEGEN_LEGALIZE_LEGALIZE_H

#include "codegen/target/target.h"

/* ---- bodies.c */
/* bodies.c: gives each loop and branch of the module's programs functions of their own, as instructions need them. False after
 * reporting one that is nested too deep, or may run too often. */
bool bodies_own(Module *m, Arena *scratch, Diag *diag);
/* The functions that nodes of the module name, as keys. */
IntMap *functions_run_by_others(const Module *m, Arena *arena);
/* NULL: n is no loop. */
const LoopAttr *loop_of(const Node *n);
/* What a loop or a branch runs: its body, or what it runs where the condition holds and where it does not. */
void node_bodies(const Node *n, Function *bodies[2]);

/* ---- versions.c */
/* For which targets the programs of a module are. A program that names none is for all of them, and so is a kernel that
 * nobody launches. */
typedef struct {
	StringList names; /* in the order of their first programs; one "" where none is named */
	bool **needs; /* by target, by the kernel's index: a program for it launches the kernel */
} Versions;
Versions module_versions(Arena *arena, const Module *m);
int version_index(const Versions *v, const char *target); /* among the names; -1: not there */

#endif
