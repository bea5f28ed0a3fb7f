/* Private to schedule: what the files of the pass `instructions` share. */
#ifndef GRADC_CODEGEN_SCHEDULE_INSTRUCTIONS_H
#define GRADC_CODEGEN_SCHEDULE_INSTRUCTIONS_H

#include "codegen/schedule/schedule.h"

typedef struct {
	Pass *pass;
	Module *m;
	bool ok;         /* false: a fault was reported */
	IntMap *kernels; /* by address of a kernel: its number */
	/* of the program that is being made */
	Program *p;
	uint32_t *slots; /* by value id: 1 + slot; 0: no slot yet */
	Space io_space;  /* space of the program's inputs and results */
} ProgramMaker;

/* ---- nodes.c */
/* The number of the slot of a value of the program's function. */
uint32_t value_slot(ProgramMaker *pm, const Value *v);
/* Adds the instructions of f, including the bodies of its loops and branches. */
void nodes_add(ProgramMaker *pm, const Function *f);

#endif
