/* The words for the enums of the tables, in the order of the enums. */
#include "format/format.h"

const char *const role_names[] = {"forward", "eval", "accumulate", "update", NULL};
const char *const mode_names[] = {"ddp", "zero1", "zero2", "zero3", NULL};
const char *const space_names[] = {"state", "workspace", "io", NULL};
const char *const instruction_names[] = {
	"run", "copy", "fill_zero", "record", "wait", "loop", "end", NULL,
};
const char *const when_names[] = {"always", "first", "later", "last", NULL};
const char *const phase_names[] = {"none", "forward", "backward", "update", NULL};
const char *const port_kind_names[] = {"input",    "labels", "weight", "output",
                                       "gradient", "norm",   NULL};
const char *const state_kind_names[] = {
	"parameter",  "statistic", "moment", "gradient", "loss_sum",
	"loss_count", "correct",   "unit",   "constant", NULL,
};
const char *const lifetime_names[] = {"saved", "step", "derived", "constant", NULL};
const char *const init_names[] = {"zeros", "ones", "data", "normal", "uniform", NULL};
