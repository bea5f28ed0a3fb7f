/* CommControl over TCP: functions for the rest of the runtime, and declarations that the files of runtime/comm/tcp share.
 * Control messages are few and small, so every rank has a single connection, to rank 0. Rank 0 passes on messages between other
 * ranks.
 *
 * A thread of each rank reads all messages and answers pings, even while the rank computes. A single lock guards everything
 * about connections. Messages are structs in the host's byte order, which is the same on all ranks. */
#ifndef GRADC_RUNTIME_COMM_TCP_TCP_H
#define GRADC_RUNTIME_COMM_TCP_TCP_H

#include "runtime/comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

/* ---- env.c: the rank of this process, and where rank 0 listens */
enum { HOST_BYTES = 256, PATH_BYTES = 4096 };
typedef struct {
	int rank, size;        /* size is 0 without a launcher */
	const char *rank_name; /* names of the variables for rank and size, for messages */
	const char *size_name;
	bool is_srun; /* the variables for rank and size are srun's */
	bool is_torchrun;
	char host[HOST_BYTES];
	int port, n_ports; /* rank 0 takes the first free port of n_ports */
	/* the rendezvous file, which gives host and port instead; "" without a file */
	char file[PATH_BYTES];
	uint64_t job; /* hash of the launcher's name for the job, the same on every rank */
} TcpPlace;
/* Reads the environment. EXIT_USAGE if a variable makes no sense. */
Status tcp_place(TcpPlace *out);

/* ---- link.c: messages */
typedef struct {
	uint32_t kind;
	uint32_t call;  /* FRAME_PART, FRAME_WHOLE: kind of the call */
	int64_t number; /* number of the call */
	int64_t bytes;  /* bytes that follow the head */
} FrameHead;
typedef struct {
	int users; /* number of queues that hold the frame */
	FrameHead head;
	char at[];
} Frame;
typedef struct Queued Queued;
struct Queued {
	Queued *next;
	Frame *frame;
};
typedef struct {
	Queued *first, **end;
} Queue;
enum { DOING_BYTES = 48 };
typedef struct {
	int32_t waits;   /* the rank itself waits for other ranks, so it is not late */
	int32_t speaker; /* the waiting rank that reports to the user */
	char doing[DOING_BYTES];
	/* Number of collectives that the rank's device was given. Rank 0 sends the smallest number of any rank. */
	int64_t started[N_GROUPS];
} Pong;
/* Another rank, as seen from this rank. */
typedef struct {
	int fd;        /* -1 without a connection */
	Queue out, in; /* frames to send; received frames that no call has taken yet */
	size_t sent;   /* sent bytes of the first frame in `out` */
	FrameHead head;
	Frame *reading; /* the frame that is being received; NULL until its head has arrived */
	size_t got;
	bool ended; /* the rank has sent FRAME_BYE, or its connection is closed */
	/* ---- is it alive? */
	bool asked; /* a ping was sent and is not answered */
	/* at: when this rank last pinged the peer. heard: when the peer's last pong came. asks: when the peer last pinged this
	 * rank. */
	double at, heard, asks;
	Pong last;
} TcpPeer;
struct CommControl {
	CommOptions options;
	int rank, size;
	double patience;      /* in seconds */
	TcpPeer *peers;       /* one per rank; this rank's own entry is not used */
	pthread_mutex_t lock; /* guards all fields below, and peers */
	pthread_cond_t changed;
	pthread_mutex_t calls; /* held during a call */
	int64_t n_calls;
	int n_waiting;  /* threads of this rank that wait in a call */
	double watched; /* time of the last wait outside of calls */
	double looked;  /* time when a thread last looked for answers */
	_Atomic(const char *) doing;
	int64_t started[N_GROUPS]; /* collectives given to the device */
	Status fault;              /* the first fault; all calls return it */
	/* time by which this process must end because another rank ends all ranks; 0: none does */
	double must_end;
	bool closing;
	bool has_thread;
	pthread_t thread;
	int wake[2]; /* pipe that wakes the thread */
};

/* ---- beat.c: is an awaited rank alive? */
/* Watches all ranks during a wait outside of control's calls, which began at `since`. what: such as "all_reduce 3 of group
 * data". Reports late ranks; *told is the time of the last report. Returns a fault if a rank is lost or is ending all ranks. */
Status tcp_watch(CommControl *c, const char *what, double since, double *told);

#endif
