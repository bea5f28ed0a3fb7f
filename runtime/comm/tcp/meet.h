/* Private to runtime/comm/tcp: how ranks find each other over TCP before the first message, and the sockets that they use. */
#ifndef GRADC_RUNTIME_COMM_TCP_MEET_H
#define GRADC_RUNTIME_COMM_TCP_MEET_H

#include "runtime/comm/tcp/tcp.h"

#include <netdb.h>

enum { TCP_VERSION = 1 };
typedef struct {
	char magic[8];
	uint32_t version;
	int32_t rank, size;
	uint32_t unused;
	uint64_t job, nonce;
} Hello;
typedef enum {
	ANSWER_WELCOME,
	ANSWER_WAIT,
	ANSWER_START,
	ANSWER_OTHER_JOB,
	ANSWER_VERSION, /* value: rank 0's version */
	ANSWER_SIZE,    /* value: rank 0's number of ranks */
	ANSWER_RANK,    /* there is no such rank */
	ANSWER_TWICE,   /* that rank has already joined */
} AnswerKind;
typedef struct {
	char magic[8];
	uint32_t kind;
	int32_t value;
	uint64_t nonce;
} Answer;
extern const char tcp_magic[8];

/* ---- socket.c: sockets that do not block and are not inherited */
/* Listens as rank 0 at the first free port of `place`. EXIT_COMM if no port is free. */
Status socket_listen(const TcpPlace *place, int *fd, int *port);
/* Accepts the next new connection and stores its address; -1 if there is none. */
int socket_accept(int listener, char from[HOST_BYTES]);
/* Connects to `to`; -1 if that takes more than `seconds` or fails. *why: the reason, a constant or valid until the thread's
 * next call. */
int socket_connect(const struct addrinfo *to, double seconds, const char **why);
/* Waits up to `seconds`. True if the socket has something to read or has been closed. */
bool socket_wait(int fd, double seconds);

/* ---- join.c: how a rank finds rank 0 */
Status tcp_join(CommControl *c, const TcpPlace *place);

#endif
