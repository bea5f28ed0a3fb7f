/* Private to programs: what the files of the pass `instructions` share. */
#ifndef GRADC_CODEGEN_PROGRAMS_INSTRUCTIONS_H
#define GRADC_CODEGEN_PROGRAMS_INSTRUCTIONS_H

#include "ir/loop/loop.h"
#include "ir/programs/programs.h"

typedef struct {
	Pass *pass;
	Module *m;
	bool ok; /* false: a fault was reported */
	/* of the program that is being made */
	Program *p;
	uint32_t *slots; /* by value id: 1 + slot; 0: no slot yet */
	Space io_space;  /* space of the program's inputs and results */
} ProgramMaker;

/* ---- fill.c: does the kernel only write zeros? */
bool kernel_fills_zero(const Kernel *k);

/* ---- shard.c: does the mode change the program of f? */
bool shard_changes(const Function *f, DataParallelMode mode);

/* ---- offload.c */
/* offload_changes: does f, in that mode, update states that lie in the host's memory?
 * offload_on_host: do f's kernels then run on the host's CPU, because the optimizer's states lie
 * in the host's memory? */
bool offload_changes(const Function *f, DataParallelMode mode);
bool offload_on_host(const Function *f, DataParallelMode mode);

/* ---- nodes.c */
/* The number of the slot of a value of the program's function. */
uint32_t value_slot(ProgramMaker *pm, const Value *v);
/* Adds the instructions of f, including the bodies of its loops and branches. */
void nodes_add(ProgramMaker *pm, const Function *f);

#endif
