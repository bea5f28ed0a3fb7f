/* Functions that a strategy (codegen/strategy: the code that emits a kind of kernel, such as a
 * matrix product) calls while it emits a kernel: the buffers and elements of its node, and loops
 * that the members of a team (the threads of a GPU block) share. */
#ifndef GRADC_CODEGEN_LOWER_LOWER_H
#define GRADC_CODEGEN_LOWER_LOWER_H

#include "codegen/strategy/strategy.h"

/* ---- operands and results of an opaque node */
/* An operand that is a view of a buffer with a fixed stride along each axis. */
typedef struct {
	int buffer;
	/* in elements; strides are positive, or 0 along axes of one element */
	int64_t offset, strides[MAX_RANK];
} Strided;
bool lower_strided(Lower *lw, const Value *v, Strided *out);
/* The kernel's buffer for an operand or result of an opaque node. An operand that is a view of
 * another value has no buffer of its own: read its elements with `lower_element`. */
int lower_buffer(Lower *lw, const Value *v);
/* The value that the kernel stores for an opaque node: its result, or the result plus its bias (column
 * `bias` of the op). */
const Value *lower_stored(const Lower *lw);
/* The stored value's element at a flat place, computed from x, which is the node's own result at
 * that place. */
LoopValue lower_stored_element(Lower *lw, const Node *n, Affine place, LoopValue x);
/* The buffer through which a serving kernel passes data to the main kernel. Both kernels call
 * this function. */
int lower_scratch(Lower *lw);
/* Tells the emitter that n's element at this index is x. Nodes that read the element are
 * computed from x from now on. */
void lower_give_element(Lower *lw, const Node *n, const Index *at, LoopValue x);

/* The index into a shape t of the element with flat number `flat`. */
Index index_at(Lower *lw, Type t, Affine flat);

/* ---- team.c */
/* Loops that are shared by the members of a team, or by the lanes of a vector on CPUs. A
 * strategy's loops are written once for teams and vectors. */
/* Called before a kernel's loops: gives the kernel the target's team. False: the target has no team, or its
 * members cannot store the results; then one thread runs the kernel's parts. */
bool team_begin(Lower *lw);
/* Like team_begin, with a smaller team: as many members as `elements` neighbouring elements keep
 * busy, but at least ReduceTiles.row_members. */
bool team_begin_for(Lower *lw, int64_t elements);
/* Divides the team into groups of `inner` members (a power of two). A group is called an outer
 * member, its threads are inner members. */
void team_divide(Lower *lw, int inner);

/* A loop of `extent` iterations, or of the iterations below a bound, that lanes or members
 * share. Without a team it is a vector loop. In a team of T, member m has the iterations m, m +
 * T, m + 2T ...; if the vector's length divides all these numbers, a member has vectors of
 * neighbouring iterations instead of single iterations. Accumulators made between spread_open
 * and spread_enter belong to the loop. */
typedef struct {
	LoopBuilder *lb;
	int64_t extent;
	const Affine *below; /* the bound; NULL: all iterations */
	/* neighbouring iterations that a member has as one vector; 1: no vectors */
	int vector;
	bool unrolled; /* teams: unroll the member's loop; set between open and enter */
	/* teams: number of a member's iteration, which is the index into the member's private
	 * arrays */
	Affine own;
	LoopValue variable; /* of the vector or team loop */
	int inner;          /* number of the member's loops inside this loop */
} Spread;
Spread spread_open(Lower *lw, int64_t extent, const Affine *below);
/* The largest number of iterations of such a loop that one member has. */
int64_t spread_own(const Lower *lw, int64_t extent);
Affine spread_enter(Spread *s); /* returns the iteration */
void spread_close(Spread *s);

#endif
