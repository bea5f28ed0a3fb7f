/* Messages ("frames") over the TCP connections, and the thread that reads them. If a connection closes without FRAME_BYE, its
 * rank is lost; rank 0 tells all other ranks. */
#include "runtime/comm/tcp/link.h"
#include "runtime/comm/comm.h"
#include "runtime/host/host.h"

#include <pthread.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	MOST_BYTES = 1 << 26
}; /* of a message; control's calls split their data into smaller messages */

static void
unlock(void *lock)
{
	pthread_mutex_unlock(lock);
}

void
tcp_lock(CommControl *c)
{
	pthread_mutex_lock(&c->lock);
	memory_hold(unlock, &c->lock);
}

void
tcp_unlock(CommControl *c)
{
	memory_let_go();
	pthread_mutex_unlock(&c->lock);
}

void
tcp_fail(CommControl *c, Status fault)
{
	if (c->fault)
		status_free(fault);
	else
		c->fault = fault;
	pthread_cond_broadcast(&c->changed);
}

/* ---- frames and their queues */
Frame *
tcp_frame_new(const FrameHead *head, const void *at)
{
	Frame *f = memory_get(sizeof(*f) + (size_t)head->bytes);

	f->users = 1;
	f->head = *head;
	if (at && head->bytes)
		memcpy(f->at, at, (size_t)head->bytes);
	return f;
}

void
tcp_frame_drop(Frame *f)
{
	if (f && --f->users == 0)
		memory_free(f);
}

static void
queue_add(Queue *q, Frame *f)
{
	Queued *last = memory_get(sizeof(*last));

	*last = (Queued){NULL, f};
	f->users++;
	*(q->first ? q->end : &q->first) = last;
	q->end = &last->next;
}

/* Takes the queue's first frame, which the caller must drop. */
static Frame *
queue_take(Queue *q)
{
	Queued *first = q->first;
	Frame *f = first ? first->frame : NULL;

	if (first)
		q->first = first->next;
	memory_free(first);
	return f;
}

Frame *
tcp_take(TcpPeer *peer)
{
	return queue_take(&peer->in);
}

static void
empty(Queue *q)
{
	while (q->first)
		tcp_frame_drop(queue_take(q));
}

/* ---- the end of a connection */
static void
disconnect(TcpPeer *p)
{
	close(p->fd);
	p->fd = -1;
	p->ended = true;
	empty(&p->out);
	tcp_frame_drop(p->reading);
	p->reading = NULL;
	p->sent = p->got = 0;
}

static void
tell_others(CommControl *c, const FrameHead *head, int but)
{
	for (int r = 0; r < c->size; r++)
		if (r != but)
			tcp_send(c, r, head, NULL);
}

/* Notes that the rank is lost. why: text such as "its connection was closed". */
static void
lose(CommControl *c, int rank, const char *why)
{
	bool ended = c->peers[rank].ended;

	disconnect(&c->peers[rank]);
	if (ended || c->closing) {
		pthread_cond_broadcast(&c->changed);
		return;
	}
	bool first = !c->fault;
	tcp_fail(c, status_error(EXIT_COMM, "rank %d: rank %d is gone: %s", c->rank, rank, why));
	if (c->rank == 0 && first)
		tell_others(c, &(FrameHead){.kind = FRAME_LOST, .number = rank}, rank);
}

/* ---- sending */
static const char *
bytes_of(const Frame *f, size_t done, size_t *n)
{
	bool in_head = done < sizeof(FrameHead);

	*n = in_head ? sizeof(FrameHead) - done : sizeof(FrameHead) + (size_t)f->head.bytes - done;
	return in_head ? (const char *)&f->head + done : f->at + (done - sizeof(FrameHead));
}

/* Sends as many queued frames as the socket takes now. */
static void
send_queued(CommControl *c, int rank)
{
	TcpPeer *p = &c->peers[rank];

	while (p->fd >= 0 && p->out.first) {
		const Frame *f = p->out.first->frame;
		size_t n;
		const char *at = bytes_of(f, p->sent, &n);
		ssize_t done = send(p->fd, at, n, MSG_NOSIGNAL);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (done < 0) {
			/* The rank's earlier messages are still read: they may tell why it ended. */
			empty(&p->out);
			p->sent = 0;
			return;
		}
		p->sent += (size_t)done;
		if (p->sent == sizeof(FrameHead) + (size_t)f->head.bytes) {
			tcp_frame_drop(queue_take(&p->out));
			p->sent = 0;
		}
	}
}

static void
wake(const CommControl *c)
{
	ssize_t n = write(c->wake[1], "", 1);

	(void)n; /* a full pipe wakes the thread as well */
}

void
tcp_send_frame(CommControl *c, int rank, Frame *f)
{
	TcpPeer *p = &c->peers[rank];

	if (p->fd < 0)
		return;
	queue_add(&p->out, f);
	if (!p->out.first->next)
		send_queued(c, rank);
	if (p->out.first)
		wake(c);
}

void
tcp_send(CommControl *c, int rank, const FrameHead *head, const void *at)
{
	Frame *f = tcp_frame_new(head, at);

	tcp_send_frame(c, rank, f);
	tcp_frame_drop(f);
}

/* ---- received frames */
static void
take_message(CommControl *c, int rank, Frame *f)
{
	queue_add(&c->peers[rank].in, f);
}

static void
take_ping(CommControl *c, int rank, Frame *f)
{
	(void)f;
	tcp_answer(c, rank);
}

static void
take_pong(CommControl *c, int rank, Frame *f)
{
	Pong pong;

	memcpy(&pong, f->at, sizeof(pong));
	tcp_hear(c, rank, &pong);
}

static void
take_lost(CommControl *c, int rank, Frame *f)
{
	(void)rank;
	tcp_fail(c, status_error(EXIT_COMM,
	                         "rank %d: rank %lld is gone: its connection to rank 0 was closed",
	                         c->rank, (long long)f->head.number));
}

/* Another rank ends all ranks; it has already reported why, so this rank reports nothing. */
static void
take_abort(CommControl *c, int rank, Frame *f)
{
	enum { GRACE = 3 }; /* seconds that this rank's other threads have to end the process */

	if (c->rank == 0)
		tell_others(c, &f->head, rank);
	if (c->must_end == 0)
		c->must_end = seconds_now() + GRACE;
	tcp_fail(c, status_error((int)f->head.number, "%s", ""));
}

static void
take_bye(CommControl *c, int rank, Frame *f)
{
	(void)f;
	c->peers[rank].ended = true;
}

static const struct {
	int64_t least, most; /* in bytes */
	void (*take)(CommControl *c, int rank, Frame *f);
} kinds[N_FRAMES] = {
	[FRAME_PART] = {0, MOST_BYTES, take_message},
	[FRAME_WHOLE] = {0, MOST_BYTES, take_message},
	[FRAME_PING] = {0, 0, take_ping},
	[FRAME_PONG] = {sizeof(Pong), sizeof(Pong), take_pong},
	[FRAME_LOST] = {0, 0, take_lost},
	[FRAME_ABORT] = {0, 0, take_abort},
	[FRAME_BYE] = {0, 0, take_bye},
};

static bool
makes_sense(const FrameHead *h)
{
	return h->kind < N_FRAMES && h->bytes >= kinds[h->kind].least &&
	       h->bytes <= kinds[h->kind].most;
}

/* Returns false if there is nothing more to read now. */
static bool
read_some(CommControl *c, int rank)
{
	TcpPeer *p = &c->peers[rank];
	bool in_head = !p->reading;
	size_t whole = in_head ? sizeof(FrameHead) : (size_t)p->reading->head.bytes;
	char *to = in_head ? (char *)&p->head : p->reading->at;
	ssize_t n = whole > p->got ? recv(p->fd, to + p->got, whole - p->got, 0) : 0;

	if (n < 0 && errno == EINTR)
		return true;
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return false;
	if (n < 0 || (n == 0 && whole > p->got)) {
		lose(c, rank, n < 0 ? strerror(errno) : "its connection was closed");
		return false;
	}
	p->got += (size_t)n;
	if (p->got < whole)
		return true;
	p->got = 0;
	if (in_head && !makes_sense(&p->head)) {
		lose(c, rank, "it sent something that is not a message");
		return false;
	}
	if (in_head)
		p->reading = tcp_frame_new(&p->head, NULL);
	if (in_head && p->head.bytes)
		return true;
	Frame *f = p->reading;
	p->reading = NULL;
	kinds[f->head.kind].take(c, rank, f);
	tcp_frame_drop(f);
	pthread_cond_broadcast(&c->changed);
	return p->fd >= 0;
}

/* ---- the thread */
static int
list_sockets(const CommControl *c, struct pollfd *to, int *ranks)
{
	int n = 1;

	to[0] = (struct pollfd){.fd = c->wake[0], .events = POLLIN};
	for (int r = 0; r < c->size; r++) {
		const TcpPeer *p = &c->peers[r];
		if (p->fd < 0)
			continue;
		ranks[n] = r;
		to[n++] = (struct pollfd){.fd = p->fd,
		                          .events = (short)(POLLIN | (p->out.first ? POLLOUT : 0))};
	}
	return n;
}

static void
handle_socket(CommControl *c, int rank, short events)
{
	if (events & POLLOUT)
		send_queued(c, rank);
	if (events & (POLLIN | POLLHUP | POLLERR))
		while (c->peers[rank].fd >= 0 && read_some(c, rank))
			;
}

/* Ends the process if another rank ends all ranks and this rank's own threads have not ended the process in time. */
static void
end_in_time(const CommControl *c)
{
	if (c->must_end == 0 || c->closing || seconds_now() < c->must_end)
		return;
	cleanup_now();
	_exit(c->fault->exit_code);
}

static void *
link_run(void *context)
{
	CommControl *c = context;
	struct pollfd *sockets = memory_zeroed((size_t)c->size + 1, sizeof(*sockets));
	int *ranks = memory_zeroed((size_t)c->size + 1, sizeof(*ranks));
	char ignored[64];

	tcp_lock(c);
	while (!c->closing) {
		int n = list_sockets(c, sockets, ranks);
		tcp_unlock(c);
		poll(sockets, (nfds_t)n, 500);
		if (sockets[0].revents & POLLIN)
			(void)!read(c->wake[0], ignored, sizeof(ignored));
		tcp_lock(c);
		for (int i = 1; i < n; i++)
			handle_socket(c, ranks[i], sockets[i].revents);
		end_in_time(c);
	}
	tcp_unlock(c);
	memory_free(sockets);
	memory_free(ranks);
	return NULL;
}

static bool
is_sending(const CommControl *c)
{
	for (int r = 0; r < c->size; r++)
		if (c->peers[r].out.first)
			return true;
	return false;
}

void
tcp_flush(CommControl *c, double seconds)
{
	double end = seconds_now() + seconds;

	while (is_sending(c) && seconds_now() < end) {
		tcp_unlock(c);
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		tcp_lock(c);
	}
}

Status
tcp_link_open(CommControl *c)
{
	if (pipe2(c->wake, O_CLOEXEC | O_NONBLOCK))
		return status_error(EXIT_SYSTEM, "no pipe to wake a thread: %s", strerror(errno));
	RETURN_IF_ERROR(thread_start(&c->thread, "to read from other ranks", link_run, c));
	c->has_thread = true;
	return NULL;
}

void
tcp_link_close(CommControl *c)
{
	if (c->has_thread) {
		tcp_lock(c);
		c->closing = true;
		tcp_unlock(c);
		wake(c);
		pthread_join(c->thread, NULL);
	}
	for (int r = 0; r < c->size && c->peers; r++) {
		if (c->peers[r].fd >= 0)
			disconnect(&c->peers[r]);
		empty(&c->peers[r].in);
	}
	for (int i = 0; i < 2; i++)
		if (c->wake[i] >= 0)
			close(c->wake[i]);
}
