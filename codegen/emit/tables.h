/* Private to emit: shared by the files that write an executable's tables. */
#ifndef GRADC_CODEGEN_EMIT_TABLES_H
#define GRADC_CODEGEN_EMIT_TABLES_H

#include "codegen/emit/emit.h"
#include "codegen/legalize/legalize.h"
#include "codegen/schedule/schedule.h"

typedef struct TableWriter {
	FormatWriter *w;
	const Tables *t;
	Diag *diag;
	bool ok;
	Arena *arena;
	IntMap *kernels; /* by address of a kernel: its number */
	Versions versions;
	Buckets buckets[N_MODES];
	uint32_t *slots; /* by value id: 1 + slot; 0: no slot yet */
	Space io_space;  /* space of the program's inputs and results */
	int64_t workspace, io, flops;
	/* of the weight written last. shift: its place in the file minus its state's offset;
	 * state_end: where its state ends */
	int64_t shift, state_end;
} TableWriter;

/* The number of the slot (a place in memory) of a program's value. */
uint32_t table_slot(TableWriter *tw, const Value *v);
void table_grow(int64_t *most, int64_t end);
uint32_t table_kernel(const TableWriter *tw, const Kernel *k); /* number of the kernel */

/* instructions.c: the instructions of a program, including the bodies of its loops and branches. */
void instructions_write(TableWriter *tw, const Function *f);

#endif
