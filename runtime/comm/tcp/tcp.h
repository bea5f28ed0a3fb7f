/* What the files over TCP share. Control messages are few and small, so every rank has one connection, to rank 0: a
 * star. What the others have for each other rank 0 takes and hands on.
 *
 * A thread of each rank reads all that comes and answers who asks, also while the rank computes. All that the connections have
 * lies behind one lock. Messages are the host's bytes: all ranks have one byte order, as their states have. */
#ifndef GRADC_COMM_TCP_H
#define GRADC_COMM_TCP_H

#include "runtime/comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

/* ---- comm/tcp/env.c: which rank this is, and where rank 0 listens */
enum { HOST_BYTES = 256, PATH_BYTES = 4096 };
typedef struct {
	int rank, size;        /* size 0: no launcher says so */
	const char *rank_name; /* the variables that say so, for messages */
	const char *size_name;
	bool is_srun; /* by what srun sets for its tasks */
	bool is_torchrun;
	char host[HOST_BYTES];
	int port, n_ports;     /* rank 0 takes the first one that is free */
	char file[PATH_BYTES]; /* says host and port, in place of the above; "": none */
	uint64_t job;          /* of its launcher's name for it, the same on every rank */
} TcpPlace;
/* EXIT_USAGE: a variable makes no sense. */
Status tcp_place(TcpPlace *out);
/* The first host of a list of srun's: "node[01-03,7],other" is node01. false: it is no list. */
bool tcp_first_host(const char *list, char out[HOST_BYTES]);

/* ---- comm/tcp/link.c: messages */
typedef enum {
	FRAME_PART,  /* of a call: what a rank has for it */
	FRAME_WHOLE, /* what it gets */
	FRAME_PING,
	FRAME_PONG,
	FRAME_LOST,  /* number: the rank */
	FRAME_ABORT, /* number: the exit code */
	FRAME_BYE,   /* nothing more follows */
	N_FRAMES,
} FrameKind;
typedef struct {
	uint32_t kind;
	uint32_t call;  /* of which kind of call it is a part */
	int64_t number; /* of that call, in the order of all */
	int64_t bytes;  /* that follow */
} FrameHead;
typedef struct {
	int users; /* queues that have it */
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
	int32_t waits;   /* for others: it is not late */
	int32_t speaker; /* which of those that wait for it tells the user */
	char doing[DOING_BYTES];
	int64_t started
		[N_GROUPS]; /* collectives of the device's; of rank 0: the fewest of all ranks */
} Pong;
/* Another rank. */
typedef struct {
	int fd;        /* -1: none */
	Queue out, in; /* in: parts and wholes that no call has taken yet */
	size_t sent;   /* bytes of the first one */
	FrameHead head;
	Frame *reading; /* NULL: its head is not yet there */
	size_t got;
	bool ended; /* it said so, or is gone */
	/* Is it alive? */
	bool asked; /* and has not answered */
	double at, heard,
		asks; /* when it was asked; when it answered; when it last asked this rank */
	Pong last;
} TcpPeer;

struct CommControl {
	CommOptions options;
	int rank, size;
	double patience;      /* seconds */
	TcpPeer *peers;       /* of each rank; this one's is not used */
	pthread_mutex_t lock; /* of all that follows, and of peers */
	pthread_cond_t changed;
	pthread_mutex_t calls; /* held during a collective */
	int64_t n_calls;
	int n_waiting;  /* threads of this rank that wait for others in a call */
	double watched; /* when one last did by other means */
	double looked;  /* when one of them last looked for answers */
	_Atomic(const char *) doing;
	int64_t started[N_GROUPS]; /* collectives that the device runs */
	Status fault;              /* the first; all calls tell it */
	double must_end; /* another rank ends all: when this process does at the latest; 0: none does */
	bool closing;
	bool has_thread;
	pthread_t thread;
	int wake[2]; /* a pipe: the thread looks again */
};

void tcp_lock(CommControl *c);
void tcp_unlock(CommControl *c);
/* All others are with the lock. */
/* To a rank with a connection, else nothing is done; what the socket does not take the thread sends later. */
void tcp_send(CommControl *c, int rank, const FrameHead *head, const void *at);
void tcp_send_frame(CommControl *c, int rank, Frame *frame);
Frame *tcp_frame_new(const FrameHead *head, const void *at); /* with one user, the caller */
void tcp_frame_drop(Frame *frame);
/* The first frame of a call from that rank, whose user is then the caller; NULL: none has come. */
Frame *tcp_take(TcpPeer *peer);
/* Keeps the first fault and wakes who waits. */
void tcp_fail(CommControl *c, Status fault);
/* Waits until all is sent, or so many seconds. */
void tcp_flush(CommControl *c, double seconds);
/* Without the lock. */
Status tcp_link_open(CommControl *c);
void tcp_link_close(CommControl *c); /* and frees what is left of messages */

/* ---- comm/tcp/beat.c: is a rank alive that is waited for? */
typedef struct {
	const char *what; /* "all_gather" */
	int64_t number;   /* of control's calls; -1: of none, `what` says it all */
	const int *ranks; /* that it waits for */
	int n;
	double since, told;
} TcpWait;
void tcp_answer(CommControl *c, int rank);
void tcp_hear(CommControl *c, int rank, const Pong *pong);
/* With the lock: asks them and looks at what they answer. EXIT_HANG: one has been silent for `patience` seconds.
 * *line: what is to be reported. */
Status tcp_beat(CommControl *c, TcpWait *w, Text *line);
void tcp_add_place(Text *to, const TcpWait *w); /* "all_gather 12 of control" */
/* For who waits for all ranks by other means, since a moment, in `what`: "all_reduce 3 of group data". Reports what there is to
 * say; *told is when it last did. A fault: a rank is lost, or ends all. */
Status tcp_watch(CommControl *c, const char *what, double since, double *told);
/* As in CommControlOps. */
void tcp_started(CommControl *c, CommGroup group, int64_t n);
Status tcp_watch_collective(CommControl *c, CommWatch *watch);

/* ---- comm/tcp/start.c: connects all ranks */
Status tcp_start(CommControl *c, const TcpPlace *place);
void tcp_report(const CommControl *c, Text *line); /* and frees it */

/* ---- comm/tcp/file.c: the file in which rank 0 says where it listens */
typedef struct {
	uint64_t job, nonce;
	char host[HOST_BYTES];
	int port;
} TcpMeeting;
Status tcp_meeting_write(const char *path, const TcpMeeting *meeting);
/* false: there is none yet, or it is no such file. */
bool tcp_meeting_read(const char *path, TcpMeeting *out);

#endif
