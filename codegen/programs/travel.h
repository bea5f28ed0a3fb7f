/* Private to programs: writes the instructions of the communication stream, which exchange data
 * between ranks. */
#ifndef GRADC_CODEGEN_PROGRAMS_TRAVEL_H
#define GRADC_CODEGEN_PROGRAMS_TRAVEL_H

#include "ir/programs/programs.h"

typedef struct {
	Program *p;
	const int *sum_kernels; /* by dtype: number of the kernel that sums in the order of ranks */
	Instructions *list;     /* where the instructions are added; lies in the program's arena */
} TravelWriter;
void travel_write(const TravelWriter *t, const Travel *travel);

#endif
