/* Loops that the members of a team share, or the lanes of a vector: what is blocked for either is written once. */
#ifndef GRADC_CODEGEN_TEAM_H
#define GRADC_CODEGEN_TEAM_H

#include "codegen/target.h"
#include "ir/loop.h"

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
