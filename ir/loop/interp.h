/* What the files of the loop IR's interpreter share. Sections are named after the .c files. */
#ifndef GRADC_IR_INTERP_IMPL_H
#define GRADC_IR_INTERP_IMPL_H

#include "ir/loop/loop.h"

/* ---- loop/cells.c: one number of a compute type */
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

/* ---- loop/memory.c: buffers and arrays while a kernel runs, and what its team's members do to them */

/* Who runs a statement, by level; -1: what stands outside of that level's loop is done once for all of its members. */
typedef struct {
	int64_t outer, inner;
} Member;
typedef struct LoopMemory LoopMemory;
/* counts: of what parts touch; NULL: nobody counts. */
LoopMemory *loop_memory_new(Arena *arena, const Kernel *k, void *const *params,
                            KernelCounts *counts);
/* A part begins, which other parts know nothing of, or the kernel ends. */
void loop_memory_part(LoopMemory *m);
/* The loop of a level begins an iteration; -1: it is over. */
void loop_memory_member(LoopMemory *m, int level, int64_t member);
void loop_memory_barrier(LoopMemory *m);
/* What follows is done by a member that nobody knows, as the next element's owner; false: that is over. */
void loop_memory_someone(LoopMemory *m, bool begins);
/* Elements on their way from one buffer to another, or zeros where `inside` is false; they arrive at a wait. */
void loop_memory_copy(LoopMemory *m, const LoopStatement *s, int64_t to, int64_t from, bool inside);
void loop_memory_commit(LoopMemory *m);
void loop_memory_wait(LoopMemory *m, int64_t outstanding);
/* Declares an array: nothing of it is written. */
void loop_memory_declare(LoopMemory *m, int buffer);
/* Where element *place of a buffer lies, as number *place of what is returned. Ends the program with a message where it
 * lies outside, was not written, or was touched by another member without a barrier in between: a compiler's bug. */
void *loop_memory_reach(LoopMemory *m, int buffer, int64_t *place, bool write);

/* ---- loop/interp.c */
typedef struct Call Call;
typedef struct {
	const Kernel *k;
	Arena *arena;
	ScalarFunctions *functions;
	Call **calls;         /* by statement: of a scalar function; NULL: an instruction */
	Call **accumulations; /* by accumulator scalar */
	LoopMemory *memory;
	int depth; /* team loops around */
	const Scalar *scalars;
	Cell *cells;     /* by scalar */
	Cell **partials; /* by accumulator scalar */
	Cell **taking;   /* by accumulator scalar: the partial that takes now */
	DType *types;    /* by scalar */
	int64_t begin, end;
	int64_t *flops; /* counted here; NULL: not */
} Run;
void run_block(Run *r, int from, int to);
int64_t run_place(const Run *r, const Affine *a);
Cell run_load(Run *r, int buffer, int64_t place);
void run_store(Run *r, int buffer, int64_t place, Cell x);
void run_accumulators_start(Run *r, const LoopStatement *s);
void run_accumulators_take(Run *r, const LoopStatement *s, int64_t j); /* iteration j begins */
void run_accumulators_finish(Run *r, const LoopStatement *s);

/* ---- loop/tiles.c: what a team does together */
void run_each(Run *r, const LoopStatement *s, int at);
void run_mma(Run *r, const LoopStatement *s);
void run_copy(Run *r, const LoopStatement *s);

#endif
