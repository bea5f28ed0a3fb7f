/* The executor runs compiled programs, such as a training step: it walks a program's list of instructions and queues each one
 * (a kernel, copy or collective) on a stream of the device. Memory is divided into spaces, such as the states or the workspace;
 * the executor allocates a region for each space. Consecutive steps take turns at IN_FLIGHT copies of some regions: the "turn"
 * says which copy is used. No function waits unless its comment says so. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_EXEC_EXEC_H
#define GRADC_RUNTIME_EXEC_EXEC_H

#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/gradc.h"

typedef struct HostLaunch HostLaunch; /* host_launch.c */
typedef struct Observer Observer;     /* observe.c */
typedef struct Trace Trace;           /* trace.c */
typedef struct Finder Finder;         /* find_nan.c */

/* ---- executor.c: walks a program's instructions over the regions of memory */
/* Timers of a step: one for each change of phase. A step with more changes has no phase times. */
enum { MAX_TIMERS = 1024 };
typedef struct {
	int n;
	bool full;                /* there were more changes of phase than timers */
	int8_t phase[MAX_TIMERS]; /* the phase that begins at each timer; -1 between programs */
} StepTimers;
typedef struct {
	int64_t index, n; /* micro-batch `index` of n */
	bool alone;       /* only this rank runs the program: nothing is summed over ranks */
} MicroBatch;

/* ---- raw_inputs.c: inputs that the device converts */
/* An input that lies in the image as the file's bytes. While the device copies it to the io region, it looks the bytes up. */
typedef struct {
	int64_t offset, bytes; /* of the input in the io region */
	LookUp look_up;        /* without the addresses `to` and `from` */
} RawInput;
typedef VEC(RawInput) RawInputs;

/* ---- recorded.c: a program's run that is recorded once and launched again */
/* Recordings of a program: one for each (is the micro-batch a step's first, is it the last, turn of micro-batches, turn of
 * steps). */
enum { RUNS_PER_PROGRAM = 2 * 2 * IN_FLIGHT * IN_FLIGHT };
typedef struct {
	/* the run was executed once without recording, so everything that it needs is loaded */
	bool seen;
	Recorded *recorded; /* NULL before the run is recorded */
	int n_timers;
	int8_t *phases;                /* the phase that begins at each timer */
	bool full;                     /* there were more changes of phase than timers */
	CommCount counts[N_GROUPS];    /* collectives that the run starts, per group */
	int64_t copied_in, copied_out; /* bytes of offloaded data that the run copies */
} RecordedRun;
typedef struct {
	Arena *arena;
	const Format *format;
	int target; /* the target whose programs run on the device */
	const DeviceOps *ops;
	Device *device;
	Code *code;
	/* the target whose programs run on the host's processors; `target` if there are no such programs */
	int host_target;
	Device *host_device;
	Code *host_code;
	bool host_reads_io; /* a program on the host's processors reads a micro-batch's inputs */
	Span host_library;
	VEC(HostLaunch *) host_launches;
	const Comm *comm; /* NULL with one rank */
	RunFacts facts;
	int64_t *shard_at;                 /* facts.shard_at */
	Span regions[N_SPACES][IN_FLIGHT]; /* indexed by turn; spaces without turns use [0] */
	Span library;                      /* scratch memory of libraries */
	const RawInputs *raw;    /* inputs that lie in the present image as bytes; NULL: none */
	VEC(Span) tables;        /* in the device's memory, for raw inputs */
	uint8_t turns[N_TURNS];  /* the turn on which programs run now */
	uint32_t most_arguments; /* largest number of arguments of an instruction */
	/* indexed by program: true if the program has a BRANCH or LEAVE, for which the host reads a flag */
	bool *asks;
	void **buffers; /* array for one instruction's arguments */
	int64_t *before;
	StepTimers timers[IN_FLIGHT]; /* indexed by the step's turn */
	bool timed;                   /* runs belong to a step, so phases are timed */
	bool poison;
	/* bytes of offloaded data that queued copies move to the device, and back */
	int64_t copied_in, copied_out;
	/* folder of the file that replaces SPACE_OFFLOAD; NULL: plain memory */
	const char *offload_folder;
	int64_t host_waits; /* how often the host has waited for the device */
	/* largest number of instructions that a program runs; 0: instructions are never timed */
	int most_observed;
	Observer *observer;    /* NULL: instructions are not timed */
	Trace *trace;          /* receives spans of collectives; may be NULL */
	Finder *finder;        /* looks for NaN and infinities; NULL: off */
	Span *spans;           /* for the finder: array for one instruction's arguments */
	RecordedRun *recorded; /* RUNS_PER_PROGRAM for each program */
	bool records_ranks;    /* runs with collectives are recorded; the same on all ranks */
} Executor;
typedef struct {
	const DeviceOps *ops;
	DeviceOptions device;
	const CodeImage *variant;
	const CodeImage *host; /* code for the host's processors; may be NULL */
	const Comm *comm;      /* NULL with one rank */
	bool ordered;          /* sums over ranks are made in the order of the ranks */
	int mode;              /* how ranks share states */
	int shard_ranks;       /* ranks of a group that holds all parts; 0: all ranks */
	bool observed;         /* instructions may be timed */
	const char *offload_folder;
} ExecutorOptions;

/* ---- executor.c */
Status executor_open(Arena *arena, const Format *f, const ExecutorOptions *options, Executor *out);
/* Connects the devices of all ranks, if collectives run on devices. All ranks call it with the same `records`: whether runs
 * with collectives are recorded. */
Status executor_attach(Executor *x, bool records);
void executor_stop(Executor *x); /* waits; afterwards nothing touches the regions */
void executor_close(Executor *x);
/* Address in the device's memory, for the present turns. */
Span executor_slot(const Executor *x, uint32_t slot);
Span executor_state(const Executor *x, int state);    /* empty if ranks hold parts of the state */
Span executor_region(const Executor *x, Space space); /* the whole region */
/* Addresses in the host's memory: of a slot of io or step; of the whole io region at a turn; of a program's scalars, NULL if it
 * has no scalars. */
char *executor_host(const Executor *x, uint32_t slot);
char *executor_image(const Executor *x, int turn);
int64_t executor_image_bytes(const Executor *x);
bool executor_is_apart(const Executor *x); /* the host cannot read the device's memory */
Scalar *executor_scalars(const Executor *x, const ProgramRecord *p);
/* executor_write and executor_read wait for the copy and for everything queued before the copy. */
Status executor_write(Executor *x, Span to, const void *from);
Status executor_read(Executor *x, void *to, Span from);

/* Says that the image at this turn is filled: the programs that are queued next read it. raw: its inputs that are bytes; NULL:
 * none. A step that is recorded must have the same raw inputs each time. */
void executor_take_image(Executor *x, int turn, const RawInputs *raw);

/* ---- regions.c: the regions have room for the programs that training runs */
bool executor_has_room(const Executor *x, const ProgramRecord *p); /* for this program? */
/* Lets regions grow for a forward program. Nothing may be queued, and no image be in use. After a fault no region is smaller than before. */
Status executor_make_room(Executor *x, const ProgramRecord *p);
/* The memory that the run has for the space, all copies together. */
int64_t executor_region_total(const Executor *x, Space space);

/* ---- raw_inputs.c */
/* Can the device convert an input at this offset of the io region while it copies the input? */
bool raw_input_fits(const Executor *x, int64_t offset, const LookUp *look_up);
/* Copies the tables of a look-up to the device, where they stay until executor_close, and changes their address. */
Status raw_input_place_tables(Executor *x, LookUp *look_up);
int64_t raw_input_table_bytes(const Executor *x);

/* ---- recorded.c */
/* Queues a run. The caller has filled its scalars and inputs, and leaves them alone until executor_wait_image for this turn
 * returns. */
Status executor_run(Executor *x, const ProgramRecord *p, const MicroBatch *micro);

/* ---- executor.c */
/* Runs a program without recording it. */
Status executor_walk(Executor *x, const ProgramRecord *p, const MicroBatch *micro);
/* Waiting by the host: executor_drain waits for everything; executor_wait_image until the host may fill that image again, from
 * any thread; executor_wait_report for a step's results. */
Status executor_drain(Executor *x);
bool executor_image_is_free(const Executor *x, int turn);
Status executor_wait_image(const Executor *x, int turn);
Status executor_wait_report(Executor *x, int turn);
bool executor_has_report(const Executor *x, int turn);
/* Seconds per phase of that turn's step, after its report. */
Status executor_step_times(const Executor *x, int turn, double seconds[N_PHASES]);

/* ---- offload.c: host memory for states, or a file that replaces it */
/* Does the file hold this space? Only if the device does not copy the space in stream order: a driver would copy a file's pages
 * when the copy is queued, not when the stream reaches it. */
bool offload_in_file(const Executor *x, Space space);
Status offload_alloc(const Executor *x, int64_t bytes, Span *out);
void offload_free(const Executor *x, Span span);

/* ---- trace.c: writes spans of time to a file */
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
	double begin, end;    /* values of seconds_now() */
	const char *origin;   /* ONNX names; may be NULL */
	const char *kernel;   /* kernel that ran; may be NULL */
	const char *count_of; /* what `count` counts; NULL: there is no count */
	int64_t count;
} TraceSpan;
Status trace_open(Arena *arena, const char *path, Trace **out);
void trace_span(Trace *t, const TraceSpan *s); /* may be called by any thread; t may be NULL */
/* Completes the file, or returns the first fault since trace_open. t may be NULL. */
Status trace_close(Trace *t);
void trace_abort(Trace *t); /* removes the file; t may be NULL */

/* ---- observe.c: time of each instruction, for trace and profile */
struct Observer {
	const Format *format;
	Trace *trace;        /* may be NULL */
	const char **titles; /* titles of instructions, for the trace */
	GradcProfile profile;
	bool sampling;     /* this step is added to the profile */
	VEC(uint32_t) ran; /* instructions of the program's run, in order */
	double base;       /* time when the program's run began */
	int phase;
	double phase_begin, last_end;
	/* collectives run on streams and are timed like other instructions; false: collective.c traces them */
	bool sees_collectives;
};

/* ---- ranges.c */
bool range_is_finite(const GradcRange *r);

/* ---- find_nan.c: finds the origin of a failed step's first number that is not finite */
/* From finder_open to finder_close the executor looks at every instruction. Findings belong to the arena. */
Status finder_open(Arena *arena, Executor *x);
void finder_close(Executor *x); /* may follow a failed finder_open */
/* A finding says where a NaN or infinity came from (find_nan.c). Both fields are indices of findings; NO_FINDING if this rank
 * has no such finding. */
typedef struct {
	int first; /* origin of the loss's or norm's NaN or infinity */
	int nan;   /* where the infinity of `first` turned into NaN */
} Cause;
Cause finder_result(const Executor *x, const ProgramRecord *update); /* after the step */
/* An argument of an instruction. */
typedef struct {
	const Slot *slot;
	Span span;
	uint32_t access; /* 0: the argument is not looked at */
	GradcRange before;
	/* Of a result: its range of numbers after the instruction. NaN and infinities with unchanged bytes do not count. */
	GradcRange after;
	int from[GRADC_N_UNFIT]; /* of an operand: the finding that each kind came from */
	/* The memory's bytes before the result was written, if these bytes held NaN or infinities; otherwise NULL. */
	char *bytes;
} Watched;
typedef enum {
	/* an instruction made the number, and the instruction's operands do not explain it */
	CAUSE_MADE,
	CAUSE_HELD,     /* an operand held the number before the step */
	CAUSE_RECEIVED, /* the number came from another rank */
} FindingCause;
typedef struct {
	FindingCause cause;
	const ProgramRecord *program;
	/* the instruction that made the number, or the first one that read it */
	const Instruction *instruction;
	MicroBatch micro;
	bool kinds[GRADC_N_UNFIT]; /* kinds of number (NaN, inf, -inf) that were made */
	/* arguments of the instruction; for CAUSE_HELD only the operand */
	Watched *args;
	int n_args;
} Finding;
const Finding *finder_get(const Finder *finder, int finding); /* NULL for NO_FINDING */

/* ---- state_parts.c: the part of a state that a rank holds */
/* The bytes of a state that this rank holds in the device's memory; `first` is their offset in the state. at.at is NULL if the
 * rank holds no bytes. */
typedef struct {
	Span at;
	int64_t first;
} StatePart;
StatePart state_part(const Executor *x, int state);
bool state_has_parts(const Executor *x, int state); /* ranks hold only parts of the state */
/* The bytes of a divided state that a rank holds. */
typedef struct {
	int64_t first, bytes;
} StateRange;
StateRange state_range(const Format *f, const RunFacts *facts, int state, int rank);
/* Writes bytes [offset, offset + bytes) of the state, as far as this rank holds them. */
Status state_write(Executor *x, int state, int64_t offset, const void *from, int64_t bytes);

#endif
