/* The connections of a rank, and the messages on them. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_COMM_TCP_LINK_H
#define GRADC_RUNTIME_COMM_TCP_LINK_H

#include "runtime/comm/tcp/tcp.h"

/* ---- env.c: the rank of this process, and where rank 0 listens */
/* The first host of srun's list: node01 in "node[01-03,7],other". false if it is not a list. */
bool tcp_first_host(const char *list, char out[HOST_BYTES]);

/* ---- link.c: messages */
typedef enum {
	FRAME_PART,  /* a rank's contribution to a call */
	FRAME_WHOLE, /* the result of a call */
	FRAME_PING,
	FRAME_PONG,
	FRAME_LOST,  /* number: the lost rank */
	FRAME_ABORT, /* number: the exit code */
	FRAME_BYE,   /* no more frames follow */
	N_FRAMES,
} FrameKind;
void tcp_lock(CommControl *c);
void tcp_unlock(CommControl *c);
/* All functions of link.c are called with the lock held, except those whose comment says otherwise. */
/* Sends a frame to a rank if the rank is connected. Bytes that the socket does not take now are sent later by the thread. */
void tcp_send(CommControl *c, int rank, const FrameHead *head, const void *at);
void tcp_send_frame(CommControl *c, int rank, Frame *frame);
Frame *tcp_frame_new(const FrameHead *head, const void *at); /* `users` is 1: the caller */
void tcp_frame_drop(Frame *frame);
/* The first received frame of a call, which the caller must drop; NULL if none has arrived. */
Frame *tcp_take(TcpPeer *peer);
/* Stores the first fault and wakes all waiting threads. */
void tcp_fail(CommControl *c, Status fault);
/* Waits until all frames are sent, but at most `seconds`. */
void tcp_flush(CommControl *c, double seconds);
/* tcp_link_open and tcp_link_close are called without the lock. */
Status tcp_link_open(CommControl *c);
void tcp_link_close(CommControl *c); /* also frees messages that were not taken */

/* ---- beat.c: is an awaited rank alive? */
typedef struct {
	const char *what; /* such as "all_gather" */
	/* number of the all_gather or broadcast; -1 for a wait outside of control's calls: then `what` describes the wait */
	int64_t number;
	const int *ranks; /* awaited ranks */
	int n;
	double since, told;
} TcpWait;
void tcp_answer(CommControl *c, int rank);
void tcp_hear(CommControl *c, int rank, const Pong *pong);
/* Called with the lock held. Pings the awaited ranks and looks at their answers. EXIT_HANG if a rank has been silent for
 * `patience` seconds. *line: text to report. */
Status tcp_beat(CommControl *c, TcpWait *w, Text *line);
void tcp_add_place(Text *to, const TcpWait *w); /* "all_gather 12 of the control connections" */
/* See CommControlOps. */
void tcp_started(CommControl *c, CommGroup group, int64_t n);
Status tcp_watch_collective(CommControl *c, CommWatch *watch);

/* ---- start.c: connects all ranks */
Status tcp_start(CommControl *c, const TcpPlace *place);
void tcp_report(const CommControl *c, Text *line); /* frees the line */

/* ---- file.c: the file in which rank 0 says where it listens */
typedef struct {
	uint64_t job, nonce;
	char host[HOST_BYTES];
	int port;
} TcpMeeting;
Status tcp_meeting_write(const char *path, const TcpMeeting *meeting);
/* Reads a rendezvous file; false if there is no file, or it is not a rendezvous file. */
bool tcp_meeting_read(const char *path, TcpMeeting *out);

#endif
