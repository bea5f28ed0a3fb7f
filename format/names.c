/* The names of the tables' enum values, in the order of the enums. */
#include "format/format.h"

const char *const offload_names[] = {"optimizer", "params", "activations", NULL};
const RunFacts run_alone = {.ranks = 1};
