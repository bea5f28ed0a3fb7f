/* Private to programs: how long each gathered unit (the weights or gradients of a layer block)
 * stays in the memory SPACE_GATHERED, and at which offset. */
#ifndef GRADC_CODEGEN_PROGRAMS_STAYS_H
#define GRADC_CODEGEN_PROGRAMS_STAYS_H

#include "ir/ir.h"

/* The stay of a piece: a unit, its gradients, or a frozen matrix. It lasts from the start of the
 * gather, or from the first gradient, until no instruction needs the gathered piece any more.
 * Times are numbers of instructions of the compute stream, from 0. */
typedef struct {
	const State *piece;
	int64_t bytes;
	bool gradient;
	bool backward;   /* is the stay in the backward pass? weights have one stay for each pass */
	int first, last; /* first and last instruction that touches the piece */
	int begin, end;  /* out: the place is occupied from before `begin` until after `end` */
	int64_t offset;  /* out: bytes in SPACE_GATHERED */
} Stay;

typedef VEC(Stay) Stays;

/* Sets begin and end of all stays. Needs the stays in the order of `first`; n_instructions is the
 * number of instructions on the compute stream. A weight is gathered while the previous weight is
 * read. A gradient is reduced while the next gradient is computed. No more than two stays of a
 * kind overlap: the third begins when the first has ended. There are two exceptions. If the
 * program needs three pieces at the same time, all three overlap. A stay that contains another
 * stay, such as the stay of a tied embedding, is not counted. */
void stays_time(Stays *stays, int n_instructions);

/* Sets the offsets of all stays and returns the bytes that they need together. Stays that do not
 * overlap share a place, which is as large as its largest stay. At most two stays of a kind
 * overlap, so the bytes are about those of two weight units and two gradient units. */
int64_t stays_place(Stays *stays, Arena *arena);

#endif
