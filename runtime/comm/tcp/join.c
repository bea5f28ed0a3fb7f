/* How a rank finds rank 0 and joins it (start.c). Rank 0 may start later, or listen at any port of a range. The file in which
 * rank 0 writes its address may be left from an older run. So the rank asks every process that listens whether it is rank 0,
 * and keeps asking until it finds rank 0. */
#include "runtime/comm/tcp/link.h"
#include "runtime/comm/tcp/meet.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
	CommControl *c;
	const TcpPlace *place;
	TcpMeeting at; /* address at which rank 0 should be */
	int n_ports;
	char why[512];   /* why rank 0 was not reached */
	bool unresolved; /* rank 0's host name could not be resolved */
	double since, told;
} Search;

static bool
send_hello(const Search *s, int fd)
{
	Hello h = {.version = TCP_VERSION,
	           .rank = s->c->rank,
	           .size = s->c->size,
	           .job = s->place->job,
	           .nonce = s->at.nonce};

	memcpy(h.magic, tcp_magic, sizeof(h.magic));
	return send(fd, &h, sizeof(h), MSG_NOSIGNAL) == sizeof(h);
}

/* Reads an answer within `seconds`. If none arrives, returns false, and *why says what happened instead. */
static bool
read_answer(int fd, double seconds, Answer *out, const char **why)
{
	double end = seconds_now() + seconds;

	for (size_t got = 0; got < sizeof(*out);) {
		*why = "no answer";
		if (!socket_wait(fd, end - seconds_now()))
			return false;
		ssize_t n = recv(fd, (char *)out + got, sizeof(*out) - got, 0);
		if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
			continue;
		*why = n < 0 ? strerror(errno) : "the connection was closed";
		if (n <= 0)
			return false;
		got += (size_t)n;
	}
	*why = "the program that listens there is not rank 0 of gradc";
	return memcmp(out->magic, tcp_magic, sizeof(out->magic)) == 0;
}

/* A fault if the answer says that rank 0 refuses this rank; otherwise NULL. */
static Status
refusal(const Search *s, const Answer *a)
{
	int rank = s->c->rank;
	const char *host = s->at.host;

	switch (a->kind) {
	case ANSWER_VERSION:
		return status_error(EXIT_COMM,
		                    "rank %d speaks version %d, rank 0 at %s version %d: all "
		                    "ranks need executables compiled by the same version of "
		                    "gradc",
		                    rank, TCP_VERSION, host, a->value);
	case ANSWER_SIZE:
		return status_error(EXIT_COMM, "rank %d has %s=%d, rank 0 at %s has %d", rank,
		                    s->place->size_name, s->c->size, host, a->value);
	case ANSWER_TWICE:
		return status_error(EXIT_COMM,
		                    "%s=%d is taken: another process with this rank "
		                    "has already joined rank 0 at %s",
		                    s->place->rank_name, rank, host);
	case ANSWER_RANK:
		return status_error(EXIT_COMM, "%s=%d is not a rank that rank 0 at %s expects",
		                    s->place->rank_name, rank, host);
	default: return NULL;
	}
}

/* Tries to connect and join. *out: the connection to rank 0; -1 if it failed, with the reason in s->why. */
static Status
try_address(Search *s, const struct addrinfo *to, int *out)
{
	double patience = s->c->patience < 2 ? s->c->patience : 2;
	const char *why = NULL;
	Answer answer = {0};
	int fd = socket_connect(to, patience, &why);
	Status status = NULL;

	*out = -1;
	if (fd >= 0 && !send_hello(s, fd))
		why = strerror(errno);
	else if (fd >= 0 && read_answer(fd, patience, &answer, &why)) {
		why = "rank 0 of another job listens there";
		status = refusal(s, &answer);
		if (answer.kind == ANSWER_WELCOME && answer.nonce == s->at.nonce &&
		    send_hello(s, fd)) {
			*out = fd;
			return NULL;
		}
	}
	snprintf(s->why, sizeof(s->why), "%s", why);
	if (fd >= 0)
		close(fd);
	return status;
}

static Status
try_port(Search *s, int port, int *out)
{
	struct addrinfo *all = NULL,
			hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	Status status = NULL;
	char number[16];

	*out = -1;
	snprintf(number, sizeof(number), "%d", port);
	int code = getaddrinfo(s->at.host, number, &hints, &all);
	s->unresolved = code != 0;
	if (code) {
		snprintf(s->why, sizeof(s->why), "%s", gai_strerror(code));
		return NULL;
	}
	for (const struct addrinfo *a = all; a && *out < 0 && !status; a = a->ai_next)
		status = try_address(s, a, out);
	freeaddrinfo(all);
	return status;
}

/* Finds the address of rank 0; false if it is not known yet. */
static bool
find_place(Search *s)
{
	const TcpPlace *p = s->place;
	char own[HOST_BYTES] = "";

	s->n_ports = 1;
	if (!p->file[0]) {
		memcpy(s->at.host, p->host, HOST_BYTES);
		s->at.port = p->port;
		s->n_ports = p->n_ports;
		return true;
	}
	if (!tcp_meeting_read(p->file, &s->at)) {
		snprintf(s->why, sizeof(s->why), "rank 0 has not written the file");
		return false;
	}
	if (s->at.job != p->job) {
		snprintf(s->why, sizeof(s->why), "the file was written by another job");
		return false;
	}
	/* A host may be unable to resolve its own name. */
	if (gethostname(own, sizeof(own) - 1) == 0 && strcmp(own, s->at.host) == 0)
		strcpy(s->at.host, "localhost");
	return true;
}

static Status
try_ports(Search *s, int *out)
{
	*out = -1;
	s->unresolved = false;
	if (!find_place(s))
		return NULL;
	for (int i = 0; i < s->n_ports && *out < 0 && !s->unresolved; i++)
		RETURN_IF_ERROR(try_port(s, s->at.port + i, out));
	if (s->unresolved && seconds_now() - s->since > s->c->patience)
		return status_error(EXIT_COMM, "rank %d: the host of rank 0, %s, is not known: %s",
		                    s->c->rank, s->at.host, s->why);
	return NULL;
}

static void
tell(Search *s)
{
	const TcpPlace *p = s->place;
	double now = seconds_now();
	Text line = {0};

	if (now - s->told <= s->c->patience)
		return;
	s->told = now;
	text_printf(&line, "rank %d: has waited %.0f s for rank 0 at ", s->c->rank, now - s->since);
	if (p->file[0])
		text_printf(&line, "%s", p->file);
	else if (p->n_ports > 1)
		text_printf(&line, "%s, ports %d to %d", p->host, p->port,
		            p->port + p->n_ports - 1);
	else
		text_printf(&line, "%s, port %d", p->host, p->port);
	text_printf(&line, ": %s", s->why);
	tcp_report(s->c, &line);
}

/* Waits until all ranks have joined and rank 0 sends ANSWER_START. Meanwhile rank 0 sends ANSWER_WAIT now and then. */
static Status
await_start(const Search *s, int fd)
{
	double patience = s->c->patience, heard = seconds_now(), looked = heard;
	const char *why;
	Answer answer = {.kind = ANSWER_WAIT};

	while (answer.kind == ANSWER_WAIT) {
		bool is_there = socket_wait(fd, patience / 8);
		double now = seconds_now();
		if (is_there && !read_answer(fd, patience, &answer, &why))
			return status_error(EXIT_COMM,
			                    "rank %d: rank 0 is gone before all ranks had "
			                    "started: %s",
			                    s->c->rank, why);
		if (is_there || now - looked > patience / 2) /* this rank itself was suspended */
			heard = now;
		looked = now;
		if (now - heard > patience)
			return status_error(EXIT_HANG,
			                    "rank %d: waited %.0f s for rank 0 to start, without "
			                    "an answer: stopped or hanging",
			                    s->c->rank, now - heard);
	}
	return refusal(s, &answer);
}

Status
tcp_join(CommControl *c, const TcpPlace *place)
{
	enum { FIRST_PAUSE = 20000000, LAST_PAUSE = 320000000 };
	Search s = {.c = c, .place = place, .since = seconds_now(), .told = seconds_now()};
	long pause = FIRST_PAUSE;
	int fd;

	for (;;) {
		RETURN_IF_ERROR(try_ports(&s, &fd));
		if (fd >= 0)
			break;
		tell(&s);
		nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
		pause = pause < LAST_PAUSE ? 2 * pause : pause;
	}
	c->peers[0].fd = fd;
	return await_start(&s, fd);
}
