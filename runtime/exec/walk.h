/* What walking a program is made of. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_EXEC_WALK_H
#define GRADC_RUNTIME_EXEC_WALK_H

#include "runtime/exec/exec.h"

/* ---- executor.c: walks a program's instructions over the regions of memory */
/* The executor's own events, numbered after the events that the compiled programs use: the timers; an event at a program's
 * begin; then, for each of at most MAX_OBSERVED observed instructions, an event before it and an event after it. */
enum {
	FIRST_TIMER = N_DEVICE_EVENTS,
	OBSERVER_BASE = FIRST_TIMER + IN_FLIGHT * MAX_TIMERS,
	FIRST_OBSERVED,
	MAX_OBSERVED = 1 << 22,
};
static inline int
timer_event(int turn, int i)
{
	return FIRST_TIMER + turn * MAX_TIMERS + i;
}

/* ---- observe.c: times the instructions of a program's run. observe_run waits for the run. */
Status observe_begin(Executor *x);
Status observe_begins(Executor *x, int stream);
Status observe_ends(Executor *x, uint32_t at, int stream);
Status observe_run(Executor *x, const ProgramRecord *p);

/* ---- find_nan.c: looks at an instruction's operands before the instruction runs, and at its results afterwards */
typedef struct {
	const ProgramRecord *program;
	const MicroBatch *micro;
	const Instruction *instruction;
	const Span *spans; /* memory of the instruction's arguments */
} FinderCall;
Status finder_before(Executor *x, const FinderCall *call);
Status finder_after(Executor *x, const FinderCall *call);

/* ---- host_launch.c: runs programs of the host's target on the host's processors */
Status host_open(Executor *x, const CodeImage *image, const DeviceOptions *options);
void host_close(Executor *x);
/* the host runs the program in this run */
bool host_runs(const Executor *x, const ProgramRecord *p);
/* queues the kernel in the stream: it runs after the work queued before */
Status host_launch(Executor *x, int stream, const Launch *launch);

/* ---- collective.c: an instruction of the communication stream */
Status collective_start(Executor *x, const Instruction *n, void *to, const void *from);
void collective_trace(Trace *trace, const CollectiveRecord *record, double begin, double end);

/* ---- regions.c */
Status regions_alloc(Executor *x); /* after a fault, the caller still calls regions_free */
void regions_free(Executor *x);
/* Scratch memory of the code's libraries. library_free comes after the code's unload. */
Status library_alloc(const DeviceOps *ops, Device *device, Code *code, Span *out);
void library_free(const DeviceOps *ops, Device *device, Span *library);

/* ---- raw_inputs.c */
/* The raw input that a copy of these bytes of the image reads; NULL if the image holds the input as the program takes it. */
const RawInput *raw_input_find(const Executor *x, const Slot *from, int64_t bytes);
Status raw_input_copy(Executor *x, int stream, const RawInput *raw, Span to, const void *from);
void raw_inputs_free(Executor *x);

/* ---- recorded.c */
void recorded_free(Executor *x);

/* ---- ranges.c */
GradcRange range_of_nothing(void);
/* Adds n elements at `at` to the range. before: earlier bytes of the same elements, or NULL; a NaN or infinity whose bytes have
 * not changed since does not count. */
void range_add(GradcRange *r, DType t, const void *at, int64_t n, const void *before);
/* Adds only those of the n elements whose bytes have changed. */
void range_add_changed(GradcRange *r, DType t, const void *at, int64_t n, const void *before);

/* ---- find_nan.c: finds the origin of a failed step's first number that is not finite */
enum { NO_FINDING = -1 };
/* A range of memory that holds NaN or infinities now. */
typedef struct {
	Span span;
	/* the finding that each kind (NaN, inf, -inf) came from; NO_FINDING if the memory holds no number of that kind */
	int from[GRADC_N_UNFIT];
} Mark;

/* ---- poison.c: overwrites memory that holds no live value */
Status poison_before(Executor *x, const ProgramRecord *p);
Status poison_after(Executor *x, const ProgramRecord *p, uint32_t instruction);

#endif
