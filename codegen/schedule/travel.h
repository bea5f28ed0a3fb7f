/* What ranks exchange while a program computes, and the instructions of the communication stream that do it. */
#ifndef GRADC_CODEGEN_TRAVEL_H
#define GRADC_CODEGEN_TRAVEL_H

#include "codegen/schedule/schedule.h"

typedef enum {
	TRAVEL_SUM,    /* everybody's whole, added up, to everybody */
	TRAVEL_REDUCE, /* everybody's whole, added up, to each its part */
	TRAVEL_GATHER, /* everybody's part, to everybody: the whole */
	TRAVEL_FILL, /* likewise, in any order: numbers whose sum is exact, as of zeros and one, or need not be */
} TravelKind;
typedef struct {
	TravelKind kind;
	int behind; /* the computed instruction that it starts behind; -1: before the first */
	RunWhen when;
	bool adds; /* REDUCE: the part is a sum over micro-batches, the first of which stores */
	/* In the device's memory, one type and as many elements. A part has the block that parts are multiples of; it may lie where
	 * it is in the whole. */
	Slot whole, part;
} Travel;
typedef struct Travels Travels;
struct Travels {
	Travel *at;
	int n, cap;
};

typedef struct {
	FormatWriter *w;
	const Module *m;
	Arena *arena;
	int64_t rooms_at; /* bytes in SPACE_GATHERED: behind all that is gathered there */
	Instructions *list;
} TravelWriter;
void travel_write(const TravelWriter *t, const Travel *travel);

#endif
