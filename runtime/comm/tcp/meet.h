/* How ranks meet over TCP: their first words, and sockets. */
#ifndef GRADC_COMM_TCP_MEET_H
#define GRADC_COMM_TCP_MEET_H

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
	ANSWER_VERSION, /* value: rank 0's */
	ANSWER_SIZE,    /* value: rank 0's */
	ANSWER_RANK,    /* no rank of so many */
	ANSWER_TWICE,   /* that rank is there already */
} AnswerKind;
typedef struct {
	char magic[8];
	uint32_t kind;
	int32_t value;
	uint64_t nonce;
} Answer;
extern const char tcp_magic[8];

/* ---- comm/tcp/socket.c: sockets that do not wait, and are not inherited */
/* Where rank 0 of that place listens. EXIT_COMM: no port is free. */
Status socket_listen(const TcpPlace *place, int *fd, int *port);
/* The next one that has connected, and its address; -1: none has. */
int socket_accept(int listener, char from[HOST_BYTES]);
/* -1: not within so many seconds; *why: constant, or until the next such call of the thread. */
int socket_connect(const struct addrinfo *to, double seconds, const char **why);
/* Has it something to read, or ended, within so many seconds? */
bool socket_wait(int fd, double seconds);

/* ---- comm/tcp/join.c: a rank finds rank 0 */
Status tcp_join(CommControl *c, const TcpPlace *place);

#endif
