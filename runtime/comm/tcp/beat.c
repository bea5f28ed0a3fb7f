/* Finds out whether a rank is alive that other ranks wait for. Each rank has a thread (link.c) that answers pings, even while
 * the rank computes or waits for its disk. A rank first pings after waiting for a quarter of the patience, so a run without
 * long waits sends no pings.
 *
 * Rank 0 pings all ranks that it waits for; other ranks ping rank 0. A pong says what the rank is doing, whether the rank
 * itself waits for others, and which of the ranks waiting for it reports to the user. A single rank reports: rank 0 if it
 * waits, otherwise the first waiting rank. A rank that is silent for `patience` seconds is lost. Rank 0 finds lost ranks; the
 * others find a lost rank 0. */
#include "runtime/comm/comm.h"
#include "runtime/comm/tcp/link.h"

#include <string.h>

/* The first rank that has pinged this rank lately; -1 if no rank has. */
static int
first_asker(const CommControl *c)
{
	double now = seconds_now();

	for (int r = 0; r < c->size; r++)
		if (c->peers[r].asks > 0 && now - c->peers[r].asks < c->patience)
			return r;
	return -1;
}

/* Number of collectives of the group that every rank has started, as far as this rank knows. */
static int64_t
fewest_started(const CommControl *c, int group)
{
	int64_t n = c->started[group];

	for (int r = 1; r < c->size && c->rank == 0; r++)
		n = c->peers[r].last.started[group] < n ? c->peers[r].last.started[group] : n;
	return n;
}

void
tcp_answer(CommControl *c, int rank)
{
	FrameHead head = {.kind = FRAME_PONG, .bytes = sizeof(Pong)};
	const char *doing = atomic_load(&c->doing);
	double now = seconds_now();
	bool watches = c->watched > 0 && now - c->watched < c->patience / 4;
	Pong pong = {.waits = c->n_waiting > 0 || watches};

	c->peers[rank].asks = now;
	pong.speaker = first_asker(c);
	for (int g = 0; g < N_GROUPS; g++)
		pong.started[g] = fewest_started(c, g);
	if (doing)
		strncpy(pong.doing, doing, DOING_BYTES - 1);
	tcp_send(c, rank, &head, &pong);
}

void
tcp_hear(CommControl *c, int rank, const Pong *pong)
{
	TcpPeer *p = &c->peers[rank];

	p->asked = false;
	p->heard = seconds_now();
	p->last = *pong;
	p->last.doing[DOING_BYTES - 1] = '\0';
}

static void
ask(CommControl *c, int rank, double now)
{
	TcpPeer *p = &c->peers[rank];

	/* This rank has not looked for a long time, so it was suspended itself: give the other rank its full time again. */
	if (p->asked && now - c->looked > c->patience / 4)
		p->at = now;
	if (p->asked || now - p->heard < c->patience / 4)
		return;
	p->at = now;
	p->asked = true;
	tcp_send(c, rank, &(FrameHead){.kind = FRAME_PING}, NULL);
}

/* Has the rank had enough time to answer, but has not answered? */
static bool
is_silent(const CommControl *c, const TcpWait *w, int rank, double now)
{
	const TcpPeer *p = &c->peers[rank];
	double last = p->heard > w->since ? p->heard : w->since;

	return p->asked && now - p->at >= 0.75 * c->patience && now - last > c->patience;
}

void
tcp_add_place(Text *to, const TcpWait *w)
{
	text_add(to, w->what);
	if (w->number >= 0)
		text_printf(to, " %lld of the control connections", (long long)w->number);
}

static Status
find_silent(const CommControl *c, const TcpWait *w, double now)
{
	Text silent = {0}, place = {0};

	for (int i = 0; i < w->n; i++)
		if (is_silent(c, w, w->ranks[i], now))
			text_printf(&silent, "%s%d", silent.n ? ", " : "", w->ranks[i]);
	if (!silent.n)
		return NULL;
	tcp_add_place(&place, w);
	Status status = status_error(EXIT_HANG,
	                             "rank %d: waited %.0f s for rank %s in %s, without an "
	                             "answer: stopped or hanging",
	                             c->rank, now - w->since, silent.at, place.at);
	text_free(&silent);
	text_free(&place);
	return status;
}

/* Is the rank late? In an all_gather or broadcast over the control connections, every missing rank is late. In any other wait,
 * a missing rank is not late while it waits for other ranks. */
static bool
is_late(const CommControl *c, const TcpWait *w, int rank)
{
	return w->number >= 0 || !c->peers[rank].last.waits;
}

static void
tell(const CommControl *c, const TcpWait *w, double now, Text *line)
{
	enum { MOST_NAMED = 8 };
	int n = 0;

	text_printf(line, "rank %d: has waited %.0f s in ", c->rank, now - w->since);
	tcp_add_place(line, w);
	for (int i = 0; i < w->n; i++) {
		const char *doing = c->peers[w->ranks[i]].last.doing;

		if (!is_late(c, w, w->ranks[i]) || n++ >= MOST_NAMED)
			continue;
		text_printf(line, "%s rank %d", n > 1 ? "," : " for", w->ranks[i]);
		if (*doing)
			text_printf(line, " (%s)", doing);
	}
	if (n > MOST_NAMED)
		text_printf(line, " and %d more", n - MOST_NAMED);
	text_add(line, n == 1 ? ", which answers" : n ? ", which answer" : ": all ranks answer");
}

static bool
is_speaker(const CommControl *c)
{
	const Pong *of_zero = &c->peers[0].last;

	return c->rank == 0 || (!of_zero->waits && of_zero->speaker == c->rank);
}

Status
tcp_beat(CommControl *c, TcpWait *w, Text *line)
{
	double now = seconds_now();
	bool heard = true;

	if (now - w->since < c->patience / 4)
		return NULL;
	for (int i = 0; i < w->n; i++)
		ask(c, w->ranks[i], now);
	c->looked = now;
	RETURN_IF_ERROR(find_silent(c, w, now));
	if (now - w->since <= c->patience || now - w->told <= c->patience)
		return NULL;
	for (int i = 0; i < w->n; i++)
		heard = heard && c->peers[w->ranks[i]].heard >= w->since;
	if (!heard)
		return NULL; /* the silent rank will soon answer, or be lost */
	w->told = now;
	if (is_speaker(c))
		tell(c, w, now, line);
	return NULL;
}

/* Watches the awaited ranks. A rank that has ended may have sent the awaited message before its end, so its last messages are
 * given time to arrive. */
static Status
watch(CommControl *c, TcpWait *w, Text *line)
{
	double now = seconds_now();
	Status status = NULL;

	tcp_lock(c);
	c->watched = now;
	for (int i = 0; i < w->n && now - w->since > c->patience && !status; i++)
		if (c->peers[w->ranks[i]].ended)
			status = status_error(EXIT_COMM,
			                      "rank %d: rank %d has ended, and %s waits for it",
			                      c->rank, w->ranks[i], w->what);
	if (!status)
		status = tcp_beat(c, w, line);
	if (status)
		tcp_fail(c, status);
	status = status_copy(c->fault);
	tcp_unlock(c);
	return status;
}

Status
tcp_watch(CommControl *c, const char *what, double since, double *told)
{
	int *ranks = memory_get(sizeof(int) * (size_t)c->size), n = 0;
	Text line = {0};

	for (int r = 0; r < c->size; r++)
		if (r != c->rank && (c->rank == 0 || r == 0))
			ranks[n++] = r;
	TcpWait w = {what, -1, ranks, n, since, *told};
	Status status = watch(c, &w, &line);
	*told = w.told;
	memory_free(ranks);
	tcp_report(c, &line);
	return status;
}

/* ---- collectives of devices */
void
tcp_started(CommControl *c, CommGroup group, int64_t n)
{
	tcp_lock(c);
	c->started[group] = n;
	tcp_unlock(c);
}

/* Is there a rank that has not started the collective? Rank 0 knows the counts of all ranks; other ranks ask rank 0. With
 * several groups of one kind (for example several tensor groups), ranks of all of them count, because all run the same
 * program. */
static bool
has_late(CommControl *c, const CommWatch *watch)
{
	bool late = watch->number < 0;

	tcp_lock(c);
	for (int r = 0; r < c->size && !late; r++) {
		const TcpPeer *p = &c->peers[r];
		if (r != c->rank && (c->rank == 0 || r == 0))
			late = p->heard <= watch->since ||
			       p->last.started[watch->group] <= watch->number;
	}
	tcp_unlock(c);
	return late;
}

Status
tcp_watch_collective(CommControl *c, CommWatch *watch)
{
	Text what = {0};

	text_add(&what, watch->what);
	if (watch->number >= 0)
		text_printf(&what, " %lld", (long long)watch->number);
	text_printf(&what, " of group %s", comm_group_names[watch->group]);
	watch->late = has_late(c, watch);
	double quiet = seconds_now(), *told = watch->late ? &watch->told : &quiet;
	/* If no rank is late, nothing is reported. */
	Status status = tcp_watch(c, what.at, watch->since, told);
	text_free(&what);
	return status;
}
