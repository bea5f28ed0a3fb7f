/* The communication of ranks, in two interfaces, each a table of functions.
 *
 * CommControl: the host's memory, with calls that block. Ranks use it to agree before and between steps.
 * CommData: the device's memory, with collectives that are started, tested and finished, so that they overlap with compute.
 *
 * Every rank of a group starts the same collectives in the same order. Groups are independent of each other and of control
 * calls. All calls may come from several threads.
 *
 * A rank that waits long for another rank asks whether it is alive. A rank that answers, for example because its disk is slow,
 * is reported (CommOptions.report) and waited for without end. A rank that is silent for `patience` seconds is lost: EXIT_HANG. */
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
	/* largest message, in bytes; 0: the library's limit. Larger ones are cut */
	int64_t most_bytes;
	/* Prints a line for the user about a long wait, once every `patience` seconds. The waiting thread calls it. */
	void (*report)(void *context, const char *line);
	void *context;
} CommOptions;

/* A wait for collectives that a device runs on its streams, where control cannot see them. */
typedef struct {
	CommGroup group;
	const int *members; /* ranks of the world, ascending, with this rank among them */
	int size;
	/* Name of the last collective that this rank has started, as "all_reduce". */
	const char *what;
	int64_t number; /* its number in the group, from 0; -1 while the group is being made */
	double since;   /* time of the last known progress */
	double told;    /* time of the last report; 0 at first; written by control */
	/* out: another rank may not have started it. false: all have confirmed starting since `since` */
	bool late;
} CommWatch;

typedef struct {
	const char *name;
	Status (*open)(const CommOptions *options, CommControl **out);
	void (*close)(CommControl *control); /* control may be NULL */
	/* Ends all ranks with that exit code, if the launcher can. With one rank it just returns. */
	void (*abort)(CommControl *control, int exit_code);
	int (*rank)(const CommControl *control);
	int (*size)(const CommControl *control);
	/* Gathers `bytes` of each rank; those of rank r are at to + r * bytes. */
	Status (*all_gather)(CommControl *control, const void *from, void *to, int64_t bytes);
	Status (*broadcast)(CommControl *control, void *at, int64_t bytes, int root);
	/* Sets the text that waiting ranks show about this rank, such as "saving a checkpoint": a constant or NULL. Allowed at
	 * any time, and never waits. */
	void (*doing)(CommControl *control, const char *what);
	/* `started` and `watch` are NULL if ranks cannot be asked. started: tells how many collectives of the group this rank's
	 * device has been given, for ranks that wait. It never waits long. */
	void (*started)(CommControl *control, CommGroup group, int64_t n);
	/* Called repeatedly while this rank waits: asks the other ranks whether they are alive. EXIT_HANG if a rank has been
	 * silent for `patience` seconds; other faults if a rank is known to be gone. Late ranks are reported. */
	Status (*watch)(CommControl *control, CommWatch *watch);
} CommControlOps;

typedef struct {
	CollectiveKind kind;
	CommGroup group;
	DType dtype;
	CommReduction reduction;
	/* Sums are made in the order of the ranks, so that W ranks give the bits of W accumulation steps. Otherwise the library
	 * chooses the order. f16 and bf16 are added in f32 and rounded once.
	 * NCCL chooses its own order and rounds each addition. So it refuses ordered sums of f16 and bf16 over more than two
	 * ranks. */
	bool ordered;
	/* `to` may be `from` (all_reduce, broadcast), or this rank's part may lie at its place in the whole (all_gather,
	 * reduce_scatter). Otherwise they must not overlap. */
	const void *from;
	void *to;
	int64_t n;     /* elements of the whole */
	int64_t block; /* parts are multiples of so many elements; 0: 1 */
	int peer;      /* rank in the group: broadcast's source; the other rank of send and recv */
} Collective;

/* Collectives of a group on streams: how many were started, the bytes that this rank sends, and the last kind. */
typedef struct {
	int64_t started, bytes;
	CollectiveKind last;
} CommCount;

typedef struct {
	const char *name;
	/* If false, the runtime copies to pinned memory and back. */
	bool reads_device_memory;
	Status (*open)(const CommControlOps *ops, CommControl *control, const CommOptions *options,
	               CommData **out);
	/* Closes before the memory of unfinished collectives is freed. Returns false if some are still under way, and their
	 * memory must stay. data may be NULL. */
	bool (*close)(CommData *data);
	int (*group_rank)(const CommData *data, CommGroup group);
	int (*group_size)(const CommData *data, CommGroup group);
	/* ---- collectives of the host's memory; NULL if the next group is set
	 * The memory belongs to the communicator until the collective is done; after a fault, until close. */
	Status (*start)(CommData *data, const Collective *c, CommRequest **out);
	/* After a fault the request is freed. The communicator, control included, starts nothing more and returns the fault
	 * from all calls. */
	Status (*test)(CommData *data, CommRequest *request, bool *done);
	Status (*finish)(CommData *data, CommRequest *request); /* waits; frees the request */
	/* Advances all started collectives. test and finish return the faults. Called between kernels. */
	void (*progress)(CommData *data);
	/* Bytes that this rank has sent. For the library's own collectives: what the best algorithm sends. */
	int64_t (*traffic)(const CommData *data, CommGroup group);
	/* ---- collectives of the device's memory, on its streams; NULL if the group above is set
	 * Makes the groups on the device that is current in this thread. All ranks call it before they start a collective. */
	Status (*attach)(CommData *data);
	/* Announces memory that collectives will use until close. */
	void (*lend)(CommData *data, void *at, int64_t bytes);
	/* Queues the collective on a stream of the device, or adds it to the stream's recording. Not for a group of one member. */
	Status (*enqueue)(CommData *data, const Collective *c, void *stream);
	/* Called by any thread that waits for the device, which last made progress at `moved`. Returns a fault of the
	 * communicator, or a lost rank. *late: the device may be waiting for ranks that are behind. */
	Status (*watch)(CommData *data, double moved, bool *late);
	/* Ends all collectives under way, finished or not, so that streams become idle. Called after a fault of the device; the
	 * results are not used. No collective can be started afterwards. */
	void (*abort)(CommData *data);
	/* counts: collectives started so far. repeat: adds `more`, because a recording was launched again. */
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
/* EXIT_USAGE if there is no communicator of that name, or a launcher's variables make no sense. "auto": the one for the
 * launcher of this process. */
Status comm_check(const char *name);
Status comm_patience(double *seconds); /* GRADC_COMM_TIMEOUT in seconds; 20 if unset */
/* The file of GRADC_RENDEZVOUS, which rank 0 writes; NULL if unset. */
const char *comm_rendezvous_file(void);
/* After a fault *out must still be closed. */
Status comm_open(const char *name, const CommOptions *options, Comm *out);
/* Both may get a Comm that was never opened. comm_close_data comes first, before the memory of collectives is freed. It returns
 * false if that memory must stay. */
bool comm_close_data(Comm *comm);
void comm_close(Comm *comm);
/* Replaces the data by another one over the same control. After a fault the old data stay. All ranks call it. */
Status comm_carry(Comm *comm, const CommDataOps *ops, const CommOptions *options);
/* true: collectives are queued on streams of the device; false: start, test and finish are used. */
bool comm_enqueues(const Comm *comm);
void comm_doing(const Comm *comm, const char *what); /* same as control's; allowed before opening */
/* Reduces n values of s64 or f64 in the host's memory, in place and in the order of the ranks, over control. */
Status comm_reduce(const Comm *comm, void *values, int64_t n, DType dtype, CommReduction reduction);
/* The collective of a group with one member: a copy. EXIT_COMM if it names another rank. */
Status comm_alone(const Collective *c);

/* ---- groups.c: members of each group, and checks of a group's collectives */
typedef struct {
	int rank, size; /* number of this rank in the group; number of members */
	int *members;   /* ranks of the world, ascending */
	bool is_shared; /* some group of this kind has several members */
	int same;       /* the first kind of group with the same division of ranks */
} CommMembers;
/* Members of each group, by the options' mesh. All ranks call it. Even after a fault, comm_members_free frees them. */
Status comm_members(const CommControlOps *ops, CommControl *control, const CommOptions *options,
                    CommMembers out[N_GROUPS]);
void comm_members_free(CommMembers groups[N_GROUPS]);
/* Checks a collective of a group with several members, for the member `rank`; EXIT_COMM if there is no such collective. */
Status comm_check_collective(const Collective *c, int rank, int size);

/* ---- sums.c */
/* z = x[0] + x[1] + ... in this order, or the maximum. Each term has n elements and begins `stride` elements after the last
 * one. z may be the first term. comm_sum_has: is there a sum of that type over ranks? */
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
