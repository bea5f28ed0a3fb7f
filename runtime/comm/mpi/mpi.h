/* Private to runtime/comm/mpi: types and functions that its files share. "The library" is the MPI library. Only one thread at a
 * time may call it (MPI_THREAD_SERIALIZED). `lock` is held around every call, but never while a rank sleeps or prints. */
#ifndef GRADC_RUNTIME_COMM_MPI_MPI_H
#define GRADC_RUNTIME_COMM_MPI_MPI_H

#include "runtime/comm/comm.h"
#include "runtime/comm/mpi/mpi_library.h"

#include <pthread.h>

/* A channel: a set of ranks that send each other messages. Control's channel has all ranks; each kind of group has a channel
 * for the members of this rank's group. A message stays in its channel. */
enum { CHANNEL_CONTROL, CHANNEL_GROUP, N_CHANNELS = CHANNEL_GROUP + N_GROUPS };
typedef struct {
	const char *name; /* name of the group; for control: "control" */
	MpiHandle comm;   /* 0 if the channel has one member */
	int rank, size;   /* this rank's number in the channel; number of members */
	int *members;     /* ranks in the world */
	int64_t started;  /* number of collectives started, the same on every member */
	int64_t traffic;  /* bytes sent */
} Channel;

typedef struct Beat Beat;
typedef struct ControlCall ControlCall;
struct CommControl {
	MpiLibrary mpi;
	pthread_mutex_t lock;
	int rank, size;
	double patience; /* in seconds */
	CommOptions options;
	Channel channels[N_CHANNELS];
	Beat *beat;
	/* there are messages under way that no rank will receive, so MPI_Finalize would never return */
	bool broken;
	/* the first fault: the library failed, or a rank is silent; afterwards all calls return this fault */
	Status fault;
	/* Failed calls; never freed, because the library may still use their memory. */
	ControlCall *lost;
};

/* What a rank waits for. */
typedef struct {
	const Channel *channel;
	const char *what; /* such as "all_reduce" */
	/* number of the channel's collective; -1 for a message between two ranks */
	int64_t number;
	bool sends; /* true: this rank sends, and the awaited ranks must receive */
	/* the collective is queued on the device, which may be busy with other work; so the wait is reported only if a rank is
	 * late */
	bool queued;
	double since, told; /* time of the last progress; time of the last report */
} Wait;

/* ---- collectives as rounds of transfers */
typedef enum { ROUND_PARTS, ROUND_GATHER, ROUND_LIBRARY, ROUND_MESSAGE, ROUND_OVER } Round;
typedef struct {
	MpiHandle handle;
	/* the other member's number in the group; -1 for a collective of the library, with all members */
	int peer;
	bool receives, done;
} Transfer;
struct CommRequest {
	CommRequest *next;
	Collective c;
	Channel *channel;
	int64_t room; /* elements of the largest part */
	Round round;
	int tag;
	Transfer *transfers; /* transfers of the round that runs now */
	int n_transfers;
	/* temporary memory: parts received from all ranks, or the operand converted to a type that the library can add */
	char *scratch;
	int *counts;  /* counts of the library's reduce_scatter */
	int *awaited; /* array for the ranks of the world that are waited for */
	Wait wait;
	Status fault; /* fault found by CommDataOps.progress; returned by test or finish */
};
struct CommData {
	CommControl *control;
	int64_t most_bytes;
	/* running: requests that test or finish has not yet reported as done. lost: failed requests, whose transfers may not be
	 * over. */
	CommRequest *running, *lost;
};

/* ---- rounds.c */
/* Called by new_request: sets the first round and allocates memory for all rounds. */
void round_prepare(const CommData *d, CommRequest *r);
/* Called with the lock held. */
Status round_start(CommData *d, CommRequest *r);
/* Called when all transfers of a round are over: finishes the round and starts the next one. */
Status round_end(CommData *d, CommRequest *r);
int64_t request_bytes(const CommRequest *r, int64_t n); /* bytes of n elements */
CommPart request_part(const CommRequest *r, int rank);  /* the member's part */

/* ---- control.c */
void mpi_lock(CommControl *c);
void mpi_unlock(CommControl *c);
/* Called with the lock held. mpi_keep stores `status` for later calls if `status` is the first fault, and returns `status`.
 * mpi_kept returns the stored fault. */
Status mpi_keep(CommControl *c, Status status);
Status mpi_kept(const CommControl *c);
/* A fault for the library's error code: "rank 0: WHAT rank 2: the library's text", where 2 is `peer`. peer < 0: no other rank
 * is named. */
Status mpi_fault(const CommControl *c, int code, const char *what, int peer);
/* A pause between polls, the i-th in a row: spins at first, then sleeps, because ranks may share cores. */
void mpi_pause(int64_t i);
/* Reports the line to the user, if there is one, and frees it. Called without the lock: a terminal may be slow. */
void mpi_report(const CommControl *c, Text *line);

/* ---- start.c: MPI_Init_thread; *code is its result */
Status mpi_start(CommControl *c, int required, int *provided, int *code);

/* ---- beat.c: is an awaited rank alive? */
/* Starts the thread that answers for this rank. */
Status beat_open(CommControl *c);
void beat_close(CommControl *c);
void beat_doing(CommControl *c, const char *what);
/* Called with the lock held, while the rank waits. Pings n ranks of the world (not this rank) and looks for their pongs.
 * EXIT_HANG if a rank has been silent for `patience` seconds. *line: text to report. */
Status beat_wait(CommControl *c, Wait *w, const int *ranks, int n, Text *line);
/* Is there a rank that has not confirmed, since w->since, that it started the collective? */
bool beat_has_late(const CommControl *c, const Wait *w, const int *ranks, int n);

#endif
