/* Private to schedule: writes the instructions of the communication stream, which exchange data
 * between ranks. */
#ifndef GRADC_CODEGEN_SCHEDULE_TRAVEL_H
#define GRADC_CODEGEN_SCHEDULE_TRAVEL_H

#include "codegen/schedule/schedule.h"

typedef struct {
	Program *p;
	const Module *m;
	Instructions *list; /* where the instructions are added; lies in the program's arena */
} TravelWriter;
void travel_write(const TravelWriter *t, const Travel *travel);

#endif
