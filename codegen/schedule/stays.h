/* Units in SPACE_GATHERED: how long each stays there, and where. */
#ifndef GRADC_CODEGEN_STAYS_H
#define GRADC_CODEGEN_STAYS_H

#include "ir/ir.h"

/* Of a piece: a unit, its gradients, or a frozen matrix. It stays from where it begins to be gathered, or made, until nothing
 * needs it there. Times are the numbers of computed instructions, from 0. */
typedef struct {
	const State *piece;
	int64_t bytes;
	bool gradient;
	bool backward;   /* of the backward pass: weights are gathered once for each pass */
	int first, last; /* that touch it */
	int begin, end;  /* out: it has its place from before the one until behind the other */
	int64_t offset;  /* out */
} Stay;

typedef VEC(Stay) Stays;

/* Sets begin and end; the stays are in the order of `first`, n_instructions is how many the program computes. A weight is
 * gathered while the one before is read, a gradient travels while the next one is made, and no more than two of a kind are
 * there at a time: a third one begins when the first one has ended. Where the program itself touches three at a time, it
 * has them; and a stay that contains another one's, as that of a tied embedding, is not counted. */
void stays_time(Stays *stays, int n_instructions);

/* Sets the offsets, and returns the bytes that they take together: as many places as there are stays at a time, each as large
 * as the largest that has it. So what is bounded by two units of each kind is that, whatever their sizes. */
int64_t stays_place(Stays *stays, Arena *arena);

#endif
