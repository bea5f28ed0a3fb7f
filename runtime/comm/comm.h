/* What a run needs of other ranks, in two interfaces, each a table of functions.
 *
 * CommControl: the host's memory, calls that block. What ranks agree on before and between steps.
 * CommData: the device's memory, collectives that are started, tested and finished, so that they overlap with compute.
 *
 * Every rank of a group starts the same collectives in the same order; groups are independent of each other, and so are
 * control calls. All calls may come from several threads.
 *
 * Who waits long for a rank asks it. One that answers, be it that its disk is slow, is named and waited for without end
 * (CommOptions.report). One that is silent for `patience` seconds is lost: EXIT_HANG. */
#ifndef GRADC_COMM_H
#define GRADC_COMM_H

#include "format/format.h"

typedef struct CommControl CommControl;
typedef struct CommData CommData;
typedef struct CommRequest CommRequest;

typedef struct {
	/* The mesh: ranks with the same colour in a group are its members, in the order of ranks. NULL: world, data and
	 * replicate have all ranks, the other groups one each. */
	void (*mesh)(void *context, int rank, int size, int colors[N_GROUPS]);
	int64_t most_bytes; /* of one message; 0: what the library takes. Larger ones are cut */
	/* A line for the user about a long wait, once every `patience` seconds; from the thread that waits. */
	void (*report)(void *context, const char *line);
	void *context;
} CommOptions;

/* Collectives that a device runs on its streams, where control sees nothing of them, while a rank waits for them. */
typedef struct {
	CommGroup group;
	const int *members; /* ranks of the world, ascending; this one is among them */
	int size;
	const char *
		what; /* the last that this rank has started, "all_reduce"; its number in the group, from 0 on. -1: the */
	int64_t number; /* group itself is being made */
	double since;   /* when something was last seen to move */
	double told;    /* control's: the last report; 0 at first */
	bool late; /* out: some others may not have started it yet; else all have said since then that they have */
} CommWatch;

typedef struct {
	const char *name;
	Status (*open)(const CommOptions *options, CommControl **out);
	void (*close)(CommControl *control); /* NULL is allowed */
	/* This rank cannot go on: ends all of them with that exit code where the launcher can. Returns for
	 * one rank alone. */
	void (*abort)(CommControl *control, int exit_code);
	int (*rank)(const CommControl *control);
	int (*size)(const CommControl *control);
	/* `bytes` of each rank, those of rank r at to + r * bytes. */
	Status (*all_gather)(CommControl *control, const void *from, void *to, int64_t bytes);
	Status (*broadcast)(CommControl *control, void *at, int64_t bytes, int root);
	/* What this rank does, for those that wait for it: "saving a checkpoint". A constant; NULL: nothing to say.
	 * Allowed at any time, never waits. */
	void (*doing)(CommControl *control, const char *what);
	/* Both NULL: there is nobody to ask. Of collectives that the device runs this rank has started so many in the group:
	 * for those that wait for it. Never waits long. */
	void (*started)(CommControl *control, CommGroup group, int64_t n);
	/* Called again and again while this rank waits for them: asks the others whether they live. EXIT_HANG: one has been
	 * silent for `patience` seconds; other faults: control knows that one is gone. One that is late is reported. */
	Status (*watch)(CommControl *control, CommWatch *watch);
} CommControlOps;

typedef struct {
	CollectiveKind kind;
	CommGroup group;
	DType dtype;
	CommReduction reduction;
	/* Sums are made in the order of the ranks, so that W ranks give the bits of W accumulation steps. Otherwise the
	 * library's own collective makes them. f16 and bf16 are added in f32 and rounded once.
	 * NCCL has no order of its callers' and rounds each sum of two, so it refuses ordered sums of these of more than two ranks. */
	bool ordered;
	/* `to` may be `from` (all_reduce, broadcast), or this rank's part may lie where it is in the whole (all_gather,
	 * reduce_scatter). Otherwise they do not overlap. */
	const void *from;
	void *to;
	int64_t n;     /* elements of the whole */
	int64_t block; /* elements that parts are multiples of; 0: 1 */
	int peer;      /* broadcast: from whom; send, recv: the other; counted in the group */
} Collective;

/* Of a group's collectives on streams: how many were started, the bytes that this rank sends for them, which came last. */
typedef struct {
	int64_t started, bytes;
	CollectiveKind last;
} CommCount;

typedef struct {
	const char *name;
	/* Without it the runtime copies to pinned memory and back. */
	bool reads_device_memory;
	Status (*open)(const CommControlOps *ops, CommControl *control, const CommOptions *options,
	               CommData **out);
	/* Before the memory of unfinished collectives is freed. false: some are under way still, and their memory must
	 * stay. NULL is allowed. */
	bool (*close)(CommData *data);
	int (*group_rank)(const CommData *data, CommGroup group);
	int (*group_size)(const CommData *data, CommGroup group);
	/* ---- of the host's memory; NULL where the next ones are
	 * The memory belongs to the communicator until the collective is done; after a fault, until close. */
	Status (*start)(CommData *data, const Collective *c, CommRequest **out);
	/* After a fault the request is gone, and the communicator, control included, starts nothing more: it tells the fault. */
	Status (*test)(CommData *data, CommRequest *request, bool *done);
	Status (*finish)(CommData *data, CommRequest *request); /* waits; the request is gone */
	/* Moves everything on that was started; faults are for test and finish. Called between kernels. */
	void (*progress)(CommData *data);
	/* Bytes that this rank has sent. Of the library's own collectives: what the best of algorithms sends. */
	int64_t (*traffic)(const CommData *data, CommGroup group);
	/* ---- of the device's memory, on its streams; NULL where those above are
	 * Makes the groups on the device that is current in this thread. All ranks call it, before they start anything. */
	Status (*attach)(CommData *data);
	/* Memory in which collectives will work, until close. */
	void (*lend)(CommData *data, void *at, int64_t bytes);
	/* Queues it on a stream of the device, or adds it to what is recorded of one. A group of one member has none. */
	Status (*enqueue)(CommData *data, const Collective *c, void *stream);
	/* For whoever waits for the device, which was last seen to move at `moved`, from any thread: is the communicator
	 * whole, do the other ranks live? *late: the device may be waiting for ranks that have not come as far. */
	Status (*watch)(CommData *data, double moved, bool *late);
	/* Ends what is under way, made or not, so that streams become idle: when the device has a fault, and nobody believes
	 * what comes out of them. It starts nothing more. */
	void (*abort)(CommData *data);
	/* What was started so far, and that much more, because a recording was launched again. */
	void (*counts)(const CommData *data, CommCount out[N_GROUPS]);
	void (*repeat)(CommData *data, const CommCount more[N_GROUPS]);
} CommDataOps;

/* A communicator: one of each. */
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
extern const CommRow comm_table[]; /* of comm_list.def; ends with a NULL name */

/* ---- comm.c */
typedef struct {
	const CommControlOps *control_ops;
	CommControl *control;
	const CommDataOps *data_ops;
	CommData *data;
	int rank, size; /* of the world */
} Comm;
/* EXIT_USAGE: there is none of that name, or a launcher's variables make no sense. "auto": the one for the launcher that
 * started this process. */
Status comm_check(const char *name);
Status comm_patience(double *seconds); /* GRADC_COMM_TIMEOUT, or 20 */
/* The file that rank 0 writes, where GRADC_RENDEZVOUS names one; NULL: none. */
const char *comm_rendezvous_file(void);
/* On a fault *out is what there is of it, to be closed. */
Status comm_open(const char *name, const CommOptions *options, Comm *out);
/* Both of what was never opened, too. Data sooner than the rest, before the memory of collectives is freed: false, it must
 * stay. */
bool comm_close_data(Comm *comm);
void comm_close(Comm *comm);
/* Other data over the same control, in place of what is there. On a fault that stays. All ranks call it. */
Status comm_carry(Comm *comm, const CommDataOps *ops, const CommOptions *options);
/* On streams of the device; else start, test and finish. */
bool comm_enqueues(const Comm *comm);
void comm_doing(const Comm *comm, const char *what); /* as of control; of what is not open, too */
/* n values of s64 or f64 in the host's memory, in place, in the order of the ranks; by way of control. */
Status comm_reduce(const Comm *comm, void *values, int64_t n, DType dtype, CommReduction reduction);
/* A collective of one member, which is a copy. EXIT_COMM: it has another peer. */
Status comm_alone(const Collective *c);

/* ---- comm/groups.c: who is in which group, and what collectives a group can make */
typedef struct {
	int rank, size; /* of this one; members */
	int *members;   /* ranks of the world, ascending */
	bool is_shared; /* by several ranks somewhere */
	int same;       /* the first group that divides the ranks alike */
} CommMembers;
/* By the options' mesh. All ranks call it. What it got is freed by comm_members_free, also after a fault. */
Status comm_members(const CommControlOps *ops, CommControl *control, const CommOptions *options,
                    CommMembers out[N_GROUPS]);
void comm_members_free(CommMembers groups[N_GROUPS]);
/* Of a group of several, whose member this rank is; EXIT_COMM where it has no such collective. */
Status comm_check_collective(const Collective *c, int rank, int size);

/* ---- comm/sums.c */
/* z = x[0] + x[1] + ... in this order, or the largest: n elements of each of so many terms, the next one `stride`
 * elements further. z may be the first term. false: no sums of that type over ranks. */
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
