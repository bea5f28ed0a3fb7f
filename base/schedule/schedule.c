/* The names of the words of schedule.h, in the order of their enums. */
#include "base/schedule/schedule.h"

const SpaceRow space_table[] = {
	[SPACE_STATE] = {"state", .twin = SPACE_STATE},
	[SPACE_WORKSPACE] = {"workspace", .twin = SPACE_WORKSPACE},
	[SPACE_IO] = {"io", .turn = TURN_MICRO, .twin = SPACE_IO_HOST},
	[SPACE_STEP] = {"step", .turn = TURN_STEP, .twin = SPACE_STEP_HOST},
	[SPACE_IO_HOST] = {"io.host", .turn = TURN_MICRO, .only = ONLY_APART, .on_host = true,
                           .twin = SPACE_IO_HOST},
	[SPACE_STEP_HOST] = {"step.host", .turn = TURN_STEP, .only = ONLY_APART, .on_host = true,
                             .twin = SPACE_STEP_HOST},
	[SPACE_PINNED] = {"pinned", .only = ONLY_STAGED, .on_host = true, .by_slots = true,
                          .twin = SPACE_PINNED},
	[SPACE_GATHERED] = {"gathered", .only = ONLY_RANKS, .by_slots = true,
                            .twin = SPACE_GATHERED},
	[SPACE_SHARD] = {"shard", .only = ONLY_RANKS, .by_slots = true, .twin = SPACE_SHARD},
	[SPACE_OFFLOAD] = {"offload", .only = ONLY_RANKS, .on_host = true, .by_slots = true,
                           .twin = SPACE_OFFLOAD},
	[SPACE_OPTIMIZER] = {"optimizer", .only = ONLY_RANKS, .on_host = true, .by_slots = true,
                             .twin = SPACE_OPTIMIZER},
	[SPACE_HOST] = {"host", .on_host = true, .by_slots = true, .twin = SPACE_HOST},
};
const char *const instruction_names[] = {
	"run",  "copy",   "fill_zero", "collective", "record", "wait",
	"loop", "branch", "leave",     "end",        NULL,
};
const char *const stream_names[] = {"compute", "copy_in", "copy_out", "communication", NULL};
const EventRow event_table[] = {
	[EVENT_IO_FILLED] = {"io_filled", TURN_MICRO, STREAM_COPY_IN},
	[EVENT_IO_FREE] = {"io_free", TURN_MICRO, STREAM_COMPUTE},
	[EVENT_STEP_FILLED] = {"step_filled", TURN_STEP, STREAM_COPY_IN},
	[EVENT_STEP_FREE] = {"step_free", TURN_STEP, STREAM_COMPUTE},
	[EVENT_REPORT] = {"report", TURN_STEP, STREAM_COPY_OUT},
};
const char *const only_names[] = {"apart",    "ranks", "staged", "ordered", "fast",
                                  "replicas", "peers", "alone",  "direct",  NULL};
const char *const share_names[] = {"whole",       "part",       "rooms",        "first room",
                                   "second room", "later room", "behind rooms", NULL};
const char *const collective_names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                        "broadcast",  "send",       "recv",           NULL};
const char *const comm_reduction_names[] = {"sum", "max", NULL};
const char *const comm_group_names[] = {"world",  "data",     "shard", "replicate",
                                        "tensor", "pipeline", NULL};
const char *const port_kind_names[] = {"input",      "labels",   "weight",     "output",
                                       "gradient",   "loss_sum", "loss_count", "norm",
                                       "loss_scale", "made",     "failed",     NULL};
