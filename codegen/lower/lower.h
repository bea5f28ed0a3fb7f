/* What a strategy calls while it emits a kernel: the buffers and elements of its node, and loops that the
 * members of a team share. */
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
/* The kernel's buffer for an operand or result of an opaque node. An operand that is a view of a buffer has
 * no buffer here: read it with `lower_element`. */
int lower_buffer(Lower *lw, const Value *v);
/* The value that the kernel stores for an opaque node: its result, or the result plus its bias (column
 * `bias` of the op). */
const Value *lower_stored(const Lower *lw);
/* The stored value's element at a flat place, computed from x, the node's own element there. */
LoopValue lower_stored_element(Lower *lw, const Node *n, Affine place, LoopValue x);
/* The buffer of what the serving kernel leaves, in the kernel that writes it and in the kernel that reads
 * it. */
int lower_scratch(Lower *lw);
/* From here on, n's element at this index is x: nodes that read the element are computed from x. */
void lower_give_element(Lower *lw, const Node *n, const Index *at, LoopValue x);

/* The index into a shape t of the element with flat number `flat`. */
Index index_at(Lower *lw, Type t, Affine flat);

/* ---- team.c */
/* Loops that the members of a team share, or the lanes of a vector. A strategy's loops are written once for
 * both. */
/* Called before a kernel's loops: gives the kernel the target's team. False: the target has no team, or its
 * members cannot store the results; then one thread runs the kernel's parts. */
bool team_begin(Lower *lw);
/* The same with a smaller team: as many members as `elements` neighbouring elements keep busy, but at least
 * ReduceTiles.row_members. */
bool team_begin_for(Lower *lw, int64_t elements);
/* Divides the team: each outer member gets a team of `inner` members (a power of two). */
void team_divide(Lower *lw, int inner);

/* A loop of `extent` iterations, or of those below a bound, shared by lanes or members. Without a team it is
 * a vector loop. In a team of T, member m has the iterations m, m + T, m + 2T ...; if a vector's length
 * divides all numbers, each of them is a vector of iterations. Accumulators made between spread_open and
 * spread_enter belong to the loop. */
typedef struct {
	LoopBuilder *lb;
	int64_t extent;
	const Affine *below; /* the bound; NULL: all iterations */
	/* neighbouring iterations that a member has as one vector; 1: no vectors */
	int vector;
	bool unrolled; /* teams: unroll the member's loop; set between open and enter */
	Affine own;    /* teams: number of a member's iteration, the index into private arrays */
	LoopValue variable; /* of the vector or team loop */
	int inner;          /* loops of a member inside it */
} Spread;
Spread spread_open(Lower *lw, int64_t extent, const Affine *below);
/* Most iterations that one member has. */
int64_t spread_own(const Lower *lw, int64_t extent);
Affine spread_enter(Spread *s); /* returns the iteration */
void spread_close(Spread *s);

#endif
