/* What a strategy calls while it emits a kernel: the buffers and elements of its node, and loops that a team shares. */
#ifndef GRADC_CODEGEN_LOWER_LOWER_H
#define GRADC_CODEGEN_LOWER_LOWER_H

#include "codegen/strategy/strategy.h"

/* ---- where operands and results of an opaque node lie */
/* Where an operand of an opaque node lies, if it is a view of a buffer that strides can say. */
typedef struct {
	int buffer;
	int64_t offset, strides[MAX_RANK]; /* elements; positive, 0 along axes of one */
} Strided;
bool lower_strided(Lower *lw, const Value *v, Strided *out);
/* The buffer of an operand or result of an opaque node, and a flat place in it. An operand that is
 * a view of a buffer is reached through `lower_element`. */
int lower_buffer(Lower *lw, const Value *v);
/* What the kernel stores of an opaque node: its result, or that and its bias (the row's column `bias`). */
const Value *lower_stored(const Lower *lw);
/* Its element at flat place `place`, given the node's own there. */
LoopValue lower_stored_element(Lower *lw, const Node *n, Affine place, LoopValue x);
/* the buffer of what the kernel before makes, in either of the two. */
int lower_scratch(Lower *lw);
/* From here on n's element at this index, of the kernel at hand, is x: what reads it is computed from that. */
void lower_give_element(Lower *lw, const Node *n, const Index *at, LoopValue x);

/* The index into shape t of flat element number `flat`. */
Index index_at(Lower *lw, Type t, Affine flat);

/* ---- team.c */
/* Loops that the members of a team share, or the lanes of a vector: what is blocked for either is written once. */
/* Before a kernel's loops: gives it the target's team, if the target has one and members may store what the kernel stores.
 * Without it the kernel has one member. */
bool team_begin(Lower *lw);
/* The same, of as many members as so many elements side by side keep busy; at least of the target's that share a row. */
bool team_begin_for(Lower *lw, int64_t elements);
/* Then gives each outer member a team of its own, of so many members (a power of two). */
void team_divide(Lower *lw, int inner);

/* `extent` iterations, or those of them below a bound, side by side: of a vector loop, or member m of T has m, T + m, 2T + m
 * ..., where these are vectors if a vector's length divides all. What is opened owns accumulators: those of lb_accumulator
 * between open and enter. */
typedef struct {
	LoopBuilder *lb;
	int64_t extent;
	const Affine *below; /* NULL: all of them */
	int vector;          /* iterations of a member side by side, in a straight line; 1: any */
	bool unrolled;       /* of teams: to be set between open and enter */
	Affine own; /* of teams: a member's iteration by number, which arrays of its own are indexed by */
	LoopValue variable; /* of the vector's or the team's loop */
	int inner;          /* loops of a member within it */
} Spread;
Spread spread_open(Lower *lw, int64_t extent, const Affine *below);
/* Iterations that a member of a team has, at most. */
int64_t spread_own(const Lower *lw, int64_t extent);
Affine spread_enter(Spread *s); /* the iteration */
void spread_close(Spread *s);

#endif
