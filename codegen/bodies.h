/* Functions that loops and branches run. */
#ifndef GRADC_CODEGEN_BODIES_H
#define GRADC_CODEGEN_BODIES_H

#include "codegen/codegen.h"

/* bodies.c: gives each loop and branch of the module's programs functions of their own, as instructions need them. False after
 * reporting one that is nested too deep, or may run too often. */
bool bodies_own(Module *m, Arena *scratch, Diag *diag);
/* The functions that nodes of the module name, as keys. */
IntMap *functions_run_by_others(const Module *m, Arena *arena);
/* NULL: n is no loop. */
const LoopAttr *loop_of(const Node *n);
/* What a loop or a branch runs: its body, or what it runs where the condition holds and where it does not. */
void node_bodies(const Node *n, Function *bodies[2]);

/* memory.c: the bytes of the workspace that the values of f take, without what its loops and branches run: that lies behind. */
int64_t function_workspace(const Function *f);

#endif
