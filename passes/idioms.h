/* Private to the pass idioms. */
#ifndef GRADC_PASSES_IDIOMS_H
#define GRADC_PASSES_IDIOMS_H

#include "ir/ir.h"

/* ---- relative_shift.c: if v is a relative shift, puts one node in place of v's nodes. */
bool name_relative_shift(Value *v);

#endif
