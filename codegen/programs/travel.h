/* Private to programs: writes the instructions of the communication stream, which exchange data
 * between ranks. */
#ifndef GRADC_CODEGEN_PROGRAMS_TRAVEL_H
#define GRADC_CODEGEN_PROGRAMS_TRAVEL_H

#include "ir/programs/programs.h"

typedef struct {
	Program *p;
	const Module *m;
	Instructions *list; /* where the instructions are added; lies in the program's arena */
} TravelWriter;
void travel_write(const TravelWriter *t, const Travel *travel);

#endif
