/* Communication between ranks, the processes of one run. There are two interfaces, each a table of functions.
 *
 * CommControl ("control"): messages in the host's memory, with calls that block. Ranks use it to agree before and between
 * steps. CommData ("data"): collectives for states and gradients. They do not block, so that they overlap with compute. MPI
 * works on the host's memory; NCCL works on the GPU's memory, in streams.
 *
 * Every rank of a group starts the same collectives in the same order. Groups are independent of each other and of control
 * calls. All calls may come from several threads.
 *
 * A rank that waits long for another rank asks whether the other rank is alive. A rank that answers is only slow, for example
 * because it waits for its disk. Such a wait is reported (CommOptions.report) and goes on without end. A rank that is silent
 * for `patience` seconds is lost: the waiting rank fails with EXIT_HANG. */
#ifndef GRADC_RUNTIME_COMM_COMM_H
#define GRADC_RUNTIME_COMM_COMM_H

#include "format/format.h"

typedef struct CommControl CommControl;
typedef struct CommData CommData;
typedef struct CommRequest CommRequest;

typedef struct {
	/* The mesh: ranks with the same colour in a group are members of that group, in the order of ranks. NULL: the groups
	 * world, data and replicate contain all ranks, every other group a single rank. */
	void (*mesh)(void *context, int rank, int size, int colors[N_GROUPS]);
	/* largest message, in bytes; 0: the library's limit. Larger messages are split */
	int64_t most_bytes;
	/* Prints a line for the user about a long wait, once every `patience` seconds. The waiting thread calls it. */
	void (*report)(void *context, const char *line);
	void *context;
} CommOptions;

/* A wait of the host for collectives that run on the device's streams. Control does not see these collectives; this struct
 * tells it about them. */
typedef struct {
	CommGroup group;
	const int *members; /* ranks of the world, ascending, with this rank among them */
	int size;
	/* name of the last collective that this rank has started, such as "all_reduce" */
	const char *what;
	/* the collective's number in the group, from 0; -1 while the group is being made */
	int64_t number;
	double since; /* time of the last known progress */
	double told;  /* time of the last report; 0 at first; written by control */
	/* result: false if every rank has confirmed, after the time `since`, that it has started the collective; otherwise
	 * true */
	bool late;
} CommWatch;

typedef struct {
	const char *name;
	Status (*open)(const CommOptions *options, CommControl **out);
	void (*close)(CommControl *control); /* control may be NULL */
	/* Ends all ranks with this exit code, if the launcher can end them. With one rank, does nothing. */
	void (*abort)(CommControl *control, int exit_code);
	int (*rank)(const CommControl *control);
	int (*size)(const CommControl *control);
	/* Gathers `bytes` bytes of each rank; the bytes of rank r are stored at to + r * bytes. */
	Status (*all_gather)(CommControl *control, const void *from, void *to, int64_t bytes);
	Status (*broadcast)(CommControl *control, void *at, int64_t bytes, int root);
	/* Sets the text that waiting ranks show about this rank, such as "saving a checkpoint": a constant or NULL. Allowed at
	 * any time, and never waits. */
	void (*doing)(CommControl *control, const char *what);
	/* `started` and `watch` are NULL if ranks cannot be asked. started: stores how many collectives of the group this
	 * rank's device has been given; ranks that wait for this rank are told the number. Never waits long. */
	void (*started)(CommControl *control, CommGroup group, int64_t n);
	/* Called repeatedly while this rank waits: asks the other ranks whether they are alive. EXIT_HANG if a rank has been
	 * silent for `patience` seconds; another fault if it is known that a rank has ended. Late ranks are reported to the
	 * user. */
	Status (*watch)(CommControl *control, CommWatch *watch);
} CommControlOps;

typedef struct {
	CollectiveKind kind;
	CommGroup group;
	DType dtype;
	CommReduction reduction;
	/* true: values are added in the order of the ranks, so that W ranks give the bits of W accumulation steps; f16 and bf16
	 * are added in f32 and rounded once. false: the library chooses the order. NCCL always chooses its own order and rounds
	 * each addition, so with NCCL, ordered sums of f16 and bf16 over more than two ranks are refused. */
	bool ordered;
	/* `from` and `to` may be equal (all_reduce, broadcast). For all_gather and reduce_scatter, the buffer of this rank's
	 * part may lie inside the buffer of the whole, where this part belongs. Otherwise `from` and `to` must not overlap. */
	const void *from;
	void *to;
	int64_t n;     /* elements of the whole tensor */
	int64_t block; /* parts are multiples of this many elements; 0 means 1 */
	int peer;      /* rank in the group: broadcast's source; the other rank of send and recv */
} Collective;

/* What this rank has queued on streams for a group: number of collectives, bytes sent, kind of the last collective. */
typedef struct {
	int64_t started, bytes;
	CollectiveKind last;
} CommCount;

typedef struct {
	const char *name;
	/* If false, the executor copies operands to pinned host memory and results back. */
	bool reads_device_memory;
	Status (*open)(const CommControlOps *ops, CommControl *control, const CommOptions *options,
	               CommData **out);
	/* Called before the memory of unfinished collectives is freed. Returns false if some collectives are still under way;
	 * then the caller must not free their memory. data may be NULL. */
	bool (*close)(CommData *data);
	int (*group_rank)(const CommData *data, CommGroup group);
	int (*group_size)(const CommData *data, CommGroup group);
	/* ---- collectives in the host's memory (MPI); NULL if the functions from `attach` on are set */

	/* The communicator uses the collective's memory until the collective is done; after a fault, until close. */
	Status (*start)(CommData *data, const Collective *c, CommRequest **out);
	/* test and finish free the request if they return a fault. Afterwards the communicator and its control start nothing
	 * more, and all their calls return the fault. */
	Status (*test)(CommData *data, CommRequest *request, bool *done);
	Status (*finish)(CommData *data, CommRequest *request); /* waits; frees the request */
	/* Advances all started collectives. Called between kernels. Faults are not returned here but by test and finish. */
	void (*progress)(CommData *data);
	/* Bytes that this rank has sent. For a collective of the MPI library: the bytes that the best algorithm sends. */
	int64_t (*traffic)(const CommData *data, CommGroup group);
	/* ---- collectives in the device's memory, on its streams (NCCL); NULL if the functions from `start` on are set */

	/* Makes the groups on the device that is current in this thread. All ranks call it before they start a collective. */
	Status (*attach)(CommData *data);
	/* Announces memory that collectives will use until close. */
	void (*lend)(CommData *data, void *at, int64_t bytes);
	/* Queues the collective on a stream of the device, or adds it to the stream's recording. Not for a group of one member. */
	Status (*enqueue)(CommData *data, const Collective *c, void *stream);
	/* Called by any thread that waits for the device. moved: when the device last made progress. Returns a fault if the
	 * communicator has failed or a rank is lost. *late: the device may be waiting for late ranks. */
	Status (*watch)(CommData *data, double moved, bool *late);
	/* Breaks off all collectives under way, so that streams become idle. Called after a fault of the device; the results
	 * are not used. No collective can be started afterwards. */
	void (*abort)(CommData *data);
	/* counts: collectives queued so far. repeat: adds `more` to these counts, because a recording that contains collectives
	 * was launched again. */
	void (*counts)(const CommData *data, CommCount out[N_GROUPS]);
	void (*repeat)(CommData *data, const CommCount more[N_GROUPS]);
} CommDataOps;

/* A communicator: its control and its data. */
typedef struct {
	const char *name;
	const CommControlOps *control;
	const CommDataOps *data;
} CommRow;
#define COMM(name, control, data)                           \
	extern const CommControlOps comm_control_##control; \
	extern const CommDataOps comm_data_##data;
#include "runtime/comm/comm_list.def"
#undef COMM
extern const CommRow comm_table[]; /* rows of comm_list.def, then a NULL name */

/* ---- comm.c */
typedef struct {
	const CommControlOps *control_ops;
	CommControl *control;
	const CommDataOps *data_ops;
	CommData *data;
	int rank, size; /* in the world */
} Comm;
/* EXIT_USAGE if there is no communicator of that name, or a launcher's variables make no sense. The name "auto" picks the
 * communicator that fits the launcher of this process. */
Status comm_check(const char *name);
Status comm_patience(double *seconds); /* GRADC_COMM_TIMEOUT in seconds; 20 if unset */

/* ---- tcp/env.c */
/* The file of GRADC_RENDEZVOUS, which rank 0 writes; NULL if unset. */
const char *comm_rendezvous_file(void);

/* ---- comm.c */
/* Opens the communicator of that name. *out must be closed even after a fault. */
Status comm_open(const char *name, const CommOptions *options, Comm *out);
/* Close a communicator; both accept a Comm that was never opened. comm_close_data is called first, before the memory of
 * collectives is freed. It returns false if that memory must not be freed. */
bool comm_close_data(Comm *comm);
void comm_close(Comm *comm);
/* Replaces the CommData by another one (for example NCCL) over the same control. After a fault the old CommData stays. All
 * ranks call it. */
Status comm_carry(Comm *comm, const CommDataOps *ops, const CommOptions *options);
/* true: collectives are queued on streams of the device; false: start, test and finish are used. */
bool comm_enqueues(const Comm *comm);
void comm_doing(const Comm *comm,
                const char *what); /* CommControlOps.doing; may be called before comm_open */
/* Reduces n values of s64 or f64 in the host's memory, in place and in the order of the ranks, over control. */
Status comm_reduce(const Comm *comm, void *values, int64_t n, DType dtype, CommReduction reduction);
/* Runs a collective of a group with one member, which is a copy. EXIT_COMM if the collective names another rank. */
Status comm_alone(const Collective *c);

/* ---- groups.c: members of each group, and checks of a group's collectives */
typedef struct {
	int rank, size; /* number of this rank in the group; number of members */
	int *members;   /* ranks of the world, ascending */
	bool is_shared; /* some group of this kind has several members */
	int same;       /* the first kind of group that divides the ranks in the same way */
} CommMembers;
/* Finds the members of each group by the options' mesh. All ranks call it. comm_members_free must be called even after a
 * fault. */
Status comm_members(const CommControlOps *ops, CommControl *control, const CommOptions *options,
                    CommMembers out[N_GROUPS]);
void comm_members_free(CommMembers groups[N_GROUPS]);
/* Checks the arguments of a collective in a group of several members, on member `rank`; EXIT_COMM if the group cannot run
 * it. */
Status comm_check_collective(const Collective *c, int rank, int size);

/* ---- sums.c */
/* comm_sum: z = x[0] + x[1] + ... in this order, or the maximum. Each term x[i] has n elements and begins `stride` elements
 * after the term before. z may be x[0]. comm_sum_has: can values of that type be summed? */
typedef struct {
	DType dtype;
	CommReduction reduction;
	void *to;
	const void *terms;
	int64_t n, stride;
	int n_terms;
} CommSum;
bool comm_sum_has(DType dtype);
void comm_sum(const CommSum *s);

#endif
