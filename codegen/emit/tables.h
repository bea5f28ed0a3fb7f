/* Shared by the files that write an executable's tables. */
#ifndef GRADC_CODEGEN_TABLES_IMPL_H
#define GRADC_CODEGEN_TABLES_IMPL_H

#include "codegen/emit/emit.h"
#include "codegen/legalize/legalize.h"
#include "codegen/schedule/schedule.h"

typedef struct TableWriter {
	FormatWriter *w;
	const Tables *t;
	Diag *diag;
	bool ok;
	Arena *arena;
	Versions versions;
	Buckets buckets[N_MODES];
	uint32_t *slots; /* by value id: 1 + slot; 0 not yet */
	Space io_space;  /* of the program: where its inputs and results lie */
	int64_t workspace, io, flops;
	int64_t shift,
		state_end; /* of the last weights: where they are less the state's offset, end */
} TableWriter;

/* A value of a program: its slot. */
uint32_t table_slot(TableWriter *tw, const Value *v);
void table_grow(int64_t *most, int64_t end);
int table_kernel(const Module *m, const Kernel *k); /* its number; -1: it is none of the module's */

/* instructions.c: what the program does, and what its loops and branches do inside of it. */
void instructions_write(TableWriter *tw, const Function *f);

#endif
