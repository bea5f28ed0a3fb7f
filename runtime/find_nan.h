/* What find_nan.c finds, and find_nan_text.c tells. */
#ifndef GRADC_FIND_NAN_H
#define GRADC_FIND_NAN_H

#include "runtime/runtime_impl.h"

#include <string.h>

enum { NO_FINDING = -1 };

/* A piece of memory that holds NaN or infinities now. */
typedef struct {
	Span span;
	int from[GRADC_N_UNFIT]; /* findings that they come from; NO_FINDING: it holds none of that kind */
} Mark;

/* An argument of an instruction. */
typedef struct {
	const Slot *slot;
	Span span;
	uint32_t access; /* 0: it is not looked at */
	GradcRange before;
	GradcRange
		after; /* of a result; NaN and infinities that were there before are not counted */
	int from[GRADC_N_UNFIT]; /* of an operand: where its NaN and infinities come from */
	char *bytes; /* of memory that held some before a result was written there; NULL */
} Watched;

typedef enum {
	CAUSE_MADE,     /* by an instruction, out of operands that do not explain it */
	CAUSE_HELD,     /* by an operand before the step */
	CAUSE_RECEIVED, /* from another rank */
} FindingCause;
typedef struct {
	FindingCause cause;
	const ProgramRecord *program;
	const Instruction *instruction; /* that made it, or was the first to read it */
	MicroBatch micro;
	bool kinds[GRADC_N_UNFIT]; /* what was made */
	Watched *args;             /* of the instruction; of what was held, that operand */
	int n_args;
} Finding;

const Finding *finder_get(const Finder *finder, int finding); /* NULL: of NO_FINDING */

#endif
