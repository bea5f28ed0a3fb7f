/* What the files over MPI share. One thread calls the library at a time (MPI_THREAD_SERIALIZED): `lock` is held around
 * every call, never while a rank sleeps or prints. */
#ifndef GRADC_COMM_MPI_H
#define GRADC_COMM_MPI_H

#include "runtime/comm/comm.h"
#include "runtime/comm/mpi/mpi_library.h"

#include <pthread.h>

/* Messages between the members of a group, or control's. They meet no messages of other channels. */
enum { CHANNEL_CONTROL, CHANNEL_GROUP, N_CHANNELS = CHANNEL_GROUP + N_GROUPS };
typedef struct {
	const char *name; /* "control", or of the group */
	MpiHandle comm;   /* with one member there is none */
	int rank, size;   /* of this one; members */
	int *members;     /* their ranks in the world */
	int64_t started;  /* collectives: the same on every member */
	int64_t traffic;  /* bytes sent */
} Channel;

typedef struct Beat Beat;
typedef struct ControlCall ControlCall;
struct CommControl {
	MpiLibrary mpi;
	pthread_mutex_t lock;
	int rank, size;
	double patience; /* seconds */
	CommOptions options;
	Channel channels[N_CHANNELS];
	Beat *beat;
	bool broken; /* messages are under way that nobody takes: MPI_Finalize would wait for ever */
	Status fault; /* the first of the library's or of a silent rank; then all calls tell it, and start nothing */
	ControlCall *
		lost; /* that failed: the library may still have their memory, so it is never freed */
};

/* What a rank waits for. */
typedef struct {
	const Channel *channel;
	const char *what; /* "all_reduce" */
	int64_t number;   /* of the channel's collectives; -1: of no collective, but of two ranks */
	bool sends;       /* they only have to take what is sent to them */
	bool queued; /* on the device, which may compute before: nobody says so while no rank is late */
	double since, told; /* the last progress; the last report */
} Wait;

/* ---- collectives, which are rounds of transfers */
typedef enum { ROUND_PARTS, ROUND_GATHER, ROUND_LIBRARY, ROUND_MESSAGE, ROUND_OVER } Round;
typedef struct {
	MpiHandle handle;
	int peer; /* in the group; -1: all members, in a collective of the library */
	bool receives, done;
} Transfer;
struct CommRequest {
	CommRequest *next;
	Collective c;
	Channel *channel;
	int64_t room; /* of a part, in elements */
	Round round;
	int tag;
	Transfer *transfers; /* of the round */
	int n_transfers;
	char *scratch; /* everybody's part of this rank, or what the library reduces in place of `from` and `to` */
	int *counts;  /* of a reduce_scatter of the library */
	int *awaited; /* ranks of the world */
	Wait wait;
	Status fault; /* found by progress, for test and finish */
};
struct CommData {
	CommControl *control;
	int64_t most_bytes;
	/* running: nobody has seen their end yet. lost: failed, with transfers that may not be over. */
	CommRequest *running, *lost;
};

/* ---- comm/mpi/rounds.c */
/* A request as new_request leaves it gets its first round, and memory for all. */
void round_prepare(const CommData *d, CommRequest *r);
/* With the lock. */
Status round_start(CommData *d, CommRequest *r);
/* All transfers of the round are over: what follows from them, and the next one. */
Status round_end(CommData *d, CommRequest *r);
int64_t request_bytes(const CommRequest *r, int64_t n); /* of n elements */
CommPart request_part(const CommRequest *r, int rank);  /* of a member */

/* ---- comm/mpi/control.c */
void mpi_lock(CommControl *c);
void mpi_unlock(CommControl *c);
/* With the lock: keeps the first fault for all that ask later, and hands it on; what was kept. */
Status mpi_keep(CommControl *c, Status status);
Status mpi_kept(const CommControl *c);
/* "rank 0: WHAT rank 2: what the library says"; peer < 0: no rank is named. */
Status mpi_fault(const CommControl *c, int code, const char *what, int peer);
/* Between two looks at something, the i-th: spins a little, then lets others run, for ranks may share cores. */
void mpi_pause(int64_t i);
/* Tells the user what there is to say, and frees it. Without the lock: a terminal may be slow. */
void mpi_report(const CommControl *c, Text *line);

/* ---- comm/mpi/start.c: MPI_Init_thread, and its code */
Status mpi_start(CommControl *c, int required, int *provided, int *code);

/* ---- comm/mpi/beat.c: is a rank alive that is waited for? */
/* The thread that answers for this rank. */
Status beat_open(CommControl *c);
void beat_close(CommControl *c);
void beat_doing(CommControl *c, const char *what);
/* While it is not over, with the lock: asks these n ranks of the world (this one among them is not) and hears their
 * answers. EXIT_HANG: one has been silent for `patience` seconds. *line: what is to be reported. */
Status beat_wait(CommControl *c, Wait *w, const int *ranks, int n, Text *line);
/* Has one of them not started it, or not said since `since` that it has? */
bool beat_has_late(const CommControl *c, const Wait *w, const int *ranks, int n);

#endif
