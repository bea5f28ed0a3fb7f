/* Private to schedule: how long each gathered unit (the weights or gradients of a layer block)
 * stays in the memory SPACE_GATHERED, and at which offset. */
#ifndef GRADC_CODEGEN_SCHEDULE_STAYS_H
#define GRADC_CODEGEN_SCHEDULE_STAYS_H

#include "ir/ir.h"

/* The stay of a piece: a unit, its gradients, or a frozen matrix. It lasts from the start of the
 * gather, or from the first gradient, until no instruction needs the gathered piece any more.
 * Times are numbers of instructions of the compute stream, from 0. */
typedef struct {
	const State *piece;
	int64_t bytes;
	bool gradient;
	bool backward;   /* in the backward pass? weights are gathered once for each pass */
	int first, last; /* first and last instruction that touches the piece */
	int begin, end;  /* out: the place is occupied from before `begin` until after `end` */
	int64_t offset;  /* out: bytes in SPACE_GATHERED */
} Stay;

typedef VEC(Stay) Stays;

/* Sets begin and end. The stays are in the order of `first`; n_instructions is the number of
 * computed instructions. A weight is gathered while the previous weight is read. A gradient is
 * reduced while the next gradient is computed. No more than two stays of a kind overlap: the
 * third begins when the first has ended. There are two exceptions: a program that itself touches
 * three pieces at a time gets all three, and a stay that contains another one (as a tied
 * embedding's does) is not counted. */
void stays_time(Stays *stays, int n_instructions);

/* Sets the offsets; returns the bytes of all places. There are as many places as stays that
 * overlap at one time. A place is as large as the largest stay that uses it, so memory is
 * bounded by two units of each kind, whatever their sizes. */
int64_t stays_place(Stays *stays, Arena *arena);

#endif
