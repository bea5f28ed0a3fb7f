/* Private to schedule: writes the instructions of the communication stream, which exchange data
 * between ranks. */
#ifndef GRADC_CODEGEN_SCHEDULE_TRAVEL_H
#define GRADC_CODEGEN_SCHEDULE_TRAVEL_H

#include "codegen/schedule/schedule.h"

typedef struct {
	FormatWriter *w;
	const Module *m;
	Arena *arena;
	int64_t rooms_at; /* offset in SPACE_GATHERED after everything that is gathered there */
	Instructions *list;
} TravelWriter;
void travel_write(const TravelWriter *t, const Travel *travel);

#endif
