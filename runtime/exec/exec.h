/* Walks programs over regions of memory, on the streams of a device. Nothing here waits but what says so. Sections are named after the
 * .c file. */
#ifndef GRADC_RUNTIME_EXEC_EXEC_H
#define GRADC_RUNTIME_EXEC_EXEC_H

#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/gradc.h"

typedef struct HostLaunch HostLaunch; /* host_launch.c */
typedef struct Observer Observer;     /* observe.c */
typedef struct Trace Trace;           /* trace.c */
typedef struct Finder Finder;         /* find_nan.c */

/* ---- executor.c: walks a program's instructions over the regions. */
enum { MAX_TIMERS = 1024 }; /* of a step; the phases of more micro-batches are not timed */
/* Events of the executor's own, behind those of the tables: timers; the observer's, of a program's begin, and before and
 * after each instruction that runs, MAX_OBSERVED at most. */
enum {
	FIRST_TIMER = N_DEVICE_EVENTS,
	OBSERVER_BASE = FIRST_TIMER + 2 * MAX_TIMERS,
	FIRST_OBSERVED,
	MAX_OBSERVED = 1 << 22,
};
typedef struct {
	int n;
	bool full;                /* there were more changes than timers */
	int8_t phase[MAX_TIMERS]; /* that begins there; -1: none does */
} StepTimers;
static inline int
timer_event(int turn, int i)
{
	return FIRST_TIMER + turn * MAX_TIMERS + i;
}
typedef struct {
	int64_t index, n; /* micro-batch j of n */
	bool alone;       /* of this rank: nothing is summed over ranks */
} MicroBatch;
/* ---- recorded.c: runs that were recorded once, by what tells them apart */
typedef struct {
	const ProgramRecord *program;
	int64_t index; /* micro-batch */
	bool last;
	uint8_t turns[N_TURNS];
	bool seen;                 /* it ran once, so that everything it needs is loaded */
	Recorded *recorded;        /* NULL: not yet */
	int first_timer, n_timers; /* of the step's; their phases */
	int8_t *phases;
	bool full;                     /* there were more changes of the phase than timers */
	CommCount counts[N_GROUPS];    /* of its collectives */
	int64_t copied_in, copied_out; /* as the executor's, of this run */
} RecordedRun;
typedef struct {
	Arena *arena;
	const Format *format;
	int target; /* whose programs it runs */
	const DeviceOps *ops;
	Device *device;
	Code *code;
	int host_target; /* whose programs the host's processors run; `target`: none other */
	Device *host_device;
	Code *host_code;
	bool host_reads_io; /* some of them read a micro-batch's inputs */
	Span host_library;
	VEC(HostLaunch *) host_launches;
	const Comm *comm; /* NULL: of one rank */
	RunFacts facts;
	int64_t *shard_at;         /* of facts */
	Span regions[N_SPACES][2]; /* by turn; without turns the first */
	Span library;              /* what libraries work in */
	uint8_t turns[N_TURNS];    /* which one programs run on */
	uint32_t most_arguments;   /* of an instruction */
	bool *asks;                /* by program: it has instructions that ask for a number */
	void **buffers;            /* room for them */
	int64_t *before;
	StepTimers timers[2]; /* by the step's turn */
	bool timed;           /* runs belong to a step */
	bool poison;
	int64_t copied_in,
		copied_out; /* bytes: of what is offloaded, to the device and from there, as queued so far */
	const char *offload_folder; /* of files in place of SPACE_OFFLOAD; NULL: it is memory */
	int64_t host_waits;         /* how often the host has waited for the device */
	int most_observed;          /* instructions that a program runs; 0: they are never timed */
	Observer *observer;         /* NULL: they are not timed */
	Trace *trace;               /* of collectives; NULL: none */
	Finder *finder;             /* of numbers that are not finite; NULL: nobody looks */
	Span *spans;                /* for it: room for an instruction's arguments */
	VEC(RecordedRun) recorded;
	bool records_ranks; /* runs with collectives are recorded: on all ranks, or on none */
} Executor;
typedef struct {
	const DeviceOps *ops;
	DeviceOptions device;
	const CodeImage *variant;
	const CodeImage *host; /* for programs that the host's processors run; NULL: none */
	const Comm *comm;      /* NULL, where there is one rank */
	bool ordered;          /* sums over ranks are made in their order */
	int mode;              /* how ranks share states */
	int shard_ranks;       /* that have all parts of them together; 0: all */
	bool observed;         /* instructions may be timed */
	const char *offload_folder;
} ExecutorOptions;
Status executor_open(Arena *arena, const Format *f, const ExecutorOptions *options, Executor *out);
/* Joins the other ranks' devices, where collectives run there. All ranks call it, and the same `records`: runs are recorded. */
Status executor_attach(Executor *x, bool records);
void executor_stop(Executor *x); /* waits; then nothing touches the regions */
void executor_close(Executor *x);
/* In the device's memory, at the present turns. */
Span executor_slot(const Executor *x, uint32_t slot);
Span executor_state(const Executor *x, int state);    /* of which ranks hold parts: none */
Span executor_region(const Executor *x, Space space); /* whole */
/* Where the host fills or reads a slot of io or step; of a whole io region, at a turn; of a program's scalars, NULL without. */
char *executor_host(const Executor *x, uint32_t slot);
char *executor_image(const Executor *x, int turn);
int64_t executor_image_bytes(const Executor *x);
bool executor_is_apart(const Executor *x); /* the device's memory is not the host's */
Scalar *executor_scalars(const Executor *x, const ProgramRecord *p);
/* Both are done when they return, and so is all that was queued before. */
Status executor_write(Executor *x, Span to, const void *from);
Status executor_read(Executor *x, void *to, Span from);
/* Queues a run. Its scalars and inputs are in place, and stay until executor_wait_image of this turn. */
Status executor_run(Executor *x, const ProgramRecord *p, const MicroBatch *micro);
Status executor_walk(Executor *x, const ProgramRecord *p,
                     const MicroBatch *micro); /* without recording */
/* The host waits: for everything; until it may fill that image again, from any thread; for a step's results. */
Status executor_drain(Executor *x);
bool executor_image_is_free(const Executor *x, int turn);
Status executor_wait_image(const Executor *x, int turn);
Status executor_wait_report(Executor *x, int turn);
bool executor_has_report(const Executor *x, int turn);
/* Of the step of that turn, after its report. */
Status executor_step_times(const Executor *x, int turn, double seconds[N_PHASES]);

/* ---- observe.c, of a program's run: all of it is over when observe_run returns */
Status observe_begin(Executor *x);
Status observe_begins(Executor *x, int stream);
Status observe_ends(Executor *x, uint32_t at, int stream);
Status observe_run(Executor *x, const ProgramRecord *p);

/* ---- find_nan.c: looks at what each instruction reads, and, when it is over, at what it made */
typedef struct {
	const ProgramRecord *program;
	const MicroBatch *micro;
	const Instruction *instruction;
	const Span *spans; /* of its arguments */
} FinderCall;
Status finder_before(Executor *x, const FinderCall *call);
Status finder_after(Executor *x, const FinderCall *call);

/* ---- host_launch.c: programs of another target, which the host's processors run */
Status host_open(Executor *x, const CodeImage *image, const DeviceOptions *options);
void host_close(Executor *x);
bool host_runs(const Executor *x, const ProgramRecord *p);         /* in this run */
Status host_launch(Executor *x, int stream, const Launch *launch); /* has its turn in the stream */

/* ---- collective.c: an instruction of the communication stream */
Status collective_start(Executor *x, const Instruction *n, void *to, const void *from);
void collective_trace(Trace *trace, const CollectiveRecord *record, double begin, double end);

/* ---- regions.c */
Status regions_alloc(Executor *x); /* what it got is freed by regions_free, also after a fault */
void regions_free(Executor *x);
/* Memory for the code's libraries, freed by library_free behind unload. */
Status library_alloc(const DeviceOps *ops, Device *device, Code *code, Span *out);
void library_free(const DeviceOps *ops, Device *device, Span *library);

/* ---- offload.c: memory of the host, or what stands in for it */
/* What a device copies in its turn is memory: a driver would copy of a file when it is asked. */
bool offload_in_file(const Executor *x, Space space);
Status offload_alloc(const Executor *x, int64_t bytes, Span *out);
void offload_free(const Executor *x, Span span);

/* ---- recorded.c */
void recorded_free(Executor *x);

/* ---- trace.c: spans of time, in a file. */
typedef enum {
	TRACK_TRAINING,
	TRACK_READING,
	TRACK_SAVING,
	TRACK_COMMUNICATION,
	TRACK_COPY_IN,
	TRACK_COPY_OUT,
	N_TRACKS
} TraceTrack;
typedef struct {
	TraceTrack track;
	const char *category, *name;
	double begin, end;    /* of seconds_now() */
	const char *origin;   /* ONNX names; NULL: none */
	const char *kernel;   /* that ran; NULL: none */
	const char *count_of; /* what `count` counts; NULL: nothing */
	int64_t count;
} TraceSpan;
Status trace_open(Arena *arena, const char *path, Trace **out);
void trace_span(Trace *t, const TraceSpan *s); /* from any thread; NULL is allowed */
/* Completes the file, or says what went wrong since trace_open. NULL is allowed. */
Status trace_close(Trace *t);
void trace_abort(Trace *t); /* no file; NULL is allowed */

/* ---- observe.c: what each instruction took, for trace and profile. */
struct Observer {
	const Format *format;
	Trace *trace;        /* NULL: none */
	const char **titles; /* of the instructions, for the trace */
	GradcProfile profile;
	bool sampling;     /* this step adds to the profile */
	VEC(uint32_t) ran; /* instructions of the program's run, in order */
	double base;       /* when it began */
	int phase;
	double phase_begin, last_end;
	bool sees_collectives; /* they take their time on streams; else each has a span of its own (collective.c) */
};

/* ---- ranges.c */
GradcRange range_of_nothing(void);
bool range_is_finite(const GradcRange *r);
/* n more elements. Those that are not finite and have the bytes of `before` (NULL: none) are not counted. */
void range_add(GradcRange *r, DType t, const void *at, int64_t n, const void *before);

/* ---- find_nan.c: where a failed step's first number that is not finite comes from. */
/* From here on until finder_close runs are looked at. What it finds is the arena's. */
Status finder_open(Arena *arena, Executor *x);
void finder_close(Executor *x); /* also where opening it failed */
/* Findings, by number; -1: none of this rank's. */
typedef struct {
	int first; /* where the loss or the norm have their NaN or infinity from */
	int nan;   /* where the infinity of `first` became NaN */
} Cause;
Cause finder_result(const Executor *x, const ProgramRecord *update); /* after the step */
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

/* ---- poison.c: memory that holds no live value, made useless. */
Status poison_before(Executor *x, const ProgramRecord *p);
Status poison_after(Executor *x, const ProgramRecord *p, uint32_t instruction);

/* ---- state_parts.c */
/* What this rank has of a state, in the device's memory: bytes from `first` on; at.at is NULL where it has none. */
typedef struct {
	Span at;
	int64_t first;
} StatePart;
StatePart state_part(const Executor *x, int state);
bool state_has_parts(const Executor *x, int state); /* ranks hold parts of it */
/* Of a state that ranks hold parts of: the bytes that this rank has. */
typedef struct {
	int64_t first, bytes;
} StateRange;
StateRange state_range(const Format *f, const RunFacts *facts, int state, int rank);
/* Bytes [offset, offset + bytes) of the state: of them what this rank has. */
Status state_write(Executor *x, int state, int64_t offset, const void *from, int64_t bytes);

#endif
