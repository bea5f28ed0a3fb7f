/* Connects the ranks at the start of a run. Rank 0 listens, the other ranks connect. For example rank 2:
 *
 * rank 2                                rank 0
 * Hello: rank, ranks, job      ->
 *                              <-       Answer: welcome, or why it does not fit
 * Hello again                  ->       rank 2 has joined
 *                              <-       Answer: wait, now and then
 *                              <-       Answer: start, when all ranks have joined
 *
 * Anybody may connect. Connections that do not begin with a Hello are dropped, and so are ranks of another job. A rank of this
 * job that does not fit, for example of another version, makes the start fail on all ranks. Rank 0 names missing ranks once
 * every `patience` seconds. */
#include "runtime/comm/tcp/link.h"
#include "runtime/comm/tcp/meet.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

void
tcp_report(const CommControl *c, Text *line)
{
	if (line->n && c->options.report)
		c->options.report(c->options.context, line->at);
	text_free(line);
}

static bool
send_answer(int fd, AnswerKind kind, int value, uint64_t nonce)
{
	Answer a = {.kind = kind, .value = value, .nonce = nonce};

	memcpy(a.magic, tcp_magic, sizeof(a.magic));
	return send(fd, &a, sizeof(a), MSG_NOSIGNAL) == sizeof(a);
}

enum { MOST_GUESTS = 256 };
/* A guest: a connection to rank 0 that has not joined yet. */
typedef struct {
	int fd;
	double since;
	Hello hello;
	size_t got;
	bool greeted; /* has been welcomed */
	char from[HOST_BYTES];
} Guest;
typedef struct {
	CommControl *c;
	const TcpPlace *place;
	int listener, port;
	uint64_t nonce;      /* nonce of the file; 0 without a file */
	CleanupSlot cleanup; /* removes the file if the process ends */
	Guest guests[MOST_GUESTS];
	int n_guests, n_there;
	bool told_of_stranger;
	/* told: when the user was last told which ranks are missing. waved: when joined ranks were last told to wait. */
	double told, waved;
} Host;

static void
drop_guest(Host *h, int i)
{
	close(h->guests[i].fd);
	h->guests[i] = h->guests[--h->n_guests];
}

static Status
let_in(Host *h)
{
	Guest g = {.since = seconds_now()};

	while (h->n_guests < MOST_GUESTS) { /* further connections wait in the listener's queue */
		g.fd = socket_accept(h->listener, g.from);
		if (g.fd < 0 && (errno == EMFILE || errno == ENFILE))
			return status_error(
				EXIT_COMM,
				"rank 0: %d of %d ranks are there, and no more files may "
				"be open (`ulimit -n`)",
				h->n_there + 1, h->c->size);
		if (g.fd < 0)
			return NULL;
		h->guests[h->n_guests++] = g;
	}
	return NULL;
}

static AnswerKind
judge(const Host *h, const Hello *hello, int *value)
{
	const CommControl *c = h->c;

	*value = 0;
	if (hello->job != h->place->job || hello->nonce != h->nonce)
		return ANSWER_OTHER_JOB;
	if (hello->version != TCP_VERSION) {
		*value = TCP_VERSION;
		return ANSWER_VERSION;
	}
	*value = c->size;
	if (hello->size != c->size)
		return ANSWER_SIZE;
	if (hello->rank <= 0 || hello->rank >= c->size)
		return ANSWER_RANK;
	*value = hello->rank;
	return c->peers[hello->rank].fd >= 0 ? ANSWER_TWICE : ANSWER_WELCOME;
}

static void
tell_of_stranger(Host *h, const char *from, const char *what)
{
	Text line = {0};

	if (h->told_of_stranger)
		return;
	h->told_of_stranger = true;
	text_printf(
		&line,
		"rank 0: %s connected to port %d, where rank 0 waits for ranks, but is %s: dropped",
		from, h->port, what);
	tcp_report(h->c, &line);
}

static Status
misfit(const Host *h, const Guest *g, AnswerKind kind)
{
	const char *size = h->place->size_name, *rank = h->place->rank_name;

	if (kind == ANSWER_SIZE)
		return status_error(EXIT_COMM,
		                    "rank 0 has %s=%d, rank %d from %s has %d: all need the same",
		                    size, h->c->size, g->hello.rank, g->from, g->hello.size);
	if (kind == ANSWER_VERSION)
		return status_error(EXIT_COMM,
		                    "rank 0 speaks version %d, a rank from %s version %u: all "
		                    "ranks need executables compiled by the same version of "
		                    "gradc",
		                    TCP_VERSION, g->from, g->hello.version);
	if (kind == ANSWER_TWICE)
		return status_error(EXIT_COMM, "two ranks have %s=%d, the second one from %s", rank,
		                    g->hello.rank, g->from);
	return status_error(
		EXIT_COMM,
		"a rank from %s has %s=%d, and ranks are 0 to %d, of which rank 0 is this one",
		g->from, rank, g->hello.rank, h->c->size - 1);
}

/* Handles a guest's Hello: the first Hello is answered, the second makes the guest a rank. */
static Status
hear_hello(Host *h, int i)
{
	Guest *g = &h->guests[i];
	int value;
	AnswerKind kind = judge(h, &g->hello, &value);

	if (kind == ANSWER_WELCOME && g->greeted) {
		h->c->peers[g->hello.rank].fd = g->fd;
		h->n_there++;
		*g = h->guests[--h->n_guests];
		return NULL;
	}
	bool sent = send_answer(g->fd, kind, value, h->nonce);
	g->greeted = true;
	g->got = 0;
	if (kind == ANSWER_WELCOME && sent)
		return NULL;
	Status status = kind > ANSWER_OTHER_JOB ? misfit(h, g, kind) : NULL;
	/* no message if there are several ports: then the rank looks for its own rank 0 at the next port */
	if (kind == ANSWER_OTHER_JOB && h->place->n_ports == 1)
		tell_of_stranger(h, g->from, "a rank of another job");
	drop_guest(h, i);
	return status;
}

static Status
read_guest(Host *h, int i)
{
	Guest *g = &h->guests[i];
	ssize_t n = recv(g->fd, (char *)&g->hello + g->got, sizeof(Hello) - g->got, 0);

	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return NULL;
	g->got += n > 0 ? (size_t)n : 0;
	size_t known = g->got < sizeof(g->hello.magic) ? g->got : sizeof(g->hello.magic);
	bool stranger = memcmp(g->hello.magic, tcp_magic, known) != 0;
	if (stranger)
		tell_of_stranger(h, g->from, "not a rank");
	if (n <= 0 || stranger) {
		drop_guest(h, i);
		return NULL;
	}
	return g->got == sizeof(Hello) ? hear_hello(h, i) : NULL;
}

/* Checks that joined ranks are still connected. A joined rank sends nothing before the start, so the check is a peek at its
 * socket. */
static Status
check_ranks(Host *h)
{
	char byte;

	for (int r = 1; r < h->c->size; r++) {
		int fd = h->c->peers[r].fd;
		ssize_t n = fd < 0 ? -1 : recv(fd, &byte, 1, MSG_PEEK);
		if (fd >= 0 && (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK &&
		                           errno != EINTR)))
			return status_error(EXIT_COMM,
			                    "rank 0: rank %d is gone before all ranks had started",
			                    r);
	}
	return NULL;
}

static void
tell_missing(Host *h, double since)
{
	enum { MOST_NAMED = 8 };
	Text line = {0};
	int n = 0;

	text_printf(&line, "rank 0: has waited %.0f s at port %d for", seconds_now() - since,
	            h->port);
	for (int r = 1; r < h->c->size; r++)
		if (h->c->peers[r].fd < 0 && n++ < MOST_NAMED)
			text_printf(&line, "%s%d", n > 1 ? ", " : " rank ", r);
	if (n > MOST_NAMED)
		text_printf(&line, " and %d more", n - MOST_NAMED);
	text_printf(&line, " to start; %d of %d are there", h->n_there + 1, h->c->size);
	tcp_report(h->c, &line);
}

/* Fails if another run has overwritten the rendezvous file. */
static Status
check_file(const Host *h)
{
	TcpMeeting m;

	if (h->nonce && tcp_meeting_read(h->place->file, &m) && m.nonce != h->nonce)
		return status_error(
			EXIT_COMM,
			"rank 0: another run has overwritten %s: each run needs its own file",
			h->place->file);
	return NULL;
}

static Status
look_after_ranks(Host *h, double since)
{
	double now = seconds_now(), patience = h->c->patience;

	for (int i = h->n_guests - 1; i >= 0; i--)
		if (now - h->guests[i].since > patience)
			drop_guest(h, i);
	if (now - h->waved > patience / 4) {
		h->waved = now;
		RETURN_IF_ERROR(check_file(h));
		for (int r = 1; r < h->c->size; r++)
			if (h->c->peers[r].fd >= 0)
				send_answer(h->c->peers[r].fd, ANSWER_WAIT, 0, h->nonce);
	}
	if (now - h->told > patience) {
		h->told = now;
		tell_missing(h, since);
	}
	return check_ranks(h);
}

static Status
gather_ranks(Host *h)
{
	struct pollfd sockets[MOST_GUESTS + 1];
	double since = seconds_now();
	int pause = h->c->patience < 1 ? 50 : 200;

	h->told = h->waved = since;
	while (h->n_there < h->c->size - 1) {
		int n = h->n_guests;
		for (int i = 0; i <= n; i++)
			sockets[i] = (struct pollfd){.fd = i < n ? h->guests[i].fd : h->listener,
			                             .events = POLLIN};
		poll(sockets, (nfds_t)n + (n < MOST_GUESTS), pause);
		/* backwards, because a dropped guest is replaced by the last one */
		for (int i = n - 1; i >= 0; i--)
			if (sockets[i].revents)
				RETURN_IF_ERROR(read_guest(h, i));
		RETURN_IF_ERROR(let_in(h));
		RETURN_IF_ERROR(look_after_ranks(h, since));
	}
	for (int r = 1; r < h->c->size; r++)
		send_answer(h->c->peers[r].fd, ANSWER_START, 0, h->nonce);
	return NULL;
}

static Status
write_file(Host *h)
{
	TcpMeeting m = {.job = h->place->job, .port = h->port};

	while (!h->nonce)
		if (getrandom(&h->nonce, sizeof(h->nonce), 0) != sizeof(h->nonce))
			return status_error(EXIT_SYSTEM, "no random number: %s", strerror(errno));
	m.nonce = h->nonce;
	if (gethostname(m.host, sizeof(m.host) - 1))
		return status_error(EXIT_SYSTEM, "no name of this host: %s", strerror(errno));
	RETURN_IF_ERROR(tcp_meeting_write(h->place->file, &m));
	if (!cleanup_begin_making())
		return status_error(EXIT_SYSTEM, "%s: the process is ending", h->place->file);
	h->cleanup = cleanup_add_path(h->place->file);
	cleanup_end_making();
	return NULL;
}

/* Removes the rendezvous file, but only if this run has written it. */
static void
remove_file(const Host *h)
{
	TcpMeeting m;

	if (tcp_meeting_read(h->place->file, &m) && m.nonce == h->nonce)
		unlink(h->place->file);
	cleanup_forget(h->cleanup);
}

static Status
start_as_host(CommControl *c, const TcpPlace *place)
{
	Host h = {.c = c, .place = place, .cleanup = -1};
	bool has_file = place->file[0];

	RETURN_IF_ERROR(socket_listen(place, &h.listener, &h.port));
	Status status = has_file ? write_file(&h) : NULL;
	if (!status)
		status = gather_ranks(&h);
	close(h.listener);
	while (h.n_guests)
		drop_guest(&h, 0);
	if (has_file)
		remove_file(&h);
	return status;
}

Status
tcp_start(CommControl *c, const TcpPlace *place)
{
	return c->rank == 0 ? start_as_host(c, place) : tcp_join(c, place);
}
