/* The words and records of a schedule: instructions, their arguments, and places in memory (slots). Programs of the IR
 * (ir/programs) and the tables of executables use the same words and the same records, so a record is written to the tables
 * as it is, except for its indices: in a program, indices count from the program's own lists.
 *
 *	run  dot (slot 0, slot 1, slot 2)      Instruction {RUN_KERNEL, what = the kernel, args = 0, n_args = 3}
 *	slot 2: workspace, bytes 0 to 511      Slot {SPACE_WORKSPACE, offset = 0, bytes = 512} */
#ifndef GRADC_BASE_SCHEDULE_SCHEDULE_H
#define GRADC_BASE_SCHEDULE_SCHEDULE_H

#include "base/program/program.h"

/* A text: its offset in the string pool of the tables, or its number in the names of a program; 0 is "". */
typedef uint32_t StrRef;

/* Some regions exist IN_FLIGHT times and are used in turns, so as many micro-batches or steps may be under way: the host
 * fills one copy while the device computes on another. Turns count from 0 to IN_FLIGHT - 1, then from 0 again. */
enum { IN_FLIGHT = 2 };
typedef enum {
	TURN_NONE,
	TURN_MICRO, /* changes with each micro-batch */
	TURN_STEP,  /* changes with each step */
	N_TURNS,
} Turn;
/* How many copies there are of a region, or of an event, with this kind of turns. */
static inline int
turn_copies(Turn turn)
{
	return turn == TURN_NONE ? 1 : IN_FLIGHT;
}
static inline uint8_t
turn_after(uint8_t turn)
{
	return (uint8_t)((turn + 1) % IN_FLIGHT);
}
/* Conditions on a run, one bit each. An instruction or a region has a set of these bits, and is used only in runs for
 * which all bits of the set hold. The runtime determines the bits once, at start. */
typedef enum {
	ONLY_ALWAYS = 0,
	ONLY_APART = 1,     /* the device's memory is not the host's */
	ONLY_RANKS = 2,     /* there are several ranks */
	ONLY_STAGED = 4,    /* several ranks; their communicator cannot read the device's memory */
	ONLY_ORDERED = 8,   /* several ranks; the schedule computes sums itself, in rank order */
	ONLY_FAST = 16,     /* several ranks; their communicator computes sums */
	ONLY_REPLICAS = 32, /* several groups of ranks; each group holds all parts of the states */
	ONLY_PEERS = 64,    /* other ranks hold parts of the states, too */
	ONLY_ALONE = 128,   /* one rank holds all parts of the states */
	ONLY_DIRECT =
		256, /* one rank, or several ranks whose communicator reads the device's memory */
	N_ONLY = 512,
} RunOnly;
extern const char *const only_names[]; /* names of the bits */

/* Regions of memory. The host fills and reads a twin of io and a twin of step in its own memory; instructions copy between region
 * and twin. If device and host share their memory, io and step are their own twins. */
typedef enum {
	SPACE_STATE,     /* states that outlive programs, at offsets fixed by name */
	SPACE_WORKSPACE, /* values of one run of a program, placed by liveness */
	SPACE_IO,        /* scalars, inputs and outputs of a micro-batch */
	SPACE_STEP,      /* scalars and results of an update */
	SPACE_IO_HOST,   /* host's twin of io */
	SPACE_STEP_HOST, /* host's twin of step */
	SPACE_PINNED, /* sent and received data, for communicators that cannot read the device's memory */
	SPACE_GATHERED, /* data received from other ranks */
	SPACE_SHARD,    /* this rank's parts of divided states, in the device's memory */
	SPACE_OFFLOAD, /* this rank's parts of offloaded states (StateRecord.offloaded), in the host's memory */
	SPACE_OPTIMIZER, /* offloaded parts that only the host's programs touch */
	SPACE_HOST,      /* values in the host's memory that the device's memory does not hold */
	N_SPACES,
} Space;
typedef struct {
	const char *name;
	Turn turn;
	RunOnly only; /* runs that have such a region */
	bool on_host; /* true: memory that the host reads and writes */
	bool by_slots; /* true: the size follows from the slots and the number of ranks; false: planned for each program */
	Space twin; /* host's twin; the region itself if it has no twin */
} SpaceRow;
extern const SpaceRow space_table[N_SPACES];
static inline bool
space_has_parts(uint32_t space)
{
	return space == SPACE_SHARD || space == SPACE_OFFLOAD || space == SPACE_OPTIMIZER;
}
/* Does the region lie in the host's memory rather than in the device's? */
static inline bool
space_is_offload(uint32_t space)
{
	return space == SPACE_OFFLOAD || space == SPACE_OPTIMIZER || space == SPACE_HOST;
}

typedef enum {
	RUN_KERNEL,
	COPY,
	FILL_ZERO,
	COLLECTIVE,
	RECORD,
	WAIT,
	LOOP,   /* repeats the instructions before its END; `what` is the count */
	BRANCH, /* runs the instructions before its END only if its argument, a bool, equals `what` */
	LEAVE, /* jumps past the END of the enclosing LOOP if its argument, a bool, is false */
	END,
	N_INSTRUCTIONS
} InstructionKind;
extern const char *const instruction_names[];
/* Does the instruction open a block that an END closes? Argument.loop counts such blocks. */
static inline bool
instruction_opens(InstructionKind kind)
{
	return kind == LOOP || kind == BRANCH;
}
/* Must the host wait for the instruction's argument? */
static inline bool
instruction_asks(InstructionKind kind)
{
	return kind == BRANCH || kind == LEAVE;
}

/* Instructions on one stream run in order. Only RECORD and WAIT order instructions on different streams. There are two streams
 * for copies, so that data come in while results of the previous step go out. */
typedef enum {
	STREAM_COMPUTE,
	STREAM_COPY_IN,
	STREAM_COPY_OUT,
	STREAM_COMMUNICATION,
	N_STREAMS,
} Stream;
extern const char *const stream_names[];

/* Events that outlive a program's run. Each of these events exists once per turn. The numbers of a program's own events
 * follow. */
typedef enum {
	EVENT_IO_FILLED,   /* copy in: the micro-batch's scalars and inputs are on the device */
	EVENT_IO_FREE,     /* compute: scalars and inputs have been read, outputs are complete */
	EVENT_STEP_FILLED, /* copy in: the update's scalars are on the device */
	EVENT_STEP_FREE,   /* compute: the update is done */
	EVENT_REPORT,      /* copy out: the update's results are in the host's memory */
	N_SHARED_EVENTS,
} SharedEvent;
typedef struct {
	const char *name;
	Turn turn;
	Stream stream; /* stream that records the event */
} EventRow;
extern const EventRow event_table[N_SHARED_EVENTS];

/* Operations of several ranks. n counts elements; rank c of a group has part c of the n elements (collective.c). */
typedef enum {
	COMM_ALL_REDUCE, /* reduces the ranks' n elements and gives every rank the result */
	COMM_ALL_GATHER, /* gives every rank all n elements, of which each rank had its own part */
	COMM_REDUCE_SCATTER, /* reduces the ranks' n elements and gives each rank its part of the result */
	COMM_ALL_TO_ALL, /* sends part c of every rank's n elements to rank c, which has room for one part per rank */
	COMM_BROADCAST, /* sends n elements of one rank to every rank */
	COMM_SEND,      /* sends n elements to one rank */
	COMM_RECV,      /* receives n elements from one rank */
	N_COLLECTIVES
} CollectiveKind;
extern const char *const collective_names[];
typedef enum { COMM_SUM, COMM_MAX, N_COMM_REDUCTIONS } CommReduction;
extern const char *const comm_reduction_names[];
/* Groups of ranks. The ranks of a group differ in their place along some axes of the mesh and agree along all other axes. */
typedef enum {
	GROUP_WORLD, /* all ranks */
	GROUP_DATA, /* ranks with other samples and the same model; the product of shard and replicate */
	GROUP_SHARD,
	GROUP_REPLICATE,
	GROUP_TENSOR,
	GROUP_PIPELINE,
	N_GROUPS
} CommGroup;
extern const char *const comm_group_names[];

/* ---- records */
typedef struct {
	uint16_t kind;  /* InstructionKind */
	uint8_t stream; /* Stream */
	uint8_t when;   /* When */
	uint32_t what; /* number of the kernel, collective or event; loop count; branch condition */
	uint32_t args; /* index of the first argument in the argument table */
	uint16_t n_args;
	uint16_t phase; /* Phase */
	StrRef origin; /* source nodes of this instruction: fused("/a", grad("/b")); another launch of the same kernel has other nodes */
	uint32_t only; /* RunOnly */
} Instruction;

typedef struct {
	uint32_t slot;
	uint32_t loop;  /* level of the LOOP that advances the argument; 0: no loop */
	int64_t stride; /* bytes per iteration; negative: towards the beginning */
} Argument;

/* Which of its elements a slot refers to, if ranks divide the elements. Ranks divide them in whole blocks, as comm_part
 * does. A room is memory that can hold the largest part. A slot's offset and bytes are those of the whole; the memory
 * of its share depends on the number of ranks. */
typedef enum {
	SLOT_WHOLE,
	SLOT_PART,         /* this rank's part, at its place in the whole */
	SLOT_ROOMS,        /* one room per rank, for every rank's version of this rank's part */
	SLOT_FIRST_ROOM,   /* room of rank 0 */
	SLOT_SECOND_ROOM,  /* room of rank 1 */
	SLOT_LATER_ROOM,   /* room of rank 2 + the loop's counter */
	SLOT_BEHIND_ROOMS, /* this rank's part by itself, after the rooms of all ranks */
	N_SLOT_SHARES,
} SlotShare;
extern const char *const share_names[];
/* A place in memory. */
typedef struct {
	uint32_t space; /* Space */
	uint32_t dtype;
	int64_t offset,
		bytes; /* place in the region; in a state_space offset is 0 and RunFacts.shard_at has the place */
	/* SLOT_PART: offset of the whole in the kernel's argument, in bytes. The launch runs only the iterations of the part. */
	int64_t before;
	StrRef name;    /* name of the value, or of its ONNX origin */
	uint32_t share; /* SlotShare */
	/* number of elements of which parts are multiples; 0: the slot is a whole */
	uint32_t block;
	uint32_t group; /* CommGroup of the ranks that share the slot */
	/* state_space: 1 + the state that the slot is a part of. SPACE_STATE: 1 + the state of lifetime constant that holds the
	 * slot; 0: no such state. Other spaces: 0 */
	uint32_t state;
	uint32_t mode;     /* mode of the slot's program */
	uint32_t only;     /* RunOnly: runs that touch the slot */
	uint32_t reserved; /* 0 */
} Slot;

/* How a kernel, or the library in its place, accesses one argument. PART: it writes only a part, and keeps the rest as other kernels have
 * left it. */
enum { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_PART = 4 };

/* A collective. Its arguments are `to` and `from`, which may be one slot. For communicators that cannot read the device's
 * memory two more arguments follow: copies of both in the host's memory. */
typedef struct {
	uint32_t kind;  /* CollectiveKind */
	uint32_t group; /* CommGroup */
	uint32_t dtype;
	uint32_t reduction; /* CommReduction */
	int64_t n;          /* number of elements of the whole */
	uint32_t peer;  /* broadcast, send, recv: the other rank's number in the group; else 0 */
	uint32_t block; /* number of elements of which parts are multiples */
	/* 1: the collective takes only this rank's part (by GROUP_SHARD) of the n elements */
	uint32_t of_part;
	uint32_t reserved;
} CollectiveRecord;
/* Values of a LOOP's `what`: one iteration per rank except the first two, for all ranks or for the ranks of GROUP_SHARD. */
enum { LOOP_LATER_RANKS = -1, LOOP_LATER_SHARDS = -2 };

typedef enum {
	PORT_INPUT,    /* graph input, fed from --data, --tokens, --fill */
	PORT_LABELS,   /* target of the loss */
	PORT_WEIGHT,   /* f32 or f64 [rows]: 1 for a real row, 0 for padding; hidden from users */
	PORT_OUTPUT,   /* graph output */
	PORT_GRADIENT, /* accumulate: gradient of the input with this name */
	/* The update's results: */
	PORT_LOSS_SUM,   /* sum of the losses of the step */
	PORT_LOSS_COUNT, /* number of losses in the sum */
	PORT_NORM,       /* norm of all gradients */
	/* The update's results with a dynamic loss scale, as f64: */
	PORT_LOSS_SCALE, /* loss scale of this step */
	PORT_MADE,       /* 1: the step updated the parameters */
	PORT_FAILED,     /* 1: no later step will update the parameters either */
	N_PORT_KINDS,
} PortKind;
extern const char *const port_kind_names[];

#endif
