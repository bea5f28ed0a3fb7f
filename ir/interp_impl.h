/* What the files of the loop IR's interpreter share. Sections are named after the .c files. */
#ifndef GRADC_IR_INTERP_IMPL_H
#define GRADC_IR_INTERP_IMPL_H

#include "ir/loop.h"

/* ---- loop_cells.c: one number of a compute type */
typedef union {
	double f64;
	float f32;
	int64_t s64;
	uint64_t u64;
	int32_t s32;
	uint32_t u32;
	bool b;
} Cell;

/* What machines have as instructions; t: the result's type. */
Cell cell_arithmetic(LoopOp op, DType t, Cell x, Cell y, Cell z);
bool cell_compare(LoopOp op, DType t, Cell x, Cell y); /* t: the operands' type */
Cell cell_truncate(DType from, DType to, Cell x);      /* the operand fits */
Cell cell_load(DType storage, const void *at, int64_t i);
void cell_store(DType storage, void *at, int64_t i, Cell x);
Cell cell_cast(DType storage, DType from, Cell x);
/* Through a float below f32. */
Cell cell_round(DType storage, Conversion how, DType from, Cell x, Cell random);
Cell cell_identity(const Accumulator *a);

#endif
