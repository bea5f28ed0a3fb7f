/* Finds out whether a rank is alive that other ranks wait for. A thread of each rank answers pings, even while the rank
 * computes or waits for its disk. A rank first pings after waiting for a quarter of the patience, so a run without long waits
 * sends no pings:
 *
 * rank 1                                      rank 0
 * waits for rank 0's part of an all_reduce    its training thread waits for the disk
 * after 5 s: ping                             its beat thread: pong, "saving a checkpoint", collectives so far
 * after 20 s, and every 20 s: reports it
 * no pong for 20 s: rank 0 is lost
 *
 * A channel is a set of ranks that send each other messages: all ranks (control), or the members of a group (mpi.h). A pong
 * tells how many collectives of each channel its rank has started. A rank that has not started the awaited collective is late;
 * a rank that has started it waits as well. A rank whose training thread hangs still answers, so it is not lost: a watchdog
 * must find such a rank. */
#include "runtime/comm/comm.h"
#include "runtime/comm/mpi/mpi.h"
#include "runtime/host/host.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { TAG_PING = 1, TAG_PONG = 2, DOING_BYTES = 48 };
typedef struct {
	int32_t rank;
} Ping;
typedef struct {
	int64_t started[N_CHANNELS];
	char doing[DOING_BYTES];
} Pong;
/* Another rank, as seen from this rank. A handle stands for a message under way; 0: there is no such message. */
typedef struct {
	bool asked;       /* a ping was sent and is not answered */
	double at, heard; /* times of the last ping and the last pong */
	MpiHandle ping, pong,
		own_answer; /* this rank's ping, the other's pong, this rank's pong to the other */
	Ping question;
	Pong answer, own;
} Peer;
struct Beat {
	MpiHandle
		/* control's communicator; apart from pings and pongs it carries only collectives */
		comm;
	Peer *peers;
	double looked;    /* time when this rank last looked for pongs */
	MpiHandle listen; /* a receive for a ping from any rank */
	Ping asked_by;
	bool holds_ping; /* a ping was received and is not yet answered */
	_Atomic(const char *) doing;
	pthread_t thread;
	pthread_mutex_t sleep;
	pthread_cond_t wake;
	bool closing;
};

/* ---- messages; called with the library's lock held */
/* Has the message ended? A fault counts as the end: the other rank's silence will be noticed later. */
static bool
is_over(CommControl *c, MpiHandle *message)
{
	int done = 0;

	if (*message && (c->mpi.Test(message, &done, c->mpi.status_ignore) || done))
		*message = 0;
	return *message == 0;
}

static void
listen_for_pings(CommControl *c)
{
	Beat *b = c->beat;

	if (c->mpi.Irecv(&b->asked_by, sizeof(Ping), c->mpi.byte, c->mpi.any_source, TAG_PING,
	                 b->comm, &b->listen))
		b->listen = 0;
}

static void
answer(CommControl *c, Peer *p)
{
	const char *doing = atomic_load(&c->beat->doing);

	for (int i = 0; i < N_CHANNELS; i++)
		p->own.started[i] = c->channels[i].started;
	memset(p->own.doing, 0, DOING_BYTES);
	if (doing)
		strncpy(p->own.doing, doing, DOING_BYTES - 1);
	if (c->mpi.Isend(&p->own, sizeof(Pong), c->mpi.byte, c->beat->asked_by.rank, TAG_PONG,
	                 c->beat->comm, &p->own_answer))
		p->own_answer = 0;
}

static void
answer_pings(CommControl *c)
{
	Beat *b = c->beat;

	for (;;) {
		if (!b->holds_ping && (!b->listen || !is_over(c, &b->listen)))
			return;
		b->holds_ping = true;
		Peer *p = &b->peers[b->asked_by.rank];
		if (!is_over(c, &p->own_answer))
			return; /* the ping is answered the next time */
		answer(c, p);
		b->holds_ping = false;
		listen_for_pings(c);
	}
}

static void
ask(CommControl *c, int rank, double now)
{
	Peer *p = &c->beat->peers[rank];

	if (p->asked || now - p->heard < c->patience / 4 || !is_over(c, &p->ping))
		return;
	p->question.rank = c->rank;
	p->at = now;
	p->asked = true;
	if (c->mpi.Irecv(&p->answer, sizeof(Pong), c->mpi.byte, rank, TAG_PONG, c->beat->comm,
	                 &p->pong))
		p->pong = 0;
	else if (c->mpi.Isend(&p->question, sizeof(Ping), c->mpi.byte, rank, TAG_PING,
	                      c->beat->comm, &p->ping))
		p->ping = 0;
}

static void
hear(CommControl *c, int rank, double now)
{
	Peer *p = &c->beat->peers[rank];

	if (p->asked && p->pong && is_over(c, &p->pong)) {
		p->asked = false;
		p->heard = now;
	}
}

/* ---- the thread */
static void *
beat_run(void *context)
{
	CommControl *c = context;
	Beat *b = c->beat;
	double pause = c->patience / 16 < 0.25 ? c->patience / 16 : 0.25;
	struct timespec until;

	pthread_mutex_lock(&b->sleep);
	while (!b->closing) {
		clock_gettime(CLOCK_MONOTONIC, &until);
		int64_t ns = until.tv_nsec + (int64_t)(pause * 1e9);
		until.tv_sec += ns / 1000000000;
		until.tv_nsec = ns % 1000000000;
		pthread_cond_timedwait(&b->wake, &b->sleep, &until);
		if (b->closing)
			break;
		pthread_mutex_unlock(&b->sleep);
		mpi_lock(c);
		answer_pings(c);
		mpi_unlock(c);
		pthread_mutex_lock(&b->sleep);
	}
	pthread_mutex_unlock(&b->sleep);
	return NULL;
}

Status
beat_open(CommControl *c)
{
	if (c->size == 1)
		return NULL;
	Beat *b = memory_zeroed(1, sizeof(*b));
	b->peers = memory_zeroed((size_t)c->size, sizeof(Peer));
	b->comm = c->channels[CHANNEL_CONTROL].comm;
	c->beat = b;
	mpi_lock(c);
	listen_for_pings(c);
	mpi_unlock(c);
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&b->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_mutex_init(&b->sleep, NULL);
	return thread_start(&b->thread, "to answer other ranks", beat_run, c);
}

/* Cancels open receives, and gives the other messages a second to end. Returns false if some are still under way. */
static bool
end_messages(CommControl *c)
{
	Beat *b = c->beat;
	bool over = false;

	if (b->listen)
		c->mpi.Cancel(&b->listen);
	for (int r = 0; r < c->size; r++)
		if (b->peers[r].pong)
			c->mpi.Cancel(&b->peers[r].pong);
	for (double end = seconds_now() + 1; !over && seconds_now() < end;) {
		over = is_over(c, &b->listen);
		for (int r = 0; r < c->size; r++) {
			Peer *p = &b->peers[r];

			bool ping = is_over(c, &p->ping), pong = is_over(c, &p->pong);
			bool answer = is_over(c, &p->own_answer);

			over = over && ping && pong && answer;
		}
	}
	return over;
}

void
beat_close(CommControl *c)
{
	Beat *b = c->beat;

	if (!b)
		return;
	pthread_mutex_lock(&b->sleep);
	b->closing = true;
	pthread_cond_signal(&b->wake);
	pthread_mutex_unlock(&b->sleep);
	pthread_join(b->thread, NULL);
	mpi_lock(c);
	bool over = end_messages(c);
	mpi_unlock(c);
	if (!over)
		return; /* the library may still write to this memory */
	pthread_cond_destroy(&b->wake);
	pthread_mutex_destroy(&b->sleep);
	memory_free(b->peers);
	memory_free(b);
	c->beat = NULL;
}

void
beat_doing(CommControl *c, const char *what)
{
	if (c->beat)
		atomic_store(&c->beat->doing, what);
}

/* ---- waiting ranks */
/* Has the rank had enough time to answer, but has not answered? */
static bool
is_silent(const CommControl *c, const Wait *w, int rank, double now)
{
	const Peer *p = &c->beat->peers[rank];
	double last = p->heard > w->since ? p->heard : w->since;

	return p->asked && now - p->at >= 0.75 * c->patience && now - last > c->patience;
}

/* Has the rank not started the awaited collective? */
static bool
is_late(const CommControl *c, const Wait *w, int rank)
{
	const Pong *last = &c->beat->peers[rank].answer;
	ptrdiff_t channel = w->channel - c->channels;

	return w->number < 0 || last->started[channel] <= w->number;
}

bool
beat_has_late(const CommControl *c, const Wait *w, const int *ranks, int n)
{
	for (int i = 0; i < n; i++)
		if (ranks[i] != c->rank &&
		    (c->beat->peers[ranks[i]].heard <= w->since || is_late(c, w, ranks[i])))
			return true;
	return false;
}

/* "all_reduce 12 of group data", "all_gather 12 of the control connections" */
static void
add_place(Text *to, const CommControl *c, const Wait *w)
{
	bool is_control = w->channel == &c->channels[CHANNEL_CONTROL];

	text_add(to, w->what);
	if (w->number >= 0)
		text_printf(to, " %lld", (long long)w->number);
	if (is_control)
		text_add(to, " of the control connections");
	else
		text_printf(to, " of group %s", w->channel->name);
}

static Status
lose(const CommControl *c, const Wait *w, const int *ranks, int n, double now)
{
	Text silent = {0}, place = {0};

	for (int i = 0; i < n; i++)
		if (ranks[i] != c->rank && is_silent(c, w, ranks[i], now))
			text_printf(&silent, "%s%d", silent.n ? ", " : "", ranks[i]);
	if (!silent.n)
		return NULL;
	add_place(&place, c, w);
	Status status = status_error(
		EXIT_HANG,
		"rank %d: waited %.0f s %s rank %s in %s, without an answer: stopped or hanging",
		c->rank, now - w->since, w->sends ? "to send to" : "for", silent.at, place.at);
	text_free(&silent);
	text_free(&place);
	return status;
}

static bool
contains(const int *ranks, int n, int rank)
{
	for (int i = 0; i < n; i++)
		if (ranks[i] == rank)
			return true;
	return false;
}

/* Does this rank report to the user? One of the waiting ranks is enough: the first member that is not late. */
static bool
is_speaker(const CommControl *c, const Wait *w, const int *late, int n)
{
	for (int i = 0; i < w->channel->size; i++)
		if (!contains(late, n, w->channel->members[i]))
			return w->channel->members[i] == c->rank;
	return true;
}

static void
tell(const CommControl *c, Wait *w, const int *late, int n, Text *line)
{
	enum { MOST_NAMED = 8 };

	text_printf(line, "%srank %d: has waited %.0f s in ", line->n ? "; " : "", c->rank,
	            seconds_now() - w->since);
	add_place(line, c, w);
	for (int i = 0; i < n && i < MOST_NAMED; i++) {
		const char *doing = c->beat->peers[late[i]].answer.doing;

		text_printf(line, "%s rank %d",
		            i          ? ","
		            : w->sends ? " to send to"
		                       : " for",
		            late[i]);
		if (*doing)
			text_printf(line, " (%.*s)", DOING_BYTES, doing);
	}
	if (n > MOST_NAMED)
		text_printf(line, " and %d more", n - MOST_NAMED);
	text_add(line, n == 1 ? ", which answers" : n ? ", which answer" : ": all ranks answer");
}

static void
report(CommControl *c, Wait *w, const int *ranks, int n, Text *line)
{
	int *late, n_late = 0;

	for (int i = 0; i < n; i++)
		if (ranks[i] != c->rank && c->beat->peers[ranks[i]].heard < w->since)
			return; /* the silent rank will soon answer, or be lost */
	late = memory_get(sizeof(int) * (size_t)n);
	for (int i = 0; i < n; i++)
		if (ranks[i] != c->rank && is_late(c, w, ranks[i]))
			late[n_late++] = ranks[i];
	w->told = seconds_now();
	if ((n_late > 0 || !w->queued) && is_speaker(c, w, late, n_late))
		tell(c, w, late, n_late, line);
	memory_free(late);
}

Status
beat_wait(CommControl *c, Wait *w, const int *ranks, int n, Text *line)
{
	double now = seconds_now();
	Beat *b = c->beat;

	if (now - w->since < c->patience / 4)
		return NULL;
	for (int i = 0; i < n; i++) {
		Peer *p = &b->peers[ranks[i]];

		if (ranks[i] == c->rank)
			continue;
		hear(c, ranks[i], now);
		/* This rank has not looked for a long time, so it was suspended itself: give the other rank its full time
		 * again. */
		if (p->asked && now - b->looked > c->patience / 4)
			p->at = now;
		ask(c, ranks[i], now);
	}
	b->looked = now;
	RETURN_IF_ERROR(lose(c, w, ranks, n, now));
	if (now - w->since > c->patience && now - w->told > c->patience)
		report(c, w, ranks, n, line);
	return NULL;
}
