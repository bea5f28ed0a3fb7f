/* Private to ir/loop: declarations that the files of the loop IR's interpreter share. Each
 * section is named after its .c file. A part is one iteration of the parallel loops; members are
 * the threads of a team, which the interpreter runs one after the other. */
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

/* Operations that machines have as instructions; t: the type of the result. */
Cell cell_arithmetic(LoopOp op, DType t, Cell x, Cell y, Cell z);
bool cell_compare(LoopOp op, DType t, Cell x, Cell y); /* t: the type of the operands */
Cell cell_truncate(DType from, DType to, Cell x);      /* x must fit into `to` */
Cell cell_load(DType storage, const void *at, int64_t i);
void cell_store(DType storage, void *at, int64_t i, Cell x);
Cell cell_cast(DType storage, DType from, Cell x);
/* Rounds x through a float type below f32. */
Cell cell_round(DType storage, Conversion how, DType from, Cell x, Cell random);
Cell cell_identity(const Accumulator *a);

/* ---- loop/memory.c: buffers and arrays while a kernel runs, and checks of what the team's members do to them */

/* The member that runs the current statement, by level of the team (a team may be divided into
 * smaller teams). -1: the statement stands outside of the level's loop, and runs once for all
 * members of the level. */
typedef struct {
	int64_t outer, inner;
} Member;
typedef struct LoopMemory LoopMemory;
/* counts: its counter touched_bits grows by the bits that parts touch; NULL: no counting. */
LoopMemory *loop_memory_new(Arena *arena, const Kernel *k, void *const *params,
                            KernelCounts *counts);
/* Called when a part begins, and at the end of the kernel. The check for races then starts anew,
 * because it looks only within a part. */
void loop_memory_part(LoopMemory *m);
/* Says that the team loop of a level begins the iteration of `member`; -1: the loop ends. */
void loop_memory_member(LoopMemory *m, int level, int64_t member);
void loop_memory_barrier(LoopMemory *m);
/* begins = true: a member whose number is not known runs the next statements, for example the owner
 * of a tile's element. begins = false: a known member runs the statements again. */
void loop_memory_someone(LoopMemory *m, bool begins);
/* Starts a copy of elements from one buffer to another, or of zeros if `inside` is false. The
 * elements arrive when a WAIT statement waits for the copy. */
void loop_memory_copy(LoopMemory *m, const LoopStatement *s, int64_t to, int64_t from, bool inside);
void loop_memory_commit(LoopMemory *m);
void loop_memory_wait(LoopMemory *m, int64_t outstanding);
/* Declares an array: all its elements are unwritten. */
void loop_memory_declare(LoopMemory *m, int buffer);
/* Returns the memory of a buffer, and sets *place to the element's number there. Stops the program with a message if
 * the place lies outside, was not written, or was touched by another member without a barrier in between: a bug of
 * the compiler. */
void *loop_memory_reach(LoopMemory *m, int buffer, int64_t *place, bool write);

/* ---- loop/interp.c */
typedef struct Call Call;
typedef struct {
	const Kernel *k;
	Arena *arena;
	ScalarFunctions *functions;
	Call **calls;         /* by statement: its scalar function; NULL: an instruction */
	Call **accumulations; /* by accumulator scalar */
	LoopMemory *memory;
	int depth; /* number of team loops around the current statement */
	const Scalar *scalars;
	Cell *cells;     /* by scalar */
	Cell **partials; /* by accumulator scalar */
	Cell **taking;   /* by accumulator scalar: the partial of the current iteration */
	DType *types;    /* by scalar */
	int64_t begin, end;
	int64_t *flops; /* counter of flops; NULL: no counting */
} Run;
void run_block(Run *r, int from, int to);
int64_t run_place(const Run *r, const Affine *a);
Cell run_load(Run *r, int buffer, int64_t place);
void run_store(Run *r, int buffer, int64_t place, Cell x);
void run_accumulators_start(Run *r, const LoopStatement *s);
void run_accumulators_take(Run *r, const LoopStatement *s, int64_t j); /* iteration j begins */
void run_accumulators_finish(Run *r, const LoopStatement *s);

/* ---- loop/tiles.c: work that a team does together */
void run_each(Run *r, const LoopStatement *s, int at);
void run_mma(Run *r, const LoopStatement *s);
void run_copy(Run *r, const LoopStatement *s);

#endif
